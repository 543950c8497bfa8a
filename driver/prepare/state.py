"""The claim state machine: what the kubelet asks for becomes prepared devices, and is undone again.

A claim goes Preparing -> Prepared -> Unpreparing -> gone. Each phase is on the disk before the work that it announces,
so that after a crash at any point the next start, or the kubelet's next call, can finish the work or undo it. Whatever
can be known to be wrong is found out before the first side effect. Several claims in one call share the writes of the
checkpoint; one that fails does not spoil the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from driver.model import MigSupport, NodeInventory, Problem
from driver.prepare import recovery
from driver.prepare.claims import ClaimAllocation, ClaimRef, is_claim_uid, read_claim
from driver.prepare.devices import DeviceNodes
from driver.prepare.edits import EditsSource
from driver.prepare.effective import effective_configs
from driver.prepare.errors import ClaimError, Reason, storage_error
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.remnant import LostGpuError, aside, remnant
from driver.prepare.resolve import check_names, conflict, same_allocation
from driver.prepare.session import Session, read_boot_id
from driver.prepare.specfolder import SpecFolder
from driver.prepare.steps import Faults, Plan, Step, no_faults
from driver.prepare.workshop import Job, Workshop, unfinished


class PreparedDevice(msgspec.Struct, frozen=True):
    """One allocated device that is ready for containers."""

    requests: tuple[str, ...]
    """As in the allocation result: "req" or "req/sub"."""
    pool: str
    device: str
    cdi_device_ids: tuple[str, ...]
    """Fully qualified CDI names; the first is unique to this result."""
    share_id: str | None = None


Prepared: TypeAlias = tuple[PreparedDevice, ...]
Answers: TypeAlias = dict[str, Prepared | ClaimError]


class Preparer:
    """Prepares and unprepares the claims of one pool. Safe to use from several threads.

    Args:
        driver_name: the DRA driver's name; also the CDI vendor.
        pool_name: this node's pool; results of other pools are other nodes'.
        state_dir: the driver's own folder (made 0700); holds checkpoint.json and serialize.lock.
        cdi_dir: the folder that the container runtime reads (usually /var/run/cdi).
        inventory: the last snapshot of the node; None as long as there is none. Called once per operation.
        edits: what all containers with a GPU share.
        nodes: device nodes of the host.
        steps: what devices need beside their nodes (partitions, sharing), in the order in which it is done.
        mig: what is done with MIG.
        boot_id: the running system's; None: unknown.
        faults: told of each crash point that is passed.
        patience: seconds to wait for other operations on the same claim or GPU before giving up with a retryable error.

    Raises:
        CdiError: the driver's name cannot be a CDI vendor.
    """

    def __init__(
        self,
        driver_name: str,
        pool_name: str,
        state_dir: Path,
        cdi_dir: Path,
        inventory: Callable[[], NodeInventory | None],
        *,
        edits: EditsSource,
        nodes: DeviceNodes,
        steps: Sequence[Step] = (),
        mig: MigSupport = MigSupport.STATIC,
        boot_id: Callable[[], str | None] = read_boot_id,
        faults: Faults = no_faults,
        patience: float = 30.0,
    ) -> None:
        self._driver_name = driver_name
        self._pool_name = pool_name
        self._inventory = inventory
        self._edits = edits
        self._nodes = nodes
        self._faults = faults
        self._specs = SpecFolder(cdi_dir, driver_name)
        self._session = Session(state_dir, self._specs, boot_id=boot_id, patience=patience)
        self._shop = Workshop(self._session, self._specs, nodes, edits, steps, mig, faults)

    @property
    def plan(self) -> Plan:
        """The table of steps."""
        return self._shop.plan

    def prepared(self) -> tuple[ClaimRecord, ...]:
        """Every record there is, finished or not, as last made durable."""
        return tuple(self._session.records.values())

    def prepare(self, claims: Mapping[str, object]) -> Answers:
        """Make the devices of claims ready.

        Args:
            claims: claim UID (as the kubelet gave it) -> ResourceClaim document.

        Returns:
            For each UID the devices (none if the claim has none of this driver), or why it failed. A claim that is
            prepared already gets the same answer again, without a side effect.
        """
        answers: Answers = {}
        wanted: dict[str, ClaimAllocation] = {}
        for uid, document in claims.items():
            try:
                allocation = self._read(uid, document)
            except ClaimError as error:
                answers[uid] = error
                continue
            if allocation.results:
                wanted[uid] = allocation
            else:
                answers[uid] = ()
        if wanted:
            answers.update(self._prepare_wanted(wanted))
        return answers

    def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, ClaimError | None]:
        """Undo claims; needs neither their documents nor an inventory. An unknown claim is a success.

        Returns:
            For each UID None, or why it failed (retryable).
        """
        answers: dict[str, ClaimError | None] = {ref.uid: None for ref in refs}
        # What is no UID was never prepared, and must not become part of a path.
        uids = [uid for uid in answers if is_claim_uid(uid)]
        if not uids:
            return answers
        try:
            with self._session.open() as deadline, self._session.claims(uids, deadline) as free:
                answers.update({uid: _busy(f"claim {uid}") for uid in uids if uid not in free})
                answers.update(self._unprepare_locked(sorted(free), deadline))
        except ClaimError as error:
            answers.update(dict.fromkeys(uids, error))
        return answers

    def recover(self) -> recovery.Recovery:
        """Finish or undo what was interrupted; make every prepared claim right again for this boot and this driver.

        To be called at start, when a first inventory is there, and whenever the inventory changes; cheap when all is
        well. Never raises for one bad record: it is reported, the others are served. Reports too what would keep claims
        from being prepared on this node.
        """
        inventory = self._inventory()
        report = recovery.recover(self._session, self._specs, self._shop, inventory)
        if inventory is not None and inventory.gpus:
            report.problems.extend(self._common_problems(inventory))
        return report

    def _common_problems(self, inventory: NodeInventory) -> Sequence[Problem]:
        """What would keep claims from being prepared on this node, or is not quite right; told before anybody asks."""
        try:
            self._nodes.control()
            return self._edits.common(inventory.driver_version).problems
        except ClaimError as error:
            return [Problem("node", f"no claim can be prepared now: {error}")]

    def _read(self, uid: str, document: object) -> ClaimAllocation:
        allocation = read_claim(document, uid=uid, driver_name=self._driver_name, pool_name=self._pool_name)
        check_names(allocation, self._shop.kinds)
        effective_configs(allocation, self._shop.plan.strategies)
        return allocation

    def _prepare_wanted(self, wanted: Mapping[str, ClaimAllocation]) -> Answers:
        try:
            with self._session.open() as deadline, self._session.claims(wanted, deadline) as free:
                answers: Answers = {uid: _busy(f"claim {uid}") for uid in wanted if uid not in free}
                jobs = self._jobs({uid: wanted[uid] for uid in wanted if uid in free}, answers)
                if jobs:
                    with self._session.gpus([job.record for job in jobs], deadline) as addresses:
                        self._run(self._admit(jobs, addresses, answers), answers)
                    self._faults("p5")
                return answers
        except ClaimError as error:
            return dict.fromkeys(wanted, error)

    def _jobs(self, wanted: Mapping[str, ClaimAllocation], answers: Answers) -> list[Job]:
        """Answer what is prepared already; turn the rest into jobs."""
        jobs: list[Job] = []
        todo: dict[str, ClaimAllocation] = {}
        for uid, allocation in wanted.items():
            stored = self._session.records.get(uid)
            try:
                if stored is not None and self._stands(stored, allocation):
                    answers[uid] = self._answer(stored)
                else:
                    todo[uid] = allocation
            except ClaimError as error:
                answers[uid] = error
        inventory = self._inventory() if todo else None
        for uid, allocation in todo.items():
            try:
                jobs.append(self._shop.job(allocation, self._session.records.get(uid), inventory))
            except ClaimError as error:
                answers[uid] = error
        return jobs

    def _stands(self, stored: ClaimRecord, allocation: ClaimAllocation) -> bool:
        """Whether a claim is prepared, in this boot, and its file is there. ClaimError: it cannot be looked at."""
        if not stored.trusted or stored.boot_id != self._session.boot_id or not same_allocation(stored, allocation):
            return False
        if stored.spec_digest != self._specs.current_digest(stored.ref.uid):
            return False
        return self._shop.plan.serves(stored)

    def _admit(self, jobs: Sequence[Job], addresses: frozenset[str], answers: Answers) -> list[Job]:
        """Those jobs whose GPUs are theirs alone. Called with the GPUs locked, so that the answer stays true."""
        admitted: list[Job] = []
        for job in jobs:
            locked_out = next((d for d in job.record.devices if d.address not in addresses), None)
            others = [*self._session.records.values(), *(other.record for other in admitted)]
            error = _busy(locked_out.device) if locked_out else conflict(job.record, others)
            if error is None:
                admitted.append(job)
            else:
                answers[job.record.ref.uid] = error
        return admitted

    def _run(self, jobs: Sequence[Job], answers: Answers) -> None:
        """Intent, steps, result; the writes of the checkpoint are shared by all jobs."""
        ready: list[Job] = []
        changes: dict[str, ClaimRecord | None] = {}
        for job in jobs:
            uid = job.record.ref.uid
            try:
                changes.update(self._clear(job))
                # Claims of this call may share a device: each is held to those before it, which no record shows yet.
                job.work.others = [*job.work.others, *(other.record for other in ready)]
                self._shop.check(job.work)
                ready.append(job)
            except ClaimError as error:
                answers[uid] = error
        intents = (job.record for job in ready if not job.again or unfinished(job.record))
        try:
            self._session.commit({**changes, **{record.ref.uid: record for record in intents}})
        except ClaimError as error:
            answers.update({job.record.ref.uid: error for job in ready})
            return
        self._faults("p1")
        results: dict[str, ClaimRecord | None] = {}
        for job in ready:
            uid = job.record.ref.uid
            try:
                self._shop.plan.do(job.work)
                results[uid] = self._shop.done(job.work)
            except ClaimError as error:
                answers[uid] = error
                if not job.again and self._undone(job.record):
                    results[uid] = None
        self._finish(ready, results, answers)

    def _clear(self, job: Job) -> dict[str, ClaimRecord | None]:
        """Undo what the claim holds from an interrupted or another allocation before it is prepared anew.

        Returns:
            What changes in the records by that. ClaimError: it could not be undone.
        """
        if job.stored is None or job.again:
            return {}
        changes: dict[str, ClaimRecord | None] = {job.stored.ref.uid: None}
        try:
            self._shop.undo(job.stored)
        except LostGpuError as error:
            left = aside(remnant(job.stored, error.left), self._session.records.keys())
            changes[left.ref.uid] = left
        return changes

    def _finish(self, jobs: Sequence[Job], results: Mapping[str, ClaimRecord | None], answers: Answers) -> None:
        done = {uid: record for uid, record in results.items() if record is not None}
        try:
            # Not synced: after a loss of power the intent is found, which is undone, and the kubelet prepares all anew.
            self._session.commit(results, sync=False)
        except ClaimError as error:
            for job in jobs:
                if job.record.ref.uid in done:
                    answers[job.record.ref.uid] = error
                    if not job.again:
                        self._undone(job.record)
            return
        self._faults("p4")
        answers.update({uid: self._answer(record) for uid, record in done.items()})

    def _undone(self, record: ClaimRecord) -> bool:
        """Try to undo after a failure. Where that fails too, the record stays and the next attempt undoes it."""
        try:
            self._shop.undo(record)
        except ClaimError:
            return False
        return True

    def _answer(self, record: ClaimRecord) -> Prepared:
        return tuple(
            PreparedDevice(
                requests=(device.request,),
                pool=device.pool,
                device=device.device,
                cdi_device_ids=(self._specs.device_id(device.cdi_device),),
                share_id=device.share_id,
            )
            for device in record.devices
        )

    def _unprepare_locked(self, uids: Sequence[str], deadline: float) -> dict[str, ClaimError | None]:
        records = self._session.records
        known = {uid: records[uid] for uid in uids if uid in records}
        answers: dict[str, ClaimError | None] = {uid: self._remove_stray(uid) for uid in uids if uid not in known}
        with self._session.gpus(known.values(), deadline) as free:
            for uid, record in list(known.items()):
                locked_out = next((d for d in record.devices if d.address not in free), None)
                if locked_out is not None:
                    answers[uid] = _busy(locked_out.device)
                    del known[uid]
            answers.update(self._undo_all(known))
        return answers

    def _undo_all(self, known: Mapping[str, ClaimRecord]) -> dict[str, ClaimError | None]:
        answers: dict[str, ClaimError | None] = {}
        if not known:
            return answers
        try:
            intents = {
                uid: record.with_phase(Phase.UNPREPARING)
                for uid, record in known.items()
                if record.phase is not Phase.UNPREPARING
            }
            # Not synced: where it is lost with the power, nothing was answered and the kubelet asks again. What is
            # answered below is synced, for a claim that was unprepared is never asked about again.
            self._session.commit(intents, frees=True, sync=False)
            self._faults("u1")
            results: dict[str, ClaimRecord | None] = {}
            for uid, record in known.items():
                try:
                    # What claims of one call share is in use no more with the last of them.
                    self._shop.undo(record, [other for other, left in results.items() if left is None])
                    answers[uid] = results[uid] = None
                except LostGpuError as error:
                    answers[uid], results[uid] = None, remnant(record, error.left)
                except ClaimError as error:
                    answers[uid] = error
            self._session.commit(results, frees=True)
            self._faults("u4")
        except ClaimError as error:
            answers.update({uid: error for uid in known if answers.get(uid) is None})
        return answers

    def _remove_stray(self, uid: str) -> ClaimError | None:
        try:
            self._specs.remove(uid)
        except OSError as error:
            return storage_error("remove the CDI file", self._specs.path(uid), error)
        return None


def _busy(what: str) -> ClaimError:
    return ClaimError(f"another operation on {what} is still going on; the kubelet tries again", Reason.BUSY)
