"""Counts, writes down, fails or ends at the calls of a process that change files: a library that is loaded before libc.

The library is compiled where it is first needed (``preload.c``, which has the same table of fields).
"""

from __future__ import annotations

import atexit
import enum
import errno
import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from native.mock import build

_SOURCE = Path(__file__).with_suffix(".c")
_NUMBERS = ("armed", "count", "kill_at", "code", "kinds", "torn", "failed", "trace")
_TEXTS = ("under", "beside", "match", "log")
_TEXT_BYTES = 512
_SIZE = 8 * len(_NUMBERS) + _TEXT_BYTES * len(_TEXTS)


class Kind(enum.IntFlag):
    """Kinds of calls."""

    OPEN = 1
    """For writing."""
    WRITE = 2
    SYNC = 4
    NAME = 8
    """A file or folder gets a name."""
    MODE = 16
    SIZE = 32
    IOCTL = 64
    BIND = 128
    """A socket gets a name."""
    REMOVE = 256


GROWS = Kind.OPEN | Kind.WRITE | Kind.NAME | Kind.SIZE | Kind.BIND
"""What needs room on the disk."""
CHANGES = GROWS | Kind.MODE | Kind.REMOVE
"""What a read-only file system refuses."""


@functools.cache
def library() -> Path:
    """The compiled library.

    Raises:
        BuildError: there is no C compiler.
    """
    folder = Path(tempfile.mkdtemp(prefix="preload"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = folder / "preload.so"
    command = [build.compiler(), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(made)]
    subprocess.run([*command, str(_SOURCE), "-ldl"], check=True, timeout=60)
    return made


class Control:
    """What the library does in all processes that are started with ``environment``.

    Args:
        folder: holds the file that they share, and the trace.
        under: only paths below it count.
        beside: a part of paths that do not count all the same.
    """

    def __init__(self, folder: Path, under: Path, beside: str = "") -> None:
        self._path = folder / "preload.control"
        self._path.write_bytes(bytes(_SIZE))
        self._log = folder / "preload.trace"
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)
        self._put_text("under", f"{str(under).rstrip('/')}/")
        self._put_text("beside", beside)
        self._put_text("log", str(self._log))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that is to be watched."""
        return {"LD_PRELOAD": str(library()), "GPUDRA_PRELOAD_CONTROL": str(self._path)}

    @classmethod
    def mine(cls) -> Control:
        """That of this process, which was started with ``environment``."""
        made = cls.__new__(cls)
        with Path(os.environ["GPUDRA_PRELOAD_CONTROL"]).open("r+b") as file:
            made._map = mmap.mmap(file.fileno(), _SIZE)
        return made

    def arm(self, kill_at: int = 0, *, torn: bool = False) -> None:
        """Count from now on, and end the process before the n-th call; ``torn``: in the midst of it if it writes."""
        self._put("torn", int(torn))
        self._put("count", 0)
        self._put("kill_at", kill_at)
        self._put("armed", 1)

    def disarm(self) -> int:
        """Count no more; gives the count."""
        self._put("armed", 0)
        return self.number("count")

    def fail(self, match: str, code: int, kinds: Kind, *, torn: bool = False) -> None:
        """From now on calls of these kinds fail where ``match`` is a part of the path (or one of several, with ``|``
        between them); ``torn``: a write that fails has written its first half."""
        self._put("failed", 0)
        self._put("torn", int(torn))
        self._put("kinds", int(kinds))
        self._put_text("match", match)
        self._put("code", code)

    def mend(self) -> int:
        """Nothing fails any more; gives how many calls failed."""
        self._put("code", 0)
        return self.number("failed")

    def trace(self) -> None:
        """Write down every call from now on."""
        self._put("trace", 1)

    def traced(self) -> list[tuple[Kind, Path]]:
        """What was written down."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        pairs = (line.split(" ", 1) for line in lines)
        return [(Kind(int(kind)), Path(path)) for kind, path in pairs]

    def number(self, name: str) -> int:
        """A field."""
        (value,) = struct.unpack_from("<q", self._map, 8 * _NUMBERS.index(name))
        return int(value)

    def _put(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._map, 8 * _NUMBERS.index(name), value)

    def _put_text(self, name: str, text: str) -> None:
        data = os.fsencode(text)
        if len(data) >= _TEXT_BYTES:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), text)
        at = 8 * len(_NUMBERS) + _TEXT_BYTES * _TEXTS.index(name)
        self._map[at : at + _TEXT_BYTES] = data.ljust(_TEXT_BYTES, b"\0")
