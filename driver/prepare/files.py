"""Files that are whole or not there: written beside their place, synced, renamed; modes that no umask changes."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path

_READ_CHUNK = 1 << 20
_OTHERS_WRITE = 0o022


def make_folder(path: Path, mode: int) -> None:
    """Make a folder and its parents. An existing one keeps its mode; a new last one gets ``mode`` whatever the umask.

    Raises:
        OSError: it cannot be made, or something else stands there.
    """
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    sync_folder(path.parent)


def private_folder(path: Path) -> None:
    """Make a folder of this driver alone (0700), or see to it that one that stands there is nobody else's.

    A link is followed if it is root's or our own: an administrator may have the folder on another disk.

    Raises:
        OSError: it cannot be made; something else stands there; it belongs to another user.
    """
    try:
        link, status = path.lstat(), path.stat()
    except FileNotFoundError:
        make_folder(path, 0o700)
        return
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder: move it away", str(path))
    for owner in (link.st_uid, status.st_uid):
        if owner not in (0, os.geteuid()):
            text = f"it belongs to user {owner}, who could change what is in it: move it away, or chown it to root"
            raise PermissionError(errno.EPERM, text, str(path))
    if status.st_mode & _OTHERS_WRITE:
        path.chmod(0o700)


def write_new(path: Path, data: bytes, mode: int, *, sync: bool = True) -> None:
    """Write a file from scratch and, if wanted, sync it. What stood at ``path`` is replaced; a link is not followed.

    On failure nothing is left at ``path``.

    Raises:
        OSError: of the step that failed.
    """
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        os.fchmod(descriptor, mode)
        write_all(descriptor, data)
        if sync:
            os.fsync(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            path.unlink()
        raise
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``; a short write goes on where it stopped."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(temporary: Path, final: Path, *, sync: bool = True) -> None:
    """Rename over ``final`` and, if wanted, make the rename durable. ``temporary`` is removed where the rename fails.

    Raises:
        OSError: of the rename or of the sync of the folder.
    """
    try:
        temporary.rename(final)
    except OSError:
        with contextlib.suppress(OSError):  # the rename's error is the one to report
            temporary.unlink()
        raise
    if sync:
        sync_folder(final.parent)


def sync_folder(path: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> bool:
    """Remove a file and make that durable; False where there was none.

    Raises:
        OSError: it is there and cannot be removed.
    """
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    except OSError:
        if not os.path.lexists(path):  # a read-only file system says EROFS also about what is not there
            return False
        raise
    sync_folder(path.parent)
    return True


def read_regular(path: Path, max_bytes: int, *, mode: int | None = None) -> bytes:
    """Read a regular file that is not a link.

    Args:
        path: of the file.
        max_bytes: more is never read.
        mode: the permission bits that the file must have, and then root or this user as its owner.

    Raises:
        NotAFileError: a folder, a link, a pipe or the like stands there.
        ForeignFileError: its owner or its mode is another one.
        TooLargeError: more than ``max_bytes``.
        OSError: it cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise NotAFileError(f"{path} is a symbolic link") from None
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NotAFileError(f"{path} is not a regular file")
        if mode is not None and (stat.S_IMODE(status.st_mode) != mode or status.st_uid not in (0, os.geteuid())):
            found = f"mode {stat.S_IMODE(status.st_mode):o} and belongs to user {status.st_uid}"
            raise ForeignFileError(f"{path} has {found}, it was made with mode {mode:o}")
        if status.st_size > max_bytes:
            raise TooLargeError(f"{path} is {status.st_size} bytes long, at most {max_bytes} are expected")
        chunks = []
        while chunk := os.read(descriptor, _READ_CHUNK):
            chunks.append(chunk)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


class NotAFileError(Exception):
    """Something other than a regular file stands at the path."""


class ForeignFileError(Exception):
    """The file's owner or mode is not what it was made with: not all can read it, or others can change it."""


class TooLargeError(Exception):
    """The file is larger than anything that this program writes."""
