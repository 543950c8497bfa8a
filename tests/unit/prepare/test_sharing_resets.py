"""A GPU that is reset under a claim that shares it: noticed at the next reading; nothing is asked when all is well."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver.model import GpuState
from driver.prepare import Preparer
from driver.prepare.sharing.process import DaemonError
from native.commands import CommandError
from native.smi import ComputeMode, NotSupportedError
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_node import claim, gpu, ref, result
from tests.unit.prepare.sharing_node import SharingNode, daemon, mps, share, slicing, uuid

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS
ADDRESS = str(gpu(0).address)


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


def with_mps(node: SharingNode) -> Preparer:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    assert preparer.recover().remade == []
    return preparer


def with_slices(node: SharingNode) -> Preparer:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[slicing("Long")]))
    assert preparer.recover().remade == []
    return preparer


@pytest.mark.parametrize("tells_modes", [True, False])
@pytest.mark.parametrize("held", [with_mps, with_slices])
def test_when_nothing_happens_no_reading_and_no_repeated_prepare_asks_nvidia_smi(
    node: SharingNode, held: Callable[[SharingNode], Preparer], tells_modes: bool
) -> None:
    node.tells_modes = tells_modes
    node.bindings[ADDRESS] = 1
    preparer = held(node)
    document = claim("u1", result(0), configs=[mps() if held is with_mps else slicing("Long")])
    calls = list(node.smi.calls)
    for _ in range(5):
        assert preparer.recover().remade == []
        prepare(preparer, document)
    assert node.smi.calls == calls
    assert node.daemons.renewals == 0


@pytest.mark.bug("B72")
def test_a_mode_that_nvml_tells_is_lost_is_set_again_at_the_next_reading(
    node: SharingNode, caplog: pytest.LogCaptureFixture
) -> None:
    node.tells_modes = True
    preparer = with_mps(node)
    node.reset(0)
    with caplog.at_level(logging.WARNING):
        assert preparer.recover().remade == ["u1"]
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert f"GPU {uuid(0)} has compute mode DEFAULT, not EXCLUSIVE_PROCESS" in caplog.text
    assert node.daemons.renewals == 0, "programs may run on where somebody has only set another mode"
    calls = list(node.smi.calls)
    assert preparer.recover().remade == []
    assert node.smi.calls == calls


def test_a_reading_from_before_the_mode_was_set_costs_one_call_and_no_change(node: SharingNode) -> None:
    node.tells_modes = True
    preparer = node.start()
    early = node.inventory()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    node.smi.calls.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "inventory", lambda: early)  # a reading that took long
        restarted = node.start()
        assert restarted.recover().remade == []
    assert node.smi.calls == ["read mode"]


@pytest.mark.bug("B72")
def test_a_gpu_that_was_lost_and_comes_back_has_its_mode_and_a_daemon_of_now(node: SharingNode) -> None:
    preparer = with_mps(node)
    node.change_gpu(0, state=GpuState.LOST, reason="GPU_IS_LOST")
    report = preparer.recover()
    assert [problem.subject for problem in report.problems] == ["claim ns/claim-u1 (uid u1)"]
    assert node.daemons.renewals == 0
    node.reset(0)
    node.change_gpu(0, state=GpuState.READY, reason=None)
    assert preparer.recover().remade == ["u1"]
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert node.daemons.renewals == 1
    calls = list(node.smi.calls)
    assert preparer.recover().remade == []
    assert (node.smi.calls, node.daemons.renewals) == (calls, 1)


@pytest.mark.parametrize("way", ["hot plug", "driver bound anew", "another driver"])
def test_every_way_in_which_a_gpu_is_taken_from_its_programs_gives_the_daemon_up(node: SharingNode, way: str) -> None:
    node.bindings[ADDRESS] = 7
    preparer = with_mps(node)
    if way == "hot plug":
        before = node.gpus
        node.drop_gpu(0)
        preparer.recover()
        node.gpus = before
    elif way == "driver bound anew":
        node.bindings[ADDRESS] = 8
    else:
        node.driver_version = "590.48.01"
    node.reset(0)
    assert preparer.recover().remade == ["u1"]
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert node.daemons.renewals == 1
    assert preparer.recover().remade == []


@pytest.mark.parametrize("state", [GpuState.WEDGED, GpuState.UNREADABLE])
def test_a_gpu_that_only_did_not_answer_is_looked_at_and_its_programs_go_on(node: SharingNode, state: GpuState) -> None:
    preparer = with_mps(node)
    node.change_gpu(0, state=state, reason="nvmlDeviceGetUUID: TIMEOUT")
    preparer.recover()
    node.change_gpu(0, state=GpuState.READY, reason=None)
    node.smi.calls.clear()
    assert preparer.recover().remade == []
    assert node.smi.calls == ["read mode"]
    assert node.daemons.renewals == 0
    assert preparer.recover().remade == []
    assert node.smi.calls == ["read mode"]


def test_another_gpu_that_is_lost_says_nothing_of_this_one(node: SharingNode) -> None:
    preparer = with_mps(node)
    calls = list(node.smi.calls)
    for state in (GpuState.LOST, GpuState.READY):
        node.change_gpu(5, state=state, reason=None)
        assert preparer.recover().remade == []
    assert (node.smi.calls, node.daemons.renewals) == (calls, 0)


def test_a_reading_that_may_lack_gpus_takes_none_for_lost(node: SharingNode) -> None:
    preparer = with_mps(node)
    found = node.inventory()
    assert found is not None
    node.sightings.look(replace(found, gpus=found.gpus[1:], gpus_known=False))
    assert preparer.recover().remade == []
    assert node.daemons.renewals == 0


def test_a_daemon_that_does_not_come_up_anew_is_tried_again_with_the_next_reading(node: SharingNode) -> None:
    node.bindings[ADDRESS] = 7
    preparer = with_mps(node)
    node.bindings[ADDRESS] = 8
    node.daemons.fault = DaemonError("no device")
    (problem,) = preparer.recover().problems
    assert "no device" in problem.message
    node.daemons.fault = None
    assert preparer.recover().remade == ["u1"]
    assert node.daemons.renewals == 1


def test_claims_with_shares_of_a_gpu_get_one_daemon_anew_together(node: SharingNode) -> None:
    node.bindings[ADDRESS] = 7
    preparer = node.start()
    for number, uid in enumerate(("u1", "u2")):
        prepare(preparer, claim(uid, share(0, number), configs=[mps()]))
    assert preparer.recover().remade == []
    node.bindings[ADDRESS] = 8
    node.reset(0)
    preparer.recover()
    assert node.daemons.renewals == 1
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert preparer.recover().remade == []
    preparer.unprepare([ref("u1"), ref("u2")])
    assert node.daemons.running == {}


def test_a_claim_that_comes_after_a_loss_gets_a_daemon_that_stays(node: SharingNode) -> None:
    preparer = with_mps(node)
    for state in (GpuState.LOST, GpuState.READY):
        node.change_gpu(3, state=state, reason=None)
        preparer.recover()
    prepare(preparer, claim("u2", result(3), configs=[mps()]))
    assert preparer.recover().remade == []
    assert node.daemons.renewals == 0


def test_a_restarted_agent_leaves_the_daemon_that_it_finds(node: SharingNode) -> None:
    node.bindings[ADDRESS] = 7
    with_mps(node)
    node.bindings[ADDRESS] = 8
    node.start().recover()
    later = node.start()
    assert later.recover().remade == []
    assert node.daemons.renewals == 0
    node.bindings[ADDRESS] = 9
    assert later.recover().remade == ["u1"]
    assert node.daemons.renewals == 1


@pytest.mark.bug("B99")
def test_a_daemon_that_was_killed_under_its_claim_runs_again_at_the_next_reading(node: SharingNode) -> None:
    preparer = with_mps(node)
    before = daemon(node)
    node.daemons.running.clear()
    assert preparer.recover().remade == ["u1"]
    assert daemon(node) == before


@pytest.mark.bug("B72")
@pytest.mark.parametrize("way", ["lost", "driver bound anew", "let go"])
def test_a_time_slice_that_went_with_a_reset_is_set_again_at_the_next_reading(
    node: SharingNode, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.bindings[ADDRESS] = 7
    preparer = with_slices(node)
    if way == "lost":
        node.change_gpu(0, state=GpuState.LOST, reason="GPU_IS_LOST")
        preparer.recover()
        node.change_gpu(0, state=GpuState.READY, reason=None)
    elif way == "driver bound anew":
        node.bindings[ADDRESS] = 8
    else:
        assert node.sightings.rest(1.0)
        node.sightings.go_on()
    node.reset(0)
    with caplog.at_level(logging.WARNING):
        assert preparer.recover().remade == ["u1"]
    assert node.smi.slices == {uuid(0): 3}
    assert f"GPU {uuid(0)} has time slice 0, not 3" in caplog.text
    calls = list(node.smi.calls)
    assert preparer.recover().remade == []
    assert node.smi.calls == calls


def test_a_doubt_that_proves_unfounded_costs_one_call(node: SharingNode) -> None:
    preparer = with_slices(node)
    node.smi.calls.clear()
    node.sightings.interrupted()
    for _ in range(3):
        assert preparer.recover().remade == []
    assert node.smi.calls == ["read slice"]


def test_a_gpu_without_modes_is_not_asked_after_a_doubt_either(node: SharingNode) -> None:
    node.tells_modes = True
    node.smi.faults["mode"] = NotSupportedError("Not Supported", 3)
    preparer = with_mps(node)
    calls = list(node.smi.calls)
    node.sightings.interrupted()
    assert preparer.recover().remade == []
    assert node.smi.calls == calls


def test_what_cannot_be_read_after_a_doubt_is_told_and_asked_again(node: SharingNode) -> None:
    preparer = with_slices(node)
    node.sightings.interrupted()
    node.reset(0)
    node.smi.faults["read"] = CommandError("Unknown Error", 255)
    report = preparer.recover()
    assert [problem.subject for problem in report.problems] == ["claim ns/claim-u1 (uid u1)"]
    node.smi.faults.clear()
    assert preparer.recover().remade == ["u1"]
    assert node.smi.slices == {uuid(0): 3}
