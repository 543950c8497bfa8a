"""NVML as the step that makes partitions needs it: one GPU at a time, live, with failures in words for the pod's event.

The node's inventory is a minute old at worst. Whoever makes or destroys partitions looks at the GPU itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import msgspec

from driver.model import ENGINES, Gpu, Placement
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.partition import PartitionRecord
from native.nvml.errors import LibraryUnavailableError, MigActivationError, NvmlError, NvmlReturn, code_name
from native.nvml.migtypes import GpuInstance
from native.nvml.protocol import Nvml
from native.nvml.types import GpuSnapshot, NvmlSnapshot

T = TypeVar("T")

_GONE = frozenset({NvmlReturn.NOT_FOUND, NvmlReturn.GPU_NOT_FOUND})
_NO_MIG = frozenset({NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND})
"""Of the mode: the GPU or the driver has none. Any other code leaves open whether something stands there."""


class NvmlDoor(Protocol):
    """``native.nvml.session.NvmlSession``, or what stands for it."""

    def snapshot(
        self, addresses: Sequence[str] | None = None, deadline: float = ..., *, mig: bool = False
    ) -> NvmlSnapshot:
        """Read these GPUs now."""

    def change(self, address: str, work: Callable[[Nvml], T], deadline: float = ..., *, alone: bool = False) -> T:
        """Have something done to one GPU, once at most."""


class Look(msgspec.Struct, frozen=True):
    """MIG on one GPU, as it was a moment ago."""

    present: bool
    """False: the driver does not know the GPU (any more), so that nothing stands on it; or it is lost."""
    uuid: str | None
    enabled: bool
    """MIG mode."""
    instances: tuple[GpuInstance, ...]
    """Those that stand, whoever made them."""
    lost: bool = False
    """NVML says that the GPU is lost: what stood on it stands again if it answers without having been reset."""

    def at(self, partition: PartitionRecord) -> GpuInstance | None:
        """The GPU instance in a partition's place, of the same profile."""
        for instance in self.instances:
            place = Placement(instance.placement.start, instance.placement.size)
            if instance.profile_id == partition.profile_id and place == partition.placement:
                return instance
        return None

    def in_the_way_of(self, placement: Placement) -> tuple[GpuInstance, ...]:
        """What stands on any of these slices."""
        places = ((one, Placement(one.placement.start, one.placement.size)) for one in self.instances)
        return tuple(one for one, place in places if place.overlaps(placement))


class MigDoor:
    """Looks at GPUs and changes them.

    Args:
        door: gives NVML; None while nothing has read the node yet.
        deadline: seconds for one look or one change.
    """

    def __init__(self, door: Callable[[], NvmlDoor | None], deadline: float) -> None:
        self._door = door
        self._deadline = deadline

    def look(self, address: str) -> Look:
        """Read MIG on one GPU.

        Raises:
            ClaimError: retryable; NVML does not tell.
        """
        try:
            (gpu,) = self._open().snapshot([address], self._deadline).gpus
        except NvmlError as error:
            raise failed(f"read the MIG instances of GPU {address}", error) from error
        return _look(address, gpu)

    def change(self, address: str, what: str, work: Callable[[Nvml], T], *, alone: bool = False) -> T:
        """Have something done to one GPU.

        Args:
            address: its PCI address.
            what: for the message: "make a GPU instance on GPU 0000:1b:00.0".
            work: as ``NvmlDoor.change`` takes it.
            alone: nobody else in this process has the GPU open meanwhile.

        Raises:
            ClaimError: retryable; it was not done, or it is not known whether (an ``NvmlTimeoutError`` is its cause).
        """
        try:
            return self._open().change(address, work, self._deadline, alone=alone)
        except NvmlError as error:
            raise failed(what, error) from error

    def switch(self, address: str, enabled: bool) -> None:
        """Switch MIG mode; where that cannot come about now, it is left as it was, for the next reset too.

        Raises:
            ClaimError: retryable; names what is in the way.
        """

        def work(nvml: Nvml) -> None:
            try:
                nvml.set_mig_mode(address, enabled)
            except MigActivationError:
                nvml.set_mig_mode(address, not enabled)
                raise

        self.change(address, f"switch MIG mode {'on' if enabled else 'off'} on GPU {address}", work, alone=True)

    def _open(self) -> NvmlDoor:
        door = self._door()
        if door is None:
            raise ClaimError(
                "NVML has not been opened yet: NVIDIA's driver is not ready (see the agent's log); the kubelet tries "
                "again",
                Reason.DRIVER_NOT_READY,
            )
        return door


def _look(address: str, gpu: GpuSnapshot) -> Look:
    code = gpu.codes.get("handle")
    listed = gpu.mig.codes.get("instances") if gpu.mig is not None else None
    if _is_lost(gpu):
        return Look(present=False, uuid=None, enabled=False, instances=(), lost=True)
    if code in _GONE:
        return Look(present=False, uuid=None, enabled=False, instances=())
    enabled = gpu.mig_mode is not None and gpu.mig_mode[0]
    instances = gpu.mig.instances if gpu.mig is not None else ()
    unknown = gpu.codes.get("mig_mode")
    if unknown in _NO_MIG:
        unknown = None
    if code is not None or unknown is not None or (enabled and instances is None):
        why = code or unknown or listed or 0
        raise ClaimError(
            f"cannot read the MIG instances of GPU {address}: {code_name(why)}; run the agent as root; if it is, see "
            "the kernel log",
            Reason.DEVICE_NOT_READY,
        )
    if gpu.uuid is None:
        raise ClaimError(
            f"cannot tell what stands on GPU {address}, for NVML gives no UUID for it: "
            f"{code_name(gpu.codes.get('uuid', 0))}; see the kernel log",
            Reason.DEVICE_NOT_READY,
        )
    return Look(present=True, uuid=gpu.uuid, enabled=enabled, instances=instances or ())


def _is_lost(gpu: GpuSnapshot) -> bool:
    """Whether any of the calls says so by which it is known what stands there: the GPU may be lost between two."""
    codes = [gpu.codes.get(name) for name in ("handle", "uuid", "mig_mode")]
    if gpu.mig is not None:
        codes += gpu.mig.codes.values()
        codes += [device.codes.get("uuid") for device in gpu.mig.devices or ()]
    return NvmlReturn.GPU_IS_LOST in codes


_REMEDIES = {
    NvmlReturn.IN_USE: "a program has it open (nvidia-smi names processes; monitoring such as DCGM counts too): stop "
    "it, or wait until it ends",
    NvmlReturn.NO_PERMISSION: "run the agent as root on the host's driver",
    NvmlReturn.RESET_REQUIRED: "the GPU must be reset first: nvidia-smi --gpu-reset, or reboot the node",
    NvmlReturn.INSUFFICIENT_RESOURCES: "what stands on the GPU leaves no room there; nvidia-smi mig -lgi lists it",
}


def failed(what: str, error: NvmlError) -> ClaimError:
    """A failure of NVML as the reason why a claim cannot be prepared or undone now: retryable, with the remedy."""
    if isinstance(error, LibraryUnavailableError):
        return ClaimError(f"cannot {what}: {error}", Reason.DRIVER_NOT_READY)
    if error.code == NvmlReturn.UNINITIALIZED:
        return ClaimError(
            f"cannot {what}: NVML was closed meanwhile, as it is for a moment while a GPU is handed over to a virtual "
            "machine; it is opened again with the next reading of the node",
            Reason.DRIVER_NOT_READY,
        )
    remedy = next((text for code, text in _REMEDIES.items() if error.code == code), "see the kernel log")
    return ClaimError(f"cannot {what}: {error}; {remedy}", Reason.DEVICE_NOT_READY)


def shortage(gpu: Gpu, partition: PartitionRecord, standing: Iterable[GpuInstance]) -> str | None:
    """Which engine there are too few of for a partition beside those that stand; None where there are enough.

    NVML states no pools: a board has as many engines as its largest profile takes.
    """
    wanted = gpu.profile(partition.profile_id)
    beside = [profile for one in standing if (profile := gpu.profile(one.profile_id)) is not None]
    if wanted is None:
        return None
    for engine in ENGINES[1:]:  # multiprocessors go with the slices
        total = max(getattr(profile, engine) for profile in gpu.mig_profiles)
        taken = sum(getattr(profile, engine) for profile in beside)
        if getattr(wanted, engine) > total - taken:
            needed = getattr(wanted, engine)
            return f"{engine.replace('_', ' ')}: {needed} wanted, {total - taken} of {total} left"
    return None
