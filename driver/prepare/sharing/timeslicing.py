"""Time slices: how long a process keeps a GPU that several use in turn, set for the GPU while claims on it want it so.

``nvidia-smi compute-policy --set-timeslice`` changes the whole GPU. Claims that share it must want the same
(``rules``); the last one that leaves sets it back. A claim that asks for nothing changes nothing (NV#41: a default that
was set for everybody broke all pods on GPUs without the feature).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from driver.model import NodeInventory, Problem
from driver.prepare.config import DeviceConfig, GpuConfig, Interval, Strategy
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.debts import Setting
from driver.prepare.sharing.modes import LEVELS, TIME_SLICE, GpuModes, interval_of, kept
from driver.prepare.sharing.sightings import Sighting, Sightings
from driver.prepare.steps import Lock, StepDefaults, Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NotSupportedError

log = logging.getLogger(__name__)

_RECHECK_SECONDS: Final = 600.0
"""How long what was read back is believed, where nothing is seen to happen to the GPU."""
_DONE: Final = "time slice done"


class TimeSliceStep(StepDefaults):
    """Sets the time slice of whole GPUs.

    Args:
        modes: sets and reads; that it is set back is the business of ``ModeStep``.
        seconds: that all calls for one claim may take together.
        sightings: what happens to GPUs; one for all steps.
    """

    name = TIME_SLICE
    subject = "the time slice of its GPUs"
    strategies = frozenset({Strategy.TIME_SLICING})
    do_points = ("s1",)
    undo_points = ("v1",)

    def __init__(self, modes: GpuModes, seconds: float = 10.0, sightings: Sightings | None = None) -> None:
        self._modes = modes
        self._seconds = seconds
        self._sightings = sightings or Sightings()
        self._seen: dict[str, tuple[str, float, Sighting]] = {}
        """GPU -> the interval that it had, when, and what had happened to it by then."""

    def check(self, work: Work) -> None:
        """Put what is wanted into the record, with what the GPUs are set to."""
        devices = tuple(_with_interval(d, work.configs.get(d.cdi_device)) for d in work.record.devices)
        work.record = work.record.with_devices(devices)
        deadline = Deadline(self._seconds)
        for device, _ in _wanted(work.record):
            try:
                for setting in Setting:
                    self._modes.look(work, device, TIME_SLICE, setting, deadline)
            except CommandError as error:
                raise _unreadable(device.uuid, error) from error

    def do(self, work: Work) -> None:
        """Set the slice of each GPU, and the compute mode in which several processes may use it."""
        deadline = Deadline(self._seconds)
        for device, interval in _wanted(work.record):
            try:
                mode, level = ComputeMode.DEFAULT.value, str(LEVELS[interval])
                self._modes.change(work, device, TIME_SLICE, Setting.COMPUTE_MODE, mode, deadline)
                self._modes.change(work, device, TIME_SLICE, Setting.TIME_SLICE, level, deadline)
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
            self._seen[device.uuid] = interval, time.monotonic(), self._sightings.of(device.address)
        work.seen[_DONE] = True

    def is_done(self, work: Work) -> bool:
        """Whether every GPU has its slice, as far as it tells."""
        deadline = Deadline(self._seconds)
        if _DONE not in work.seen:  # else the reading of the node is from before it
            self._sightings.look(work.inventory)
        return all(self._has(work, device, interval, deadline) for device, interval in _wanted(work.record))

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Believe nothing any more of GPUs that no other claim wants sliced."""
        still = {device.uuid for other in others for device, _ in _wanted(other)}
        for device, _ in _wanted(record):
            if device.uuid not in still:
                self._seen.pop(device.uuid, None)

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """Take note of GPUs that are away: their claims can be made right only when they are back."""
        self._sightings.look(inventory)
        return ()

    def _has(self, work: Work, device: DeviceRecord, interval: str, deadline: Deadline) -> bool:
        uuid, now = device.uuid, self._sightings.of(device.address)
        seen = self._seen.get(uuid)
        if seen is not None and (seen[0], seen[2]) == (interval, now) and time.monotonic() - seen[1] < _RECHECK_SECONDS:
            return True
        try:
            found = self._modes.read(uuid, Setting.TIME_SLICE, deadline)
        except CommandError as error:
            raise _unreadable(uuid, error) from error
        if found is not None and found != str(LEVELS[interval]):
            text = "claim %s: GPU %s has time slice %s, not %s: it was reset, or somebody changed it; it is set again"
            log.warning(text, work.record.ref, uuid, found, LEVELS[interval])
            return False
        self._seen[uuid] = interval, time.monotonic(), now
        return True


def _with_interval(device: DeviceRecord, config: DeviceConfig | None) -> DeviceRecord:
    if not isinstance(config, GpuConfig) or config.sharing is None or device.admin_access:
        return device
    if config.sharing.strategy is not Strategy.TIME_SLICING:
        return device
    before = kept(device.data.get(TIME_SLICE, {}))
    return device.with_data(TIME_SLICE, {"interval": str(config.sharing.interval or Interval.DEFAULT), **before})


def _unreadable(uuid: str, error: CommandError) -> ClaimError:
    return ClaimError(f"what GPU {uuid} is set to cannot be read: {error}", Reason.DEVICE_NOT_READY)


def _wanted(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, str]]:
    """Each GPU once, with the interval that the claim wants for it."""
    seen = set()
    for device in record.devices:
        interval = interval_of(device)
        if interval is not None and device.uuid not in seen:
            seen.add(device.uuid)
            yield device, interval
