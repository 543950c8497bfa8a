"""Who waits for whom: locks by name within the process, and one lock file between processes.

Order, always: the process's lock, then claims, then GPUs, each kind in ascending order of its names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

_POLL_SECONDS = 0.005


class KeyedLocks:
    """A lock for each name, made when it is wanted and gone when nobody wants it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._locks: dict[str, tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def hold(self, names: Iterable[str], deadline: float) -> Iterator[frozenset[str]]:
        """Take the locks in ascending order; give the names of those that were free by ``deadline`` (monotonic)."""
        taken: list[str] = []
        try:
            for name in sorted(set(names)):
                if self._take(name, deadline):
                    taken.append(name)  # noqa: PERF401 - each one at once, so that a failure releases it
            yield frozenset(taken)
        finally:
            for name in reversed(taken):
                self._release(name)

    def _take(self, name: str, deadline: float) -> bool:
        with self._mutex:
            lock, users = self._locks.get(name, (threading.Lock(), 0))
            self._locks[name] = (lock, users + 1)
        if lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            return True
        self._forget(name)
        return False

    def _release(self, name: str) -> None:
        with self._mutex:
            lock, _ = self._locks[name]
        lock.release()
        self._forget(name)

    def _forget(self, name: str) -> None:
        with self._mutex:
            lock, users = self._locks.pop(name)
            if users > 1:
                self._locks[name] = (lock, users - 1)


class ProcessLock:
    """A lock file (flock) that all threads of this process hold together, and no other process beside them.

    The kernel frees it with the process, so a killed holder blocks nobody.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mutex = threading.Lock()
        self._users = 0
        self._descriptor: int | None = None

    @contextlib.contextmanager
    def hold(self, deadline: float) -> Iterator[None]:
        """Hold it.

        Raises:
            TimeoutError: another process held it until ``deadline`` (monotonic).
            OSError: the file cannot be opened or locked.
        """
        if not self._mutex.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise TimeoutError(f"{self.path} is held by another process")
        try:
            if self._users == 0:
                self._descriptor = self._lock(deadline)
            self._users += 1
        finally:
            self._mutex.release()
        try:
            yield
        finally:
            with self._mutex:
                self._users -= 1
                if self._users == 0 and self._descriptor is not None:
                    os.close(self._descriptor)
                    self._descriptor = None

    def _lock(self, deadline: float) -> int:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    # Only during a rolling update is there another process. A wait with a deadline is not to be had:
                    # flock has none, and a thread that waits in it cannot be called back.
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"{self.path} is held by another process") from None
                    time.sleep(_POLL_SECONDS)
                else:
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
