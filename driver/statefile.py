"""Small files of the agent's own folder that help a restart and that nothing depends on: whole, or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
        OSError: it cannot be written; what stood there still does.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        if sync:
            os.fdatasync(descriptor)
    temporary.replace(path)
