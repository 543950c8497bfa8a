"""What NVML says of MIG, as frozen data: profiles, instances, MIG devices. ``None`` is "no value", its code beside it.

Three numberings must not be mixed up: a profile's ``index`` (NVML's enumeration), a profile's ``id`` (what create and
list take) and an instance's ``id``. GPU instances are placed in memory slices, compute instances in compute slices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

NO_CODES: Mapping[str, int] = MappingProxyType({})


class Placement(msgspec.Struct, frozen=True, order=True):
    """A run of slices: memory slices for GPU instances, compute slices for compute instances."""

    start: int
    size: int


class GpuInstanceProfile(msgspec.Struct, frozen=True):
    """nvmlDeviceGetGpuInstanceProfileInfoV (v3, else v2, else the form without version)."""

    index: int
    """NVML_GPU_INSTANCE_PROFILE_*: the number to ask with, not the one to create with."""
    id: int
    name: str | None
    """As NVML spells it, without the leading ``MIG ``: ``1g.10gb+me``. None where the driver is too old to say."""
    slice_count: int
    instance_count: int
    """How many of this kind fit on an empty GPU."""
    multiprocessor_count: int
    copy_engine_count: int
    decoder_count: int
    encoder_count: int
    jpeg_count: int
    ofa_count: int
    memory_mib: int
    p2p: bool
    graphics: bool | None
    """None where the driver is too old to say."""
    placements: tuple[Placement, ...] | None
    """Every legal placement, in use or not, in the order of their starts."""
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: NO_CODES)


class ComputeInstanceProfile(msgspec.Struct, frozen=True):
    """nvmlGpuInstanceGetComputeInstanceProfileInfoV (v2, else the form without version), shared engines."""

    index: int
    id: int
    """Unique within the GPU instance only."""
    name: str | None
    slice_count: int
    instance_count: int
    multiprocessor_count: int
    shared_copy_engine_count: int
    shared_decoder_count: int
    shared_encoder_count: int
    shared_jpeg_count: int
    shared_ofa_count: int


class ComputeInstance(msgspec.Struct, frozen=True):
    """nvmlComputeInstanceGetInfo_v2, and the UUID of the MIG device that it is."""

    gpu_instance: int
    id: int
    profile_id: int
    placement: Placement
    uuid: str | None


class GpuInstance(msgspec.Struct, frozen=True):
    """nvmlGpuInstanceGetInfo, with the compute instances in it."""

    id: int
    profile_id: int
    placement: Placement
    compute_instances: tuple[ComputeInstance, ...] = ()


class MigAttributes(msgspec.Struct, frozen=True):
    """nvmlDeviceGetAttributes_v2 of a MIG device."""

    multiprocessor_count: int
    shared_copy_engine_count: int
    shared_decoder_count: int
    shared_encoder_count: int
    shared_jpeg_count: int
    shared_ofa_count: int
    gpu_instance_slice_count: int
    compute_instance_slice_count: int
    memory_mib: int


class MigDevice(msgspec.Struct, frozen=True):
    """A MIG device, from the walk over nvmlDeviceGetMigDeviceHandleByIndex."""

    index: int
    uuid: str | None
    """Opaque: drivers before R470 spell it ``MIG-GPU-<uuid>/gi/ci``."""
    gpu_instance: int | None
    compute_instance: int | None
    placement: Placement | None
    """That of its GPU instance, in memory slices; None where the instances are not known."""
    attributes: MigAttributes | None
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: NO_CODES)


class MigState(msgspec.Struct, frozen=True):
    """MIG on one GPU. A list is whole or None: one that was cut short would look like fewer."""

    profiles: tuple[GpuInstanceProfile, ...] | None
    """By ``index``; they do not change while the MIG mode stays."""
    instances: tuple[GpuInstance, ...] | None
    """By id. Empty where the mode is off. Listing them needs root (NO_PERMISSION (4) otherwise)."""
    devices: tuple[MigDevice, ...] | None
    """By index, holes left out."""
    stable: bool = True
    """Whether two readings in a row agreed. If not, somebody changes the GPU at this moment: read again later."""
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: NO_CODES)
    """``profiles``, ``instances``, ``devices``: why that list is None."""

    def profile(self, profile_id: int) -> GpuInstanceProfile | None:
        """The profile of that id."""
        return next((profile for profile in self.profiles or () if profile.id == profile_id), None)

    def instance(self, instance_id: int) -> GpuInstance | None:
        """The GPU instance of that id."""
        return next((instance for instance in self.instances or () if instance.id == instance_id), None)
