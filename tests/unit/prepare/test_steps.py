"""The table of steps: what others may rely on when they add one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from driver.model import NodeInventory
from driver.prepare import ClaimError, ClaimRecord, Reason, StepDefaults, Work
from driver.prepare.cdi import ContainerEdits
from driver.prepare.steps import Plan
from tests.unit.prepare.prepare_node import FakeNode, claim, device, ref, result


class Marking(StepDefaults):
    """Writes down what it is asked to do."""

    def __init__(self, name: str, log: list[str], refuses: str = "") -> None:
        self.name = name
        self.subject = f"the mark of {name}"
        self.do_points: tuple[str, ...] = (f"{name}-half", f"{name}-done")
        self.undo_points: tuple[str, ...] = (f"{name}-undone",)
        self._log = log
        self._refuses = refuses

    def check(self, work: Work) -> None:
        self._note("check")
        devices = tuple(item.with_data(self.name, {"seen": True}) for item in work.record.devices)
        work.record = work.record.with_devices(devices)

    def do(self, work: Work) -> None:
        self._note("do")

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        self._note(f"undo beside {len(others)}")

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        return {item.cdi_device: ContainerEdits(env=(f"MARK_{self.name.upper()}=1",)) for item in record.devices}

    def _note(self, what: str) -> None:
        self._log.append(f"{self.name} {what}")
        if what == self._refuses:
            raise ClaimError(f"{self.name} refuses to {what}", Reason.DEVICE_NOT_READY)


@pytest.fixture
def log() -> list[str]:
    return []


def test_the_points_of_full_gpus_are_the_known_ones(node: FakeNode) -> None:
    plan = node.start().plan
    assert plan.prepare_points == ["p1", "p2", "p3", "p4", "p5"]
    assert plan.unprepare_points == ["u1", "u3", "u2", "u4"]


def test_a_step_stands_between_the_hardware_and_the_file_with_points_of_its_own(node: FakeNode, log: list[str]) -> None:
    plan = node.start(steps=[Marking("a", log), Marking("b", log)]).plan
    assert plan.prepare_points == ["p1", "p2", "a-half", "a-done", "b-half", "b-done", "p3", "p4", "p5"]
    assert plan.unprepare_points == ["u1", "u3", "b-undone", "a-undone", "u2", "u4"]


@pytest.mark.parametrize(("one", "other"), [("a", "a"), ("spec", "b"), ("hardware", "b")])
def test_two_steps_of_one_name_are_refused(node: FakeNode, log: list[str], one: str, other: str) -> None:
    with pytest.raises(ValueError, match="twice"):
        node.start(steps=[Marking(one, log), Marking(other, log)])


def test_a_crash_point_belongs_to_one_step() -> None:
    first, second = Marking("a", []), Marking("b", [])
    second.do_points = ("a-half", "b-done")
    with pytest.raises(ValueError, match="'a-half' twice"):
        Plan([first, second])


def test_steps_run_forwards_and_are_undone_backwards_knowing_the_other_claims(node: FakeNode, log: list[str]) -> None:
    preparer = node.start(steps=[Marking("a", log), Marking("b", log)])
    preparer.prepare({"u0": claim("u0", result(7))})
    log.clear()
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert log == ["a check", "b check", "a do", "b do"]
    log.clear()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert log == ["b undo beside 1", "a undo beside 1"]


def test_what_a_step_put_into_the_record_is_on_the_disk_and_its_edits_are_in_the_file(
    node: FakeNode, log: list[str]
) -> None:
    node.start(steps=[Marking("a", log), Marking("b", log)]).prepare({"u1": claim("u1", result(0))})
    preparer = node.start(steps=[Marking("a", log), Marking("b", log)])
    preparer.recover()
    (record,) = preparer.prepared()
    assert record.devices[0].data == {"a": {"seen": True}, "b": {"seen": True}}
    text = node.spec_path("u1").read_text()
    assert "MARK_A=1" in text
    assert "MARK_B=1" in text
    assert text.index("GPUDRA_DEVICE_") < text.index("MARK_A=1")


@pytest.mark.parametrize("refuses", ["check", "do"])
def test_a_step_that_refuses_leaves_nothing(node: FakeNode, log: list[str], refuses: str) -> None:
    preparer = node.start(steps=[Marking("a", log), Marking("b", log, refuses)])
    answer = preparer.prepare({"u1": claim("u1", result(0))})["u1"]
    assert isinstance(answer, ClaimError)
    assert f"b refuses to {refuses}" in str(answer)
    assert preparer.prepared() == ()
    assert node.specs() == []
    assert ("a undo beside 0" in log) == (refuses == "do"), "before the first change there is nothing to undo"


def test_a_claim_of_another_allocation_that_is_refused_now_keeps_no_record_of_the_former_one(
    node: FakeNode, log: list[str]
) -> None:
    node.start().prepare({"u1": claim("u1", result(0))})
    preparer = node.start(steps=[Marking("a", log, "check")])
    answer = preparer.prepare({"u1": claim("u1", result(1))})["u1"]
    assert isinstance(answer, ClaimError)
    assert preparer.prepared() == ()
    assert node.specs() == []
    other = node.start()
    assert not isinstance(other.prepare({"u2": claim("u2", result(0))})["u2"], ClaimError)
    assert [item.device for record in other.prepared() for item in record.devices] == [device(0)]
