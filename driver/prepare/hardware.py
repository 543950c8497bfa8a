"""The step of devices that are handed out as they stand: whole GPUs, and partitions that somebody else made."""

from __future__ import annotations

from collections.abc import Mapping

from driver.model import MigPartition, MigSupport, NodeInventory
from driver.prepare.cdi import ContainerEdits
from driver.prepare.devices import DeviceNodes
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.partition import Origin
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.resolve import check_identity, passthrough_id, standing
from driver.prepare.steps import StepDefaults, Work


class HardwareStep(StepDefaults):
    """Makes sure that the hardware is the one that was meant, and gives containers its device nodes."""

    name = "hardware"
    subject = "the identity of its GPUs"
    kinds = frozenset({"gpu"})
    do_points = ("p2",)
    undo_points = ("u2",)

    def __init__(self, nodes: DeviceNodes, mig: MigSupport) -> None:
        self._nodes = nodes
        self._mig = mig

    def do(self, work: Work) -> None:
        """Compare UUID and address of every device with the record."""
        check_identity(work.record, work.inventory, self._mig)

    def is_done(self, work: Work) -> bool:
        """Whether each device is still the one in the record."""
        return all(_is_the_same(device, work.inventory) for device in work.record.devices)

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """The device nodes of every device."""
        return {device.cdi_device: self._device_nodes(device, inventory) for device in record.devices}

    def _device_nodes(self, device: DeviceRecord, inventory: NodeInventory) -> ContainerEdits:
        gpu = inventory.at(device.address)
        if gpu is None:
            raise ClaimError(f"the GPU of {device.device} is gone", Reason.DEVICE_NOT_FOUND)
        if device.uuid == passthrough_id(gpu):
            return ContainerEdits()  # its nodes are VFIO's
        partition = device.partition
        if partition is None:
            return ContainerEdits(device_nodes=self._nodes.of_gpu(gpu))
        if partition.gpu_instance is None or partition.compute_instance is None:
            raise ClaimError(f"{device.device} has not been made yet", Reason.DEVICE_NOT_READY)
        profile = gpu.profile(partition.profile_id)
        nodes = self._nodes.of_partition(
            gpu,
            partition.gpu_instance,
            partition.compute_instance,
            graphics=profile.graphics if profile is not None else "+gfx" in partition.profile,
        )
        return ContainerEdits(device_nodes=nodes)


def _is_the_same(device: DeviceRecord, inventory: NodeInventory) -> bool:
    gpu = inventory.at(device.address)
    partition = device.partition
    if gpu is None:
        return False
    if device.uuid == passthrough_id(gpu):
        return True
    if partition is None:
        return gpu.uuid == device.uuid
    if gpu.uuid != partition.parent:
        return False
    found: MigPartition | None = standing(gpu, partition)
    return partition.origin is not Origin.FOUND or (found is not None and found.uuid == device.uuid)
