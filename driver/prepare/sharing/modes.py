"""Compute modes and time slices of whole GPUs: changed for claims, and set back to what they were before.

What a setting was is a debt (``debts``) from before the change until it is paid: set back once, or dropped where
somebody else has changed the setting meanwhile, and where a reset, a reboot or another board has taken it away.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from driver.prepare.config import Interval
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.sharing.debts import VALUES, Debt, Debts, Setting
from driver.prepare.steps import Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NotSupportedError, NvidiaSmi

log = logging.getLogger(__name__)

LEVELS: Final[Mapping[str, int]] = {interval.value: level for level, interval in enumerate(Interval)}
"""As nvidia-smi counts time slices: 0 to 3 in the order of ``Interval``."""
MPS: Final = "mps"
"""The name of the step of MPS in records."""
TIME_SLICE: Final = "timeSlice"
"""The name of the step of time slices in records."""
_FORMER: Final = {Setting.COMPUTE_MODE: "formerMode", Setting.TIME_SLICE: "formerLevel"}
"""Key in a step's data on a device: what the GPU had before claims changed it. The file of debts is what counts; the
record tells where that is lost, and to earlier versions, which knew nothing else."""
_NORMAL: Final = {Setting.COMPUTE_MODE: ComputeMode.DEFAULT.value, Setting.TIME_SLICE: "0"}
_SEEMS_GONE: Final = frozenset({6, 9, 15})
"""nvidia-smi(1): a query for an object failed (no such GPU), the driver is not loaded, GPU is lost."""


class GpuModes:
    """Sets and reads, and remembers what it was. Called with the GPU locked.

    Args:
        smi: sets and reads.
        debts: what is to be set back.
    """

    def __init__(self, smi: NvidiaSmi, debts: Debts) -> None:
        self._smi = smi
        self.debts = debts

    def read(self, uuid: str, setting: Setting, deadline: Deadline) -> str | None:
        """What it is; None where the GPU does not tell. CommandError: the GPU cannot be asked."""
        if setting is Setting.COMPUTE_MODE:
            mode = self._smi.compute_mode(uuid, deadline)
            return None if mode is None else mode.value
        level = self._smi.time_slice(uuid, deadline)
        return None if level is None else str(level)

    def look(self, work: Work, device: DeviceRecord, step: str, setting: Setting, left: Deadline) -> None:
        """Find out what it is before a claim changes it, and put what it was before all claims into the record.

        Args:
            work: the claim; its record has data of ``step`` on the GPU's devices.
            device: a whole GPU, or a share of one.
            step: under whose name the record keeps it.
            setting: which.
            left: for all calls.

        Raises:
            CommandError: as ``read``.
            ClaimError: it cannot be read what is owed.
        """
        found = work.seen[_key(device, setting)] = self.read(device.uuid, setting, left)
        owed = self._owed(device, setting, found)
        former = owed.former if owed is not None else _recorded(work, device.uuid, step, setting) or found
        if former is not None:
            work.record = _with_former(work.record, device.uuid, step, setting, former)

    def change(self, work: Work, device: DeviceRecord, step: str, setting: Setting, value: str, left: Deadline) -> None:
        """Set it for a claim. What it was is on the disk before it is another one.

        Args:
            work: the claim, which was looked at.
            device, step, setting: as for ``look``.
            value: that it is to have.
            left: for all calls.

        Raises:
            NotSupportedError: the GPU has no such setting; nothing was changed.
            CommandError: it is not known whether it was changed.
            ClaimError: the debt could not be written; nothing was changed.
        """
        found = work.seen.pop(_key(device, setting), None)
        if found == value:
            return
        if found is None or self.debts.find(device.uuid, setting) is not None:  # a claim of the same call may have it
            found = self.read(device.uuid, setting, left)
            if found == value:
                return
        owed = self._owed(device, setting, found)
        former = owed.former if owed is not None else _recorded(work, device.uuid, step, setting) or found
        debt = Debt(device.uuid, device.address, setting, str(former or _NORMAL[setting]), value)
        if debt != owed:
            self.debts.add(debt)
        try:
            self._write(debt, value, left)
        except NotSupportedError:
            if owed is None:
                self.debts.drop(debt)
            raise

    def _owed(self, device: DeviceRecord, setting: Setting, found: object) -> Debt | None:
        """What is owed, unless somebody else has changed it, or the GPU was reset."""
        owed = self.debts.find(device.uuid, setting)
        return owed if owed is not None and found in (None, owed.given) else None

    def pay(self, debt: Debt, left: Deadline) -> None:
        """Set it back, and owe it no more; only that where it is not as it was given any more.

        Raises:
            CommandError: it could not be set back, and is owed.
        """
        self._settled(debt.uuid)
        found = debt.given if debt.given == debt.former else self.read(debt.uuid, debt.setting, left)
        if found is not None and found != debt.given:
            text = "the %s of GPU %s is left as it is: it was set to %s for claims, is %s now, and was %s before them"
            log.info(text, debt.setting.shown, debt.uuid, debt.given, found, debt.former)
        elif debt.former != debt.given:
            self._write(debt, debt.former, left)
            log.info("the %s of GPU %s is %s again", debt.setting.shown, debt.uuid, debt.former)
        self.debts.drop(debt)

    def _settled(self, uuid: str) -> None:
        """Whether what is read is what counts. CommandError: a call that hangs may still change it. An agent that was
        started meanwhile knows nothing of that call, and believes what it reads."""
        if self._smi.hangs(uuid):
            raise CommandError(f"an earlier nvidia-smi hangs in the kernel, and may still change GPU {uuid}")

    def _write(self, debt: Debt, value: str, left: Deadline) -> None:
        self._settled(debt.uuid)
        if debt.setting is Setting.COMPUTE_MODE:
            self._smi.set_compute_mode(debt.uuid, ComputeMode(value), left)
        else:
            self._smi.set_time_slice(debt.uuid, int(value), left)


def wants(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, str, Setting, str]]:
    """What a claim needs its whole GPUs to be set to: device, the step by which, the setting, its value."""
    for device in record.devices:
        if device.admin_access or device.partition is not None:
            continue
        if MPS in device.data:
            yield device, MPS, Setting.COMPUTE_MODE, ComputeMode.EXCLUSIVE_PROCESS.value
        interval = interval_of(device)
        if interval is not None:
            yield device, TIME_SLICE, Setting.COMPUTE_MODE, ComputeMode.DEFAULT.value
            yield device, TIME_SLICE, Setting.TIME_SLICE, str(LEVELS[interval])


def is_wanted(debt: Debt, records: Iterable[ClaimRecord]) -> bool:
    """Whether a claim may need what was set: one that is known to, or one of which only the hardware is known."""
    return any(
        not record.held.isdisjoint((debt.uuid, debt.address))
        or any((device.uuid, setting) == debt.key for device, _, setting, _ in wants(record))
        for record in records
    )


def told(record: ClaimRecord) -> Iterator[Debt]:
    """What a claim's record says was changed. Those of the first versions say nothing: they set back to what is normal.
    Of a setting that was right already it says so."""
    for device, step, setting, given in wants(record):
        former = _read(device, step, setting) or _NORMAL[setting]
        yield Debt(device.uuid, device.address, setting, former, given)


def interval_of(device: DeviceRecord) -> str | None:
    """The interval that a device's claim wants for its GPU; None where it wants none."""
    data = device.data.get(TIME_SLICE)
    interval = None if data is None else data.get("interval")
    return interval if isinstance(interval, str) and interval in LEVELS else None


def kept(data: Mapping[str, object]) -> dict[str, object]:
    """Of a step's data what was before; it stays when the rest is planned anew."""
    return {key: data[key] for key in _FORMER.values() if key in data}


def seems_gone(error: CommandError) -> bool:
    """Whether a pod must not wait until a setting is back: the GPU or the driver is away, or does not answer, or says
    of a setting that it took once that it has none. Whether the setting is gone with it is not known."""
    return error.code is None or error.code in _SEEMS_GONE or isinstance(error, NotSupportedError)


def _key(device: DeviceRecord, setting: Setting) -> str:
    return f"{setting} {device.uuid}"


def _recorded(work: Work, uuid: str, step: str, setting: Setting) -> str | None:
    """What claims on the GPU remember of before them, where no debt does. Those that the first versions prepared say
    nothing: they set back to what is normal."""
    for claim in (work.record, *work.others):
        for device in claim.devices:
            if device.uuid == uuid and step in device.data:
                former = _read(device, step, setting)
                if former is not None:
                    return former
                if claim.phase is not Phase.PREPARING:
                    return _NORMAL[setting]
    return None


def _read(device: DeviceRecord, step: str, setting: Setting) -> str | None:
    found = device.data.get(step, {}).get(_FORMER[setting])
    return found if isinstance(found, str) and found in VALUES[setting] else None


def _with_former(record: ClaimRecord, uuid: str, step: str, setting: Setting, former: str) -> ClaimRecord:
    def changed(device: DeviceRecord) -> DeviceRecord:
        if device.uuid != uuid or step not in device.data:
            return device
        return device.with_data(step, {**device.data[step], _FORMER[setting]: former})

    return record.with_devices(tuple(changed(device) for device in record.devices))
