"""MIG through both backends: the calls that change partitions and modes, and how they fail."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from native.nvml import make_backend
from native.nvml.errors import LibraryUnavailableError, MigActivationError, NvmlError, NvmlReturn
from native.nvml.migtypes import Placement
from native.nvml.protocol import Nvml

Open = Callable[..., Nvml]
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
GPU = ADDRESSES[1]


def test_a_gpu_instance_goes_where_it_is_put_and_comes_back_as_it_is(split, opened: Open) -> None:
    library = opened(split)
    made = library.create_gpu_instance(GPU, 19, Placement(1, 1))
    assert (made.profile_id, made.placement) == (19, Placement(1, 1))
    found = library.snapshot((GPU,)).gpus[0].mig
    assert found is not None
    assert made in (found.instances or ())
    library.destroy_gpu_instance(GPU, made.id)
    after = library.snapshot((GPU,)).gpus[0].mig
    assert after is not None
    assert made not in (after.instances or ())


def test_without_a_placement_nvml_chooses(split, opened: Open) -> None:
    made = opened(split).create_gpu_instance(GPU, 20)
    assert made.placement == Placement(3, 1)


def test_a_taken_placement_is_an_error_with_its_code(split, opened: Open) -> None:
    with pytest.raises(NvmlError, match=r"WithPlacement for GPU 0000:43:00\.0: INSUFFICIENT_RESOURCES") as caught:
        opened(split).create_gpu_instance(GPU, 19, Placement(0, 1))
    assert (caught.value.call, caught.value.device) == ("nvmlDeviceCreateGpuInstanceWithPlacement", GPU)


def test_a_compute_instance_says_the_uuid_of_its_device(split, opened: Open) -> None:
    library = opened(split)
    assert [one.id for one in library.compute_instance_profiles(GPU, 9)] == [0, 1, 2, 4, 7]
    made = library.create_compute_instance(GPU, 9, 0)
    assert made.uuid == f"MIG-{GPU}-9-0-0"
    library.destroy_compute_instance(GPU, 9, made.id)
    with pytest.raises(NvmlError) as caught:
        library.destroy_compute_instance(GPU, 9, made.id)
    assert (caught.value.call, caught.value.code) == ("nvmlGpuInstanceGetComputeInstanceById", NvmlReturn.NOT_FOUND)


def test_compute_profiles_say_what_they_share(split, opened: Open) -> None:
    profile = opened(split).compute_instance_profiles(GPU, 9)[0]
    assert (profile.name, profile.instance_count, profile.shared_decoder_count) == ("1g.10gb", 7, 1)


def test_the_remaining_capacity_of_a_profile_is_told(split, opened: Open) -> None:
    assert opened(split).remaining_capacity(GPU, 19) == 6
    with pytest.raises(NvmlError) as caught:
        opened(split).remaining_capacity(GPU, 77)
    assert caught.value.code == NvmlReturn.INVALID_ARGUMENT


@pytest.mark.bug("B91")
def test_an_instance_that_holds_compute_instances_is_in_use(split, opened: Open) -> None:
    with pytest.raises(NvmlError, match=r"nvmlGpuInstanceDestroy for GPU .*: IN_USE \(19\)"):
        opened(split).destroy_gpu_instance(GPU, 7)


@pytest.mark.parametrize("code", [NvmlReturn.UNKNOWN, NvmlReturn.GPU_IS_LOST])
def test_an_instance_that_was_made_but_cannot_be_read_is_destroyed_again(split, opened: Open, code: int) -> None:
    library = opened(split)
    split.code("nvmlGpuInstanceGetInfo", code)
    with pytest.raises(NvmlError) as caught:
        library.create_gpu_instance(GPU, 19, Placement(1, 1))
    assert (caught.value.call, caught.value.code) == ("nvmlGpuInstanceGetInfo", code)
    split.lines.pop()
    split.code("nvmlComputeInstanceGetInfo_v2", code)
    with pytest.raises(NvmlError) as caught:
        library.create_compute_instance(GPU, 9, 0)
    assert (caught.value.call, caught.value.code) == ("nvmlComputeInstanceGetInfo_v2", code)
    assert library.create_gpu_instance(GPU, 19, Placement(1, 1)).placement == Placement(1, 1)


def test_the_mig_mode_is_switched_and_read_again(node, opened: Open) -> None:
    assert opened(node).set_mig_mode(GPU, True) == (False, True)


@pytest.mark.parametrize(
    ("code", "remedy"), [(19, "nvidia-persistenced"), (16, "--gpu-reset"), (3, "board"), (77, "dmesg")]
)
def test_a_mode_that_was_not_activated_is_an_error_although_the_call_succeeded(
    node, opened: Open, code: int, remedy: str
) -> None:
    node.set("activation", code)
    with pytest.raises(MigActivationError, match=remedy) as caught:
        opened(node).set_mig_mode(GPU, True)
    assert (caught.value.code, caught.value.device, caught.value.mode) == (code, GPU, (False, True))


def test_a_mode_that_cannot_be_read_back_is_not_made_up(node, opened: Open) -> None:
    node.code("nvmlDeviceGetMigMode", NvmlReturn.UNKNOWN)
    with pytest.raises(NvmlError, match="nvmlDeviceGetMigMode"):
        opened(node).set_mig_mode(GPU, True)
    node.set("activation", 16)
    with pytest.raises(MigActivationError) as caught:
        opened(node).set_mig_mode(GPU, True)
    assert caught.value.mode is None


def test_compute_and_persistence_mode_are_set_on_their_gpu_only(node, opened: Open) -> None:
    library = opened(node)
    library.set_compute_mode(GPU, 3)
    library.set_persistence_mode(GPU, False)
    gpus = library.snapshot(ADDRESSES).gpus
    assert [gpu.compute_mode for gpu in gpus] == [0, 3, 0, 0]
    assert [gpu.persistence_mode for gpu in gpus] == [True, False, True, True]


CHANGES: dict[str, Callable[[Nvml, str], object]] = {
    "nvmlDeviceSetMigMode": lambda nvml, gpu: nvml.set_mig_mode(gpu, True),
    "nvmlDeviceCreateGpuInstance": lambda nvml, gpu: nvml.create_gpu_instance(gpu, 19),
    "nvmlDeviceCreateGpuInstanceWithPlacement": lambda nvml, gpu: nvml.create_gpu_instance(gpu, 19, Placement(1, 1)),
    "nvmlGpuInstanceCreateComputeInstance": lambda nvml, gpu: nvml.create_compute_instance(gpu, 9, 0),
    "nvmlComputeInstanceDestroy": lambda nvml, gpu: nvml.destroy_compute_instance(gpu, 2, 0),
    "nvmlGpuInstanceDestroy": lambda nvml, gpu: nvml.destroy_gpu_instance(gpu, 9),
    "nvmlDeviceSetComputeMode": lambda nvml, gpu: nvml.set_compute_mode(gpu, 3),
    "nvmlDeviceSetPersistenceMode": lambda nvml, gpu: nvml.set_persistence_mode(gpu, True),
    "nvmlDeviceGetGpuInstanceRemainingCapacity": lambda nvml, gpu: nvml.remaining_capacity(gpu, 19),
    "nvmlGpuInstanceGetComputeInstanceProfileInfoV": lambda nvml, gpu: nvml.compute_instance_profiles(gpu, 9),
}


@pytest.mark.bug("B26")
@pytest.mark.parametrize("call", CHANGES)
@pytest.mark.parametrize("code", [NvmlReturn.NO_PERMISSION, 77])
def test_every_change_that_fails_names_its_call_and_its_gpu(split, opened: Open, call: str, code: int) -> None:
    split.code(call, code)
    with pytest.raises(NvmlError) as caught:
        CHANGES[call](opened(split), "00000000:43:00.0")
    assert (caught.value.call, caught.value.device, caught.value.code) == (call, GPU, code)


@pytest.mark.parametrize("call", CHANGES)
def test_every_change_looks_its_gpu_up_anew(split, opened: Open, call: str) -> None:
    library = opened(split)
    split.code("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.GPU_IS_LOST, GPU)
    with pytest.raises(NvmlError) as caught:
        CHANGES[call](library, GPU)
    assert (caught.value.call, caught.value.code) == ("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.GPU_IS_LOST)


@pytest.mark.parametrize("call", CHANGES)
def test_every_change_says_that_the_driver_is_gone(split, opened: Open, call: str) -> None:
    library = opened(split)
    split.code("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.DRIVER_NOT_LOADED)
    with pytest.raises(LibraryUnavailableError, match="modprobe nvidia"):
        CHANGES[call](library, GPU)


@pytest.mark.parametrize("call", CHANGES)
def test_every_change_needs_an_open_library(split, backend_name: str, call: str) -> None:
    with pytest.raises(NvmlError) as caught:
        CHANGES[call](make_backend(split.library, backend_name), GPU)
    assert caught.value.code == NvmlReturn.UNINITIALIZED


@pytest.mark.bug("B14")
def test_a_change_under_way_is_seen_with_its_gpu(split, opened: Open, until) -> None:
    library = opened(split)
    split.hang("nvmlGpuInstanceDestroy", GPU)
    thread = threading.Thread(target=lambda: library.destroy_gpu_instance(GPU, 9))
    thread.start()
    until(lambda: (call := library.progress()) is not None and call.call == "nvmlGpuInstanceDestroy")
    call = library.progress()
    assert call is not None
    assert call.address == GPU
    split.mend()
    thread.join(20)
    assert library.progress() is None
