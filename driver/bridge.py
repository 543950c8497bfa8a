"""Between the plugin library and the driver: claims go one way, devices the other, news to metrics and Events."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec.structs import replace

from driver.later import Later
from driver.metrics import Deferred, Metrics
from driver.model import Gpu, GpuState, NodeInventory, Placement, Problem
from driver.names import DeviceName
from driver.prepare import ClaimError, ClaimRecord, ClaimRef, Origin, PatientPreparer, Phase, is_remnant
from driver.publish import PoolDocument
from kubeletplugin import api

if TYPE_CHECKING:
    from driver.journal.scribe import Scribe
    from kubeletplugin.events import EventRecorder

log = logging.getLogger(__name__)

KINDS: Final = ("gpu", "mig", "vfio")
OwnPartition: TypeAlias = tuple[str, int, Placement]
"""(PCI address, profile id, place in memory slices)."""


def resources(pool: PoolDocument) -> api.DriverResources:
    """What the publisher takes, from what the driver makes."""
    counters = (api.Slice(shared_counters=sets) for sets in pool.counters)
    devices = (api.Slice(devices=devices) for devices in pool.slices)
    return api.DriverResources({pool.name: api.Pool((*counters, *devices))})


def count_prepared(records: Sequence[ClaimRecord], metrics: Deferred) -> None:
    """Tell the metrics what is prepared."""
    records = [record for record in records if not is_remnant(record)]
    devices = Counter(kind_of(device.device) for record in records for device in record.devices)

    def tell(to: Metrics) -> None:
        to.set("gpudra_prepared_claims", len(records))
        for kind in KINDS:
            to.set("gpudra_prepared_devices", devices[kind], type=kind)

    metrics.tell(tell)


def own_partitions(records: Iterable[ClaimRecord]) -> frozenset[OwnPartition]:
    """The places on GPUs in which partitions stand, or may stand, that were made for claims."""
    return frozenset(
        (device.address, partition.profile_id, partition.placement)
        for record in records
        for device in record.devices
        if (partition := device.partition) is not None and partition.origin is not Origin.FOUND
    )


def with_owners(inventory: NodeInventory, own: Collection[OwnPartition]) -> NodeInventory:
    """The inventory with those partitions marked that this driver made."""
    if not own:
        return inventory

    def marked(gpu: Gpu) -> Gpu:
        keys = [(str(gpu.address), one.profile_id, one.placement) in own for one in gpu.partitions]
        pairs = zip(gpu.partitions, keys, strict=True)
        return replace(gpu, partitions=tuple(replace(one, managed=True) if ours else one for one, ours in pairs))

    return replace(inventory, gpus=tuple(marked(gpu) if gpu.partitions else gpu for gpu in inventory.gpus))


def without_handed_over(
    inventory: NodeInventory, records: Iterable[ClaimRecord], bound: Callable[[str], str | None]
) -> NodeInventory:
    """The inventory with the GPUs that claims have for virtual machines, or are about to get, as no driver of NVIDIA's
    knows them any more: a reading from before that would have them asked about, and taken for lost; one from the moment
    itself has found them lost.

    Args:
        inventory: the last reading.
        records: of all claims.
        bound: PCI address -> the driver that is bound there now. What was found out of a GPU that NVIDIA's driver still
            has stays.
    """
    taken = {device.address for record in records for device in record.devices if kind_of(device.device) == "vfio"}
    if not taken:
        return inventory

    def seen(gpu: Gpu) -> Gpu:
        address = str(gpu.address)
        if address not in taken or gpu.state is GpuState.UNBOUND:
            return gpu
        if gpu.state is not GpuState.READY and bound(address) == "nvidia":
            return gpu
        return replace(gpu, state=GpuState.UNBOUND, driver="vfio-pci", reason="a claim has it for a virtual machine")

    return replace(inventory, gpus=tuple(seen(gpu) for gpu in inventory.gpus))


def kind_of(device: str) -> str:
    """``gpu``, ``mig`` or ``vfio``."""
    name = DeviceName.parse(device)
    return "gpu" if name is None else name.kind


Say: TypeAlias = Callable[[api.Claim, Sequence[api.DeviceStatus]], None]
"""Takes what the claim's status is to say; returns at once."""

Condition: TypeAlias = Callable[[str], api.JSON | None]
"""Device name -> a condition of ``status.devices`` about its health; None: nothing is to be said."""


MetadataOf: TypeAlias = Callable[[str], api.DeviceMetadata | None]
"""Device name -> what containers are to know of it; None: not known now."""


class ClaimHandler:
    """The plugin library's ``Handler`` over the driver's ``PatientPreparer``.

    Args:
        preparer: does the work.
        metrics: told how much is prepared.
        say: tells people which hardware a claim has; ``None`` says nothing.
        scribe: puts down what becomes of claims.
        condition: what is to be said of a device's health.
        metadata: what containers are to know of a device, where the plugin hands that out.
        changed: called when claims may stand differently.
    """

    def __init__(
        self,
        preparer: PatientPreparer,
        metrics: Deferred,
        say: Say | None = None,
        scribe: Later[Scribe] | None = None,
        condition: Condition = lambda _device: None,
        metadata: MetadataOf = lambda _device: None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._preparer = preparer
        self._metrics = metrics
        self._say = say
        self._condition = condition
        self._metadata = metadata
        self._changed = changed
        self._scribe: Later[Scribe] = scribe if scribe is not None else Later()

    def prepare(self, claims: Sequence[api.Claim]) -> Mapping[str, api.PrepareResult]:
        """Make the devices of each claim ready."""
        began = time.monotonic()
        consumers = {claim.ref.uid: consumers_of(claim.document) for claim in claims}
        before = {record.ref.uid: record.boot_id for record in self._preparer.prepared() if record.trusted}
        for claim in claims:
            if claim.ref.uid not in before:
                self._began(_ref(claim.ref), "prepare", consumers[claim.ref.uid])
        answers = self._preparer.prepare({claim.ref.uid: claim.document for claim in claims})
        again = {uid: before[uid] for uid in answers.keys() & before.keys() if not isinstance(answers[uid], ClaimError)}
        if again:
            self._remade(again)
        results: dict[str, api.PrepareResult] = {}
        for claim in claims:
            answer = answers[claim.ref.uid]
            if isinstance(answer, ClaimError):
                log.warning("cannot prepare claim %s: %s", claim.ref, answer)
                self._failed(_ref(claim.ref), "prepare", answer)
                results[claim.ref.uid] = _error(answer)
                continue
            log.info("prepared claim %s", claim.ref, extra={"devices": [device.device for device in answer]})
            results[claim.ref.uid] = [
                api.PreparedDevice(d.requests, d.pool, d.device, d.cdi_device_ids, d.share_id, self._metadata(d.device))
                for d in answer
            ]
        self._ended([claim.ref.uid for claim in claims], began)
        self._tell([claim for claim in claims if not isinstance(results[claim.ref.uid], api.PrepareError)])
        return results

    def _remade(self, before: Mapping[str, str | None]) -> None:
        """Put down which claims were made again: of an earlier boot, and asked for before the agent came to them."""
        records = {record.ref.uid: record for record in self._preparer.prepared()}
        remade = [uid for uid, boot in before.items() if uid in records and records[uid].boot_id != boot]
        if remade:
            self._scribe.tell(lambda scribe: scribe.recovered({"remade": remade}, records))

    def _tell(self, prepared: Sequence[api.Claim]) -> None:
        """The API server forgets it with the allocation, so nothing has to be said when a claim is unprepared."""
        if self._say is None:
            return
        records = {record.ref.uid: record for record in self._preparer.prepared()}
        for claim in prepared:
            record = records.get(claim.ref.uid)
            if record is not None and record.devices:
                self._say(claim, device_statuses(record, self._condition))

    def unprepare(self, claims: Sequence[api.ClaimRef]) -> Mapping[str, api.PrepareError | None]:
        """Undo claims."""
        began = time.monotonic()
        refs = [_ref(ref) for ref in claims]
        known = {record.ref.uid for record in self._preparer.prepared()}
        for ours in refs:
            if ours.uid in known:
                self._began(ours, "unprepare")
        answers = self._preparer.unprepare(refs)
        for ref in claims:
            answer = answers[ref.uid]
            if answer is None:
                log.info("unprepared claim %s", ref)
            else:
                log.warning("cannot unprepare claim %s: %s", ref, answer)
                self._failed(_ref(ref), "unprepare", answer)
        self._ended([ref.uid for ref in claims], began)
        return {uid: None if answer is None else _error(answer) for uid, answer in answers.items()}

    def _began(self, ref: ClaimRef, operation: str, consumers: Sequence[str] = ()) -> None:
        """Put down that work begins; not where there is none, as for a claim that is prepared already."""
        self._scribe.tell(lambda scribe: scribe.began(ref, operation, consumers))

    def _failed(self, ref: ClaimRef, operation: str, error: ClaimError) -> None:
        self._scribe.tell(
            lambda scribe: scribe.failed(
                ref, operation, reason=error.reason, error=str(error), permanent=error.permanent
            )
        )

    def _ended(self, uids: Sequence[str], began: float) -> None:
        seconds = time.monotonic() - began
        self._scribe.tell(lambda scribe: scribe.claims(dict.fromkeys(uids, seconds)))
        count_prepared(self._preparer.prepared(), self._metrics)
        self._changed()


def _ref(ref: api.ClaimRef) -> ClaimRef:
    return ClaimRef(ref.namespace, ref.name, ref.uid)


def consumers_of(document: api.JSON) -> list[str]:
    """Who has a claim reserved: ``pods/train-0``, or a pod group."""
    status = document.get("status")
    reserved = status.get("reservedFor") if isinstance(status, dict) else None
    entries = [one for one in reserved if isinstance(one, dict)] if isinstance(reserved, list) else []
    return [f"{one.get('resource', '')}/{one.get('name', '')}" for one in entries]


def device_statuses(record: ClaimRecord, condition: Condition = lambda _device: None) -> list[api.DeviceStatus]:
    """Which hardware stands behind the devices of a claim; one entry for a device that several requests name."""
    statuses: dict[tuple[str, str, str | None], api.DeviceStatus] = {}
    for device in record.devices:
        if not device.pool:
            continue  # known from its CDI file alone: which allocation result it stands for is not
        data: api.JSON = {"uuid": device.uuid, "pciBusID": device.address}
        if (partition := device.partition) is not None:
            data.update(parentUUID=partition.parent, profile=partition.profile)
        key = device.pool, device.device, device.share_id
        said = condition(device.device)
        conditions = (said,) if said is not None else ()
        statuses[key] = api.DeviceStatus(device.pool, device.device, device.share_id, conditions, data)
    return list(statuses.values())


def held_claims(records: Iterable[ClaimRecord], metadata: MetadataOf) -> list[api.HeldClaim]:
    """What the plugin library makes the files of prepared claims' metadata from again.

    Not of records in doubt: they do not know all of their claim.
    """
    return [
        api.HeldClaim(
            api.ClaimRef(record.ref.namespace, record.ref.name, record.ref.uid),
            tuple(
                api.PreparedDevice((one.request,), one.pool, one.device, (), one.share_id, metadata(one.device))
                for one in record.devices
            ),
            record.pod_claim,
        )
        for record in records
        if record.phase is Phase.PREPARED and record.doubt is None
    ]


def metadata_problems(restored: api.Restored) -> dict[Problem, ClaimRef]:
    """What keeps metadata from being made again -> whose."""
    return {Problem(f"claim {ref}", text): _ref(ref) for ref, text in restored.problems.items()}


def with_other_hardware(before: Iterable[ClaimRecord], now: Iterable[ClaimRecord]) -> list[ClaimRecord]:
    """The claims whose devices are others than before: a partition that is made again may get another UUID."""
    known = {record.ref.uid: record.hardware for record in before}
    there = [record for record in now if not is_remnant(record)]
    return [record for record in there if known.get(record.ref.uid, record.hardware) != record.hardware]


def _error(error: ClaimError) -> api.PrepareError:
    return api.PrepareError(str(error), reason=error.reason, permanent=error.permanent)


_EARLY_EVENTS = 256
"""More claims than a node has devices."""


class AgentObserver(api.NullObserver):
    """Takes what the plugin library tells to metrics, the log and Events on the Node."""

    def __init__(self, metrics: Deferred, scribe: Later[Scribe] | None = None) -> None:
        self._scribe: Later[Scribe] = scribe if scribe is not None else Later()
        self.heard = threading.Event()
        """Set once it is known how the first attempt to publish went, or that there will be none for now."""
        self._metrics = metrics
        self._lock = threading.Lock()
        self._events: EventRecorder | None = None
        self._node: api.JSON = {}
        self._refused: dict[str, str] = {}
        self._early: list[tuple[api.JSON, str, str, str]] = []
        """Events about claims from before they could be written."""

    def attach(self, events: EventRecorder, node: api.JSON) -> None:
        """From now on events can be written.

        Args:
            events: writes them.
            node: reference to the Node that they are about.
        """
        with self._lock:
            self._events = events
            self._node = node
            refused = dict(self._refused)
            early, self._early = self._early, []
        for about, kind, reason, message in early:
            events.record(about, kind, reason, message)
        for message in refused.values():
            self._record("Warning", "ResourceSliceRefused", message)

    def close(self) -> None:
        """Stop writing events."""
        if self._events is not None:
            self._events.stop()

    @property
    def publish_problem(self) -> str | None:
        """Why the pools are not as they should be; None while they are."""
        with self._lock:
            return next(iter(self._refused.values()), None)

    def rpc(self, operation: str, *, seconds: float, queued_seconds: float, outcome: str) -> None:
        """Count it."""
        self._metrics.tell(lambda m: m.rpc(operation, seconds=seconds, queued_seconds=queued_seconds, outcome=outcome))

    def registered(self, *, ok: bool, error: str) -> None:
        """Say it and count it."""
        if ok:
            log.info("the kubelet has registered the plugin")
        else:
            log.error("the kubelet refused the plugin: %s", error)
        self._metrics.tell(lambda m: m.registered(ok=ok, error=error))
        self._scribe.tell(lambda scribe: scribe.registered(ok=ok, error=error))

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        """Say and count writes; a pool that was refused before is well again."""
        self.heard.set()
        with self._lock:
            self._refused.pop(pool, None)
        if writes:
            log.info("published", extra={"pool": pool, "slices": slices, "writes": writes})
        self._metrics.tell(lambda m: m.published(pool, slices=slices, writes=writes))
        self._scribe.tell(lambda scribe: scribe.published(pool, slices=slices, writes=writes))

    def publish_failed(self, failure: api.PublishFailure) -> None:
        """Count it; a refusal (not a mere absence of the server) becomes an Event and makes the agent not ready."""
        self.heard.set()
        log.warning("pool %s is not published: %s", failure.pool, failure.message)
        self._metrics.tell(lambda m: m.publish_failed(failure))
        if failure.retryable:
            return
        message = f"pool {failure.pool} is refused by the API server: {failure.message}"
        with self._lock:
            news = self._refused.get(failure.pool) != message
            self._refused[failure.pool] = message
        if news:
            self._scribe.tell(lambda scribe: scribe.refused(failure.pool, failure.status, failure.message))
            self._record("Warning", "ResourceSliceRefused", message)

    def dropped(self, dropped: api.DroppedFields) -> None:
        """Name the feature gate that would keep the fields."""
        gates = ", ".join(dropped.feature_gates) or "an unknown feature gate"
        fields = ", ".join(dropped.fields)
        message = f"pool {dropped.pool}: the API server dropped {fields}; it keeps them with {gates} enabled"
        log.warning("%s", message)
        self._metrics.tell(lambda m: m.dropped(dropped))
        self._scribe.tell(lambda scribe: scribe.dropped(dropped.pool, dropped.fields, dropped.feature_gates))
        self._record("Warning", "ResourceSliceFieldsDropped", message)

    def claim_event(self, ref: ClaimRef, kind: str, reason: str, message: str) -> None:
        """Write an Event about a claim, where whoever looks at the pod's claim finds it."""
        about: api.JSON = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "namespace": ref.namespace,
            "name": ref.name,
            "uid": ref.uid,
        }
        with self._lock:
            events = self._events
            if events is None and len(self._early) < _EARLY_EVENTS:
                self._early.append((about, kind, reason, message))
        if events is not None:
            events.record(about, kind, reason, message)

    def _record(self, kind: str, reason: str, message: str) -> None:
        with self._lock:
            events, node = self._events, self._node
        if events is not None:
            events.record(node, kind, reason, message)
