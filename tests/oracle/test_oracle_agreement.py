"""The port beside the real allocator, on scenes that nobody has seen before; runs where the oracle is built."""

from __future__ import annotations

import os
import random

import pytest

from hack.oracle import build, compare, scenes, selectors, vectors

COUNT = int(os.environ.get("GPUDRA_ORACLE_SCENES", "200"))
FIRST = int(os.environ.get("GPUDRA_ORACLE_SEED", "1000000"))


@pytest.fixture(params=build.VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    chosen = str(request.param)
    if build.binary(chosen) is None:
        pytest.skip(f"the oracle is not built: python -m hack.oracle build --version {chosen}")
    return chosen


def test_port_and_oracle_agree_on_random_clusters(version: str) -> None:
    for first in range(FIRST, FIRST + COUNT, 200):
        batch = [scenes.scene(version, seed) for seed in range(first, min(first + 200, FIRST + COUNT))]
        differ = [each.scene["ID"] for each in compare.differences(version, batch)]
        assert not differ, (
            f"seeds {differ}: python -m hack.oracle fuzz --version {version} --first {differ[0]} --count 1"
        )


def test_port_and_oracle_agree_on_random_selectors(version: str) -> None:
    found = list(selectors.disagreements(version, range(FIRST, FIRST + COUNT)))
    assert not found, found[0]


def test_the_kept_answers_are_still_the_oracles(version: str) -> None:
    kept = vectors.read("fuzz", version)
    some = random.Random(version).sample(kept, 40)
    again = {each["seed"]: each["digest"] for each in compare.digests(version, [each["seed"] for each in some])}
    assert again == {each["seed"]: each["digest"] for each in some}


def test_the_kept_expressions_are_still_the_oracles(version: str) -> None:
    kept = [{key: value for key, value in each.items() if key != "cost"} for each in vectors.read("cel", version)]
    now = [{key: value for key, value in each.items() if key != "cost"} for each in selectors.record(version)]
    assert now == kept
