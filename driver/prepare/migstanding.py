"""What stands on a GPU at this moment, against what a record says of a partition."""

from __future__ import annotations

from driver.model import Gpu, Placement
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.miglook import Look, shortage
from driver.prepare.partition import Origin, PartitionRecord
from driver.prepare.records import DeviceRecord
from native.nvml.migtypes import ComputeInstance, GpuInstance


def is_ours(device: DeviceRecord, partition: PartitionRecord, instance: GpuInstance) -> bool:
    """Whether a GPU instance in the partition's place is the one that was made for it."""
    if partition.origin is Origin.MAKING:
        return True  # nothing stood there before
    if partition.gpu_instance != instance.id:
        return False
    uuids = {one.uuid for one in instance.compute_instances}
    return not device.uuid or not uuids or device.uuid in uuids


def is_whole(device: DeviceRecord, instance: GpuInstance) -> bool:
    """Whether a GPU instance has the compute instance that the claim was told of."""
    return device.uuid in {one.uuid for one in instance.compute_instances}


def check_told(device: DeviceRecord, partition: PartitionRecord, instance: GpuInstance) -> None:
    """Whether it can be told whose a GPU instance in the partition's place is. ClaimError: retryable; it cannot."""
    untold = device.uuid and any(one.uuid is None for one in instance.compute_instances)
    if untold and partition.gpu_instance == instance.id:
        raise ClaimError(
            f"cannot tell whether {device.device} stands, for NVML gives no UUID for what is in its place on GPU "
            f"{device.address} (GPU instance {instance.id}); see the kernel log",
            Reason.DEVICE_NOT_READY,
        )


def named(gpu: Gpu, instance: GpuInstance) -> str:
    """A GPU instance in words."""
    profile = gpu.profile(instance.profile_id)
    name = profile.name if profile is not None else f"of profile {instance.profile_id}"
    last = instance.placement.start + instance.placement.size - 1
    return f"GPU instance {instance.id} ({name}, memory slices {instance.placement.start} to {last})"


def check_room(device: DeviceRecord, partition: PartitionRecord, gpu: Gpu, look: Look) -> None:
    """Whether a partition can be made in its place. ClaimError: retryable; something is in the way."""
    if not look.enabled and not gpu.switches_mig_freely:
        raise ClaimError(
            f"{device.device} cannot be made: MIG mode is off on GPU {device.address}, and this board switches it "
            f"only with a reset; run `nvidia-smi -i {device.address} -mig 1` on the host when nobody uses it",
            Reason.DEVICE_NOT_READY,
        )
    in_the_way = look.in_the_way_of(partition.placement)
    if in_the_way:
        found = ", ".join(named(gpu, one) for one in in_the_way)
        raise ClaimError(
            f"{device.device} cannot be made: {found} stands in its place, and no claim of this driver made it; "
            "destroy it with nvidia-smi mig -dci and -dgi, or delete the pod and the claim so that they are "
            "scheduled again",
            Reason.DEVICE_NOT_READY,
        )
    short = shortage(gpu, partition, look.instances)
    if short is not None:
        found = ", ".join(named(gpu, one) for one in look.instances)
        raise ClaimError(
            f"{device.device} cannot be made: GPU {device.address} has too few {short}; what stands on it: {found}",
            Reason.DEVICE_NOT_READY,
        )


def check_whole(device: DeviceRecord, gpu: Gpu, look: Look) -> None:
    """Whether a GPU can be used as a whole. ClaimError: retryable; a partition that is nobody's stands on it."""
    if look.enabled and look.instances:
        found = ", ".join(named(gpu, one) for one in look.instances)
        raise ClaimError(
            f"{device.device} cannot be used as a full GPU: {found} stands on it, and no claim of this driver made "
            "it; destroy it with nvidia-smi mig -dci and -dgi, or delete the pod and the claim so that they are "
            "scheduled again",
            Reason.DEVICE_NOT_READY,
        )


def found_stands(device: DeviceRecord, partition: PartitionRecord, look: Look) -> bool:
    """Whether a partition that somebody else made stands under the ids and the UUID that the record has of it."""
    instance = _instance(partition, look)
    return instance is not None and any(
        _is_the_same(device, partition, instance, one) for one in instance.compute_instances
    )


def check_found(device: DeviceRecord, partition: PartitionRecord, gpu: Gpu, look: Look) -> None:
    """Whether a partition that somebody else made stands as the last reading of the node saw it.

    Args:
        device: as it was found in that reading.
        gpu: as it was then; only what its board can be divided into is taken from it.
        look: the GPU at this moment.

    Raises:
        ClaimError: retryable. NodeChanged where another reading will tell what stands now, DeviceNotReady where the
            GPU does not answer.
    """
    check_present(device, look)
    instance = _instance(partition, look)
    there = None if instance is None else _in_place(partition, gpu, instance)
    if instance is None or there is None or there.uuid is None:
        present = ", ".join(named(gpu, one) for one in look.instances) or "none"
        raise ClaimError(
            f"there is no MIG device {device.device} on GPU {look.uuid} now: it was destroyed after the last reading "
            f"of the node (GPU instances that stand: {present}); make it again with nvidia-smi mig, or delete the pod "
            "and the claim so that they are scheduled again; the node is read anew",
            Reason.NODE_CHANGED,
        )
    if not _is_the_same(device, partition, instance, there):
        raise ClaimError(
            f"{device.device} was MIG device {device.uuid} at the last reading of the node and is {there.uuid} now: "
            "somebody partitioned the GPU anew; the node is read again, and the next attempt gets what stands there",
            Reason.NODE_CHANGED,
        )


def check_present(device: DeviceRecord, look: Look) -> None:
    """Whether the GPU answers. ClaimError: retryable; it does not."""
    if not look.present:
        raise ClaimError(
            f"{device.device} cannot be used now: GPU {device.address} is lost, or NVML does not know it any more; see "
            "the kernel log",
            Reason.DEVICE_NOT_READY,
        )


def _instance(partition: PartitionRecord, look: Look) -> GpuInstance | None:
    """In the partition's place; none where the board is another one."""
    return look.at(partition) if look.uuid == partition.parent else None


def _in_place(partition: PartitionRecord, gpu: Gpu, instance: GpuInstance) -> ComputeInstance | None:
    """The compute instance that the partition's name means: that on its compute slices, or that which has them all."""
    profile = gpu.profile(partition.profile_id)
    slices = profile.compute_slices if profile is not None else 0
    for one in instance.compute_instances:
        place = Placement(one.placement.start, one.placement.size)
        if place == partition.compute or (partition.compute is None and place.size >= slices):
            return one
    return None


def _is_the_same(
    device: DeviceRecord, partition: PartitionRecord, instance: GpuInstance, compute: ComputeInstance
) -> bool:
    ids = instance.id, compute.id, compute.uuid
    return ids == (partition.gpu_instance, partition.compute_instance, device.uuid)
