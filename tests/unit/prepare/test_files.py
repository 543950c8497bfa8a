"""Files that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import files


@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("data", [b"", b"short", b"x" * 10_000])
def test_a_new_file_has_its_content_and_mode(tmp_path: Path, data: bytes, sync: bool) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something in between")
    path.chmod(0o644)
    files.write_new(path, data, 0o600, sync=sync)
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o7777 == 0o600


def test_a_new_file_leaves_one_alone_that_has_another_name_too(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"precious")
    os.link(tmp_path / "other", tmp_path / "file")
    files.write_new(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "other").read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"data"


def test_a_new_file_replaces_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    files.write_new(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()


def test_a_new_file_replaces_a_pipe_and_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    files.write_new(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "file").read_bytes() == b"data"


def test_a_failure_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_new(path, b"data", 0o600)
    assert not path.exists()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8))
def test_whatever_was_there_only_the_last_content_is(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("files")
    for data in contents:
        files.write_new(folder / "file.tmp", data, 0o600)
        files.replace(folder / "file.tmp", folder / "file")
        assert (folder / "file").read_bytes() == data
        assert [path.name for path in folder.iterdir()] == ["file"]
