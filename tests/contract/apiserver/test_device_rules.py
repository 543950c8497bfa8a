"""The rules of a device in a slice: attributes, capacity, taints, consumed counters, binding conditions, policies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.apiserver.slice_rows import (
    C_IDENTIFIER,
    COUNTER,
    LABEL,
    NAME_PART,
    POLICY,
    SUBDOMAIN,
    TAINT,
    USE,
    D,
    Table,
    attribute,
    attributes,
    device,
    held_to,
    mistyped,
    policy,
    taken,
)

SINCE = {"*": (37, "the table holds the rules of the newest version")}

REFUSED: Table = {
    "at most 32 attributes and capacities": (
        device(
            attributes={f"a{i}": {"int": i} for i in range(30)}, capacity={f"c{i}": {"value": "1"} for i in range(3)}
        ),
        [("FieldValueInvalid", D, "33: the total number of attributes and capacities must not exceed 32")],
    ),
    "an attribute is called by a C identifier": (
        attribute("cuda-version"),
        [("FieldValueInvalid", f"{D}.attributes", C_IDENTIFIER)],
    ),
    "an attribute's name has no dots": (attribute("a.b"), [("FieldValueInvalid", f"{D}.attributes", C_IDENTIFIER)]),
    "an attribute's name has at most 32 bytes": (
        attribute("a" * 33),
        [("FieldValueTooLong", f"{D}.attributes", "may not be more than 32 bytes")],
    ),
    "an attribute's name is not empty": (attribute(""), [("FieldValueInvalid", f"{D}.attributes", C_IDENTIFIER)]),
    "an attribute's domain is not empty": (
        attribute("/a"),
        [("FieldValueInvalid", f"{D}.attributes", "the domain must not be empty")],
    ),
    "an attribute with a domain has a name": (
        attribute("example.com/"),
        [("FieldValueInvalid", f"{D}.attributes", "the name must not be empty")],
    ),
    "an attribute's domain is a DNS subdomain": (
        attribute("a_b/c"),
        [("FieldValueInvalid", f"{D}.attributes", SUBDOMAIN)],
    ),
    "an attribute's domain has at most 63 bytes": (
        attribute("a" * 64 + "/c"),
        [("FieldValueTooLong", f"{D}.attributes", "may not be more than 63 bytes")],
    ),
    "an attribute has a value": (
        attributes(a={}),
        [("FieldValueInvalid", f"{D}.attributes[a]", "must specify one of")],
    ),
    "an attribute has one value": (
        attributes(a={"int": 1, "bool": True}),
        [("FieldValueInvalid", f"{D}.attributes[a]", '"{int, bool}": must specify exactly one of')],
    ),
    "a text has at most 64 bytes": (
        attributes(a={"string": "ä" * 33}),
        [("FieldValueTooLong", f"{D}.attributes[a].string", "may not be more than 64 bytes")],
    ),
    "a version has no leading zeros": (
        attributes(a={"version": "570.124.06"}),
        [("FieldValueInvalid", f"{D}.attributes[a].version", "must be a string compatible with semver.org spec 2.0.0")],
    ),
    "a version has three parts": (
        attributes(a={"version": "12.8"}),
        [("FieldValueInvalid", f"{D}.attributes[a].version", "must be a string compatible with semver.org spec 2.0.0")],
    ),
    "a version has at most 64 bytes": (
        attributes(a={"version": "1.2.3-" + "a" * 60}),
        [("FieldValueTooLong", f"{D}.attributes[a].version", "may not be more than 64 bytes")],
    ),
    "lists need a feature gate and are no value without": (
        attributes(a={"strings": ["x"]}),
        [("FieldValueInvalid", f"{D}.attributes[a]", "must specify one of")],
    ),
    "a capacity is called by a C identifier": (
        device(capacity={"mem-ory": {"value": "1"}}),
        [("FieldValueInvalid", f"{D}.capacity", C_IDENTIFIER)],
    ),
    "a taint has an effect": (device(taints=[{"key": "a"}]), [("FieldValueRequired", f"{D}.taints[0].effect", "")]),
    "a taint's effect is a known one": (
        device(taints=[{"key": "a", "effect": "Evict"}]),
        [
            (
                "FieldValueNotSupported",
                f"{D}.taints[0].effect",
                '"Evict": supported values: "NoExecute", "NoSchedule", "None"',
            )
        ],
    ),
    "a taint has a key": (
        device(taints=[{"effect": "NoSchedule"}]),
        [
            ("FieldValueInvalid", f"{D}.taints[0].key", "name part must be non-empty"),
            ("FieldValueInvalid", f"{D}.taints[0].key", NAME_PART),
        ],
    ),
    "a taint's key is a label key": (
        device(taints=[{"key": "a b", "effect": "NoSchedule"}]),
        [("FieldValueInvalid", f"{D}.taints[0].key", NAME_PART)],
    ),
    "a taint's key has at most one slash": (
        device(taints=[{"key": "a/b/c", "effect": "NoSchedule"}]),
        [("FieldValueInvalid", f"{D}.taints[0].key", "with an optional DNS subdomain prefix and '/'")],
    ),
    "a taint's domain is not empty": (
        device(taints=[{"key": "/b", "effect": "NoSchedule"}]),
        [("FieldValueInvalid", f"{D}.taints[0].key", "prefix part must be non-empty")],
    ),
    "a taint's value is a label value": (
        device(taints=[{**TAINT, "value": "x y"}]),
        [("FieldValueInvalid", f"{D}.taints[0].value", "a valid label must be an empty string or consist of")],
    ),
    "a taint's value has at most 63 bytes": (
        device(taints=[{**TAINT, "value": "x" * 64}]),
        [("FieldValueInvalid", f"{D}.taints[0].value", "must be no more than 63 bytes")],
    ),
    "at most 16 taints": (
        device(taints=[{**TAINT, "key": f"a{index}"} for index in range(17)]),
        [("FieldValueTooMany", f"{D}.taints", "17: must have at most 16 items")],
    ),
    "a device consumes a counter set once": (
        device(consumesCounters=[USE, USE]),
        [
            (
                "FieldValueDuplicate",
                f"{D}.consumesCounters[1]",
                '{"counterSet":"cs","counters":{"a":{"value":"1"}}}',
            )
        ],
    ),
    "a device consumes at most two counter sets": (
        device(consumesCounters=[{**USE, "counterSet": f"s{index}"} for index in range(3)]),
        [("FieldValueTooMany", f"{D}.consumesCounters", "3: must have at most 2 items")],
    ),
    "a device consumes at most 32 counters of a set": (
        device(consumesCounters=[{**USE, "counters": {f"c{index}": {"value": "1"} for index in range(33)}}]),
        [("FieldValueTooMany", f"{D}.consumesCounters[0].counters", "33: must have at most 32 items")],
    ),
    "consumption names counters": (
        device(consumesCounters=[{**USE, "counters": {}}]),
        [("FieldValueRequired", f"{D}.consumesCounters[0].counters", "")],
    ),
    "consumption names a counter set": (
        device(consumesCounters=[{"counters": COUNTER}]),
        [("FieldValueRequired", f"{D}.consumesCounters[0].counterSet", "")],
    ),
    "consumption names a counter set by a DNS label": (
        device(consumesCounters=[{**USE, "counterSet": "C_s"}]),
        [("FieldValueInvalid", f"{D}.consumesCounters[0].counterSet", LABEL)],
    ),
    "consumption names counters by DNS labels": (
        device(consumesCounters=[{**USE, "counters": {"A": {"value": "1"}}}]),
        [("FieldValueInvalid", f"{D}.consumesCounters[0].counters", LABEL)],
    ),
    "at most four binding conditions": (
        device(bindingConditions=["a", "b", "c", "d", "e"], bindingFailureConditions=["f"]),
        [("FieldValueTooMany", f"{D}.bindingConditions", "5: must have at most 4 items")],
    ),
    "binding conditions need failure conditions": (
        device(bindingConditions=["a"]),
        [("FieldValueInvalid", f"{D}.bindingFailureConditions", "bindingFailureConditions are required")],
    ),
    "failure conditions need binding conditions": (
        device(bindingFailureConditions=["a"]),
        [("FieldValueInvalid", f"{D}.bindingConditions", "bindingConditions are required")],
    ),
    "binding conditions are unique and apart from failures": (
        device(bindingConditions=["a", "a"], bindingFailureConditions=["a", "b"]),
        [
            ("FieldValueDuplicate", f"{D}.bindingConditions[1]", '"a"'),
            ("FieldValueInvalid", f"{D}.bindingFailureConditions[0]", "must not overlap with bindingConditions"),
        ],
    ),
    "a binding condition is a label key": (
        device(bindingConditions=["a b"], bindingFailureConditions=["c"]),
        [("FieldValueInvalid", f"{D}.bindingConditions[0]", NAME_PART)],
    ),
    "a request policy needs allowMultipleAllocations": (
        device(capacity={"memory": {"value": "1", "requestPolicy": {"default": "1"}}}),
        [("FieldValueForbidden", POLICY, "allowMultipleAllocations must be true")],
    ),
    "a request policy has values or a range": (
        policy("10", default="1", validValues=["1"], validRange={"min": "1"}),
        [("FieldValueForbidden", POLICY, "exactly one policy can be specified")],
    ),
    "valid values need a default": (
        policy("10", validValues=["1"]),
        [("FieldValueRequired", f"{POLICY}.default", "required when validValues is defined")],
    ),
    "the default is one of the valid values": (
        policy("10", default="2", validValues=["1"]),
        [("FieldValueInvalid", f"{POLICY}.validValues", '"2": default value is not valid')],
    ),
    "valid values ascend": (
        policy("10", default="1", validValues=["2", "1"]),
        [("FieldValueInvalid", f"{POLICY}.validValues[1]", '"1": values must be sorted in ascending order')],
    ),
    "valid values are unique": (
        policy("10", default="1", validValues=["1", "1"]),
        [("FieldValueDuplicate", f"{POLICY}.validValues[1]", '"1"')],
    ),
    "valid values fit into the capacity": (
        policy("10Gi", default="1Gi", validValues=["1Gi", "11Gi"]),
        [("FieldValueInvalid", f"{POLICY}.validValues[1]", '"11Gi": option is larger than capacity value: 10Gi')],
    ),
    "at most ten valid values": (
        policy("100", default="1", validValues=[str(value) for value in range(1, 12)]),
        [
            ("FieldValueTooMany", f"{POLICY}.validValues", "11: must have at most 10 items"),
            ("FieldValueInvalid", f"{POLICY}.validValues", "default value is not valid"),
        ],
    ),
    "a range needs a default": (
        policy("10", validRange={"min": "1"}),
        [("FieldValueRequired", f"{POLICY}.default", "required when validRange is defined")],
    ),
    "a range needs a minimum": (
        policy("10", default="1", validRange={"max": "2"}),
        [("FieldValueRequired", f"{POLICY}.validRange.min", "required when validRange is defined")],
    ),
    "a range begins within the capacity": (
        policy("10", default="11", validRange={"min": "11"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.min", "min is larger than capacity value: 10")],
    ),
    "the default is not below the range": (
        policy("10", default="1", validRange={"min": "2"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.default", "default is less than min: 2")],
    ),
    "a range ends after it begins": (
        policy("10", default="2", validRange={"min": "2", "max": "1"}),
        [
            ("FieldValueInvalid", f"{POLICY}.validRange.max", '"2": min is larger than max: 1'),
            ("FieldValueInvalid", f"{POLICY}.validRange.default", '"2": default is more than max: 1'),
        ],
    ),
    "a range ends within the capacity": (
        policy("10", default="2", validRange={"min": "2", "max": "11"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.max", "max is larger than capacity value: 10")],
    ),
    "the default is not above the range": (
        policy("10", default="6", validRange={"min": "2", "max": "5"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.default", "default is more than max: 5")],
    ),
    "a step is positive": (
        policy("10", default="2", validRange={"min": "2", "step": "0"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.step", '"0": must be greater than zero')],
    ),
    "one step fits into the capacity": (
        policy("10", default="2", validRange={"min": "2", "step": "9"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.step", '"9": one step 11 is larger than capacity value: 10')],
    ),
    "the default is a number of steps from the minimum": (
        policy("10", default="3", validRange={"min": "2", "step": "2"}),
        [
            (
                "FieldValueInvalid",
                f"{POLICY}.validRange.step",
                '"3": value is not a multiple of a given step (2) from (2)',
            )
        ],
    ),
    "the maximum is a number of steps from the minimum": (
        policy("10", default="2", validRange={"min": "2", "max": "5", "step": "2"}),
        [
            (
                "FieldValueInvalid",
                f"{POLICY}.validRange.step",
                '"5": value is not a multiple of a given step (2) from (2)',
            )
        ],
    ),
    "a range with steps is not negative": (
        policy("10", default="-1", validRange={"min": "-1", "step": "1"}),
        [
            ("FieldValueInvalid", f"{POLICY}.validRange.default", "must be greater than or equal to 0"),
            ("FieldValueInvalid", f"{POLICY}.validRange.min", "must be greater than or equal to 0"),
        ],
    ),
    "a step fits into 64 bits": (
        policy("100E", default="1", validRange={"min": "1", "step": "20E"}),
        [("FieldValueInvalid", f"{POLICY}.validRange.step", '"20E": must not be larger than 9223372036854775807')],
    ),
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "32 attributes": device(attributes={f"a{index}": {"int": index} for index in range(32)}),
    "an attribute of another domain": attribute("example.org/a"),
    "an attribute with two slashes, which nobody checks": attribute("a/b/c"),
    "a text of 64 bytes": attributes(a={"string": "x" * 64}),
    "an empty text": attributes(a={"string": ""}),
    "false and zero": attributes(a={"bool": False}, b={"int": 0}),
    "a whole version": attributes(a={"version": "1.2.3-rc.1+build.5"}),
    "a capacity without a value": device(capacity={"memory": {}}),
    "a taint without consequences": device(taints=[{"key": "example.com/a", "effect": "None"}]),
    "the same taint twice": device(taints=[TAINT, TAINT]),
    "a taint with a time in fractions": device(taints=[{**TAINT, "timeAdded": "2026-01-01T00:00:00.7Z"}]),
    "two consumed counter sets": device(consumesCounters=[USE, {**USE, "counterSet": "other"}]),
    "binding conditions with failures": device(bindingConditions=["a"], bindingFailureConditions=["b"]),
    "a policy with a default alone": policy("10", default="1"),
    "a policy with fractions": policy("10", default="1500m", validRange={"min": "500m", "step": "500m"}),
}
NOT_THE_TYPES: dict[str, tuple[dict[str, Any], str]] = {
    "a capacity that is no quantity": (
        device(capacity={"memory": {"value": "80 GB"}}),
        "quantities must match the regular expression",
    ),
    "a time that is none": (device(taints=[{**TAINT, "timeAdded": "now"}]), 'parsing time "now"'),
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
