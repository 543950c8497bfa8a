"""What watches beside the agent's work: the journal, the GPUs' health, claims that are gone, devices that lie idle.

All of it comes behind the registration and the first slice, and is loaded only then. Its news goes back to the agent:
taints into the slices, words about claims into their status and Events.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from driver.bridge import AgentObserver, count_prepared, device_statuses, without_handed_over
from driver.later import Later
from driver.metrics import Deferred, Metrics
from driver.model import GpuState, NodeInventory
from driver.prepare import ClaimError, ClaimRecord, ClaimRef, is_remnant
from driver.settings import FIELDS, Settings, listed
from kubeletplugin import api

if TYPE_CHECKING:
    from driver.discovery import Discovery
    from driver.health.monitor import Look
    from driver.health.verdicts import Verdict
    from driver.idle import IdleBook, Use
    from driver.journal import Journal, JournalState, Record
    from driver.journal.scribe import Scribe
    from driver.reconcile import Reconciler, Swept
    from driver.watch import HealthWatch
    from driver.watching import Watching
    from kubeletplugin.client import KubeClient
    from kubeletplugin.health import HealthBoard
    from kubeletplugin.plugin import Plugin
    from kubeletplugin.webhook import Webhook
    from native.nvml.session import NvmlSession

log = logging.getLogger(__name__)

HEALTH_FILE = "health.json"
AT_WORK_SECONDS = 60.0
"""A device that was in use so short a time ago counts as still in use where a claim is to be unprepared."""
SECRET = frozenset({"webhook_url"})
"""Settings of which the journal only says that they are set."""


class Surroundings(msgspec.Struct, frozen=True):
    """What of the agent is needed here."""

    settings: Settings
    pool: str
    boot_id: str | None
    metrics: Deferred
    observer: AgentObserver
    records: Callable[[], Sequence[ClaimRecord]]
    publish: Callable[[], None]
    """Publish the newest snapshot again, with the taints of now."""
    session: Callable[[], NvmlSession | None]
    client: KubeClient
    unprepare: Callable[[Sequence[ClaimRef]], Mapping[str, ClaimError | None]]


class Lookout:
    """See the module. Safe for threads."""

    def __init__(self, agent: Surroundings, scribe: Later[Scribe]) -> None:
        self._agent = agent
        self._scribe = scribe
        self._lock = threading.Lock()
        self._watch: HealthWatch | None = None
        self._watching: Watching | None = None
        self._journal: Journal | None = None
        self._devices: Mapping[str, api.JSON] = {}
        self._taints: Mapping[str, list[api.JSON]] | None = None
        """As published last; None: nothing was yet."""
        self._seen_well: NodeInventory | None = None
        self._webhook: Webhook | None = None
        self._reconciler: Reconciler | None = None
        self._idle: IdleBook | None = None
        self._at_work: frozenset[tuple[str, str]] = frozenset()
        self._plugin: Plugin | None = None
        self._discovery: Discovery | None = None

    # for the publication

    def view(self, inventory: NodeInventory) -> tuple[NodeInventory, dict[str, list[api.JSON]]]:
        """What is to be published of a snapshot, and with which taints."""
        well = inventory.driver_version is not None or not inventory.gpus
        well = well and all(gpu.state is GpuState.READY and not gpu.unread for gpu in inventory.gpus)
        if self._watch is None and well and not (self._agent.settings.state_dir / HEALTH_FILE).exists():
            self._seen_well = inventory
            return inventory, {}  # the way to the first slice, where nothing is known to be wrong
        watch = self._made()
        return watch.shown(inventory), watch.taints()

    def published(self, devices: Sequence[api.JSON], taints: Mapping[str, list[api.JSON]]) -> None:
        """A pool with these devices and taints was handed to the publisher."""
        self._scribe.tell(lambda scribe: scribe.wished())
        self._devices, self._taints = {device["name"]: device for device in devices}, dict(taints)
        watch = self._watch
        if watch is not None:
            watch.published(list(self._devices), taints)

    def described(self, devices: Sequence[api.JSON]) -> None:
        """These are the devices; whether they can be published is not known yet."""
        self._devices = {device["name"]: device for device in devices}

    def metadata(self, device: str) -> api.DeviceMetadata | None:
        """What containers are to know of a device: the attributes it is published with. None: there is none such."""
        known = self._devices.get(device)
        return None if known is None else api.DeviceMetadata(known.get("attributes", {}))

    # for the kubelet and the claims

    def board(self) -> HealthBoard:
        """What the kubelet's health stream tells."""
        return self._made().board

    def condition(self, device: str) -> api.JSON | None:
        """What a claim's status says of a device's health; None: nothing."""
        watch = self._watch
        verdict = watch.verdict(device) if watch is not None else None
        return watch.condition(verdict) if watch is not None and verdict is not None else None

    # its life

    def start(self, plugin: Plugin, discovery: Discovery, version: str) -> None:
        """Begin to watch. To be called once the first slice is out, or will be long in coming."""
        self._plugin, self._discovery = plugin, discovery
        self._start_journal(version)
        self._start_health(discovery)
        self._start_reconciler()

    def stop(self) -> None:
        """End what looks; the journal goes on until ``close``."""
        if self._reconciler is not None:
            self._reconciler.stop(1.0)
        if self._watching is not None:
            self._watching.stop()

    def close(self) -> None:
        """Put the end down and close the journal."""
        self._scribe.tell(lambda scribe: scribe.ended())
        if self._journal is not None and not self._journal.close():
            log.warning("the last records of the journal are not written")
        if self._webhook is not None:
            self._webhook.stop()

    def _start_journal(self, version: str) -> None:
        settings = self._agent.settings
        if not settings.journal_bytes:
            self._scribe.give_up()
            return
        from driver.journal import Journal
        from driver.journal.scribe import Scribe

        self._webhook = self._made_webhook()
        self._journal = Journal(
            settings.state_dir / "journal",
            boot_id=self._agent.boot_id,
            max_bytes=settings.journal_bytes,
            truth=lambda known: self._truth(known, scribe.known_records()),
            lost=lambda cause, count: self._agent.metrics.tell(
                lambda m: m.add("gpudra_journal_lost_total", count, cause=cause)
            ),
            written=self._post,
        )
        scribe = Scribe(self._journal, self._agent.records)
        scribe.started(version, given(settings))
        self._scribe.attach(scribe)
        self._journal.start()

    def _made_webhook(self) -> Webhook | None:
        settings = self._agent.settings
        if not settings.webhook_url:
            return None
        from kubeletplugin.webhook import Webhook

        made = Webhook(
            settings.webhook_url,
            told=lambda outcome, count: self._agent.metrics.tell(
                lambda m: m.add("gpudra_webhook_posts_total", count, outcome=outcome)
            ),
            prefix=f"{settings.node_name}: ",
        )
        made.start()
        return made

    def _post(self, record: Record) -> None:
        """A record was written: post it, if its kind is chosen."""
        if self._webhook is None:
            return
        from driver.journal.telling import kind_matches, line

        if kind_matches(record.kind, listed(self._agent.settings.webhook_kinds)):
            self._webhook.post(line(record))

    def _start_health(self, discovery: Discovery) -> None:
        from driver.watching import Watching

        watch = self._made()
        inventory = discovery.inventory()
        if inventory is not None:
            watch.shown(inventory)

        def newest() -> tuple[NodeInventory | None, str | None]:
            view = discovery.view
            inventory = view.inventory
            if inventory is not None:
                inventory = without_handed_over(inventory, self._agent.records(), self._bound)
            return inventory, view.unavailable

        self._watching = Watching(
            watch,
            self._agent.settings,
            session=self._agent.session,
            inventory=newest,
            publish=self._agent.publish,
            rescan=discovery.request,
            looked=self._count_use,
        )
        self._watching.start()

    def _bound(self, address: str) -> str | None:
        from native.vfio import VfioBus  # on nodes with virtual machines only

        settings = self._agent.settings
        return VfioBus(Path(settings.sys_root), settings.dev_path).driver(address)

    def _held_claims(self) -> list[ClaimRecord]:
        """Without what is left of claims that were unprepared while a GPU was lost: nobody can let go of that."""
        return [record for record in self._agent.records() if not is_remnant(record)]

    def _start_reconciler(self) -> None:
        from driver.reconcile import Reconciler
        from driver.reconcile.loop import GRACE_SECONDS, SETTLE_SECONDS
        from driver.reconcile.watches import ClaimWatches

        agent, settings = self._agent, self._agent.settings
        reconciler = self._reconciler = Reconciler(
            agent.client,
            self._held_claims,
            agent.unprepare,
            driver_name=settings.driver_name,
            pool_name=agent.pool,
            told=self._swept,
            held=self._held,
            period=settings.reconcile_seconds,
            grace=min(GRACE_SECONDS, settings.reconcile_seconds),
            settle=min(SETTLE_SECONDS, settings.reconcile_seconds),
        )
        watches = ClaimWatches(agent.client, reconciler.seen, reconciler.turned, limit=settings.claim_watches)
        reconciler.start(watches)

    def claims_changed(self) -> None:
        """Claims were prepared or unprepared."""
        if self._reconciler is not None:
            self._reconciler.changed()

    def _held(self, ref: ClaimRef) -> str | None:
        """Why a claim that is gone must keep its devices for now: one of them computes, and for nobody else."""
        records = self._agent.records()
        uses = Counter((one.pool, one.device) for record in records for one in record.devices)
        for record in records:
            for device in record.devices if record.ref.uid == ref.uid else ():
                if (ref.uid, device.device) in self._at_work and uses[device.pool, device.device] == 1:
                    return f"device {device.device} is still at work, so a container of the claim has not ended"
        return None

    def _swept(self, one: Swept) -> None:
        agent = self._agent
        outcome = "ok" if one.error is None else "error"
        agent.metrics.tell(functools.partial(Metrics.add, name="gpudra_claims_swept_total", outcome=outcome))
        self._scribe.tell(functools.partial(_put_down_swept, one))
        self._scribe.tell(lambda scribe: scribe.claims())
        if one.error is None and self._plugin is not None:
            self._plugin.sweep_metadata(lambda: {record.ref.uid for record in agent.records()})
        count_prepared(agent.records(), agent.metrics)
        said = f"the claim is {one.why} by the API server's word and the kubelet did not unprepare it here"
        if one.error is None:
            agent.observer.claim_event(
                one.ref, "Normal", "ClaimSwept", f"{said}, so the driver has: its devices are free"
            )
        else:
            text = f"{said}; the driver cannot either and tries again: {one.error}"
            agent.observer.claim_event(one.ref, "Warning", "ClaimNotSwept", text)

    def _count_use(self, look: Look) -> None:
        """Who uses what they hold; in the thread that looks."""
        from driver.idle import IdleBook, tell_metrics

        agent = self._agent
        if self._idle is None:
            self._idle = IdleBook(agent.settings.idle_seconds, agent.boot_id, agent.settings.state_dir)
        turned = self._idle.sample(look.health, agent.records())
        uses = self._idle.uses()
        self._at_work = frozenset((use.uid, use.device) for use in uses if use.ever and use.seconds < AT_WORK_SECONDS)
        agent.metrics.tell(lambda m: tell_metrics(m, uses))
        for use in turned:
            log.info("device %s of claim %s %s", use.device, use.ref, "is idle" if use.idle else "is used again")
            self._scribe.tell(functools.partial(_put_down_use, use))

    def let_go(self) -> None:
        """Hold no GPU open, until the node is read anew."""
        if self._watching is not None:
            self._watching.let_go()

    def looked(self) -> None:
        """The node was read, or the driver was found gone."""
        watching = self._watching
        if watching is not None:
            watching.request()

    def _made(self) -> HealthWatch:
        with self._lock:
            if self._watch is None:
                from driver.watch import HealthWatch

                agent = self._agent
                watch = HealthWatch(
                    agent.settings,
                    agent.pool,
                    agent.boot_id,
                    agent.records,
                    agent.metrics,
                    self._scribe,
                    self._affected,
                )
                if self._seen_well is not None:
                    watch.shown(self._seen_well)  # what has been published stays in view, should it be sick by now
                if self._taints is not None:
                    watch.published(list(self._devices), self._taints)
                self._watch = watch
            return self._watch

    def _affected(self, record: ClaimRecord, verdict: Verdict) -> None:
        """A claim's device fell ill, or recovered: say it where people look at the claim."""
        well = verdict.status.value != "unhealthy"
        text = f"device {verdict.device} is {verdict.status.value}{'' if well else ': ' + verdict.message}"
        kind, reason = ("Normal", "DeviceRecovered") if well else ("Warning", "DeviceUnhealthy")
        self._agent.observer.claim_event(record.ref, kind, reason, text)
        if self._plugin is not None:
            self._plugin.report_status(claim_ref(record.ref), device_statuses(record, self.condition))

    def _truth(self, known: JournalState, records: Sequence[ClaimRecord] | None) -> JournalState | None:
        """What holds now, for the journal; what nobody can tell now is as ``known``."""
        from driver.journal.scribe import present_state

        if self._discovery is None:
            return None
        view = self._discovery.view
        verdicts, taints = self._watch.present() if self._watch is not None else (None, None)
        return present_state(known, records, view.inventory, view.unavailable if view.read else None, verdicts, taints)


def _put_down_swept(one: Swept, scribe: Scribe) -> None:
    scribe.swept(one.ref, one.why, one.error)


def _put_down_use(use: Use, scribe: Scribe) -> None:
    scribe.idle(use.ref, use.device, idle=use.idle, seconds=use.seconds)


def claim_ref(ref: ClaimRef) -> api.ClaimRef:
    """A claim as the plugin library names it."""
    return api.ClaimRef(ref.namespace, ref.name, ref.uid)


def given(settings: Settings) -> dict[str, object]:
    """The settings that are not the default, without what is secret."""
    found: dict[str, object] = {}
    for name, field in FIELDS.items():
        value = getattr(settings, name)
        if value != field.default:
            found[field.encode_name] = "set" if name in SECRET else value
    return found
