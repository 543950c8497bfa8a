"""A driver that is killed at any point: after the next start nothing is lost, nothing is left, and claims go on."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.prepare import ClaimError, Preparer
from tests.unit.prepare.prepare_node import FakeNode, claim, ref, result

CHILD = Path(__file__).parent / "prepare_child.py"


def run(folder: Path, when: str, verb: str, *pairs: str) -> int:
    command = [sys.executable, str(CHILD), str(folder), when, verb, *pairs]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert finished.returncode in (0, -signal.SIGKILL), finished.stderr
    return finished.returncode


def node_with_a_bystander(folder: Path) -> FakeNode:
    """A node on which another claim is prepared, which no crash may touch."""
    node = FakeNode(folder)
    answer = node.start().prepare({"by": claim("by", result(7))})["by"]
    assert not isinstance(answer, ClaimError)
    return node


def agree(node: FakeNode, preparer: Preparer, expected: set[str]) -> None:
    """Records, files and expectation are of the same claims, and every file is whole."""
    assert {record.ref.uid for record in preparer.prepared()} == expected
    assert {record.trusted for record in preparer.prepared()} <= {True}
    assert set(node.specs()) == expected
    for uid in expected:
        assert json.loads(node.spec_path(uid).read_text())["devices"]
    left = {path.name for path in [*node.state_dir.iterdir(), *node.cdi_dir.iterdir()]}
    assert not [name for name in left if name.startswith(".") or "damaged" in name]


def recovered(node: FakeNode, expected: set[str]) -> Preparer:
    preparer = node.start()
    assert preparer.recover().problems == []
    agree(node, preparer, expected)
    return preparer


def then_prepare(node: FakeNode) -> None:
    preparer = node.start()
    preparer.recover()
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    agree(node, preparer, {"by", "u1"})


def then_prepare_without_recovery(node: FakeNode) -> None:
    preparer = node.start()
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert node.specs() == ["by", "u1"]


def then_unprepare(node: FakeNode) -> None:
    preparer = node.start()
    preparer.recover()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    agree(node, preparer, {"by"})


def then_unprepare_without_nvml(node: FakeNode) -> None:
    node.ready = False
    preparer = node.start()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    agree(node, preparer, {"by"})


def then_another_claim_gets_the_gpu_in_the_end(node: FakeNode) -> None:
    preparer = node.start()
    preparer.recover()
    preparer.unprepare([ref("u1")])
    assert not isinstance(preparer.prepare({"u2": claim("u2", result(0))})["u2"], ClaimError)
    agree(node, preparer, {"by", "u2"})


def then_reboot_and_prepare(node: FakeNode) -> None:
    node.reboot()
    then_prepare(node)


FOLLOW_UPS: tuple[Callable[[FakeNode], None], ...] = (
    then_prepare,
    then_prepare_without_recovery,
    then_unprepare,
    then_unprepare_without_nvml,
    then_another_claim_gets_the_gpu_in_the_end,
    then_reboot_and_prepare,
)


def follow_up_on_copies(node: FakeNode, copies: Path) -> None:
    for number, follow_up in enumerate(FOLLOW_UPS):
        place = copies / str(number)
        shutil.copytree(node.base, place)
        follow_up(FakeNode(place))


@pytest.mark.bug("B62")
@pytest.mark.parametrize(
    ("point", "prepared"), [("p1", False), ("p2", False), ("p3", False), ("p4", True), ("p5", True)]
)
def test_killed_in_prepare(tmp_path: Path, point: str, prepared: bool) -> None:
    node = node_with_a_bystander(tmp_path / "node")
    assert run(node.base, point, "prepare", "u1=0") == -signal.SIGKILL
    follow_up_on_copies(node, tmp_path)
    recovered(node, {"by", "u1"} if prepared else {"by"})


@pytest.mark.bug("B62")
@pytest.mark.parametrize("point", ["u1", "u2", "u3", "u4"])
def test_killed_in_unprepare(tmp_path: Path, point: str) -> None:
    node = node_with_a_bystander(tmp_path / "node")
    assert run(node.base, "never", "prepare", "u1=0") == 0
    assert run(node.base, point, "unprepare", "u1=0") == -signal.SIGKILL
    follow_up_on_copies(node, tmp_path)
    recovered(node, {"by"})


@pytest.mark.bug("B62")
@pytest.mark.bug("B46")
def test_killed_in_a_repeated_prepare_the_claim_stays_prepared(tmp_path: Path) -> None:
    node = node_with_a_bystander(tmp_path / "node")
    assert run(node.base, "never", "prepare", "u1=0") == 0
    node.spec_path("u1").unlink()
    for point in ("p1", "p2", "p3", "p4"):
        assert run(node.base, point, "prepare", "u1=0") in (0, -signal.SIGKILL)
        assert {record.ref.uid for record in recovered(node, {"by", "u1"}).prepared()} == {"by", "u1"}
        node.spec_path("u1").unlink()
    then_unprepare(node)


@pytest.mark.bug("B62")
@pytest.mark.parametrize("point", ["p2", "p3"])
def test_killed_between_two_claims_of_one_call(tmp_path: Path, point: str) -> None:
    node = node_with_a_bystander(tmp_path / "node")
    assert run(node.base, point, "prepare", "u1=0", "u2=1", "u3=2") == -signal.SIGKILL
    preparer = recovered(node, {"by"})
    answers = preparer.prepare({f"u{n}": claim(f"u{n}", result(n)) for n in range(1, 4)})
    assert not [answer for answer in answers.values() if isinstance(answer, ClaimError)]


@pytest.mark.bug("B62")
@pytest.mark.bug("B63")
@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_killed_before_any_call_that_touches_the_disk(tmp_path: Path, verb: str) -> None:
    finished = 0
    for nth in range(1, 60, 2):
        node = node_with_a_bystander(tmp_path / str(nth))
        if verb == "unprepare":
            assert not isinstance(node.start().prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
        if run(node.base, f"disk-{nth}", verb, "u1=0") == 0:
            finished = nth
            break
        preparer = node.start()
        assert preparer.recover().problems == []
        uids = {record.ref.uid for record in preparer.prepared()}
        assert uids in ({"by"}, {"by", "u1"})
        agree(node, preparer, uids)
        assert preparer.unprepare([ref("u1")]) == {"u1": None}
        agree(node, preparer, {"by"})
    assert finished > 12, "the calls were not counted"


@pytest.mark.bug("B62")
@pytest.mark.bug("B59")
def test_killed_at_any_moment_of_a_storm(tmp_path: Path) -> None:
    node = node_with_a_bystander(tmp_path / "node")
    chance = random.Random(7)
    for _ in range(6):
        command = [sys.executable, str(CHILD), str(node.base), "never", "storm", "u1=0", "u2=1", "u3=2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "started\n"
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(chance.uniform(0.0, 0.1))
            child.kill()
        preparer = node.start()
        assert preparer.recover().problems == []
        agree(node, preparer, {record.ref.uid for record in preparer.prepared()})
        assert "by" in node.specs()
        answers = preparer.prepare({f"u{n}": claim(f"u{n}", result(n - 1)) for n in range(1, 4)})
        assert not [answer for answer in answers.values() if isinstance(answer, ClaimError)]
