"""Who uses a GPU on this machine: processes that hold its device node open, monitors that hang on it.

Sources: proc(5) (/proc/<pid>/fd), the kernel's sysfs ABI for DRM connectors (/sys/class/drm/card0-DP-1/status).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

import msgspec

WATCHERS: Final = frozenset({"nvidia-persiste", "nv-hostengine", "dcgm-exporter", "nv-fabricmanage", "nvidia-smi"})
"""Names (as the kernel cuts them, 15 characters) of programs that hold GPUs open only to look at or keep them."""
_PID = re.compile(r"\A[0-9]+\Z")


class Holder(msgspec.Struct, frozen=True):
    """A process that has a device node open."""

    pid: int
    name: str
    path: str
    """The node, as the process opened it."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def holders(proc_root: Path, nodes: Collection[str], *, seconds: float = 5.0) -> tuple[Holder, ...]:
    """The processes that hold any of these device nodes open, by ascending pid; each once a node.

    Needs the host's process ids (hostPID in a pod) and the right to look at other users' processes; what may not be
    looked at, and what ends meanwhile, is left out.

    Args:
        proc_root: procfs.
        nodes: paths such as ``/dev/nvidia0``; those of other mount namespaces have the same names.
        seconds: after which the search ends with what it has.
    """
    end = time.monotonic() + seconds
    found = {}
    for pid in sorted(int(name) for name in _names(proc_root) if _PID.match(name)):
        if time.monotonic() > end:
            break
        for path in _open_files(proc_root / str(pid) / "fd"):
            if path in nodes:
                found[pid, path] = Holder(pid, _name(proc_root / str(pid) / "comm"), path)
    return tuple(found.values())


def connected_display(sys_root: Path, cards: Collection[str]) -> str | None:
    """The first connector with a monitor on any of the DRM nodes (``card0``); None without one."""
    for name in sorted(_names(sys_root / "class/drm")):
        card, dash, connector = name.partition("-")
        if dash and card in cards and _text(sys_root / "class/drm" / name / "status") == "connected":
            return connector
    return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  names only, and a machine has thousands of processes
    except OSError:
        return []


def _open_files(folder: Path) -> Iterator[str]:
    for name in _names(folder):
        try:
            yield str((folder / name).readlink())
        except OSError:
            continue  # closed meanwhile


def _name(path: Path) -> str:
    return _text(path) or "?"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
