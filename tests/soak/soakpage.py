"""What the soak shares with the agent's process: its wall clock, and how much of its heap is in use.

The library (``soakpreload.c``, which has the same fields) is compiled where it is first needed.
"""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from native.mock import build
from tests.support.agents import until

_SOURCE = Path(__file__).with_name("soakpreload.c")
_FIELDS = ("offset", "asked", "answered", "bytes")
_SIZE = 8 * len(_FIELDS)
EXACT = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
"""With this in its environment all that a process of Python has on its heap is counted, and nothing that is free."""


class Page:
    """The page of one node's agents.

    Args:
        folder: holds the page and the library.
    """

    def __init__(self, folder: Path) -> None:
        self._library = folder / "soakpreload.so"
        flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        subprocess.run([build.compiler(), *flags, "-o", self._library, _SOURCE, "-ldl"], check=True, timeout=60)
        self._path = folder / "page"
        self._path.write_bytes(bytes(_SIZE))
        with self._path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SIZE)

    @property
    def library(self) -> str:
        """What is to be loaded before the C library."""
        return str(self._library)

    @property
    def environment(self) -> dict[str, str]:
        """Beside the library's name in ``LD_PRELOAD``."""
        return {"SOAK_PAGE": str(self._path)}

    def set_clock(self, seconds: int) -> None:
        """Let the wall clock be so far from the machine's."""
        self._put("offset", seconds)

    def heap(self, alive: Callable[[], bool]) -> int | None:
        """Bytes of the heap that are in use now; None where the C library does not say."""
        asked = self._get("asked") + 1
        self._put("asked", asked)
        until(lambda: self._get("answered") == asked, "the size of the agent's heap", alive)
        found = self._get("bytes")
        return found if found >= 0 else None

    def _get(self, name: str) -> int:
        (value,) = struct.unpack_from("<q", self._map, 8 * _FIELDS.index(name))
        return int(value)

    def _put(self, name: str, value: int) -> None:
        struct.pack_into("<q", self._map, 8 * _FIELDS.index(name), value)


def preloaded(*libraries: str) -> dict[str, str]:
    """The variable that loads them, before what is loaded already."""
    return {"LD_PRELOAD": os.pathsep.join([*libraries, *filter(None, [os.environ.get("LD_PRELOAD")])])}
