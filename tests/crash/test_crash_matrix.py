"""The crash matrix: a driver that ends at any point of any way of having a GPU, whatever comes behind it.

After the next start and the kubelet's repeated call everything is as it is where nothing has happened: the whole
picture of the node is compared (``CrashNode.picture``), not this or that. The cells are generated from the table of
steps; a step without a scenario fails here. The end is an exception at the point; ``test_crash_kills`` repeats
it with SIGKILL. ``GPUDRA_CRASH=all`` tries every cell; without it each point is tried with a mere restart and one of
the other things in turn.
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from driver.prepare import MigStep
from driver.prepare.sharing.lazy import LazyStep
from tests.support.crashnode import Crash, differences
from tests.support.crashscenarios import ALWAYS, SCENARIOS, Scenario, steps_of, table
from tests.support.crashworld import UID, World, Worlds, worlds_of_a_module

# what happens between the end of the driver and the kubelet's repeated call


def restarted(world: World, verb: str) -> None:
    """The driver starts."""
    world.node.restart()


def called_early(world: World, verb: str) -> None:
    """The kubelet calls before the node has been read: what cannot be done then is done later."""
    life = world.node.start()
    if verb == "prepare":
        life.prepare(world.document)
    else:
        life.unprepare(UID)
    life.read()


def rebooted(world: World, verb: str) -> None:
    """The machine starts anew."""
    world.node.reboot()
    world.node.restart()


def killed_again(world: World, verb: str) -> None:
    """The driver ends once more, at one of the first points that its start passes, if it passes as many."""
    node = world.node
    passed: list[str] = []

    def stop(point: str) -> None:
        passed.append(point)
        if len(passed) == world.turn:
            raise Crash

    node.faults = stop
    try:
        node.restart()
    except Crash:
        node.life.end()
    finally:
        node.faults = None
    node.restart()


def rebooted_and_killed_again(world: World, verb: str) -> None:
    """The machine starts anew, and the driver ends once more while it makes things right again."""
    world.node.reboot()
    killed_again(world, verb)


FURTHER: tuple[Callable[[World, str], None], ...] = (
    rebooted,
    called_early,
    killed_again,
    rebooted_and_killed_again,
)
TABLE = table()


def cells(*, every: bool) -> Iterator[Any]:
    """All cells of the matrix; or each point with a mere restart and one of ``FURTHER``, in turn."""
    turn = itertools.cycle(FURTHER)
    for scenario in SCENARIOS:
        for verb, points in (
            ("prepare", scenario.prepare_points(TABLE)),
            ("unprepare", scenario.unprepare_points(TABLE)),
        ):
            for point in points:
                for afterwards in (restarted, *(FURTHER if every else (next(turn),))):
                    name = f"{scenario}-{verb}-{point}-{afterwards.__name__}"
                    yield pytest.param(scenario, verb, point, afterwards, id=name)


CELLS = list(cells(every=os.environ.get("GPUDRA_CRASH") == "all"))


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with worlds_of_a_module() as made:
        yield made


def test_every_step_of_the_table_has_a_scenario() -> None:
    told = {step for scenario in SCENARIOS for step in scenario.steps} | set(ALWAYS)
    assert told == set(steps_of(TABLE))


def test_every_point_of_the_table_is_in_a_cell() -> None:
    points = {cell.values[2] for cell in CELLS}
    assert points == {*TABLE.prepare_points, *TABLE.unprepare_points}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_scenario_names_the_steps_that_have_something_to_do_and_comes_to_their_points(
    worlds: Worlds, scenario: Scenario
) -> None:
    with worlds.of(scenario) as world:
        node = world.node
        passed: list[str] = []
        node.faults = passed.append
        world.prepare()
        record = next(one for one in node.life.preparer.prepared() if one.ref.uid == UID)
        world.unprepare()
        node.faults = None
        steps = steps_of(node.life.preparer.plan)
    busy = {name for name, step in steps.items() if isinstance(step, LazyStep) and step.concerns(record)}
    busy |= {name for name, step in steps.items() if isinstance(step, MigStep) and step._concerns(record)}
    assert busy == scenario.steps
    for point in (*scenario.prepare_points(TABLE), *scenario.unprepare_points(TABLE)):
        assert point in passed
    assert not scenario.spared & set(passed)


@pytest.mark.bug("B62")
@pytest.mark.bug("B72")
@pytest.mark.parametrize(("scenario", "verb", "point", "afterwards"), CELLS)
def test_nothing_shows_that_the_driver_was_killed(
    worlds: Worlds, scenario: Scenario, verb: str, point: str, afterwards: Callable[[World, str], None]
) -> None:
    with worlds.of(scenario) as world:
        world.turn = 1 + zlib.crc32(f"{verb} {point}".encode()) % 7
        if verb == "prepare":
            world.node.die_at(point, world.prepare)
            afterwards(world, verb)
            world.prepare()
            assert differences(world.settled(), world.prepared) == []
        else:
            world.prepare()
            world.node.die_at(point, world.unprepare)
            afterwards(world, verb)
        world.unprepare()
        assert differences(world.settled(), world.unprepared) == []


@pytest.mark.bug("B47")
@pytest.mark.parametrize("reboots", [False, True], ids=["", "rebooted"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_a_pod_that_is_deleted_meanwhile_leaves_nothing_wherever_its_prepare_ended(
    worlds: Worlds, scenario: Scenario, reboots: bool
) -> None:
    with worlds.of(scenario) as world:
        for point in scenario.prepare_points(TABLE):
            world.node.die_at(point, world.prepare)
            if reboots:
                world.node.reboot()
            world.node.restart()
            world.unprepare()
            assert differences(world.settled(), world.unprepared) == [], point
