"""Small state files: whole or not there, and a word in the log, once, where they cannot be written."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from driver import statefile
from driver.statefile import HelpfulFile


def fails(monkeypatch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Calls of ``os`` by this name fail."""

    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, name, fail)


def test_a_file_takes_the_place_of_the_one_before_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"one", b"two"):
        statefile.write(path, content, sync=True)
        assert statefile.read(path, 100) == content
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.bug("B63")
@pytest.mark.parametrize(("call", "code"), [("fdatasync", errno.EIO), ("replace", errno.EROFS), ("open", errno.ENOSPC)])
def test_a_write_that_fails_leaves_what_stood_there_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    path = tmp_path / "state.json"
    statefile.write(path, b"old", sync=True)
    with monkeypatch.context() as patch:
        fails(patch, call, code)
        with pytest.raises(OSError, match=os.strerror(code)):
            statefile.write(path, b"new", sync=True)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]
    statefile.write(path, b"new", sync=True)
    assert path.read_bytes() == b"new"


def test_what_a_killed_process_left_of_a_write_is_in_nobodys_way(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    (tmp_path / "state.json.tmp").write_bytes(b"ha")
    statefile.write(path, b"whole", sync=False)
    assert path.read_bytes() == b"whole"
    assert [entry.name for entry in tmp_path.iterdir()] == ["state.json"]


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"theirs")
    path = tmp_path / "state.json"
    path.symlink_to("foreign")
    statefile.write(path, b"ours", sync=False)
    assert (tmp_path / "foreign").read_bytes() == b"theirs"
    assert not path.is_symlink()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "free space"),
        (errno.EROFS, "mount that file system writable"),
        (errno.EACCES, "write access"),
        (errno.EIO, "check the disk"),
        (errno.E2BIG, "see the agent's log"),
    ],
)
def test_the_remedy_fits_the_cause(code: int, words: str) -> None:
    assert words in statefile.remedy(OSError(code, os.strerror(code)))


def test_a_file_that_only_helps_is_missed_with_one_warning_for_each_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = HelpfulFile(tmp_path / "state.json", "A restart would forget")
    with caplog.at_level(logging.WARNING):
        for code in (errno.ENOSPC, errno.ENOSPC, errno.EROFS):
            with monkeypatch.context() as patch:
                fails(patch, "open", code)
                assert file.write(b"x") is False
        assert file.write(b"x") is True
        with monkeypatch.context() as patch:
            fails(patch, "open", errno.EROFS)
            assert file.write(b"x") is False
    told = [record.getMessage() for record in caplog.records]
    assert [os.strerror(errno.ENOSPC) in told[0], *(os.strerror(errno.EROFS) in one for one in told[1:])] == [True] * 3
    assert all(str(tmp_path / "state.json") in one and one.endswith("A restart would forget") for one in told)
