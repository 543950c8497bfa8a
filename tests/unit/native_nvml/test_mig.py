"""MIG through both backends: what a snapshot says of partitions."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.nvml import make_backend
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import ComputeInstance, GpuInstance, MigDevice, MigState, Placement
from native.nvml.migvalues import READINGS_AT_MOST, MigReading, mig_uuid, profile_name, settle, with_compute, with_mig
from native.nvml.protocol import Nvml
from native.nvml.types import GpuSnapshot, NvmlSnapshot

Open = Callable[..., Nvml]
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
GPU = ADDRESSES[1]
LISTS = ("profiles", "instances", "devices")


def both(node, *, mig: bool = False, asked: tuple[str, ...] | None = ADDRESSES) -> NvmlSnapshot:
    """The node by both backends; equal, or the test fails here."""
    readings = []
    for name in ("cffi", "pynvml"):
        library = make_backend(node.library, name)
        library.open()
        try:
            readings.append(library.snapshot(asked, mig=mig))
        finally:
            library.close()
    assert readings[0] == readings[1]
    return readings[0]


def state(node, *, mig: bool = False) -> MigState:
    found = both(node, mig=mig).gpus[1].mig
    assert found is not None
    return found


def test_a_board_with_mig_off_is_asked_for_its_mode_only(node, opened: Open) -> None:
    node.code("nvmlDeviceGetGpuInstanceProfileInfoV", NvmlReturn.UNKNOWN)
    assert [gpu.mig for gpu in opened(node).snapshot(ADDRESSES).gpus] == [None] * 4
    assert [gpu.codes for gpu in opened(node).snapshot(ADDRESSES).gpus] == [{}] * 4


def test_profiles_of_a_board_with_mig_off_are_read_when_asked_for(node) -> None:
    found = state(node, mig=True)
    assert found.profiles is not None
    assert [profile.id for profile in found.profiles] == [19, 14, 9, 0, 20]
    assert (found.instances, found.devices, found.codes, found.stable) == ((), (), {}, True)


def test_a_board_that_has_no_mig_is_not_asked_even_then(node) -> None:
    node.code("nvmlDeviceGetMigMode", NvmlReturn.NOT_SUPPORTED)
    assert [gpu.mig for gpu in both(node, mig=True).gpus] == [None] * 4


@pytest.mark.bug("B93")
def test_profiles_have_nvmls_name_and_id_and_their_holes_are_left_out(split) -> None:
    profiles = state(split).profiles
    assert profiles is not None
    assert [(one.index, one.id, one.name) for one in profiles] == [
        (0, 19, "1g.10gb"),
        (1, 14, "2g.20gb"),
        (2, 9, "3g.40gb"),
        (4, 0, "7g.80gb"),
        (7, 20, "1g.10gb+me"),
    ]
    assert profiles[2].placements == (Placement(0, 4), Placement(4, 4))
    assert (profiles[2].slice_count, profiles[2].instance_count, profiles[2].memory_mib) == (3, 2, 39936)
    assert (profiles[0].p2p, profiles[0].graphics) == (False, True)


@pytest.mark.parametrize(("version", "name", "p2p", "graphics"), [(2, "1g.10gb", True, None), (1, None, False, None)])
def test_profiles_fall_back_through_the_versions_of_their_struct(
    split, version: int, name: str | None, p2p: bool, graphics: bool | None
) -> None:
    profiles = state(split.set("profiles", version)).profiles
    assert profiles is not None
    assert [one.id for one in profiles] == [19, 14, 9, 0, 20]
    assert (profiles[0].name, profiles[0].p2p, profiles[0].graphics) == (name, p2p, graphics)


def test_a_library_without_the_versioned_call_is_asked_in_the_old_way(make_node) -> None:
    absent = ("nvmlDeviceGetGpuInstanceProfileInfoV", "nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    node = make_node(absent=absent).mig(GPU).gpu_instance(GPU, 7, 19, 0, 1).compute_instance(GPU, 7, 0, 0, index=0)
    found = state(node)
    assert found.profiles is not None
    assert [one.id for one in found.profiles] == [19, 14, 9, 0, 20]
    assert found.instances is not None
    assert len(found.instances[0].compute_instances) == 1


def test_instances_carry_their_placement_and_their_compute_instances(split) -> None:
    found = state(split)
    assert found.instances is not None
    assert [(one.id, one.profile_id, one.placement) for one in found.instances] == [
        (2, 9, Placement(4, 4)),
        (7, 19, Placement(0, 1)),
        (9, 19, Placement(2, 1)),
    ]
    assert [len(one.compute_instances) for one in found.instances] == [1, 2, 0]
    assert [(one.id, one.uuid) for one in found.instances[1].compute_instances] == [
        (0, f"MIG-{GPU}-7-0-0"),
        (1, f"MIG-{GPU}-7-1-0"),
    ]
    assert found.instance(9) == found.instances[2]
    assert found.profile(9) is not None
    assert (found.instance(1), found.profile(1)) == (None, None)


def test_the_walk_over_mig_devices_goes_on_behind_holes(split) -> None:
    devices = state(split).devices
    assert devices is not None
    assert [(one.index, one.gpu_instance, one.compute_instance, one.placement) for one in devices] == [
        (0, 2, 0, Placement(4, 4)),
        (3, 7, 0, Placement(0, 1)),
        (5, 7, 1, Placement(0, 1)),
    ]
    assert devices[1].attributes is not None
    assert (devices[1].attributes.multiprocessor_count, devices[1].attributes.memory_mib) == (16, 9984)
    assert (devices[1].attributes.shared_ofa_count, devices[1].attributes.compute_instance_slice_count) == (5, 2)
    assert [one.codes for one in devices] == [{}, {}, {}]


def test_the_other_gpus_are_as_they_were(split, node) -> None:
    split_gpus = both(split).gpus
    node.mend()
    plain = both(node).gpus
    assert split_gpus[:1] + split_gpus[2:] == plain[:1] + plain[2:]
    assert (split_gpus[1].mig_mode, plain[1].mig_mode) == ((True, True), (False, True))


def test_by_index_and_by_address_the_partitions_are_the_same(split) -> None:
    assert both(split, asked=None) == both(split)


def test_a_gpu_whose_address_is_unreadable_is_still_read_by_index(split) -> None:
    split.code("nvmlDeviceGetPciInfo_v3", NvmlReturn.UNKNOWN, GPU)
    gpu = both(split, asked=None).gpus[1]
    assert gpu.address is None
    assert gpu.mig is not None
    assert gpu.mig.devices is not None
    assert len(gpu.mig.devices) == 3


@pytest.mark.bug("B23")
def test_a_set_of_devices_that_changes_between_readings_is_read_until_it_is_stable(split) -> None:
    found = state(split.set("churn", 3))
    assert found.stable
    assert found.devices is not None
    assert found.devices[0].uuid == f"MIG-{GPU}-2-0-0"


@pytest.mark.bug("B23")
def test_a_set_of_devices_that_never_rests_is_reported_as_unstable(split) -> None:
    found = state(split.set("churn", 1000))
    assert not found.stable
    assert found.devices is not None
    assert found.devices[0].uuid == f"MIG-{GPU}-2-0-{READINGS_AT_MOST}"


def test_settling_asks_no_more_often_than_it_has_to() -> None:
    def reading(number: int) -> MigReading:
        return MigReading((0, (True, bool(number))), (0, ()), (0, ()))

    for answers, asked, stable in (([1, 1, 0], 2, True), ([0, 1, 1], 3, True), ([0, 1] * 9, READINGS_AT_MOST, False)):
        left = iter(answers)
        seen: list[int] = []

        def read(left=left, seen=seen) -> MigReading:
            seen.append(next(left))
            return reading(seen[-1])

        assert settle(read)[1] is stable
        assert len(seen) == asked


@pytest.mark.bug("B18")
@pytest.mark.parametrize(
    "call", ["nvmlDeviceGetGpuInstances", "nvmlGpuInstanceGetInfo", "nvmlComputeInstanceGetInfo_v2"]
)
def test_without_permission_the_instances_are_unknown_and_the_devices_are_not(split, call: str) -> None:
    found = state(split.code(call, NvmlReturn.NO_PERMISSION))
    assert found.instances is None
    assert found.codes == {"instances": NvmlReturn.NO_PERMISSION}
    assert found.devices is not None
    assert [(one.uuid is not None, one.placement) for one in found.devices] == [(True, None)] * 3


@pytest.mark.bug("B18")
@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("nvmlDeviceGetUUID/mig", "uuid"),
        ("nvmlDeviceGetGpuInstanceId", "gpu_instance"),
        ("nvmlDeviceGetComputeInstanceId", "compute_instance"),
        ("nvmlDeviceGetAttributes_v2", "attributes"),
    ],
)
def test_a_device_that_does_not_tell_one_thing_tells_the_rest(split, call: str, name: str) -> None:
    found = state(split.code(call, NvmlReturn.NO_PERMISSION))
    assert found.devices is not None
    for device in found.devices:
        assert device.codes == {name: NvmlReturn.NO_PERMISSION}
        assert getattr(device, name) is None
        others = {"uuid", "gpu_instance", "compute_instance", "attributes"} - {name}
        assert all(getattr(device, other) is not None for other in others)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("nvmlDeviceGetGpuInstanceProfileInfoV", "profiles"),
        ("nvmlDeviceGetMaxMigDeviceCount", "devices"),
        ("nvmlDeviceGetMigDeviceHandleByIndex", "devices"),
        ("nvmlGpuInstanceGetComputeInstanceProfileInfoV", "instances"),
        ("nvmlGpuInstanceGetComputeInstances", "instances"),
    ],
)
def test_a_list_that_breaks_off_is_unknown_not_short(split, call: str, name: str) -> None:
    found = state(split.code(call, NvmlReturn.GPU_IS_LOST))
    assert getattr(found, name) is None
    assert found.codes[name] == NvmlReturn.GPU_IS_LOST
    unaffected = set(LISTS) - set(found.codes)
    assert all(getattr(found, other) is not None for other in unaffected)
    # Instances are listed profile by profile.
    assert set(found.codes) == ({"profiles", "instances"} if name == "profiles" else {name})


def test_placements_that_are_refused_leave_the_profile(split) -> None:
    profiles = state(split.code("nvmlDeviceGetGpuInstancePossiblePlacements_v2", NvmlReturn.NO_PERMISSION)).profiles
    assert profiles is not None
    assert [(one.placements, dict(one.codes)) for one in profiles] == [(None, {"placements": 4})] * 5


@pytest.mark.parametrize(
    ("count", "expected"), [(0, {}), (32, {}), (33, {"placements": 7}), (4000000000, {"placements": 7})]
)
def test_any_number_of_placements_does_no_harm(split, count: int, expected: dict[str, int]) -> None:
    profiles = state(split.set("placements", count)).profiles
    assert profiles is not None
    assert dict(profiles[0].codes) == expected
    assert (profiles[0].placements is None) == bool(expected)


def test_a_gpu_that_dies_between_its_reading_and_its_partitions_says_so(split, opened: Open) -> None:
    split.code("nvmlDeviceGetGpuInstanceProfileInfoV", NvmlReturn.GPU_IS_LOST)
    split.code("nvmlDeviceGetGpuInstances", NvmlReturn.GPU_IS_LOST).code("nvmlDeviceGetMaxMigDeviceCount", 15)
    found = state(split)
    assert found == MigState(None, None, None, True, {"profiles": 15, "instances": 15, "devices": 15})


@pytest.mark.bug("B04")
@pytest.mark.bug("B95")
def test_names_and_uuids_are_opaque_and_cleaned(split) -> None:
    old = b"MIG-GPU-00000000-0000-0000-0000-000000000001/7/0\0junk"
    split.text("nvmlDeviceGetUUID/mig", old, GPU)
    split.text("nvmlDeviceGetGpuInstanceProfileInfoV", b"\xf8" * 96, GPU)
    found = state(split)
    assert found.devices is not None
    assert found.devices[0].uuid == "MIG-GPU-00000000-0000-0000-0000-000000000001/7/0"
    assert found.profiles is not None
    assert found.profiles[0].name == "\ufffd" * 96


@pytest.mark.bug("B95")
def test_the_uuid_of_the_whole_gpu_is_not_taken_for_that_of_a_device() -> None:
    assert mig_uuid(0, b"MIG-1\0") == "MIG-1"
    assert mig_uuid(0, b"GPU-1\0") is None
    assert mig_uuid(999, b"MIG-1\0") is None


@pytest.mark.bug("B93")
@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (b"MIG 1g.10gb\0", "1g.10gb"),
        (b"MIG 1g.24gb+me.all\0", "1g.24gb+me.all"),
        (b"3g.39gb\0", "3g.39gb"),
        (b"MIG 1c.3g.40gb\0", "1c.3g.40gb"),
        (b"MIG \0", None),
        (b"\0", None),
    ],
)
def test_profile_names_lose_their_prefix_only(raw: bytes, name: str | None) -> None:
    assert profile_name(raw) == name


@pytest.mark.bug("B95")
def test_a_compute_instance_without_a_uuid_of_its_own_has_that_of_its_device(split) -> None:
    readings = MigReading(
        (0, (True, True)),
        (0, (GpuInstance(7, 19, Placement(0, 1), (ComputeInstance(7, 0, 0, Placement(0, 1), None),)),)),
        (0, (MigDevice(0, "MIG-1", 7, 0, None, None),)),
    )
    gpu = with_mig(GpuSnapshot(GPU, mig_mode=(True, True)), (0, ()), readings, stable=True)
    assert gpu.mig is not None
    assert gpu.mig.instances is not None
    assert gpu.mig.instances[0].compute_instances[0].uuid == "MIG-1"
    assert gpu.mig.devices is not None
    assert gpu.mig.devices[0].placement == Placement(0, 1)


def test_a_gpu_without_partitions_equals_itself_whatever_was_asked(node) -> None:
    plain = both(node).gpus[0]
    assert isinstance(plain, GpuSnapshot)
    assert both(node, mig=True).gpus[0] != plain


def test_partitions_that_did_not_change_keep_their_frozen_value(split) -> None:
    library = make_backend(split.library, "cffi")
    library.open()
    before = library.snapshot(ADDRESSES).gpus[1]
    assert library.snapshot(ADDRESSES).gpus[1] is before
    split.code("nvmlDeviceGetAttributes_v2", NvmlReturn.NO_PERMISSION)
    changed = library.snapshot(ADDRESSES).gpus[1]
    assert changed != before
    split.lines.pop()
    split.text("nvmlDeviceGetName", b"NVIDIA H200\0", GPU)
    renamed = library.snapshot(ADDRESSES).gpus[1]
    assert (renamed.name, renamed.mig) == ("NVIDIA H200", before.mig)
    library.close()


_PLACEMENTS = st.builds(Placement, st.integers(0, 12), st.integers(1, 12))
_COMPUTE = st.builds(
    ComputeInstance, st.integers(0, 14), st.integers(0, 7), st.integers(0, 8), _PLACEMENTS, st.none() | st.just("MIG-1")
)


@given(
    st.lists(st.builds(GpuInstance, st.integers(0, 14), st.integers(0, 67), _PLACEMENTS), unique_by=lambda one: one.id),
    st.lists(_COMPUTE),
)
def test_compute_instances_go_into_their_gpu_instance_and_none_is_lost_or_doubled(
    instances: list[GpuInstance], compute: list[ComputeInstance]
) -> None:
    made = with_compute(instances, compute)
    assert [one.id for one in made] == sorted(one.id for one in instances)
    held = [one for instance in made for one in instance.compute_instances]
    known = {instance.id for instance in instances}
    assert Counter(held) == Counter(one for one in compute if one.gpu_instance in known)
    assert all(one.gpu_instance == instance.id for instance in made for one in instance.compute_instances)


@given(st.binary(max_size=96))
def test_any_bytes_make_a_printable_profile_name_or_none(raw: bytes) -> None:
    name = profile_name(raw)
    assert name is None or (name.isprintable() and name == name.strip() and name)


@given(st.lists(st.integers(0, 2), min_size=READINGS_AT_MOST, max_size=READINGS_AT_MOST))
def test_a_reading_is_believed_only_if_the_one_before_it_was_the_same(numbers: list[int]) -> None:
    left = iter(numbers)
    value, stable = settle(lambda: next(left))
    used = numbers[: len(numbers) - len(list(left))]
    assert value == used[-1]
    assert stable == (used[-1] == used[-2])
    assert all(a != b for a, b in itertools.pairwise(used[:-1]))
