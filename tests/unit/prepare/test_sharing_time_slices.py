"""Time slices: set for who asks, agreed upon by who shares, set back by the last, never in the way of a pod's end."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.prepare import ClaimError, Reason
from native.commands import CommandError
from native.smi import ComputeMode, NotSupportedError
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal
from tests.unit.prepare.prepare_node import claim, gpu_config, ref, result
from tests.unit.prepare.prepare_node import config as entry
from tests.unit.prepare.sharing_node import SharingNode, share, slicing, uuid


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


@pytest.mark.bug("B97")
def test_a_claim_that_asks_for_nothing_changes_nothing(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0)))
    prepare(preparer, claim("u2", result(1), configs=[entry(gpu_config(sharing={}))]))
    preparer.unprepare([ref("u1"), ref("u2")])
    assert node.smi.calls == []


@pytest.mark.parametrize(("interval", "level"), [("Short", 1), ("Medium", 2), ("Long", 3), ("Default", 0), (None, 0)])
def test_a_slice_is_set_and_set_back(node: SharingNode, interval: str | None, level: int) -> None:
    preparer = node.start()
    node.smi.modes[uuid(0)] = ComputeMode.EXCLUSIVE_PROCESS
    node.smi.slices[uuid(0)] = 2
    prepare(preparer, claim("u1", result(0), configs=[slicing(interval)]))
    assert (node.smi.slices[uuid(0)], node.smi.modes[uuid(0)]) == (level, ComputeMode.DEFAULT)
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert (node.smi.slices[uuid(0)], node.smi.modes[uuid(0)]) == (2, ComputeMode.EXCLUSIVE_PROCESS)


def test_only_the_gpus_of_the_configured_request_are_set(node: SharingNode) -> None:
    document = claim("u1", result(0, "a"), result(1, "b/sub"), configs=[slicing("Long", requests=["b"])])
    prepare(node.start(), document)
    assert node.smi.slices == {uuid(1): 3}


def test_preparing_again_costs_no_call(node: SharingNode) -> None:
    preparer = node.start()
    document = claim("u1", result(0), configs=[slicing("Long")])
    prepare(preparer, document)
    calls = len(node.smi.calls)
    prepare(preparer, document)
    preparer.recover()
    assert len(node.smi.calls) == calls


@pytest.mark.bug("B72")
def test_after_a_reboot_and_a_restart_the_slice_is_set_again(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[slicing("Long")]))
    node.reboot()
    node.smi.slices.clear()
    assert node.start().recover().remade == ["u1"]
    assert node.smi.slices[uuid(0)] == 3


@pytest.mark.bug("B97")
def test_a_gpu_without_slices_serves_the_default_and_refuses_others_for_good(node: SharingNode) -> None:
    preparer = node.start()
    node.smi.faults["slice"] = NotSupportedError("Not Supported", 3)
    prepare(preparer, claim("u1", result(0), configs=[slicing("Default")]))
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    error = refusal(preparer, claim("u2", result(0), configs=[slicing("Long")]))
    assert (error.permanent, error.reason) == (True, Reason.UNSUPPORTED_CONFIG)
    assert "use interval Default" in str(error)
    assert preparer.prepared() == ()


def test_a_failure_is_told_and_undone(node: SharingNode) -> None:
    preparer = node.start()
    node.smi.faults["slice"] = CommandError("nvidia-smi did not end within 10 s")
    error = refusal(preparer, claim("u1", result(0), configs=[slicing("Long")]))
    assert not error.permanent
    assert "cannot be set to Long: nvidia-smi did not end" in str(error)
    assert preparer.prepared() == ()
    assert node.specs() == []


def test_a_slice_that_is_lost_later_is_noticed(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[slicing("Long")]))
    node.smi.slices[uuid(0)] = 0
    restarted = node.start()
    assert restarted.recover().remade == ["u1"]
    assert node.smi.slices[uuid(0)] == 3


@pytest.mark.parametrize("fault", [CommandError("lost", 15), CommandError("no driver", 9), CommandError("hangs", None)])
def test_a_gpu_that_is_gone_does_not_keep_a_pod_from_ending(node: SharingNode, fault: CommandError) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[slicing("Long")]))
    node.smi.faults["slice"] = fault
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


def test_a_setting_that_cannot_be_taken_back_is_tried_again(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[slicing("Long")]))
    node.smi.faults["slice"] = CommandError("Insufficient Permissions", 4)
    (error,) = preparer.unprepare([ref("u1")]).values()
    assert isinstance(error, ClaimError)
    assert not error.permanent
    assert "cannot be set back" in str(error)
    node.smi.faults.clear()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.smi.slices[uuid(0)] == 0


@pytest.mark.bug("B102")
def test_claims_that_share_a_gpu_agree_and_the_last_one_sets_it_back(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1), configs=[slicing("Long")]))
    prepare(preparer, claim("u2", share(0, 2), configs=[slicing("Long")]))
    error = refusal(preparer, claim("u3", share(0, 3), configs=[slicing("Short")]))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "shared with claim ns/claim-u1 (uid u1), which set it to time slices (Long)" in str(error)
    assert node.smi.slices[uuid(0)] == 3
    preparer.unprepare([ref("u1")])
    assert node.smi.slices[uuid(0)] == 3
    preparer.unprepare([ref("u2")])
    assert node.smi.slices[uuid(0)] == 0
    prepare(preparer, claim("u3", share(0, 3), configs=[slicing("Short")]))


def test_no_configuration_and_the_default_go_together(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1)))
    prepare(preparer, claim("u2", share(0, 2), configs=[slicing()]))
    assert "set it to time slices (Default)" in str(
        refusal(preparer, claim("u3", share(0, 3), configs=[slicing("Long")]))
    )


def test_two_shares_in_one_claim_agree_too(node: SharingNode) -> None:
    document = claim("u1", share(0, 1, "a"), share(0, 2, "b"), configs=[slicing("Long", requests=["a"])])
    error = refusal(node.start(), document)
    assert error.permanent
    assert "requests a and b" in str(error)


def test_admin_access_changes_nothing(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[slicing("Long")]))
    calls = len(node.smi.calls)
    prepare(preparer, claim("u2", result(0, adminAccess=True), configs=[slicing("Short", source="FromClass")]))
    error = refusal(preparer, claim("u3", result(0, adminAccess=True), configs=[slicing("Short")]))
    assert (error.permanent, error.reason) == (True, Reason.INVALID_CONFIG)
    preparer.unprepare([ref("u2")])
    assert len(node.smi.calls) == calls
    assert node.smi.slices[uuid(0)] == 3
