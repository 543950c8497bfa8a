"""A GPU's files in the fake root, taken away as hot unplug does and put back: its sysfs folder with every link to it,
its folder under /proc/driver/nvidia and its device nodes.

What was taken lies under ``run/gpudra-mock/unplugged/<address>`` with the same relative paths until it is put back; a
GPU's virtual functions go and come with it. No uevent is sent: the kernel alone can do that. Who watches the tree
itself (``native.treewatch``, which the agent does) sees the links go and come.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from native.mock.profile import Profile

STASH: Final = Path("run/gpudra-mock/unplugged")


def _links(root: Path, home: Path, address: str) -> Iterator[Path]:
    """Every link to a device or into its folder, below the places where sysfs has such links."""
    sys = root / "sys"
    patterns = (
        f"bus/pci/devices/{address}",
        f"bus/pci/drivers/*/{address}",
        f"kernel/iommu_groups/*/devices/{address}",
    )
    for pattern in patterns:
        yield from sys.glob(pattern)
    for link in sys.glob("class/*/*"):
        if link.is_symlink() and Path(os.path.normpath(link.parent / link.readlink())).is_relative_to(home):
            yield link


def take_away(root: Path, profile: Profile, address: str) -> None:
    """Remove a GPU's files, links first, as the kernel does.

    Raises:
        KeyError: the node has no GPU at that address.
        FileNotFoundError: they are not there: the GPU is unplugged already.
    """
    gpu = profile.gpu(address)
    home = root.joinpath("sys/devices", *gpu.device.path)
    if not home.is_dir():
        raise FileNotFoundError(f"{address} is unplugged already")
    things: list[Path] = []
    for function in (*(device for device in profile.devices if device.physfn == address), gpu.device):
        place = root.joinpath("sys/devices", *function.path)
        things += [*_links(root, place, function.address), place]
    stash(root, STASH / address, [*things, *driver_files(root, profile, address)])


def driver_files(root: Path, profile: Profile, address: str) -> list[Path]:
    """What NVIDIA's driver shows of a GPU: its folder in procfs and its device nodes.

    Raises:
        KeyError: the node has no GPU at that address.
    """
    gpu = profile.gpu(address)
    index = profile.gpus.index(gpu)
    nodes = [f"dri/card{index + 1}", f"dri/renderD{128 + index}"]
    if gpu.numbers["minor"] >= 0:
        nodes.append(f"nvidia{gpu.numbers['minor']}")
    things = [root / "proc/driver/nvidia/gpus" / address, *(root / "dev" / name for name in nodes)]
    return [thing for thing in things if thing.exists()]  # a GPU that another driver has is without them


def stash(root: Path, place: Path, things: Sequence[Path]) -> None:
    """Move files of the node, in this order, below ``place``."""
    for thing in things:
        target = root / place / thing.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        thing.rename(target)


def put_back(root: Path, address: str) -> None:
    """Put a GPU's files back, links last.

    Raises:
        FileNotFoundError: nothing was taken away.
    """
    if not (root / STASH / address).is_dir():
        raise FileNotFoundError(f"{address} is not unplugged")
    unstash(root, STASH / address)


def unstash(root: Path, place: Path) -> None:
    """Put back what lies below ``place``, links last."""
    here = root / place
    things = [path for path in here.rglob("*") if not (root / path.relative_to(here)).is_dir() or path.is_symlink()]
    # a folder moves as a whole, so what lies in one that moves is not moved on its own
    tops = [thing for thing in things if not any(other in thing.parents for other in things)]
    for thing in sorted(tops, key=lambda path: path.is_symlink()):
        target = root / thing.relative_to(here)
        target.parent.mkdir(parents=True, exist_ok=True)
        thing.rename(target)
    shutil.rmtree(here, ignore_errors=True)
