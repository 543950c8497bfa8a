"""Which devices of a GPU are offered: the whole of it, the partitions that stand on it, or all that can be made of it.

A whole GPU and its partitions are never both free: either only one kind of them is in the pool, or both consume
counters of the GPU's set.
"""

from __future__ import annotations

import enum

import msgspec

from driver.model import Gpu, GpuState, MigPartition, MigSupport
from driver.publish.counters import Part, parts


class DeviceOrder(enum.StrEnum):
    """In which order the scheduler finds the devices of several GPUs; it takes the first that fits."""

    PACK = "pack"
    """One GPU after the other: a GPU is filled before the next one is begun, so that whole ones stay free."""
    SPREAD = "spread"
    """The first partition of every GPU, then the second of every GPU, and so on: load is spread over all."""


class Offer(msgspec.Struct, frozen=True):
    """What is offered of one GPU. Either something, or ``reason`` says why not."""

    gpu: Gpu
    whole: bool = False
    standing: tuple[MigPartition, ...] = ()
    """Partitions as they are."""
    possible: tuple[Part, ...] = ()
    """Partitions that are made when a claim gets them, least in the way of others first."""
    reason: str | None = None

    @property
    def divided(self) -> bool:
        """Whether parts of it are offered."""
        return bool(self.standing or self.possible)


def offer_of(gpu: Gpu, mig: MigSupport) -> Offer:
    """What is offered of a GPU.

    Args:
        gpu: as it is now.
        mig: what is done with MIG; DYNAMIC only where the API server keeps counters.
    """
    if gpu.state is not GpuState.READY:
        return Offer(gpu, reason=gpu.reason or f"its state is {gpu.state.value}")
    if mig is MigSupport.DYNAMIC and can_be_divided(gpu):
        if all(partition.managed for partition in gpu.partitions):
            return Offer(gpu, whole=gpu.switches_mig_freely, possible=parts(gpu.mig_profiles))
        return _as_it_stands(gpu)  # somebody else has divided it: it is left as they made it
    if not gpu.mig_enabled:
        return Offer(gpu, whole=True)
    if mig is MigSupport.OFF:
        return Offer(
            gpu,
            reason=f"MIG mode is on, so GPU {gpu.address} cannot be given out as a whole, and this driver's MIG "
            f"support is off; turn the mode off with nvidia-smi -i {gpu.address} -mig 0, or the support on with "
            "--mig static",
        )
    return _as_it_stands(gpu)


def can_be_divided(gpu: Gpu) -> bool:
    """Whether this driver can make partitions on it: its profiles are known, MIG mode is on or can be switched without
    a reset, and it is not a virtual GPU (a hypervisor divides those)."""
    possible = any(profile.placements for profile in gpu.mig_profiles)
    return possible and (gpu.mig_enabled or gpu.switches_mig_freely) and gpu.virtualization_mode != "VGPU"


def _as_it_stands(gpu: Gpu) -> Offer:
    usable = tuple(partition for partition in gpu.partitions if partition.usable)
    if usable:
        return Offer(gpu, standing=usable)
    return Offer(
        gpu,
        reason=f"MIG mode is on and no MIG device stands on GPU {gpu.address}, so it cannot be given out as a whole "
        "nor in parts; make partitions (nvidia-smi mig -cgi ... -C) or turn the mode off with "
        f"nvidia-smi -i {gpu.address} -mig 0",
    )
