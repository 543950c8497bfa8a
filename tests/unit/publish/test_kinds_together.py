"""By brute force: which two devices of a node the scheduler gives away together, and which Prepare takes together.

The scheduler is the port of its allocator over the published slices, Prepare is the rule by which it refuses what
another claim holds. Whole GPUs, their shares, partitions and the same GPUs for virtual machines share counters; that
the counters of partitions are those of the board is tried in tests/mock/test_mig_counters.py.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from driver.analysis.allocator import Allocator, rules
from driver.model import Gpu, MigMode, MigSupport, NodeInventory, Passthrough
from driver.prepare.claims import read_claim
from driver.prepare.records import ClaimRecord
from driver.prepare.resolve import conflict, resolve
from driver.publish import build_pool, slice_objects
from tests.unit.publish.test_partition_counters import BOARDS

JSON = dict[str, Any]
Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]

DRIVER = "gpu.nvidia.com"
NAME = "example.com/name"
PASSED = Passthrough("NVIDIA H100 80GB HBM3", False)
H100 = {"mig_profiles": BOARDS["H100-80GB"]}
ARRANGEMENTS: dict[str, Sequence[dict[str, Any]]] = {
    "partitions and a whole GPU": (H100, {}),
    "partitions and shares": (H100 | {"shares": 2}, {"shares": 3}),
    "partitions and virtual machines": (H100 | {"passthrough": PASSED}, {"passthrough": PASSED}),
    "everything": (H100 | {"passthrough": PASSED, "shares": 2}, {"passthrough": PASSED, "shares": 2}),
    "shares and virtual machines": ({"passthrough": PASSED, "shares": 2}, {"shares": 4}),
    "a board in MIG mode": (
        {"mig_profiles": BOARDS["A30"], "architecture": "Ampere", "mig": MigMode(True, True)},
        {"passthrough": PASSED},
    ),
}


class Both:
    """Scheduler and Prepare of one node."""

    def __init__(self, inventory: NodeInventory) -> None:
        self.inventory = inventory
        pool = build_pool(inventory, node_name="n", driver_name=DRIVER, mig=MigSupport.DYNAMIC, counters=True)
        self.pool = pool.name
        self.devices = {device["name"]: device for device in pool.devices}
        slices = slice_objects(pool, node_name="n", driver_name=DRIVER)
        for number, each in enumerate(slices):
            each["metadata"] = {"name": f"{number}"}
            for device in each["spec"].get("devices", ()):
                device["attributes"] = device["attributes"] | {NAME: {"string": device["name"]}}
        self._allocator = Allocator(rules(37), [{"metadata": {"name": "any"}, "spec": {}}], slices)

    def given(self, name: str, held: Sequence[JSON] = (), **capacity: str) -> JSON | None:
        """A claim that has this device beside those that are held, or None where it is not given."""
        selector = {"cel": {"expression": f'device.attributes["example.com"].name == "{name}"'}}
        wish = {"deviceClassName": "any", "selectors": [selector], "allocationMode": "ExactCount", "count": 1}
        request = {"name": "r", "exactly": wish | ({"capacity": {"requests": capacity}} if capacity else {})}
        uid = str(uuid.uuid4())
        claim: JSON = {"metadata": {"name": f"c-{uid}", "namespace": "ns", "uid": uid}}
        claim["spec"] = {"devices": {"requests": [request]}}
        found = self._allocator.holding(held).allocate({"metadata": {"name": "n"}}, [claim])
        assert not found.kind, found.error
        return None if found.allocations is None else claim | {"status": {"allocation": found.allocations[0]}}

    def record(self, claim: JSON) -> ClaimRecord:
        """As Prepare finds its hardware."""
        uid = claim["metadata"]["uid"]
        return resolve(
            read_claim(claim, uid=uid, driver_name=DRIVER, pool_name=self.pool), self.inventory, MigSupport.DYNAMIC
        )


@pytest.fixture(params=ARRANGEMENTS)
def both(request: pytest.FixtureRequest, gpu: Make, node: Node) -> Both:
    first, second = ARRANGEMENTS[request.param]
    return Both(node(gpu(0, **first), gpu(1, **second)))


def test_the_scheduler_gives_away_together_what_prepare_takes_together(both: Both) -> None:
    wrong, allowed = [], 0
    for one, other in itertools.product(both.devices, repeat=2):
        held = both.given(one)
        assert held is not None, f"{one} is free and not given"
        beside = both.given(other, [held])
        # What the scheduler does not give is asked of Prepare with the allocation that it would have alone.
        refusal = conflict(both.record(beside or both.given(other) or {}), [both.record(held)])
        partitions = "-mig-" in one and "-mig-" in other
        allowed += beside is not None
        if beside is not None and refusal is not None:
            wrong.append(f"{other} is given beside {one}, Prepare says: {refusal}")
        if beside is None and refusal is None and not partitions:  # between partitions there are engines too
            wrong.append(f"{other} is not given beside {one}, Prepare would take it")
    assert wrong == []
    assert 0 < allowed < len(both.devices) ** 2


def test_order_does_not_matter(both: Both) -> None:
    for one, other in itertools.combinations(both.devices, 2):
        held, later = both.given(one), both.given(other)
        assert held is not None
        assert later is not None
        assert (both.given(other, [held]) is None) == (both.given(one, [later]) is None), (one, other)


@pytest.mark.parametrize(("count", "more"), [(2, {}), (5, {}), (3, H100), (4, {"passthrough": PASSED})])
def test_a_gpu_is_given_away_in_as_many_shares_as_it_has(gpu: Make, node: Node, count: int, more: JSON) -> None:
    both = Both(node(gpu(0, shares=count, **more), gpu(1, passthrough=PASSED)))
    name = next(name for name, device in both.devices.items() if device.get("allowMultipleAllocations"))
    held: list[JSON] = []
    while (claim := both.given(name, held)) is not None:
        assert conflict(both.record(claim), map(both.record, held)) is None
        held.append(claim)
    assert len(held) == count
    assert len({claim["status"]["allocation"]["devices"]["results"][0]["shareID"] for claim in held}) == count
    for other, device in both.devices.items():
        if device["consumesCounters"][0]["counterSet"] == both.devices[name]["consumesCounters"][0]["counterSet"]:
            assert both.given(other, held[:1]) is None or other == name, f"{other} beside one share"


@pytest.mark.parametrize(
    ("asked", "fit"), [(("30Gi", "30Gi", "30Gi"), 2), (("1Mi", "79Gi", "1Gi"), 2), (("79Gi", "512Mi", "1Gi"), 2)]
)
def test_memory_is_given_away_once(gpu: Make, node: Node, asked: Sequence[str], fit: int) -> None:
    both = Both(node(gpu(0, shares=4), gpu(1, passthrough=PASSED)))
    name = next(name for name, device in both.devices.items() if device.get("allowMultipleAllocations"))
    held: list[JSON] = []
    for amount in asked:
        if (claim := both.given(name, held, memory=amount)) is not None:
            held.append(claim)
    assert len(held) == fit
