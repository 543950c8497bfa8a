"""From an allocation or a stored record to work that can be done: hardware found, CDI file laid out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from driver.model import MigSupport, NodeInventory
from driver.prepare.claims import ClaimAllocation
from driver.prepare.claimspec import build_spec
from driver.prepare.config import DeviceConfig
from driver.prepare.devices import DeviceNodes
from driver.prepare.edits import EditsSource
from driver.prepare.effective import effective_configs
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.hardware import HardwareStep
from driver.prepare.partition import Origin
from driver.prepare.records import ClaimRecord, Phase
from driver.prepare.resolve import check_identity, refound, regained, resolve, same_allocation
from driver.prepare.session import Session
from driver.prepare.specfolder import SpecFolder, digest
from driver.prepare.steps import Faults, Plan, SpecStep, Step, Work


class Job(msgspec.Struct, frozen=True):
    """A claim of which everything is known and nothing is done."""

    work: Work
    stored: ClaimRecord | None
    """What the checkpoint had of the claim."""
    again: bool
    """The claim may be in use with this very hardware: made right in place, never undone on failure."""

    @property
    def record(self) -> ClaimRecord:
        """As it is by now."""
        return self.work.record


class Workshop:
    """Makes work for one node, and holds the table of steps that does it.

    Args:
        session: the state that records are kept in.
        specs: the CDI folder.
        nodes: device nodes of the host.
        edits: what all containers with a GPU share.
        steps: those between the hardware and the CDI file.
        mig: what is done with MIG.
        faults: told of each crash point that is passed.
    """

    def __init__(
        self,
        session: Session,
        specs: SpecFolder,
        nodes: DeviceNodes,
        edits: EditsSource,
        steps: Sequence[Step],
        mig: MigSupport,
        faults: Faults,
    ) -> None:
        self._session = session
        self._specs = specs
        self._nodes = nodes
        self._edits = edits
        self._mig = mig
        self.plan = Plan((HardwareStep(nodes, mig), *steps, SpecStep(specs, self._spec)), faults)
        self.kinds = self.plan.kinds | ({"mig"} if mig is not MigSupport.OFF else set())
        """Kinds of devices that can be prepared."""

    def job(self, allocation: ClaimAllocation, stored: ClaimRecord | None, inventory: NodeInventory | None) -> Job:
        """What is to be done for an allocation.

        Args:
            allocation: what the scheduler gave.
            stored: what the checkpoint has of the claim.
            inventory: the node; None while there is no picture of it.

        Raises:
            ClaimError: a device is not there or not usable, or not the one that was prepared.
        """
        if inventory is None:
            raise ClaimError(
                "the driver has no picture of this node's GPUs yet: NVIDIA's kernel driver or its library is not ready "
                "(see the agent's log); the kubelet tries again",
                Reason.DRIVER_NOT_READY,
            )
        if stored is not None and stored.phase is Phase.PREPARED and same_allocation(stored, allocation):
            return Job(self.work(stored, inventory, allocation), stored, again=True)
        record = resolve(allocation, inventory, self._mig)
        again = False
        if stored is not None and stored.doubt is not None:
            record = regained(record, stored)
            again = stored.hardware == record.hardware
        record = msgspec.structs.replace(record, boot_id=self._session.boot_id)
        return Job(self._work(record, inventory, allocation), stored, again)

    def work(self, record: ClaimRecord, inventory: NodeInventory, allocation: ClaimAllocation | None = None) -> Work:
        """What a prepared claim should look like now.

        Raises:
            ClaimError: it cannot be had: a GPU or partition is gone or replaced.
        """
        boot_id = self._session.boot_id
        if record.boot_id is None or record.boot_id != boot_id:
            record = refound(record, inventory)
        check_identity(record, inventory, self._mig)
        return self._work(record, inventory, allocation)

    def check(self, work: Work) -> None:
        """Find out whatever is wrong before anything is changed; with the claim's GPUs locked.

        Raises:
            ClaimError: the claim cannot be prepared now.
        """
        self.plan.check(work)
        if _makes_hardware(work.record):  # its nodes come with it; what everybody gets can be looked at now
            self._nodes.control()
            self._edits.common(work.inventory.driver_version)
            return
        work.spec = self._spec(work.record, work.inventory)
        work.record = msgspec.structs.replace(work.record, spec_digest=digest(work.spec))

    def done(self, work: Work) -> ClaimRecord:
        """The record of a claim that is prepared, in this boot."""
        return msgspec.structs.replace(work.record, phase=Phase.PREPARED, boot_id=self._session.boot_id, doubt=None)

    def others(self, uid: str) -> list[ClaimRecord]:
        """The records of all other claims."""
        return [record for other, record in self._session.records.items() if other != uid]

    def undo(self, record: ClaimRecord, gone: Collection[str] = ()) -> None:
        """Undo a claim. ClaimError: a step could not be undone.

        Args:
            record: of the claim.
            gone: UIDs of claims that were undone before in the same call; their records still stand.
        """
        others = [other for other in self.others(record.ref.uid) if other.ref.uid not in gone]
        self.plan.undo(record, others)

    def _work(self, record: ClaimRecord, inventory: NodeInventory, allocation: ClaimAllocation | None) -> Work:
        uid = record.ref.uid
        return Work(
            record=record,
            inventory=inventory,
            keep=lambda changed: self._session.commit({uid: changed}),
            others=self.others(uid),
            configs=_configs(record, allocation, self.plan.strategies),
        )

    def _spec(self, record: ClaimRecord, inventory: NodeInventory) -> bytes:
        return build_spec(
            self._specs.kind,
            record,
            self.plan.edits(record, inventory),
            self._nodes.control(),
            self._edits.common(inventory.driver_version).edits,
        )


def unfinished(record: ClaimRecord) -> bool:
    """Whether a partition of the claim is being made: this must be on the disk before it is."""
    partitions = (device.partition for device in record.devices)
    return any(partition is not None and partition.origin is Origin.MAKING for partition in partitions)


def _makes_hardware(record: ClaimRecord) -> bool:
    partitions = (device.partition for device in record.devices)
    return any(partition is not None and partition.origin is not Origin.FOUND for partition in partitions)


def _configs(
    record: ClaimRecord, allocation: ClaimAllocation | None, strategies: Collection[str]
) -> Mapping[str, DeviceConfig]:
    """By CDI device; results and devices of a record are in the same order."""
    if allocation is None:
        return {}
    found = effective_configs(allocation, strategies)
    pairs = zip(record.devices, allocation.results, strict=True)
    return {device.cdi_device: found[result] for device, result in pairs}
