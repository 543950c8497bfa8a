"""MIG through the compiled extension: profiles, instances and MIG devices in one call each, and what changes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from native.nvml import migvalues
from native.nvml.cffi_library import CffiLibrary, ffi, lib, raw
from native.nvml.errors import MigActivationError, NvmlReturn
from native.nvml.migtypes import (
    ComputeInstance,
    ComputeInstanceProfile,
    GpuInstance,
    GpuInstanceProfile,
    MigAttributes,
    MigDevice,
    Placement,
)
from native.nvml.migvalues import MigReading
from native.nvml.types import GpuSnapshot
from native.pci import canonical_address

_PROFILE_NUMBERS = (
    "index",
    "id",
    "slice_count",
    "instance_count",
    "multiprocessor_count",
    "copy_engine_count",
    "decoder_count",
    "encoder_count",
    "jpeg_count",
    "ofa_count",
    "memory_mib",
)


class CffiMig(CffiLibrary):
    """The part of the ``Nvml`` Protocol that is about MIG, and the modes of a single GPU."""

    def __init__(self, library_path: str | Path) -> None:
        super().__init__(library_path)
        self._partitioned: dict[str | int, tuple[bytes, bytes, GpuSnapshot, GpuSnapshot]] = {}

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        self._partitioned.clear()
        super().close()

    def compute_instance_profiles(self, address: str, gpu_instance: int) -> tuple[ComputeInstanceProfile, ...]:
        """See the Protocol."""
        door, out = self._opened("nvmlDeviceGetGpuInstanceById"), ffi.new("door_profiles *")
        self._check(lib.door_compute_profiles(door, self._one(address), 0, gpu_instance, out), address)
        return tuple(_compute_profile(out.profiles[position]) for position in range(out.count))

    def remaining_capacity(self, address: str, profile_id: int) -> int:
        """See the Protocol."""
        door, out = self._opened("nvmlDeviceGetGpuInstanceRemainingCapacity"), ffi.new("unsigned int *")
        self._check(lib.door_remaining_capacity(door, self._one(address), 0, profile_id, out), address)
        return int(out[0])

    def set_mig_mode(self, address: str, enabled: bool) -> tuple[bool, bool]:
        """See the Protocol."""
        door, activation = self._opened("nvmlDeviceSetMigMode"), ffi.new("int *")
        self._check(lib.door_set_mig_mode(door, self._one(address), 0, enabled, activation), address)
        current, pending = ffi.new("unsigned int *"), ffi.new("unsigned int *")
        code = lib.door_get_mig_mode(door, self._one(address), 0, current, pending)
        mode = (bool(current[0]), bool(pending[0]))
        if activation[0] != NvmlReturn.SUCCESS:
            known = mode if code == NvmlReturn.SUCCESS else None
            raise MigActivationError(int(activation[0]), canonical_address(address), known)
        self._check(code, address)
        return mode

    def create_gpu_instance(self, address: str, profile_id: int, placement: Placement | None = None) -> GpuInstance:
        """See the Protocol."""
        door, out = self._opened("nvmlDeviceCreateGpuInstance"), ffi.new("door_instance *")
        place = ffi.NULL if placement is None else ffi.new("door_placement *", (placement.start, placement.size))
        self._check(lib.door_create_instance(door, self._one(address), 0, profile_id, place, out), address)
        return _instance(out)

    def create_compute_instance(self, address: str, gpu_instance: int, profile_id: int) -> ComputeInstance:
        """See the Protocol."""
        door, out = self._opened("nvmlGpuInstanceCreateComputeInstance"), ffi.new("door_compute_instance *")
        code = lib.door_create_compute_instance(door, self._one(address), 0, gpu_instance, profile_id, out)
        self._check(code, address)
        return _compute(out)

    def destroy_compute_instance(self, address: str, gpu_instance: int, compute_instance: int) -> None:
        """See the Protocol."""
        door = self._opened("nvmlComputeInstanceDestroy")
        code = lib.door_destroy_compute_instance(door, self._one(address), 0, gpu_instance, compute_instance)
        self._check(code, address)

    def destroy_gpu_instance(self, address: str, gpu_instance: int) -> None:
        """See the Protocol."""
        door = self._opened("nvmlGpuInstanceDestroy")
        self._check(lib.door_destroy_instance(door, self._one(address), 0, gpu_instance), address)

    def set_compute_mode(self, address: str, mode: int) -> None:
        """See the Protocol."""
        door = self._opened("nvmlDeviceSetComputeMode")
        self._check(lib.door_set_compute_mode(door, self._one(address), 0, mode), address)

    def set_persistence_mode(self, address: str, enabled: bool) -> None:
        """See the Protocol."""
        door = self._opened("nvmlDeviceSetPersistenceMode")
        self._check(lib.door_set_persistence_mode(door, self._one(address), 0, enabled), address)

    def _with_mig(self, gpu: GpuSnapshot, batch: Any, position: int) -> GpuSnapshot:
        batch[position].address = (gpu.address or "").encode()
        profiles = ffi.new("door_profiles *")
        lib.door_read_profiles(self._door, batch, position, profiles)

        def read() -> bytes:
            now = ffi.new("door_mig *")
            lib.door_read_mig(self._door, batch, position, profiles, now)
            return raw(now)

        state, stable = migvalues.settle(read)
        # As for whole GPUs: what is the same as last time, byte for byte, keeps its frozen value.
        key, now = gpu.address or position, (raw(profiles), state, gpu)
        known = self._partitioned.get(key)
        if stable and known is not None and known[:3] == now:
            return known[3]
        found = tuple(_gpu_profile(profiles.profiles[number]) for number in range(profiles.count))
        reading = _reading(ffi.from_buffer("door_mig *", state))
        made = migvalues.with_mig(gpu, (profiles.code, found), reading, stable)
        if stable:
            self._partitioned[key] = (*now, made)
        return made


def _placement(placement: Any) -> Placement:
    return Placement(placement.start, placement.size)


def _gpu_profile(profile: Any) -> GpuInstanceProfile:
    numbers = {name: int(getattr(profile, name)) for name in _PROFILE_NUMBERS}
    made = migvalues.gpu_profile(numbers, profile.struct_version, profile.p2p, profile.capabilities, raw(profile.name))
    places = (_placement(profile.placements[number]) for number in range(profile.placement_count))
    return migvalues.placed(made, profile.placements_code, places)


def _compute_profile(profile: Any) -> ComputeInstanceProfile:
    return ComputeInstanceProfile(
        index=profile.index,
        id=profile.id,
        name=migvalues.profile_name(raw(profile.name)),
        slice_count=profile.slice_count,
        instance_count=profile.instance_count,
        multiprocessor_count=profile.multiprocessor_count,
        shared_copy_engine_count=profile.copy_engine_count,
        shared_decoder_count=profile.decoder_count,
        shared_encoder_count=profile.encoder_count,
        shared_jpeg_count=profile.jpeg_count,
        shared_ofa_count=profile.ofa_count,
    )


def _instance(instance: Any) -> GpuInstance:
    return GpuInstance(instance.id, instance.profile_id, _placement(instance.placement))


def _compute(compute: Any) -> ComputeInstance:
    return ComputeInstance(
        gpu_instance=compute.gpu_instance,
        id=compute.id,
        profile_id=compute.profile_id,
        placement=_placement(compute.placement),
        uuid=migvalues.mig_uuid(compute.uuid_code, raw(compute.uuid)),
    )


def _device(device: Any) -> MigDevice:
    attributes = MigAttributes(
        multiprocessor_count=device.multiprocessor_count,
        shared_copy_engine_count=device.copy_engine_count,
        shared_decoder_count=device.decoder_count,
        shared_encoder_count=device.encoder_count,
        shared_jpeg_count=device.jpeg_count,
        shared_ofa_count=device.ofa_count,
        gpu_instance_slice_count=device.gpu_slice_count,
        compute_instance_slice_count=device.compute_slice_count,
        memory_mib=device.memory_mib,
    )
    return migvalues.mig_device(
        device.index,
        (device.uuid_code, raw(device.uuid)),
        (device.gpu_instance_code, device.gpu_instance),
        (device.compute_instance_code, device.compute_instance),
        (device.attributes_code, attributes),
    )


def _reading(mig: Any) -> MigReading:
    failed = mig.handle_code or mig.mode_code
    instances = [_instance(mig.instances[number]) for number in range(mig.instance_count)]
    compute = [_compute(mig.compute[number]) for number in range(mig.compute_count)]
    devices = tuple(_device(mig.devices[number]) for number in range(mig.device_count))
    return MigReading(
        mode=(failed, (bool(mig.mode_current), bool(mig.mode_pending))),
        instances=(failed or mig.instances_code, migvalues.with_compute(instances, compute)),
        devices=(failed or mig.devices_code, devices),
    )
