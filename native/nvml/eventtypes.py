"""What NVML reports by itself: the kinds of events (nvmlEventType* in nvml.h) and an event as frozen data."""

from __future__ import annotations

import enum

import msgspec

WHOLE = 0xFFFFFFFF
"""NVML's number for "no instance": the event is about the whole GPU."""


class EventType(enum.IntFlag):
    """nvmlEventType*. Newer bits are missing from what older drivers support."""

    SINGLE_BIT_ECC_ERROR = 0x1
    DOUBLE_BIT_ECC_ERROR = 0x2
    PSTATE = 0x4
    XID_CRITICAL_ERROR = 0x8
    CLOCK = 0x10
    POWER_SOURCE_CHANGE = 0x80
    SINGLE_BIT_ECC_ERROR_STORM = 0x200
    DRAM_RETIREMENT_EVENT = 0x400
    DRAM_RETIREMENT_FAILURE = 0x800
    NON_FATAL_POISON_ERROR = 0x1000
    FATAL_POISON_ERROR = 0x2000
    GPU_UNAVAILABLE_ERROR = 0x4000
    GPU_RECOVERY_ACTION = 0x8000


HEALTH_EVENTS = (
    EventType.DOUBLE_BIT_ECC_ERROR
    | EventType.XID_CRITICAL_ERROR
    | EventType.SINGLE_BIT_ECC_ERROR_STORM
    | EventType.DRAM_RETIREMENT_EVENT
    | EventType.DRAM_RETIREMENT_FAILURE
    | EventType.NON_FATAL_POISON_ERROR
    | EventType.FATAL_POISON_ERROR
    | EventType.GPU_UNAVAILABLE_ERROR
    | EventType.GPU_RECOVERY_ACTION
)
"""What says something of a GPU's health; clocks, power and single ECC errors are left out."""


class NvmlEvent(msgspec.Struct, frozen=True):
    """One event (nvmlEventData_t)."""

    address: str | None
    """The GPU; None where neither the event's device nor the registrations say which."""
    type: int
    """A bit of ``EventType``, or one that this list lacks."""
    data: int
    """The XID for XID_CRITICAL_ERROR (999: unknown), otherwise 0."""
    gpu_instance: int | None
    """None: the whole GPU, which on a partitioned one means every partition of it."""
    compute_instance: int | None

    @property
    def xid(self) -> int | None:
        """The XID, where it is one."""
        return self.data if self.type == EventType.XID_CRITICAL_ERROR else None


def nvml_event(address: str | None, kind: int, data: int, gpu_instance: int, compute_instance: int) -> NvmlEvent:
    """An event from NVML's numbers."""
    return NvmlEvent(
        address=address,
        type=kind,
        data=data,
        gpu_instance=None if gpu_instance == WHOLE else gpu_instance,
        compute_instance=None if compute_instance == WHOLE else compute_instance,
    )
