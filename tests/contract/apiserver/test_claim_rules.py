"""Rules of claims and of their status that stand-ins of the scheduler and drivers can break."""

from __future__ import annotations

from typing import Any

import pytest

from kubeletplugin.client import ApiError
from tests.contract.apiserver.api_calls import CLAIMS

SINCE = {"*": (37, "the table holds the rules of the newest version")}
R = "spec.devices.requests[0]"


def requests(*entries: Any) -> dict[str, Any]:
    return {"requests": list(entries)}


def exactly(**fields: Any) -> dict[str, Any]:
    return requests({"name": "gpu", "exactly": {"deviceClassName": "gpu.example.com", **fields}})


def with_config(**entry: Any) -> dict[str, Any]:
    return exactly() | {"config": [entry]}


def opaque(**fields: Any) -> dict[str, Any]:
    return {"opaque": {"driver": "gpu.example.com", "parameters": {"kind": "X"}, **fields}}


SUB = {"name": "big", "deviceClassName": "gpu.example.com"}

REFUSED: dict[str, tuple[dict[str, Any], list[tuple[str, str]]]] = {
    "a request has a name": (
        requests({"exactly": {"deviceClassName": "c"}}),
        [(f"{R}.name", "FieldValueInvalid")],
    ),
    "a request's name is a DNS label": (
        requests({"name": "G_1", "exactly": {"deviceClassName": "c"}}),
        [(f"{R}.name", "FieldValueInvalid")],
    ),
    "a request has a class": (
        requests({"name": "a", "exactly": {}}),
        [(f"{R}.exactly.deviceClassName", "FieldValueRequired")],
    ),
    "a class is called by a DNS subdomain": (
        exactly(deviceClassName="C_1"),
        [(f"{R}.exactly.deviceClassName", "FieldValueInvalid")],
    ),
    "a count is positive": (exactly(count=-1), [(f"{R}.exactly.count", "FieldValueInvalid")]),
    "all devices are not counted": (
        exactly(allocationMode="All", count=2),
        [(f"{R}.exactly.count", "FieldValueInvalid")],
    ),
    "a mode is a known one": (
        exactly(allocationMode="Some"),
        [(f"{R}.exactly.allocationMode", "FieldValueNotSupported")],
    ),
    "a subrequest has a name": (
        requests({"name": "gpu", "firstAvailable": [{"deviceClassName": "c"}]}),
        [(f"{R}.firstAvailable[0].name", "FieldValueInvalid")],
    ),
    "a subrequest has a class": (
        requests({"name": "gpu", "firstAvailable": [{"name": "a"}]}),
        [(f"{R}.firstAvailable[0].deviceClassName", "FieldValueRequired")],
    ),
    "at most eight subrequests": (
        requests({"name": "gpu", "firstAvailable": [{**SUB, "name": f"s{index}"} for index in range(9)]}),
        [(f"{R}.firstAvailable", "FieldValueTooMany")],
    ),
    "at most 32 requests": (
        requests(*({"name": f"r{index}", "exactly": {"deviceClassName": "c"}} for index in range(33))),
        [("spec.devices.requests", "FieldValueTooMany")],
    ),
    "a configuration has parameters": (
        with_config(opaque={"driver": "gpu.example.com"}),
        [("spec.devices.config[0].opaque.parameters", "FieldValueRequired")],
    ),
    "parameters are an object": (
        with_config(**opaque(parameters=[1])),
        [("spec.devices.config[0].opaque.parameters", "FieldValueInvalid")],
    ),
    "parameters have at most 10 KiB": (
        with_config(**opaque(parameters={"a": "x" * 10240})),
        [("spec.devices.config[0].opaque.parameters", "FieldValueTooLong")],
    ),
    "a configuration names a driver": (
        with_config(**opaque(driver="")),
        [("spec.devices.config[0].opaque.driver", "FieldValueRequired")],
    ),
    "a configuration is about requests of the claim": (
        with_config(requests=["other"], **opaque()),
        [("spec.devices.config[0].requests[0]", "FieldValueInvalid")],
    ),
}

ACCEPTED: dict[str, dict[str, Any]] = {
    "a claim without requests": {},
    "all devices": exactly(allocationMode="All"),
    "several devices": exactly(count=4),
    "alternatives": requests({"name": "gpu", "firstAvailable": [SUB, {**SUB, "name": "small"}]}),
    "a configuration for all": with_config(**opaque()),
    "a configuration for one": with_config(requests=["gpu"], **opaque()),
    "a configuration for an alternative": requests({"name": "gpu", "firstAvailable": [SUB]})
    | {"config": [{"requests": ["gpu/big"], **opaque()}]},
    "a constraint": exactly(count=2)
    | {"constraints": [{"requests": ["gpu"], "matchAttribute": "resource.kubernetes.io/numaNode"}]},
}


@pytest.mark.parametrize("rule", REFUSED)
def test_a_claim_that_breaks_a_rule_is_refused(api: Any, rule: str) -> None:
    devices, expected = REFUSED[rule]

    with pytest.raises(ApiError) as caught:
        api.client.create(
            CLAIMS, {"metadata": {"name": api.tag}, "spec": {"devices": devices}}, query={"dryRun": "All"}
        )

    error = caught.value
    assert (error.status, error.reason) == (422, "Invalid")
    assert sorted((cause["field"], cause["reason"]) for cause in error.details["causes"]) == sorted(expected)
    assert error.message.startswith(f'ResourceClaim.resource.k8s.io "{api.tag}" is invalid: ')


@pytest.mark.parametrize("case", ACCEPTED)
def test_a_claim_that_keeps_the_rules_is_taken(api: Any, case: str) -> None:
    claim = {"metadata": {"name": api.tag}, "spec": {"devices": ACCEPTED[case]}}

    assert api.client.create(CLAIMS, claim, query={"dryRun": "All"})["kind"] == "ResourceClaim"


def result(api: Any, **fields: Any) -> dict[str, Any]:
    return {"request": "gpu", "driver": api.driver, "pool": f"{api.node}/gpus", "device": "gpu-0", **fields}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"driver": ""}, [("driver", "FieldValueRequired")]),
        ({"pool": ""}, [("pool", "FieldValueRequired")]),
        ({"device": "GPU_0"}, [("device", "FieldValueInvalid")]),
        ({"request": "gpu/none"}, [("request", "FieldValueInvalid")]),
        ({"shareID": "not-a-uid"}, [("shareID", "FieldValueInvalid")]),
    ],
)
def test_a_result_that_breaks_a_rule_is_refused(
    api: Any, fields: dict[str, Any], expected: list[tuple[str, str]]
) -> None:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    claim["status"] = {"allocation": {"devices": {"results": [result(api, **fields)]}}}
    try:
        with pytest.raises(ApiError) as caught:
            api.client.update(f"{where}/status", claim)
    finally:
        api.client.delete(where)

    causes = sorted((cause["field"].rpartition(".")[2], cause["reason"]) for cause in caught.value.details["causes"])
    assert causes == expected


@pytest.mark.parametrize(
    ("config", "field", "reason"),
    [
        ({}, "source", "FieldValueRequired"),
        ({"source": "FromPod"}, "source", "FieldValueNotSupported"),
    ],
)
def test_an_allocated_configuration_says_where_it_is_from(
    api: Any, config: dict[str, Any], field: str, reason: str
) -> None:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    devices = {"results": [result(api)], "config": [{**opaque(), **config}]}
    claim["status"] = {"allocation": {"devices": devices}}
    try:
        with pytest.raises(ApiError) as caught:
            api.client.update(f"{where}/status", claim)
    finally:
        api.client.delete(where)

    causes = [(cause["field"], cause["reason"]) for cause in caught.value.details["causes"]]
    assert causes == [(f"status.allocation.devices.config[0].{field}", reason)]
