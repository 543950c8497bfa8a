"""After a crash, a reboot or a change of the driver: every record is finished, undone, or made right again."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from driver.model import NodeInventory, Problem
from driver.prepare.claims import ClaimRef
from driver.prepare.errors import ClaimError, storage_error
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.remnant import LostGpuError, remnant
from driver.prepare.resolve import ReplacedError, UntoldError
from driver.prepare.session import Session
from driver.prepare.specfolder import SpecFolder
from driver.prepare.workshop import Workshop, unfinished


class Recovery(msgspec.Struct):
    """What ``recover`` did and could not do. The lists hold claim UIDs."""

    loaded: bool = False
    """Whether the records could be read: else nobody knows what belongs to whom, and nothing may be swept."""
    undone: list[str] = msgspec.field(default_factory=list)
    """Unfinished work that was taken back (or finished taking back)."""
    remade: list[str] = msgspec.field(default_factory=list)
    """Prepared claims that were not as they should be, and are right again."""
    lacked: dict[str, str] = msgspec.field(default_factory=dict)
    """Of those that were remade: what was not in place (``Step.subject``), the first thing of each."""
    waiting: list[str] = msgspec.field(default_factory=list)
    """Claims that could not be verified yet; call again when the inventory changes."""
    orphans: list[str] = msgspec.field(default_factory=list)
    """CDI files of claims that nobody knows, removed."""
    problems: list[Problem] = msgspec.field(default_factory=list)
    records: dict[str, ClaimRecord] = msgspec.field(default_factory=dict)
    """Claim UID -> the record as it was before, of the claims that were undone or remade, or have a problem."""

    def broken(self) -> Iterator[tuple[ClaimRef, Problem]]:
        """Prepared claims whose devices are not as they were given, each with its problem."""
        named = {f"claim {record.ref}": record for record in self.records.values() if record.phase is Phase.PREPARED}
        return ((named[one.subject].ref, one) for one in self.problems if one.subject in named)


def recover(
    session: Session,
    specs: SpecFolder,
    shop: Workshop,
    inventory: NodeInventory | None,
) -> Recovery:
    """Go through all records. Never raises for one of them."""
    report = Recovery()
    try:
        with session.open() as deadline:
            report.loaded = True
            for uid in list(session.records):
                with session.claims((uid,), deadline) as free:
                    record = session.records.get(uid)  # read again: it may have changed before the lock was ours
                    if record is None or uid not in free:
                        continue
                    with session.gpus((record,), deadline) as addresses:
                        if any(device.address not in addresses for device in record.devices):
                            report.waiting.append(uid)
                            continue
                        _recover_claim(_Context(session, specs, shop, inventory, report), record)
            _sweep_folder(session, specs, deadline, report)
            if inventory is not None:
                _sweep_steps(session, shop, inventory, deadline, report)
    except ClaimError as error:
        report.problems.append(Problem("node", str(error)))
    report.problems[:0] = session.take_problems()
    return report


class _Context(msgspec.Struct, frozen=True):
    session: Session
    specs: SpecFolder
    shop: Workshop
    inventory: NodeInventory | None
    report: Recovery


def _recover_claim(context: _Context, record: ClaimRecord) -> None:
    try:
        if record.phase is not Phase.PREPARED:
            _undo(context, record)
            context.report.undone.append(record.ref.uid)
            context.report.records[record.ref.uid] = record
        elif record.devices:
            _verify(context, record)
    except ClaimError as error:
        context.report.problems.append(Problem(f"claim {record.ref}", str(error)))
        context.report.records[record.ref.uid] = record
        if record.phase is Phase.PREPARED:
            context.report.waiting.append(record.ref.uid)


def _undo(context: _Context, record: ClaimRecord) -> None:
    """Undo unfinished work. ClaimError: not in full; what is left of it is in the record."""
    try:
        context.shop.undo(record)
    except LostGpuError as error:
        rest = remnant(record, error.left)
        if rest != record:
            context.session.commit({record.ref.uid: rest}, frees=True)
        raise
    context.session.commit({record.ref.uid: None}, frees=True)


def _verify(context: _Context, record: ClaimRecord) -> None:
    """Make a prepared claim's file what it should be now, or take the file away where it would give other hardware."""
    uid = record.ref.uid
    rebooted = record.boot_id is None or record.boot_id != context.session.boot_id
    current = context.specs.current_digest(uid)
    if record.doubt is not None and not _is_borne_out(context, record, current):
        return  # nothing shows that it is still prepared: withheld, not made again
    if context.inventory is None:
        if rebooted or current != record.spec_digest:
            context.report.waiting.append(uid)
        return
    try:
        work = context.shop.work(record, context.inventory)
        if (lacks := context.shop.plan.lacking(work)) is not None:
            context.shop.check(work)
            if unfinished(work.record):
                work.save(work.record)
            context.shop.plan.do(work)
            context.report.remade.append(uid)
            context.report.lacked[uid] = lacks
            context.report.records[uid] = record
    except ClaimError as error:
        if (rebooted and record.doubt is None) or isinstance(error, ReplacedError):
            context.shop.undo(record)  # a container that starts now must fail rather than get the wrong GPU
        if isinstance(error, UntoldError):  # nothing is known to be wrong with it
            context.report.waiting.append(uid)
            return
        raise
    fresh = context.shop.done(work)
    if fresh != record:
        context.session.commit({uid: fresh})


def _is_borne_out(context: _Context, record: ClaimRecord, current: str | None) -> bool:
    """Whether the CDI file of a claim in doubt is the one that its record was made with, or from. Of a lost record it
    is not known in which boot it was; the hardware will tell."""
    return record.boot_id in (None, context.session.boot_id) and current is not None and current == record.spec_digest


def _sweep_folder(session: Session, specs: SpecFolder, deadline: float, report: Recovery) -> None:
    """Remove files of our own that belong to no record."""
    try:
        strangers = specs.uids() - session.records.keys()
        with session.claims(strangers, deadline) as free:
            for uid in sorted(free):
                if uid not in session.records and specs.remove(uid):
                    report.orphans.append(uid)
    except OSError as error:
        report.problems.append(Problem(str(specs.folder), str(storage_error("clean up", specs.folder, error))))


def _sweep_steps(session: Session, shop: Workshop, inventory: NodeInventory, deadline: float, report: Recovery) -> None:
    """Have the steps undo what is left of claims that are gone. One that cannot keeps none of the others."""

    @contextlib.contextmanager
    def lock(address: str) -> Iterator[bool]:
        with session.addresses((address,), deadline) as free:
            yield address in free

    for step in shop.plan.steps:
        try:
            report.problems.extend(step.sweep(lambda: tuple(session.records.values()), inventory, lock))
        except ClaimError as error:
            report.problems.append(Problem("node", f"{step.subject}: {error}"))
