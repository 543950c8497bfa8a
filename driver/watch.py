"""The health of the node's devices as the agent tells it: to the kubelet, to claims, as taints, metrics and records.

``driver.health`` knows what is wrong; here is who is told. Made behind the registration, or for the first publication
where an earlier agent left findings behind.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from driver.health import findings
from driver.health.keeper import Keeper, Policy
from driver.health.monitor import Heard, Unheard
from driver.health.remembered import Album, Remembered
from driver.health.store import HealthStore
from driver.health.verdicts import LOST_TAINT, TAINTS, Status, TaintPolicy, Target, Verdict, taints, verdicts
from driver.health.xids import XIDS, Severity
from driver.model import Gpu, GpuState, NodeInventory
from driver.names import DeviceName, name_of
from driver.settings import listed
from kubeletplugin import api
from kubeletplugin.health import HealthBoard

if TYPE_CHECKING:
    from driver.journal.scribe import Scribe
    from driver.later import Later
    from driver.metrics import Deferred, Metrics
    from driver.prepare import ClaimRecord
    from driver.settings import Settings

log = logging.getLogger(__name__)

_STATUS = {
    Status.HEALTHY: api.HealthStatus.HEALTHY,
    Status.UNHEALTHY: api.HealthStatus.UNHEALTHY,
    Status.UNKNOWN: api.HealthStatus.UNKNOWN,
}
EVICT: Final = {"never": None, "fatal": Severity.FATAL, "device": Severity.DEVICE}
"""The setting ``evict`` -> from which severity on."""
CONDITION: Final = "Healthy"
"""Type of the condition in a claim's ``status.devices`` (KEP-4817)."""
SOURCE = "probe"

Tell = Callable[["ClaimRecord", "Verdict"], None]


class HealthWatch:
    """One agent's. Safe for threads.

    Args:
        pool: the node's pool.
        boot_id: of the running system.
        records: the claims that are prepared.
        scribe: puts verdicts, taints and events down.
        affected: told of each claim whose device is judged otherwise than before.
    """

    def __init__(
        self,
        settings: Settings,
        pool: str,
        boot_id: str | None,
        records: Callable[[], Sequence[ClaimRecord]],
        metrics: Deferred,
        scribe: Later[Scribe],
        affected: Tell,
    ) -> None:
        self.board = HealthBoard()
        self._pool = pool
        self._records = records
        self._metrics = metrics
        self._scribe = scribe
        self._affected = affected
        self._timeout = max(30, math.ceil(3 * settings.health_seconds))
        policy = Policy(
            settings.health_recovery_seconds,
            frozenset(int(code) for code in listed(settings.ignore_xids)),
            frozenset(listed(settings.ignore_causes)),
            frozenset(listed(settings.ignore_devices)),
        )
        self.keeper = Keeper(policy, boot_id=boot_id)
        self._taint_policy = TaintPolicy(EVICT[settings.evict], settings.degraded_taints)
        self._store = HealthStore(settings.state_dir)
        self._store.load(self.keeper)
        self._remembered = Remembered(self._is_held)
        self._album = Album(settings.state_dir, boot_id)
        if (whole := self._album.load()) is not None:
            self._remembered.go_on(whole)
        self._lock = threading.Lock()
        self._names: tuple[str, ...] | None = None
        """What is published; None: nothing yet."""
        self._inventory: NodeInventory | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._judged_all = False
        """Whether the verdicts are on all devices of the node: before it was read, and published, who knows them?"""
        self._taints: dict[str, list[api.JSON]] = {}
        self._ever_ill: set[str] = set()
        self._hit: dict[tuple[str, ...], float] = {}
        self._formerly_ill = set(self.keeper.formerly_ill)
        """Addresses of GPUs that an earlier agent left ill: their claims may still say so."""
        self._told_well: set[str] = set()
        """Devices of those GPUs of which something is known by now."""

    # what is published

    def shown(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory as it is to be published: the sick among what they were."""
        with self._lock:
            self._inventory = shown = self._remembered.view(inventory)
            whole = self._remembered.whole
        if whole is not None:
            self._album.keep(whole)
        return shown

    def taints(self) -> dict[str, list[api.JSON]]:
        """Device name -> taints."""
        with self._lock:
            vanished = self._remembered.vanished()
        found = taints(self.keeper, self._targets(), self._taint_policy)
        effect = (
            "NoSchedule" if self._taint_policy.no_execute is None else "NoExecute"
        )  # nothing is worse than to be gone
        lost: api.JSON = {"key": LOST_TAINT, "effect": effect}
        for name in vanished:
            found[name] = [one for one in found.get(name, []) if one["key"] != LOST_TAINT] + [lost]
        return found

    def published(self, names: Sequence[str], taints_now: Mapping[str, list[api.JSON]]) -> None:
        """These devices are to be in the pool now, with these taints."""
        with self._lock:
            self._names = tuple(names)
            self._taints = {name: list(some) for name, some in taints_now.items()}
        self._scribe.tell(lambda scribe: scribe.taints(taints_now))

    def verdict(self, device: str) -> Verdict | None:
        """The present verdict on a device."""
        with self._lock:
            return self._verdicts.get(device)

    def present(self) -> tuple[dict[str, Verdict] | None, dict[str, list[api.JSON]] | None]:
        """Verdicts and taints as told last; None where not all devices were judged, or nothing was published, yet."""
        with self._lock:
            return (
                dict(self._verdicts) if self._judged_all else None,
                None if self._names is None else dict(self._taints),
            )

    # what comes in

    def heard(self, heard: Sequence[Heard]) -> None:
        """NVML reported something by itself."""
        gpus = {str(gpu.address): gpu.name for gpu in self._gpus()}
        for one in heard:
            name = gpus.get(one.event.address or "")
            log.warning("GPU %s: %s", one.event.address, one.finding.message, extra={"count": one.count})
            self._count(name or "unknown", _label(one.finding.cause, one.finding.xid), one.count)
            self._scribe.tell(functools.partial(_put_down, name, one))

    def unheard(self, gap: Unheard) -> None:
        """Events were not heard for a while."""
        names = {str(gpu.address): gpu.name for gpu in self._gpus()}
        found = {names.get(address, f"gpu-at-{address}"): said for address, said in gap.found.items()}
        if found:
            log.warning("while events of GPUs were not heard (%s): %s", gap.reason, found)
        self._scribe.tell(lambda scribe: scribe.deaf(gap.seconds, gap.reason, found))

    def _count(self, device: str, event: str, count: int) -> None:
        self._metrics.tell(lambda m: m.add("gpudra_gpu_events_total", count, device=device, event=event))

    def judge(self) -> bool:
        """Judge anew and tell everybody whose business it is; True where the taints are to be others."""
        with self._lock:
            whole = self._inventory is not None and self._names is not None
        now = verdicts(self.keeper, self._targets())
        wanted = self.taints()
        with self._lock:
            news = whole is not self._judged_all
            self._judged_all = whole
            now |= {name: _vanished(name, now.get(name)) for name in self._remembered.vanished()}
            before, self._verdicts = self._verdicts, now
            stale = self._inventory is not None and (_own(self._taints) != wanted or self._remembered.overdue())
        changed = [verdict for name, verdict in now.items() if _differs(before.get(name), verdict)]
        for verdict in changed:
            self._say(before.get(verdict.device), verdict)
        if changed or news or before.keys() != now.keys():
            self._metrics.tell(lambda m: _gauges(m, before, now))
            self._scribe.tell(lambda scribe: scribe.verdicts(now, whole=whole))
        self._count_hit(now)
        self._store.save(self.keeper)
        return stale

    def _count_hit(self, now: Mapping[str, Verdict]) -> None:
        """Which claims have a device that is unhealthy."""
        ill = {name: _label(one.cause, one.xid) for name, one in now.items() if one.status is Status.UNHEALTHY}
        hit: dict[tuple[str, ...], float] = {
            (record.ref.namespace, record.ref.name, device.device, ill[device.device]): 1.0
            for record in (self._records() if ill else ())
            for device in record.devices
            if device.device in ill
        }
        if hit != self._hit:
            self._hit = hit
            self._metrics.tell(lambda m: m.replace("gpudra_claim_device_unhealthy", hit))

    def looked(self) -> None:
        """A look has ended: pass on to the kubelet what it showed, whatever that was."""
        with self._lock:
            now = dict(self._verdicts)
        checked = time.time()
        self.board.report(
            (
                api.DeviceHealth(
                    self._pool,
                    name,
                    _STATUS[one.status],
                    one.message,
                    checked_at=checked,
                    timeout_seconds=self._timeout,
                )
                for name, one in now.items()
            ),
            source=SOURCE,
        )

    def condition(self, verdict: Verdict) -> api.JSON | None:
        """What a claim's status says of a device; None for one that was never ill."""
        with self._lock:
            if verdict.status is not Status.UNHEALTHY and verdict.device not in self._ever_ill:
                return None
        return _condition(verdict)

    def _say(self, before: Verdict | None, verdict: Verdict) -> None:
        was = before.status if before is not None else Status.UNKNOWN
        if self._was_left_ill(verdict):
            was = Status.UNHEALTHY
        if Status.UNHEALTHY in (was, verdict.status):
            with self._lock:
                self._ever_ill.add(verdict.device)
        if verdict.status is Status.UNHEALTHY:
            log.warning("device %s is unhealthy: %s", verdict.device, verdict.message)
        elif was is Status.UNHEALTHY:
            log.info("device %s is %s again", verdict.device, verdict.status)
        if Status.UNHEALTHY not in (was, verdict.status):
            return
        for record in self._records():
            if any(device.device == verdict.device for device in record.devices):
                self._affected(record, verdict)

    def _was_left_ill(self, verdict: Verdict) -> bool:
        """Whether this is the first that is known of a device which an earlier agent left ill and which is well."""
        if not self._formerly_ill or verdict.status is Status.UNKNOWN:
            return False
        of = {str(gpu.address) for gpu in self._gpus() if f"{verdict.device}-".startswith(f"{gpu.name}-")}
        if not of & self._formerly_ill:
            return False
        if verdict.device not in self._told_well:
            self._told_well.add(verdict.device)
            return verdict.status is Status.HEALTHY
        return False

    def _gpus(self) -> tuple[Gpu, ...]:
        with self._lock:
            return () if self._inventory is None else self._inventory.gpus

    def _is_held(self, gpu: Gpu) -> bool:
        return any(device.address == str(gpu.address) for record in self._records() for device in record.devices)

    def _targets(self) -> list[Target]:
        """The node's GPUs, what of them is published, and what claims hold."""
        with self._lock:
            names = self._names or ()
        gpus = [gpu for gpu in self._gpus() if gpu.state is not GpuState.UNBOUND]
        found = {gpu.name: Target(gpu.name, str(gpu.address)) for gpu in gpus}
        instances = {name_of(gpu, part): part.gpu_instance for gpu in gpus for part in gpu.partitions}
        for name in names:
            parent = next((gpu for gpu in gpus if name.startswith(f"{gpu.name}-")), None)
            if name not in found and parent is not None:
                found[name] = Target(
                    name, str(parent.address), instances.get(name), partition=True, inherits=_is_mig(name)
                )
        for record in self._records():
            for device in record.devices:
                part = device.partition
                if part is not None:
                    found[device.device] = Target(
                        device.device, device.address, part.gpu_instance, partition=True, inherits=True
                    )
        return list(found.values())


def _put_down(device: str | None, heard: Heard, scribe: Scribe) -> None:
    scribe.heard(device, heard)


def _is_mig(device: str) -> bool:
    name = DeviceName.parse(device)
    return name is not None and name.kind == "mig"


def _own(taints: Mapping[str, Sequence[api.JSON]]) -> dict[str, list[api.JSON]]:
    """Those of the taints that come from here."""
    own = {name: [one for one in some if one["key"] in TAINTS] for name, some in taints.items()}
    return {name: some for name, some in own.items() if some}


def _vanished(name: str, verdict: Verdict | None) -> Verdict:
    since = verdict.since if verdict is not None and verdict.cause == findings.LOST else time.time()
    message = "the GPU has left the bus; look for XID 79 in the kernel's log, reboot the node or have it replaced"
    return Verdict(name, Status.UNHEALTHY, since, Severity.FATAL, findings.LOST, None, message)


def _differs(before: Verdict | None, now: Verdict) -> bool:
    return before is None or (before.status, before.word) != (now.status, now.word)


def _condition(verdict: Verdict) -> api.JSON:
    word = {Status.HEALTHY: "True", Status.UNHEALTHY: "False", Status.UNKNOWN: "Unknown"}[verdict.status]
    if verdict.status is Status.HEALTHY:
        # What is only noted of it comes and goes without a word to the claim, and would stand there for ever.
        verdict = Verdict(verdict.device, verdict.status)
    at = datetime.fromtimestamp(verdict.since or time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = "".join(part.capitalize() for part in verdict.word.split("-")) or "Recovered"
    return {
        "type": CONDITION,
        "status": word,
        "reason": reason,
        "message": verdict.message,
        "lastTransitionTime": at,
    }


def _label(cause: str, xid: int | None) -> str:
    """A cause as a metric's label: of which there are only so many, whatever numbers a driver reports."""
    if xid is None:
        return cause
    return f"{cause}-{xid}" if xid in XIDS else f"{cause}-other"


def _gauges(metrics: Metrics, before: Mapping[str, Verdict], now: Mapping[str, Verdict]) -> None:
    for status in Status:
        count = sum(verdict.status is status for verdict in now.values())
        metrics.set("gpudra_devices_health", count, health=status.value)
    for verdict in before.values():
        if verdict.status is Status.UNHEALTHY:
            metrics.set("gpudra_device_unhealthy", 0, device=verdict.device, cause=_label(verdict.cause, verdict.xid))
    for verdict in now.values():
        if verdict.status is Status.UNHEALTHY:
            metrics.set("gpudra_device_unhealthy", 1, device=verdict.device, cause=_label(verdict.cause, verdict.xid))
