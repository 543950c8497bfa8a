"""From one reading of MIG to a ``MigState``: what both backends share, and the rule by which a reading is believed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import (
    ComputeInstance,
    GpuInstance,
    GpuInstanceProfile,
    MigAttributes,
    MigDevice,
    MigState,
    Placement,
)
from native.nvml.types import GpuSnapshot
from native.nvml.values import Fields, clean_text

P2P_CAPABILITY = 1
GRAPHICS_CAPABILITY = 2
READINGS_AT_MOST = 6
T = TypeVar("T")


class MigReading(msgspec.Struct, frozen=True):
    """What changes, as it was at one moment: (code, value) each."""

    mode: tuple[int, tuple[bool, bool]]
    instances: tuple[int, tuple[GpuInstance, ...]]
    devices: tuple[int, tuple[MigDevice, ...]]


EMPTY = ((NvmlReturn.SUCCESS, ()), (NvmlReturn.SUCCESS, ()))


def profile_name(raw: bytes) -> str | None:
    """``1g.10gb`` from NVML's ``MIG 1g.10gb``; None where there is no name."""
    text = clean_text(raw) or ""
    return f"{text} ".removeprefix("MIG ").strip() or None


def gpu_profile(numbers: dict[str, Any], version: int, p2p: int, capabilities: int, name: bytes) -> GpuInstanceProfile:
    """A profile without its placements. ``version``: of the struct that was answered (3 has capabilities instead of
    ``p2p``, 1 has no name)."""
    return GpuInstanceProfile(
        **numbers,
        name=profile_name(name) if version > 1 else None,
        p2p=bool(capabilities & P2P_CAPABILITY) if version == 3 else bool(p2p),
        graphics=bool(capabilities & GRAPHICS_CAPABILITY) if version == 3 else None,
        placements=None,
    )


def placed(profile: GpuInstanceProfile, code: int, placements: Iterable[Placement]) -> GpuInstanceProfile:
    """The profile with its placements, or with the code that they were refused with."""
    if code != NvmlReturn.SUCCESS:
        return msgspec.structs.replace(profile, codes=MappingProxyType({"placements": int(code)}))
    return msgspec.structs.replace(profile, placements=tuple(sorted(placements)))


def mig_uuid(code: int, raw: bytes) -> str | None:
    """The UUID of a MIG device; None for a failure, and for a driver that answers with the UUID of the whole GPU."""
    text = clean_text(raw) if code == NvmlReturn.SUCCESS else None
    return text if text is not None and text.startswith("MIG-") else None


def mig_device(
    index: int,
    uuid: tuple[int, bytes],
    gpu_instance: tuple[int, int],
    compute_instance: tuple[int, int],
    attributes: tuple[int, MigAttributes],
) -> MigDevice:
    """A MIG device from the (code, value) pairs of its calls, not placed yet."""
    fields = Fields()
    fields.take_text("uuid", *uuid)
    fields.take("gpu_instance", *gpu_instance)
    fields.take("compute_instance", *compute_instance)
    fields.take("attributes", *attributes)
    known: dict[str, Any] = {name: fields.values.get(name) for name in ("uuid", *_DEVICE_FIELDS)}
    return MigDevice(index=index, placement=None, codes=MappingProxyType(fields.codes), **known)


_DEVICE_FIELDS = ("gpu_instance", "compute_instance", "attributes")


def with_compute(instances: Sequence[GpuInstance], compute: Sequence[ComputeInstance]) -> tuple[GpuInstance, ...]:
    """The instances in the order of their ids, each with its compute instances."""
    return tuple(
        msgspec.structs.replace(
            instance,
            compute_instances=tuple(sorted((one for one in compute if one.gpu_instance == instance.id), key=_id)),
        )
        for instance in sorted(instances, key=_id)
    )


def _id(thing: GpuInstance | ComputeInstance) -> int:
    return thing.id


def settle(read: Callable[[], T]) -> tuple[T, bool]:
    """Read until two readings in a row agree: NVML has no generation to compare.

    Returns:
        The last reading, and whether the one before it was the same. Bounded: somebody who partitions without pause
        must not hold up the snapshot.
    """
    before = read()
    for _ in range(READINGS_AT_MOST - 1):
        now = read()
        if now == before:
            return now, True
        before = now
    return before, False


def with_mig(
    gpu: GpuSnapshot, profiles: tuple[int, tuple[GpuInstanceProfile, ...]], reading: MigReading, stable: bool
) -> GpuSnapshot:
    """The GPU with its MIG state, and with the mode as it was when that was read."""
    codes: dict[str, int] = {}
    lists: dict[str, Any] = {}
    for name, (code, value) in (
        ("profiles", profiles),
        ("instances", reading.instances),
        ("devices", reading.devices),
    ):
        lists[name] = value if code == NvmlReturn.SUCCESS else None
        if code != NvmlReturn.SUCCESS:
            codes[name] = int(code)
    if lists["instances"] and lists["devices"]:
        lists["instances"] = _named(lists["instances"], lists["devices"])
    known = {instance.id: instance for instance in lists["instances"] or ()}
    lists["devices"] = lists["devices"] and tuple(_joined(device, known) for device in lists["devices"])
    state = MigState(**lists, stable=stable, codes=MappingProxyType(codes))
    mode_code, mode = reading.mode
    if mode_code != NvmlReturn.SUCCESS:
        gone = {**gpu.codes, "mig_mode": int(mode_code)}
        return msgspec.structs.replace(gpu, mig=state, mig_mode=None, codes=MappingProxyType(gone))
    return msgspec.structs.replace(gpu, mig=state, mig_mode=mode)


def _named(instances: tuple[GpuInstance, ...], devices: tuple[MigDevice, ...]) -> tuple[GpuInstance, ...]:
    """Compute instances whose own info did not give a UUID have that of the MIG device with their ids."""
    uuids = {(device.gpu_instance, device.compute_instance): device.uuid for device in devices}
    return tuple(
        msgspec.structs.replace(
            instance,
            compute_instances=tuple(
                compute
                if compute.uuid is not None
                else msgspec.structs.replace(compute, uuid=uuids.get((instance.id, compute.id)))
                for compute in instance.compute_instances
            ),
        )
        if any(compute.uuid is None for compute in instance.compute_instances)
        else instance
        for instance in instances
    )


def _joined(device: MigDevice, instances: dict[int, GpuInstance]) -> MigDevice:
    instance = instances.get(device.gpu_instance) if device.gpu_instance is not None else None
    return device if instance is None else msgspec.structs.replace(device, placement=instance.placement)
