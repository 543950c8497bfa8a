"""The autoscalers' views on any node: what must hold of them whatever is published."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.analysis.autoscaler import (
    NotSanitizableError,
    complete_pools,
    pools,
    pools_ready,
    sanitized_slices,
    template,
    utilization,
)
from driver.analysis.autoscaler.clusterautoscaler import is_template_candidate, sanitized_claims, single_node
from driver.analysis.shape import AttributeKinds, export
from tests.support import dradocs as dra
from tests.support.nodeslices import nodes

JSON = dict[str, Any]
FEW = settings(max_examples=30)
NAMES = {"node_name": "imaginary", "suffix": "x1"}


def claims_for(slices: list[JSON], chosen: list[int]) -> list[JSON]:
    """One claim on the node, which holds the devices of these numbers."""
    found = [
        (body["spec"]["driver"], body["spec"]["pool"]["name"], device["name"])
        for body in slices
        for device in body["spec"].get("devices") or ()
    ]
    taken = [found[number % len(found)] for number in chosen] if found else []
    made = dra.claim("c", results=[], owner="pod-uid")
    made["status"]["allocation"]["devices"]["results"] = [
        {"request": "r", "driver": driver, "pool": pool, "device": device} for driver, pool, device in taken
    ]
    return [made]


numbers = st.lists(st.integers(0, 30), max_size=6)


@FEW
@given(nodes())
def test_a_template_differs_from_its_sample_in_names_alone(slices: list[JSON]) -> None:
    before = copy.deepcopy(slices)

    made = sanitized_slices(slices, **NAMES)

    assert slices == before
    for sample, copied in zip(slices, made, strict=True):
        assert copied["spec"]["nodeName"] == "imaginary"
        assert copied["spec"]["pool"]["name"] == sample["spec"]["pool"]["name"] + "-x1"
        kept = {field: value for field, value in sample["spec"].items() if field not in ("nodeName", "pool")}
        assert kept == {field: value for field, value in copied["spec"].items() if field not in ("nodeName", "pool")}
    assert complete_pools(made) == complete_pools(slices)
    assert pools_ready(made, slices)
    assert pools_ready(slices, made)


@FEW
@given(nodes())
def test_a_template_has_its_samples_shape_taints_aside(slices: list[JSON]) -> None:
    kinds = AttributeKinds()

    made = export(sanitized_slices(slices, **NAMES), kinds)

    assert made.hash == export(slices, kinds).hash


@FEW
@given(nodes(), numbers)
def test_use_is_between_nothing_and_all_and_grows_with_what_is_held(slices: list[JSON], chosen: list[int]) -> None:
    used = utilization(slices, claims_for(slices, chosen))
    more = utilization(slices, claims_for(slices, [*chosen, 7, 11]))

    assert used.keys() == more.keys() == pools(slices).keys()
    for key, part in used.items():
        assert 0.0 <= part <= more[key]
    assert all(part == 0.0 for part in utilization(slices, []).values())


@FEW
@given(nodes(), numbers)
def test_the_copy_of_a_pods_claims_holds_the_same_devices_on_the_copy_of_the_node(
    slices: list[JSON], chosen: list[int]
) -> None:
    owned = claims_for(slices, chosen)

    made = template(slices, {"pod-uid": owned}, node_name="node-a", new_node_name="imaginary", suffix="x1")

    (claim,) = made.claims
    assert single_node(claim["status"]["allocation"]["nodeSelector"]) == "imaginary"
    one = utilization(slices, owned)
    other = utilization(made.slices, made.claims)
    assert list(one.values()) == list(other.values())


@FEW
@given(nodes(), st.integers(0, 20))
def test_a_node_that_lacks_a_slice_is_not_ready_and_its_use_cannot_be_told(slices: list[JSON], number: int) -> None:
    missing = slices[number % len(slices)]
    rest = [body for body in slices if body is not missing]
    same_pool = [
        body
        for body in rest
        if (body["spec"]["driver"], body["spec"]["pool"]["name"])
        == (missing["spec"]["driver"], missing["spec"]["pool"]["name"])
    ]

    assert not pools_ready(rest, slices)
    if same_pool:
        with pytest.raises(ValueError, match="found only"):
            utilization(rest, [])


def by_field(key: str, operator: str, *values: str) -> JSON:
    return {"nodeSelectorTerms": [{"matchFields": [{"key": key, "operator": operator, "values": list(values)}]}]}


def with_expression(selector: JSON) -> JSON:
    term = {**selector["nodeSelectorTerms"][0], "matchExpressions": [{"key": "zone", "operator": "Exists"}]}
    return {"nodeSelectorTerms": [term]}


@pytest.mark.parametrize(
    ("selector", "name"),
    [
        (None, ""),
        ({"nodeSelectorTerms": []}, ""),
        ({"nodeSelectorTerms": [{"matchFields": []}]}, ""),
        (by_field("metadata.name", "In", "a"), "a"),
        (by_field("metadata.name", "In", "a", "b"), ""),
        (by_field("metadata.name", "In"), ""),
        (by_field("metadata.name", "NotIn", "a"), ""),
        (by_field("metadata.uid", "In", "a"), ""),
        (with_expression(by_field("metadata.name", "In", "a")), ""),
        ({"nodeSelectorTerms": by_field("metadata.name", "In", "a")["nodeSelectorTerms"] * 2}, ""),
    ],
)
def test_a_selector_names_one_node_only_as_the_scheduler_writes_it(selector: JSON | None, name: str) -> None:
    assert single_node(selector) == name


@pytest.mark.parametrize(("field", "value"), [("allNodes", True), ("nodeSelector", {"nodeSelectorTerms": []})])
def test_devices_that_are_not_the_nodes_end_its_template(field: str, value: Any) -> None:
    body = dra.resource_slice(dra.device("d"), node=None, pool="wide", **{field: value})

    with pytest.raises(NotSanitizableError, match="because it isn't node-local"):
        sanitized_slices([body], **NAMES)


def test_a_claim_that_the_pod_does_not_own_stays_as_it_is() -> None:
    shared = dra.claim("c", results=[("d", "elsewhere")], node="node-b")
    names = {"node_name": "node-a", "new_node_name": "imaginary", "suffix": "x1"}

    assert sanitized_claims([shared], owner="pod-uid", pool_names=["p"], **names) == (shared,)


def test_what_waits_for_its_devices_comes_along_unallocated() -> None:
    waiting = dra.claim("c", owner="pod-uid")
    names = {"node_name": "node-a", "new_node_name": "imaginary", "suffix": "x1"}

    (made,) = sanitized_claims([waiting], owner="pod-uid", pool_names=[], **names)

    assert made["metadata"]["name"] == "c-x1"
    assert not (made.get("status") or {}).get("allocation")


def test_a_node_that_is_being_deleted_is_no_sample() -> None:
    going = dra.node("node-a")
    going["spec"]["taints"] = [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]

    assert is_template_candidate(dra.node("node-a"))
    assert not is_template_candidate(going)
