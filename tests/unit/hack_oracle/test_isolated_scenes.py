"""Scenes that stand side by side in one cluster give the answers that they give alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driver.analysis.allocator import Outcome
from hack.oracle.compare import port
from hack.oracle.scenes import DRIVERS
from tests.scheduler.isolation import (
    CLAIM_OF_RESULTS,
    SCENE_LABEL,
    claims_of,
    held_by,
    isolated,
    pod,
    release_of,
    scene,
    storable,
)

VERSION = "0.37.2"
SEEDS = range(120)
PARTS = ("Nodes", "Slices", "Classes", "Allocated", "TaintRules")


def devices(outcome: Outcome) -> tuple[str, list[list[str]]]:
    """What is compared: the kind of answer and the names of the devices, which are never changed."""
    found = outcome.allocations or ()
    return outcome.kind, [[each["device"] for each in one["devices"].get("results", ())] for one in found]


@pytest.fixture(scope="module")
def merged() -> dict[str, Any]:
    """All scenes in one cluster."""
    every = [isolated(scene(VERSION, seed), f"s{seed}") for seed in SEEDS]
    return {part: [each for one in every for each in one.get(part) or ()] for part in PARTS}


def test_a_scene_among_others_gives_the_answers_that_it_gives_alone(merged: dict[str, Any]) -> None:
    fits = 0
    for seed in SEEDS:
        alone = scene(VERSION, seed)
        among = isolated(alone, f"s{seed}")
        before = [devices(outcome) for outcome in port(VERSION, alone)]
        whole = among | {part: merged[part] for part in PARTS} | {"Nodes": among["Nodes"]}
        assert [devices(outcome) for outcome in port(VERSION, whole)] == before, seed
        fits += sum(bool(found) for _, found in before)
    assert fits > 15


def test_no_two_scenes_have_a_name_in_common() -> None:
    one, other = (isolated(scene(VERSION, 4), tag) for tag in ("s4", "s5"))

    def names(made: dict[str, Any]) -> set[str]:
        found = {each["metadata"]["name"] for part in PARTS[:3] for each in made[part]}
        for each in made["Slices"]:
            found |= {each["spec"]["driver"], each["spec"]["pool"]["name"]}
        return found

    assert names(one) & names(other) == set()
    assert len(names(one)) == len(names(scene(VERSION, 4)))


def test_nothing_of_a_scene_is_for_nodes_of_others() -> None:
    seen = set()
    for seed in SEEDS:
        made = isolated(scene(VERSION, seed), "here")
        home = {"key": SCENE_LABEL, "operator": "In", "values": ["here"]}
        for each in made["Slices"]:
            for where in [each["spec"], *each["spec"].get("devices", ())]:
                assert "allNodes" not in where
                for term in where.get("nodeSelector", {}).get("nodeSelectorTerms", ()):
                    assert home in term["matchExpressions"]
                    seen.add("selector")
                if "nodeName" in where:
                    assert where["nodeName"].endswith("-here")
                    seen.add("name")
        for rule in made.get("TaintRules") or ():
            if selector := rule["spec"].get("deviceSelector"):
                assert ".here." in selector["driver"]
                seen.add("rule")
        assert not any(driver in json.dumps(made) for driver in DRIVERS)
    assert seen == {"selector", "name", "rule"}


def test_the_api_can_keep_what_a_scene_has() -> None:
    whole = next(found for seed in SEEDS if (found := isolated(scene(VERSION, seed), "x")).get("TaintRules"))
    kinds = [resource for resource, _ in storable(whole, release_of(VERSION))]
    assert kinds.count("nodes") == len(whole["Nodes"])
    assert kinds.count("devicetaintrules") == len(whole["TaintRules"])
    assert "devicetaintrules" not in [resource for resource, _ in storable(whole, 36)]
    assert [claim["metadata"]["name"] for claim in claims_of(whole, "x")] == [
        f"{claim['metadata']['name']}-x" for claim in whole["Claims"]
    ]


def test_what_is_held_is_a_claim_whose_request_its_results_name() -> None:
    whole = next(found for seed in SEEDS if (found := isolated(scene(VERSION, seed), "x"))["Allocated"])
    for claim in held_by(whole, "x"):
        (request,) = claim["spec"]["devices"]["requests"]
        results = claim["status"]["allocation"]["devices"]["results"]
        assert {result["request"] for result in results} == {request["name"]} == {CLAIM_OF_RESULTS}
        assert request["exactly"]["count"] == len(results)


def test_a_pod_names_its_claims_in_their_order() -> None:
    spec = pod("p", ["b", "a"], {SCENE_LABEL: "x"})["spec"]
    assert [each["resourceClaimName"] for each in spec["resourceClaims"]] == ["b", "a"]
    assert spec["nodeSelector"] == {SCENE_LABEL: "x"}
