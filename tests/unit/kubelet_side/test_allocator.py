"""First fit over published slices: what it gives, what it refuses, and what it does not pretend to know."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.api import JSON
from kubeletplugin.testing.allocator import (
    FINALIZER,
    AllocationError,
    Allocator,
    Candidate,
    UnsupportedClaimError,
    candidates,
    find_allocation,
    in_use,
)
from tests.unit.kubelet_side.fakes import FakeApi

DRIVER = "gpu.example.com"
CLASSES = {
    "gpu": {
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]},
    }
}


def device(name: str, **attributes: object) -> JSON:
    kinds = {str: "string", bool: "bool", int: "int"}
    return {"name": name, "attributes": {key: {kinds[type(value)]: value} for key, value in attributes.items()}}


def pool(*slices: Iterable[JSON], name: str = "node-1/gpu", node: str = "node-1", generation: int = 1) -> list[JSON]:
    return [
        {
            "metadata": {"name": f"{index:05x}-{name.replace('/', '-')}"},
            "spec": {
                "driver": DRIVER,
                "nodeName": node,
                "pool": {"name": name, "generation": generation, "resourceSliceCount": len(slices)},
                "devices": list(devices),
            },
        }
        for index, devices in enumerate(slices)
    ]


def claim(*requests: JSON, **devices: object) -> JSON:
    named = [
        {"name": f"r{number}", "exactly": {"deviceClassName": "gpu", **one}} for number, one in enumerate(requests)
    ]
    return {"metadata": {"name": "c"}, "spec": {"devices": {"requests": named, **devices}}}


def allocate(wanted: JSON, slices: list[JSON], taken: Iterable[str] = (), **options: object) -> list[tuple[str, str]]:
    settings: dict[str, object] = {
        "slices": slices,
        "classes": CLASSES,
        "in_use": {(DRIVER, "node-1/gpu", name) for name in taken},
        "node_name": "node-1",
    }
    allocation = find_allocation(wanted, **(settings | options))  # type: ignore[arg-type]
    return [(result["request"], result["device"]) for result in allocation["devices"]["results"]]


FOUR = pool([device(f"gpu-{number}", numa=number // 2, model="H100") for number in range(4)])


def test_the_first_free_devices_are_given_in_the_order_of_the_slices() -> None:
    assert allocate(claim({"count": 2}), FOUR) == [("r0", "gpu-0"), ("r0", "gpu-1")]
    assert allocate(claim({}), FOUR, taken=["gpu-0", "gpu-1"]) == [("r0", "gpu-2")]
    assert allocate(claim({}, {"count": 2}), FOUR) == [("r0", "gpu-0"), ("r1", "gpu-1"), ("r1", "gpu-2")]


def test_a_claim_that_asks_for_too_many_is_refused_with_the_counts() -> None:
    with pytest.raises(AllocationError, match=r"r0: 4 devices fit; 3 are in use"):
        allocate(claim({"count": 2}), FOUR, taken=["gpu-0", "gpu-1", "gpu-2"])


def test_all_means_every_matching_device_or_nothing() -> None:
    everything = claim({"allocationMode": "All"})
    assert len(allocate(everything, FOUR)) == 4
    with pytest.raises(AllocationError):
        allocate(everything, FOUR, taken=["gpu-3"])
    with pytest.raises(AllocationError):
        allocate(everything, [])


def test_match_attribute_goes_back_when_the_first_choice_leads_nowhere() -> None:
    constraint = {"matchAttribute": f"{DRIVER}/numa"}
    two = claim({"count": 2}, constraints=[constraint])
    assert allocate(two, FOUR, taken=["gpu-0"]) == [("r0", "gpu-2"), ("r0", "gpu-3")]
    over_requests = claim({}, {}, constraints=[constraint])
    assert allocate(over_requests, FOUR, taken=["gpu-1"]) == [("r0", "gpu-2"), ("r1", "gpu-3")]


def test_a_constraint_binds_only_the_requests_that_it_names() -> None:
    wanted = claim({}, {}, {}, constraints=[{"requests": ["r0", "r2"], "matchAttribute": f"{DRIVER}/numa"}])
    assert allocate(wanted, FOUR) == [("r0", "gpu-0"), ("r1", "gpu-2"), ("r2", "gpu-1")]


def test_a_device_without_the_attribute_or_with_another_type_does_not_match() -> None:
    slices = pool([device("a"), device("b", numa=0), device("c", numa="0"), device("d", numa=0)])
    wanted = claim({"count": 2}, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    assert allocate(wanted, slices) == [("r0", "b"), ("r0", "d")]


def test_distinct_attribute_spreads() -> None:
    wanted = claim({"count": 2}, constraints=[{"distinctAttribute": f"{DRIVER}/numa"}])
    assert allocate(wanted, FOUR) == [("r0", "gpu-0"), ("r0", "gpu-2")]


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(
    numas=st.lists(st.integers(0, 3), max_size=7),
    taken=st.sets(st.integers(0, 6)),
    count=st.integers(1, 4),
)
def test_a_group_is_found_exactly_when_there_is_one(numas: list[int], taken: set[int], count: int) -> None:
    slices = pool([device(f"d{number}", numa=numa) for number, numa in enumerate(numas)])
    wanted = claim({"count": count}, constraints=[{"matchAttribute": f"{DRIVER}/numa"}])
    free = [number for number in range(len(numas)) if number not in taken]
    groups = [group for group in combinations(free, count) if len({numas[number] for number in group}) == 1]
    if groups:
        assert allocate(wanted, slices, taken=[f"d{n}" for n in taken]) == [("r0", f"d{n}") for n in groups[0]]
    else:
        with pytest.raises(AllocationError):
            allocate(wanted, slices, taken=[f"d{n}" for n in taken])


def test_admin_access_takes_devices_that_are_in_use_and_takes_nothing_away() -> None:
    assert allocate(claim({"adminAccess": True}), FOUR, taken=["gpu-0"]) == [("r0", "gpu-0")]
    result = {"driver": DRIVER, "pool": "p", "device": "gpu-0"}
    claims = [
        {"status": {"allocation": {"devices": {"results": [result | {"adminAccess": True}]}}}},
        {"status": {"allocation": {"devices": {"results": [result | {"device": "gpu-1"}]}}}},
        {"status": {}},
        {},
    ]
    assert in_use(claims) == {(DRIVER, "p", "gpu-1")}


def test_only_the_newest_complete_state_of_a_pool_on_the_node_counts() -> None:
    old, new = pool([device("old")]), pool([device("new")], generation=2)
    assert [c.device["name"] for c in candidates(old + new, "node-1")] == ["new"]
    half = pool([device("a")], [device("b")])
    assert candidates(half[:1], "node-1") == []
    assert candidates(pool([device("a")], node="node-2"), "node-1") == []


def test_a_taint_keeps_claims_away_unless_it_is_tolerated() -> None:
    tainted = device("gpu-0") | {"taints": [{"key": "xid", "value": "79", "effect": "NoExecute"}]}
    noted = device("gpu-1") | {"taints": [{"key": "xid", "value": "13", "effect": "None"}]}
    slices = pool([tainted, noted])
    assert allocate(claim({}), slices) == [("r0", "gpu-1")]
    for toleration in (
        {"key": "xid", "operator": "Exists"},
        {"operator": "Exists"},
        {"key": "xid", "operator": "Equal", "value": "79", "effect": "NoExecute"},
    ):
        assert allocate(claim({"tolerations": [toleration]}), slices) == [("r0", "gpu-0")]
    for toleration in (
        {"key": "xid", "value": "80"},
        {"key": "lost", "operator": "Exists"},
        {"operator": "Exists", "effect": "NoSchedule"},
    ):
        assert allocate(claim({"tolerations": [toleration]}), slices) == [("r0", "gpu-1")]


def selecting(expression: str) -> JSON:
    return claim({"selectors": [{"cel": {"expression": expression}}]})


def test_equalities_joined_by_and_are_evaluated() -> None:
    slices = pool([device("a", model="A100", n=1, ok=True), device("b", model="H100", n=2, ok=False)])
    at = f'device.attributes["{DRIVER}"]'
    for expression in (f'{at}.model == "H100"', f"{at}.n == 2", f"{at}.ok == false", f"{at}.n == 2 && {at}.ok == false",
                       f"device.attributes['{DRIVER}'].model == 'H100'"):  # fmt: skip
        assert allocate(selecting(expression), slices) == [("r0", "b")], expression


def test_a_missing_attribute_ends_the_attempt_unless_another_term_is_false() -> None:
    slices = pool([device("a", model="A100")])
    missing = f'device.attributes["{DRIVER}"].nope == 1'
    with pytest.raises(AllocationError, match="CEL runtime error"):
        allocate(selecting(missing), slices)
    with pytest.raises(AllocationError, match="0 devices fit"):
        allocate(selecting(f'{missing} && device.driver == "other"'), slices)


@pytest.mark.parametrize(
    "expression",
    [
        f'device.attributes["{DRIVER}"].model.startsWith("H")',
        f'device.capacity["{DRIVER}"].memory.compareTo(quantity("40Gi")) >= 0',
        'device.driver == "a" || device.driver == "b"',
        f'device.attributes["{DRIVER}"].n == "1"',
    ],
)
def test_cel_that_it_does_not_evaluate_is_refused_not_guessed(expression: str) -> None:
    slices = pool([device("a", model="H100", n=1)])
    with pytest.raises(UnsupportedClaimError):
        allocate(selecting(expression), slices)
    seen: list[tuple[str, ...]] = []

    def own_filter(candidate: Candidate, expressions: list[str]) -> bool:
        seen.append(tuple(expressions))
        return True

    assert allocate(selecting(expression), slices, device_filter=own_filter) == [("r0", "a")]
    assert seen == [(f'device.driver == "{DRIVER}"', expression)], "the class's selectors come first"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"spec": {"devices": {"requests": [{"name": "r0", "firstAvailable": []}]}}}, "uses firstAvailable"),
        (claim({"capacity": {"requests": {"memory": "1Gi"}}}), "asks for capacity"),
    ],
)
def test_requests_that_it_does_not_know_are_refused(wanted: JSON, text: str) -> None:
    with pytest.raises(UnsupportedClaimError, match=text):
        allocate(wanted, FOUR)


@pytest.mark.parametrize("key", ["consumesCounters", "allowMultipleAllocations", "bindingConditions"])
def test_devices_that_it_does_not_know_are_refused(key: str) -> None:
    with pytest.raises(UnsupportedClaimError, match=f"has {key}"):
        allocate(claim({}), pool([device("gpu-0") | {key: True}]))


def test_an_unknown_class_is_named() -> None:
    with pytest.raises(AllocationError, match="device class nope does not exist"):
        allocate(claim({"deviceClassName": "nope"}), FOUR)


def test_configuration_of_the_class_comes_before_the_claims_own() -> None:
    opaque = {"driver": DRIVER, "parameters": {"x": 1}}
    classes = {"gpu": {"metadata": {"name": "gpu"}, "spec": {"config": [{"opaque": opaque}]}}}
    wanted = claim({}, {}, config=[{"requests": ["r1"], "opaque": opaque}])
    allocation = find_allocation(wanted, slices=FOUR, classes=classes, in_use=set(), node_name="node-1")
    assert allocation["devices"]["config"] == [
        {"source": "FromClass", "requests": ["r0", "r1"], "opaque": opaque},
        {"source": "FromClaim", "requests": ["r1"], "opaque": opaque},
    ]


def test_an_allocation_is_written_as_the_scheduler_writes_it() -> None:
    api = FakeApi()
    base = "/apis/resource.k8s.io/v1"
    path = f"{base}/namespaces/default/resourceclaims/c"
    api.objects[path] = claim({})
    for item in FOUR:
        api.objects[f"{base}/resourceslices/{item['metadata']['name']}"] = item
    api.objects[f"{base}/deviceclasses/gpu"] = CLASSES["gpu"]
    allocator = Allocator(api)  # type: ignore[arg-type]
    stored = allocator.allocate("default", "c", node_name="node-1", pod_name="pod", pod_uid="u1")
    assert stored["metadata"]["finalizers"] == [FINALIZER]
    assert stored["status"]["reservedFor"] == [{"resource": "pods", "name": "pod", "uid": "u1"}]
    assert stored["status"]["allocation"] == {
        "devices": {"results": [{"request": "r0", "driver": DRIVER, "pool": "node-1/gpu", "device": "gpu-0"}]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]},
            ]
        },
    }
    again = allocator.allocate("default", "c", node_name="node-1", pod_name="other", pod_uid="u2")
    assert again["status"]["allocation"] == stored["status"]["allocation"]
    assert [consumer["uid"] for consumer in again["status"]["reservedFor"]] == ["u1", "u2"]
    assert allocator.release("default", "c", pod_uid="u1")["status"]["allocation"]
    released = allocator.release("default", "c", pod_uid="u2")
    assert released["status"] == {}
    assert released["metadata"]["finalizers"] == []
