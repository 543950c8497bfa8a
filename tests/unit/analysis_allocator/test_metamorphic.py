"""What must not matter does not: the order of documents, other nodes, other names."""

from __future__ import annotations

import copy
import json
import random

from driver.analysis.allocator import Outcome
from hack.oracle import compare, scenes

VERSION = "0.37.2"
SEEDS = range(2000, 2120)
Scene = scenes.Document


def orderly(seed: int) -> Scene:
    """A scene for the variants that sort what they find."""
    scene = scenes.scene(VERSION, seed)
    scene["Features"] = sorted({*scene["Features"], "ConsumableCapacity", "PartitionableDevices"})
    return scene


def seen(outcomes: list[Outcome]) -> list[Scene]:
    return [compare.normal(compare.answer(each)) for each in outcomes]


def has_an_order(scene: Scene) -> bool:
    """Two slices of one name have none, and of slices that disagree on their number upstream believes the first."""
    names = [each["metadata"]["name"] for each in scene["Slices"]]
    counts: dict[tuple[str, str], set[int]] = {}
    for each in scene["Slices"]:
        pool = each["spec"]["pool"]
        counts.setdefault((each["spec"]["driver"], pool["name"]), set()).add(pool["resourceSliceCount"])
    return len(set(names)) == len(names) and all(len(each) == 1 for each in counts.values())


def test_the_order_of_slices_and_classes_does_not_matter() -> None:
    ordered = [scene for scene in map(orderly, SEEDS) if has_an_order(scene)]
    assert len(ordered) >= 60
    for scene in ordered:
        other = copy.deepcopy(scene)
        random.Random(scene["ID"]).shuffle(other["Slices"])
        other["Classes"].reverse()
        assert seen(compare.port(VERSION, other)) == seen(compare.port(VERSION, scene)), scene["ID"]


def test_what_another_node_has_does_not_matter() -> None:
    pool = {"name": "foreign", "generation": 1, "resourceSliceCount": 3}
    spec = {"driver": "a.example.com", "pool": pool, "nodeName": "node-z", "devices": [{"name": "x"}, {"name": "x"}]}
    for scene in map(orderly, SEEDS):
        other = copy.deepcopy(scene)
        other["Slices"].append({"metadata": {"name": "foreign"}, "spec": spec})
        assert seen(compare.port(VERSION, other)) == seen(compare.port(VERSION, scene)), scene["ID"]


def test_names_of_devices_are_only_names() -> None:
    for scene in map(orderly, SEEDS):
        other = json.loads(json.dumps(scene).replace('"dev-', '"gpu-'))
        back = [json.loads(json.dumps(each).replace('"gpu-', '"dev-')) for each in seen(compare.port(VERSION, other))]
        assert back == seen(compare.port(VERSION, scene)), scene["ID"]


def test_the_documents_are_left_as_they_were() -> None:
    for scene in map(orderly, SEEDS):
        before = copy.deepcopy(scene)
        compare.port(VERSION, scene)
        assert scene == before
