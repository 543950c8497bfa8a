"""Device names -> hardware, and whether it is still what it was. Looks at values only; changes nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from driver.model import Gpu, GpuState, MigPartition, MigSupport, NodeInventory
from driver.names import DeviceName, name_of, partition_name
from driver.prepare.claims import AllocationResult, ClaimAllocation
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.partition import Origin, PartitionRecord
from driver.prepare.records import SHARE, ClaimRecord, DeviceRecord, Phase
from driver.prepare.specfolder import device_name

_RESCHEDULE = "delete the pod and the claim so that they are scheduled again"
_MIG_OFF = "run `nvidia-smi -i {address} -mig 0` on the host when nobody uses it"


def check_names(allocation: ClaimAllocation, kinds: Collection[str]) -> None:
    """Whether every device has a name that this driver gives to devices, of a kind that it serves.

    Raises:
        ClaimError: permanent; no snapshot of the node can change it.
    """
    for result in allocation.results:
        name = DeviceName.parse(result.device)
        if name is None:
            problem = (
                f"this version of the driver has no device {result.device} (full GPUs are named by their PCI address, "
                f"like gpu-0000-1b-00-0); {_RESCHEDULE}"
            )
        elif name.kind not in kinds:
            problem = f"{result.device} is of the kind {name.kind}, which is turned off on this node; {_RESCHEDULE}"
        else:
            continue
        raise ClaimError(f"{result.path}.device: {problem}", Reason.DEVICE_NOT_FOUND, permanent=True)


def resolve(allocation: ClaimAllocation, inventory: NodeInventory, mig: MigSupport) -> ClaimRecord:
    """Find the hardware of every device of a claim.

    Raises:
        ClaimError: a device is not there or not usable now. Permanent where only an administrator can bring it back.
    """
    devices = tuple(_device(allocation.ref.uid, result, inventory, mig) for result in allocation.results)
    return ClaimRecord(allocation.ref, Phase.PREPARING, devices, pod_claim=allocation.pod_claim)


def usable_gpu(name: str, inventory: NodeInventory) -> Gpu:
    """The GPU of that name, if a container can use it or a part of it now.

    Raises:
        ClaimError: retryable; says what is wrong with it.
    """
    gpu = inventory.gpu(name)
    if gpu is None:
        present = ", ".join(gpu.name for gpu in inventory.gpus) or "none"
        raise ClaimError(
            f"this node has no device {name} (it has: {present}); if the GPU was removed, {_RESCHEDULE}",
            Reason.DEVICE_NOT_FOUND,
        )
    if gpu.state is not GpuState.READY or gpu.uuid is None:
        raise ClaimError(
            f"{name} is {gpu.state.value}: {gpu.reason or 'NVML gives no UUID for it'}", Reason.DEVICE_NOT_READY
        )
    return gpu


def passthrough_gpu(name: str, inventory: NodeInventory) -> Gpu:
    """The GPU of that name as the bus shows it, whatever driver it is bound to: NVML knows nothing of one that a
    virtual machine has.

    Raises:
        ClaimError: retryable; it is not on the bus.
    """
    gpu = inventory.gpu(name)
    if gpu is None:
        return usable_gpu(name, inventory)  # says so
    return gpu


def passthrough_id(gpu: Gpu) -> str:
    """What stands for the UUID of a device for passthrough: its place, which is all that can be known of it."""
    return f"VFIO-{gpu.address}"


def whole_gpu(gpu: Gpu, mig: MigSupport, *, admin_access: bool = False) -> Gpu:
    """The GPU, if it can be used as a whole. Where this driver switches MIG mode, it is no obstacle here; and whoever
    only looks at a GPU sees it in any mode.

    Raises:
        ClaimError: retryable; it is in MIG mode.
    """
    switched = mig is MigSupport.DYNAMIC and gpu.switches_mig_freely
    if gpu.mig_enabled and not switched and not admin_access:
        raise ClaimError(
            f"{gpu.name} is in MIG mode and cannot be used as a full GPU; {_MIG_OFF.format(address=gpu.address)}",
            Reason.DEVICE_NOT_READY,
        )
    return gpu


def standing(gpu: Gpu, partition: PartitionRecord) -> MigPartition | None:
    """The partition that stands now in the place of a recorded one, of the same profile."""
    wanted = partition.profile_id, partition.placement, partition.compute
    return next(
        (one for one in gpu.partitions if one.usable and (one.profile_id, one.placement, one.compute) == wanted), None
    )


def check_identity(record: ClaimRecord, inventory: NodeInventory, mig: MigSupport) -> None:
    """Whether the devices of a stored record are still those that they were: GPUs, and partitions that were found.

    Partitions that were made for the claim are not looked at, only their GPUs are.

    Raises:
        ClaimError: a device is gone, unusable, or something else stands in its place.
    """
    for device in record.devices:
        gpu = _same_gpu(record, device, inventory)
        partition = device.partition
        if partition is None:
            whole_gpu(gpu, mig, admin_access=device.admin_access)
        elif partition.origin is Origin.FOUND:
            found = standing(gpu, partition)
            if found is None and not gpu.partitions_known:
                raise _untold(device.device, gpu)
            if found is None:
                raise _vanished(device.device, gpu, "it was destroyed while the claim held it")
            if found.uuid != device.uuid:
                raise ReplacedError(
                    f"{device.device} was MIG device {device.uuid} when claim {record.ref} was prepared and is "
                    f"{found.uuid} now: somebody partitioned the GPU anew; delete the pods that use the claim, so that "
                    "it is prepared anew",
                    Reason.DEVICE_NOT_READY,
                )


def refound(record: ClaimRecord, inventory: NodeInventory) -> ClaimRecord:
    """The record with those found partitions as they stand now, where their place and profile is the same.

    For a record of an earlier boot: nothing that it describes stands any more, and what an administrator's tool made
    again at the start is what the claim was given.
    """
    devices = []
    for device in record.devices:
        partition = device.partition
        gpu = inventory.at(device.address)
        if partition is not None and partition.origin is Origin.FOUND and gpu is not None:
            found = standing(gpu, partition)
            if found is not None:
                device = _found(device, partition, found)  # noqa: PLW2901 - the same device as it is now
        devices.append(device)
    return record.with_devices(tuple(devices))


def regained(record: ClaimRecord, stored: ClaimRecord) -> ClaimRecord:
    """The record of an allocation with the partitions that a record in doubt says were made for it."""
    made = {
        (device.address, partition.profile_id, partition.placement, partition.parent): device
        for device in stored.devices
        if (partition := device.partition) is not None and partition.origin is Origin.MADE
    }
    devices = []
    for device in record.devices:
        partition = device.partition
        if partition is not None and partition.origin is Origin.PLANNED:
            before = made.get((device.address, partition.profile_id, partition.placement, partition.parent))
            if before is not None and (known := before.partition) is not None:
                named = msgspec.structs.replace(known, profile=partition.profile)
                device = device.with_partition(named, before.uuid)  # noqa: PLW2901 - the same device, and made
        devices.append(device)
    return record.with_devices(tuple(devices))


class ReplacedError(ClaimError):
    """Other hardware stands where a prepared device was."""


class UntoldError(ClaimError):
    """NVML does not tell whether a partition stands: nothing follows from that."""


def same_allocation(record: ClaimRecord, allocation: ClaimAllocation) -> bool:
    """Whether a record is of this very allocation: the same devices for the same requests."""
    stored = [(d.request, d.pool, d.device, d.share_id, d.admin_access) for d in record.devices]
    return stored == [(r.request, r.pool, r.device, r.share_id, r.admin_access) for r in allocation.results]


def conflict(record: ClaimRecord, others: Iterable[ClaimRecord]) -> ClaimError | None:
    """The error if other claims hold any of a claim's hardware, finished or not; None if nobody does.

    A partition overlaps its GPU and whatever lies on the same slices, not its siblings. Shares of one device go
    together, a whole device and a share of it do not. Devices for admin access neither hold nor need anything for
    themselves.
    """
    wanted = [device for device in record.devices if not device.admin_access]
    for other in others:
        if other.ref.uid == record.ref.uid:
            continue
        for device in wanted:
            held, within = _rivals(device, other)
            if device.hardware & held or device.within & held or device.hardware & within:
                state = other.doubt or f"it is {other.phase.value.lower()}"
                return ClaimError(
                    f"{_told(device)} is held by claim {other.ref}{_by(device, other)}: {state}; it is free again when "
                    "that claim is unprepared (delete the pods that use it)",
                    Reason.DEVICE_IN_USE,
                )
    return None


def _rivals(device: DeviceRecord, other: ClaimRecord) -> tuple[frozenset[str], frozenset[str]]:
    """What another claim holds, and is within, in a way that the device does not go together with: all of it, but for
    shares of the very device that this is a share of."""
    if device.share_id is None:
        return other.hardware, other.within
    others = [d for d in other.devices if not d.admin_access and (d.share_id is None or d.device != device.device)]
    held = other.held.union(*(theirs.hardware for theirs in others))
    return held, frozenset().union(*(theirs.within for theirs in others))


def _told(device: DeviceRecord) -> str:
    partition = device.partition
    if partition is None:
        return f"{device.device} (GPU {device.uuid})"
    return f"{device.device} (of GPU {partition.parent})"


def _by(device: DeviceRecord, other: ClaimRecord) -> str:
    """With which of its devices, where that is not the same one."""
    for theirs in other.devices:
        hit = device.hardware & theirs.hardware or device.within & theirs.hardware or device.hardware & theirs.within
        if hit and not theirs.admin_access and theirs.device != device.device:
            return f" (its {theirs.device} overlaps it)"
    return ""


def _device(uid: str, result: AllocationResult, inventory: NodeInventory, mig: MigSupport) -> DeviceRecord:
    name = DeviceName.parse(result.device)
    virtual = name is not None and name.kind == "vfio"
    gpu = (passthrough_gpu if virtual else usable_gpu)(name.gpu if name is not None else result.device, inventory)
    device = DeviceRecord(
        request=result.request,
        pool=result.pool,
        device=result.device,
        share_id=result.share_id,
        admin_access=result.admin_access,
        address=str(gpu.address),
        uuid=passthrough_id(gpu) if virtual else gpu.uuid or "",
        cdi_device=device_name(uid, result.request, result.device, result.share_id),
    )
    if result.share_id is not None:
        device = device.with_data(SHARE, {"consumed": dict(result.consumed)})
    if name is None or name.kind != "mig":
        if name is None or name.kind == "gpu":
            if "mig" in gpu.unread and not result.admin_access:
                raise _modeless(device.device, gpu)
            whole_gpu(gpu, mig, admin_access=result.admin_access)
        return device
    return _partition(device, name, gpu, mig)


def _partition(device: DeviceRecord, name: DeviceName, gpu: Gpu, mig: MigSupport) -> DeviceRecord:
    """What a partition's name means on this GPU now: one that stands, or one that is to be made."""
    found = next((one for one in gpu.partitions if one.usable and name_of(gpu, one) == device.device), None)
    if found is not None and (device.admin_access or not found.managed or mig is not MigSupport.DYNAMIC):
        partition = PartitionRecord(
            found.profile_id, found.profile, found.placement, gpu.uuid or "", Origin.FOUND, found.compute
        )
        return _found(device, partition, found)
    profile = None if name.profile_id is None else gpu.profile(name.profile_id)
    placement = next((one for one in profile.placements if one.start == name.start), None) if profile else None
    if device.admin_access:
        raise ClaimError(
            f"{device.device} does not stand on GPU {gpu.uuid} now, and admin access makes no partition; try again "
            "while a claim has it",
            Reason.DEVICE_NOT_READY,
        )
    if mig is not MigSupport.DYNAMIC or profile is None or placement is None or name.compute_start is not None:
        if not gpu.partitions_known:
            raise _untold(device.device, gpu)
        raise _vanished(device.device, gpu, "it was destroyed, or the GPU is not in MIG mode any more")
    if device.device != partition_name(gpu.name, profile.name, profile.profile_id, placement.start):
        raise _vanished(device.device, gpu, f"profile {profile.profile_id} of this board is {profile.name}")
    partition = PartitionRecord(profile.profile_id, profile.name, placement, gpu.uuid or "", Origin.PLANNED)
    return device.with_partition(partition, "")


def _found(device: DeviceRecord, partition: PartitionRecord, found: MigPartition) -> DeviceRecord:
    now = msgspec.structs.replace(partition, gpu_instance=found.gpu_instance, compute_instance=found.compute_instance)
    return device.with_partition(now, found.uuid or "")


def _untold(name: str, gpu: Gpu) -> ClaimError:
    return UntoldError(
        f"cannot tell whether {name} stands: NVML does not tell all that stands on GPU {gpu.address} now; see the "
        "agent's log for the call that failed, and the kernel log",
        Reason.DEVICE_NOT_READY,
    )


def _modeless(name: str, gpu: Gpu) -> ClaimError:
    return UntoldError(
        f"cannot tell whether {name} is whole: NVML does not tell the MIG mode of GPU {gpu.address} now, so partitions "
        "of it may be in use; see the agent's log for the call that failed, and the kernel log",
        Reason.DEVICE_NOT_READY,
    )


def _vanished(name: str, gpu: Gpu, why: str) -> ClaimError:
    present = ", ".join(name_of(gpu, one) for one in gpu.partitions if one.usable) or "none"
    return ClaimError(
        f"there is no MIG device {name} on GPU {gpu.uuid} now: {why} (it has: {present}); {_RESCHEDULE}, or make the "
        "partition again with nvidia-smi mig",
        Reason.DEVICE_NOT_FOUND,
        permanent=True,
    )


def _same_gpu(record: ClaimRecord, device: DeviceRecord, inventory: NodeInventory) -> Gpu:
    name = DeviceName.parse(device.device)
    if name is not None and name.kind == "vfio":
        return passthrough_gpu(name.gpu, inventory)
    gpu = usable_gpu(name.gpu if name is not None else device.device, inventory)
    partition = device.partition
    known = device.uuid if partition is None else partition.parent
    if gpu.uuid != known or str(gpu.address) != device.address:
        raise ReplacedError(
            f"{device.device} was GPU {known} when claim {record.ref} was prepared and is GPU {gpu.uuid} now: the "
            "board was replaced; delete the pods that use the claim, so that it is prepared anew",
            Reason.DEVICE_NOT_READY,
        )
    return gpu
