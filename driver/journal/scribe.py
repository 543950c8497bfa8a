"""What of the agent's life is put down, and how: one method for each kind of news.

News that is looked at again and again (the node, verdicts, claims) is compared with what the journal knows already, in
the journal's own thread, so that each transition is one record however often somebody looks, also over a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from driver.journal.records import ClaimId, Kind
from driver.journal.sight import device_entries, device_states, driver_entry, partition_entries, taint_entries
from driver.journal.state import JournalState, claim_entry
from driver.journal.writer import Draft
from driver.prepare import Origin, Phase
from driver.prepare.records import SHARE

if TYPE_CHECKING:
    from driver.health.monitor import Heard
    from driver.health.verdicts import Verdict
    from driver.journal.writer import Journal
    from driver.model import NodeInventory, Problem
    from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord


class Scribe:
    """Safe for threads; every method returns at once.

    Args:
        journal: where to write.
        records: the claims as the checkpoint has them now.
    """

    def __init__(self, journal: Journal, records: Callable[[], Sequence[ClaimRecord]]) -> None:
        self._journal = journal
        self._records = records
        self._wish = False
        self._loaded = False
        self._order = threading.Lock()
        """Of looks at the claims: a later one must not be put down before an earlier one."""

    # the agent

    def started(self, version: str, settings: Mapping[str, Any]) -> None:
        """The agent has begun.

        Args:
            settings: those that are not the default, without secrets.
        """
        self._journal.record(Kind.AGENT_START, data={"version": version})

        def compare(state: JournalState) -> Iterable[Draft]:
            before, after = state.agent.get("settings"), dict(settings)
            if before != after:
                yield Draft(Kind.SETTINGS, data={"before": before, "after": after})

        self._journal.compare(compare)

    def ended(self) -> None:
        """The agent ends in order; its sockets are gone."""

        def compare(state: JournalState) -> Iterable[Draft]:
            if state.agent.get("registered"):
                yield Draft(Kind.UNREGISTER)
            yield Draft(Kind.AGENT_STOP)

        self._journal.compare(compare)

    def registered(self, *, ok: bool, error: str) -> None:
        """What the kubelet said."""
        self._journal.record(Kind.REGISTER, data={"ok": ok, **({"error": error} if error else {})})

    # slices

    def wished(self) -> None:
        """The pool is to be another from now on: writes that follow are no repair."""
        self._wish = True

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        """A pool is in the API server as desired."""
        wish, self._wish = self._wish, False
        if writes:
            kind = Kind.PUBLISH if wish else Kind.LOST
            self._journal.record(kind, data={"pool": pool, "slices": slices, "writes": writes})

    def refused(self, pool: str, status: int | None, message: str) -> None:
        """The API server did not take a pool, or did not answer."""
        self._journal.record(Kind.REFUSED, data={"pool": pool, "status": status, "message": message})

    def dropped(self, pool: str, fields: Sequence[str], gates: Sequence[str]) -> None:
        """The API server did not keep fields."""
        self._journal.record(Kind.DROPPED, data={"pool": pool, "fields": list(fields), "featureGates": list(gates)})

    # the node

    def node(self, inventory: NodeInventory | None, unavailable: str | None) -> None:
        """The node was looked at; what a look leaves out is as it was (``driver.journal.sight``)."""
        why_not = {} if unavailable is None else {"reason": unavailable}
        profiles = {} if inventory is None else _profiles(inventory)
        reasons = {} if inventory is None else {gpu.name: gpu.reason for gpu in inventory.gpus if gpu.reason}

        def compare(state: JournalState) -> Iterable[Draft]:
            driver = driver_entry(state, inventory, unavailable)
            if state.driver != driver:
                yield Draft(Kind.DRIVER, data={**driver, **why_not, "before": state.driver})
            devices = device_states(state, inventory)
            for name in sorted({*state.devices, *devices}):
                was, now = state.devices.get(name, {}).get("state"), devices.get(name)
                if was != now:
                    why = {"reason": reasons[name]} if name in reasons else {}
                    yield Draft(Kind.DEVICE, name, data={"before": was, "after": now, **why})
            yield from partition_changes(state, partition_entries(state, inventory), profiles)

        self._journal.compare(compare)

    # health

    def verdicts(self, verdicts: Mapping[str, Verdict], *, whole: bool = True) -> None:
        """The devices were judged.

        Args:
            whole: all devices that there are. Otherwise the others are as they were.
        """

        def compare(state: JournalState) -> Iterable[Draft]:
            holders = claims_of(self._records())
            for name, verdict in sorted(verdicts.items()):
                known = state.devices.get(name, {})
                before, after = known.get("health"), verdict.status.value
                if (before, known.get("cause")) == (after, verdict.word or None):
                    continue
                data = {"before": before, "after": after, "cause": verdict.word, "message": verdict.message}
                hit = {"claims": holders[name]} if "unhealthy" in (before, after) and name in holders else {}
                yield Draft(Kind.HEALTH, name, data={key: value for key, value in data.items() if value != ""} | hit)
            for name, known in sorted(state.devices.items()):
                if whole and "health" in known and name not in verdicts:
                    yield Draft(Kind.HEALTH, name, data={"before": known["health"], "after": None})

        self._journal.compare(compare)

    def taints(self, taints: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """The devices are published with these taints and no others."""
        wanted = taint_entries(taints)

        def compare(state: JournalState) -> Iterable[Draft]:
            for name in sorted({*state.taints, *wanted}):
                before, after = state.taints.get(name, {}), wanted.get(name, {})
                for key in sorted({*before, *after}):
                    if before.get(key) != after.get(key):
                        data = {"key": key, "before": before.get(key), "after": after.get(key)}
                        yield Draft(Kind.TAINT, name, data=data)

        self._journal.compare(compare)

    def deaf(self, seconds: float, reason: str, found: Mapping[str, str]) -> None:
        """Events of GPUs were not heard for a while.

        Args:
            seconds: how long.
            reason: why, as a clause.
            found: device -> what has happened to it meanwhile, as far as its counters tell.
        """
        data: dict[str, Any] = {"cause": "events", "seconds": round(seconds, 3), "reason": reason}
        self._journal.record(Kind.GAP, data={**data, **({"found": dict(found)} if found else {})})

    def heard(self, device: str | None, heard: Heard) -> None:
        """NVML reported something by itself."""
        event, finding = heard.event, heard.finding
        data: dict[str, Any] = {"cause": finding.cause, "severity": finding.severity.name.lower()}
        data["message"] = finding.message
        fields = {"xid": event.xid, "gpuInstance": event.gpu_instance, "computeInstance": event.compute_instance}
        data |= {key: value for key, value in fields.items() if value is not None}
        if heard.count > 1:
            data["count"] = heard.count
        self._journal.record(Kind.XID, device=device or f"gpu-at-{event.address}", data=data)

    # claims

    def claims(self, seconds: Mapping[str, float] | None = None) -> None:
        """Claims may stand differently now.

        Args:
            seconds: claim UID -> how long the work took that has just ended, well or not. None: the checkpoint was
                loaded. Before that it is no news that it holds nothing.
        """
        with self._order:
            # As they are now, not when the journal's turn comes: by then the claim may be a step further.
            self._loaded = self._loaded or seconds is None
            records = self.known_records()
            if records is not None:
                self._journal.compare(lambda state: claim_changes(state, records, seconds or {}))

    def known_records(self) -> Sequence[ClaimRecord] | None:
        """The claims as the checkpoint has them now; None where it could not be loaded yet."""
        records = self._records()
        return records if records or self._loaded else None

    def began(self, ref: ClaimRef, operation: str, consumers: Sequence[str] = ()) -> None:
        """Work on a claim begins (``prepare`` or ``unprepare``).

        Args:
            consumers: who has it reserved, as ``pods/train-0``.
        """
        kind = Kind.PREPARE if operation == "prepare" else Kind.UNPREPARE
        data: dict[str, Any] = {"step": "began"}
        if consumers:
            data["consumers"] = list(consumers)
        self._journal.record(kind, claim=claim_id(ref), data=data)

    def failed(self, ref: ClaimRef, operation: str, *, reason: str, error: str, permanent: bool) -> None:
        """Work on a claim failed."""
        data = {"operation": operation, "reason": reason, "error": error, "permanent": permanent}
        self._journal.record(Kind.ERROR, claim=claim_id(ref), data=data)

    def recovered(
        self,
        found: Mapping[str, Sequence[str]],
        records: Mapping[str, ClaimRecord],
        problems: Sequence[Problem] = (),
        lacked: Mapping[str, str] | None = None,
    ) -> None:
        """What a start, or a change of the driver or of the node, made necessary.

        Args:
            found: outcome (``undone``, ``remade``, ``orphan``) -> claim UIDs.
            records: claims as they were before, as far as they are known.
            problems: what is newly found wrong, with a claim (``claim <ref>``) or the node.
            lacked: claim UID -> what was not as it should be, in words.
        """
        for outcome, uids in found.items():
            for uid in uids:
                record = records.get(uid)
                claim = claim_id(record.ref) if record is not None else ClaimId("", "", uid)
                what = {} if lacked is None or uid not in lacked else {"what": lacked[uid]}
                self._journal.record(Kind.RECOVER, claim=claim, data={"outcome": outcome, **what})
                for device in record.devices if record is not None else ():
                    part = device.partition
                    if part is not None and part.origin is not Origin.FOUND:
                        data = {"outcome": outcome, "profile": part.profile}
                        self._journal.record(Kind.MIG_RECONCILE, device=device.device, claim=claim, data=data)
        subjects = {f"claim {record.ref}": record.ref for record in records.values()}
        for problem in problems:
            ref = subjects.get(problem.subject)
            about = {} if ref is not None else {"subject": problem.subject}
            data = {"outcome": "problem", **about, "error": problem.message}
            self._journal.record(Kind.RECOVER, claim=None if ref is None else claim_id(ref), data=data)

    def swept(self, ref: ClaimRef, why: str, error: str | None) -> None:
        """A claim that is gone from the API server was unprepared (or could not be)."""
        data = {"why": why, **({"error": error} if error else {})}
        self._journal.record(Kind.SWEEP, claim=claim_id(ref), data=data)

    def idle(self, ref: ClaimRef, device: str, *, idle: bool, seconds: float) -> None:
        """A claim's device is not used, or used again."""
        data = {"idle": idle, "seconds": round(seconds)}
        self._journal.record(Kind.IDLE, device=device, claim=claim_id(ref), data=data)


def claim_id(ref: ClaimRef) -> ClaimId:
    """A claim as the journal names it."""
    return ClaimId(ref.namespace, ref.name, ref.uid)


def claims_of(records: Sequence[ClaimRecord]) -> dict[str, list[str]]:
    """Device name -> the claims that have it, as ``namespace/name``."""
    found: dict[str, set[str]] = {}
    for record in records:
        for device in record.devices:
            found.setdefault(device.device, set()).add(str(claim_id(record.ref)))
    return {device: sorted(names) for device, names in found.items()}


def claim_changes(state: JournalState, records: Sequence[ClaimRecord], seconds: Mapping[str, float]) -> Iterable[Draft]:
    """The records that lead from what the journal knows of the claims to what the checkpoint has."""
    now = claim_entries(records)
    parts = {(record.ref.uid, share_name(one)): share_parts(one) for record in records for one in record.devices}
    for uid in sorted({*state.claims, *now}):
        before, after = state.claims.get(uid), now.get(uid)
        if before == after:
            continue
        entry = after or before or {}
        claim = ClaimId(entry["namespace"], entry["name"], uid)
        data: dict[str, Any] = (
            {key: after[key] for key in ("phase", "devices", "shares") if key in after} if after else {}
        )
        if before:
            data["before"] = before["phase"]
        if uid in seconds:
            data["seconds"] = round(seconds[uid], 4)
        kind = Kind.PREPARE if after and after["phase"] != "Unpreparing" else Kind.UNPREPARE
        yield Draft(kind, claim=claim, data=data)
        had, has = set((before or {}).get("shares", ())), set((after or {}).get("shares", ()))
        for share in sorted(has - had):
            device, _, number = share.partition("/")
            yield Draft(Kind.SHARE_GRANT, device, claim, {"share": number, **parts.get((uid, share), {})})
        for share in sorted(had - has):
            device, _, number = share.partition("/")
            yield Draft(Kind.SHARE_RELEASE, device, claim, {"share": number})


def claim_entries(records: Sequence[ClaimRecord]) -> dict[str, dict[str, Any]]:
    """The claims of the checkpoint as the journal's state holds them. A claim that is being prepared has no shares
    yet."""
    return {
        record.ref.uid: claim_entry(
            claim_id(record.ref),
            record.phase.value,
            sorted({device.device for device in record.devices}),
            sorted({share_name(one) for one in record.devices if one.share_id and record.phase is not Phase.PREPARING}),
        )
        for record in records
    }


def share_name(device: DeviceRecord) -> str:
    """A share of a device as the journal's state holds it."""
    return f"{device.device}/{device.share_id}"


def share_parts(device: DeviceRecord) -> dict[str, Any]:
    """What a share is of its GPU: ``shares`` of ``of``, ``memory`` in bytes; what is not known is left out."""
    data = device.data.get(SHARE, {})
    return {key: data[key] for key in ("shares", "of", "memory") if isinstance(data.get(key), int)}


def partition_changes(
    state: JournalState, now: Mapping[str, Mapping[str, str]], profiles: Mapping[str, str]
) -> Iterable[Draft]:
    """The records that lead from the MIG partitions that the journal knows to those that stand.

    Args:
        profiles: UUID -> profile.
    """
    for name in sorted({*state.partitions, *now}):
        before, after = state.partitions.get(name, {}), now.get(name, {})
        for instance in sorted(before):
            if after.get(instance) != before[instance]:
                yield Draft(Kind.MIG_DESTROY, name, data={"instance": instance, "uuid": before[instance]})
        for instance, uuid in sorted(after.items()):
            if before.get(instance) != uuid:
                data = {"instance": instance, "uuid": uuid, "profile": profiles.get(uuid)}
                yield Draft(Kind.MIG_CREATE, name, data=data)


def _profiles(inventory: NodeInventory) -> dict[str, str]:
    return {str(part.uuid): part.profile for gpu in inventory.gpus for part in gpu.partitions}


def present_state(
    known: JournalState,
    records: Sequence[ClaimRecord] | None,
    inventory: NodeInventory | None,
    unavailable: str | None,
    verdicts: Mapping[str, Verdict] | None,
    taints: Mapping[str, Sequence[Mapping[str, Any]]] | None,
) -> JournalState:
    """What really holds, in the journal's words (the agent's own part apart).

    Args:
        known: what the journal knows: it still holds wherever nobody can tell now.
        records: the claims as the checkpoint has them; None: it was not loaded yet.
        inventory: of the last look at the node; None: there was none yet.
        unavailable: why the driver does not answer.
        verdicts: on every device; None: not all were judged yet.
        taints: as published; None: nothing was yet.
    """
    return JournalState(
        claims=known.claims if records is None else claim_entries(records),
        devices=device_entries(known, inventory, verdicts),
        taints=known.taints if taints is None else taint_entries(taints),
        partitions=partition_entries(known, inventory),
        driver=driver_entry(known, inventory, unavailable),
    )
