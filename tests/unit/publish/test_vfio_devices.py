"""GPUs for virtual machines: devices of their own type, the same before, while and after a claim has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver.model import (
    Gpu,
    GpuState,
    MigMode,
    MigPartition,
    MigProfile,
    MigSupport,
    NodeInventory,
    Passthrough,
    PciAddress,
    Placement,
)
from driver.publish import PoolDocument, build_pool, slice_objects
from kubeletplugin.validation import validate_slice

Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]
BOUND = {"state": GpuState.UNBOUND, "uuid": None, "product_name": None, "memory_bytes": None, "driver": "vfio-pci"}


def build(node: NodeInventory, **more: Any) -> PoolDocument:
    pool = build_pool(node, node_name="node-a", driver_name="gpu.nvidia.com", **more)
    for made in slice_objects(pool, node_name="node-a", driver_name="gpu.nvidia.com"):
        assert validate_slice(made["spec"]) == []
    return pool


@pytest.fixture
def passed(gpu: Make) -> Gpu:
    return gpu(0, passthrough=Passthrough("NVIDIA H100 80GB HBM3", True), pci_device_id=0x233010DE)


def test_a_gpu_for_machines_is_no_gpu_for_others(gpu: Make, node: Node, passed: Gpu) -> None:
    pool = build(node(passed, gpu(1)))
    assert [device["name"] for device in pool.devices] == ["gpu-0000-11-00-0", "gpu-0000-10-00-0-vfio"]
    assert pool.withheld == ()


@pytest.mark.parametrize("counters", [False, True])
def test_a_gpu_that_no_machine_can_have_is_withheld_from_machines_with_the_reason(
    node: Node, passed: Gpu, gpu: Make, counters: bool
) -> None:
    """The scheduler would give it away, and no Prepare could ever hand it over."""
    pool = build(node(replace(passed, iommu_group=None), gpu(1, passthrough=passed.passthrough)), counters=counters)
    names = [device["name"] for device in pool.devices]
    assert [name for name in names if name.endswith("-vfio")] == ["gpu-0000-11-00-0-vfio"]
    assert ("gpu-0000-10-00-0" in names) == counters, "to containers it is what it was"
    (withheld,) = pool.withheld
    assert withheld.device == "gpu-0000-10-00-0-vfio"
    assert "IOMMU" in withheld.reason


def test_it_says_what_the_bus_knows(node: Node, passed: Gpu) -> None:
    (device,) = build(node(passed)).devices
    assert device["attributes"] == {
        "type": {"string": "vfio"},
        "uuid": device["attributes"]["uuid"],
        "vendorID": {"string": "0x10de"},
        "deviceID": {"string": "0x2330"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "iommuFDEnabled": {"bool": True},
        "resource.kubernetes.io/pciBusID": {"string": "0000:10:00.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:10"},
        "resource.kubernetes.io/numaNode": {"int": 0},
    }


def test_it_looks_the_same_while_a_machine_has_it(node: Node, passed: Gpu) -> None:
    assert build(node(replace(passed, **BOUND))).devices == build(node(passed)).devices


def test_what_nvml_has_against_the_gpu_is_not_held_against_it(node: Node, passed: Gpu) -> None:
    taint = {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}
    (device,) = build(node(passed), taints={passed.name: [taint]}).devices
    assert "taints" not in device
    (device,) = build(node(passed), taints={f"{passed.name}-vfio": [taint]}).devices
    assert device["taints"] == [taint]


def test_a_key_that_one_lacks_none_has(gpu: Make, node: Node, passed: Gpu) -> None:
    other = gpu(1, passthrough=Passthrough(), numa_node=None)
    first, second = build(node(passed, other)).devices
    assert first["attributes"].keys() == second["attributes"].keys()
    assert "resource.kubernetes.io/numaNode" not in first["attributes"]
    assert second["attributes"]["productName"] == {"string": "Unknown"}
    assert first["attributes"]["uuid"] != second["attributes"]["uuid"]


def test_an_address_of_a_long_domain_is_no_bus_id(node: Node, passed: Gpu) -> None:
    (device,) = build(node(replace(passed, address=PciAddress(0x10000, 1, 0, 0)))).devices
    assert "resource.kubernetes.io/pciBusID" not in device["attributes"]


def test_where_counters_are_kept_it_is_offered_both_ways_and_never_twice(node: Node, passed: Gpu, gpu: Make) -> None:
    pool = build(node(passed, gpu(1)), counters=True)
    both = {device["name"]: device["consumesCounters"][0] for device in pool.devices}
    assert list(both) == ["gpu-0000-10-00-0", "gpu-0000-11-00-0", "gpu-0000-10-00-0-vfio"]
    assert both["gpu-0000-10-00-0"] == both["gpu-0000-10-00-0-vfio"]
    (sets,) = pool.counters
    assert len(sets) == 2
    assert {made["name"]: made["counters"] for made in sets}[both["gpu-0000-10-00-0"]["counterSet"]] == (
        both["gpu-0000-10-00-0"]["counters"]
    )


def test_while_a_machine_has_it_only_that_is_published(node: Node, passed: Gpu, gpu: Make) -> None:
    pool = build(node(replace(passed, **BOUND), gpu(1)), counters=True)
    assert [device["name"] for device in pool.devices] == ["gpu-0000-11-00-0", "gpu-0000-10-00-0-vfio"]
    assert pool.withheld == ()


def test_without_passthrough_counters_change_nothing(node: Node, gpu: Make) -> None:
    assert build(node(gpu(0)), counters=True) == build(node(gpu(0)))


def test_beside_a_gpu_that_cannot_be_counted_it_is_for_machines_alone(node: Node, passed: Gpu, gpu: Make) -> None:
    """Somebody divided a GPU whose profiles are not known: its partitions have no counters, so nothing may have."""
    partition = MigPartition("MIG-1", 1, 0, 19, "1g.10gb", Placement(0, 1), memory_bytes=10 << 30)
    divided = gpu(1, mig=MigMode(True, True), partitions=(partition,))
    names = [device["name"] for device in build(node(passed, divided), counters=True).devices]
    assert "gpu-0000-10-00-0" not in names
    assert "gpu-0000-10-00-0-vfio" in names


def test_beside_devices_with_counters_it_has_one_too(node: Node, passed: Gpu, gpu: Make) -> None:
    """The scheduler must not find devices with counters and devices without in one pool."""
    profile = MigProfile(19, "1g.10gb", tuple(Placement(n, 1) for n in range(7)), 7, 10 << 30, 16, 1, 1, 0, 1, 0, 1)
    divided = gpu(1, mig=MigMode(False, False), mig_profiles=(profile,))
    pool = build(node(passed, divided), mig=MigSupport.DYNAMIC, counters=True)
    assert all(device["consumesCounters"] for device in pool.devices)
    sets = {made["name"] for several in pool.counters for made in several}
    assert {device["consumesCounters"][0]["counterSet"] for device in pool.devices} == sets
    assert len(sets) == 2
