"""The rules of a slice: driver, pool, nodes, counter sets, and how many devices of which names."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.apiserver.slice_rows import (
    COUNTER,
    LABEL,
    ONE_NODE,
    SET,
    SUBDOMAIN,
    TAINT,
    TERM,
    USE,
    D,
    Table,
    attributes,
    counters,
    device,
    held_to,
    many,
    mistyped,
    per_device,
    pool,
    selector,
    taken,
)

SINCE = {"*": (37, "the table holds the rules of the newest version")}

REFUSED: Table = {
    "a driver is required": ({"driver": None}, [("FieldValueRequired", "spec.driver", "")]),
    "a driver name has at most 63 bytes": (
        {"driver": "a" * 64},
        [("FieldValueTooLong", "spec.driver", "may not be more than 63 bytes")],
    ),
    "a driver name is a DNS subdomain": ({"driver": "gpu_x"}, [("FieldValueInvalid", "spec.driver", SUBDOMAIN)]),
    "a pool is required": (
        {"pool": None},
        [
            ("FieldValueRequired", "spec.pool.name", ""),
            ("FieldValueInvalid", "spec.pool.resourceSliceCount", "0: must be greater than zero"),
        ],
    ),
    "a pool name is required": (pool(name=""), [("FieldValueRequired", "spec.pool.name", "")]),
    "a pool name is of subdomains": (pool(name="Pool_A"), [("FieldValueInvalid", "spec.pool.name", SUBDOMAIN)]),
    "no part of a pool name is empty": (pool(name="a//b"), [("FieldValueInvalid", "spec.pool.name", SUBDOMAIN)]),
    "a pool name has at most 253 bytes": (
        pool(name="/".join(["a" * 63] * 4) + "/a"),
        [("FieldValueTooLong", "spec.pool.name", "may not be more than 253 bytes")],
    ),
    "a pool has slices": (
        pool(resourceSliceCount=0),
        [("FieldValueInvalid", "spec.pool.resourceSliceCount", "must be greater than zero")],
    ),
    "a pool's generation is not negative": (
        pool(generation=-1),
        [("FieldValueInvalid", "spec.pool.generation", "-1: must be greater than or equal to zero")],
    ),
    "a slice belongs to a node": ({"nodeName": None}, [("FieldValueRequired", "spec", ONE_NODE)]),
    "a node name is not empty": (
        {"nodeName": ""},
        [
            ("FieldValueInvalid", "spec.nodeName", "must be either unset or set to a non-empty string"),
            ("FieldValueRequired", "spec", ONE_NODE),
        ],
    ),
    "a node name is a DNS subdomain": ({"nodeName": "Node_A"}, [("FieldValueInvalid", "spec.nodeName", SUBDOMAIN)]),
    "a slice names its nodes in one way": (
        {"allNodes": True},
        [("FieldValueInvalid", "spec", "{`nodeName`, `allNodes`}")],
    ),
    "allNodes is never false": (
        {"allNodes": False},
        [("FieldValueInvalid", "spec.allNodes", "false: must be either unset or set to true")],
    ),
    "perDeviceNodeSelection is never false": (
        {"perDeviceNodeSelection": False},
        [("FieldValueInvalid", "spec.perDeviceNodeSelection", "false: must be either unset or set to true")],
    ),
    "a node selector has a term": (
        selector(),
        [
            ("FieldValueRequired", "spec.nodeSelector.nodeSelectorTerms", "must have at least one node selector term"),
            ("FieldValueInvalid", "spec.nodeSelector.nodeSelectorTerms", "must have exactly one node selector term"),
        ],
    ),
    "a node selector has only one term": (
        selector(TERM, TERM),
        [("FieldValueInvalid", "spec.nodeSelector.nodeSelectorTerms", "must have exactly one node selector term")],
    ),
    "with perDeviceNodeSelection each device names its nodes": (
        per_device(),
        [("FieldValueRequired", D, "exactly one")],
    ),
    "with perDeviceNodeSelection a device names its nodes once": (
        per_device(nodeName="a", allNodes=True),
        [("FieldValueInvalid", D, "{`nodeName`, `allNodes`}")],
    ),
    "with perDeviceNodeSelection a node name is not empty": (
        per_device(nodeName=""),
        [("FieldValueInvalid", f"{D}.nodeName", "must not be empty"), ("FieldValueRequired", D, "exactly one of")],
    ),
    "without perDeviceNodeSelection no device names nodes": (
        device(nodeName="a"),
        [("FieldValueInvalid", D, "can only be set if `perDeviceNodeSelection` is set to true")],
    ),
    "counters and devices exclude each other": (
        {"sharedCounters": [SET]},
        [("FieldValueInvalid", "spec", "only one of `sharedCounters` or `devices` is allowed")],
    ),
    "counters exclude an empty list of devices too": (
        {"sharedCounters": [SET], "devices": []},
        [("FieldValueInvalid", "spec", "only one of `sharedCounters` or `devices` is allowed")],
    ),
    "at most eight counter sets": (
        counters(*({**SET, "name": f"s{index}"} for index in range(9))),
        [("FieldValueTooMany", "spec.sharedCounters", "9: must have at most 8 items")],
    ),
    "names of counter sets are unique": (
        counters(SET, SET),
        [("FieldValueDuplicate", "spec.sharedCounters[1]", '{"name":"cs","counters":{"a":{"value":"1"}}}')],
    ),
    "at most 32 counters in a set": (
        counters({"name": "cs", "counters": {f"c{index}": {"value": "1"} for index in range(33)}}),
        [("FieldValueTooMany", "spec.sharedCounters[0].counters", "33: must have at most 32 items")],
    ),
    "a counter set has counters": (
        counters({"name": "cs", "counters": {}}),
        [("FieldValueRequired", "spec.sharedCounters[0].counters", "")],
    ),
    "a counter set has a name": (
        counters({"counters": COUNTER}),
        [("FieldValueRequired", "spec.sharedCounters[0].name", "")],
    ),
    "the name of a counter set is a DNS label": (
        counters({"name": "C_s", "counters": COUNTER}),
        [("FieldValueInvalid", "spec.sharedCounters[0].name", LABEL)],
    ),
    "the name of a counter is a DNS label": (
        counters({"name": "cs", "counters": {"a_B": {"value": "1"}}}),
        [("FieldValueInvalid", "spec.sharedCounters[0].counters", LABEL)],
    ),
    "at most 128 devices": (many(129), [("FieldValueTooMany", "spec.devices", "129: must have at most 128 items")]),
    "at most 64 devices once one is tainted": (
        many(65, taints=[TAINT]),
        [("FieldValueTooMany", "spec.devices", "65: must have at most 64 items")],
    ),
    "at most 64 devices once one consumes counters": (
        many(65, consumesCounters=[USE]),
        [("FieldValueTooMany", "spec.devices", "65: must have at most 64 items")],
    ),
    "names of devices are unique": (
        {"devices": [{"name": "a"}, {"name": "a"}]},
        [("FieldValueDuplicate", "spec.devices[1]", '"a"')],
    ),
    "a device has a name": ({"devices": [{}]}, [("FieldValueInvalid", f"{D}.name", LABEL)]),
    "the name of a device is a DNS label": (
        {"devices": [{"name": "g_0"}]},
        [("FieldValueInvalid", f"{D}.name", LABEL)],
    ),
    "the name of a device has no dots": (
        {"devices": [{"name": "g.0"}]},
        [("FieldValueInvalid", f"{D}.name", "must not contain dots")],
    ),
    "the name of a device has at most 63 characters": (
        {"devices": [{"name": "a" * 64}]},
        [("FieldValueInvalid", f"{D}.name", "must be no more than 63 characters")],
    ),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "a slice without devices": {"devices": None},
    "a slice with null for devices": {"devices": []},
    "a driver in upper case": {"driver": "GPU.Example.com"},
    "a pool name of several parts": pool(name="a/b.c/d"),
    "a pool name of 253 bytes": pool(name="/".join(["a" * 63] * 4)[:253]),
    "a node selector of one term": selector(TERM),
    "all nodes": {"nodeName": None, "allNodes": True},
    "devices that name their nodes": per_device(allNodes=True),
    "eight counter sets": counters(*({**SET, "name": f"s{index}"} for index in range(8))),
    "a counter without a value": counters({"name": "cs", "counters": {"a": {}}}),
    "a counter as a number": counters({"name": "cs", "counters": {"a": {"value": 7}}}),
    "128 plain devices": many(128),
    "64 devices of which one is tainted": many(64, taints=[TAINT]),
    "fields that nobody knows": {"nonsense": 1, **device(odd={"a": 1})},
}
NOT_THE_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "a number as text": (attributes(a={"int": "5"}), "spec.devices.attributes.int of type int64"),
    "a fraction for a number": (attributes(a={"int": 5.5}), "spec.devices.attributes.int of type int64"),
    "a number beyond 64 bits": (attributes(a={"int": 2**63}), "spec.devices.attributes.int of type int64"),
    "a map for a list": ({"devices": {"a": 1}}, "ResourceSliceSpec.spec.devices of type []v1.Device"),
    "a counter that is no quantity": (
        counters({"name": "cs", "counters": {"a": {"value": "1x"}}}),
        "quantities must match the regular expression",
    ),
}


@pytest.mark.parametrize("rule", REFUSED)
def test_what_breaks_a_rule_is_refused_with_its_causes(api: Any, rule: str) -> None:
    held_to(api, REFUSED, rule)


@pytest.mark.parametrize("case", ACCEPTED)
def test_what_keeps_the_rules_is_taken(api: Any, case: str) -> None:
    taken(api, ACCEPTED[case])


@pytest.mark.parametrize("case", NOT_THE_TYPES)
def test_what_has_the_wrong_types_is_a_bad_request(api: Any, case: str) -> None:
    mistyped(api, *NOT_THE_TYPES[case])
