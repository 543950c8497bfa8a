"""The steps that make a claim's devices ready, each with its way back and a look at whether it worked.

The steps run in the order of the table, and are undone in the opposite order. Each can be run again over its own result
(after a crash), and each can be undone from the stored record alone: without the claim, without NVML.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec

from driver.model import NodeInventory
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.records import ClaimRecord
from driver.prepare.resolve import check_identity
from driver.prepare.specfolder import SpecFolder, digest

Faults: TypeAlias = Callable[[str], None]
"""Called with the name of each point that is passed. In production it does nothing; tests end the process there.

Prepare: p1 intent recorded, p2 hardware done, p3 CDI file in place, p4 result recorded, p5 about to answer.
Unprepare: u1 intent recorded, u2 hardware reverted, u3 CDI file gone, u4 record gone.
"""


def no_faults(point: str) -> None:
    """Pass every point."""


class Work(msgspec.Struct, frozen=True):
    """A claim on its way to being prepared."""

    record: ClaimRecord
    inventory: NodeInventory
    spec: bytes
    """The content of its CDI file."""


class Step(Protocol):
    """One reversible change on behalf of a claim."""

    @property
    def subject(self) -> str:
        """What it is about, for messages."""

    @property
    def done_point(self) -> str:
        """The crash point behind ``do``."""

    @property
    def undone_point(self) -> str:
        """The crash point behind ``undo``."""

    def do(self, work: Work) -> None:
        """Make the change. ClaimError or OSError: it was not made, or not in full; undo follows."""

    def undo(self, record: ClaimRecord) -> None:
        """Take the change back. Nothing to take back is success."""

    def is_done(self, work: Work) -> bool:
        """Whether the change is in place. ClaimError: it cannot be looked at."""

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether nothing of the change is left."""


class HardwareStep:
    """A full GPU is handed out as it is: the step makes sure that it is the one that was meant."""

    subject = "the identity of its GPUs"
    done_point = "p2"
    undone_point = "u2"

    def do(self, work: Work) -> None:
        """Compare UUID and address of every GPU with the record."""
        check_identity(work.record, work.inventory)

    def undo(self, record: ClaimRecord) -> None:
        """A full GPU was not changed."""

    def is_done(self, work: Work) -> bool:
        """Whether each GPU is still the one in the record."""
        found = ((device, work.inventory.gpu(device.device)) for device in work.record.devices)
        return all(gpu is not None and gpu.uuid == device.uuid for device, gpu in found)

    def is_undone(self, record: ClaimRecord) -> bool:
        """Always: nothing was changed."""
        return True


class SpecStep:
    """The claim's CDI file."""

    subject = "its CDI file"
    done_point = "p3"
    undone_point = "u3"

    def __init__(self, folder: SpecFolder) -> None:
        self._folder = folder

    def do(self, work: Work) -> None:
        """Write the file."""
        uid = work.record.ref.uid
        try:
            self._folder.write(uid, work.spec)
        except OSError as error:
            raise storage_error("write the CDI file", self._folder.path(uid), error) from error

    def undo(self, record: ClaimRecord) -> None:
        """Remove the file."""
        try:
            self._folder.remove(record.ref.uid)
        except OSError as error:
            raise storage_error("remove the CDI file", self._folder.path(record.ref.uid), error) from error

    def is_done(self, work: Work) -> bool:
        """Whether exactly this file is there."""
        return self._folder.current_digest(work.record.ref.uid) == digest(work.spec)

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether there is no file."""
        return not self._folder.path(record.ref.uid).exists()


class Plan:
    """The table of steps, run forwards and backwards."""

    def __init__(self, folder: SpecFolder, faults: Faults) -> None:
        self._steps: tuple[Step, ...] = (HardwareStep(), SpecStep(folder))
        self._faults = faults

    def do(self, work: Work) -> None:
        """Run all steps, each verified.

        Raises:
            ClaimError: a step failed; the caller undoes.
        """
        for step in self._steps:
            step.do(work)
            self._faults(step.done_point)
            if not step.is_done(work):
                raise _unverified(step, work.record)

    def undo(self, record: ClaimRecord) -> None:
        """Undo all steps, last first, each verified.

        Raises:
            ClaimError: a step could not be undone; what was undone before stays undone.
        """
        for step in reversed(self._steps):
            step.undo(record)
            self._faults(step.undone_point)
            if not step.is_undone(record):
                raise _unverified(step, record)


def _unverified(step: Step, record: ClaimRecord) -> ClaimError:
    return ClaimError(
        f"claim {record.ref}: {step.subject} is not as it was left a moment ago; is another program changing the CDI "
        "folder?",
        Reason.WRITE_FAILED,
    )
