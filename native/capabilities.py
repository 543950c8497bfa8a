"""By which device nodes the kernel lets programs at MIG instances: ``/proc/driver/nvidia/capabilities``.

Each GPU instance and each compute instance has an ``access`` file that says which minor number of ``nvidia-caps``
opens it (NVIDIA's MIG user guide, "Device nodes and capabilities"). The numbers are the kernel's to choose: they are
read, not computed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

CAPABILITIES = "driver/nvidia/capabilities"
_NODE_MODE = 0o444
_MAJOR = re.compile(r"^\s*(\d{1,9})\s+nvidia-caps\s*$", re.MULTILINE)
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d{1,9})\s*$", re.MULTILINE)
_NUMBERED = re.compile(r"\A(gpu|gi|ci)(\d{1,6})\Z")

InstanceMinors: TypeAlias = Mapping[tuple[int, int, int | None], int]
"""(minor of the GPU, GPU instance, compute instance or None for the GPU instance itself) -> N of nvidia-capN."""


def capability_minor(
    proc_root: Path | str, gpu_minor: int, gpu_instance: int, compute_instance: int | None = None
) -> int | None:
    """N of /dev/nvidia-caps/nvidia-capN for an instance; None: the kernel has no such instance.

    Args:
        proc_root: where the host's /proc is.
        gpu_minor: N of the GPU's /dev/nvidiaN.
        gpu_instance: its id.
        compute_instance: its id; None asks for the GPU instance itself.

    Raises:
        OSError: it cannot be read.
        ValueError: it is read and holds no minor number.
    """
    inner = "" if compute_instance is None else f"/ci{compute_instance}"
    path = Path(f"{proc_root}/{CAPABILITIES}/gpu{gpu_minor}/mig/gi{gpu_instance}{inner}/access")
    try:
        text = path.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    match = _MINOR.search(text)
    if match is None:
        raise ValueError(f"{path} names no DeviceFileMinor")
    return int(match[1])


def make_capability_node(proc_root: Path | str, device_root: Path | str, minor: int) -> None:
    """Make /dev/nvidia-caps/nvidia-cap<minor>, as NVIDIA's nvidia-modprobe does, where NVML has not.

    NVML has the node made by a program that a container need not have (nvidia-modprobe), in the container's own /dev.

    Args:
        proc_root: where the host's /proc is; it has the major number, dealt out when the module is loaded.
        device_root: the folder that holds ``dev``.
        minor: as ``capability_minor`` gives it.

    Raises:
        OSError: it cannot be made, or the kernel has no such devices.
    """
    folder = Path(f"{device_root}/dev/nvidia-caps")
    devices = Path(f"{proc_root}/devices").read_text(encoding="ascii", errors="replace")
    major = _MAJOR.search(devices)
    if major is None:
        raise FileNotFoundError(f"{proc_root}/devices has no nvidia-caps")
    folder.mkdir(mode=0o755, exist_ok=True)
    path = folder / f"nvidia-cap{minor}"
    os.mknod(path, stat.S_IFCHR | _NODE_MODE, os.makedev(int(major[1]), minor))
    path.chmod(_NODE_MODE)  # whatever the umask


def instance_minors(proc_root: Path | str) -> InstanceMinors:
    """The minors of all instances of all GPUs; what cannot be read is left out."""
    found: dict[tuple[int, int, int | None], int] = {}
    for gpu, folder in _numbered(Path(proc_root) / CAPABILITIES, "gpu"):
        for gpu_instance, inner in _numbered(folder / "mig", "gi"):
            for compute_instance in (None, *(number for number, _ in _numbered(inner, "ci"))):
                try:
                    minor = capability_minor(proc_root, gpu, gpu_instance, compute_instance)
                except (OSError, ValueError):  # it is going away at this moment
                    continue
                if minor is not None:
                    found[gpu, gpu_instance, compute_instance] = minor
    return found


def _numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    matches = [(match, entry) for entry in entries if (match := _NUMBERED.match(entry.name)) and match[1] == kind]
    return sorted((int(match[2]), entry) for match, entry in matches)
