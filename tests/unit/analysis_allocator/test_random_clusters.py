"""Random clusters: upstream's answers to the first seeds are kept, and the checker agrees with every allocation."""

from __future__ import annotations

import pytest

from driver.analysis.allocator import rules
from driver.analysis.allocator.verify import problems
from hack.oracle import build, compare, scenes, vectors
from hack.oracle.build import Release

KNOWN_FAULTS = {"0.34.4": {818}}
"""1.34 loses the number of an alternative of ``firstAvailable`` with ``All`` and mixes two; so does the port."""


@pytest.mark.parametrize("version", build.VERSIONS)
def test_the_port_answers_the_first_kept_seeds_as_upstream_does(version: str) -> None:
    kept = vectors.read("fuzz", version)
    assert len(kept) >= 500
    assert sum(each["fits"] for each in kept) >= 50
    for entry in kept[:200]:
        scene = scenes.scene(version, entry["seed"])
        answers = [compare.answer(each) for each in compare.port(version, scene)]
        assert compare.digest(answers) == entry["digest"], f"seed {entry['seed']}"


@pytest.mark.parametrize("version", build.VERSIONS)
def test_every_allocation_passes_the_independent_checker(version: str) -> None:
    checked = 0
    for seed in range(200):
        scene = scenes.scene(version, seed)
        if scene.get("TaintRules") or seed in KNOWN_FAULTS.get(version, ()):
            continue
        chosen = rules(Release(version).minor, compare.features(scene["Features"]))
        for node, outcome in zip(scene["Nodes"], compare.port(version, scene), strict=True):
            if outcome.allocations is None:
                continue
            checked += 1
            wrong = problems(
                chosen,
                node,
                scene["Slices"],
                scene["Classes"],
                scene["Allocated"],
                scene["Claims"],
                outcome.allocations,
            )
            assert not wrong, f"seed {seed}: {wrong}"
    assert checked >= 15


def test_a_seed_gives_one_scene_and_another_seed_another() -> None:
    assert scenes.scene("0.37.2", 5) == scenes.scene("0.37.2", 5)
    assert scenes.scene("0.37.2", 5) != scenes.scene("0.37.2", 6)
