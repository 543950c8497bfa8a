"""MPS: which daemon serves which devices with which limits, what containers get, and what is left afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import ClaimError, Phase, Reason
from driver.prepare.config import MpsConfig
from driver.prepare.sharing.limits import pinned_limits
from driver.prepare.sharing.mps import MpsStep
from driver.prepare.sharing.process import DaemonError
from native.commands import CommandError
from native.smi import ComputeMode, NotSupportedError
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal
from tests.unit.prepare.prepare_node import claim, config, gpu_config, ref, result
from tests.unit.prepare.sharing_node import SharingNode, daemon, mps, share, slicing, uuid

EXCLUSIVE = ComputeMode.EXCLUSIVE_PROCESS


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


def edits(node: SharingNode, uid: str, index: int = 0) -> dict[str, Any]:
    spec = json.loads(node.spec_path(uid).read_text())
    found: dict[str, Any] = spec["devices"][index]["containerEdits"]
    return found


def test_a_claim_gets_a_daemon_for_its_gpus_with_its_limits(node: SharingNode) -> None:
    limits = mps(defaultActiveThreadPercentage=50, defaultPinnedDeviceMemoryLimit="1.5Gi", multiUser=True)
    prepare(node.start(), claim("u1", result(0), result(3), configs=[limits]))
    found = daemon(node)
    assert found.uuids == (uuid(0), uuid(3))
    assert (found.percentage, found.multi_user) == (50, True)
    assert found.limits == ((uuid(0), 1536), (uuid(3), 1536))
    assert node.smi.modes == {uuid(0): EXCLUSIVE, uuid(3): EXCLUSIVE}


def test_containers_get_the_pipe_folder_and_the_shared_memory(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    made = edits(node, "u1")
    assert "CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps" in made["env"]
    folders = node.daemons.folders(daemon(node).id)
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in made["mounts"]}
    assert mounts == {"/tmp/nvidia-mps": str(folders.pipe), "/dev/shm": str(folders.shm)}


def test_without_limits_nothing_is_limited(node: SharingNode) -> None:
    configs = [config(gpu_config(sharing={"strategy": "MPS"}))]
    prepare(node.start(), claim("u1", result(0), configs=configs))
    assert (daemon(node).percentage, daemon(node).limits, daemon(node).multi_user) == (None, (), False)
    zero = SharingNode(node.base / "zero")
    prepare(zero.start(), claim("u1", result(0), configs=[mps(defaultActiveThreadPercentage=0)]))
    assert daemon(zero).percentage is None


def test_the_end_of_the_claim_ends_the_daemon_and_opens_the_gpu(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.daemons.running == {}
    assert node.smi.modes == {uuid(0): ComputeMode.DEFAULT}


def test_requests_of_different_configuration_have_daemons_of_their_own(node: SharingNode) -> None:
    configs = [mps({"requests": ["a"]}, defaultActiveThreadPercentage=10), mps({"requests": ["b"]})]
    prepare(node.start(), claim("u1", result(0, "a"), result(1, "b"), result(2, "c"), configs=configs))
    served = {settings.uuids: settings.percentage for settings in node.daemons.running.values()}
    assert served == {(uuid(0),): 10, (uuid(1),): None}
    assert node.smi.modes.keys() == {uuid(0), uuid(1)}
    pipes = {edits(node, "u1", index)["mounts"][0]["hostPath"] for index in (0, 1)}
    assert len(pipes) == 2
    assert "mounts" not in edits(node, "u1", 2)


def test_time_slices_and_mps_stand_side_by_side_in_one_claim(node: SharingNode) -> None:
    """The claim of NVIDIA's quickstart for shared GPUs: two requests, two ways of sharing, four containers."""
    configs = [
        slicing("Long", requests=["ts-gpu"]),
        mps(
            {"requests": ["mps-gpu"]},
            defaultActiveThreadPercentage=50,
            defaultPinnedDeviceMemoryLimit="10Gi",
            defaultPerDevicePinnedMemoryLimit={"0": "5Gi"},
        ),
    ]
    preparer = node.start()
    prepare(preparer, claim("u1", result(0, "ts-gpu"), result(1, "mps-gpu"), configs=configs))
    assert node.smi.slices == {uuid(0): 3}
    assert node.smi.modes.get(uuid(1)) is EXCLUSIVE
    assert (daemon(node).uuids, daemon(node).percentage, daemon(node).limits) == ((uuid(1),), 50, ((uuid(1), 5120),))
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert (node.smi.slices[uuid(0)], node.smi.modes[uuid(1)]) == (0, ComputeMode.DEFAULT)


@pytest.mark.bug("B103")
def test_limits_are_keyed_by_uuid_index_or_all_and_the_most_exact_wins(node: SharingNode) -> None:
    keys = {"*": "1Gi", "1": "2Gi", uuid(4): "3Gi"}
    limits = mps(defaultPinnedDeviceMemoryLimit="9Gi", defaultPerDevicePinnedMemoryLimit=keys)
    prepare(node.start(), claim("u1", result(2), result(4), result(6), configs=[limits]))
    assert dict(daemon(node).limits) == {uuid(2): 1024, uuid(4): 3072, uuid(6): 1024}


@pytest.mark.bug("B103")
@pytest.mark.parametrize(
    ("key", "words"),
    [("2", "indices go from 0 to 1"), ("7", "for 2 device"), ("GPU-0a1b", "none of the devices"), ("MIG-1", uuid(0))],
)
def test_a_key_that_names_none_of_the_devices_is_refused_before_anything_happens(
    node: SharingNode, key: str, words: str
) -> None:
    limits = mps(defaultPerDevicePinnedMemoryLimit={key: "1Gi"})
    error = refusal(node.start(), claim("u1", result(0), result(1), configs=[limits]))
    assert (error.permanent, error.reason) == (True, Reason.INVALID_CONFIG)
    assert f"defaultPerDevicePinnedMemoryLimit[{key}]" in str(error)
    assert words in str(error)
    assert node.smi.calls == []
    assert node.daemons.running == {}


def test_one_server_for_several_users_needs_volta(node: SharingNode) -> None:
    node.change_gpu(0, cuda_compute_capability=(6, 1))
    error = refusal(node.start(), claim("u1", result(0), configs=[mps(multiUser=True)]))
    assert (error.permanent, error.reason) == (True, Reason.UNSUPPORTED_CONFIG)
    assert "compute capability 6.1" in str(error)


@pytest.mark.bug("B99")
def test_a_daemon_that_does_not_come_up_fails_the_claim_and_leaves_nothing(node: SharingNode) -> None:
    preparer = node.start()
    document = claim("u1", result(0), configs=[mps()])
    node.daemons.fault = DaemonError("the control daemon does not answer in time: no device")
    error = refusal(preparer, document)
    assert not error.permanent
    assert "does not answer in time: no device" in str(error)
    assert node.specs() == []
    node.daemons.fault = None
    prepare(preparer, document)
    assert node.daemons.starts == 1


@pytest.mark.bug("B98")
def test_the_compute_mode_is_set_back_when_the_daemon_cannot_be_started(node: SharingNode) -> None:
    preparer = node.start()
    starting = node.daemons.start

    def fail(*_arguments: object) -> None:
        raise DaemonError("no")

    node.daemons.start = fail  # type: ignore[method-assign]  # one call of the fake fails
    refusal(preparer, claim("u1", result(0), configs=[mps()]))
    assert node.smi.modes == {uuid(0): ComputeMode.DEFAULT}
    assert preparer.prepared() == ()
    node.daemons.start = starting  # type: ignore[method-assign]


def test_a_mode_that_cannot_be_set_fails_the_claim_and_one_that_is_not_supported_does_not(node: SharingNode) -> None:
    preparer = node.start()
    node.smi.faults["mode"] = CommandError("Insufficient Permissions", 4)
    assert "cannot be set for MPS" in str(refusal(preparer, claim("u1", result(0), configs=[mps()])))
    node.smi.faults["mode"] = NotSupportedError("Not Supported", 3)
    prepare(preparer, claim("u2", result(1), configs=[mps()]))


@pytest.mark.bug("B72")
def test_a_mode_that_is_lost_while_the_daemon_runs_on_is_set_again(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    node.smi.modes.clear()  # the GPU was reset
    restarted = node.start()
    assert restarted.recover().remade == ["u1"]
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    calls = len(node.smi.calls)
    assert restarted.recover().remade == []
    assert len(node.smi.calls) == calls, "what was just read is believed for a while"


def test_a_gpu_without_modes_is_not_asked_again_and_again(node: SharingNode) -> None:
    node.smi.faults["mode"] = NotSupportedError("Not Supported", 3)
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    assert preparer.recover().remade == []


def test_a_mode_that_cannot_be_read_is_told_and_the_claim_stays_as_it_is(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    node.smi.faults["read"] = CommandError("Unknown Error", 255)
    restarted = node.start()
    (problem,) = restarted.recover().problems
    assert "compute mode" in problem.message
    assert len(restarted.prepared()) == len(node.specs()) == 1


def test_a_daemon_that_does_not_end_keeps_the_claim(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    node.daemons.fault = DaemonError("cannot be ended")
    assert isinstance(preparer.unprepare([ref("u1")])["u1"], ClaimError)
    node.daemons.fault = None
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


@pytest.mark.bug("B72")
@pytest.mark.parametrize("reboot", [True, False])
def test_a_restarted_agent_has_the_same_daemon_again(node: SharingNode, reboot: bool) -> None:
    prepare(node.start(), claim("u1", result(0), configs=[mps(defaultActiveThreadPercentage=30)]))
    before, spec = daemon(node), node.spec_path("u1").read_bytes()
    node.daemons.running.clear()
    node.smi.modes.clear()
    if reboot:
        node.reboot()
    report = node.start().recover()
    assert (report.remade, report.problems) == (["u1"], [])
    assert daemon(node) == before
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert node.spec_path("u1").read_bytes() == spec


def test_daemons_that_died_with_the_agent_are_started_before_anything_is_known_of_the_node(node: SharingNode) -> None:
    document = claim("u1", result(0), configs=[mps(defaultActiveThreadPercentage=30)])
    prepare(node.start(), document)
    before = daemon(node)
    node.daemons.running.clear()
    node.ready = False
    later = node.start()
    step = next(step for step in node.steps() if isinstance(step, MpsStep))
    node.daemons.fault = DaemonError("not yet")
    step.resume(later.prepared())
    assert node.daemons.running == {}
    node.daemons.fault = None
    later.recover()
    step.resume(later.prepared())
    assert daemon(node) == before
    unfinished = [record.with_phase(Phase.UNPREPARING) for record in later.prepared()]
    node.daemons.running.clear()
    step.resume(unfinished)
    assert node.daemons.running == {}


@pytest.mark.bug("B99")
def test_another_pod_of_the_claim_is_not_told_that_all_is_well_while_the_daemon_is_gone(node: SharingNode) -> None:
    preparer = node.start()
    document = claim("u1", result(0), configs=[mps()])
    first = prepare(preparer, document)
    assert prepare(preparer, document) == first
    assert node.daemons.starts == 1
    node.daemons.running.clear()
    node.daemons.fault = DaemonError("does not answer in time")
    assert "does not answer in time" in str(refusal(preparer, document))
    assert node.specs() == ["u1"]
    node.daemons.fault = None
    assert prepare(preparer, document) == first
    assert node.daemons.starts == 2


def test_admin_access_is_served_beside_mps_and_changes_nothing(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[mps()]))
    prepare(preparer, claim("u2", result(0, adminAccess=True), configs=[mps({"source": "FromClass"})]))
    assert "mounts" not in edits(node, "u2")
    preparer.unprepare([ref("u2")])
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert len(node.daemons.running) == 1


@pytest.mark.bug("B102")
def test_claims_with_shares_of_a_gpu_have_one_daemon_and_the_last_one_ends_it(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1, shares="1", memory="10Gi"), configs=[mps()]))
    first = daemon(node).id
    prepare(preparer, claim("u2", share(0, 2, shares="2", memory="20Gi"), configs=[mps()]))
    assert daemon(node).id == first
    assert node.daemons.starts == 1
    preparer.unprepare([ref("u1")])
    assert daemon(node).id == first
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    preparer.unprepare([ref("u2")])
    assert node.daemons.running == {}
    assert node.smi.modes == {uuid(0): ComputeMode.DEFAULT}


def test_a_share_is_kept_to_its_part_by_cuda(node: SharingNode) -> None:
    prepare(node.start(), claim("u1", share(0, 1, shares="1", memory="20Gi"), configs=[mps()]))
    env = edits(node, "u1")["env"]
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in env
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=20480M" in env


@pytest.mark.bug("B102")
@pytest.mark.parametrize("other", [slicing("Long"), mps(defaultActiveThreadPercentage=20), None])
def test_claims_on_one_gpu_want_the_same_or_are_refused(node: SharingNode, other: dict[str, Any] | None) -> None:
    preparer = node.start()
    prepare(preparer, claim("u1", share(0, 1), configs=[mps(defaultActiveThreadPercentage=50)]))
    error = refusal(preparer, claim("u2", share(0, 2), configs=[other] if other else []))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "ns/claim-u1 (uid u1), which set it to MPS (50 % of the threads, no memory limit)" in str(error)
    assert node.smi.modes == {uuid(0): EXCLUSIVE}
    assert daemon(node).percentage == 50


def test_shares_of_several_gpus_cannot_be_served_by_mps(node: SharingNode) -> None:
    error = refusal(node.start(), claim("u1", share(0, 1), share(1, 2), configs=[mps()]))
    assert (error.permanent, error.reason) == (True, Reason.UNSUPPORTED_CONFIG)
    assert "reaches the daemon of one GPU only" in str(error)


@given(
    count=st.integers(1, 4),
    default=st.none() | st.integers(1, 4096),
    keyed=st.dictionaries(st.sampled_from(["*", "0", "1", "2", "3"]), st.integers(1, 4096), max_size=5),
)
def test_every_device_gets_the_most_exact_limit_or_the_key_is_refused(
    count: int, default: int | None, keyed: dict[str, int]
) -> None:
    from driver.prepare.records import DeviceRecord

    devices = [DeviceRecord("r", "p", f"d{i}", None, False, f"a{i}", f"GPU-{i}", f"cdi{i}") for i in range(count)]
    limits = tuple((key, f"{value}Mi") for key, value in keyed.items())
    made = MpsConfig(None, None if default is None else f"{default}Mi", limits)
    if any(key.isdigit() and int(key) >= count for key in keyed):
        with pytest.raises(ClaimError):
            pinned_limits(made, devices)
        return
    found = pinned_limits(made, devices)
    for index in range(count):
        assert found.get(f"cdi{index}") == keyed.get(str(index), keyed.get("*", default))


@pytest.mark.bug("B102")
def test_claims_that_share_a_daemon_and_go_in_one_call_leave_none(node: SharingNode) -> None:
    preparer = node.start()
    for number, uid in enumerate(("u1", "u2")):
        prepare(preparer, claim(uid, share(0, number), configs=[mps()]))
    assert preparer.unprepare([ref("u1"), ref("u2")]) == {"u1": None, "u2": None}
    assert node.daemons.running == {}
    assert node.smi.modes == {uuid(0): ComputeMode.DEFAULT}
