"""A node profile out of a real machine: what the binding and sysfs say of it, each section with its source.

What nobody can read (power and clocks at rest, how GPUs are named on their boards) is left out and becomes
NOT_SUPPORTED on the mock; so does MIG on a board that no table knows. UUIDs and serial numbers say which machine it
was: they are left out unless asked for, and the mock makes up its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from native.mock import boards, migtables
from native.mock.boards import MIB
from native.mock.profile import SCHEMA
from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot
from native.sysfs import HostTopology, PciDevice

_SPEEDS: Final = {5: 25781, 6: 26562, 7: 53125}
"""nvmlNvlinkVersion_t -> MB/s a link and direction, of captures of A100, H100 and GB200: a snapshot has no speed."""


def document(snapshot: NvmlSnapshot, host: HostTopology, *, name: str, identities: bool = False) -> dict[str, Any]:
    """The profile as data, ready to be written as YAML; ``native.mock.profile.parse`` accepts it.

    Args:
        snapshot: one reading of the driver.
        host: one reading of the bus at the same time.
        name: the profile's name; the mock's UUIDs depend on it.
        identities: keep UUIDs and serial numbers.

    Raises:
        ValueError: the driver shows no GPU that is on the bus, so there is nothing to make a profile of.
    """
    on_bus = {device.address: device for device in host.devices}
    gpus = [gpu for gpu in snapshot.gpus if gpu.address in on_bus]
    if not gpus:
        raise ValueError("the driver shows no GPU that is on the bus: is it loaded, and is this the machine's sysfs?")
    cuda = snapshot.cuda_driver_version or 0
    entries = [_gpu(gpu, on_bus[str(gpu.address)], identities=identities) for gpu in gpus]
    shared = {key: value for key, value in entries[0].items() if all(entry.get(key) == value for entry in entries)}
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "name": name,
        "description": f"{len(gpus)} x {gpus[0].name}, captured",
        "sources": _sources(snapshot),
        "driver": {"version": snapshot.driver_version, "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}"},
        "host": _host(host),
        "gpu": shared,
        "gpus": [{key: value for key, value in entry.items() if key not in shared} for entry in entries],
        "pcie": _tree(host.devices, {str(gpu.address) for gpu in gpus}),
    }
    links = _nvlink(gpus, {device.address for device in host.nvswitches})
    return made | ({"nvlink": links} if links else {})


def _sources(snapshot: NvmlSnapshot) -> dict[str, str]:
    where = f"captured by gpudra with driver {snapshot.driver_version}"
    return {
        "driver": f"NVML, {where}",
        "host": f"sysfs and procfs, {where}",
        "gpu": f"NVML, {where}; power, temperature and clocks not captured; MIG profiles from the mock's own tables",
        "gpus": f"NVML, {where}",
        "nvlink": f"NVML, {where}; the speed is that of other captures of this NVLink version",
        "pcie": f"sysfs, {where}: GPUs, NVSwitches, network devices and the bridges above them",
    }


def _host(host: HostTopology) -> dict[str, Any]:
    nodes = []
    for node in host.numa_nodes:
        distances = list(node.distances) or [10 if other is node else 20 for other in host.numa_nodes]
        size = (node.memory_bytes or 0) // MIB
        nodes.append({"node": node.index, "cpus": node.cpulist, "memory_mib": size, "distances": distances})
    iommu = any(device.iommu_group is not None for device in host.devices)
    return {"machine": "captured", "iommu": iommu, "numa": nodes}


def _word(words: Mapping[str, int], number: int | None) -> str | None:
    return next((word for word, value in words.items() if value == number), None)


def _gpu(gpu: GpuSnapshot, device: PciDevice, *, identities: bool) -> dict[str, Any]:
    capability = gpu.cuda_compute_capability or (0, 0)
    model = (gpu.pci_device_id or 0) >> 16
    found: dict[str, Any] = {
        "address": gpu.address,
        "minor": gpu.minor_number,
        "module_id": gpu.module_id,
        "name": gpu.name,
        "brand": _word(boards.BRANDS, gpu.brand) or "unknown",
        "architecture": _word(boards.ARCHITECTURES, gpu.architecture),
        "compute_capability": "{}.{}".format(*capability),
        "board_part_number": gpu.board_part_number,
        "vbios_version": gpu.vbios_version,
        "pci_device_id": gpu.pci_device_id,
        "pci_subsystem_id": gpu.pci_subsystem_id,
        "pci_class": device.class_code,
        "memory": _memory(gpu),
        "bar1_mib": None if gpu.bar1_total is None else gpu.bar1_total // MIB,
        "memory_numa_node": gpu.memory_numa_node,
        "addressing_mode": _word(boards.ADDRESSING_MODES, gpu.addressing_mode),
        "ecc": None if gpu.ecc_mode is None else gpu.ecc_mode[0],
        "mig": None if gpu.mig_mode is None or not migtables.of_pci_device(model) else gpu.mig_mode[0],
        "compute_mode": _word(boards.COMPUTE_MODES, gpu.compute_mode) or "default",
        "persistence": bool(gpu.persistence_mode),
        "virtualization": _word(boards.VIRTUALIZATION, gpu.virtualization_mode) or "none",
        "pcie": {"generation": gpu.pcie_link_generation, "width": gpu.pcie_link_width},
        "fabric": _fabric(gpu),
    }
    if gpu.serial is None:
        found["serial"] = None
    if identities:
        found |= {"uuid": gpu.uuid, "serial": gpu.serial}
    return found


def _memory(gpu: GpuSnapshot) -> dict[str, int] | None:
    if gpu.memory_total is None:
        return None
    return {"total_mib": gpu.memory_total // MIB, "reserved_mib": (gpu.memory_reserved or 0) // MIB}


def _fabric(gpu: GpuSnapshot) -> dict[str, Any] | None:
    if gpu.fabric is None:
        return None
    return {
        "state": _word(boards.FABRIC_STATES, gpu.fabric.state),
        "status": gpu.fabric.status,
        "cluster_uuid": gpu.fabric.cluster_uuid,
        "clique": gpu.fabric.clique_id,
        "health_mask": gpu.fabric.health_mask,
    }


def _nvlink(gpus: Sequence[GpuSnapshot], on_bus: set[str]) -> dict[str, Any]:
    links = [gpu.nvlinks or () for gpu in gpus]
    most = max(map(len, links))
    version = next((link.version for each in links for link in each if link.version is not None), None)
    if most == 0 or version is None:
        return {}
    found: dict[str, Any] = {
        "version": _word(boards.NVLINK_VERSIONS, version),
        "speed_mbps": _SPEEDS.get(version, 25000),
        "links": most,
        "inactive": [index for index, each in enumerate(links) if each and not any(link.active for link in each)],
    }
    switches = _most_links_to_switches(links)
    if switches:
        found["switches"] = switches
        found["external_switches"] = not switches.keys() <= on_bus
    peers = _peers(gpus, links)
    return found | ({"peers": peers} if peers else {})


def _most_links_to_switches(links: Sequence[Sequence[NvLink]]) -> dict[str, int]:
    """Switch -> links of the GPU that has most to it; one that NVML gives no address for counts as one at bus 0."""
    most: dict[str, int] = {}
    for each in links:
        here = Counter(
            link.remote_address or "0000:00:00.0" for link in each if link.active and link.remote_type in (2, None, 255)
        )
        most = {address: max(most.get(address, 0), here[address]) for address in most.keys() | here.keys()}
    return dict(sorted(most.items()))


def _peers(gpus: Sequence[GpuSnapshot], links: Sequence[Sequence[NvLink]]) -> list[list[int]]:
    place = {gpu.address: index for index, gpu in enumerate(gpus)}
    pairs = Counter(
        (index, place[link.remote_address])
        for index, each in enumerate(links)
        for link in each
        if link.active and link.remote_type == 0 and link.remote_address in place and index < place[link.remote_address]
    )
    return [[one, other, count] for (one, other), count in sorted(pairs.items())]


def _tree(devices: Sequence[PciDevice], gpus: set[str]) -> list[dict[str, Any]]:
    roots: dict[tuple[str, int], dict[str, Any]] = {}
    virtual = Counter(device.physfn for device in devices if device.physfn is not None)
    for device in devices:
        leaf = _leaf(device, gpus)
        if leaf is None or device.pcie_root is None:
            continue
        numa = -1 if device.numa_node is None else device.numa_node
        branch = roots.setdefault((device.pcie_root.removeprefix("pci"), numa), {})
        for bridge in device.bridges:
            branch = branch.setdefault(bridge, {})
        if virtual[device.address] and isinstance(leaf, dict):
            leaf["vfs"] = virtual[device.address]
        branch[device.address] = leaf
    return [{"root": root, "numa": numa, "tree": tree} for (root, numa), tree in roots.items()]


def _leaf(device: PciDevice, gpus: set[str]) -> str | dict[str, Any] | None:
    """What stands in the tree for a device; None for a GPU that the driver does not show, and for virtual functions."""
    if device.physfn is not None or (device.is_nvidia_gpu and device.address not in gpus):
        return None
    if device.is_nvidia_gpu:
        return "gpu"
    if device.is_nvswitch:
        return "nvswitch"
    names = {"nic": next(iter(device.rdma_devices), "-"), "net": next(iter(device.net_interfaces), "-")}
    return names | {"vendor": device.vendor, "device": device.device or 0}
