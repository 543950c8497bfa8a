"""Partitions that an administrator makes: handed out as they are, never destroyed, and told when they are gone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.model import MigSupport
from driver.prepare import ClaimError, PatientPreparer, Reason
from native.mock import MockNode
from native.mock.profile import Failure
from native.nvml.errors import NvmlReturn
from tests.support.cdispecs import given
from tests.support.mignodes import MigNode, claim

Make = Callable[..., MigNode]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A node in MIG mode with these instances on its first GPU, and a driver that hands out what it finds."""
    monkeypatch.setenv("GPUDRA_MOCK_QUIET", "1")

    def made(*instances: str, compute: str = "-C") -> MigNode:
        for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
            monkeypatch.setenv(name, "")
        mock = MockNode.create(tmp_path / "node", "h100-nvl")  # MIG is on there
        if instances:
            arguments = ("-cgi", ",".join(instances), compute)
            mock.nvidia_smi("mig", "-i", "0", *(part for part in arguments if part))
        node = MigNode(mock, tmp_path, MigSupport.STATIC)
        node.read()
        return node

    return made


def destroy(node: MigNode, start: int) -> None:
    (found,) = [one for one in node.node.instances(node.node.profile.gpus[0].address) if one.start == start]
    node.node.nvidia_smi("mig", "-i", "0", "-dci", "-gi", str(found.id))
    node.node.nvidia_smi("mig", "-i", "0", "-dgi", "-gi", str(found.id))


def make_anew(node: MigNode) -> None:
    """What stands in the first slice becomes another partition of the same profile."""
    destroy(node, 0)
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "19:0", "-C")


def uuid_of(node: MigNode, uid: str) -> str:
    (device,) = given(json.loads(node.spec(uid).read_text()))
    return str(device["containerEdits"]["env"][0].partition("=")[2])


def test_a_claim_gets_the_partition_that_stands_and_leaves_it_standing(make: Make) -> None:
    node = make("9:4", "19:0")
    before = node.gpu().partitions
    node.prepared("u1", node.name("3g.47gb", 4))
    assert uuid_of(node, "u1") == before[1].uuid
    assert node.unprepare("u1") is None
    assert node.read().gpus[0].partitions == before
    assert not node.spec("u1").exists()


def test_partitions_of_one_gpu_go_to_different_claims_and_the_same_one_does_not(make: Make) -> None:
    node = make("9:4", "19:0")
    node.prepared("u1", node.name("3g.47gb", 4))
    node.prepared("u2", node.name("1g.12gb", 0))
    error = node.refused("u3", node.name("3g.47gb", 4))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "claim ns/claim-u1" in str(error)


def test_the_gpu_beside_its_partitions_is_refused(make: Make) -> None:
    node = make("19:0")
    assert "is in MIG mode" in str(node.refused("u1", node.gpu().name))


@pytest.mark.bug("B94")
def test_a_partition_that_does_not_stand_is_an_error_that_names_what_does(make: Make) -> None:
    node = make("19:0")
    error = node.refused("u1", node.name("3g.47gb", 4))
    assert error.permanent
    assert error.reason is Reason.DEVICE_NOT_FOUND
    assert node.name("1g.12gb", 0) in str(error)
    assert "nvidia-smi mig" in str(error)


@pytest.mark.bug("B94")
def test_what_an_administrator_makes_and_destroys_is_seen_with_the_next_reading(make: Make) -> None:
    node = make("19:0")
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "14:2", "-C")
    assert [one.profile for one in node.read().gpus[0].partitions] == ["1g.12gb", "2g.24gb"]
    node.prepared("u1", node.name("2g.24gb", 2))
    destroy(node, 0)
    assert [one.profile for one in node.read().gpus[0].partitions] == ["2g.24gb"]
    assert node.refused("u2", node.name("1g.12gb", 0)).permanent


@pytest.mark.bug("B94")
def test_between_two_readings_a_destroyed_partition_is_an_error_that_names_what_stands(make: Make) -> None:
    node = make("19:0", "9:4")
    destroy(node, 0)
    error = node.refused("u1", node.name("1g.12gb", 0))
    assert error.reason is Reason.NODE_CHANGED
    assert not error.permanent
    assert f"no MIG device {node.name('1g.12gb', 0)} on GPU {node.gpu().uuid} now: it was destroyed" in str(error)
    assert "3g.47gb, memory slices 4 to 7" in str(error)
    assert node.asked == 1
    assert not node.spec("u1").exists()
    assert node.preparer.prepared() == ()


@pytest.mark.bug("B88")
def test_between_two_readings_a_partition_that_was_made_anew_is_not_given_under_its_old_uuid(make: Make) -> None:
    node = make("19:0")
    before = node.gpu().partitions[0].uuid
    make_anew(node)
    error = node.refused("u1", node.name("1g.12gb", 0))
    assert error.reason is Reason.NODE_CHANGED
    assert f"was MIG device {before} at the last reading" in str(error)
    assert not node.spec("u1").exists()
    assert node.asked == 1
    after = node.read().gpus[0].partitions[0].uuid
    node.prepared("u1", node.name("1g.12gb", 0))
    assert uuid_of(node, "u1") == after != before


@pytest.mark.bug("B88")
def test_a_claim_waits_for_the_reading_that_it_asked_for_and_gets_what_stands(make: Make) -> None:
    node = make("19:0")
    make_anew(node)
    patient = PatientPreparer(node.preparer, 30.0)

    def read_anew() -> None:
        node.read()
        patient.changed()

    node.on_ask = read_anew
    answer = patient.prepare({"u1": claim("u1", node.name("1g.12gb", 0))})["u1"]
    assert not isinstance(answer, ClaimError), answer
    assert uuid_of(node, "u1") == node.gpu().partitions[0].uuid
    assert node.asked == 1


@pytest.mark.bug("B88")
def test_another_partition_on_the_same_slices_is_not_given_in_its_place(make: Make) -> None:
    node = make("19:0")
    destroy(node, 0)
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "14:0", "-C")  # 2g.24gb, with the same ids
    error = node.refused("u1", node.name("1g.12gb", 0))
    assert "2g.24gb, memory slices 0 to 1" in str(error)
    assert node.spec("u1").exists() is False


def test_a_part_of_a_partition_is_not_given_for_all_of_it(make: Make) -> None:
    node = make("9:4")
    (found,) = node.node.instances(node.node.profile.gpus[0].address)
    node.node.nvidia_smi("mig", "-i", "0", "-dci", "-gi", str(found.id))
    node.node.nvidia_smi("mig", "-i", "0", "-cci", "0", "-gi", str(found.id))  # 1c.3g.47gb
    assert "it was destroyed" in str(node.refused("u1", node.name("3g.47gb", 4)))


@pytest.mark.bug("B88")
def test_a_repeated_prepare_is_not_answered_with_a_uuid_that_is_gone(make: Make) -> None:
    node = make("19:0")
    name = node.name("1g.12gb", 0)
    first = node.prepared("u1", name)
    assert node.prepared("u1", name) == first
    make_anew(node)
    assert node.refused("u1", name).reason is Reason.NODE_CHANGED
    node.read()
    assert "somebody partitioned the GPU anew" in str(node.refused("u1", name))
    assert node.unprepare("u1") is None
    node.prepared("u1", name)


def test_the_partition_of_a_gpu_that_is_lost_is_not_given(make: Make) -> None:
    node = make("19:0")
    node.node.set_gpu_state(node.node.profile.gpus[0].address, "lost")
    error = node.refused("u1", node.name("1g.12gb", 0))
    assert error.reason is Reason.DEVICE_NOT_READY
    assert "is lost" in str(error)
    node.node.set_gpu_state(node.node.profile.gpus[0].address, "ok")
    node.prepared("u1", node.name("1g.12gb", 0))


@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlDeviceGetGpuInstancePossiblePlacements*"]
)
def test_while_nvml_does_not_tell_what_stands_nobody_says_that_it_was_destroyed(make: Make, call: str) -> None:
    node = make("19:0", "19:1")
    name, other = node.name("1g.12gb", 0), node.name("1g.12gb", 1)
    ids = node.prepared("u1", name)
    before = node.spec("u1").read_bytes()
    node.node.set_failures([Failure(call, NvmlReturn.UNKNOWN)])
    node.read()
    report = node.preparer.recover()
    assert (report.problems, report.waiting) == ([], ["u1"])
    assert node.spec("u1").read_bytes() == before
    error = node.prepare("u2", other)
    assert isinstance(error, ClaimError)
    assert "NVML does not tell" in str(error)
    assert (error.reason, error.permanent) == (Reason.DEVICE_NOT_READY, False)
    node.node.set_failures([])
    node.read()
    assert node.preparer.recover().waiting == []
    assert node.prepared("u1", name) == ids


@pytest.mark.bug("B94")
def test_a_prepared_partition_that_was_destroyed_is_a_problem_and_can_be_unprepared(make: Make) -> None:
    node = make("19:0")
    node.prepared("u1", node.name("1g.12gb", 0))
    destroy(node, 0)
    node.read()
    (problem,) = node.preparer.recover().problems
    assert "claim ns/claim-u1" in problem.subject
    assert "destroyed while the claim held it" in problem.message
    assert node.unprepare("u1") is None


@pytest.mark.bug("B88")
def test_another_partition_in_the_same_place_is_not_the_claims(make: Make) -> None:
    node = make("19:0")
    node.prepared("u1", node.name("1g.12gb", 0))
    destroy(node, 0)
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "19:0", "-C")
    node.read()
    (problem,) = node.preparer.recover().problems
    assert "somebody partitioned the GPU anew" in problem.message
    assert not node.spec("u1").exists(), "a container that starts now must fail rather than get what is not its own"
    assert node.unprepare("u1") is None
    node.prepared("u2", node.name("1g.12gb", 0))


@pytest.mark.bug("B72")
def test_after_a_reboot_a_partition_that_was_made_again_is_the_claims_with_its_new_uuid(make: Make) -> None:
    node = make("19:0")
    node.prepared("u1", node.name("1g.12gb", 0))
    before = uuid_of(node, "u1")
    node.reboot()
    node.node.nvidia_smi("-i", "0", "-mig", "1")
    node.node.nvidia_smi("mig", "-i", "0", "-cgi", "19:0", "-C")  # as an administrator's service does at the start
    node.start()
    node.read()
    report = node.preparer.recover()
    assert (report.problems, report.remade) == ([], ["u1"])
    assert uuid_of(node, "u1") == node.gpu().partitions[0].uuid != before
    assert node.preparer.recover().remade == []


@pytest.mark.bug("B72")
def test_after_a_reboot_without_its_partition_a_claim_waits_and_can_be_unprepared(make: Make) -> None:
    node = make("19:0")
    node.prepared("u1", node.name("1g.12gb", 0))
    node.reboot()
    node.node.nvidia_smi("-i", "0", "-mig", "1")
    node.start()
    node.read()
    report = node.preparer.recover()
    assert report.waiting == ["u1"]
    assert "there is no MIG device" in report.problems[0].message
    assert node.unprepare("u1") is None


def test_parts_of_a_partition_go_to_different_claims(make: Make) -> None:
    node = make("9:4", compute="")
    (found,) = node.node.instances(node.node.profile.gpus[0].address)
    node.node.nvidia_smi("mig", "-i", "0", "-cci", "0,0,0", "-gi", str(found.id))
    names = [f"{node.name('3g.47gb', 4)}-c{start}".replace("-mig-3g", "-mig-1c-3g") for start in range(3)]
    assert len(node.read().gpus[0].partitions) == 3
    for number, name in enumerate(names):
        node.prepared(f"u{number}", name)
    assert len({uuid_of(node, f"u{number}") for number in range(3)}) == 3
    assert node.refused("u3", names[1]).reason is Reason.DEVICE_IN_USE


def test_turned_off_no_partition_is_handed_out(make: Make) -> None:
    node = make("19:0")
    node.mig = MigSupport.OFF
    node.start()
    error = node.refused("u1", node.name("1g.12gb", 0))
    assert error.permanent
    assert "turned off" in str(error)


def test_records_of_partitions_made_for_claims_are_kept_when_the_setting_is_taken_back(make: Make) -> None:
    node = make()
    node.mig = MigSupport.DYNAMIC
    node.start()
    node.read()
    node.prepared("u1", node.name("1g.12gb", 0))
    node.mig = MigSupport.STATIC
    node.start()
    assert node.unprepare("nobody") is None
    node.read()
    assert node.preparer.recover().problems == []
    assert node.spec("u1").exists()
    error = node.refused("u2", node.name("1g.12gb", 0))
    assert error.reason is Reason.DEVICE_IN_USE
    assert node.unprepare("u1") is None
    assert node.instances() == []
