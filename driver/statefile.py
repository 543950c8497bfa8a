"""Small files of the agent's own folder that help a restart and that nothing depends on: whole, or not there."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

_REMEDIES = {
    errno.ENOSPC: "free space on that file system",
    errno.EDQUOT: "raise the quota of that file system",
    errno.EROFS: "mount that file system writable",
    errno.EACCES: "give the agent write access to that folder",
    errno.EPERM: "give the agent write access to that folder",
    errno.EIO: "check the disk (see the kernel log)",
    errno.ENOENT: "check that the folder is mounted into the agent",
    errno.ENOTDIR: "something that is not a folder stands in its path: remove it",
}


def remedy(error: OSError) -> str:
    """What a reader of the message can do about a file that cannot be written, read or removed."""
    return _REMEDIES.get(error.errno or 0, "see the agent's log")


def read(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file that is no link; at most ``max_bytes`` of it.

    Raises:
        OSError: it cannot be read, or is a link.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(max_bytes)


def write(path: Path, data: bytes, *, sync: bool) -> None:
    """Put a file (0600) in the place of what stands at ``path``.

    Args:
        sync: make its content durable before it takes its place.

    Raises:
        OSError: it cannot be written; what stood there still does, and nothing else is left.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if sync:
                os.fdatasync(descriptor)
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink()
        raise


class HelpfulFile:
    """A file that is written again and again; where it cannot be, that is said once and costs what it costs.

    Args:
        path: where it is.
        cost: what its absence means, for the log.
        sync: make its content durable before it takes its place.
    """

    def __init__(self, path: Path, cost: str, *, sync: bool = False) -> None:
        self.path = path
        self._cost = cost
        self._sync = sync
        self._problem: str | None = None

    def write(self, data: bytes) -> bool:
        """Whether it was written; if not, the caller tries again when it has something to write."""
        try:
            write(self.path, data, sync=self._sync)
        except OSError as error:
            problem = error.strerror or str(error)
            if problem != self._problem:
                log.warning("%s cannot be written: %s; %s. %s", self.path, problem, remedy(error), self._cost)
            self._problem = problem
            return False
        self._problem = None
        return True
