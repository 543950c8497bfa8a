"""The ports say what the autoscalers' own code said when it was asked (``python -m hack.autoscaler``)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.analysis import autoscaler
from driver.analysis.lint.model import results
from hack.autoscaler.build import CLUSTER_AUTOSCALER, KARPENTER
from hack.autoscaler.questions import MATCHED, questions, sample

JSON = dict[str, Any]
FILE = Path(__file__).parents[2] / "data" / "autoscaler" / "golden.json"
GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
CASES: list[JSON] = GOLDEN["cases"]


def utilization(question: JSON) -> Any:
    found: dict[str, dict[str, Any]] = {}
    for (driver, pool), value in autoscaler.utilization(question["slices"], question["claims"]).items():
        found.setdefault(driver, {})[pool] = pytest.approx(value, abs=1e-12)
    return found


def pools(question: JSON) -> Any:
    return {
        f"{driver} {name}": {
            "devices": list(pool.devices),
            "incomplete": pool.incomplete,
            "invalid": pool.invalid,
        }
        for (driver, name), pool in autoscaler.gather_pools(question["slices"], question["node"]).items()
    }


def bindings(question: JSON) -> Any:
    given = [(entry["attribute"], [tuple(device) for device in entry["devices"]]) for entry in question["bindings"]]
    return {
        attribute: {" ".join(device): sorted(map(" ".join, others)) for device, others in devices.items()}
        for attribute, devices in autoscaler.bound_devices(given).items()
    }


def claims(question: JSON) -> Any:
    return autoscaler.sanitized_claims(
        question["claims"],
        owner=question["owner"],
        pool_names=question["pools"],
        node_name=question["node"],
        new_node_name=question["newNode"],
        suffix=question["suffix"],
    )


PORTS: dict[str, Callable[[JSON], Any]] = {
    "utilization": utilization,
    "complete": lambda q: {driver: count for driver, count in autoscaler.complete_pools(q["slices"]).items() if count},
    "ready": lambda q: autoscaler.pools_ready(q["slices"], q["template"]),
    "slices": lambda q: autoscaler.sanitized_slices(q["slices"], node_name=q["newNode"], suffix=q["suffix"]),
    "claims": claims,
    "pools": pools,
    "bindings": bindings,
    "driver": lambda q: sorted({autoscaler.metric_driver(body["spec"]["driver"]) for body in q["slices"]}),
}


def shared(attribute: str, names: list[str]) -> bool:
    """Whether the devices of the sample share a value of the attribute."""
    own = attribute.removeprefix("gpu.nvidia.com/")
    devices = {device["name"]: device for body in sample() for device in body["spec"]["devices"]}
    values = [devices[name]["attributes"].get(own) for name in names]
    return None not in values and all(value == values[0] for value in values)


@pytest.mark.parametrize("attribute", MATCHED)
def test_a_shape_written_for_karpenter_lets_it_match_what_a_real_node_shares(attribute: str) -> None:
    case = next(
        case for case in CASES if case["question"]["op"] == "match" and case["question"]["attribute"] == attribute
    )
    tries = case["question"]["tries"]

    answers = dict(zip(map(tuple, tries), case["value"], strict=True))
    for names, fits in answers.items():
        if len(names) == 2:
            assert fits is shared(attribute, list(names)), names
    # A device that shares with none cannot be bound, which the emitter warns of; a known number needs no binding.
    alone = {names[0] for names, fits in answers.items() if len(names) == 1 and fits is not shared(attribute, [*names])}
    expected = {
        "gpu.nvidia.com/nvlinkGroup": {"gpu-7"},
        "gpu.nvidia.com/uuid": {f"gpu-{number}" for number in range(8)},
    }
    assert alone == expected.get(attribute, set())


def test_the_questions_are_those_that_are_asked_today() -> None:
    assert [case["question"] for case in CASES] == questions(), "run: python -m hack.autoscaler"


def told(op: str, value: Any) -> Any:
    """What is compared of an answer: of objects what the copying is about, as Go writes defaults and new owners."""
    if op == "slices":
        return [
            {
                "name": body["metadata"]["name"],
                "node": body["spec"].get("nodeName"),
                "pool": body["spec"]["pool"],
                "devices": [device["name"] for device in body["spec"].get("devices") or ()],
                "taints": [
                    (device["name"], taint["key"])
                    for device in body["spec"].get("devices") or ()
                    for taint in device.get("taints") or ()
                ],
            }
            for body in value
        ]
    if op == "claims":
        return [
            {
                "name": body["metadata"]["name"],
                "results": results(body),
                "nodes": ((body.get("status") or {}).get("allocation") or {}).get("nodeSelector"),
            }
            for body in value or ()
        ]
    if op == "pools":
        return {key: {**pool, "devices": sorted(pool["devices"])} for key, pool in value.items()}
    return value


@pytest.mark.parametrize("op", sorted(PORTS))
def test_the_port_gives_the_same_answers(op: str) -> None:
    asked = [case for case in CASES if case["question"]["op"] == op]
    assert asked
    for case in asked:
        if "error" in case:
            with pytest.raises(ValueError) as caught:
                PORTS[op](case["question"])
            assert _settled(str(caught.value)) == _settled(case["error"]), case["question"]
        else:
            assert told(op, PORTS[op](case["question"])) == told(op, case["value"]), case["question"]


def _settled(message: str) -> str:
    """Which of two incomplete pools is named depends on the order of a Go map."""
    return message.partition('"')[0] if message.startswith("pool ") else message


def test_the_answers_hold_good_news_and_bad_news_of_every_kind() -> None:
    errors = Counter(case["question"]["op"] for case in CASES if "error" in case)
    values = Counter(case["question"]["op"] for case in CASES if "error" not in case)

    assert set(errors) == {"utilization", "slices", "claims"}
    assert set(values) == {*PORTS, "match"}
    ready = [case["value"] for case in CASES if case["question"]["op"] == "ready"]
    assert set(ready) == {True, False}
    pools_seen = [pool for case in CASES if case["question"]["op"] == "pools" for pool in case["value"].values()]
    assert any(pool["invalid"] for pool in pools_seen)
    assert any(pool["incomplete"] for pool in pools_seen)


def test_the_answers_are_of_the_versions_that_the_ports_name() -> None:
    assert GOLDEN["versions"] == {"clusterAutoscaler": CLUSTER_AUTOSCALER, "karpenter": KARPENTER}
    assert CLUSTER_AUTOSCALER[:7] in autoscaler.CLUSTER_AUTOSCALER
    assert KARPENTER.removeprefix("v") in autoscaler.KARPENTER
