"""Changes of a sysfs tree that is no kernel's: a mock node's, or a copy. Its files change, and no kernel sends uevents.

An agent that reads such a tree hears of hot plug through inotify on the folders of links that sysfs keeps of the PCI
bus, and everything behind the source (debounce, rescan) is as on hardware. On a real sysfs it would hear nothing: the
kernel changes sysfs without telling inotify, and tells of devices by uevents.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path
from typing import Final

_MASK: Final = 0x40 | 0x80 | 0x100 | 0x200  # IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE (sys/inotify.h)
_APPEARED: Final = 0x80 | 0x100
_OVERFLOW: Final = 0x4000
_HEADER: Final = struct.Struct("=iIII")
_ROOM: Final = 64 * 1024


def is_kernel_tree(sys_root: Path) -> bool:
    """Whether a sysfs of the kernel's is mounted there (or nothing can be told, as for a path that does not exist)."""
    try:
        device = sys_root.stat().st_dev
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return True
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        if fields.split()[2] == number:
            return rest.split()[0] == "sysfs"
    return False


class TreeSource:
    """An ``EventSource`` (``native.uevents``) over ``bus/pci/devices`` and the drivers' folders below ``sys_root``.

    Raises:
        OSError: the tree has no PCI bus, or inotify has no more watches to give (``fs.inotify.max_user_watches``).
    """

    def __init__(self, sys_root: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1: " + os.strerror(ctypes.get_errno()))
        self._words: dict[int, tuple[str, str]] = {}
        try:
            bus = sys_root / "bus/pci"
            self._add(bus / "devices", "add", "remove")
            for driver in sorted((bus / "drivers").iterdir()):
                self._add(driver, "bind", "unbind")
        except OSError:
            os.close(self._descriptor)
            raise

    def _add(self, folder: Path, appeared: str, gone: str) -> None:
        watch = self._libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _MASK)
        if watch < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), str(folder))
        self._words[watch] = appeared, gone

    def fileno(self) -> int:
        """Readable when something has changed."""
        return self._descriptor

    def take(self) -> list[str]:
        """What happened, in the kernel's words for it; see ``EventSource``."""
        try:
            data = os.read(self._descriptor, _ROOM)
        except BlockingIOError:
            return []
        actions = []
        place = 0
        while place < len(data):
            watch, mask, _, length = _HEADER.unpack_from(data, place)
            place += _HEADER.size + length
            if mask & _OVERFLOW:
                raise OSError(errno.ENOBUFS, "changes of the tree were lost")
            if watch in self._words:
                actions.append(self._words[watch][0 if mask & _APPEARED else 1])
        return actions

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self._descriptor)
