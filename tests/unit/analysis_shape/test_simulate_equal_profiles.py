"""On the shape of every mock machine claims are decided as on the machine itself, whole and divided."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from driver.analysis.allocator import Allocator, rules
from driver.analysis.allocator.verify import problems
from driver.analysis.shape import export, instantiate
from tests.support import dradocs as dra
from tests.support.shapeclaims import CLASSES, KINDS, PROFILES, corpus, machine

JSON = dict[str, Any]
Decision = tuple[bool, str, tuple[tuple[str, str], ...]]


@functools.cache
def imaginary(profile: str, mig: str) -> tuple[JSON, ...]:
    return instantiate(export(machine(profile, mig), KINDS, strict=True), "imaginary", node_uid="uid")


def decisions(slices: tuple[JSON, ...], node: str, release: int) -> dict[str, Decision]:
    """What each claim of the corpus is given on an empty node."""
    found = {}
    for title, wanted in corpus().items():
        allocator = Allocator(rules(release), CLASSES, slices)
        outcome = allocator.allocate(dra.node(node), [wanted])
        assert outcome.unsupported == ()
        devices = tuple(
            (entry["request"], entry["device"])
            for document in outcome.allocations or ()
            for entry in document["devices"]["results"]
        )
        found[title] = outcome.fits, outcome.kind, devices
    return found


MACHINES = [(profile, "static") for profile in PROFILES] + [(name, "dynamic") for name in ("dgx-a100", "h200")]


@pytest.mark.parametrize(("profile", "mig"), MACHINES)
def test_every_claim_is_decided_on_the_shape_as_on_the_machine(profile: str, mig: str) -> None:
    real = decisions(machine(profile, mig), "node-a", 37)

    assert decisions(imaginary(profile, mig), "imaginary", 37) == real


@pytest.mark.parametrize("release", [34, 36])
@pytest.mark.parametrize("profile", ["dgx-h100", "gb200"])
def test_so_it_is_in_older_releases(profile: str, release: int) -> None:
    real = decisions(machine(profile, "static"), "node-a", release)

    assert decisions(imaginary(profile, "static"), "imaginary", release) == real


def test_the_corpus_tells_machines_apart() -> None:
    answers = [decisions(machine(profile, "static"), "node-a", 37) for profile in PROFILES]
    fitting = [frozenset(title for title, (fits, _, _) in found.items() if fits) for found in answers]

    assert len(set(fitting)) > len(PROFILES) // 2
    parts = decisions(machine("h200", "dynamic"), "node-a", 37)
    never = {title for title in corpus() if not any(title in names for names in fitting) and not parts[title][0]}
    assert never == {
        "a driver that is not out yet",
        "9 GPUs",
        *(f"{count} GPUs of a NUMA node" for count in (5, 8, 9)),
        "3 GPUs of a root",
    }


@pytest.mark.parametrize("profile", ["dgx-a100", "h200"])
def test_what_is_given_on_a_shape_stands_before_the_independent_checker(profile: str) -> None:
    slices, node, now = imaginary(profile, "dynamic"), dra.node("imaginary"), rules(37)
    checked = 0
    for wanted in corpus().values():
        outcome = Allocator(now, CLASSES, slices).allocate(node, [wanted])
        if outcome.allocations is not None:
            checked += 1
            assert problems(now, node, slices, CLASSES, (), [wanted], outcome.allocations) == []
    assert checked > 8
