"""A file of a few lines that are overwritten in turn: a change costs one write in place and one wait for its data.

Writing a new file, renaming it and syncing the folder makes the disk commit its journal, and with that whatever else
is being written on the machine (images being pulled): ten times as long on a busy node. Here the blocks are there
already and only they are waited for, which also works on a full disk.

The newest line is never touched while the next one is written, nor is the last one that is known to be on the disk.
A line's first sector, which says which line it is, is written last: a write that was cut short leaves the old first
sector before a rest that does not fit it, and so cannot be taken for damage to something newer.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import msgspec

from driver.prepare import files

SLOTS = 4
"""So many that a Prepare and an Unprepare, which wait for the disk once each, need not wait for the other's lines."""
SECTOR = 512
"""Bytes that a disk writes as one."""
SLOT_BYTES = 16 * 1024
"""Room for one line, at first; it is doubled when a line needs more."""
MAX_BYTES = 64 * 1024 * 1024
HEAD_BYTES = 160
"""As much of a line's beginning as tells it from every other."""


class Line(msgspec.Struct, frozen=True):
    """What was read of one slot."""

    number: int | None
    """Of the slot; None in a file that has no slots."""
    raw: bytes
    """Without what fills the slot up; empty where no line was ever written whole."""


class SlotFile:
    """See the module. For one thread at a time.

    The caller numbers its lines upwards from 0 without a hole; line ``n`` stands in slot ``n % SLOTS``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._temporary = path.with_name(f"{path.name}.tmp")
        self._descriptor: int | None = None
        self._inode: tuple[int, int] | None = None
        self._slot_bytes = 0
        self._heads: list[bytes] = []
        self._lengths: list[int] = []
        self._durable: int | None = None
        """Number of the last line that is on the disk for certain; None where that is not known."""

    def __del__(self) -> None:
        """Let go of the file."""
        self.close()

    def close(self) -> None:
        """Let go of the file; the next write makes it anew."""
        descriptor, self._descriptor = self._descriptor, None
        self._inode = None
        if descriptor is not None:
            os.close(descriptor)

    def read(self) -> list[Line]:
        """All lines, in the order of their slots. A file of another make is one line, whose number is None.

        Raises:
            FileNotFoundError: there is none.
            files.NotAFileError: a folder, a link, a pipe or the like stands there.
            files.TooLargeError: it is larger than anything that was ever written here.
            OSError: it cannot be read.
        """
        self.close()
        raw = files.read_regular(self._path, MAX_BYTES)
        size = len(raw) // SLOTS
        if len(raw) % SLOTS or size % SECTOR or not size or any(raw[n * size - 1] != 0x0A for n in range(1, SLOTS + 1)):
            return [Line(None, raw)]
        slots = [raw[number * size :][:size] for number in range(SLOTS)]
        self._take(os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), slots)
        self._durable = None
        # A beginning that is still blank is that of a first line that was cut short.
        lines = [slot.rstrip(b" \n") if slot[:SECTOR].strip(b" ") else b"" for slot in slots]
        return [Line(number, line) for number, line in enumerate(lines)]

    def is_there(self) -> bool:
        """Whether something stands at the path."""
        return os.path.lexists(self._path)

    def is_known(self) -> bool:
        """Whether the file is as it was read or written last here; not after another process has written."""
        if self._descriptor is None or not self._is_in_place():
            return False
        places = (number * self._slot_bytes for number in range(SLOTS))
        with contextlib.suppress(OSError):  # reading it whole says why
            return [os.pread(self._descriptor, HEAD_BYTES, place) for place in places] == self._heads
        return False

    def write(self, number: int, line: bytes, *, sync: bool) -> None:
        """Write a line in place; a new file where that cannot be done.

        Args:
            number: of the line.
            line: without a newline.
            sync: wait until the disk has it, and with it all lines before.

        Raises:
            OSError: of the step that failed; whether the line can be read afterwards is not certain, those before can.
        """
        descriptor = self._descriptor
        if descriptor is None or len(line) + 2 > self._slot_bytes or not self._is_in_place():
            self._write_new(number, line)
            return
        try:
            if self._durable is None or self._durable % SLOTS == number % SLOTS:
                os.fdatasync(descriptor)  # or else nothing that is certain would be left
                self._durable = number - 1
            self._write_over(descriptor, number % SLOTS, line)
            if sync:
                os.fdatasync(descriptor)
                self._durable = number
        except BaseException:
            self.close()  # what the system has of it is not known: the next line goes into a new file
            raise

    def _write_over(self, descriptor: int, slot: int, line: bytes) -> None:
        """The line, blanks over what is left of a longer one; the first sector last."""
        place = slot * self._slot_bytes
        written = (line + b"\n").ljust(self._lengths[slot] + 1)
        if len(written) > SECTOR:
            _write_at(descriptor, written[SECTOR:], place + SECTOR)
        _write_at(descriptor, written[:SECTOR], place)
        self._heads[slot] = written[:HEAD_BYTES].ljust(HEAD_BYTES)
        self._lengths[slot] = len(line)

    def _write_new(self, number: int, line: bytes) -> None:
        """A whole file beside the old one, renamed over it. Where it fails the old one is as it was."""
        size = SLOT_BYTES
        while size < 2 * len(line):
            size *= 2
        slots = [b" " * (size - 1) + b"\n"] * SLOTS
        slots[number % SLOTS] = (line + b"\n").ljust(size - 1) + b"\n"
        files.write_new(self._temporary, b"".join(slots), 0o600)
        files.replace(self._temporary, self._path)
        self.close()
        self._take(os.open(self._path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), slots)
        self._durable = number

    def _take(self, descriptor: int, slots: Sequence[bytes]) -> None:
        """The open file is known from now on, with these bytes in its slots."""
        status = os.fstat(descriptor)
        self._descriptor, self._slot_bytes = descriptor, len(slots[0])
        self._inode = status.st_dev, status.st_ino
        self._heads = [slot[:HEAD_BYTES] for slot in slots]
        self._lengths = [len(slot.rstrip(b" \n")) for slot in slots]

    def _is_in_place(self) -> bool:
        """Whether the open file is the one at the path, and as long as it was."""
        with contextlib.suppress(OSError):
            status = os.lstat(self._path)
            whole = status.st_size == SLOTS * self._slot_bytes and stat.S_ISREG(status.st_mode)
            return whole and (status.st_dev, status.st_ino) == self._inode
        return False


def _write_at(descriptor: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, place)
        view, place = view[written:], place + written
