"""Device names -> hardware, and whether somebody else holds it. Looks at values only; changes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from driver.model import Gpu, GpuState, NodeInventory
from driver.prepare.claims import AllocationResult, ClaimAllocation
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.specfolder import device_name

_FULL_GPU = re.compile(r"\Agpu-[0-9a-f]{4,8}-[0-9a-f]{2}-[0-9a-f]{2}-[0-7]\Z")


class Resolved(msgspec.Struct, frozen=True):
    """A claim with the hardware that its devices stand for."""

    record: ClaimRecord
    gpus: Mapping[str, Gpu]
    """Device name -> GPU."""


def check_names(allocation: ClaimAllocation) -> None:
    """Whether every device has a name that this version gives to devices.

    Raises:
        ClaimError: permanent; no snapshot of the node can change it.
    """
    for result in allocation.results:
        if _FULL_GPU.match(result.device) is None:
            raise ClaimError(
                f"{result.path}.device: this version of the driver has no device {result.device} (full GPUs are named "
                "by their PCI address, like gpu-0000-1b-00-0); delete the pod and the claim so that they are "
                "scheduled again",
                Reason.DEVICE_NOT_FOUND,
                permanent=True,
            )


def resolve(allocation: ClaimAllocation, inventory: NodeInventory) -> Resolved:
    """Find the hardware of every device of a claim.

    Raises:
        ClaimError: retryable; a device is not there or not usable now.
    """
    gpus = {result.device: usable_gpu(result.device, inventory) for result in allocation.results}
    devices = tuple(_device(allocation.ref.uid, result, gpus[result.device]) for result in allocation.results)
    return Resolved(ClaimRecord(allocation.ref, Phase.PREPARING, devices), gpus)


def usable_gpu(name: str, inventory: NodeInventory) -> Gpu:
    """The GPU of that name, if a container can use it now.

    Raises:
        ClaimError: retryable; says what is wrong with it.
    """
    gpu = inventory.gpu(name)
    if gpu is None:
        present = ", ".join(gpu.name for gpu in inventory.gpus) or "none"
        raise ClaimError(
            f"this node has no device {name} (it has: {present}); if the GPU was removed, delete the pod and the claim "
            "so that they are scheduled again",
            Reason.DEVICE_NOT_FOUND,
        )
    if gpu.state is not GpuState.READY or gpu.uuid is None:
        raise ClaimError(
            f"{name} is {gpu.state.value}: {gpu.reason or 'NVML gives no UUID for it'}", Reason.DEVICE_NOT_READY
        )
    if gpu.mig is not None and gpu.mig.current:
        raise ClaimError(
            f"{name} is in MIG mode and cannot be used as a full GPU; run `nvidia-smi -i {gpu.address} -mig 0` on the "
            "host when nobody uses it",
            Reason.DEVICE_NOT_READY,
        )
    return gpu


def check_identity(record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, Gpu]:
    """The GPUs of a stored record, each of them still the one that it was.

    Raises:
        ClaimError: retryable; a GPU is gone, unusable, or another board stands at its address.
    """
    gpus = {device.device: usable_gpu(device.device, inventory) for device in record.devices}
    for device in record.devices:
        found = gpus[device.device]
        if found.uuid != device.uuid or str(found.address) != device.address:
            raise ReplacedError(
                f"{device.device} was GPU {device.uuid} when claim {record.ref} was prepared and is GPU {found.uuid} "
                "now: the board was replaced; delete the pods that use the claim, so that it is prepared anew",
                Reason.DEVICE_NOT_READY,
            )
    return gpus


class ReplacedError(ClaimError):
    """Other hardware stands where a prepared device was."""


def same_allocation(record: ClaimRecord, allocation: ClaimAllocation) -> bool:
    """Whether a record is of this very allocation: the same devices for the same requests."""
    stored = [(d.request, d.pool, d.device, d.share_id, d.admin_access) for d in record.devices]
    return stored == [(r.request, r.pool, r.device, r.share_id, r.admin_access) for r in allocation.results]


def conflict(record: ClaimRecord, others: Iterable[ClaimRecord]) -> ClaimError | None:
    """The error if other claims hold any of a claim's hardware, finished or not; None if nobody does.

    Devices for admin access neither hold nor need anything for themselves.
    """
    wanted = {item: device for device in record.devices if not device.admin_access for item in device.hardware}
    for other in others:
        if other.ref.uid == record.ref.uid:
            continue
        shared = sorted(other.hardware.intersection(wanted))
        if shared:
            device = wanted[shared[0]]
            state = other.doubt or f"it is {other.phase.value.lower()}"
            return ClaimError(
                f"{device.device} (GPU {device.uuid}) is held by claim {other.ref}: {state}; it is free again when "
                "that claim is unprepared (delete the pods that use it)",
                Reason.DEVICE_IN_USE,
            )
    return None


def _device(uid: str, result: AllocationResult, gpu: Gpu) -> DeviceRecord:
    return DeviceRecord(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin_access=result.admin_access,
        address=str(gpu.address),
        uuid=gpu.uuid or "",
        cdi_device=device_name(uid, result.request, result.device, result.share_id),
    )
