"""A look at one GPU, and NVML's failures in words: with a door that answers what a test tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import pytest

from driver.model import Gpu, GpuState, MigProfile, PciAddress, Placement
from driver.prepare import ClaimError, Reason
from driver.prepare.miglook import MigDoor, failed, shortage
from driver.prepare.partition import Origin, PartitionRecord
from native.nvml.errors import (
    LibraryUnavailableError,
    MigActivationError,
    NvmlError,
    NvmlReturn,
    NvmlTimeoutError,
)
from native.nvml.migtypes import GpuInstance, MigDevice, MigState
from native.nvml.migtypes import Placement as Slices
from native.nvml.protocol import Nvml
from native.nvml.types import GpuSnapshot, NvmlSnapshot
from tests.support.nodes import nvml, nvml_gpu

AT = "0000:1b:00.0"
T = TypeVar("T")


class Door:
    """NVML for one GPU."""

    def __init__(self, answer: GpuSnapshot | NvmlError) -> None:
        self.answer = answer
        self.library: Any = None
        self.alone: list[bool] = []

    def snapshot(
        self, addresses: Sequence[str] | None = None, deadline: float = 1.0, *, mig: bool = False
    ) -> NvmlSnapshot:
        assert addresses == [AT]
        if isinstance(self.answer, NvmlError):
            raise self.answer
        return nvml(self.answer)

    def change(self, address: str, work: Callable[[Nvml], T], deadline: float = 1.0, *, alone: bool = False) -> T:
        assert address == AT
        self.alone.append(alone)
        return work(self.library)


def door(answer: GpuSnapshot | NvmlError) -> MigDoor:
    made = Door(answer)
    return MigDoor(lambda: made, 1.0)


def divided(*instances: GpuInstance, **changes: Any) -> GpuSnapshot:
    values: dict[str, Any] = {"profiles": (), "instances": instances, "devices": ()}
    return nvml_gpu(AT, mig_mode=(True, True), mig=MigState(**(values | changes)))


HALF = GpuInstance(2, 9, Slices(4, 4))


def test_what_stands_is_found_by_profile_and_place() -> None:
    look = door(divided(HALF)).look(AT)
    assert look.present
    assert look.enabled
    wanted = PartitionRecord(9, "3g", Placement(4, 4), "GPU", Origin.MADE)
    assert look.at(wanted) == HALF
    assert look.at(PartitionRecord(5, "4g", Placement(4, 4), "GPU", Origin.MADE)) is None
    assert look.at(PartitionRecord(9, "3g", Placement(0, 4), "GPU", Origin.MADE)) is None
    assert look.in_the_way_of(Placement(7, 1)) == (HALF,)
    assert look.in_the_way_of(Placement(0, 4)) == ()


def test_without_mig_mode_nothing_stands() -> None:
    look = door(nvml_gpu(AT)).look(AT)
    assert (look.present, look.enabled, look.instances) == (True, False, ())


@pytest.mark.parametrize("code", [NvmlReturn.NOT_FOUND, NvmlReturn.GPU_NOT_FOUND])
def test_on_a_gpu_that_is_gone_nothing_stands(code: NvmlReturn) -> None:
    look = door(nvml_gpu(AT, codes={"handle": code})).look(AT)
    assert (look.present, look.enabled, look.instances) == (False, False, ())
    assert not look.lost


def test_of_a_gpu_that_is_lost_nobody_can_tell_what_stands_whichever_call_says_so() -> None:
    lost = int(NvmlReturn.GPU_IS_LOST)
    listing = divided(instances=None, codes=MappingProxyType({"instances": lost}))
    single = [nvml_gpu(AT, uuid=None, codes={name: lost}) for name in ("handle", "uuid", "mig_mode")]
    unnamed = MigDevice(0, None, 2, 0, None, None, MappingProxyType({"uuid": lost}))
    for answer in (*single, listing, divided(HALF, devices=(unnamed,))):
        look = door(answer).look(AT)
        assert look.lost
        assert not look.present


def test_a_gpu_that_does_not_answer_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(ClaimError, match="TIMEOUT") as caught:
        door(nvml_gpu(AT, codes={"handle": NvmlReturn.TIMEOUT})).look(AT)
    assert caught.value.reason is Reason.DEVICE_NOT_READY
    assert not caught.value.permanent


def test_instances_that_may_not_be_listed_are_not_taken_for_none() -> None:
    codes = MappingProxyType({"instances": int(NvmlReturn.NO_PERMISSION)})
    with pytest.raises(ClaimError, match=r"NO_PERMISSION.*run the agent as root"):
        door(divided(instances=None, codes=codes)).look(AT)


def test_a_gpu_without_a_uuid_may_be_any_and_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(ClaimError, match=r"gives no UUID for it: UNKNOWN") as caught:
        door(nvml_gpu(AT, uuid=None, codes={"uuid": NvmlReturn.UNKNOWN})).look(AT)
    assert not caught.value.permanent


def test_without_nvml_the_kubelet_is_to_try_again() -> None:
    with pytest.raises(ClaimError, match="has not been opened yet") as caught:
        MigDoor(lambda: None, 1.0).look(AT)
    assert caught.value.reason is Reason.DRIVER_NOT_READY
    missing = LibraryUnavailableError("nvmlInit", NvmlReturn.DRIVER_NOT_LOADED, "the driver is not loaded")
    with pytest.raises(ClaimError, match="the driver is not loaded") as caught:
        door(missing).look(AT)
    assert caught.value.reason is Reason.DRIVER_NOT_READY


@pytest.mark.parametrize("work", [lambda mig: mig.look(AT), lambda mig: mig.change(AT, "make it", _closed)])
def test_nvml_that_is_let_go_of_in_the_middle_is_away_and_not_broken(work: Callable[[MigDoor], object]) -> None:
    """So the claim waits for the next reading, and fails for nobody."""
    with pytest.raises(ClaimError, match="NVML was closed meanwhile") as caught:
        work(door(NvmlError("use of a closed session", NvmlReturn.UNINITIALIZED)))
    assert caught.value.reason is Reason.DRIVER_NOT_READY
    assert not caught.value.permanent


def _closed(_nvml: Nvml) -> None:
    raise NvmlError("use of a closed session", NvmlReturn.UNINITIALIZED)


@pytest.mark.bug("B26")
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NvmlError("nvmlGpuInstanceDestroy", NvmlReturn.IN_USE, AT), "a program has it open"),
        (NvmlError("nvmlDeviceCreateGpuInstance", NvmlReturn.INSUFFICIENT_RESOURCES, AT), "nvidia-smi mig -lgi"),
        (NvmlError("nvmlDeviceSetMigMode", NvmlReturn.RESET_REQUIRED, AT), "must be reset"),
        (NvmlError("nvmlDeviceSetMigMode", NvmlReturn.NO_PERMISSION, AT), "as root"),
        (NvmlError("nvmlDeviceSetMigMode", NvmlReturn.UNKNOWN, AT), "see the kernel log"),
        (NvmlTimeoutError("nvmlGpuInstanceDestroy", AT, 30.0), "see the kernel log"),
    ],
)
def test_a_failure_names_the_call_the_gpu_and_the_remedy(error: NvmlError, said: str) -> None:
    told = failed("do it", error)
    assert str(told).startswith("cannot do it: ")
    assert error.call in str(told)
    assert AT in str(told)
    assert said in str(told)
    assert not told.permanent


class Library:
    """Refuses to switch for now."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def set_mig_mode(self, address: str, enabled: bool) -> tuple[bool, bool]:
        self.asked.append(enabled)
        if len(self.asked) == 1:
            raise MigActivationError(NvmlReturn.IN_USE, AT, (False, True))
        return False, False


def test_a_mode_that_cannot_be_switched_now_is_not_left_for_the_next_reset() -> None:
    made = Door(nvml_gpu(AT))
    made.library = library = Library()
    with pytest.raises(ClaimError, match="switch MIG mode on"):
        MigDoor(lambda: made, 1.0).switch(AT, enabled=True)
    assert library.asked == [True, False]
    assert made.alone == [True], "nobody else in this process has the GPU open meanwhile"


def profile(number: int, **engines: int) -> MigProfile:
    values = {"copy_engines": 0, "decoders": 0, "encoders": 0, "jpeg_engines": 0, "ofa_engines": 0}
    return MigProfile(number, f"p{number}", (Placement(0, 1),), 7, 1, 1, **(values | engines))


def test_engines_run_out_before_slices_do() -> None:
    profiles = (profile(0, decoders=4, ofa_engines=1), profile(20, decoders=1, ofa_engines=1), profile(19, decoders=1))
    gpu = Gpu(PciAddress.parse(AT), GpuState.READY, mig_profiles=profiles)
    media, plain = (PartitionRecord(n, "p", Placement(0, 1), "GPU", Origin.PLANNED) for n in (20, 19))
    one_media = [GpuInstance(1, 20, Slices(6, 1))]
    assert shortage(gpu, media, []) is None
    assert shortage(gpu, plain, one_media) is None
    assert shortage(gpu, media, one_media) == "ofa engines: 1 wanted, 0 of 1 left"
    assert shortage(gpu, plain, one_media * 4) == "decoders: 1 wanted, 0 of 4 left"
    unknown = PartitionRecord(77, "p", Placement(0, 1), "GPU", Origin.PLANNED)
    assert shortage(gpu, unknown, one_media) is None, "NVML will say"
