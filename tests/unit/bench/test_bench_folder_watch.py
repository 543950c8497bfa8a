"""How the benchmark hears of a driver's socket."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.bench.folderwatch import FolderWatch


def test_a_file_that_appears_ends_the_wait(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        thread = threading.Thread(target=(tmp_path / "made").touch)
        thread.start()
        assert watch.wait(60)
        thread.join()


def test_a_file_that_is_renamed_into_the_folder_counts_too(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "elsewhere").touch()
    with FolderWatch(tmp_path / "folder") as watch:
        (tmp_path / "elsewhere").rename(tmp_path / "folder" / "here")
        assert watch.wait(60)


def test_without_news_the_wait_ends_after_its_time(tmp_path: Path) -> None:
    with FolderWatch(tmp_path) as watch:
        (tmp_path / "made").touch()
        assert watch.wait(60)
        assert not watch.wait(0.01)


def test_a_folder_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        FolderWatch(tmp_path / "absent")
