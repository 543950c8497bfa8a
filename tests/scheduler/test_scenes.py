"""The port of the allocator beside the real scheduler: in the same random clusters, the same devices for pods."""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Callable

import pytest

from driver.analysis.allocator import rules
from hack.oracle.build import VERSIONS
from tests.scheduler.isolation import release_of
from tests.scheduler.plane import Plane
from tests.scheduler.trials import Comparison, compare, trials, worth_trying

SCENES = int(os.environ.get("GPUDRA_SCHEDULER_SCENES", "300"))
FIRST = int(os.environ.get("GPUDRA_SCHEDULER_SEED", "0"))
BATCH = 40
"""Scenes that stand in the cluster at the same time."""


@pytest.mark.timeout(600)
def test_port_and_scheduler_agree_on_random_clusters(
    plane: Plane, record_property: Callable[[str, object], None]
) -> None:
    (version,) = [each for each in VERSIONS if release_of(each) == plane.release]
    chosen = rules(plane.release)
    found: dict[str, Comparison] = {}
    seen: set[str] = set()
    seeds = (seed for seed in itertools.count(FIRST) if worth_trying(version, seed))
    for number in itertools.count():
        if len(seen) >= SCENES:
            break
        batch = [trial for seed in itertools.islice(seeds, BATCH) for trial in trials(version, seed)]
        found |= compare(plane, chosen, batch, f"{number}")
        seen |= {trial.whole["ID"] for trial in batch if not trial.refusal}
    answers = Counter(each.answer for each in found.values() if each.difference is not None)
    skipped = sum(each.difference is None for each in found.values())
    record_property("answers", dict(answers))
    print(f"{len(seen)} scenes, {len(found)} pods: {dict(answers)}, {skipped} not compared")
    differ = {tag: each.difference for tag, each in found.items() if each.difference}
    assert not differ, json.dumps(differ, indent=1)
    assert skipped < len(found) / 10
    assert all(answers[kind] > len(found) / 50 for kind in ("Allocated", "Unschedulable", "SchedulerError")), answers
