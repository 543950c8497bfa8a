"""The steps that make a claim's devices ready, each with its way back and a look at whether it worked.

The steps run in the order of the table, and are undone in the opposite order. Each can be run again over its own result
(after a crash), and each can be undone from the stored record alone: without the claim. What a step must know for that
it writes into the record, under its own name (``DeviceRecord.data``, ``ClaimRecord.data``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import msgspec

from driver.model import NodeInventory, Problem
from driver.prepare.cdi import ContainerEdits
from driver.prepare.config import DeviceConfig
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.records import ClaimRecord
from driver.prepare.specfolder import SpecFolder, digest

Faults: TypeAlias = Callable[[str], None]
"""Called with the name of each point that is passed. In production it does nothing; tests end the process there.

Prepare: p1 intent recorded, then the steps' own points (p2 hardware done, p3 CDI file in place), p4 result recorded, p5
about to answer. Unprepare: u1 intent recorded, the steps' own (u3 CDI file gone, u2 hardware reverted), u4 record gone.
``Plan.prepare_points`` and ``Plan.unprepare_points`` have all of them in the order in which they are passed.
"""

Lock: TypeAlias = Callable[[str], AbstractContextManager[bool]]
"""PCI address of a GPU -> a context in which no claim of it is touched; it gives whether the GPU was free in time."""


def no_faults(point: str) -> None:
    """Pass every point."""


class Work(msgspec.Struct):
    """A claim on its way to being prepared."""

    record: ClaimRecord
    """As it is by now: steps put what they learn into it."""
    inventory: NodeInventory
    keep: Callable[[ClaimRecord], None]
    """Makes a record of this claim durable. ClaimError: it could not be written."""
    others: Sequence[ClaimRecord] = ()
    """The records of all other claims."""
    configs: Mapping[str, DeviceConfig] = {}
    """``DeviceRecord.cdi_device`` -> its configuration. Empty where a claim is made right from its record: steps find
    in the record what they put there when they checked it."""
    spec: bytes | None = None
    """The content of its CDI file; None until it can be known."""
    seen: dict[str, object] = msgspec.field(default_factory=dict)
    """What steps found out when they checked, under keys of their own; it dies with the work."""

    def save(self, record: ClaimRecord) -> None:
        """Go on with this record, which is on the disk when this returns."""
        self.keep(record)
        self.record = record


class Step(Protocol):
    """One reversible change on behalf of a claim. ``StepDefaults`` does nothing and may be inherited from."""

    @property
    def name(self) -> str:
        """Unique; under it the step's data stands in records."""

    @property
    def subject(self) -> str:
        """What it is about, for messages."""

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of devices (``DeviceName.kind``) that can be prepared only because this step is there."""

    @property
    def strategies(self) -> frozenset[str]:
        """Ways of sharing (``Strategy``) that can be asked for only because this step is there."""

    @property
    def do_points(self) -> tuple[str, ...]:
        """The crash points that ``do`` passes. The last one is passed behind it by the plan, the others by the step."""

    @property
    def undo_points(self) -> tuple[str, ...]:
        """The same for ``undo``."""

    def check(self, work: Work) -> None:
        """Find out what would make ``do`` fail, before anything is changed. The claim's GPUs are locked.

        May put into ``work.record`` what must be on the disk before ``do``. ClaimError: the claim cannot be prepared.
        """

    def do(self, work: Work) -> None:
        """Make the change. ClaimError or OSError: it was not made, or not in full; undo follows."""

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Take the change back. Nothing to take back is success.

        Args:
            record: as it was last made durable.
            others: the records of all other claims, finished or not: what they share is theirs to keep.
        """

    def is_done(self, work: Work) -> bool:
        """Whether the change is in place. ClaimError: it cannot be looked at."""

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether nothing of the change is left."""

    def serves(self, record: ClaimRecord) -> bool:
        """Whether what containers of a prepared claim need is still there. A look at the hardware is only for what goes
        without this driver's doing. False: Prepare does it again instead of answering from the record. ClaimError: it
        cannot be looked at."""

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """Undo what is left of claims that are gone, after each reading of the node; gives what could not be.

        Args:
            records: gives all claims, finished or not, as they are when it is called.
            inventory: the node.
            lock: to be held over a GPU that is changed.
        """

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """What containers get by it: name of the CDI device (``DeviceRecord.cdi_device``) -> edits. After ``do``."""


class StepDefaults:
    """A step that does nothing."""

    kinds: frozenset[str] = frozenset()
    strategies: frozenset[str] = frozenset()

    def check(self, work: Work) -> None:
        """Nothing can be wrong."""

    def do(self, work: Work) -> None:
        """Nothing to do."""

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Nothing to undo."""

    def is_done(self, work: Work) -> bool:
        """Always."""
        return True

    def is_undone(self, record: ClaimRecord) -> bool:
        """Always."""
        return True

    def serves(self, record: ClaimRecord) -> bool:
        """Always."""
        return True

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """Nothing is left."""
        return ()

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """None."""
        return {}


class SpecStep(StepDefaults):
    """The claim's CDI file. It comes last: the other steps say what is in it.

    Args:
        folder: where it lies.
        build: makes its content; ClaimError: a part of it is missing.
    """

    name = "spec"
    subject = "its CDI file"
    do_points = ("p3",)
    undo_points = ("u3",)

    def __init__(self, folder: SpecFolder, build: Callable[[ClaimRecord, NodeInventory], bytes]) -> None:
        self._folder = folder
        self._build = build

    def do(self, work: Work) -> None:
        """Write the file."""
        uid = work.record.ref.uid
        try:
            self._folder.write(uid, self._content(work))
        except OSError as error:
            raise storage_error("write the CDI file", self._folder.path(uid), error) from error

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Remove the file."""
        try:
            self._folder.remove(record.ref.uid)
        except OSError as error:
            raise storage_error("remove the CDI file", self._folder.path(record.ref.uid), error) from error

    def is_done(self, work: Work) -> bool:
        """Whether exactly this file is there, readable for all and writable for root alone."""
        return self._folder.current_digest(work.record.ref.uid) == digest(self._content(work))

    def is_undone(self, record: ClaimRecord) -> bool:
        """Whether there is no file, nor a part of one."""
        return not self._folder.holds(record.ref.uid)

    def _content(self, work: Work) -> bytes:
        if work.spec is None:
            work.spec = self._build(work.record, work.inventory)
            work.record = msgspec.structs.replace(work.record, spec_digest=digest(work.spec))
        return work.spec


class Plan:
    """The table of steps, run forwards and backwards.

    Raises:
        ValueError: two steps of one name, or a crash point that is there twice.
    """

    def __init__(self, steps: Sequence[Step], faults: Faults = no_faults) -> None:
        self._steps = tuple(steps)
        self._faults = faults
        for names in ([step.name for step in steps], self.prepare_points, self.unprepare_points):
            twice = next((name for name in names if names.count(name) > 1), None)
            if twice is not None:
                raise ValueError(f"the table of steps has {twice!r} twice")

    @property
    def steps(self) -> tuple[Step, ...]:
        """In the order in which they are done."""
        return self._steps

    @property
    def prepare_points(self) -> list[str]:
        """All crash points of Prepare, in the order in which they are passed."""
        return ["p1", *(point for step in self._steps for point in step.do_points), "p4", "p5"]

    @property
    def unprepare_points(self) -> list[str]:
        """All crash points of Unprepare, in the order in which they are passed."""
        return ["u1", *(point for step in reversed(self._steps) for point in step.undo_points), "u4"]

    @property
    def kinds(self) -> frozenset[str]:
        """Kinds of devices that the steps can prepare."""
        return frozenset().union(*(step.kinds for step in self._steps))

    @property
    def strategies(self) -> frozenset[str]:
        """Ways of sharing that the steps can serve."""
        return frozenset().union(*(step.strategies for step in self._steps))

    def check(self, work: Work) -> None:
        """Find out what is wrong before anything is changed. ClaimError: the claim cannot be prepared."""
        for step in self._steps:
            step.check(work)

    def do(self, work: Work) -> None:
        """Run all steps, each verified.

        Raises:
            ClaimError: a step failed; the caller undoes.
        """
        for step in self._steps:
            step.do(work)
            self._faults(step.do_points[-1])
            if not step.is_done(work):
                raise _unverified(step, work.record)

    def lacking(self, work: Work) -> str | None:
        """The first thing (``Step.subject``) that is not in place; None: all is. ClaimError: it cannot be looked at."""
        return next((step.subject for step in self._steps if not step.is_done(work)), None)

    def serves(self, record: ClaimRecord) -> bool:
        """Whether a prepared claim may be answered from its record. ClaimError: it cannot be looked at."""
        return all(step.serves(record) for step in self._steps)

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """Undo all steps, last first, each verified.

        Raises:
            ClaimError: a step could not be undone; what was undone before stays undone.
        """
        for step in reversed(self._steps):
            step.undo(record, others)
            self._faults(step.undo_points[-1])
            if not step.is_undone(record):
                raise _unverified(step, record)

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """What containers get by all steps: name of the CDI device -> edits."""
        merged: dict[str, ContainerEdits] = {}
        for step in self._steps:
            for name, edits in step.edits(record, inventory).items():
                merged[name] = merged[name].merged(edits) if name in merged else edits
        return merged


def _unverified(step: Step, record: ClaimRecord) -> ClaimError:
    return ClaimError(
        f"claim {record.ref}: {step.subject} is not as it was left a moment ago; is another program changing it?",
        Reason.WRITE_FAILED,
    )
