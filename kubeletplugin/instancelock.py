"""One handler call at a time on the node, whichever instance of the driver makes it: a lock file in its folder.

During an upgrade the kubelet may send Prepare to one instance and Unprepare to the other at the same moment. Drivers
that keep their state in files ask for this lock and read the files again under it. The kernel gives it back when an
instance dies (flock(2)).
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

log = logging.getLogger(__name__)

LOCK_FILE = "serialize.lock"
"""The name that the Go helper uses, so that an exchange of drivers is covered as well."""
_POLL = 0.02


class InstanceBusyError(Exception):
    """Another call, of this or another instance, holds the lock for longer than there was time."""


class InstanceLock:
    """The lock of one driver.

    Args:
        folder: the plugin's folder, which all instances share.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_FILE
        self._closed = threading.Event()

    def close(self) -> None:
        """Nobody waits any more: an end of the program is not held up by another instance."""
        self._closed.set()

    @contextmanager
    def hold(self, remaining: Callable[[], float]) -> Iterator[None]:
        """Runs the block alone.

        Args:
            remaining: seconds that are left to wait.

        Raises:
            InstanceBusyError: they ran out, or ``close`` was called.
            OSError: the file cannot be used.
        """
        # Each call opens the file anew: flock belongs to the open file, so threads exclude each other as well.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._take(descriptor, remaining)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int, remaining: Callable[[], float]) -> None:
        """flock has no timeout, so it is tried again and again; whoever closes the lock ends that at once."""
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if remaining() <= 0 or self._closed.wait(_POLL):
                    raise InstanceBusyError(
                        f"another call of this driver holds {self._path}, perhaps of an instance that is being replaced"
                    ) from None
            else:
                return
