"""Slices are compared by what they mean."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.publisher.diff import differences, feature_gates, keep_time_added, without_positions

TAINT = {"key": "a", "effect": "NoSchedule"}
TIME = "2026-01-01T00:00:00Z"


def spec(**device: Any) -> dict[str, Any]:
    return {"driver": "d", "devices": [{"name": "gpu-0", **device}]}


SAME = {
    "quantities of one size": (spec(capacity={"m": {"value": "1024Mi"}}), spec(capacity={"m": {"value": "1Gi"}})),
    "a quantity as a number": (spec(capacity={"m": {"value": 80}}), spec(capacity={"m": {"value": "80"}})),
    "counters of one size": (
        spec(consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1000m"}}}]),
        spec(consumesCounters=[{"counterSet": "s", "counters": {"c": {"value": "1"}}}]),
    ),
    "shared counters of one size": (
        {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "2048Ki"}}}]},
        {"sharedCounters": [{"name": "s", "counters": {"c": {"value": "2Mi"}}}]},
    ),
    "a policy of one size": (
        spec(capacity={"m": {"requestPolicy": {"validRange": {"step": "1024Mi"}, "validValues": ["0.5"]}}}),
        spec(capacity={"m": {"requestPolicy": {"validRange": {"step": "1Gi"}, "validValues": ["500m"]}}}),
    ),
    "nothing and empty": (spec(attributes={}, taints=[], nodeName=None), spec()),
    "a taint with and without a time": (spec(taints=[TAINT]), spec(taints=[{**TAINT, "timeAdded": TIME}])),
    "a taint with an empty value": (spec(taints=[{**TAINT, "value": ""}]), spec(taints=[{**TAINT, "timeAdded": TIME}])),
    "times in one second": (
        spec(taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:00.7Z"}]),
        spec(taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:00Z"}]),
    ),
    "one moment in two zones": (
        spec(taints=[{**TAINT, "timeAdded": "2026-01-01T01:00:00+01:00"}]),
        spec(taints=[{**TAINT, "timeAdded": TIME}]),
    ),
    "tuple and list": ({"devices": ({"name": "a"},)}, {"devices": [{"name": "a"}]}),
}

DIFFERENT = {
    "quantities of two sizes": (
        spec(capacity={"m": {"value": "1G"}}),
        spec(capacity={"m": {"value": "1Gi"}}),
        "devices[*].capacity[*].value",
    ),
    "texts that look like quantities": (
        spec(attributes={"a": {"string": "1024Mi"}}),
        spec(attributes={"a": {"string": "1Gi"}}),
        "devices[*].attributes[*].string",
    ),
    "names that look like quantities": (
        {"devices": [{"name": "1000"}]},
        {"devices": [{"name": "1k"}]},
        "devices[*].name",
    ),
    "the order of devices": (
        {"devices": [{"name": "a"}, {"name": "b"}]},
        {"devices": [{"name": "b"}, {"name": "a"}]},
        "devices[*].name",
    ),
    "true and one": (
        spec(attributes={"a": {"bool": True}}),
        spec(attributes={"a": {"bool": 1}}),
        "devices[*].attributes[*].bool",
    ),
    "false and nothing": (
        spec(attributes={"a": {"bool": False}}),
        spec(attributes={"a": {}}),
        "devices[*].attributes[*].bool",
    ),
    "a field that only the server has": (spec(), spec(odd=1), "devices[*].odd"),
    "a field that only we have": (spec(odd={"deep": [1]}), spec(), "devices[*].odd"),
    "another effect": (spec(taints=[TAINT]), spec(taints=[{**TAINT, "effect": "None"}]), "devices[*].taints[*].effect"),
    "another time": (
        spec(taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:05Z"}]),
        spec(taints=[{**TAINT, "timeAdded": TIME}]),
        "devices[*].taints[*].timeAdded",
    ),
    "more devices": ({"devices": [{"name": "a"}]}, {"devices": [{"name": "a"}, {"name": "b"}]}, "devices"),
}


@pytest.mark.bug("B35")
@pytest.mark.parametrize("case", SAME)
def test_what_means_the_same_is_no_difference(case: str) -> None:
    wanted, stored = SAME[case]

    assert differences(wanted, stored) == []


@pytest.mark.parametrize("case", DIFFERENT)
def test_a_difference_is_found_where_it_is(case: str) -> None:
    wanted, stored, where = DIFFERENT[case]

    assert without_positions(differences(wanted, stored)) == (where,)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab1Gi", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "value", "taints", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(json_values)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert differences(value, value) == []


@given(json_values, json_values)
def test_a_difference_has_two_sides(left: Any, right: Any) -> None:
    assert bool(differences(left, right)) == bool(differences(right, left))


@pytest.mark.parametrize(
    ("path", "gates"),
    [
        (("devices", 3, "taints"), ("DRADeviceTaints",)),
        (("sharedCounters",), ("DRAPartitionableDevices",)),
        (("devices", 0, "consumesCounters"), ("DRAPartitionableDevices",)),
        (("devices", 0, "consumesCounters", 0, "compatibilityGroups"), ("DRADeviceCompatibilityGroups",)),
        (("devices", 0, "bindingConditions"), ("DRADeviceBindingConditions",)),
        (("devices", 0, "allowMultipleAllocations"), ("DRAConsumableCapacity",)),
        (("devices", 0, "capacity", "memory", "requestPolicy"), ("DRAConsumableCapacity",)),
        (("devices", 0, "attributes", "a", "strings"), ("DRAListTypeAttributes",)),
        (("skipNodeOperations",), ("DRAOptionalNodeOperations",)),
        (("devices", 0, "attributes", "taints", "string"), ()),
        (("devices", 0, "odd"), ()),
    ],
)
def test_a_dropped_field_is_traced_to_its_gate(path: tuple[str | int, ...], gates: tuple[str, ...]) -> None:
    assert feature_gates([path]) == gates


def test_the_time_of_a_taint_that_stays_is_kept() -> None:
    old = [{"name": "a", "taints": [{**TAINT, "timeAdded": TIME}]}]
    wanted = [{"name": "b", "taints": [TAINT]}, {"name": "a", "taints": [{"key": "new", "effect": "None"}, TAINT]}]

    kept = keep_time_added(wanted, old)

    assert kept[0] == wanted[0]
    assert kept[1]["taints"] == [{"key": "new", "effect": "None"}, {**TAINT, "timeAdded": TIME}]
    assert wanted[1]["taints"][1] == TAINT, "the driver's own document must not be changed"


def test_a_time_that_the_driver_gives_wins() -> None:
    mine = {**TAINT, "timeAdded": "2030-01-01T00:00:00Z"}
    old = [{"name": "a", "taints": [{**TAINT, "timeAdded": TIME}]}]

    assert keep_time_added([{"name": "a", "taints": [mine]}], old) == [{"name": "a", "taints": [mine]}]
