"""Device nodes below a device root: what stands at a path, which nodes of NVIDIA's there are, which are missing.

The root holds ``dev`` as ``/`` does (``/``, or a driver container's root). Majors are read, never assumed: only 195 is
fixed, those of nvidia-uvm and nvidia-caps are dealt out at module load.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
"""Nodes that are not about one GPU; CUDA needs the first two."""
_REQUIRED = CONTROL_NODES[:2]
_GPU_NODE = re.compile(r"\Anvidia(\d+)\Z")
_KINDS = (
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISDIR, "folder"),
    (stat.S_ISREG, "regular file"),
)


class DeviceNodeStatus(msgspec.Struct, frozen=True):
    """What stands at a path of a device root."""

    path: str
    """As seen from inside the root: ``/dev/nvidia0``."""
    kind: str
    """``character device``, ``block device``, ``folder``, ``regular file`` or ``special file``."""
    major: int | None
    """None where it is no device."""
    minor: int | None

    @property
    def is_device(self) -> bool:
        """Whether it is a character device, as all of NVIDIA's are."""
        return self.kind == "character device"


def read_node(root: Path | str, path: str) -> DeviceNodeStatus | None:
    """What stands at ``path`` below the root, links followed; None if nothing does.

    Raises:
        OSError: it is there but cannot be looked at.
    """
    try:
        # Asked ten times for each claim: making a path object takes longer than the look at the file.
        status = os.stat(f"{root}/{path.lstrip('/')}")  # noqa: PTH116
    except (FileNotFoundError, NotADirectoryError):
        return None
    kind = next((name for matches, name in _KINDS if matches(status.st_mode)), "special file")
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        return DeviceNodeStatus(path, kind, os.major(status.st_rdev), os.minor(status.st_rdev))
    return DeviceNodeStatus(path, kind, None, None)


def list_nodes(root: Path | str) -> tuple[DeviceNodeStatus, ...]:
    """Every node of NVIDIA's below the root: control nodes, then GPUs by minor, then ``nvidia-caps`` by name."""
    root = Path(root)
    gpus = sorted(int(match[1]) for name in _names(root / "dev") if (match := _GPU_NODE.match(name)))
    caps = sorted(_names(root / "dev" / "nvidia-caps"), key=lambda name: (len(name), name))
    paths = [*CONTROL_NODES, *(f"/dev/nvidia{minor}" for minor in gpus), *(f"/dev/nvidia-caps/{name}" for name in caps)]
    return tuple(node for path in paths if (node := read_node(root, path)) is not None)


def missing_nodes(root: Path | str, minor: int) -> tuple[str, ...]:
    """What a container with the GPU of this minor number needs and the root lacks, as sentences with the remedy."""
    needed = {
        f"/dev/nvidia{minor}": f"nvidia-modprobe -c={minor}",
        _REQUIRED[0]: f"nvidia-modprobe -c={minor}",
        _REQUIRED[1]: "nvidia-modprobe -u -c=0",
    }
    problems = []
    for path, remedy in needed.items():
        node = read_node(root, path)
        if node is None:
            problems.append(f"{path} does not exist: run `{remedy}` (or nvidia-smi) on the host")
        elif not node.is_device:
            problems.append(
                f"{path} is a {node.kind}, not a character device: remove it and run `{remedy}` on the host"
            )
    return tuple(problems)


def _names(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
