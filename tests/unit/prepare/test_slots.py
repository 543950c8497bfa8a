"""A few lines in one file: the newest is never touched, a change waits once, another process's writes are seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import files
from driver.prepare.slots import SECTOR, SLOT_BYTES, SLOTS, Line, SlotFile


def line(number: int, length: int = 40) -> bytes:
    """Of its own from its beginning on, as a checkpoint's is."""
    return (b"%d:" % number).ljust(length, b"x")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


@pytest.fixture
def file(path: Path) -> SlotFile:
    made = SlotFile(path)
    for number in range(SLOTS):
        made.write(number, line(number), sync=True)
    return made


def stored(path: Path) -> list[bytes]:
    """The lines by their slots, as anybody reads them."""
    return [one.raw for one in SlotFile(path).read()]


def test_lines_stand_in_turn_and_the_oldest_is_replaced(file: SlotFile, path: Path) -> None:
    assert stored(path) == [line(0), line(1), line(2), line(3)]
    file.write(4, line(4), sync=True)
    assert stored(path) == [line(4), line(1), line(2), line(3)]
    file.write(5, line(5), sync=False)
    assert stored(path) == [line(4), line(5), line(2), line(3)]


def test_all_that_can_be_read_by_other_tools_is_lines_and_blanks(file: SlotFile, path: Path) -> None:
    for number, length in ((4, 5000), (5, 9), (6, 700), (7, 1), (8, 10), (9, 2000), (10, 40), (11, 99)):
        file.write(number, line(number, length), sync=True)
    raw = path.read_bytes()
    assert sorted(one.strip() for one in raw.split(b"\n") if one.strip()) == sorted(
        [line(8, 10), line(9, 2000), line(10, 40), line(11, 99)]
    )
    assert len(raw) == SLOTS * SLOT_BYTES


def test_a_file_is_for_root_alone(file: SlotFile, path: Path) -> None:
    assert path.stat().st_mode & 0o777 == 0o600


def test_slots_without_a_line_are_told_as_such(path: Path) -> None:
    SlotFile(path).write(7, line(7), sync=True)
    assert SlotFile(path).read() == [Line(0, b""), Line(1, b""), Line(2, b""), Line(3, line(7))]


def test_a_longer_line_makes_a_larger_file_once(file: SlotFile, path: Path) -> None:
    file.write(4, line(4, SLOT_BYTES - 1), sync=True)
    size = path.stat().st_size
    assert size >= 2 * SLOTS * SLOT_BYTES
    assert stored(path) == [line(4, SLOT_BYTES - 1), b"", b"", b""]
    file.write(5, line(5, SLOT_BYTES), sync=True)
    assert (path.stat().st_size, stored(path)[1]) == (size, line(5, SLOT_BYTES))


def test_the_longest_line_that_fits_leaves_the_file_as_it_is(file: SlotFile, path: Path) -> None:
    file.write(4, line(4, SLOT_BYTES - 2), sync=True)
    assert path.stat().st_size == SLOTS * SLOT_BYTES
    file.write(8, line(8, 3), sync=True)
    assert stored(path) == [line(8, 3), line(1), line(2), line(3)]
    assert path.read_bytes()[SLOT_BYTES - 1 : SLOT_BYTES] == b"\n"


class Watched:
    """What is asked of the disk, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        for name in ("pwrite", "fdatasync", "fsync", "rename"):
            monkeypatch.setattr(os, name, self._noting(name))

    def _noting(self, name: str) -> object:
        real = getattr(os, name)

        def call(*arguments: object) -> object:
            self.calls.append(name)
            return real(*arguments)

        return call


def test_a_change_is_one_write_in_place_and_one_wait(file: SlotFile, monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    file.write(4, line(4), sync=True)
    assert watched.calls == ["pwrite", "fdatasync"]


def test_a_line_of_several_sectors_is_written_from_its_second_on_and_its_first_last(
    file: SlotFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = []
    real = os.pwrite

    def note(descriptor: int, data: bytes, offset: int) -> int:
        places.append((offset, len(data)))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", note)
    file.write(4, line(4, 2000), sync=True)
    assert places == [(SECTOR, 2001 - SECTOR), (0, SECTOR)]


def test_short_writes_go_on_where_they_stopped(file: SlotFile, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: real(descriptor, data[:100], offset))
    file.write(4, line(4, 2000), sync=True)
    assert stored(path)[0] == line(4, 2000)


@given(st.lists(st.booleans(), min_size=1, max_size=12))
def test_the_last_line_known_to_be_on_the_disk_is_never_overwritten(
    tmp_path_factory: pytest.TempPathFactory, syncs: list[bool]
) -> None:
    """After any series of waits and no waits, a loss of power leaves the newest line that was waited for."""
    file = SlotFile(tmp_path_factory.mktemp("slots") / "file")
    file.write(0, line(0), sync=True)
    with pytest.MonkeyPatch.context() as patch:
        certain = [0]
        written = [0]
        real_sync, real_write = os.fdatasync, os.pwrite

        def sync(descriptor: int) -> None:
            real_sync(descriptor)
            certain[0] = written[0]

        def write(descriptor: int, data: bytes, offset: int) -> int:
            assert offset // SLOT_BYTES != certain[0] % SLOTS
            return real_write(descriptor, data, offset)

        patch.setattr(os, "fdatasync", sync)
        patch.setattr(os, "pwrite", write)
        for number, wait in enumerate(syncs, 1):
            before = certain[0]
            written[0] = number - 1
            file.write(number, line(number), sync=False)
            written[0] = number
            if wait:
                file.write(number + 100 * SLOTS, line(number), sync=True)  # the same place, waited for
            assert certain[0] >= before
    file.close()


def test_what_another_process_writes_is_noticed_within_the_same_tick(file: SlotFile, path: Path) -> None:
    other = SlotFile(path)
    other.read()
    assert (file.is_known(), other.is_known()) == (True, True)
    status = path.stat()
    other.write(4, line(4), sync=False)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (file.is_known(), other.is_known()) == (False, True)
    file.read()
    assert file.is_known()


def replaced(path: Path) -> None:
    raw = path.read_bytes()
    path.unlink()
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "change",
    [Path.unlink, lambda path: os.truncate(path, SLOT_BYTES), replaced, lambda path: path.rename(f"{path}.moved")],
    ids=["removed", "cut", "replaced", "moved"],
)
def test_a_file_that_is_no_longer_the_same_is_not_known_and_written_anew(
    file: SlotFile, path: Path, change: object
) -> None:
    assert callable(change)
    change(path)
    assert not file.is_known()
    file.write(4, line(4), sync=True)
    assert stored(path) == [line(4), b"", b"", b""]
    assert file.is_known()


def test_after_a_write_that_failed_the_next_goes_into_a_new_file(
    file: SlotFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = path.stat().st_ino

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(OSError, match="Input/output"):
            file.write(4, line(4), sync=True)
    assert not file.is_known()
    file.write(4, line(4), sync=True)
    assert path.stat().st_ino != before
    assert file.is_known()


@pytest.mark.parametrize("content", [b"", b"x", b"a\nb\nc\n", b" " * SLOTS * SECTOR, b"\n" * 99, line(1, SLOT_BYTES)])
def test_a_file_of_another_make_is_one_line_without_a_number(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    file = SlotFile(path)
    assert file.read() == [Line(None, content)]
    assert not file.is_known()
    file.write(1, line(1), sync=True)
    assert stored(path) == [b"", line(1), b"", b""]


def test_a_link_is_neither_read_nor_written_through(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"theirs")
    path.symlink_to(target)
    file = SlotFile(path)
    with pytest.raises(files.NotAFileError, match="symbolic link"):
        file.read()
    file.write(0, line(0), sync=True)
    assert target.read_bytes() == b"theirs"
    assert not path.is_symlink()


def test_a_closed_file_holds_no_descriptor(file: SlotFile, path: Path) -> None:
    def held() -> list[str]:
        links = list(Path("/proc/self/fd").iterdir())
        return [str(link) for link in links if link.exists() and link.samefile(path)]

    assert len(held()) == 1
    file.close()
    assert held() == []
    del file
