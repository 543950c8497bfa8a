"""MIG in the inventory: profiles of the board, partitions that stand, and what is odd about them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import pytest

from driver.inventory import build_inventory
from driver.inventory.mig import profile_name
from driver.model import Gpu, NodeInventory, Placement
from native.capabilities import InstanceMinors
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import (
    ComputeInstance,
    GpuInstance,
    GpuInstanceProfile,
    MigAttributes,
    MigDevice,
    MigState,
)
from native.nvml.migtypes import Placement as Slices
from tests.support.nodes import host, nvml, nvml_gpu, pci_gpu

AT = "0000:1b:00.0"
SMALL_MIB, HALF_MIB = 9984, 40448


def profile(number: int, index: int, name: str | None, **changes: Any) -> GpuInstanceProfile:
    values: dict[str, Any] = {
        "slice_count": 1,
        "instance_count": 7,
        "multiprocessor_count": 16,
        "copy_engine_count": 1,
        "decoder_count": 1,
        "encoder_count": 0,
        "jpeg_count": 1,
        "ofa_count": 0,
        "memory_mib": SMALL_MIB,
        "p2p": False,
        "graphics": False,
        "placements": tuple(Slices(start, 1) for start in range(7)),
    }
    return GpuInstanceProfile(index, number, name, **(values | changes))


SMALL = profile(19, 0, "1g.10gb")
HALF = profile(9, 2, "3g.40gb", slice_count=3, memory_mib=HALF_MIB, placements=(Slices(0, 4), Slices(4, 4)))


def instance(number: int, profile_id: int, start: int, size: int, *compute: ComputeInstance) -> GpuInstance:
    return GpuInstance(number, profile_id, Slices(start, size), compute)


def compute(gi: int, ci: int, start: int, size: int, uuid: str | None) -> ComputeInstance:
    return ComputeInstance(gi, ci, 0, Slices(start, size), uuid)


def state(*instances: GpuInstance, **changes: Any) -> MigState:
    values: dict[str, Any] = {"profiles": (SMALL, HALF), "instances": instances, "devices": ()}
    return MigState(**(values | changes))


def inventory_of(mig: MigState | None, minors: InstanceMinors | None = None, **changes: Any) -> NodeInventory:
    gpu = nvml_gpu(AT, mig=mig, mig_mode=(True, True), minor_number=2, **changes)
    return build_inventory(nvml(gpu), host(pci_gpu(AT)), mock=False, minors=minors or {})


def gpu_of(mig: MigState | None, minors: InstanceMinors | None = None) -> Gpu:
    (gpu,) = inventory_of(mig, minors).gpus
    return gpu


def test_a_gpu_carries_the_profiles_of_its_board_by_id() -> None:
    half, small = gpu_of(state()).mig_profiles
    assert (half.profile_id, half.name, half.placements) == (9, "3g.40gb", (Placement(0, 4), Placement(4, 4)))
    assert half.memory_bytes == HALF_MIB << 20
    assert (small.name, small.compute_slices, small.jpeg_engines) == ("1g.10gb", 1, 1)


def test_without_mig_a_gpu_has_neither_profiles_nor_partitions() -> None:
    gpu = gpu_of(None)
    assert (gpu.mig_profiles, gpu.partitions, gpu.mig_settled) == ((), (), True)


def test_partitions_are_compute_instances_in_the_order_of_their_places() -> None:
    late = instance(7, 19, 6, 1, compute(7, 0, 0, 1, "MIG-b"))
    early = instance(1, 9, 0, 4, compute(1, 0, 0, 3, "MIG-a"))
    minors = {(2, 1, None): 282, (2, 1, 0): 283, (2, 7, None): 336, (2, 7, 0): 337}
    first, second = gpu_of(state(late, early), minors).partitions
    assert (first.uuid, first.profile, first.placement) == ("MIG-a", "3g.40gb", Placement(0, 4))
    assert (first.gpu_instance, first.compute_instance, first.compute) == (1, 0, None)
    assert (first.gi_minor, first.ci_minor) == (282, 283)
    assert (second.uuid, second.placement, second.memory_bytes) == ("MIG-b", Placement(6, 1), SMALL_MIB << 20)
    assert not first.managed


def test_a_compute_instance_that_is_a_part_is_named_so_and_counts_its_own_multiprocessors() -> None:
    attributes = MigAttributes(20, 3, 3, 0, 3, 0, 3, 1, HALF_MIB)
    device = MigDevice(0, "MIG-a", 1, 0, None, attributes)
    parts = instance(1, 9, 0, 4, compute(1, 0, 0, 1, "MIG-a"), compute(1, 1, 1, 2, "MIG-b"))
    one, two = gpu_of(state(parts, devices=(device,))).partitions
    assert (one.profile, one.compute, one.multiprocessors) == ("1c.3g.40gb", Placement(0, 1), 20)
    assert (two.profile, two.compute, two.multiprocessors) == ("2c.3g.40gb", Placement(1, 2), None)
    assert one.memory_bytes == two.memory_bytes == HALF_MIB << 20


def test_a_gpu_instance_without_a_compute_instance_takes_its_place_and_is_not_usable() -> None:
    (partition,) = gpu_of(state(instance(1, 9, 4, 4))).partitions
    assert (partition.uuid, partition.compute_instance, partition.placement) == (None, None, Placement(4, 4))
    assert not partition.usable


def test_a_compute_instance_without_a_uuid_is_not_usable() -> None:
    (partition,) = gpu_of(state(instance(1, 19, 0, 1, compute(1, 0, 0, 1, None)))).partitions
    assert not partition.usable


def test_an_instance_of_a_profile_that_nvml_does_not_describe_is_told() -> None:
    inventory = inventory_of(state(instance(3, 77, 0, 1, compute(3, 0, 0, 1, "MIG-a"))))
    assert inventory.gpus[0].partitions == ()
    assert any("profile 77" in problem.message for problem in inventory.problems)


def test_a_profile_whose_placements_are_refused_is_left_out() -> None:
    refused = profile(14, 1, "2g.20gb", placements=None, codes=MappingProxyType({"placements": 4}))
    assert [one.profile_id for one in gpu_of(state(profiles=(SMALL, refused))).mig_profiles] == [19]


def test_without_the_right_to_list_instances_the_remedy_is_told() -> None:
    codes = MappingProxyType({"instances": int(NvmlReturn.NO_PERMISSION)})
    inventory = inventory_of(state(instances=None, codes=codes))
    assert inventory.gpus[0].partitions == ()
    assert any("run the agent as root" in problem.message for problem in inventory.problems)


@pytest.mark.parametrize("code", [NvmlReturn.UNKNOWN, NvmlReturn.NO_PERMISSION, NvmlReturn.TIMEOUT])
def test_a_list_that_nvml_refuses_is_not_an_empty_one(code: NvmlReturn) -> None:
    assert gpu_of(state()).partitions_known
    codes = MappingProxyType({"instances": int(code)})
    assert not gpu_of(state(instances=None, codes=codes)).partitions_known


def test_what_stands_is_not_known_where_what_makes_an_instance_usable_is_refused() -> None:
    assert gpu_of(state(instance(1, 19, 0, 1))).partitions_known, "it has no compute instance, and NVML says so"
    assert not gpu_of(state(instance(1, 19, 0, 1, compute(1, 0, 0, 1, None)))).partitions_known
    refused = profile(19, 0, "1g.10gb", placements=None, codes=MappingProxyType({"placements": 999}))
    assert not gpu_of(state(instance(1, 19, 0, 1, compute(1, 0, 0, 1, "MIG-a")), profiles=(refused,))).partitions_known


@pytest.mark.parametrize(("code", "known"), [(NvmlReturn.NOT_SUPPORTED, True), (NvmlReturn.UNKNOWN, False)])
def test_without_its_mode_it_is_not_known_what_stands_on_a_board_that_has_one(code: NvmlReturn, known: bool) -> None:
    gpu = nvml_gpu(AT, mig=None, mig_mode=None, codes=MappingProxyType({"mig_mode": int(code)}))
    (found,) = build_inventory(nvml(gpu), host(pci_gpu(AT)), mock=False).gpus
    assert found.partitions_known is known


@pytest.mark.bug("B23")
def test_a_reading_that_somebody_disturbed_is_marked() -> None:
    inventory = inventory_of(state(stable=False))
    assert not inventory.gpus[0].mig_settled
    assert any("changing its MIG instances" in problem.message for problem in inventory.problems)


@pytest.mark.bug("B95")
def test_old_spellings_of_a_uuid_are_taken_as_they_are() -> None:
    old = "MIG-GPU-1ebfe2e6-70b8-5691-8704-4b506c590168/1/0"
    (partition,) = gpu_of(state(instance(1, 19, 0, 1, compute(1, 0, 0, 1, old)))).partitions
    assert partition.uuid == old


@pytest.mark.bug("B93")
@pytest.mark.parametrize(
    ("slices", "index", "mib", "total_mib", "name"),
    [
        (1, 0, 9984, 81559, "1g.10gb"),
        (3, 2, 40448, 81559, "3g.40gb"),
        (7, 4, 81152, 81559, "7g.80gb"),
        (1, 7, 9984, 81559, "1g.10gb+me"),
        (1, 9, 20096, 81559, "1g.20gb"),
        (1, 13, 24192, 97887, "1g.24gb-me"),
        (2, 16, 48512, 97887, "2g.48gb+me.all"),
        (1, 10, 24192, 97887, "1g.24gb+gfx"),
        (1, 0, 9984, 0, "1g.10gb"),
    ],
)
def test_where_the_driver_has_no_name_it_is_made_as_nvidias_tools_make_it(
    slices: int, index: int, mib: int, total_mib: int, name: str
) -> None:
    unnamed = profile(1, index, None, slice_count=slices, memory_mib=mib)
    assert profile_name(unnamed, total_mib << 20) == name


def test_graphics_is_known_from_the_index_where_the_driver_is_too_old_to_say() -> None:
    old = profile(47, 10, "1g.24gb+gfx", graphics=None)
    (made,) = gpu_of(state(profiles=(old,))).mig_profiles
    assert made.graphics
