"""What MIG makes of a GPU: the profiles that its board can be divided into, and the partitions that stand on it.

The source is NVML (``native.nvml.migtypes.MigState``); the kernel adds by which device nodes a partition is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from driver.inventory.unread import ORDINARY
from driver.model import MigPartition, MigProfile, Placement
from native.capabilities import InstanceMinors
from native.nvml.errors import NvmlReturn, code_name
from native.nvml.migtypes import ComputeInstance, GpuInstance, GpuInstanceProfile, MigDevice
from native.nvml.types import GpuSnapshot

_MIB = 1 << 20
_SUFFIXES: Mapping[int, str] = {
    7: "+me",
    8: "+me",
    10: "+gfx",
    11: "+gfx",
    12: "+gfx",
    13: "-me",
    14: "-me",
    15: "+me.all",
    16: "+me.all",
    17: "+gfx",
}
"""NVML_GPU_INSTANCE_PROFILE_*: what tells profiles of one size apart."""


class GpuMig(msgspec.Struct, frozen=True):
    """MIG on one GPU, in the model's words; ``remarks`` are for people."""

    profiles: tuple[MigProfile, ...] = ()
    partitions: tuple[MigPartition, ...] = ()
    known: bool = True
    """Whether ``partitions`` are all that there are: a list that NVML refuses is not an empty one."""
    settled: bool = True
    remarks: tuple[str, ...] = ()


def mig_of(gpu: GpuSnapshot, minors: InstanceMinors) -> GpuMig:
    """What NVML says of MIG on a GPU that it can read. Never raises; what is odd stands in ``remarks``.

    A GPU instance without a compute instance is a partition without a UUID: it occupies its place, and nothing can run
    on it. Without the right to list instances (NO_PERMISSION) no partition is known.
    """
    state = gpu.mig
    is_known = gpu.codes.get("mig_mode", NvmlReturn.NOT_SUPPORTED) in ORDINARY
    if state is None:
        return GpuMig(known=is_known)
    remarks = [_refused(what, code) for what, code in state.codes.items() if code not in ORDINARY]
    profiles = {profile.id: profile for profile in state.profiles or ()}
    known = {
        number: _profile(profile, gpu.memory_total)
        for number, profile in sorted(profiles.items())
        if profile.placements
    }
    devices = {(device.gpu_instance, device.compute_instance): device for device in state.devices or ()}
    partitions: list[MigPartition] = []
    is_known = is_known and state.instances is not None
    for instance in state.instances or ():
        is_known = is_known and _is_told(instance, profiles.get(instance.profile_id))
        profile = known.get(instance.profile_id)
        if profile is None:
            remarks.append(
                f"GPU instance {instance.id} is of profile {instance.profile_id}, which NVML does not describe"
            )
            continue
        partitions += _partitions(gpu, instance, profile, devices, minors)
    if not state.stable:
        remarks.append("somebody is changing its MIG instances at this moment; they are read again soon")
    partitions.sort(key=lambda one: (one.placement, one.compute or Placement(0, 0), one.profile_id))
    return GpuMig(tuple(known.values()), tuple(partitions), is_known, state.stable, tuple(remarks))


def _is_told(instance: GpuInstance, profile: GpuInstanceProfile | None) -> bool:
    """Whether no call failed without which an instance is no usable partition."""
    refused = profile is not None and profile.codes.get("placements", NvmlReturn.NOT_SUPPORTED) not in ORDINARY
    return not refused and all(compute.uuid is not None for compute in instance.compute_instances)


def _refused(what: str, code: int) -> str:
    remedy = "; run the agent as root" if code == NvmlReturn.NO_PERMISSION else ""
    return f"NVML does not list its MIG {what}: {code_name(code)}{remedy}"


def _profile(profile: GpuInstanceProfile, total_bytes: int | None) -> MigProfile:
    return MigProfile(
        profile_id=profile.id,
        name=profile.name or profile_name(profile, total_bytes),
        placements=tuple(Placement(one.start, one.size) for one in profile.placements or ()),
        instance_count=profile.instance_count,
        memory_bytes=profile.memory_mib * _MIB,
        multiprocessors=profile.multiprocessor_count,
        copy_engines=profile.copy_engine_count,
        decoders=profile.decoder_count,
        encoders=profile.encoder_count,
        jpeg_engines=profile.jpeg_count,
        ofa_engines=profile.ofa_count,
        compute_slices=profile.slice_count,
        graphics=_SUFFIXES.get(profile.index) == "+gfx" if profile.graphics is None else profile.graphics,
    )


def profile_name(profile: GpuInstanceProfile, total_bytes: int | None) -> str:
    """The name of a profile for which the driver has none (before R525), made as NVIDIA's own tools make it.

    Its share of the board's memory, in eighths and rounded up, of the board's gigabytes rounded up. Where the board's
    memory is unknown, the profile's own is rounded.
    """
    total_mib = (total_bytes or 0) // _MIB
    if total_mib:
        share = math.ceil(profile.memory_mib / total_mib * 8) / 8
        gigabytes = round(share * math.ceil(total_mib / 1024))
    else:
        gigabytes = round(profile.memory_mib / 1024)
    return f"{profile.slice_count}g.{gigabytes}gb{_SUFFIXES.get(profile.index, '')}"


def _partitions(
    gpu: GpuSnapshot,
    instance: GpuInstance,
    profile: MigProfile,
    devices: Mapping[tuple[int | None, int | None], MigDevice],
    minors: InstanceMinors,
) -> Iterable[MigPartition]:
    whole = MigPartition(
        uuid=None,
        gpu_instance=instance.id,
        compute_instance=None,
        profile_id=instance.profile_id,
        profile=profile.name,
        placement=Placement(instance.placement.start, instance.placement.size),
        memory_bytes=profile.memory_bytes,
        multiprocessors=profile.multiprocessors,
        copy_engines=profile.copy_engines,
        decoders=profile.decoders,
        encoders=profile.encoders,
        jpeg_engines=profile.jpeg_engines,
        ofa_engines=profile.ofa_engines,
        graphics=profile.graphics,
        gi_minor=_minor(gpu, minors, instance.id, None),
    )
    if not instance.compute_instances:
        yield whole
    for compute in instance.compute_instances:
        yield _compute(gpu, whole, compute, profile, devices.get((instance.id, compute.id)), minors)


def _compute(
    gpu: GpuSnapshot,
    whole: MigPartition,
    compute: ComputeInstance,
    profile: MigProfile,
    device: MigDevice | None,
    minors: InstanceMinors,
) -> MigPartition:
    slices = compute.placement.size
    minor = _minor(gpu, minors, whole.gpu_instance, compute.id)
    named = replace(whole, uuid=compute.uuid, compute_instance=compute.id, ci_minor=minor)
    if slices >= profile.compute_slices:
        return named
    attributes = device.attributes if device is not None else None
    return replace(
        named,
        profile=f"{slices}c.{profile.name}",
        compute=Placement(compute.placement.start, slices),
        multiprocessors=attributes.multiprocessor_count if attributes is not None else None,
    )


def _minor(gpu: GpuSnapshot, minors: InstanceMinors, gpu_instance: int, compute_instance: int | None) -> int | None:
    return None if gpu.minor_number is None else minors.get((gpu.minor_number, gpu_instance, compute_instance))
