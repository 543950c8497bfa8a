"""Time slices: how long a process keeps a GPU that several use in turn, set for the GPU while claims on it want it so.

``nvidia-smi compute-policy --set-timeslice`` changes the whole GPU. Claims that share it must want the same
(``rules``); the last one that leaves sets it back. A claim that asks for nothing changes nothing (NV#41: a default that
was set for everybody broke all pods on GPUs without the feature).
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from driver.prepare.config import DeviceConfig, GpuConfig, Interval, Strategy
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.modes import FORMER_MODE, change_mode, former_mode, gives_up, set_mode
from driver.prepare.steps import StepDefaults, Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NotSupportedError, NvidiaSmi

log = logging.getLogger(__name__)

TIME_SLICE: Final = "timeSlice"
"""The step's name; its data is ``{"interval": "Long", "formerMode": "DEFAULT"}`` on each whole GPU that has it."""
LEVELS: Final[Mapping[str, int]] = {interval.value: level for level, interval in enumerate(Interval)}
"""As nvidia-smi counts them: 0 to 3 in the order of ``Interval``."""
_RECHECK_SECONDS: Final = 600.0
"""How long what was read back is believed; a driver that was loaded anew has forgotten it."""


def interval_of(device: DeviceRecord) -> str | None:
    """The interval that a device's claim wants for its GPU; None where it wants none."""
    data = device.data.get(TIME_SLICE)
    interval = None if data is None else data.get("interval")
    return interval if isinstance(interval, str) and interval in LEVELS else None


class TimeSliceStep(StepDefaults):
    """Sets the time slice of whole GPUs.

    Args:
        smi: sets and reads.
        seconds: that all calls for one claim may take together.
    """

    name = TIME_SLICE
    subject = "the time slice of its GPUs"
    strategies = frozenset({Strategy.TIME_SLICING})
    do_points = ("s1",)
    undo_points = ("v1",)

    def __init__(self, smi: NvidiaSmi, seconds: float = 10.0) -> None:
        self._smi = smi
        self._seconds = seconds
        self._seen: dict[str, tuple[str, float]] = {}

    def check(self, work: Work) -> None:
        """Put what is wanted into the record."""
        devices = tuple(_with_interval(d, work.configs.get(d.cdi_device)) for d in work.record.devices)
        work.record = work.record.with_devices(devices)

    def do(self, work: Work) -> None:
        """Set the slice of each GPU, and the compute mode in which several processes may use it."""
        deadline = Deadline(self._seconds)
        for device, interval in _wanted(work.record):
            try:
                change_mode(self._smi, work, device.uuid, TIME_SLICE, ComputeMode.DEFAULT, deadline)
                self._smi.set_time_slice(device.uuid, LEVELS[interval], deadline)
            except NotSupportedError as error:
                if interval != Interval.DEFAULT:
                    raise ClaimError(
                        f"{device.device} (GPU {device.uuid}) has no time slices to set: use interval Default, or "
                        f"remove timeSlicingConfig ({error})",
                        Reason.UNSUPPORTED_CONFIG,
                        permanent=True,
                    ) from error
            except CommandError as error:
                raise ClaimError(
                    f"the time slice of {device.device} cannot be set to {interval}: {error}", Reason.DEVICE_NOT_READY
                ) from error
            self._seen[device.uuid] = interval, time.monotonic()

    def is_done(self, work: Work) -> bool:
        """Whether every GPU has its slice, as far as it tells."""
        deadline = Deadline(self._seconds)
        return all(self._has(device.uuid, interval, deadline) for device, interval in _wanted(work.record))

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Set back the GPUs that no other claim wants sliced."""
        deadline = Deadline(self._seconds)
        still = {device.uuid for other in others for device, _ in _wanted(other)}
        for uuid in dict.fromkeys(device.uuid for device, _ in _wanted(record)):
            if uuid in still:
                continue
            self._seen.pop(uuid, None)
            try:
                self._set_back(uuid, former_mode(record, uuid, TIME_SLICE), deadline)
            except CommandError as error:
                if not gives_up(error):
                    raise ClaimError(
                        f"the time slice of GPU {uuid} cannot be set back: {error}", Reason.DEVICE_NOT_READY
                    ) from error
                log.warning("the time slice of GPU %s is left as it is: %s", uuid, error)

    def _set_back(self, uuid: str, mode: ComputeMode | None, deadline: Deadline) -> None:
        with contextlib.suppress(NotSupportedError):
            self._smi.set_time_slice(uuid, LEVELS[Interval.DEFAULT], deadline)
        if mode is not None and mode is not ComputeMode.DEFAULT:
            with contextlib.suppress(NotSupportedError):
                set_mode(self._smi, uuid, mode, deadline)

    def is_undone(self, record: ClaimRecord) -> bool:
        """Always: nvidia-smi has said so, and which of the GPUs others want sliced only ``undo`` knows."""
        return True

    def _has(self, uuid: str, interval: str, deadline: Deadline) -> bool:
        seen = self._seen.get(uuid)
        if seen is not None and seen[0] == interval and time.monotonic() - seen[1] < _RECHECK_SECONDS:
            return True
        try:
            found = self._smi.time_slice(uuid, deadline)
        except CommandError as error:
            raise ClaimError(
                f"the time slice of GPU {uuid} cannot be read: {error}", Reason.DEVICE_NOT_READY
            ) from error
        if found is not None and found != LEVELS[interval]:
            return False
        self._seen[uuid] = interval, time.monotonic()
        return True


def _with_interval(device: DeviceRecord, config: DeviceConfig | None) -> DeviceRecord:
    if not isinstance(config, GpuConfig) or config.sharing is None or device.admin_access:
        return device
    if config.sharing.strategy is not Strategy.TIME_SLICING:
        return device
    former = device.data.get(TIME_SLICE, {}).get(FORMER_MODE)
    kept = {} if former is None else {FORMER_MODE: former}
    return device.with_data(TIME_SLICE, {"interval": str(config.sharing.interval or Interval.DEFAULT), **kept})


def _wanted(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, str]]:
    """Each GPU once, with the interval that the claim wants for it."""
    seen = set()
    for device in record.devices:
        interval = interval_of(device)
        if interval is not None and device.uuid not in seen:
            seen.add(device.uuid)
            yield device, interval
