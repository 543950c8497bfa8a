"""Files that are whole or not there, and written into a file that is there where that harms nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import files


@pytest.mark.parametrize("data", [b"", b"short", b"x" * 10_000])
def test_write_over_gives_the_same_file_its_new_content(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"something in between")
    path.chmod(0o644)
    inode = path.stat().st_ino
    files.write_over(path, data, 0o600)
    assert path.read_bytes() == data
    assert path.stat().st_ino == inode
    assert path.stat().st_mode & 0o7777 == 0o600


def test_write_over_makes_a_file_where_there_is_none(tmp_path: Path) -> None:
    files.write_over(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "file").read_bytes() == b"data"
    assert (tmp_path / "file").stat().st_mode & 0o7777 == 0o600


def test_write_over_leaves_a_file_alone_that_has_another_name_too(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"precious")
    os.link(tmp_path / "other", tmp_path / "file")
    files.write_over(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "other").read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"data"


def test_write_over_replaces_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "file").symlink_to(tmp_path / "victim")
    files.write_over(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "file").is_symlink()


def test_write_over_replaces_a_pipe_and_does_not_wait_for_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "file")
    files.write_over(tmp_path / "file", b"data", 0o600)
    assert (tmp_path / "file").read_bytes() == b"data"


def test_a_failure_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        files.write_over(path, b"data", 0o600)
    assert not path.exists()


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=8))
def test_whatever_was_there_only_the_last_content_is(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("over") / "file"
    for data in contents:
        files.write_over(path, data, 0o600)
        assert path.read_bytes() == data
