"""Targets: what the machine says: sysfs, procfs, NVML's strings, ELF files, the output of NVIDIA's programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from driver.publish.values import clip, semver
from native import capabilities, elf, holders, smi
from native.commands import CommandError, Completed, Deadline
from native.devnodes import read_node
from native.driverroot import find_binary, find_library
from native.nvml.values import NO_PCI, clean_text, pci_address
from native.pci import canonical_address
from native.sysfs import read_host
from native.treewatch import is_kernel_tree
from tests.fuzz.engine import Target
from tests.fuzz.fuzztools import as_text, written

_FILES = (
    "vendor",
    "device",
    "class",
    "numa_node",
    "local_cpulist",
    "current_link_speed",
    "current_link_width",
    "subsystem_vendor",
    "subsystem_device",
    "sriov_totalvfs",
    "sriov_numvfs",
    "max_link_speed",
)


def _sysfs(data: bytes, folder: Path) -> None:
    """Every file of a device holds the same bytes."""
    at = "0000:1b:00.0"
    home = folder / "sys/devices/pci0000:1a/0000:1a:01.0" / at
    for name in _FILES:
        written(home, name, data)
    bus = folder / "sys/bus/pci/devices"
    bus.mkdir(parents=True, exist_ok=True)
    if not (bus / at).is_symlink():
        (bus / at).symlink_to(home)
    for name in ("cpulist", "meminfo", "distance"):
        written(folder, f"sys/devices/system/node/node0/{name}", data)
    for name in ("meminfo", "driver/nvidia/version", "sys/kernel/random/boot_id"):
        written(folder, f"proc/{name}", data)
    read_host(folder / "sys", folder / "proc")


def _sysfs_vendor(data: bytes, folder: Path) -> None:
    """The same for a device that is a GPU beyond doubt."""
    _sysfs(data, folder)
    home = folder / "sys/devices/pci0000:1a/0000:1a:01.0/0000:1b:00.0"
    written(home, "vendor", b"0x10de\n")
    written(home, "class", b"0x030200\n")
    read_host(folder / "sys", folder / "proc")


def _capability(data: bytes, folder: Path) -> None:
    written(folder, f"{capabilities.CAPABILITIES}/gpu0/mig/gi1/access", data)
    capabilities.instance_minors(folder)
    capabilities.capability_minor(folder, 0, 1)


class _Said:
    """Programs that say what they are told to."""

    def __init__(self, output: str) -> None:
        self._output = output

    def run(self, _program: str, _arguments: Sequence[str], *, seconds: float) -> Completed:
        return Completed(0, self._output)


def _smi(data: bytes, _folder: Path) -> None:
    reader = smi.NvidiaSmi(_Said(data.decode("utf-8", "replace")))  # type: ignore[arg-type] # only run is used
    reader.time_slice("GPU-1", Deadline(1))
    reader.compute_mode("GPU-1", Deadline(1))


def _holders(data: bytes, folder: Path) -> None:
    written(folder, "1/comm", data)
    fd = folder / "1/fd/3"
    fd.parent.mkdir(exist_ok=True)
    fd.unlink(missing_ok=True)
    fd.symlink_to("/dev/nvidia0")
    (found,) = holders.holders(folder, {"/dev/nvidia0"})
    str(found)
    written(folder, "class/drm/card0-DP-1/status", data)
    holders.connected_display(folder, {"card0"})


def _texts(data: bytes, _folder: Path) -> None:
    text = clean_text(data)
    assert text is None or text.isprintable()
    version = semver(text)
    assert version is None or len(version) <= 64
    assert len(clip(text or "").encode()) <= 64


def _pci(data: bytes, _folder: Path) -> None:
    number = int.from_bytes(data[:4], "little")
    info = NO_PCI._replace(bus_id=data, domain=number, bus=number & 0x1FF, device=number & 0x3F)
    address = pci_address(info)
    assert address is None or canonical_address(address) == address


def _library(data: bytes, folder: Path) -> None:
    """A library folder with a file of these bytes, and links to a path that they spell."""
    written(folder, "usr/lib64/libnvidia-ml.so.1", data)
    name = as_text(data).replace("\0", "")[:200].encode("utf-8", "replace").decode() or "x"
    link = folder / "usr/bin/nvidia-smi"
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(name)
    find_library(folder)
    find_binary(folder)


def _elf() -> bytes:
    import native

    return next(Path(native.__file__).parent.glob("*.so")).read_bytes()[:65536]


TARGETS = (
    Target(
        "sysfs",
        _sysfs,
        (),
        [b"0x10de\n", b"-1\n", b"0-55,112-167\n", b"32.0 GT/s PCIe\n", b"10 21\n"],
        ("native.sysfs:read_host",),
    ),
    Target(
        "sysfs of a GPU", _sysfs_vendor, (), [b"0\n", b"NVRM version: x  580.105.08  y\n"], ("native.sysfs:read_host",)
    ),
    Target("MIG capabilities", _capability, (ValueError,), [b"DeviceFileMinor: 12\nDeviceFileMode: 292\n"]),
    Target(
        "nvidia-smi's words",
        _smi,
        (CommandError,),
        [b"    |  Default: timeslice = Long |\n", b"Exclusive_Process\n", b"EXCLUSIVE_PROCESS\n"],
    ),
    Target("processes and monitors", _holders, (), [b"python3\n", b"connected\n"]),
    Target("strings of NVML", _texts, (), [b"NVIDIA H100 80GB HBM3\0junk", b"580.105.08\0", b"550.90.07-grid"]),
    Target("PCI info of NVML", _pci, (), [b"0000000F:01:00.0\0", b"0000:3b:00.0"]),
    Target(
        "canonical address",
        lambda data, _: canonical_address(as_text(data)),
        (ValueError,),
        [b"00000000:3B:00.0", b"03F8CFDD:00:00.0"],
        ("native.pci:canonical_address",),
    ),
    Target("ELF library", lambda data, folder: elf.soname(written(folder, "lib.so", data)), (), [_elf()]),
    Target(
        "driver's libraries",
        _library,
        (OSError,),
        [],
        ("native.driverroot:find_library", "native.driverroot:find_binary"),
    ),
    Target(
        "device node",
        lambda data, folder: (written(folder, "dev/nvidia0", data), read_node(folder, "/dev/nvidia0")),
        (),
        [b""],
        ("native.devnodes:read_node",),
    ),
    Target("mounts", lambda _data, folder: is_kernel_tree(folder), (), [b""]),
)
