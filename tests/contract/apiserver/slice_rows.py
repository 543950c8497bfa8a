"""Slices by their parts, for the tables of rules; and how a refusal is held to its causes."""

from __future__ import annotations

import copy
from typing import Any

SUBDOMAIN = "a lowercase RFC 1123 subdomain must consist of"
LABEL = "a lowercase RFC 1123 label must consist of"
C_IDENTIFIER = "a valid C identifier must start with"
NAME_PART = "name part must consist of alphanumeric characters"
ONE_NODE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
COUNTER = {"a": {"value": "1"}}
SET = {"name": "cs", "counters": COUNTER}
USE = {"counterSet": "cs", "counters": COUNTER}
TERM = {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}
TAINT = {"key": "a", "effect": "NoSchedule"}


def device(**fields: Any) -> dict[str, Any]:
    return {"devices": [{"name": "gpu-0", **fields}]}


def attributes(**values: Any) -> dict[str, Any]:
    return device(attributes=values)


def attribute(name: str) -> dict[str, Any]:
    return device(attributes={name: {"int": 1}})


def counters(*sets: Any) -> dict[str, Any]:
    return {"devices": None, "sharedCounters": list(sets)}


def many(count: int, **first: Any) -> dict[str, Any]:
    devices: list[dict[str, Any]] = [{"name": f"gpu-{index}"} for index in range(count)]
    devices[0] |= first
    return {"devices": devices}


def pool(**fields: Any) -> dict[str, Any]:
    return {"pool": {"name": "pool", "generation": 1, "resourceSliceCount": 1, **fields}}


def policy(value: str, **fields: Any) -> dict[str, Any]:
    return device(allowMultipleAllocations=True, capacity={"memory": {"value": value, "requestPolicy": fields}})


def selector(*terms: Any) -> dict[str, Any]:
    return {"nodeName": None, "nodeSelector": {"nodeSelectorTerms": list(terms)}}


def per_device(**fields: Any) -> dict[str, Any]:
    return {"nodeName": None, "perDeviceNodeSelection": True, **device(**fields)}


D = "spec.devices[0]"
POLICY = f"{D}.capacity[memory].requestPolicy"


Cause = tuple[str, str, str]
"""The reason, the field, and what the message holds."""
Table = dict[str, tuple[dict[str, Any], list[Cause]]]


def held_to(api: Any, table: Table, rule: str) -> None:
    """The server refuses the slice of this row with exactly these causes."""
    spec, expected = table[rule]

    error = api.refused(api.slice(**copy.deepcopy(spec)))

    assert (error.status, error.reason) == (422, "Invalid")
    causes = error.details["causes"]
    assert sorted((cause["reason"], cause["field"]) for cause in causes) == sorted(
        (reason, field) for reason, field, _ in expected
    )
    for reason, field, text in expected:
        assert any(
            cause["reason"] == reason and cause["field"] == field and text in cause["message"] for cause in causes
        )
    assert all(f"{cause['field']}: {cause['message']}" in error.message for cause in causes)
    assert error.message.startswith(f'ResourceSlice.resource.k8s.io "{api.tag}-slice" is invalid: ')


def taken(api: Any, spec: dict[str, Any]) -> None:
    """The server takes the slice."""
    answer = api.client.create(
        "/apis/resource.k8s.io/v1/resourceslices", api.slice(**copy.deepcopy(spec)), query={"dryRun": "All"}
    )

    assert answer["kind"] == "ResourceSlice"
    assert answer["metadata"]["name"] == f"{api.tag}-slice"


def mistyped(api: Any, spec: dict[str, Any], text: str) -> None:
    """The server cannot even read the slice, and says why."""
    error = api.refused(api.slice(**copy.deepcopy(spec)))

    assert (error.status, error.reason) == (400, "BadRequest")
    assert error.message.startswith('ResourceSlice in version "v1" cannot be handled as a ResourceSlice: ')
    assert text in error.message
