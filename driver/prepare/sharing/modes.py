"""Compute modes: set for claims only where they differ, and set back to what they were before the first of them."""

from __future__ import annotations

from typing import Final

from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.steps import Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NvidiaSmi

FORMER_MODE: Final = "formerMode"
"""Key in a step's data on a device: the compute mode that the GPU had before claims changed it."""
_GONE: Final = frozenset({6, 9, 15})
"""nvidia-smi(1): a query for an object failed (no such GPU), the driver is not loaded, GPU is lost."""


def set_mode(smi: NvidiaSmi, uuid: str, mode: ComputeMode, deadline: Deadline) -> None:
    """Set the mode of a GPU if it has another one.

    Raises:
        CommandError: as ``NvidiaSmi.set_compute_mode``.
    """
    if smi.compute_mode(uuid, deadline) is not mode:
        smi.set_compute_mode(uuid, mode, deadline)


def change_mode(smi: NvidiaSmi, work: Work, uuid: str, step: str, mode: ComputeMode, deadline: Deadline) -> None:
    """Set the mode of a GPU for a claim. What it was is on the disk before it is another one.

    Args:
        smi: sets and reads.
        work: the claim; its record has data of ``step`` on the GPU's devices.
        uuid: the GPU's.
        step: under whose name the record keeps the former mode.
        mode: that the GPU is to have.
        deadline: for all calls.

    Raises:
        CommandError: as ``NvidiaSmi.set_compute_mode``.
        ClaimError: the record could not be written.
    """
    found = smi.compute_mode(uuid, deadline)
    former = _known(work, uuid, step) or found
    if former is not None:
        record = _with_former(work.record, uuid, step, former)
        if found is mode:
            work.record = record
        elif record != work.record:
            work.save(record)
    if found is not mode:
        smi.set_compute_mode(uuid, mode, deadline)


def former_mode(record: ClaimRecord, uuid: str, step: str) -> ComputeMode | None:
    """The mode that a GPU had before claims changed it; None where the record does not say."""
    return next((mode for device in record.devices if device.uuid == uuid and (mode := _read(device, step))), None)


def _known(work: Work, uuid: str, step: str) -> ComputeMode | None:
    """What claims on the GPU remember. Those that an earlier version prepared say nothing: it set back to DEFAULT."""
    for claim in (work.record, *work.others):
        for device in claim.devices:
            if device.uuid == uuid and step in device.data:
                former = _read(device, step)
                if former is None and (claim is not work.record or claim.phase is Phase.PREPARED):
                    return ComputeMode.DEFAULT
                if former is not None:
                    return former
    return None


def _read(device: DeviceRecord, step: str) -> ComputeMode | None:
    found = device.data.get(step, {}).get(FORMER_MODE)
    return next((mode for mode in ComputeMode if mode.value == found), None)


def _with_former(record: ClaimRecord, uuid: str, step: str, mode: ComputeMode) -> ClaimRecord:
    def changed(device: DeviceRecord) -> DeviceRecord:
        if device.uuid != uuid or step not in device.data:
            return device
        return device.with_data(step, {**device.data[step], FORMER_MODE: mode.value})

    return record.with_devices(tuple(changed(device) for device in record.devices))


def gives_up(error: CommandError) -> bool:
    """Whether setting back is pointless: the GPU or the driver is gone (and the setting with it), or does not answer.

    A pod must not stay in Terminating for a setting of a GPU that nobody can use.
    """
    return error.code is None or error.code in _GONE
