"""A checkpoint that is lost while claims of any kind are prepared: nothing shows that it was.

What is left are the CDI folder, the hardware, and what the kubelet asks. The kinds are those of the crash matrix, each
with a claim beside it, on the same GPU where that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.prepare import ClaimError, Reason
from tests.support.crashnode import claim, differences
from tests.support.crashscenarios import SCENARIOS, Scenario
from tests.support.crashworld import BYSTANDER, UID, World, Worlds, assert_prepared, worlds_of_a_module

NEW = "33333333-0000-4000-8000-000000000000"


def removed(checkpoint: Path) -> None:
    checkpoint.unlink()


def of_no_use(checkpoint: Path) -> None:
    checkpoint.write_bytes(b"\0" * 4096)


def cut_short(checkpoint: Path) -> None:
    """An old state that is whole is all that is left."""
    raw = checkpoint.read_bytes()
    checkpoint.write_bytes(raw[: len(raw) // 4 - 1])


def without_its_newest_line(checkpoint: Path) -> None:
    """The state of before the last change is left: the claim is being prepared there, without what came of it."""
    raw = bytearray(checkpoint.read_bytes())
    size = len(raw) // 4
    lines = {number: bytes(raw[number * size :][:size]).strip() for number in range(4)}
    newest = max((number for number in lines if lines[number]), key=lambda number: _sequence(lines[number]))
    raw[newest * size + 220] ^= 1
    checkpoint.write_bytes(raw)


def _sequence(line: bytes) -> int:
    return int(line.partition(b'"sequence":')[2].partition(b",")[0])


LOSSES = (removed, of_no_use, cut_short, without_its_newest_line)


@pytest.fixture(scope="module")
def worlds() -> Iterator[Worlds]:
    with worlds_of_a_module() as made:
        yield made


@pytest.fixture(params=SCENARIOS, ids=str, scope="module")
def scenario(request: pytest.FixtureRequest) -> Scenario:
    made: Scenario = request.param
    return made


@pytest.fixture(params=LOSSES, ids=lambda loss: loss.__name__)
def world(worlds: Worlds, scenario: Scenario, request: pytest.FixtureRequest) -> Iterator[World]:
    """Two claims are prepared, the driver has ended, and its checkpoint is lost."""
    lose: Callable[[Path], None] = request.param
    with worlds.of(scenario) as made:
        made.settled()  # what a former test had handed over to a virtual machine is known by its name again
        made.prepare()
        made.node.life.end()
        lose(made.node.settings.state_dir / "checkpoint.json")
        yield made
        for kept in made.node.settings.state_dir.glob("checkpoint.json.damaged-*"):
            kept.unlink()
        if not any(record.ref.uid == BYSTANDER for record in made.node.life.preparer.prepared()):
            assert_prepared(made.node.life.prepare(scenario.bystander(made.node, BYSTANDER)))
        made.unprepare()


def picture(world: World) -> dict[str, Any]:
    """Without the file that was set aside."""
    seen = world.settled()
    seen["files"] = {name: mode for name, mode in seen["files"].items() if "damaged" not in name}
    return seen


def overlapping(world: World) -> dict[str, Any]:
    """A claim for hardware that the claim has; for a share, a claim for the whole."""
    results = [dict(one) for one in world.document["status"]["allocation"]["devices"]["results"]]
    for result in results:
        result.pop("shareID", None)
        result.pop("consumedCapacity", None)
    return claim(NEW, results[:1])


def free(world: World) -> dict[str, Any]:
    """A claim for a GPU of which nobody has anything; where there is none, for what the bystander has had."""
    life = world.node.life
    assert life.seen is not None
    used = {device.address for record in life.preparer.prepared() for device in record.devices}
    unused = [gpu.name for gpu in life.seen.gpus if str(gpu.address) not in used]
    if unused:
        return claim(NEW, [{"device": unused[0]}])
    assert life.unprepare(BYSTANDER) == [None]
    return world.scenario.bystander(world.node, NEW)


@pytest.mark.bug("B68")
def test_after_the_start_everything_is_known_again(world: World) -> None:
    """Before the kubelet has said a word."""
    world.node.restart()
    assert differences(picture(world), world.prepared) == []


@pytest.mark.bug("B68")
def test_the_kubelet_gets_the_same_devices_again(world: World) -> None:
    bystander = world.scenario.bystander(world.node, BYSTANDER)
    life = world.node.restart()
    (ours, beside) = life.prepare(world.document, bystander)
    assert_prepared([ours, beside])
    assert life.prepare(bystander, world.document) == [beside, ours]
    devices = world.document["status"]["allocation"]["devices"]["results"]
    assert isinstance(ours, tuple)
    assert [device.device for device in ours] == [result["device"] for result in devices]
    assert differences(picture(world), world.prepared) == []


@pytest.mark.bug("B68")
def test_the_end_of_all_claims_leaves_the_node_as_it_was(world: World) -> None:
    """Before the node has been read, as far as the driver can; then the rest."""
    bystander = world.scenario.bystander(world.node, BYSTANDER)
    life = world.node.start()
    life.unprepare(UID)
    life.read()
    world.unprepare()
    assert differences(picture(world), world.unprepared) == []
    assert life.unprepare(BYSTANDER) == [None]
    life.read()
    assert life.preparer.prepared() == ()
    assert_prepared(life.prepare(bystander))
    assert differences(picture(world), world.unprepared) == []


@pytest.mark.bug("B68")
def test_new_claims_get_what_is_free_and_nothing_else(world: World) -> None:
    life = world.node.restart()
    (error,) = life.prepare(overlapping(world))
    assert isinstance(error, ClaimError)
    assert error.reason is Reason.DEVICE_IN_USE
    assert f"(uid {UID})" in str(error) or f"(uid {BYSTANDER})" in str(error)
    assert_prepared(life.prepare(free(world)))
    assert life.unprepare(NEW) == [None]
    assert_prepared(life.prepare(world.scenario.bystander(world.node, BYSTANDER)))
    assert differences(picture(world), world.prepared) == []
