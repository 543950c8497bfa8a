"""The independent checker: what is right passes, and each kind of wrong is named."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from driver.analysis.allocator import rules
from driver.analysis.allocator.verify import problems
from tests.unit.analysis_allocator.cluster_documents import (
    CLASS,
    DRIVER,
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


def result(name: str, request_: str = "r", **more: Any) -> Document:
    return {"request": request_, "driver": DRIVER, "pool": "node-a", "device": name, **more}


def wrong(
    slices: list[Document], wish: Document, *results: Document, before: tuple[Document, ...] = (), release: int = 37
) -> str:
    allocation = {"devices": {"results": list(results)}}
    return "; ".join(problems(rules(release), NODE, slices, [CLASS], before, [wish], [allocation]))


def test_a_right_allocation_has_no_problems() -> None:
    assert wrong([slice_of(device("a"), device("b"))], claim(request(count=2)), result("a"), result("b")) == ""


@pytest.mark.parametrize(
    ("slices", "wish", "results", "text"),
    [
        ([slice_of(device("a"))], claim(request(count=2)), [result("a")], "1 devices, not 2"),
        ([slice_of(device("a"))], claim(request()), [result("b")], "no such device"),
        ([slice_of(device("a"), nodeName="node-b")], claim(request()), [result("a")], "no such device"),
        ([slice_of(device("a"), count=2)], claim(request()), [result("a")], "not complete"),
        (
            [slice_of(device("a"))],
            claim(request(selectors=[{"cel": {"expression": "false"}}])),
            [result("a")],
            "false is false",
        ),
        (
            [slice_of(device("a", taints=[{"key": "bad", "effect": "NoSchedule"}]))],
            claim(request()),
            [result("a")],
            "taint bad is not tolerated",
        ),
        (
            [slice_of(device("a"), device("b"))],
            claim(request("x"), request("y")),
            [result("a", "x"), result("a", "y")],
            "more than one request",
        ),
        (
            [slice_of(device("a"), device("b"))],
            claim(first_of("r", request("x"), request("y"))),
            [result("a", "r/x"), result("b", "r/y")],
            "2 alternatives have devices",
        ),
        (
            [slice_of(device("a", attributes={NUMA: {"int": 0}}), device("b", attributes={NUMA: {"int": 1}}))],
            claim(request(count=2), constraints=[{"matchAttribute": NUMA}]),
            [result("a"), result("b")],
            "no value of resource.kubernetes.io/numaNode in common",
        ),
        (
            [slice_of(device("a", attributes={NUMA: {"int": 0}}), device("b", attributes={NUMA: {"int": 0}}))],
            claim(request(count=2), constraints=[{"distinctAttribute": NUMA}]),
            [result("a"), result("b")],
            "share a value",
        ),
        (
            [
                slice_of(*[device(name, consumesCounters=consumes("s", sms="2")) for name in "ab"], count=2),
                counters(s={"sms": "3"}),
            ],
            claim(request(count=2)),
            [result("a"), result("b")],
            "s/sms is overdrawn",
        ),
        (
            [slice_of(device("a", allowMultipleAllocations=True, capacity={"m": {"value": "10"}}))],
            claim(request(count=2)),
            [result("a", shareID=share, consumedCapacity={"m": "6"}) for share in "xy"],
            "capacity m",
        ),
    ],
)
def test_each_kind_of_wrong_is_named(
    slices: list[Document], wish: Document, results: list[Document], text: str
) -> None:
    assert text in wrong(slices, wish, *results)


def test_what_others_hold_counts() -> None:
    one = [slice_of(device("a"))]
    assert "more than one request" in wrong(one, claim(request()), result("a"), before=(held("a"),))
    assert wrong(one, claim(request(adminAccess=True)), result("a", adminAccess=True), before=(held("a"),)) == ""


def test_a_share_beside_a_whole_device_is_wrong() -> None:
    shared = slice_of(device("a", allowMultipleAllocations=True))
    assert "somebody has whole" in wrong([shared], claim(request()), result("a", shareID="s"), before=(held("a"),))


def test_a_further_share_of_a_device_in_use_draws_no_counters() -> None:
    shared = device("a", allowMultipleAllocations=True, consumesCounters=consumes("s", sms="2"))
    pool = [slice_of(shared, count=2), counters(s={"sms": "1"})]
    before = held("a", shareID="one")
    assert wrong(pool, claim(request()), result("a", shareID="two"), before=(before,)) == ""


def test_a_taint_that_is_tolerated_is_fine() -> None:
    tainted = slice_of(device("a", taints=[{"key": "bad", "value": "x", "effect": "NoExecute"}]))
    for toleration in ({"operator": "Exists"}, {"key": "bad", "value": "x"}):
        assert wrong([tainted], claim(request(tolerations=[toleration])), result("a")) == ""
    assert wrong([tainted], claim(request(tolerations=[{"key": "bad", "value": "y"}])), result("a")) != ""


def test_the_documents_are_left_as_they_were() -> None:
    slices, wish = [slice_of(device("a"))], claim(request())
    before = copy.deepcopy((slices, wish))
    wrong(slices, wish, result("a"))
    assert (slices, wish) == before
