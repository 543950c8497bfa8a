"""The reading end of the journal: whole, from a number on, or along with the one who writes it.

Reading needs no lock and disturbs nobody: files are only appended to, and an unfinished last line is one that is being
written. A line that cannot be read is told, never skipped in silence.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import msgspec

from driver.journal.records import MAX_STATE_BYTES, LineError, Record, decode
from driver.journal.ring import first_seq

_CHUNK = 1 << 16
POLL_SECONDS = 0.5


class Damage(msgspec.Struct, frozen=True):
    """A line that is no record, or numbers that are missing between two records."""

    file: str
    line: int
    """Counted from 1; 0: not about one line."""
    reason: str


Entry: TypeAlias = Record | Damage


def files(folder: Path) -> list[str]:
    """The names of a journal's files, oldest first.

    Raises:
        OSError: there is no such folder, or it cannot be read.
    """
    return sorted(path.name for path in folder.iterdir() if first_seq(path.name) is not None)


def read(folder: Path, since: int = 0) -> Iterator[Entry]:
    """Every record that is there now with a number of at least ``since``, oldest first.

    Raises:
        OSError: the folder cannot be read; a file that goes away meanwhile (the ring turned) is no error.
    """
    yield from _Walk(folder, since).entries()


def follow(
    folder: Path, stop: threading.Event, since: int = 0, *, poll_seconds: float = POLL_SECONDS
) -> Iterator[Entry]:
    """As ``read``, and then what is written from now on, until ``stop`` is set.

    Looks at the file's length every ``poll_seconds``. A folder that is not there yet is waited for.
    """
    walk = _Walk(folder, since)
    try:
        while not stop.is_set():
            try:
                yield from walk.entries(more_to_come=True)
            except FileNotFoundError:
                walk.begin_again()
            stop.wait(poll_seconds)
    finally:
        walk.close()


class _Walk:
    """Goes through the files in their order and remembers where it is."""

    def __init__(self, folder: Path, since: int) -> None:
        self._folder = folder
        self._next = since
        self._name: str | None = None
        self._file = -1
        self._line = 0
        self._pending = b""
        self._last = 0

    def entries(self, *, more_to_come: bool = False) -> Iterator[Entry]:
        try:
            if self._name is None and not self._first():
                return
            while True:
                yield from self._rest_of_file()
                following = self._following()
                if following is None:
                    return
                # Written between the last look and the start of the next file.
                yield from self._rest_of_file()
                if self._pending:
                    yield Damage(self._name or "", self._line + 1, "it ends in the middle of a line")
                self._open(following)
        finally:
            if not more_to_come:
                self.close()

    def begin_again(self) -> None:
        self.close()
        self._name = None

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def _first(self) -> bool:
        names = files(self._folder)
        # The last file that begins at or before the wanted number; a later one if that has gone.
        older = [name for name in names if (first_seq(name) or 0) <= self._next]
        start = older[-1:] or names[:1]
        for name in [*start, *(name for name in names if name not in start and name > start[0])] if start else []:
            if self._open(name):
                return True
        return False

    def _following(self) -> str | None:
        return next((name for name in files(self._folder) if self._name is None or name > self._name), None)

    def _open(self, name: str) -> bool:
        self.close()
        self._name, self._line, self._pending = name, 0, b""
        try:
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return False
        self._file = descriptor
        return True

    def _rest_of_file(self) -> Iterator[Entry]:
        while self._file >= 0 and (chunk := os.read(self._file, _CHUNK)):
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            if len(self._pending) > 2 * MAX_STATE_BYTES:
                lines, self._pending = [*lines, self._pending], b""
            for line in lines:
                yield from self._read_line(line)

    def _read_line(self, line: bytes) -> Iterator[Entry]:
        self._line += 1
        try:
            record = decode(line)
        except LineError as error:
            yield Damage(self._name or "", self._line, str(error))
            return
        if self._last and record.seq > self._last + 1:
            missing = record.seq - self._last - 1
            yield Damage(self._name or "", self._line, f"{missing} records before number {record.seq} are missing")
        self._last = record.seq
        if record.seq >= self._next:
            self._next = record.seq + 1
            yield record
