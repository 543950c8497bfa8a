"""The fake /sys of a mock node: PCI devices with their bridges, NUMA nodes, NICs, IOMMU groups, DRM nodes.

File names and contents follow the kernel (Documentation/ABI/testing/sysfs-bus-pci, sysfs-devices-node). To make a new
inode costs many times what a hard link does, so links with one target, and files that are equal and that no
test has a reason to edit (``_SHARED``), are one inode. Every other file can be written without touching its like.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from native.mock.boards import Gpu
from native.mock.nodefile import near_cpus
from native.mock.pcie import PciDevice, virtual_address
from native.mock.profile import Profile, parse_cpus

_CLASSES: Final = {"bridge": 0x060400, "nic": 0x020000, "nvswitch": 0x068000, "nvme": 0x010802}
_DRIVERS: Final = {
    "bridge": "pcieport",
    "nic": "mlx5_core",
    "nvswitch": "nvidia-nvswitch",
    "nvme": "nvme",
    "gpu": "nvidia",
    "gpu-vf": "nvidia",
}
_SPEEDS: Final = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_SHARED: Final = frozenset(
    {"vendor", "subsystem_vendor", "subsystem_device", "revision", "resource", "local_cpus", "cpumap"}
    | {f"{which}_link_{what}" for which in ("current", "max") for what in ("speed", "width")}
)
_ROOT_PORT, _UPSTREAM, _DOWNSTREAM, _ENDPOINT = 4, 5, 6, 0


class SysTree:
    """Writes the tree below a ``sys`` folder that does not exist yet."""

    def __init__(self, root: Path, profile: Profile) -> None:
        self._root = root
        self._profile = profile
        self._gpus = {gpu.address: gpu for gpu in profile.gpus}
        self._made: set[Path] = set()
        self._pool: dict[bytes, Path] = {}

    def write(self) -> None:
        """Write everything."""
        for group, device in enumerate(self._profile.devices):
            self._device(device, group)
        for name in ("pcieport", "mlx5_core", "nvidia", "nvme", "vfio-pci"):
            for what in ("bind", "unbind"):
                self._put(self._root / "bus/pci/drivers" / name / what, "")
        self._put(self._root / "bus/pci/drivers_probe", "")
        self._module()
        self._nodes()
        for index, gpu in enumerate(self._profile.gpus):
            self._drm(gpu, index)

    def _folder(self, path: Path) -> None:
        if path not in self._made:
            path.mkdir(parents=True, exist_ok=True)
            self._made.add(path)

    def _put(self, path: Path, text: str, *, shared: bool = False) -> None:
        self._write(path, f"{text}\n".encode("ascii"), shared=shared or path.name in _SHARED)

    def _write(self, path: Path, data: bytes, *, shared: bool) -> None:
        self._folder(path.parent)
        if shared and self._reuse(data, path):
            return
        with open(path, "wb", buffering=0) as file:  # noqa: PTH123  # a thousand small files: pathlib costs a third more
            file.write(data)

    def _link(self, path: Path, target: Path) -> None:
        self._folder(path.parent)
        text = os.path.relpath(target, path.parent)
        if not self._reuse(b"->" + os.fsencode(text), path):
            path.symlink_to(text)

    def _reuse(self, key: bytes, path: Path) -> bool:
        """Make ``path`` another name of what was written under ``key``; False where it is the first of its kind."""
        first = self._pool.setdefault(key, path)
        if first is path:
            return False
        try:
            os.link(first, path, follow_symlinks=False)
        except OSError:  # a file system without hard links, or with too many on this inode
            self._pool[key] = path
            return False
        return True

    def folder_of(self, device: PciDevice) -> Path:
        """The real directory of a device."""
        return self._root.joinpath("devices", *device.path)

    def _device(self, device: PciDevice, group: int) -> None:
        home = self.folder_of(device)
        gpu = self._gpus.get(device.physfn or device.address)
        vendor, model = device.vendor, gpu.device.device if gpu else device.device
        subsystem = gpu.numbers["pci_subsystem_id"] if gpu else model << 16 | vendor
        number = _CLASSES.get(device.kind, 0)
        if gpu:
            number = gpu.numbers["pci_base_class"] << 16 | gpu.numbers["pci_sub_class"] << 8
        driver = driver_of(device)
        ids = {
            "vendor": f"0x{vendor:04x}",
            "device": f"0x{model:04x}",
            "class": f"0x{number:06x}",
            "numa_node": str(device.numa_node),
        }
        if device.kind != "bridge":  # whoever reads a bridge asks what it is and where; files cost time
            ids |= {
                "subsystem_vendor": f"0x{subsystem & 0xFFFF:04x}",
                "subsystem_device": f"0x{subsystem >> 16:04x}",
                "revision": "0xa1",
                "driver_override": "(null)",
                "uevent": self._uevent(driver, number, vendor, model, subsystem, device.address),
                "resource": "\n".join(["0x0000000000000000 0x0000000000000000 0x0000000000000000"] * 13),
                **self._cpus(device.numa_node),
            }
        if gpu:
            ids |= _pcie_link(gpu)
        for name, text in ids.items():
            self._put(home / name, text, shared=device.kind == "bridge" and name != "numa_node")
        self._write(home / "config", _config_space(device, vendor, model, number, subsystem), shared=True)
        self._link(home / "driver", self._root / "bus/pci/drivers" / driver)
        self._link(self._root / "bus/pci/devices" / device.address, home)
        if device.kind != "bridge":
            self._link(self._root / "bus/pci/drivers" / driver / device.address, home)
        if self._profile.host.iommu and device.kind != "bridge":
            self._iommu(device, home, group)
        if device.kind == "nic":
            self._nic(device, home)
        self._functions(device, home)

    @staticmethod
    def _uevent(driver: str, number: int, vendor: int, model: int, subsystem: int, address: str) -> str:
        return (
            f"DRIVER={driver}\nPCI_CLASS={number:X}\nPCI_ID={vendor:04X}:{model:04X}\n"
            f"PCI_SUBSYS_ID={subsystem & 0xFFFF:04X}:{subsystem >> 16:04X}\nPCI_SLOT_NAME={address}"
        )

    def _cpus(self, numa: int) -> dict[str, str]:
        near = near_cpus(self._profile.host, numa)
        known = [node.cpus for node in self._profile.host.numa if numa in (node.node, -1) and node.cpus]
        return {"local_cpulist": ",".join(known), "local_cpus": _mask(near)}

    def _iommu(self, device: PciDevice, home: Path, group: int) -> None:
        groups = self._root / "kernel/iommu_groups" / str(group)
        self._link(groups / "devices" / device.address, home)
        self._link(home / "iommu_group", groups)

    def _nic(self, device: PciDevice, home: Path) -> None:
        for kind, name in (("infiniband", device.infiniband), ("net", device.net)):
            if name is not None:
                self._link(home / kind / name / "device", home)
                self._link(self._root / "class" / kind / name, home / kind / name)

    def _functions(self, device: PciDevice, home: Path) -> None:
        """SR-IOV: what links a physical function and its virtual ones (sysfs-bus-pci)."""
        if device.physfn is not None:
            self._link(home / "physfn", home.parent / device.physfn)
        if device.vfs:
            self._put(home / "sriov_totalvfs", str(device.vfs))
            self._put(home / "sriov_numvfs", str(device.vfs))
        for number in range(device.vfs):
            self._link(home / f"virtfn{number}", home.parent / virtual_address(device.address, number))

    def _module(self) -> None:
        self._put(self._root / "module/nvidia/version", self._profile.driver_version)
        self._put(self._root / "module/nvidia/initstate", "live")

    def _nodes(self) -> None:
        nodes = self._profile.host.numa
        base = self._root / "devices/system/node"
        for node in nodes:
            home = base / f"node{node.node}"
            self._put(home / "cpulist", node.cpus)
            self._put(home / "cpumap", _mask(parse_cpus(node.cpus)))
            self._put(home / "distance", " ".join(map(str, node.distances)))
            total = node.memory_mib * 1024
            self._put(
                home / "meminfo", f"Node {node.node} MemTotal: {total:15d} kB\nNode {node.node} MemFree: {total:16d} kB"
            )
        everyone = ",".join(str(node.node) for node in nodes)
        self._put(base / "online", everyone)
        self._put(base / "has_cpu", ",".join(str(node.node) for node in nodes if node.cpus))
        cpus = ",".join(node.cpus for node in nodes if node.cpus)
        for name in ("online", "possible", "present"):
            self._put(self._root / "devices/system/cpu" / name, cpus)

    def _drm(self, gpu: Gpu, index: int) -> None:
        home = self.folder_of(gpu.device) / "drm"
        for name, minor in ((f"card{index + 1}", index + 1), (f"renderD{128 + index}", 128 + index)):
            self._put(home / name / "dev", f"226:{minor}")
            self._link(home / name / "device", home.parent)
            self._link(self._root / "class/drm" / name, home / name)


def driver_of(device: PciDevice) -> str:
    """The driver that takes a device where nothing else is said."""
    return _DRIVERS[device.kind]


def _mask(cpus: frozenset[int]) -> str:
    """A CPU mask as the kernel prints it: groups of 32 bits, highest first."""
    words = max(cpus, default=0) // 32 + 1
    number = sum(1 << cpu for cpu in cpus)
    return ",".join(f"{number >> 32 * word & 0xFFFFFFFF:08x}" for word in reversed(range(words)))


def _pcie_link(gpu: Gpu) -> dict[str, str]:
    generation, width = gpu.numbers["pcie_generation"], gpu.numbers["pcie_width"]
    if generation < 1 or width < 1:
        return {}
    speed = f"{_SPEEDS.get(generation, '64.0')} GT/s PCIe"
    return dict.fromkeys(("current_link_speed", "max_link_speed"), speed) | {
        name: str(width) for name in ("current_link_width", "max_link_width")
    }


def _port_type(device: PciDevice) -> int:
    """The type of the PCI Express capability; a root port stands right below the root complex."""
    if device.kind != "bridge":
        return _ENDPOINT
    depth = len(device.path) - 2
    return _ROOT_PORT if depth == 0 else (_UPSTREAM if depth % 2 else _DOWNSTREAM)


def _config_space(device: PciDevice, vendor: int, model: int, number: int, subsystem: int) -> bytes:
    """256 bytes of configuration space: header and a PCI Express capability at 0x40 with the port type."""
    space = bytearray(256)
    space[0:4] = vendor.to_bytes(2, "little") + model.to_bytes(2, "little")
    space[6] = 0x10  # capabilities list
    space[8] = 0xA1
    space[9:12] = number.to_bytes(3, "little")
    space[14] = 1 if device.kind == "bridge" else 0
    space[44:48] = (subsystem & 0xFFFF).to_bytes(2, "little") + (subsystem >> 16).to_bytes(2, "little")
    space[52] = 0x40
    space[0x40] = 0x10  # PCI Express
    space[0x42] = _port_type(device) << 4 | 2
    return bytes(space)
