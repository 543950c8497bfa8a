"""A driver that is killed while it makes or destroys partitions: nothing is lost, nothing stays, nobody else's goes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.model import MigSupport
from driver.prepare import MigStep
from native.mock import MockNode
from tests.support.mignodes import MigNode

CHILD = Path(__file__).parent / "mig_child.py"
PREPARE = ["p1", "p2", *MigStep.do_points, "p3", "p4", "p5"]
UNPREPARE = ["u1", "u3", *MigStep.undo_points, "u2", "u4"]


def run(node: MigNode, when: str, verb: str, *pairs: str) -> int:
    command = [sys.executable, str(CHILD), str(node.base), str(node.mig), when, verb, *pairs]
    env = {**os.environ, **node.node.environment, "GPUDRA_MOCK_QUIET": "1"}
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
    assert finished.returncode in (0, -signal.SIGKILL), finished.stderr
    return finished.returncode


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MigNode:
    """A node on which another claim has a partition, which no crash may touch."""
    monkeypatch.setenv("GPUDRA_MOCK_QUIET", "1")
    for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
        monkeypatch.setenv(name, "")
    mock = MockNode.create(tmp_path / "node", "h100-nvl")
    mock.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
    made = MigNode(mock, tmp_path)
    made.read()
    made.prepared("by", made.name("2g.24gb", 0))
    return made


def restarted(node: MigNode, *, recover: bool = True) -> None:
    node.start()
    assert node.unprepare("nobody") is None  # the agent knows its records before it looks at the node
    node.read()
    if recover:
        assert node.preparer.recover().problems == []


def the_bystander_is_as_it_was(node: MigNode) -> None:
    assert ("2g.24gb", 0) in node.instances()
    assert node.preparer.recover().remade == []
    (device,) = next(record for record in node.preparer.prepared() if record.ref.uid == "by").devices
    standing = {partition.uuid for partition in node.read().gpus[0].partitions}
    assert device.uuid in standing


def then_it_is_prepared_again(node: MigNode, *names: str) -> None:
    restarted(node)
    node.prepared("u1", *names)
    assert len(node.instances()) == 1 + len(names)
    assert node.unprepare("u1") is None


def then_it_is_prepared_without_recovery(node: MigNode, *names: str) -> None:
    restarted(node, recover=False)
    node.prepared("u1", *names)
    assert len(node.instances()) == 1 + len(names)
    assert node.unprepare("u1") is None


def then_it_is_unprepared(node: MigNode, *names: str) -> None:
    restarted(node, recover=False)
    assert node.unprepare("u1") is None


def then_another_claim_gets_the_room(node: MigNode, *names: str) -> None:
    restarted(node)
    assert node.unprepare("u1") is None
    node.prepared("u2", *names)
    assert node.unprepare("u2") is None


FOLLOW_UPS: tuple[Callable[..., None], ...] = (
    then_it_is_prepared_again,
    then_it_is_prepared_without_recovery,
    then_it_is_unprepared,
    then_another_claim_gets_the_room,
)


def settled(node: MigNode) -> None:
    """Only the bystander's partition stands, and behind it nothing."""
    the_bystander_is_as_it_was(node)
    assert node.instances() == [("2g.24gb", 0)]
    assert node.unprepare("by") is None
    node.nothing_left()


def test_the_points_are_those_of_the_table(node: MigNode) -> None:
    assert node.preparer.plan.prepare_points == PREPARE
    assert node.preparer.plan.unprepare_points == UNPREPARE


@pytest.mark.bug("B62")
@pytest.mark.parametrize("number", range(len(PREPARE)), ids=PREPARE)
def test_killed_while_a_partition_is_made(node: MigNode, number: int) -> None:
    name = node.name("3g.47gb", 4)
    assert run(node, PREPARE[number], "prepare", f"u1={name}") == -signal.SIGKILL
    FOLLOW_UPS[number % len(FOLLOW_UPS)](node, name)
    settled(node)


@pytest.mark.bug("B62")
@pytest.mark.parametrize("number", range(len(MigStep.do_points)), ids=MigStep.do_points)
def test_killed_while_the_first_of_two_partitions_is_made(node: MigNode, number: int) -> None:
    names = [node.name("1g.12gb", 6), node.name("2g.24gb", 4)]
    assert run(node, MigStep.do_points[number], "prepare", f"u1={','.join(names)}") == -signal.SIGKILL
    FOLLOW_UPS[(number + 1) % len(FOLLOW_UPS)](node, *names)
    settled(node)


@pytest.mark.bug("B62")
@pytest.mark.parametrize("number", range(len(UNPREPARE)), ids=UNPREPARE)
def test_killed_while_a_partition_is_destroyed(node: MigNode, number: int) -> None:
    name = node.name("3g.47gb", 4)
    assert run(node, "never", "prepare", f"u1={name}") == 0
    assert run(node, UNPREPARE[number], "unprepare", "u1=") == -signal.SIGKILL
    FOLLOW_UPS[number % len(FOLLOW_UPS)](node, name)
    settled(node)


@pytest.mark.bug("B62")
@pytest.mark.bug("B72")
@pytest.mark.parametrize("point", ["p1", "mode-on", "gi-made", "gi-known", "ci-made", "p4"])
def test_killed_and_rebooted(node: MigNode, point: str) -> None:
    name = node.name("3g.47gb", 4)
    assert run(node, point, "prepare", f"u1={name}") == -signal.SIGKILL
    node.reboot()
    restarted(node)
    assert ("2g.24gb", 0) in node.instances()
    node.prepared("u1", name)
    assert node.instances() == [("2g.24gb", 0), ("3g.47gb", 4)]
    assert node.unprepare("u1") is None
    settled(node)


@pytest.mark.bug("B62")
@pytest.mark.bug("B72")
@pytest.mark.parametrize("point", MigStep.do_points)
def test_killed_while_partitions_are_made_again_after_a_reboot(node: MigNode, point: str) -> None:
    name = node.name("3g.47gb", 4)
    node.prepared("u1", name)
    node.reboot()
    boot = node.boot_id()
    (node.node.root / "proc/sys/kernel/random/boot_id").write_text(f"{boot}\n")  # the child reads it there
    assert run(node, point, "unprepare", "nobody=") in (0, -signal.SIGKILL)
    restarted(node)
    assert node.instances() == [("2g.24gb", 0), ("3g.47gb", 4)]
    assert node.unprepare("u1") is None
    assert node.unprepare("by") is None
    node.nothing_left()


@pytest.mark.bug("B62")
@pytest.mark.bug("B88")
@pytest.mark.parametrize("point", ["p1", "p2", "p3", "p4", "p5", "u1", "u2", "u3", "u4"])
def test_a_partition_that_was_found_survives_any_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setenv("GPUDRA_MOCK_QUIET", "1")
    for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
        monkeypatch.setenv(name, "")
    node = MigNode(MockNode.create(tmp_path / "node", "h100-nvl"), tmp_path, MigSupport.STATIC)
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "9:4,14:0", "-C")
    before = node.read().gpus[0].partitions
    name = node.name("3g.47gb", 4)
    if point.startswith("u"):
        assert run(node, "never", "prepare", f"u1={name}") == 0
    assert run(node, point, "unprepare" if point.startswith("u") else "prepare", f"u1={name}") == -signal.SIGKILL
    restarted(node)
    node.prepared("u1", name)
    assert node.unprepare("u1") is None
    assert node.read().gpus[0].partitions == before
    assert node.preparer.prepared() == ()
