"""Waits for news of a folder (inotify(7)): a benchmark that looks again and again takes a CPU from what it measures."""

from __future__ import annotations

import ctypes
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Self

_NEWS = 0x80 | 0x100  # IN_MOVED_TO, IN_CREATE (sys/inotify.h)
_ROOM = 64 * 1024


class FolderWatch:
    """Hears of files that appear in one folder from now on.

    Raises:
        OSError: the folder is not there, or the kernel has no more watches to give.
    """

    def __init__(self, folder: Path) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0 or libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _NEWS) < 0:
            error = ctypes.get_errno()
            self.close()
            raise OSError(error, os.strerror(error), str(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def wait(self, timeout: float) -> bool:
        """Whether something has appeared since the last call; waits ``timeout`` seconds for it."""
        readable, _, _ = select.select([self._descriptor], [], [], timeout)
        if readable:
            os.read(self._descriptor, _ROOM)
        return bool(readable)

    def close(self) -> None:
        """Hear no more."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
