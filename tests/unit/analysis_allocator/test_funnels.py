"""Where a request loses its devices: the counts before any search."""

from __future__ import annotations

from driver.analysis.allocator import Allocator, Funnel, Group, rules
from tests.unit.analysis_allocator.cluster_documents import (
    CLASS,
    NODE,
    Document,
    claim,
    consumes,
    counters,
    device,
    first_of,
    held,
    request,
    slice_of,
)

NUMA = "resource.kubernetes.io/numaNode"
TAINT = {"key": "bad", "effect": "NoSchedule"}
IS_GPU = [{"cel": {"expression": 'device.attributes["gpu.example.com"].type == "gpu"'}}]
IS_BIG = [{"cel": {"expression": 'device.capacity["gpu.example.com"].memory.isGreaterThan(quantity("40Gi"))'}}]


def gpu(name: str, numa: int = 0, memory: str = "80Gi", kind: str = "gpu", **more: object) -> Document:
    attributes = {"type": {"string": kind}, NUMA: {"int": numa}}
    return device(name, attributes=attributes, capacity={"memory": {"value": memory}}, **more)


def funnels(
    slices: list[Document], wish: Document, *before: Document, classes: list[Document] | None = None
) -> list[Funnel]:
    given = [{"metadata": {"name": "gpu"}, "spec": {"selectors": IS_GPU}}] if classes is None else classes
    return list(Allocator(rules(37), given, slices, before).funnels(NODE, [wish]))


def test_each_condition_leaves_fewer_devices() -> None:
    devices = [
        gpu("nic", kind="nic"),
        gpu("small", memory="20Gi"),
        gpu("held"),
        gpu("sick", taints=[TAINT]),
        gpu("free-a"),
        gpu("free-b", numa=1),
    ]
    wish = claim(request(count=2, selectors=IS_BIG), constraints=[{"matchAttribute": NUMA}])
    (found,) = funnels([slice_of(*devices)], wish, held("held"))
    assert (found.devices, found.in_class, found.selected, found.free, found.tolerated) == (6, 5, 4, 3, 2)
    assert (found.counters, found.capacity, found.wanted) == (2, 2, 2)
    assert found.groups == (Group(NUMA, 0, 1),)


def test_the_selector_that_was_false_is_named_with_its_count() -> None:
    (found,) = funnels([slice_of(gpu("a", kind="nic"), gpu("b", kind="nic"))], claim(request()))
    assert found.rejected == ((IS_GPU[0]["cel"]["expression"], 2),)


def test_a_selector_that_fails_is_told_and_not_counted_as_false() -> None:
    (found,) = funnels([slice_of(device("bare"))], claim(request()))
    assert (found.in_class, found.rejected) == (0, ())
    assert "no such key: type" in found.errors[0]


def test_partitions_without_counters_left_are_told_from_taken_ones() -> None:
    parts = [gpu(f"part-{number}", consumesCounters=consumes("gpu-0", sms="2")) for number in range(3)]
    pool = [slice_of(*parts, count=2), counters(gpu_0={"sms": "3"})]
    (found,) = funnels(pool, claim(request()), held("part-0"))
    assert (found.free, found.counters) == (2, 0)


def test_capacity_that_shares_have_used_up_is_told() -> None:
    shared = gpu("gpu", memory="80Gi", allowMultipleAllocations=True)
    before = held("gpu", shareID="s", consumedCapacity={"memory": "60Gi"})
    wish = claim(request(capacity={"requests": {"memory": "30Gi"}}))
    (found,) = funnels([slice_of(shared)], wish, before)
    assert (found.counters, found.capacity) == (1, 0)


def test_every_alternative_has_a_funnel_of_its_own() -> None:
    wish = claim(first_of("r", request("big", selectors=IS_BIG), request("any")))
    found = funnels([slice_of(gpu("a", memory="10Gi"))], wish)
    assert [(each.request, each.selected) for each in found] == [("r/big", 0), ("r/any", 1)]


def test_admin_access_sees_what_others_hold() -> None:
    (found,) = funnels([slice_of(gpu("a"))], claim(request(adminAccess=True)), held("a"))
    assert found.free == 1


def test_an_unfinished_pool_has_no_devices_to_offer() -> None:
    assert funnels([slice_of(gpu("a"), count=2)], claim(request()))[0].devices == 0


def test_a_constraint_on_an_attribute_nobody_has_groups_nothing() -> None:
    wish = claim(request(), constraints=[{"matchAttribute": "gpu.example.com/nope"}])
    assert funnels([slice_of(device("x"))], wish, classes=[CLASS])[0].groups == (
        Group("gpu.example.com/nope", None, 0),
    )
