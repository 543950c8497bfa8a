"""The step that pays what is owed to GPUs: compute modes and time slices go back to what they were before claims.

It stands before the steps that change them, and so is undone behind them. What cannot be set back because a GPU does
not answer is owed on (``debts``): it is tried again after each reading of the node that finds the GPU, and before
another claim gets it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from driver.model import GpuState, NodeInventory, Problem
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord
from driver.prepare.sharing.debts import Debt
from driver.prepare.sharing.modes import GpuModes, is_wanted, seems_gone, told
from driver.prepare.steps import Lock, StepDefaults, Work
from native.commands import CommandError, Deadline
from native.smi import NotSupportedError

log = logging.getLogger(__name__)

_PAUSES: Final = 10.0
"""How many times as long as a failed attempt took nothing is tried: a GPU that hangs must not take up the node."""
_SHORTEST_PAUSE: Final = 0.5


class ModeStep(StepDefaults):
    """Sets GPUs back.

    Args:
        modes: sets and reads.
        seconds: that all calls for one claim may take together.
    """

    name = "modes"
    subject = "what its GPUs were set to before"
    do_points = ("s5",)
    undo_points = ("v5",)

    def __init__(self, modes: GpuModes, seconds: float = 10.0) -> None:
        self._modes = modes
        self._seconds = seconds
        self._unpaid: dict[Debt, tuple[float, Problem]] = {}
        """What could not be paid -> when it is tried again, and why it could not."""

    def do(self, work: Work) -> None:
        """Set back what claims that are gone have left on the claim's GPUs, unless this one wants it so."""
        deadline = Deadline(self._seconds)
        for debt in self._left(work):
            try:
                self._modes.pay(debt, deadline)
            except CommandError as error:
                raise ClaimError(
                    f"GPU {debt.uuid} has the {debt.setting.shown} {debt.given} of a claim that is gone, and it cannot "
                    f"be set back to {debt.former}: {error}; it is tried again with the claim's next attempt",
                    Reason.DEVICE_NOT_READY,
                ) from error

    def is_done(self, work: Work) -> bool:
        """Whether nothing is left."""
        return not self._left(work)

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Set back what the claim had changed, or found changed, and no other claim needs."""
        deadline = Deadline(self._seconds)
        recorded = {debt.key: debt for debt in told(record)}
        owed = {debt.key: debt for debt in self._modes.debts.all() if debt.key in recorded}
        changed = {key: debt for key, debt in recorded.items() if debt.former != debt.given}
        for debt in {**changed, **owed}.values():
            if not is_wanted(debt, others):
                self._pay(debt, deadline, known=debt.key in owed)
            elif debt.key not in owed and not any(other.key == debt.key for one in others for other in told(one)):
                self._modes.debts.add(
                    debt
                )  # who may need it, a claim of which only the hardware is known, says nothing

    def is_undone(self, record: ClaimRecord) -> bool:
        """Always: it was read back, or is owed."""
        return True

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """Pay what is owed to GPUs that answer again, and forget what is owed to boards that were replaced."""
        usable = {str(gpu.address): gpu.uuid for gpu in inventory.gpus if gpu.state is GpuState.READY and gpu.uuid}
        places = {uuid: address for address, uuid in usable.items()}
        owed = self._modes.debts.all()
        self._unpaid = {debt: why for debt, why in self._unpaid.items() if debt in owed}
        for debt in owed:
            if debt.uuid in places:
                if not is_wanted(debt, records()):
                    yield from self._sweep_one(debt, places[debt.uuid], records, lock)
            elif debt.address in usable:
                log.info("GPU %s, which was to be set back, was replaced: nothing of it is left", debt.uuid)
                self._modes.debts.drop(debt)

    def _sweep_one(
        self, debt: Debt, address: str, records: Callable[[], Collection[ClaimRecord]], lock: Lock
    ) -> Iterable[Problem]:
        again, problem = self._unpaid.get(debt, (0.0, None))
        if problem is not None and time.monotonic() < again:
            yield problem
            return
        with lock(address) as mine:
            if not mine or is_wanted(debt, records()) or debt not in self._modes.debts.all():
                return
            begun = time.monotonic()
            try:
                self._modes.pay(debt, Deadline(self._seconds))
            except CommandError as error:
                now = time.monotonic()
                problem = Problem(
                    f"GPU {address}",
                    f"its {debt.setting.shown} is still {debt.given}, which claims that are gone had set; it cannot be "
                    f"set back to {debt.former}, and no claim gets the GPU before it is: {error}",
                )
                self._unpaid[debt] = now + max(_SHORTEST_PAUSE, _PAUSES * (now - begun)), problem
                yield problem

    def _left(self, work: Work) -> list[Debt]:
        """What is owed to the claim's GPUs that nobody needs any more. Who only looks at a GPU waits for nothing."""
        devices = [device for device in work.record.devices if not device.admin_access]
        uuids = {device.uuid if device.partition is None else device.partition.parent for device in devices}
        owed = [debt for debt in self._modes.debts.all() if debt.uuid in uuids] if uuids else []
        return [debt for debt in owed if not is_wanted(debt, [work.record, *work.others])]

    def _pay(self, debt: Debt, deadline: Deadline, *, known: bool) -> None:
        """Set back. ClaimError: it failed with the GPU there, and the kubelet is to ask again."""
        try:
            self._modes.pay(debt, deadline)
        except CommandError as error:
            if not known and isinstance(error, NotSupportedError):
                return  # so that it was never changed
            if not seems_gone(error):
                raise ClaimError(
                    f"the {debt.setting.shown} of GPU {debt.uuid} cannot be set back to {debt.former}: {error}",
                    Reason.DEVICE_NOT_READY,
                ) from error
            if not known:
                self._modes.debts.add(debt)
            log.warning(
                "the %s of GPU %s stays %s for now, it is set back when the GPU answers again: %s",
                debt.setting.shown,
                debt.uuid,
                debt.given,
                error,
            )
