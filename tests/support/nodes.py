"""Readings of a node, made of plain values: what NVML said and what the bus showed."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot
from native.sysfs import HostNumaNode, HostTopology, PciDevice

H100_BYTES = 81559 * 2**20
BOOT_ID = "0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55"


def address(number: int) -> str:
    """Address of the n-th GPU of a made-up node: each on a root complex of its own."""
    return f"0000:{0x10 * (number + 1):02x}:00.0"


def pci_gpu(at: str, **changes: Any) -> PciDevice:
    """An H100 as the bus shows it, behind one switch."""
    bus = at.split(":")[1]
    values: dict[str, Any] = {
        "address": at,
        "vendor": 0x10DE,
        "device": 0x2330,
        "subsystem_vendor": 0x10DE,
        "subsystem_device": 0x16C1,
        "class_code": 0x030200,
        "pcie_root": f"pci0000:{bus}",
        "bridges": (f"0000:{bus}:1c.0", f"0000:{bus}:1d.0", f"0000:{bus}:1e.0"),
        "numa_node": 0,
        "local_cpulist": "0-55",
        "iommu_group": 7,
        "driver": "nvidia",
        "drm_nodes": ("card1", "renderD129"),
        "net_interfaces": (),
        "rdma_devices": (),
        "physfn": None,
        "link_generation": 5,
        "link_width": 16,
    }
    return PciDevice(**(values | changes))


def host(*devices: PciDevice, **changes: Any) -> HostTopology:
    """A host with these functions and two NUMA nodes."""
    values: dict[str, Any] = {
        "devices": devices,
        "numa_nodes": (HostNumaNode(0, "0-55", 2**40, (10, 21)), HostNumaNode(1, "56-111", 2**40, (21, 10))),
        "boot_id": BOOT_ID,
        "memory_bytes": 2**41,
        "kernel_driver_version": "580.105.08",
        "problems": (),
    }
    return HostTopology(**(values | changes))


def nvml_gpu(at: str | None, *, codes: Mapping[str, int] | None = None, **changes: Any) -> GpuSnapshot:
    """An H100 as NVML describes it; a field with a code has no value."""
    codes = codes or {}
    values: dict[str, Any] = {
        "index": 0,
        "uuid": None if at is None else f"GPU-00000000-0000-0000-0000-{at.replace(':', '').replace('.', ''):0>12}",
        "name": "NVIDIA H100 80GB HBM3",
        "brand": 14,
        "architecture": 9,
        "cuda_compute_capability": (9, 0),
        "serial": "1652823012345",
        "minor_number": 0,
        "pci_device_id": 0x233010DE,
        "pci_subsystem_id": 0x16C110DE,
        "memory_total": H100_BYTES,
        "addressing_mode": 1,
        "ecc_mode": (True, True),
        "mig_mode": (False, False),
        "compute_mode": 0,
        "persistence_mode": True,
        "virtualization_mode": 0,
        "pcie_link_generation": 5,
        "pcie_link_width": 16,
    }
    if "handle" in codes:
        values = {}
    values |= changes
    for field in codes:
        values.pop(field, None)
    return GpuSnapshot(address=at, codes=MappingProxyType(dict(codes)), **values)


def nvml(*gpus: GpuSnapshot, **changes: Any) -> NvmlSnapshot:
    """A whole reading."""
    values: dict[str, Any] = {
        "driver_version": "580.105.08",
        "nvml_version": "13.580.105.08",
        "cuda_driver_version": 13000,
        "gpus": gpus,
    }
    return NvmlSnapshot(**(values | changes))


def switch_links(count: int, version: int = 6) -> tuple[NvLink, ...]:
    """Active links to NVSwitch chips."""
    return tuple(NvLink(index, True, version, f"0000:{0xC0 + index % 4:02x}:00.0", 2) for index in range(count))
