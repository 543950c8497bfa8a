"""What a step has done is undone by somebody else while no driver runs: the start finds it and does it again.

A step whose look at its own work is weaker than the work would leave a prepared claim that cannot be used. Compared are
whole pictures of the node, as in ``test_crash_matrix``.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.crashnode import DRIVER, differences, unbind_all
from tests.support.crashscenarios import SCENARIOS, Scenario, steps_of, table
from tests.support.crashworld import UID, World, Worlds, worlds_of_a_module


def spec_of(world: World) -> Path:
    return world.node.base / "cdi" / f"{DRIVER}-claim_{UID}.json"


def specification_removed(world: World) -> None:
    spec_of(world).unlink()


def specification_cut(world: World) -> None:
    spec_of(world).write_bytes(spec_of(world).read_bytes()[:100])


def specification_changed(world: World) -> None:
    spec_of(world).write_bytes(spec_of(world).read_bytes().replace(b"/dev/nvidia0", b"/dev/nvidia1"))


def specification_closed(world: World) -> None:
    spec_of(world).chmod(0o600)


def specification_open_to_all(world: World) -> None:
    spec_of(world).chmod(0o666)


def specification_linked(world: World) -> None:
    aside = world.node.base / "aside.json"
    spec_of(world).rename(aside)
    spec_of(world).symlink_to(aside)


def folder_removed(world: World) -> None:
    shutil.rmtree(world.node.base / "cdi")


def slice_set_back(world: World) -> None:
    world.node.mock.nvidia_smi("compute-policy", "--set-timeslice=default")


def mode_set_back(world: World) -> None:
    world.node.mock.nvidia_smi("-c", "DEFAULT")


def daemon_files(world: World) -> Path:
    (pid_file,) = (world.node.base / "mps").glob("*/*/pipe/*.pid")
    return pid_file


def daemon_killed(world: World) -> None:
    os.kill(int(daemon_files(world).read_text()), signal.SIGKILL)


def daemon_killed_and_its_files_removed(world: World) -> None:
    daemon_killed(world)
    shutil.rmtree(daemon_files(world).parents[1])


def partition_destroyed(world: World) -> None:
    mock = world.node.mock
    for instance in mock.instances(mock.profile.gpus[0].address):
        if instance.start == 4:
            mock.nvidia_smi("mig", "-i", "0", "-dci", "-gi", str(instance.id))
            mock.nvidia_smi("mig", "-i", "0", "-dgi", "-gi", str(instance.id))


def compute_instance_destroyed(world: World) -> None:
    mock = world.node.mock
    for instance in mock.instances(mock.profile.gpus[0].address):
        if instance.start == 4:
            mock.nvidia_smi("mig", "-i", "0", "-dci", "-gi", str(instance.id))


def mig_mode_switched_on(world: World) -> None:
    world.node.mock.nvidia_smi("-i", "0", "-mig", "1")


def given_back_to_the_driver(world: World) -> None:
    unbind_all(world.node.mock)


def unbound(world: World) -> None:
    mock = world.node.mock
    address = mock.profile.gpus[0].address
    mock.kernel.write(mock.root / f"sys/bus/pci/devices/{address}/driver/unbind", address)


HARM: dict[str, tuple[str, tuple[Callable[[World], None], ...]]] = {
    "full GPU": (
        "spec",
        (
            specification_removed,
            specification_cut,
            specification_changed,
            specification_closed,
            specification_open_to_all,
            specification_linked,
            folder_removed,
        ),
    ),
    "dynamic MIG": ("mig", (partition_destroyed, compute_instance_destroyed)),
    "full GPU where MIG is dynamic": ("mig", (mig_mode_switched_on,)),
    "time slices": ("timeSlice", (slice_set_back,)),
    "MPS": ("mps", (mode_set_back, daemon_killed, daemon_killed_and_its_files_removed)),
    "VFIO": ("vfio", (given_back_to_the_driver, unbound)),
}
"""Name of a scenario -> the step that it is about, and what becomes of its work."""
NOTHING_DONE = {"hardware", "share", "sharingRules", "modes"}
"""Steps that leave nothing behind that could be taken away while the claim is prepared."""
CELLS = [
    pytest.param(scenario, harm, id=f"{scenario}-{harm.__name__}")
    for scenario in SCENARIOS
    for harm in HARM.get(scenario.name, ("", ()))[1]
]


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with worlds_of_a_module() as made:
        yield made


def test_every_step_that_does_something_is_harmed() -> None:
    assert {step for step, _ in HARM.values()} | NOTHING_DONE == set(steps_of(table()))
    assert HARM.keys() <= {scenario.name for scenario in SCENARIOS}


@pytest.mark.bug("B72")
@pytest.mark.bug("B73")
@pytest.mark.parametrize(("scenario", "harm"), CELLS)
def test_what_a_step_did_is_done_again_at_the_next_start(
    worlds: Worlds, scenario: Scenario, harm: Callable[[World], None]
) -> None:
    with worlds.of(scenario) as world:
        world.prepare()
        world.node.life.end()
        harm(world)
        world.node.restart()
        assert differences(world.settled(), world.prepared) == []
        world.prepare()
        assert differences(world.settled(), world.prepared) == [], "nor does a repeated Prepare change anything"
        world.unprepare()
        assert differences(world.settled(), world.unprepared) == []
