"""The step that makes MIG partitions for claims, and destroys them with the claims.

What can stand on a GPU after a crash is always known from the record. ``making`` is on the disk before anything is
made, and only after a look that found nothing in that place; so whatever stands there afterwards is this claim's. The
id of the GPU instance is on the disk before the compute instance is made. What is in no record of a claim is somebody
else's and is never destroyed.

MIG mode is switched on before the first partition of a GPU and off behind the last one, on boards that do that without
a reset (since Hopper); on others it stays as the administrator set it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence

import msgspec

from driver.model import Gpu, MigSupport, NodeInventory
from driver.names import DeviceName
from driver.prepare.cdi import ContainerEdits
from driver.prepare.claimspec import partition_variable
from driver.prepare.devices import DeviceNodes
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.miglook import Look, MigDoor
from driver.prepare.migstanding import (
    check_found,
    check_present,
    check_room,
    check_told,
    check_whole,
    found_stands,
    is_ours,
    is_whole,
)
from driver.prepare.partition import PARTITION, Origin, PartitionRecord
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.remnant import LostGpuError, is_remnant
from driver.prepare.resolve import standing
from driver.prepare.steps import Faults, StepDefaults, Work, no_faults
from native.nvml.errors import NvmlError, NvmlTimeoutError
from native.nvml.migtypes import ComputeInstance, GpuInstance, Placement
from native.nvml.protocol import Nvml

log = logging.getLogger(__name__)

_OURS = (Origin.MAKING, Origin.MADE)
_DESCRIBED = "nvmlGpuInstanceGetInfo"
"""What ``create_gpu_instance`` calls when the instance stands."""


class MigStep(StepDefaults):
    """Makes the partitions of a claim where they are to be made (``MigSupport.DYNAMIC``), and destroys what was made
    whatever the setting is by now.

    Args:
        door: NVML.
        mig: what is done with MIG.
        nodes: asked whether the kernel knows an instance.
        boot_id: of the running system; None: unknown.
        faults: told of each crash point that is passed.
        changed: called where the last reading of the node no longer tells what stands.
    """

    name = PARTITION
    subject = "the partition of its GPU"
    do_points = ("mode-on", "gi-made", "gi-known", "ci-made")
    undo_points = ("ci-gone", "gi-gone", "mode-off")

    def __init__(
        self,
        door: MigDoor,
        mig: MigSupport,
        nodes: DeviceNodes,
        boot_id: Callable[[], str | None],
        faults: Faults = no_faults,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._door = door
        self._mig = mig
        self._nodes = nodes
        self._boot_id = boot_id
        self._faults = faults
        self._changed = changed

    # prepare

    def check(self, work: Work) -> None:
        """Look at the GPUs: is there room, can the mode be switched. Then the record says ``making``."""
        if not self._concerns(work.record):
            return
        devices = []
        for device in work.record.devices:
            gpu = work.inventory.at(device.address)
            partition = device.partition
            if gpu is not None and partition is not None and partition.origin is Origin.FOUND:
                self._check_found(work, device, partition, gpu)
            elif gpu is not None and partition is not None and not device.admin_access:
                device = self._planned(device, partition, gpu, self._first_look(work, device))  # noqa: PLW2901 - planned
            elif gpu is not None and not device.admin_access and self._is_switched(device, gpu):
                check_whole(device, gpu, self._first_look(work, device))
            devices.append(device)
        if tuple(devices) != work.record.devices:
            work.record = msgspec.structs.replace(work.record.with_devices(tuple(devices)), boot_id=self._boot_id())

    def do(self, work: Work) -> None:
        """Make what is to be made, one device after the other."""
        if not self._concerns(work.record):
            return
        for position, device in enumerate(work.record.devices):
            gpu = work.inventory.at(device.address)
            partition = device.partition
            if gpu is None or device.admin_access:
                continue
            if partition is None:
                if self._is_switched(device, gpu) and self._last_look(work, device).enabled:
                    self._door.switch(device.address, enabled=False)
            elif partition.origin is Origin.MAKING:
                self._make(work, position, device, partition)

    def is_done(self, work: Work) -> bool:
        """Whether each partition stands, with its UUID; and whether whole GPUs are out of MIG mode."""
        if not self._concerns(work.record):
            return True
        return all(self._is_right(device, work.inventory) for device in work.record.devices)

    def serves(self, record: ClaimRecord) -> bool:
        """Whether partitions that somebody else made stand as they were given: they go without a word to this driver.

        Raises:
            ClaimError: retryable; NVML does not tell.
        """
        looks: dict[str, Look] = {}
        for device in record.devices:
            partition = device.partition
            if partition is not None and partition.origin is Origin.FOUND:
                look = looks[device.address] = looks.get(device.address) or self._look(device)
                if not found_stands(device, partition, look):
                    return False
        return True

    def _check_found(self, work: Work, device: DeviceRecord, partition: PartitionRecord, gpu: Gpu) -> None:
        try:
            check_found(device, partition, gpu, self._first_look(work, device))
        except ClaimError as error:
            if error.reason is Reason.NODE_CHANGED:
                self._changed()
            raise

    def _concerns(self, record: ClaimRecord) -> bool:
        """Whether there can be something to do: whole GPUs are looked at only where this driver switches their mode."""
        return self._mig is MigSupport.DYNAMIC or any(PARTITION in device.data for device in record.devices)

    def _planned(self, device: DeviceRecord, partition: PartitionRecord, gpu: Gpu, look: Look) -> DeviceRecord:
        """The device as it is to be made; as it is where it stands already."""
        check_present(device, look)
        there = look.at(partition)
        ours = there is not None and partition.origin in _OURS and is_ours(device, partition, there)
        if there is not None and ours and is_whole(device, there):
            return device
        if not ours:  # else it is what an interrupted attempt left, and is made anew
            check_room(device, partition, gpu, look)
        making = msgspec.structs.replace(
            partition,
            origin=Origin.MAKING,
            gpu_instance=None,
            compute_instance=None,
            switches=gpu.switches_mig_freely,
        )
        return device.with_partition(making, "")

    def _make(self, work: Work, position: int, device: DeviceRecord, partition: PartitionRecord) -> None:
        address = device.address
        look = self._last_look(work, device)
        left = look.at(partition)
        if left is not None:
            self._destroy(device, partition, left)
        place = Placement(partition.placement.start, partition.placement.size)
        try:
            if not look.enabled:
                self._door.switch(address, enabled=True)
            self._faults("mode-on")
            instance = self._door.change(
                address,
                f"make {device.device}",
                lambda nvml: nvml.create_gpu_instance(address, partition.profile_id, place),
            )
        except ClaimError as error:
            if not _may_stand(error):
                work.save(_with_nothing_made(work.record, position))
            raise
        self._faults("gi-made")
        made = msgspec.structs.replace(partition, origin=Origin.MADE, gpu_instance=instance.id)
        work.save(_with_device(work.record, position, device.with_partition(made, "")))
        self._faults("gi-known")
        compute = self._door.change(
            address,
            f"make the compute instance of {device.device}",
            lambda nvml: _make_compute(nvml, address, instance.id),
        )
        made = msgspec.structs.replace(made, compute_instance=compute.id)
        uuid = compute.uuid or self._uuid(device, made)
        work.record = _with_device(work.record, position, device.with_partition(made, uuid))

    def _uuid(self, device: DeviceRecord, partition: PartitionRecord) -> str:
        """Of a MIG device that NVML did not name when it made it."""
        instance = self._look(device).at(partition)
        for compute in instance.compute_instances if instance is not None else ():
            if compute.id == partition.compute_instance and compute.uuid is not None:
                return compute.uuid
        raise ClaimError(
            f"NVML gives no UUID for {device.device}, which it has just made; see the kernel log",
            Reason.DEVICE_NOT_READY,
        )

    def _is_right(self, device: DeviceRecord, inventory: NodeInventory) -> bool:
        gpu = inventory.at(device.address)
        partition = device.partition
        if gpu is None or device.admin_access:
            return gpu is not None
        if partition is None:
            if not self._is_switched(device, gpu) or not gpu.mig_enabled:
                return True
            return not self._look(device).enabled  # the inventory may be of before
        if partition.origin is Origin.FOUND:
            return True
        if partition.gpu_instance is None or partition.compute_instance is None or not device.uuid:
            return False
        seen = standing(gpu, partition)
        if seen is not None and (seen.gpu_instance, seen.uuid) == (partition.gpu_instance, device.uuid):
            return True
        if not self._nodes.has_instance(gpu, partition.gpu_instance, partition.compute_instance):
            return False
        instance = self._look(device).at(partition)
        return instance is not None and is_whole(device, instance)

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """A word in the CDI file by which a partition that was made is known, should the checkpoint be lost."""
        return {
            device.cdi_device: ContainerEdits(env=(partition_variable(device, partition),))
            for device in record.devices
            if (partition := device.partition) is not None and partition.origin is Origin.MADE
        }

    # unprepare

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Destroy what was made for the claim, and nothing else. Of an earlier boot nothing stands any more.

        One partition that cannot be destroyed now keeps none of the others. LostGpuError: nothing is left but what is
        on GPUs that are lost.
        """
        failures = []
        lost = []
        for device, partition in self._of_boot(record, Origin.PLANNED):
            if partition.switches:  # it was about to be made: the mode may have been switched on for it
                self._switch_off(device, self._look)
        for device, partition in self._of_boot(record, *_OURS):
            try:
                if not self._take_back(record, device, partition):
                    lost.append(device)
            except ClaimError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        if lost:
            if not is_remnant(record):
                self._changed()  # it may answer again before anybody else has seen that it is lost
            raise LostGpuError(lost)

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether nothing stands that was made for the claim."""
        return all(self._standing(device, part)[1] is None for device, part in self._of_boot(record, *_OURS))

    def _take_back(self, record: ClaimRecord, device: DeviceRecord, partition: PartitionRecord) -> bool:
        """Whether nothing stands any more; False: nobody can tell, the GPU is lost."""
        look, instance = self._standing(device, partition)
        if look.lost:
            return False
        if instance is not None:
            self._destroy(device, partition, instance)
            left = tuple(one for one in look.instances if one.id != instance.id)
            look = msgspec.structs.replace(look, instances=left)
        elif look.at(partition) is not None:
            log.warning("%s is left alone: it is not the one that claim %s had", device.device, record.ref)
        if partition.switches:
            self._switch_off(device, lambda _device: look)
        return True

    def _of_boot(self, record: ClaimRecord, *origins: Origin) -> list[tuple[DeviceRecord, PartitionRecord]]:
        """A claim's partitions of these kinds; none, where they were of an earlier boot."""
        now = self._boot_id()
        if record.boot_id is not None and now is not None and record.boot_id != now:
            return []
        pairs = ((device, device.partition) for device in record.devices)
        return [(device, part) for device, part in pairs if part is not None and part.origin in origins]

    def _standing(self, device: DeviceRecord, partition: PartitionRecord) -> tuple[Look, GpuInstance | None]:
        """A look at the GPU, and what stands there that was made for the claim."""
        look = self._look(device)
        instance = look.at(partition) if look.uuid == partition.parent else None
        if instance is not None:
            check_told(device, partition, instance)
        ours = instance is not None and is_ours(device, partition, instance)
        return look, instance if ours else None

    def _destroy(self, device: DeviceRecord, partition: PartitionRecord, instance: GpuInstance) -> None:
        address = device.address
        strangers = [one for one in instance.compute_instances if device.uuid and one.uuid != device.uuid]
        if strangers:
            raise ClaimError(
                f"{device.device} cannot be destroyed: somebody made MIG device {strangers[0].uuid} in it; destroy "
                f"that with `nvidia-smi mig -dci -i {address} -gi {instance.id} -ci {strangers[0].id}`",
                Reason.DEVICE_NOT_READY,
            )
        for compute in instance.compute_instances:
            self._door.change(
                address,
                f"destroy the compute instance of {device.device}",
                functools.partial(_destroy_compute, address, instance.id, compute.id),
            )
        self._faults("ci-gone")
        self._door.change(
            address,
            f"destroy {device.device}",
            lambda nvml: nvml.destroy_gpu_instance(address, instance.id),
        )
        self._faults("gi-gone")

    def _switch_off(self, device: DeviceRecord, seen: Callable[[DeviceRecord], Look]) -> None:
        """MIG mode off again where nothing stands. Not worth a failed Unprepare: a claim that wants the whole GPU
        switches it off too."""
        try:
            look = seen(device)
            if look.present and look.enabled and not look.instances:
                self._door.switch(device.address, enabled=False)
        except ClaimError as error:
            log.warning("MIG mode stays on: %s", error)

    def _look(self, device: DeviceRecord) -> Look:
        return self._door.look(device.address)

    def _first_look(self, work: Work, device: DeviceRecord) -> Look:
        """For all devices of a claim on one GPU."""
        key = f"{PARTITION} {device.address}"
        look = work.seen.get(key)
        if not isinstance(look, Look):
            look = work.seen[key] = self._look(device)
        return look

    def _last_look(self, work: Work, device: DeviceRecord) -> Look:
        """As when it was checked, once: then something is done to the GPU. Its lock is held from there to here."""
        look = work.seen.pop(f"{PARTITION} {device.address}", None)
        return look if isinstance(look, Look) else self._look(device)

    def _is_switched(self, device: DeviceRecord, gpu: Gpu) -> bool:
        """Whether a whole GPU of a claim is one whose MIG mode this driver switches."""
        if self._mig is not MigSupport.DYNAMIC or not gpu.switches_mig_freely:
            return False
        name = DeviceName.parse(device.device)
        return name is not None and name.kind == "gpu"


def _may_stand(error: ClaimError) -> bool:
    """Whether something may have been made nevertheless. What NVML made and then does not describe is destroyed again
    at once, which may fail too."""
    cause = error.__cause__
    return isinstance(cause, NvmlTimeoutError) or (isinstance(cause, NvmlError) and cause.call.startswith(_DESCRIBED))


def _destroy_compute(address: str, gpu_instance: int, compute_instance: int, nvml: Nvml) -> None:
    nvml.destroy_compute_instance(address, gpu_instance, compute_instance)


def _make_compute(nvml: Nvml, address: str, gpu_instance: int) -> ComputeInstance:
    """The compute instance that is all of its GPU instance."""
    profiles = nvml.compute_instance_profiles(address, gpu_instance)
    largest = max(profiles, key=lambda profile: (profile.slice_count, -profile.index))
    return nvml.create_compute_instance(address, gpu_instance, largest.id)


def _with_device(record: ClaimRecord, position: int, device: DeviceRecord) -> ClaimRecord:
    devices = list(record.devices)
    devices[position] = device
    return record.with_devices(tuple(devices))


def _with_nothing_made(record: ClaimRecord, first: int) -> ClaimRecord:
    """The record when nothing was made of this device and of those behind it: what stands in their places later on is
    somebody else's."""
    for position, device in enumerate(record.devices[first:], first):
        partition = device.partition
        if partition is not None and partition.origin is Origin.MAKING:
            planned = msgspec.structs.replace(partition, origin=Origin.PLANNED)
            record = _with_device(record, position, device.with_partition(planned, ""))
    return record
