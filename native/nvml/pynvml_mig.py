"""MIG through nvidia-ml-py's structs: profiles, instances and MIG devices call by call, and what changes them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_uint, c_ulonglong, c_void_p
from typing import Any

from native.nvml import migvalues
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
from native.nvml.pynvml_library import TOO_NEW, PynvmlLibrary, structs
from native.nvml.types import GpuSnapshot
from native.pci import canonical_address

# As many as the arrays of the extension hold (nvml_mig.h).
_PROFILES = 32
_PLACEMENTS = 32
_INSTANCES = 32
_COMPUTE_INSTANCES = 64
_MIG_DEVICES = 64
_SHARED_ENGINES = 0


class _ProfileV3(ctypes.Structure):
    """nvmlGpuInstanceProfileInfo_v3_t, which nvidia-ml-py lacks."""

    _fields_ = (
        ("version", c_uint),
        ("id", c_uint),
        ("sliceCount", c_uint),
        ("instanceCount", c_uint),
        ("multiprocessorCount", c_uint),
        ("copyEngineCount", c_uint),
        ("decoderCount", c_uint),
        ("encoderCount", c_uint),
        ("jpegCount", c_uint),
        ("ofaCount", c_uint),
        ("memorySizeMB", c_ulonglong),
        ("name", c_char * structs.NVML_DEVICE_NAME_V2_BUFFER_SIZE),
        ("capabilities", c_uint),
    )


Ask = Callable[[int, int], tuple[int, Any]]
"""(NVML's number of a profile, version of the struct) -> code and struct."""


def _versioned(kind: type[Any], number: int) -> Any:
    info = kind()
    info.version = ctypes.sizeof(kind) | number << 24
    return info


def _list_profiles(ask: Ask, version: int) -> tuple[int, list[tuple[int, int, Any]]]:
    """Code and (index, struct version, struct) of each profile; the rules are those of list_profiles in nvml_mig.c."""
    found: list[tuple[int, int, Any]] = []
    hole: int = NvmlReturn.SUCCESS
    code: int = NvmlReturn.NOT_SUPPORTED
    for index in range(_PROFILES):
        code, info = ask(index, version)
        while not found and version > 1 and code in (*TOO_NEW, NvmlReturn.INVALID_ARGUMENT):
            version -= 1
            code, info = ask(index, version)
        if code == NvmlReturn.INVALID_ARGUMENT:
            break
        if code == NvmlReturn.NOT_SUPPORTED:
            hole = code
            continue
        if code != NvmlReturn.SUCCESS:
            return code, []
        found.append((index, version, info))
    return (NvmlReturn.SUCCESS, found) if found else (hole or code, [])


class PynvmlMig(PynvmlLibrary):
    """The part of the ``Nvml`` Protocol that is about MIG, and the modes of a single GPU."""

    def compute_instance_profiles(self, address: str, gpu_instance: int) -> tuple[ComputeInstanceProfile, ...]:
        """See the Protocol."""
        instance = self._instance(address, gpu_instance)
        code, found = _list_profiles(self._asking_compute(instance), 2)
        self._check(code, address)
        return tuple(_compute_profile(index, version, info) for index, version, info in found)

    def remaining_capacity(self, address: str, profile_id: int) -> int:
        """See the Protocol."""
        device, count = self._device(address), c_uint()
        call = "nvmlDeviceGetGpuInstanceRemainingCapacity"
        self._check(self._call(call, device, c_uint(profile_id), byref(count)), address)
        return count.value

    def set_mig_mode(self, address: str, enabled: bool) -> tuple[bool, bool]:
        """See the Protocol."""
        device, activation = self._device(address), c_int()
        self._check(self._call("nvmlDeviceSetMigMode", device, c_uint(enabled), byref(activation)), address)
        # The switch may have made the handle useless.
        code, device = self._handle_by_address(canonical_address(address))
        if code == NvmlReturn.SUCCESS:
            code, mode = self._mig_mode(device)
        else:
            mode = (False, False)
        if activation.value != NvmlReturn.SUCCESS:
            known = mode if code == NvmlReturn.SUCCESS else None
            raise MigActivationError(activation.value, canonical_address(address), known)
        self._check(code, address)
        return mode

    def create_gpu_instance(self, address: str, profile_id: int, placement: Placement | None = None) -> GpuInstance:
        """See the Protocol."""
        device, made = self._device(address), c_void_p()
        if placement is None:
            code = self._call("nvmlDeviceCreateGpuInstance", device, c_uint(profile_id), byref(made))
        else:
            place = structs.c_nvmlGpuInstancePlacement_t(placement.start, placement.size)
            call = "nvmlDeviceCreateGpuInstanceWithPlacement"
            code = self._call(call, device, c_uint(profile_id), byref(place), byref(made))
        self._check(code, address)
        code, instance = self._instance_info(made)
        if code != NvmlReturn.SUCCESS:
            failed = self._last
            self._call("nvmlGpuInstanceDestroy", made)
            self._last = failed
        self._check(code, address)
        return instance

    def create_compute_instance(self, address: str, gpu_instance: int, profile_id: int) -> ComputeInstance:
        """See the Protocol."""
        instance, made = self._instance(address, gpu_instance), c_void_p()
        call = "nvmlGpuInstanceCreateComputeInstance"
        self._check(self._call(call, instance, c_uint(profile_id), byref(made)), address)
        code, compute = self._compute_info(made, gpu_instance)
        if code != NvmlReturn.SUCCESS:
            failed = self._last
            self._call("nvmlComputeInstanceDestroy", made)
            self._last = failed
        self._check(code, address)
        return compute

    def destroy_compute_instance(self, address: str, gpu_instance: int, compute_instance: int) -> None:
        """See the Protocol."""
        instance, compute = self._instance(address, gpu_instance), c_void_p()
        call = "nvmlGpuInstanceGetComputeInstanceById"
        self._check(self._call(call, instance, c_uint(compute_instance), byref(compute)), address)
        self._check(self._call("nvmlComputeInstanceDestroy", compute), address)

    def destroy_gpu_instance(self, address: str, gpu_instance: int) -> None:
        """See the Protocol."""
        instance = self._instance(address, gpu_instance)
        self._check(self._call("nvmlGpuInstanceDestroy", instance), address)

    def set_compute_mode(self, address: str, mode: int) -> None:
        """See the Protocol."""
        device = self._device(address)
        self._check(self._call("nvmlDeviceSetComputeMode", device, c_int(mode)), address)

    def set_persistence_mode(self, address: str, enabled: bool) -> None:
        """See the Protocol."""
        device = self._device(address)
        self._check(self._call("nvmlDeviceSetPersistenceMode", device, c_int(enabled)), address)

    def _with_mig(self, gpu: GpuSnapshot, position: int) -> GpuSnapshot:
        def handle() -> tuple[int, c_void_p]:
            if gpu.address is None:
                return self._handle_by_index(position)
            return self._handle_by_address(gpu.address)

        code, device = handle()
        profiles: tuple[GpuInstanceProfile, ...] = ()
        if code == NvmlReturn.SUCCESS:
            code, found = _list_profiles(self._asking_gpu(device), 3)
            profiles = tuple(self._placed(device, *one) for one in found)
        asked = (code, profiles)
        return migvalues.with_mig(gpu, asked, *migvalues.settle(lambda: self._reading(handle, asked)))

    def _reading(
        self, handle: Callable[[], tuple[int, c_void_p]], profiles: tuple[int, tuple[GpuInstanceProfile, ...]]
    ) -> MigReading:
        code, device = handle()
        mode = (False, False)
        if code == NvmlReturn.SUCCESS:
            code, mode = self._mig_mode(device)
        if code != NvmlReturn.SUCCESS:
            return MigReading((code, mode), (code, ()), (code, ()))
        if not mode[0]:
            return MigReading((code, mode), *migvalues.EMPTY)
        instances = self._instances(device, *profiles)
        return MigReading((code, mode), instances, self._devices(device))

    def _mig_mode(self, device: c_void_p) -> tuple[int, tuple[bool, bool]]:
        current, pending = c_uint(), c_uint()
        code = self._call("nvmlDeviceGetMigMode", device, byref(current), byref(pending))
        return code, (bool(current.value), bool(pending.value))

    def _instance(self, address: str, gpu_instance: int) -> c_void_p:
        device, instance = self._device(address), c_void_p()
        code = self._call("nvmlDeviceGetGpuInstanceById", device, c_uint(gpu_instance), byref(instance))
        self._check(code, address)
        return instance

    def _asking_gpu(self, device: c_void_p) -> Ask:
        def ask(index: int, version: int) -> tuple[int, Any]:
            if version == 1:
                info = structs.c_nvmlGpuInstanceProfileInfo_t()
                return self._call("nvmlDeviceGetGpuInstanceProfileInfo", device, c_uint(index), byref(info)), info
            info = _versioned(_ProfileV3 if version == 3 else structs.c_nvmlGpuInstanceProfileInfo_v2_t, version)
            return self._call("nvmlDeviceGetGpuInstanceProfileInfoV", device, c_uint(index), byref(info)), info

        return ask

    def _asking_compute(self, instance: c_void_p) -> Ask:
        def ask(index: int, version: int) -> tuple[int, Any]:
            engines = c_uint(_SHARED_ENGINES)
            if version == 1:
                info, call = (
                    structs.c_nvmlComputeInstanceProfileInfo_t(),
                    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
                )
            else:
                info = _versioned(structs.c_nvmlComputeInstanceProfileInfo_v2_t, version)
                call = "nvmlGpuInstanceGetComputeInstanceProfileInfoV"
            return self._call(call, instance, c_uint(index), engines, byref(info)), info

        return ask

    def _placed(self, device: c_void_p, index: int, version: int, info: Any) -> GpuInstanceProfile:
        numbers = {
            "index": index,
            "id": info.id,
            "slice_count": info.sliceCount,
            "instance_count": info.instanceCount,
            "multiprocessor_count": info.multiprocessorCount,
            "copy_engine_count": info.copyEngineCount,
            "decoder_count": info.decoderCount,
            "encoder_count": info.encoderCount,
            "jpeg_count": info.jpegCount,
            "ofa_count": info.ofaCount,
            "memory_mib": info.memorySizeMB,
        }
        p2p = 0 if version == 3 else info.isP2pSupported
        capabilities = info.capabilities if version == 3 else 0
        profile = migvalues.gpu_profile(numbers, version, p2p, capabilities, _name(info))
        call = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        count, places = c_uint(), (structs.c_nvmlGpuInstancePlacement_t * _PLACEMENTS)()
        code = self._call(call, device, c_uint(profile.id), None, byref(count))
        if code == NvmlReturn.SUCCESS and count.value > _PLACEMENTS:
            code = NvmlReturn.INSUFFICIENT_SIZE
        elif code == NvmlReturn.SUCCESS and count.value > 0:
            code = self._call(call, device, c_uint(profile.id), places, byref(count))
        return migvalues.placed(profile, code, (Placement(one.start, one.size) for one in places[: count.value]))

    def _instances(
        self, device: c_void_p, code: int, profiles: tuple[GpuInstanceProfile, ...]
    ) -> tuple[int, tuple[GpuInstance, ...]]:
        if code != NvmlReturn.SUCCESS:
            return code, ()
        instances: list[GpuInstance] = []
        compute: list[ComputeInstance] = []
        for profile in profiles:
            code, handles = self._handles(
                "nvmlDeviceGetGpuInstances", device, profile.id, profile.instance_count, _INSTANCES, len(instances)
            )
            for handle in handles:
                code, instance = self._instance_info(handle)
                if code == NvmlReturn.SUCCESS:
                    instances.append(instance)
                    code = self._compute(handle, instance.id, compute)
                if code != NvmlReturn.SUCCESS:
                    break
            if code != NvmlReturn.SUCCESS:
                return code, ()
        return NvmlReturn.SUCCESS, migvalues.with_compute(instances, compute)

    def _compute(self, instance: c_void_p, gpu_instance: int, compute: list[ComputeInstance]) -> int:
        code, found = _list_profiles(self._asking_compute(instance), 2)
        for _, _, info in found:
            code, handles = self._handles(
                "nvmlGpuInstanceGetComputeInstances",
                instance,
                info.id,
                info.instanceCount,
                _COMPUTE_INSTANCES,
                len(compute),
            )
            for handle in handles:
                code, one = self._compute_info(handle, gpu_instance)
                if code != NvmlReturn.SUCCESS:
                    break
                compute.append(one)
            if code != NvmlReturn.SUCCESS:
                break
        return code

    def _handles(
        self, call: str, owner: c_void_p, profile_id: int, most: int, capacity: int, taken: int
    ) -> tuple[int, list[c_void_p]]:
        if most > capacity:
            return NvmlReturn.INSUFFICIENT_SIZE, []
        handles, count = (c_void_p * capacity)(), c_uint(capacity)
        code = self._call(call, owner, c_uint(profile_id), handles, byref(count))
        if code == NvmlReturn.SUCCESS and count.value > capacity - taken:
            code = NvmlReturn.INSUFFICIENT_SIZE
        return code, [c_void_p(one) for one in handles[: count.value]] if code == NvmlReturn.SUCCESS else []

    def _instance_info(self, handle: c_void_p) -> tuple[int, GpuInstance]:
        info = structs.c_nvmlGpuInstanceInfo_t()
        code = self._call("nvmlGpuInstanceGetInfo", handle, byref(info))
        return code, GpuInstance(info.id, info.profileId, Placement(info.placement.start, info.placement.size))

    def _compute_info(self, handle: c_void_p, gpu_instance: int) -> tuple[int, ComputeInstance]:
        info = structs.c_nvmlComputeInstanceInfo_t()
        code = self._call("nvmlComputeInstanceGetInfo_v2", handle, byref(info))
        uuid: str | None = None
        if code == NvmlReturn.SUCCESS and info.device:
            uuid = migvalues.mig_uuid(*self._text("nvmlDeviceGetUUID", info.device))
        place = Placement(info.placement.start, info.placement.size)
        return code, ComputeInstance(gpu_instance, info.id, info.profileId, place, uuid)

    def _devices(self, device: c_void_p) -> tuple[int, tuple[MigDevice, ...]]:
        devices: list[MigDevice] = []
        most = c_uint()
        code = self._call("nvmlDeviceGetMaxMigDeviceCount", device, byref(most))
        if code != NvmlReturn.SUCCESS:
            return code, ()
        for index in range(most.value):
            handle = c_void_p()
            code = self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, c_uint(index), byref(handle))
            if code == NvmlReturn.NOT_FOUND:
                continue
            if code == NvmlReturn.SUCCESS and len(devices) == _MIG_DEVICES:
                code = NvmlReturn.INSUFFICIENT_SIZE
            if code != NvmlReturn.SUCCESS:
                return code, ()
            devices.append(self._mig_device(handle, index))
        return NvmlReturn.SUCCESS, tuple(devices)

    def _mig_device(self, handle: c_void_p, index: int) -> MigDevice:
        uuid = self._text("nvmlDeviceGetUUID", handle)
        numbers = []
        for call in ("nvmlDeviceGetGpuInstanceId", "nvmlDeviceGetComputeInstanceId"):
            out = c_uint()
            numbers.append((self._call(call, handle, byref(out)), out.value))
        info = structs.c_nvmlDeviceAttributes()
        code = self._call("nvmlDeviceGetAttributes_v2", handle, byref(info))
        # The fields of both are in the order of nvml.h.
        attributes = MigAttributes(*(getattr(info, name) for name, _ in info._fields_))
        return migvalues.mig_device(index, uuid, numbers[0], numbers[1], (code, attributes))


def _name(info: Any) -> bytes:
    # Through the descriptor's offset: pynvml's structs decode char arrays strictly when they are read as attributes.
    field = getattr(type(info), "name", None)
    return b"" if field is None else bytes(info)[field.offset : field.offset + field.size]


def _compute_profile(index: int, version: int, info: Any) -> ComputeInstanceProfile:
    return ComputeInstanceProfile(
        index=index,
        id=info.id,
        name=migvalues.profile_name(_name(info)) if version > 1 else None,
        slice_count=info.sliceCount,
        instance_count=info.instanceCount,
        multiprocessor_count=info.multiprocessorCount,
        shared_copy_engine_count=info.sharedCopyEngineCount,
        shared_decoder_count=info.sharedDecoderCount,
        shared_encoder_count=info.sharedEncoderCount,
        shared_jpeg_count=info.sharedJpegCount,
        shared_ofa_count=info.sharedOfaCount,
    )
