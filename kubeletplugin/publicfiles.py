"""Files that everybody may read, for containers and runtimes of any user, and root (or this user) alone may change."""

from __future__ import annotations

import os
import stat
from pathlib import Path

MODE = 0o644
_MAX_BYTES = 16 << 20
"""More than any file holds."""


def write_new(path: Path, data: bytes) -> None:
    """Write a file in the place of whatever stands there; the folder may be one that others write to.

    Raises:
        OSError: it cannot be written.
    """
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, MODE)  # whatever the umask
        file.write(data)


def read_file(path: Path) -> tuple[bytes, os.stat_result]:
    """Content and status. OSError: it cannot be read, or is a link. Of a pipe nothing is waited for."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_MAX_BYTES), os.fstat(descriptor)


def is_public(status: os.stat_result) -> bool:
    """Whether everybody may read a file and root (or this user) alone may change it."""
    return stat.S_IMODE(status.st_mode) == MODE and status.st_uid in (0, os.geteuid())


def holds(path: Path, data: bytes) -> bool:
    """Whether exactly this is in the file, with the owner and mode that it is made with."""
    try:
        found, status = read_file(path)
    except OSError:
        return False
    return found == data and is_public(status)


def write_in_place(path: Path, data: bytes) -> None:
    """Write over what is in a file, so that who has it mounted sees it; in one call, and then cut.

    Raises:
        OSError: it cannot be written, or is a link.
    """
    # Never through a link, and never into a pipe that somebody put there and nobody reads.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, MODE)
    try:
        if os.fstat(descriptor).st_uid not in (0, os.geteuid()):
            os.fchown(descriptor, os.geteuid(), os.getegid())
        os.fchmod(descriptor, MODE)  # whatever the umask
        written = 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], written)
        os.ftruncate(descriptor, len(data))
    finally:
        os.close(descriptor)
