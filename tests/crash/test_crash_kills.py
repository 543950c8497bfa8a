"""Drivers that SIGKILL ends: once at each point of the table of steps, and before calls to the kernel drawn by chance.

Where the driver ends is not only where somebody thought of it: the second run counts the calls that change files
(``tests/support/preload.c``) in one whole life and draws among them; the machine starts anew behind some. Compared are
whole pictures of the node, as in ``test_crash_matrix``. ``GPUDRA_CRASH=all`` kills at each point of each scenario, and
draws 40 times as often.
"""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.crashnode import differences
from tests.support.crashscenarios import SCENARIOS, Scenario, table
from tests.support.crashworld import Killer, World, Worlds, worlds_of_a_module

ALL = os.environ.get("GPUDRA_CRASH") == "all"
ROUNDS = 120 if ALL else 3
"""For each scenario."""
TABLE = table()
KILLED = -signal.SIGKILL


def cells() -> Iterator[tuple[Scenario, str, str]]:
    """Each point of the table once, in the scenario that is the last to have it; or with each scenario."""
    found: dict[object, tuple[Scenario, str, str]] = {}
    for scenario in SCENARIOS:
        for point in scenario.prepare_points(TABLE):
            found[scenario.name if ALL else "", point] = scenario, "prepare", point
        for point in scenario.unprepare_points(TABLE):
            found[scenario.name if ALL else "", point] = scenario, "unprepare", point
    order = list(SCENARIOS)
    yield from sorted(found.values(), key=lambda cell: order.index(cell[0]))


CELLS = list(cells())


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with worlds_of_a_module() as made:
        yield made


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    made = Killer(Path(tempfile.gettempdir()))
    yield made
    made.end()


def then_it_is_as_if_nothing_had_happened(world: World, verb: str) -> None:
    world.node.restart()
    if verb == "prepare":
        world.prepare()
        assert differences(world.settled(), world.prepared) == []
    world.unprepare()
    assert differences(world.settled(), world.unprepared) == []


def test_each_point_of_the_table_is_among_those_to_be_killed_at() -> None:
    assert {point for _, _, point in CELLS} == {*TABLE.prepare_points, *TABLE.unprepare_points}


@pytest.mark.bug("B62")
@pytest.mark.parametrize(
    ("scenario", "verb", "point"), [pytest.param(*cell, id=f"{cell[0]}-{cell[1]}-{cell[2]}") for cell in CELLS]
)
def test_sigkill_at_a_point(worlds: Worlds, killer: Killer, scenario: Scenario, verb: str, point: str) -> None:
    with worlds.of(scenario) as world:
        if verb == "unprepare":
            world.prepare()
        status, _ = killer.run(world, verb, point=point)
        assert status == KILLED
        then_it_is_as_if_nothing_had_happened(world, verb)


@pytest.mark.bug("B62")
@pytest.mark.bug("B63")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_sigkill_before_any_call_that_changes_a_file(worlds: Worlds, killer: Killer, scenario: Scenario) -> None:
    chance = random.Random(scenario.name)
    with worlds.of(scenario) as world:
        counts = {}
        for verb in ("prepare", "unprepare"):
            status, counts[verb] = killer.run(world, verb)
            assert (status, counts[verb] > 5) == (0, True)
        world.node.restart()
        for number in range(ROUNDS):
            verb = ("prepare", "unprepare")[number % 2]
            if verb == "unprepare":
                world.prepare()
            call = chance.randint(1, counts[verb])
            torn = chance.random() < 0.5
            status, _ = killer.run(world, verb, call=call, torn=torn)
            assert status == KILLED, f"round {number}: {verb} is not killed at call {call} of {counts[verb]}"
            if number % 3 == 2:  # its successor dies as well, while it makes things right
                killer.run(world, "start", call=chance.randint(1, 20), torn=torn)
            if number % 4 in (1, 2):
                world.node.reboot()
            then_it_is_as_if_nothing_had_happened(world, verb)
