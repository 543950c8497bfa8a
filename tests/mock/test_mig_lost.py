"""Partitions on a GPU that is lost: no pod waits for it, and nothing is forgotten should it answer again."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.prepare import ClaimError, Phase, Reason, is_remnant
from native.mock.control import Process
from native.mock.profile import Failure
from native.nvml.errors import NvmlReturn
from tests.support.mignodes import Make, MigNode, maker, uuids


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A node of a profile with a driver on it that has looked at it once."""
    return maker(tmp_path, monkeypatch)


def state(node: MigNode, state: str, index: int = 0) -> None:
    node.node.set_gpu_state(node.node.profile.gpus[index].address, state)


def reset(node: MigNode) -> None:
    """The first GPU answers again, and nothing stands on it."""
    state(node, "ok")
    for arguments in (("mig", "-dci"), ("mig", "-dgi"), ("-mig", "0")):
        node.node.nvidia_smi("-i", "0", *arguments)


def kept(node: MigNode) -> dict[str, list[str]]:
    """UID -> devices, of what is left of claims."""
    return {one.ref.uid: [d.device for d in one.devices] for one in node.preparer.prepared() if is_remnant(one)}


def test_a_claim_of_a_lost_gpu_is_unprepared_at_once_and_its_partition_is_kept_in_mind(make: Make) -> None:
    node = make()
    name = node.name("1g.18gb", 6)
    node.prepared("u1", name)
    state(node, "lost")
    assert node.unprepare("u1") is None
    assert not node.spec("u1").exists()
    assert kept(node) == {"u1": [name]}
    assert node.unprepare("u1") is None, "the kubelet may ask again"
    assert kept(node) == {"u1": [name]}


def test_when_the_gpu_answers_again_without_a_reset_the_partition_is_destroyed(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    state(node, "ok")
    assert node.instances() == [("1g.18gb", 6)]
    node.read()
    report = node.preparer.recover()
    assert (report.undone, report.problems) == (["u1"], [])
    node.nothing_left()


def test_the_node_is_read_anew_at_once_for_the_gpu_may_answer_by_then(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    assert node.asked == 1
    for _ in range(3):
        node.preparer.recover()
    assert node.asked == 1, "what is known asks no more: each reading would lead to another"


def test_while_the_gpu_is_lost_the_partition_is_a_problem_that_says_what_ends_it(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    first, second = node.preparer.recover(), node.preparer.recover()
    assert first.problems == second.problems
    (problem,) = first.problems
    assert "claim ns/claim-u1" in problem.subject
    assert "the GPU is lost" in problem.message
    assert "nvidia-smi --gpu-reset" in problem.message
    assert list(first.broken()) == [], "no claim has it any more"


def test_its_place_is_withheld_until_it_is_gone_and_its_neighbours_are_not(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    state(node, "ok")
    error = node.refused("u2", node.name("1g.35gb", 6))
    assert error.reason is Reason.DEVICE_IN_USE
    node.prepared("u3", node.name("4g.71gb", 0))
    node.preparer.recover()
    node.prepared("u2", node.name("1g.35gb", 6))
    assert node.instances() == [("4g.71gb", 0), ("1g.35gb", 6)]


def test_an_instance_that_starts_later_destroys_it(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    node.start()
    assert node.preparer.recover().undone == []
    state(node, "ok")
    node.start()
    node.read()
    assert node.preparer.recover().undone == ["u1"]
    node.nothing_left()


@pytest.mark.parametrize("end", ["reset", "reboot", "unplugged"])
def test_after_a_reset_a_reboot_or_without_the_gpu_there_is_nothing_to_remember(make: Make, end: str) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    if end == "reset":
        reset(node)
        node.read()
    elif end == "reboot":
        node.reboot()
        node.start()
    else:
        node.node.unplug(node.node.profile.gpus[0].address)
        node.start()  # a session of before would call it lost
        node.read()
    report = node.preparer.recover()
    assert (report.undone, report.problems) == (["u1"], [])
    assert node.preparer.prepared() == ()


@pytest.mark.bug("B88")
def test_what_an_administrator_made_in_its_place_after_the_reset_is_left_alone(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6))
    state(node, "lost")
    assert node.unprepare("u1") is None
    reset(node)
    node.node.nvidia_smi("-i", address, "-mig", "1")
    node.node.nvidia_smi("mig", "-i", address, "-cgi", "19:6", "-C")
    node.read()
    assert node.preparer.recover().undone == ["u1"]
    assert node.instances() == [("1g.18gb", 6)]


def test_what_the_claim_had_of_other_gpus_is_free_at_once(make: Make) -> None:
    node = make()
    lost, other = node.name("1g.18gb", 6), node.name("1g.18gb", 6, 1)
    node.prepared("u1", lost, other, node.gpu(2).name)
    state(node, "lost")
    assert node.unprepare("u1") is None
    assert node.instances(1) == []
    assert kept(node) == {"u1": [lost]}
    node.prepared("u2", other, node.gpu(2).name)


def test_a_partition_in_use_beside_it_is_still_an_error(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[1].address
    node.prepared("u1", node.name("1g.18gb", 6), node.name("1g.18gb", 6, 1))
    (busy,) = node.node.instances(address)
    node.node.set_processes(address, [Process(4711, gi=busy.id, ci=0)])
    state(node, "lost")
    error = node.unprepare("u1")
    assert isinstance(error, ClaimError)
    assert "IN_USE" in str(error)
    assert kept(node) == {}
    node.node.set_processes(address, [])
    assert node.unprepare("u1") is None
    assert node.instances(1) == []
    assert list(kept(node)) == ["u1"]


def test_the_claim_can_be_prepared_anew_on_another_gpu_meanwhile(make: Make) -> None:
    node = make()
    lost, other = node.name("1g.18gb", 6), node.name("1g.18gb", 6, 1)
    node.prepared("u1", lost)
    state(node, "lost")
    assert node.unprepare("u1") is None
    node.prepared("u1", other)
    told = uuids(node, "u1")
    assert kept(node) == {"u1-lost-1": [lost]}
    state(node, "ok")
    node.read()
    assert node.preparer.recover().undone == ["u1-lost-1"]
    assert (node.instances(), node.instances(1)) == ([], [("1g.18gb", 6)])
    assert uuids(node, "u1") == told
    assert [record.phase for record in node.preparer.prepared()] == [Phase.PREPARED]
    assert node.unprepare("u1") is None
    node.nothing_left()


def test_what_a_crash_left_on_a_gpu_that_is_lost_by_now_is_undone_later(make: Make) -> None:
    node = make()

    class Crash(BaseException):
        """The process ends here."""

    def crash(point: str) -> None:
        if point == "gi-known":
            raise Crash

    node.faults = crash
    with pytest.raises(Crash):
        node.prepare("u1", node.name("1g.18gb", 6), node.gpu(1).name)
    node.faults = lambda _point: None
    state(node, "lost")
    node.start()
    assert len(node.preparer.recover().problems) == 1
    assert kept(node) == {"u1": [node.name("1g.18gb", 6)]}, "the whole GPU is free"
    state(node, "ok")
    assert node.preparer.recover().undone == ["u1"]
    node.nothing_left()


@pytest.mark.parametrize("function", ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances", "nvmlDeviceGetUUID"])
def test_a_gpu_may_be_lost_in_the_middle_of_a_look(make: Make, function: str) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.node.set_failures([Failure(function, int(NvmlReturn.GPU_IS_LOST))])
    assert node.unprepare("u1") is None
    assert list(kept(node)) == ["u1"]
    node.node.set_failures([])
    assert node.preparer.recover().undone == ["u1"]
    node.nothing_left()


@pytest.mark.bug("B62")
def test_while_no_uuid_can_be_read_what_stands_is_not_taken_for_somebody_elses(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.node.set_failures([Failure("nvmlDeviceGetUUID", int(NvmlReturn.UNKNOWN))])
    error = node.unprepare("u1")
    assert error is not None
    assert "gives no UUID" in str(error)
    assert node.instances() == [("1g.18gb", 6)]
    node.node.set_failures([])
    assert node.unprepare("u1") is None
    node.nothing_left()


def test_nothing_is_made_on_a_gpu_that_is_lost_since_the_last_reading(make: Make) -> None:
    node = make()
    state(node, "lost")
    error = node.refused("u1", node.name("1g.18gb", 6))
    assert error.reason is Reason.DEVICE_NOT_READY
    assert "is lost" in str(error)
    assert node.preparer.prepared() == ()
    state(node, "ok")
    node.prepared("u1", node.name("1g.18gb", 6))
