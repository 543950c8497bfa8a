from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from driver.model import (
    EccMode,
    Gpu,
    GpuState,
    MigMode,
    NodeInventory,
    NvLinkGroup,
    NvLinkLink,
    PciAddress,
)

SWITCH = PciAddress(0, 0xC0, 0, 0)


@pytest.fixture
def gpu() -> Callable[..., Gpu]:
    """The n-th H100 of a node, with changes."""

    def make(number: int = 0, **changes: Any) -> Gpu:
        bus = 0x10 + number
        values: dict[str, Any] = {
            "address": PciAddress(0, bus, 0, 0),
            "state": GpuState.READY,
            "uuid": f"GPU-00000000-0000-0000-0000-{number:012d}",
            "index": number,
            "product_name": "NVIDIA H100 80GB HBM3",
            "brand": "Nvidia",
            "architecture": "Hopper",
            "cuda_compute_capability": (9, 0),
            "memory_bytes": 81559 * 2**20,
            "addressing_mode": "HMM",
            "ecc": EccMode(True, True),
            "mig": MigMode(False, False),
            "pcie_root": f"pci0000:{bus:02x}",
            "switch_path": tuple(PciAddress(0, bus, 0x1C + depth, 0) for depth in range(3)),
            "numa_node": number // 4,
            "iommu_group": 10 + number,
            "nvlinks": tuple(NvLinkLink(index, True, "4.0", SWITCH, "switch") for index in range(18)),
            "nvlink_group": 0,
        }
        return Gpu(**(values | changes))

    return make


@pytest.fixture
def node() -> Callable[..., NodeInventory]:
    """A node with these GPUs, all in one NVLink group."""

    def make(*gpus: Gpu, **changes: Any) -> NodeInventory:
        values: dict[str, Any] = {
            "driver_version": "580.105.08",
            "cuda_driver_version": (13, 0),
            "nvml_version": "13.580.105.08",
            "gpus": gpus,
            "nvlink_groups": (NvLinkGroup(0, tuple(gpu.address for gpu in gpus if gpu.nvlink_group == 0)),),
        }
        return NodeInventory(**(values | changes))

    return make
