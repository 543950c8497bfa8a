"""What the kernel knows of this machine's PCI functions, NUMA nodes and memory, read below given roots.

Sources are the kernel's sysfs ABI (Documentation/ABI/testing/sysfs-bus-pci, .../sysfs-devices-node) and proc(5).
Any file may be missing, empty or broken, on any kernel, VM or container: the value is then ``None`` and, where
somebody should look, a ``HostProblem`` says so. No single device ever makes the reading fail.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import msgspec

from native.pci import canonical_address
from native.pcipath import PciPlace

VENDOR_NVIDIA = 0x10DE
_GPU_CLASSES = frozenset({0x0300, 0x0302})
_NVSWITCH_CLASS = 0x0680
_NETWORK_CLASS = 0x02
_CLASSES = _GPU_CLASSES | {_NVSWITCH_CLASS}
"""Of NVIDIA's functions, those that matter."""
_HOST_BRIDGE = re.compile(r"\Apci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")
_NODE_NAME = re.compile(r"\Anode([0-9]+)\Z")
_MEM_TOTAL = re.compile(r"MemTotal:\s*([0-9]{1,18})\s*kB")
_DIGITS = re.compile(r"\A[0-9]{1,18}\Z")
"""A whole number that a kernel may print; Python refuses to read one of thousands of digits."""
_DRIVER_VERSION = re.compile(r"^NVRM version:.*?\b([0-9]{3,}\.[0-9.]+)\b", re.MULTILINE)
_GENERATIONS = {"2.5": 1, "5.0": 2, "8.0": 3, "16.0": 4, "32.0": 5, "64.0": 6, "128.0": 7}
"""GT/s in max_link_speed -> PCIe generation (PCI Express base specification)."""
_UNKNOWN_WIDTHS = frozenset({0, 255})
"""max_link_width where the capability cannot be read."""
_READ_LIMIT = 64 * 1024
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EINVAL, errno.ENODEV, errno.ENXIO})
"""Not there, or not (any more) offered for this device: an ordinary answer of sysfs, no fault."""


class HostProblem(msgspec.Struct, frozen=True):
    """Something that should be readable and is not: a PCI address or a path, and what is wrong with it."""

    subject: str
    message: str


class PciDevice(msgspec.Struct, frozen=True):
    """One PCI function that matters here: an NVIDIA GPU or NVSwitch, or a network device."""

    address: str
    """Canonical (``native.pci``)."""
    vendor: int
    device: int | None
    subsystem_vendor: int | None
    subsystem_device: int | None
    class_code: int
    """24 bits: base class, subclass, programming interface (0x030200)."""
    pcie_root: str | None
    """The topmost host bridge on the path (``pci0000:66``), as resource.kubernetes.io/pcieRoot wants it."""
    bridges: tuple[str, ...]
    """Canonical addresses between host bridge and function, root port first."""
    numa_node: int | None
    """None where the firmware gives no affinity (sysfs says -1)."""
    local_cpulist: str | None
    iommu_group: int | None
    driver: str | None
    """None: no driver is bound."""
    drm_nodes: tuple[str, ...]
    net_interfaces: tuple[str, ...]
    rdma_devices: tuple[str, ...]
    physfn: str | None
    """Address of the physical function, where this is an SR-IOV virtual one."""
    link_generation: int | None
    """The highest PCIe generation that the function and the port above it both can."""
    link_width: int | None
    """The widest link, in lanes, that both can."""

    @property
    def place(self) -> PciPlace:
        """The path of this function, to compare with another's (``native.pcipath.path_class``)."""
        return PciPlace(self.address, self.pcie_root, self.bridges, self.numa_node)

    @property
    def is_nvidia_gpu(self) -> bool:
        """Display controller (VGA or 3D) of NVIDIA's; a physical function."""
        return self.vendor == VENDOR_NVIDIA and self.class_code >> 8 in _GPU_CLASSES and self.physfn is None

    @property
    def is_nvswitch(self) -> bool:
        """An NVLink switch chip: a bridge device of NVIDIA's."""
        return self.vendor == VENDOR_NVIDIA and self.class_code >> 8 == _NVSWITCH_CLASS

    @property
    def is_nic(self) -> bool:
        """Network controller: Ethernet, InfiniBand, EFA."""
        return self.class_code >> 16 == _NETWORK_CLASS


class HostNumaNode(msgspec.Struct, frozen=True):
    """A NUMA node that is online."""

    index: int
    cpulist: str
    """Empty for a node of memory only."""
    memory_bytes: int | None
    distances: tuple[int, ...]
    """ACPI SLIT distances to the online nodes, by ascending index; empty where unknown."""


class HostTopology(msgspec.Struct, frozen=True):
    """One reading of the machine."""

    devices: tuple[PciDevice, ...]
    """NVIDIA GPUs and NVSwitches, and network devices, by ascending address."""
    numa_nodes: tuple[HostNumaNode, ...]
    boot_id: str | None
    memory_bytes: int | None
    """MemTotal of /proc/meminfo."""
    kernel_driver_version: str | None
    """Of /proc/driver/nvidia/version; None where NVIDIA's kernel module is not loaded."""
    problems: tuple[HostProblem, ...] = ()
    complete: bool = True
    """False: the bus has functions, or may have, of which it could not be read what they are."""

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        """NVIDIA's GPUs, virtual functions apart."""
        return tuple(device for device in self.devices if device.is_nvidia_gpu)

    @property
    def nics(self) -> tuple[PciDevice, ...]:
        """Network devices, virtual functions too."""
        return tuple(device for device in self.devices if device.is_nic)

    @property
    def nvswitches(self) -> tuple[PciDevice, ...]:
        """NVLink switches on this machine's bus."""
        return tuple(device for device in self.devices if device.is_nvswitch)


def read_host(sys_root: Path, proc_root: Path) -> HostTopology:
    """Read the machine whose sysfs and procfs lie at the two roots (``/sys`` and ``/proc``, or a host's mounted copy).

    Never raises for what it finds or does not find there.
    """
    reader = _Reader()
    devices, complete = _read_devices(reader, sys_root / "bus/pci/devices")
    boot_id = reader.text(proc_root / "sys/kernel/random/boot_id", subject="boot id")
    meminfo = reader.text(proc_root / "meminfo", subject="memory")
    version = reader.text(proc_root / "driver/nvidia/version", subject="driver version")
    found_version = _DRIVER_VERSION.search(version or "")
    return HostTopology(
        devices=tuple(sorted(devices, key=_address_order)),
        numa_nodes=_read_numa_nodes(reader, sys_root / "devices/system/node"),
        boot_id=boot_id,
        memory_bytes=_mem_total(meminfo),
        kernel_driver_version=found_version[1] if found_version else None,
        problems=tuple(reader.problems),
        complete=complete,
    )


class _Reader:
    """Reads small files and links; absence is ``None``, anything else unexpected is noted once and ``None`` too."""

    def __init__(self) -> None:
        self.problems: list[HostProblem] = []
        self.refused = 0
        """How often the kernel refused what is there."""

    def note(self, subject: str, message: str) -> None:
        self.problems.append(HostProblem(subject, message))

    def text(self, path: Path, *, subject: str) -> str | None:
        """The file's text without surrounding blanks; None where there is no file or nothing in it."""
        try:
            # Hundreds of files of a few bytes: a file object for each adds half to the time of a reading.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(descriptor, _READ_LIMIT)
            finally:
                os.close(descriptor)
        except OSError as error:
            self._failed(path, subject, error)
            return None
        return data.decode("utf-8", "replace").strip() or None

    def number(self, path: Path, *, subject: str) -> int | None:
        """The file as a number, decimal or 0x..."""
        text = self.text(path, subject=subject)
        if text is None:
            return None
        try:
            return int(text, 0)
        except ValueError:
            self.note(subject, f"{path} holds {text[:40]!r} where a number is expected; it is treated as unknown")
            return None

    def link_name(self, path: Path, *, subject: str) -> str | None:
        """The last component of where a symbolic link points."""
        target = self.link(path, subject=subject)
        return None if target is None else target.rstrip("/").rpartition("/")[2] or None

    def link(self, path: Path, *, subject: str) -> str | None:
        try:
            return str(path.readlink())
        except OSError as error:
            self._failed(path, subject, error)
            return None

    def names(self, path: Path, *, subject: str) -> tuple[str, ...]:
        """Names in a directory, sorted; none where there is no directory."""
        try:
            return tuple(sorted(os.listdir(path)))  # noqa: PTH208  names only, and a device has many directories
        except OSError as error:
            self._failed(path, subject, error)
            return ()

    def _failed(self, path: Path, subject: str, error: OSError) -> None:
        if error.errno not in _ABSENT:
            self.refused += 1
            self.note(subject, f"cannot read {path}: {error.strerror or error}; it is treated as unknown")


def _read_devices(reader: _Reader, folder: Path) -> tuple[list[PciDevice], bool]:
    """The functions that matter, and whether these are all of them."""
    names = reader.names(folder, subject=str(folder))
    complete = not reader.refused
    if not names:
        reader.note(str(folder), "no PCI devices are visible there; is the host's /sys mounted into the container?")
    devices = []
    for name in names:
        refused = reader.refused
        device = _read_device(reader, folder / name, name)
        if device is not None:
            devices.append(device)
        elif reader.refused > refused:
            complete = False
    return devices, complete


def _read_device(reader: _Reader, path: Path, name: str) -> PciDevice | None:
    """The function at ``path``; None for one that does not matter here (most of a server's are bridges)."""
    try:
        address = canonical_address(name)
    except ValueError as error:
        reader.note(name, f"{path} is skipped: {error}")
        return None
    class_code = reader.number(path / "class", subject=address)
    if class_code is None or (class_code >> 8 not in _CLASSES and class_code >> 16 != _NETWORK_CLASS):
        return None
    vendor = reader.number(path / "vendor", subject=address)
    if vendor is None or (vendor != VENDOR_NVIDIA and class_code >> 16 != _NETWORK_CLASS):
        return None
    root, bridges = _place(reader, path, address)
    physfn = reader.link_name(path / "physfn", subject=address)
    generation, width = _link(reader, path, path.parent / bridges[-1] if bridges else None, address)
    numa_node = reader.number(path / "numa_node", subject=address)
    drm = reader.names(path / "drm", subject=address)
    return PciDevice(
        address=address,
        vendor=vendor,
        device=reader.number(path / "device", subject=address),
        subsystem_vendor=reader.number(path / "subsystem_vendor", subject=address),
        subsystem_device=reader.number(path / "subsystem_device", subject=address),
        class_code=class_code,
        pcie_root=root,
        bridges=bridges,
        numa_node=numa_node if numa_node is not None and numa_node >= 0 else None,
        local_cpulist=reader.text(path / "local_cpulist", subject=address),
        iommu_group=_decimal(reader.link_name(path / "iommu_group", subject=address)),
        driver=reader.link_name(path / "driver", subject=address),
        drm_nodes=tuple(node for node in drm if node.startswith(("card", "renderD"))),
        net_interfaces=reader.names(path / "net", subject=address),
        rdma_devices=reader.names(path / "infiniband", subject=address),
        physfn=_address_or_none(physfn),
        link_generation=generation,
        link_width=width,
    )


def _place(reader: _Reader, path: Path, address: str) -> tuple[str | None, tuple[str, ...]]:
    """(host bridge, bridges) from where the device's link points.

    Most roots stand directly under devices/, others below ACPI, VMBUS or platform devices; a VMD domain stands below
    another root. The topmost ``pciDDDD:BB`` is the answer in every case, and the one that Kubernetes' own helper
    gives wherever it gives one.
    """
    target = reader.link(path, subject=address)
    parts = [] if target is None else target.split("/")
    root = next((part for part in parts if _HOST_BRIDGE.match(part)), None)
    chain = [found for part in parts if (found := _address_or_none(part)) is not None]
    if root is None or not chain or chain[-1] != address:
        reader.note(address, f"{path} does not lead below a PCI root ({target!r}); its PCIe position is unknown")
        return None, ()
    return root, tuple(chain[:-1])


def _link(reader: _Reader, path: Path, port: Path | None, address: str) -> tuple[int | None, int | None]:
    """(generation, width) that both ends of the link can; one end's where the other does not say."""
    ends = [path] if port is None else [path, port]
    generations, widths = [], []
    for end in ends:
        speed = reader.text(end / "max_link_speed", subject=address)
        generation = _GENERATIONS.get(speed.split()[0]) if speed else None
        if generation is not None:
            generations.append(generation)
        width = reader.number(end / "max_link_width", subject=address)
        if width is not None and width not in _UNKNOWN_WIDTHS:
            widths.append(width)
    return min(generations, default=None), min(widths, default=None)


def _read_numa_nodes(reader: _Reader, folder: Path) -> tuple[HostNumaNode, ...]:
    nodes = []
    for name in reader.names(folder, subject=str(folder)):
        match = _NODE_NAME.match(name)
        if match is None:
            continue
        path, subject = folder / name, f"NUMA {name}"
        distance = reader.text(path / "distance", subject=subject)
        nodes.append(
            HostNumaNode(
                index=int(match[1]),
                cpulist=reader.text(path / "cpulist", subject=subject) or "",
                memory_bytes=_mem_total(reader.text(path / "meminfo", subject=subject)),
                distances=_numbers(reader, distance, path / "distance", subject),
            )
        )
    return tuple(sorted(nodes, key=lambda node: node.index))


def _numbers(reader: _Reader, text: str | None, path: Path, subject: str) -> tuple[int, ...]:
    parts = (text or "").split()
    if all(_DIGITS.match(part) for part in parts):
        return tuple(int(part) for part in parts)
    shown = (text or "")[:40]
    reader.note(subject, f"{path} holds {shown!r} where numbers are expected; distances are treated as unknown")
    return ()


def _mem_total(meminfo: str | None) -> int | None:
    match = _MEM_TOTAL.search(meminfo or "")
    return int(match[1]) * 1024 if match and int(match[1]) > 0 else None


def _decimal(text: str | None) -> int | None:
    return int(text) if text is not None and _DIGITS.match(text) else None


def _address_or_none(text: str | None) -> str | None:
    if text is None:
        return None
    try:
        return canonical_address(text)
    except ValueError:
        return None


def _address_order(device: PciDevice) -> tuple[int, ...]:
    domain, bus, rest = device.address.split(":")
    slot, function = rest.split(".")
    return int(domain, 16), int(bus, 16), int(slot, 16), int(function, 16)
