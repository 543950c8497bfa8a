"""A GPU in shares says how many there are, what one comes to, and that nothing enforces it; by the API's own rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.model import Gpu, GpuState, MigProfile, MigSupport, NodeInventory, PciAddress, Placement
from driver.prepare.quantity import parse_bytes as parse
from driver.publish import build_pool, slice_objects
from driver.publish.shares import shared
from kubeletplugin.validation import validate_slice

MIB = 2**20
Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]


def devices(node: NodeInventory) -> list[dict[str, Any]]:
    pool = build_pool(node, node_name="node-a", driver_name="gpu.nvidia.com")
    for made in slice_objects(pool, node_name="node-a", driver_name="gpu.nvidia.com"):
        assert validate_slice(made["spec"]) == []
    return list(pool.devices)


@pytest.fixture
def two(gpu: Make, node: Node) -> NodeInventory:
    return node(gpu(0), gpu(1))


def in_shares(node: NodeInventory, *counts: int | None) -> NodeInventory:
    return replace(node, gpus=tuple(replace(gpu, shares=n) for gpu, n in zip(node.gpus, counts, strict=True)))


def test_without_the_setting_nothing_of_it_is_published(two: NodeInventory) -> None:
    for device in devices(two):
        assert "allowMultipleAllocations" not in device
        assert "shares" not in device["capacity"]
        assert "shareLimits" not in device["attributes"]


def test_a_gpu_in_shares_tells_their_number_and_what_one_gets(two: NodeInventory) -> None:
    first, _ = devices(in_shares(two, 4, None))
    assert first["allowMultipleAllocations"] is True
    assert first["capacity"]["shares"] == {
        "value": "4",
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": "4", "step": "1"}},
    }
    mib = (two.gpus[0].memory_bytes or 0) // MIB
    policy = first["capacity"]["memory"]["requestPolicy"]
    assert policy == {"default": f"{mib // 4}Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}
    assert first["attributes"]["shareLimits"] == {"string": "cooperative"}


def test_its_siblings_carry_the_same_keys(two: NodeInventory) -> None:
    first, second = devices(in_shares(two, 4, None))
    assert first["capacity"].keys() == second["capacity"].keys()
    assert first["attributes"].keys() == second["attributes"].keys()
    assert second["capacity"]["shares"] == {"value": "1"}
    assert "requestPolicy" not in second["capacity"]["memory"]
    assert "allowMultipleAllocations" not in second
    assert second["attributes"]["shareLimits"] == {"string": "exclusive"}


@given(memory=st.integers(0, 2**42), count=st.integers(1, 256))
def test_any_size_and_number_obeys_the_api_and_fits(memory: int, count: int) -> None:
    shares = count if count > 1 else None
    gpu = Gpu(PciAddress(0, 1, 0, 0), GpuState.READY, uuid="GPU-1", memory_bytes=memory or None, shares=shares)
    (device,) = devices(NodeInventory("580.1", (13, 0), "13.1", (gpu,)))
    assert device.get("allowMultipleAllocations", False) is (count > 1)


def test_a_gpu_of_unknown_size_is_counted_in_shares_alone(two: NodeInventory) -> None:
    gpu = replace(two.gpus[0], memory_bytes=None, shares=2)
    assert shared({"name": "x"}, gpu)["capacity"].keys() == {"shares"}


def test_shares_of_a_gpu_that_can_also_be_divided_use_its_counters(gpu: Make, node: Node) -> None:
    """The scheduler charges the counters of a shared device once, so partitions and shares keep each other out."""
    profile = MigProfile(19, "1g.10gb", tuple(Placement(n, 1) for n in range(7)), 7, 10 << 30, 16, 1, 1, 0, 1, 0, 1)
    both = node(gpu(0, mig_profiles=(profile,), shares=2))
    pool = build_pool(both, node_name="n", driver_name="gpu.nvidia.com", mig=MigSupport.DYNAMIC, counters=True)
    for made in slice_objects(pool, node_name="n", driver_name="gpu.nvidia.com"):
        assert validate_slice(made["spec"]) == []
    whole = next(device for device in pool.devices if "mig" not in device["name"])
    assert whole["allowMultipleAllocations"] is True
    assert whole["consumesCounters"]
    assert whole["capacity"]["multiprocessors"]["requestPolicy"]["default"] == "0"
    for name, capacity in whole["capacity"].items():
        policy = capacity.get("requestPolicy")
        assert policy is not None, f"the first claim takes all {name}"
        assert 2 * parse(policy["default"]) <= parse(capacity["value"])
