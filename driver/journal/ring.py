"""The files of a journal: a ring of bounded size, appended to by one process at a time.

``journal-<first sequence number>.jsonl`` in a folder of their own (0700), a lock file beside them. Every step leaves
something that the next start can go on from: a file may be empty, and its last line may be cut off; that tail is cut
away before anything is appended. Links are not followed: the folder's entries are opened by name within the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from pathlib import Path

import msgspec

from driver.journal.records import Kind, LineError, Record, decode

LOCK = "lock"
MAX_FILES = 64
"""Files are small where many agents began and ended; the oldest go when there are more than this."""
_NAME = re.compile(r"\Ajournal-([0-9]{20})\.jsonl\Z")
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW


class LockedError(Exception):
    """Another process writes this journal (an update runs two agents for a while)."""


class Tail(msgspec.Struct):
    """What the end of a journal is like when it is opened."""

    last: Record | None = None
    """The last whole record."""
    records: list[Record] = msgspec.field(default_factory=list)
    """Those from the newest ``state`` record on, as far as they can be read."""
    next_seq: int = 1
    torn: int = 0
    """Bytes of an unfinished last line, cut away."""
    damaged: int = 0
    """Lines of the last files that cannot be read."""


def file_name(seq: int) -> str:
    """The name of the file whose first record has this number."""
    return f"journal-{seq:020d}.jsonl"


def first_seq(name: str) -> int | None:
    """The number in a file's name; None: no file of a journal."""
    match = _NAME.match(name)
    return int(match[1]) if match else None


class Ring:
    """One journal opened for writing. Not safe for threads.

    Args:
        folder: made where it is not there (its parent too).
        max_bytes: of all files; the oldest go first. The one that is written to always stays.

    Raises:
        LockedError: somebody else writes it.
        OSError: the folder or a file cannot be used; nothing is left open.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.file_bytes = max(max_bytes // 8, 4096)
        self._file = -1
        self._lock = -1
        self.size = 0
        """Bytes of the current file; 0 before ``begin``."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | _FLAGS)
        try:
            self._take_lock(folder)
        except BaseException:
            self.close()
            raise

    def _take_lock(self, folder: Path) -> None:
        self._lock = os.open(LOCK, os.O_RDWR | os.O_CREAT | _FLAGS, 0o600, dir_fd=self._folder)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise LockedError(f"another agent writes the journal in {folder}") from error

    def open_tail(self) -> Tail:
        """Make the newest file fit to be appended to, and read back to the newest ``state`` record.

        Raises:
            OSError: it cannot be read or cut.
        """
        names = self.names()
        tail = Tail(next_seq=(first_seq(names[-1]) or 1) if names else 1)
        read: list[Record] = []
        for name in reversed(names):
            newest = name == names[-1]
            records, lines = self._load(name, tail, cut=newest)
            if newest:
                tail.next_seq = max([(first_seq(name) or 1) + lines, *(record.seq + 1 for record in records[-1:])])
            read = records + read
            start = next((i for i in range(len(read) - 1, -1, -1) if read[i].kind == Kind.STATE), None)
            if start is not None:
                read = read[start:]
                break
        tail.records = read
        tail.last = read[-1] if read else None
        return tail

    def _load(self, name: str, tail: Tail, *, cut: bool) -> tuple[list[Record], int]:
        descriptor = os.open(name, os.O_RDWR | os.O_APPEND | _FLAGS, dir_fd=self._folder)
        try:
            data = _read_all(descriptor)
            whole = data.rfind(b"\n") + 1
            if cut and whole < len(data):
                os.ftruncate(descriptor, whole)
                tail.torn = len(data) - whole
            if cut:
                self._file, self.size, descriptor = descriptor, whole, -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        records = []
        lines = data[:whole].splitlines()
        for line in lines:
            try:
                records.append(decode(line))
            except LineError:
                tail.damaged += 1
        return records, len(lines)

    def begin(self, seq: int) -> None:
        """Start a new file; ``prune`` once its first record is in it.

        Raises:
            OSError: it cannot be made.
        """
        self.sync()
        self._close_file()
        self._file = os.open(
            file_name(seq), os.O_WRONLY | os.O_CREAT | os.O_APPEND | _FLAGS, 0o600, dir_fd=self._folder
        )
        self.size = os.fstat(self._file).st_size
        os.fsync(self._folder)

    @property
    def is_open(self) -> bool:
        """Whether there is a file to append to."""
        return self._file >= 0

    def append(self, data: bytes) -> None:
        """Write at the end, all of it or nothing. After a failure close the ring and open it again: should not even
        the cut back to the old end have worked, that mends it.

        Raises:
            OSError: it was not written.
        """
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            with contextlib.suppress(OSError):  # the write's error is the one to report
                os.ftruncate(self._file, self.size)
            raise
        self.size += len(data)

    def sync(self) -> None:
        """Make what was written durable.

        Raises:
            OSError: it is not.
        """
        if self._file >= 0:
            os.fdatasync(self._file)

    def names(self) -> list[str]:
        """The files, oldest first."""
        with os.scandir(self._folder) as entries:
            return sorted(entry.name for entry in entries if first_seq(entry.name) is not None)

    def prune(self) -> None:
        """Drop the oldest files that have become too much, with the room that the current one may still take.

        Raises:
            OSError: one cannot be dropped.
        """
        names = self.names()
        sizes = {name: os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_size for name in names}
        total = sum(sizes.values()) + self.file_bytes
        for count, name in enumerate(names[:-1]):
            if total <= self._max_bytes and len(names) - count <= MAX_FILES:
                return
            os.unlink(name, dir_fd=self._folder)
            total -= sizes[name]

    def close(self) -> None:
        """Let go of the files and the lock."""
        self._close_file()
        for descriptor in (self._lock, self._folder):
            if descriptor >= 0:
                os.close(descriptor)
        self._lock = self._folder = -1

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file = -1
        self.size = 0


def _read_all(descriptor: int) -> bytes:
    chunks = []
    offset = 0
    while chunk := os.pread(descriptor, 1 << 20, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)
