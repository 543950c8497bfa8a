"""The PCIe tree of a node profile: root complexes, bridges, and what hangs below them.

In a profile it is a nested mapping in which a key is a PCI address and a value is either the mapping of what is
below (a bridge) or a leaf::

    pcie:
      - root: "0000:15"            # sysfs: pci0000:15
        numa: 0
        tree:
          "15:01.0":               # root port; addresses may leave the root's domain out
            "16:00.0":             # upstream port of a switch
              "17:00.0": {"18:00.0": {nic: mlx5_0, net: ibp24s0}}
              "17:01.0": {"1b:00.0": gpu}

Leaves are ``gpu``, ``nvswitch``, ``nvme`` or ``{nic: <RDMA device or ->, net: <interface or ->, device: 0x1021}``;
a NIC with ``vfs: 4``, or ``{gpu: {vfs: 4}}``, has so many virtual functions, which follow it from the second function
after it on. Those of a GPU are on the bus only, as with NVIDIA's vGPU manager: NVML on the host knows none of them.
"""

from __future__ import annotations

import enum
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from native.pci import canonical_address

_ROOT: Final = re.compile(r"\A[0-9a-f]{4,8}:[0-9a-f]{2}\Z")
_SHORT: Final = re.compile(r"\A[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\Z")
_LEAVES: Final = ("gpu", "nvswitch", "nvme")


class ProfileError(ValueError):
    """A profile says something that cannot be; the message starts with the field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class Level(enum.IntEnum):
    """nvmlGpuTopologyLevel_t with the words of ``nvidia-smi topo -m``."""

    SELF = 0
    PIX = 10
    PXB = 20
    PHB = 30
    NODE = 40
    SYS = 50


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A bridge or a leaf of the tree."""

    address: str
    """Canonical."""
    kind: str
    """``bridge``, ``gpu``, ``gpu-vf``, ``nic``, ``nvswitch`` or ``nvme``."""
    path: tuple[str, ...]
    """From the root complex (``pci0000:15``) down to the device itself: the directories of sysfs."""
    numa_node: int
    """-1 where the firmware says nothing."""
    infiniband: str | None = None
    net: str | None = None
    vendor: int = 0x10DE
    device: int = 0
    vfs: int = 0
    """How many SR-IOV virtual functions it has switched on."""
    physfn: str | None = None
    """Of a virtual function: the address of the physical one."""


def read(section: object, field: str = "pcie") -> tuple[PciDevice, ...]:
    """All devices of the ``pcie`` section, parents before children.

    Raises:
        ProfileError: names the field.
    """
    if not isinstance(section, list):
        raise ProfileError(field, "a list of root complexes is expected")
    devices: list[PciDevice] = []
    for position, root in enumerate(section):
        devices += _read_root(root, f"{field}[{position}]")
    seen: set[str] = set()
    for device in devices:
        if device.address in seen:
            raise ProfileError(field, f"{device.address} stands in the tree twice")
        seen.add(device.address)
    return tuple(devices)


def _read_root(root: object, field: str) -> Iterator[PciDevice]:
    if not isinstance(root, Mapping) or root.keys() - {"root", "numa", "tree"}:
        raise ProfileError(field, "a mapping with root, numa and tree is expected")
    name = root.get("root")
    if not isinstance(name, str) or not _ROOT.match(name):
        raise ProfileError(f"{field}.root", f'{name!r} is not a root complex (expected for example "0000:15")')
    numa = root.get("numa", -1)
    if not isinstance(numa, int) or isinstance(numa, bool) or numa < -1:
        raise ProfileError(f"{field}.numa", f"{numa!r} is not a NUMA node")
    yield from _below(root.get("tree"), (f"pci{name}",), numa, f"{field}.tree")


def _below(tree: object, path: tuple[str, ...], numa: int, field: str) -> Iterator[PciDevice]:
    if not isinstance(tree, Mapping):
        raise ProfileError(field, "a mapping of PCI addresses is expected")
    for key, value in tree.items():
        where = f"{field}[{key}]"
        address = _address(key, path[0], where)
        here = (*path, address)
        if _is_bridge(value):
            yield PciDevice(address, "bridge", here, numa, vendor=0x1000, device=0xC030)
            yield from _below(value, here, numa, where)
        else:
            leaf = _leaf(value, address, here, numa, where)
            yield leaf
            yield from _virtual_functions(leaf)


def _address(key: object, root: str, field: str) -> str:
    domain = root.removeprefix("pci").split(":")[0]
    text = f"{domain}:{key}" if isinstance(key, str) and _SHORT.match(key) else key
    try:
        return canonical_address(str(text))
    except ValueError as error:
        raise ProfileError(field, str(error)) from error


def _is_bridge(value: object) -> bool:
    return isinstance(value, Mapping) and not value.keys() & {"nic", "gpu"}


def _leaf(value: object, address: str, path: tuple[str, ...], numa: int, field: str) -> PciDevice:
    if isinstance(value, str) and value in _LEAVES:
        vendor, device = {"gpu": (0x10DE, 0), "nvswitch": (0x10DE, 0x22A3), "nvme": (0x144D, 0xA824)}[value]
        return PciDevice(address, value, path, numa, vendor=vendor, device=device)
    if isinstance(value, Mapping) and "gpu" in value:
        inner = value["gpu"]
        if len(value) > 1 or not isinstance(inner, Mapping) or inner.keys() - {"vfs"}:
            raise ProfileError(field, f"{dict(value)!r}: expected for example {{gpu: {{vfs: 4}}}}")
        return PciDevice(address, "gpu", path, numa, vendor=0x10DE, vfs=_vfs(inner, f"{field}.gpu"))
    if isinstance(value, Mapping):
        return _nic(value, address, path, numa, field)
    raise ProfileError(field, f"{value!r} is no kind of device (one of {', '.join(_LEAVES)}, {{nic: ...}})")


def _nic(value: Mapping[str, Any], address: str, path: tuple[str, ...], numa: int, field: str) -> PciDevice:
    unknown = value.keys() - {"nic", "net", "vendor", "device", "vfs"}
    if unknown:
        raise ProfileError(field, f"unknown key {', '.join(sorted(map(str, unknown)))}")
    ids = {"vendor": value.get("vendor", 0x15B3), "device": value.get("device", 0x1021)}
    for name, number in ids.items():
        if not isinstance(number, int) or not 0 <= number <= 0xFFFF:
            raise ProfileError(f"{field}.{name}", f"{number!r} is not a 16-bit number")
    vfs = _vfs(value, field)
    names = [None if value.get(key) in (None, "-") else str(value[key]) for key in ("nic", "net")]
    return PciDevice(address, "nic", path, numa, names[0], names[1], ids["vendor"], ids["device"], vfs)


def _vfs(value: Mapping[str, Any], field: str) -> int:
    vfs = value.get("vfs", 0)
    if not isinstance(vfs, int) or isinstance(vfs, bool) or not 0 <= vfs <= 128:
        raise ProfileError(f"{field}.vfs", f"{vfs!r} is not a number from 0 to 128")
    return vfs


def virtual_address(physical: str, number: int) -> str:
    """The address of a virtual function: VF offset 2 and stride 1, as a two-port adapter has them.

    Raises:
        ProfileError: the bus has no room for it.
    """
    domain, bus, rest = physical.split(":")
    device, function = rest.split(".")
    place = (int(device, 16) << 3 | int(function, 16)) + 2 + number
    if place > 0xFF:
        raise ProfileError("pcie", f"bus {domain}:{bus} has no room for virtual function {number} of {physical}")
    return f"{domain}:{bus}:{place >> 3:02x}.{place & 7}"


def _virtual_functions(of: PciDevice) -> Iterator[PciDevice]:
    for number in range(of.vfs):
        address = virtual_address(of.address, number)
        # ConnectX names a virtual function by the device id after its physical one, a GPU's has the same id
        yield replace(
            of,
            address=address,
            kind="gpu-vf" if of.kind == "gpu" else of.kind,
            path=(*of.path[:-1], address),
            infiniband=None,
            net=None,
            device=of.device + (of.kind == "nic"),
            vfs=0,
            physfn=of.address,
        )


def level(one: PciDevice, other: PciDevice) -> Level:
    """The common ancestor of two devices as NVML classes it; the source of the rule is nvml.h (nvmlGpuTopologyLevel_t).

    Below a shared port each side has the bridges of the switches that only it passes; a switch is two of them, the
    first of which (its own downstream port of the shared switch) does not count as another switch.
    """
    if one.address == other.address:
        return Level.SELF
    pairs = zip(one.path, other.path, strict=False)
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    if common > 1:
        further = max(len(device.path) for device in (one, other)) - 1 - common
        return Level.PXB if further > 1 else Level.PIX
    if common == 1:
        return Level.PHB
    return Level.NODE if one.numa_node == other.numa_node >= 0 else Level.SYS
