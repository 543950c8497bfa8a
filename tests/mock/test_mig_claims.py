"""Partitions that are made for claims: what stands on the mock's GPUs, what containers get, what is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from driver.prepare import ClaimError, Reason
from native.mock.control import Process
from native.mock.profile import Failure
from native.nvml.errors import NvmlReturn
from tests.support.mignodes import Make, listed, maker, uuids


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A node of a profile with a driver on it that has looked at it once."""
    return maker(tmp_path, monkeypatch)


def test_a_claim_gets_the_partition_that_it_was_given_and_nothing_is_left_behind(make: Make) -> None:
    node = make()
    name = node.name("3g.71gb", 4)
    (device,) = node.prepared("u1", name)
    assert device.device == name
    assert node.instances() == [("3g.71gb", 4)]
    assert node.mode() == (1, 1)
    (partition,) = node.read().gpus[0].partitions
    assert uuids(node, "u1") == [partition.uuid]
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B79")
def test_a_container_sees_its_mig_device_and_no_other(make: Make, tmp_path: Path) -> None:
    node = make()
    names = [node.name("1g.18gb", 6), node.name("2g.35gb", 0), node.name("1g.18gb+me", 5)]
    for number, name in enumerate(names):
        node.prepared(f"u{number}", name)
    for number in range(len(names)):
        lines = listed(node, f"u{number}", tmp_path)
        assert [line for line in lines if "MIG " in line] == [lines[1]]
        assert uuids(node, f"u{number}")[0] in lines[1]
    nodes = json.loads(node.spec("u0").read_text())["devices"][0]["containerEdits"]["deviceNodes"]
    kinds = [entry["path"].rstrip("0123456789") for entry in nodes]
    assert kinds == ["/dev/nvidia", "/dev/nvidia-caps/nvidia-cap", "/dev/nvidia-caps/nvidia-cap"]


def test_two_partitions_of_one_claim_are_two_devices(make: Make, tmp_path: Path) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 0), node.name("1g.18gb", 1))
    assert node.instances() == [("1g.18gb", 0), ("1g.18gb", 1)]
    lines = listed(node, "u1", tmp_path)
    assert [any(uuid in line for line in lines) for uuid in uuids(node, "u1")] == [True, True]
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_a_gpu_is_filled_and_emptied_in_any_order(make: Make, order: tuple[int, ...]) -> None:
    node = make()
    names = [node.name("1g.18gb", 6), node.name("1g.35gb", 4), node.name("2g.35gb", 2), node.name("2g.35gb", 0)]
    for number, name in enumerate(names):
        node.prepared(f"u{number}", name)
    assert len(node.instances()) == 4
    for number in order:
        assert node.unprepare(f"u{number}") is None
    node.nothing_left()


def test_a_repeated_prepare_is_answered_without_another_partition(make: Make) -> None:
    node = make()
    name = node.name("2g.35gb", 0)
    first = node.prepared("u1", name)
    assert node.prepared("u1", name) == first
    assert node.instances() == [("2g.35gb", 0)]


def test_what_overlaps_is_refused_with_the_other_claim_named_and_siblings_are_not(make: Make) -> None:
    node = make()
    gpu = node.gpu().name
    node.prepared("u1", node.name("3g.71gb", 4))
    for other in (gpu, node.name("7g.141gb", 0), node.name("1g.18gb", 5), node.name("1g.35gb", 6)):
        error = node.refused("u2", other)
        assert error.reason is Reason.DEVICE_IN_USE
        assert "claim ns/claim-u1" in str(error)
        assert node.name("3g.71gb", 4) in str(error)
    node.prepared("u3", node.name("4g.71gb", 0))
    node.prepared("u4", node.gpu(1).name)
    assert node.instances() == [("4g.71gb", 0), ("3g.71gb", 4)]


def test_too_few_engines_are_told_before_anything_is_made(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb+me", 6))
    error = node.refused("u2", node.name("1g.18gb+me", 0))
    assert "ofa engines: 1 wanted, 0 of 1 left" in str(error)
    assert node.instances() == [("1g.18gb+me", 6)]
    assert [record.ref.uid for record in node.preparer.prepared()] == ["u1"]


def test_a_whole_gpu_takes_the_mode_off_again(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.node.nvidia_smi("-i", address, "-mig", "1")
    node.read()
    node.prepared("u1", node.gpu().name)
    assert node.mode() == (0, 0)
    assert node.unprepare("u1") is None
    node.nothing_left()


def test_a_whole_gpu_follows_a_partition_before_the_next_reading(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.read()
    assert node.gpu().mig_enabled
    assert node.unprepare("u1") is None
    node.prepared("u2", node.gpu().name)
    node.prepared("u3", node.name("1g.18gb", 6, 1))
    node.unprepare("u2")
    node.prepared("u4", node.name("1g.18gb", 6))


@pytest.mark.bug("B88")
@pytest.mark.bug("B96")
def test_what_an_administrator_made_is_in_the_way_and_is_never_destroyed(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    address = node.node.profile.gpus[0].address
    node.node.nvidia_smi("mig", "-i", address, "-cgi", "14:0", "-C")  # 2g.35gb, at the start
    (theirs,) = [one for one in node.instances() if one[0] == "2g.35gb"]
    for wanted in (node.name("2g.35gb", theirs[1]), node.name("1g.18gb", theirs[1] + 1)):
        error = node.refused("u2", wanted)
        assert "no claim of this driver made it" in str(error)
        assert error.reason is Reason.DEVICE_NOT_READY
    assert node.unprepare("u1") is None
    assert node.unprepare("u2") is None
    node.start().recover()
    assert node.instances() == [theirs]
    assert node.mode() == (1, 1), "it is in use"


@pytest.mark.bug("B88")
def test_a_partition_that_was_replaced_under_the_claim_is_left_alone(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6))
    (mine,) = node.node.instances(address)
    node.node.nvidia_smi("mig", "-i", address, "-dci", "-gi", str(mine.id))
    node.node.nvidia_smi("mig", "-i", address, "-dgi", "-gi", str(mine.id))
    node.node.nvidia_smi("mig", "-i", address, "-cgi", "19:6", "-C")
    assert node.instances() == [("1g.18gb", 6)]
    assert node.unprepare("u1") is None
    assert node.instances() == [("1g.18gb", 6)]


def test_a_compute_instance_that_somebody_put_into_it_is_named(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("2g.35gb", 0))
    (mine,) = node.node.instances(address)
    node.node.nvidia_smi("mig", "-i", address, "-dci", "-gi", str(mine.id))
    node.node.nvidia_smi("mig", "-i", address, "-cci", "0,0", "-gi", str(mine.id))
    assert node.unprepare("u1") is None, "it is not the one that was made"
    assert node.instances() == [("2g.35gb", 0)]


@pytest.mark.bug("B91")
def test_a_partition_in_use_keeps_its_record_until_its_process_has_ended(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6))
    (mine,) = node.node.instances(address)
    node.node.set_processes(address, [Process(4711, gi=mine.id, ci=0)])
    error = node.unprepare("u1")
    assert isinstance(error, ClaimError)
    assert not error.permanent
    assert "IN_USE" in str(error)
    assert len(node.preparer.prepared()) == 1
    node.node.set_processes(address, [])
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B91")
def test_one_partition_in_use_keeps_none_of_its_claims_others(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6), node.name("2g.35gb", 0))
    (busy,) = [one for one in node.node.instances(address) if one.start == 6]
    node.node.set_processes(address, [Process(4711, gi=busy.id, ci=0)])
    assert isinstance(node.unprepare("u1"), ClaimError)
    assert node.instances() == [("1g.18gb", 6)]
    node.node.set_processes(address, [])
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B91")
def test_after_a_destroyed_compute_instance_the_rest_is_destroyed_at_the_next_attempt(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.node.set_failures([Failure("nvmlGpuInstanceDestroy", int(NvmlReturn.IN_USE), times=2)])
    assert isinstance(node.unprepare("u1"), ClaimError)
    assert isinstance(node.unprepare("u1"), ClaimError)
    assert node.instances() == [("1g.18gb", 6)]
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B62")
def test_a_mode_that_cannot_be_read_says_nothing_about_what_stands(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.node.set_failures([Failure("nvmlDeviceGetMigMode", int(NvmlReturn.UNKNOWN))])
    error = node.unprepare("u1")
    assert error is not None
    assert "cannot read the MIG instances" in str(error)
    assert node.instances() == [("1g.18gb", 6)]
    node.node.set_failures([])
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B62")
def test_what_was_made_but_neither_described_nor_destroyed_is_not_forgotten(make: Make) -> None:
    node = make()
    unknown, in_use = int(NvmlReturn.UNKNOWN), int(NvmlReturn.IN_USE)
    node.node.set_failures([Failure("nvmlGpuInstanceGetInfo", unknown), Failure("nvmlGpuInstanceDestroy", in_use)])
    node.refused("u1", node.name("1g.18gb", 6))
    assert node.instances() == [("1g.18gb", 6)]
    node.node.set_failures([])
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceSetMigMode",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceGetComputeInstanceProfileInfoV",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlDeviceGetGpuInstances",
    ],
)
def test_a_call_that_fails_leaves_nothing_and_the_next_attempt_succeeds(make: Make, function: str) -> None:
    node = make()
    bystander = node.name("1g.18gb", 0, 1)
    node.prepared("by", bystander)
    node.node.set_failures([Failure(function, int(NvmlReturn.UNKNOWN), times=40)])
    error = node.refused("u1", node.name("1g.18gb", 6))
    assert not error.permanent
    node.node.set_failures([])
    node.preparer.recover()
    assert node.instances() == []
    node.prepared("u1", node.name("1g.18gb", 6))
    assert node.instances(1) == [("1g.18gb", 0)]
    assert node.unprepare("u1") is None
    assert node.unprepare("by") is None
    node.nothing_left()


@pytest.mark.parametrize(
    "function", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
def test_the_mode_that_was_switched_on_for_a_partition_that_could_not_be_made_goes_with_its_claim(
    make: Make, function: str
) -> None:
    node = make()
    node.node.set_failures([Failure(function, int(NvmlReturn.UNKNOWN))])
    node.refused("u1", node.name("1g.18gb", 6))
    node.node.set_failures([])
    assert node.unprepare("u1") is None
    node.nothing_left()


def test_the_mode_stays_for_what_an_administrator_made_beside_a_partition_that_could_not_be_made(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.node.nvidia_smi("-i", address, "-mig", "1")
    node.node.nvidia_smi("mig", "-i", address, "-cgi", "19", "-C")
    node.read()
    node.node.set_failures([Failure("nvmlDeviceCreateGpuInstanceWithPlacement", int(NvmlReturn.UNKNOWN))])
    free = node.name("3g.71gb", 0 if node.instances()[0][1] >= 4 else 4)
    node.refused("u1", free)
    node.node.set_failures([])
    assert node.unprepare("u1") is None
    assert node.mode() == (1, 1)
    assert len(node.instances()) == 1


def test_mig_mode_is_not_switched_under_a_program_and_no_pending_mode_stays(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.node.set_processes(address, [Process(4711, "dcgm")])
    error = node.refused("u1", node.name("1g.18gb", 6))
    assert "switch MIG mode on" in str(error)
    assert "a program has it open" in str(error)
    assert node.mode() == (0, 0)
    node.node.set_processes(address, [])
    node.prepared("u1", node.name("1g.18gb", 6))


def test_behind_the_last_partition_a_program_that_holds_the_gpu_keeps_only_the_mode(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6))
    node.node.set_failures([Failure("nvmlDeviceSetMigMode", int(NvmlReturn.IN_USE))])
    assert node.unprepare("u1") is None
    assert node.mode() == (1, 1)
    node.node.set_failures([])
    node.prepared("u2", node.gpu().name)
    assert node.node.number(address, "mig_current") == 0


@pytest.mark.parametrize("profile", ["dgx-a100", "a30"])
def test_a_board_that_needs_a_reset_keeps_the_mode_that_the_administrator_set(make: Make, profile: str) -> None:
    node = make(profile)
    small = min(node.gpu().mig_profiles, key=lambda one: one.memory_bytes)
    name = node.name(small.name, small.placements[-1].start)
    assert "switches it only with a reset; run `nvidia-smi -i" in str(node.refused("u1", name))
    assert node.mode() == (0, 0)
    address = node.node.profile.gpus[0].address
    node.node.nvidia_smi("-i", address, "-mig", "1")
    node.read()
    node.prepared("u1", name)
    assert len(node.instances()) == 1
    assert node.unprepare("u1") is None
    assert node.instances() == []
    assert node.mode() == (1, 1), "it was on before"
    assert "is in MIG mode" in str(node.refused("u2", node.gpu().name))


@pytest.mark.parametrize("profile", ["rtx-pro-6000", "b200", "gb200", "dgx-h100"])
def test_every_partition_of_every_board_can_be_made_and_destroyed(make: Make, profile: str) -> None:
    node = make(profile)
    every = [(one.name, place.start) for one in node.gpu().mig_profiles for place in one.placements]
    for number, (name, start) in enumerate(every):
        node.prepared(f"u{number}", node.name(name, start))
        assert node.instances() == [(name, start)]
        assert node.unprepare(f"u{number}") is None
    node.nothing_left()


def test_graphics_nodes_are_for_profiles_with_graphics(make: Make) -> None:
    node = make("rtx-pro-6000")
    node.prepared("u1", node.name("1g.24gb+gfx", 9))
    node.prepared("u2", node.name("1g.24gb", 6))
    assert "/dev/dri/" in node.spec("u1").read_text()
    assert "/dev/dri/" not in node.spec("u2").read_text()


def test_admin_access_looks_at_a_partition_that_stands_and_makes_none(make: Make) -> None:
    node = make()
    name = node.name("1g.18gb", 6)
    error = node.refused("admin", name, adminAccess=True)
    assert "admin access makes no partition" in str(error)
    node.prepared("u1", name)
    node.read()
    node.prepared("admin", name, adminAccess=True)
    assert uuids(node, "admin") == uuids(node, "u1")
    assert node.unprepare("admin") is None
    assert node.instances() == [("1g.18gb", 6)]
    assert node.unprepare("u1") is None
    node.nothing_left()


def test_admin_access_is_not_given_to_a_partition_that_went_after_the_last_reading(make: Make) -> None:
    node = make()
    name = node.name("1g.18gb", 6)
    node.prepared("u1", name)
    node.read()
    assert node.unprepare("u1") is None
    assert node.refused("admin", name, adminAccess=True).reason is Reason.NODE_CHANGED
    node.prepared("u2", name)
    assert node.refused("admin", name, adminAccess=True).reason is Reason.NODE_CHANGED
    node.read()
    node.prepared("admin", name, adminAccess=True)
    assert uuids(node, "admin") == uuids(node, "u2")


def test_without_nvml_a_partition_cannot_be_undone_and_its_record_stays(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.prepared("u2", node.gpu(1).name)
    node.node.set_driver_loaded(False)
    error = node.unprepare("u1")
    assert isinstance(error, ClaimError)
    assert error.reason is Reason.DRIVER_NOT_READY
    assert node.unprepare("u2") is None, "a whole GPU needs no NVML"
    node.node.set_driver_loaded(True)
    assert node.unprepare("u1") is None
    node.nothing_left()
