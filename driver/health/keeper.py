"""The findings of a node's GPUs over time: what stands, since when, and when it has passed.

The rules of recovery, the same after a restart of the agent:

* A sight that has gone (lost, hung, hot, a link down) must stay away for ``recovery_seconds``; one that comes and goes
  is one spell, not many. Some are only believed at the second look in a row.
* An event (XID, poison) of a severity below FATAL has passed once the GPU was well at each look for that long.
* A FATAL event has passed likewise, but only after something that clears it: the GPU or the driver went away and came
  back, or the driver itself says that no recovery action is needed (``recovery_action`` 0). Drivers before R570 cannot
  say so.
* A reboot ends all events. What the next boot's looks show, counts.

Times are seconds of CLOCK_BOOTTIME, which go on over restarts within a boot.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from driver.health import findings
from driver.health.findings import Finding
from driver.health.xids import Severity, describe
from driver.model import Gpu, GpuState
from native.nvml.eventtypes import NvmlEvent
from native.nvml.healthtypes import GpuHealth

RECOVERY_SECONDS = 120.0
SLOW = frozenset({findings.NVLINK, findings.PCIE, findings.THERMAL, findings.POWER, findings.UNMONITORED})
"""Causes that are believed at the second look in a row: they may be a matter of a moment."""
_BREAKS = frozenset({findings.LOST, findings.HANG, findings.UNREADABLE})
"""A GPU that was so and is no more has been through a reset, a reload of its driver, or a return to the bus."""
MAX_STANDING = 64
"""Findings of one GPU that are remembered: a flood of different XIDs must not fill the memory."""


class Policy(msgspec.Struct, frozen=True):
    """What the operator decides."""

    recovery_seconds: float = RECOVERY_SECONDS
    ignore_xids: frozenset[int] = frozenset()
    ignore_causes: frozenset[str] = frozenset()
    ignore_devices: frozenset[str] = frozenset()
    """Device names, PCI addresses or UUIDs: their findings are noted and decide nothing."""


class Standing(msgspec.Struct):
    """A finding that has not passed."""

    finding: Finding
    since: float
    """Unix time of the first sight."""
    seen: float
    """Boot time of the last sight."""
    count: int = 1
    believed: bool = True
    cleared: bool = False
    """Something has happened since that ends a FATAL event, and after which what the board remembers is told anew."""


class GpuHistory(msgspec.Struct):
    """One GPU."""

    standing: list[Standing] = msgspec.field(default_factory=list)
    well_since: float | None = None
    """Boot time since which every look found it reachable and without a sight of DEVICE or worse."""
    reached: bool = False
    """The last look had an answer from it or about it."""

    def find(self, finding: Finding) -> Standing | None:
        """What stands of the same thing."""
        return next((one for one in self.standing if one.finding.key == finding.key), None)


class _Stored(msgspec.Struct):
    version: int
    boot: str | None
    gpus: dict[str, GpuHistory]


class Keeper:
    """Safe for threads.

    Args:
        boot_id: of the running system; None: unknown, then nothing of before is taken over.
        wall: Unix seconds.
        boot: CLOCK_BOOTTIME seconds.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        boot_id: str | None,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._policy = policy
        self._boot_id = boot_id
        self._wall = wall
        self._boot = boot
        self._lock = threading.Lock()
        self._gpus: dict[str, GpuHistory] = {}
        self._best: dict[str, Gpu] = {}
        self._present: tuple[Gpu, ...] = ()
        self._driver_gone: str | None = "no look has ended yet"
        self._formerly_ill: frozenset[str] = frozenset()

    def event(self, event: NvmlEvent, count: int = 1) -> Finding | None:
        """Take an event in; gives what it says, None where that is nothing about a known GPU's health."""
        finding = findings.of_event(event)
        if finding is None or event.address is None:
            return None
        with self._lock:
            gpu = self._gpus.setdefault(event.address, GpuHistory())
            self._sight(gpu, self._judged(event.address, finding), count)
            gpu.well_since = self._boot() if gpu.well_since is not None else None
        return finding

    def look(
        self,
        gpus: Sequence[Gpu],
        health: Mapping[str, GpuHealth],
        unmonitored: Mapping[str, int] | None = None,
    ) -> None:
        """A look has ended.

        Args:
            gpus: of the newest snapshot.
            health: address -> what the probe of this look said. A GPU that is missing here was not asked.
            unmonitored: address -> NVML's code, for GPUs that report no events.
        """
        with self._lock:
            self._driver_gone = None
            self._present = tuple(gpus)
            for gpu in gpus:
                address = str(gpu.address)
                self._improve(address, gpu)
                probe = health.get(address)
                found = [*findings.of_gpu(gpu, self._best.get(address))]
                if probe is not None:
                    found += [one for one in findings.of_health(probe) if one.key not in {f.key for f in found}]
                    if gpu.state is not GpuState.READY and probe.codes.get("handle") is None:
                        # The probe is newer than the snapshot: the GPU answers again.
                        found = [one for one in found if one.cause not in _BREAKS]
                if unmonitored and address in unmonitored:
                    found += findings.of_registration(unmonitored[address])
                self._looked(self._gpus.setdefault(address, GpuHistory()), address, found, probe)

    def driver_gone(self, reason: str, *, unloaded: bool = True) -> None:
        """A look has ended without an answer.

        Args:
            unloaded: the driver or its library is not there, so that it comes back anew.
        """
        with self._lock:
            self._driver_gone = reason
            for gpu in self._gpus.values():
                gpu.well_since = None
                gpu.reached = False
                if unloaded:
                    self._clear(gpu.standing)

    @property
    def formerly_ill(self) -> frozenset[str]:
        """Addresses of the GPUs that something of DEVICE or worse stood against in the stored state, whatever its
        boot."""
        return self._formerly_ill

    @property
    def unanswered(self) -> str | None:
        """Why the last look had no answer at all; None: it had one."""
        with self._lock:
            return self._driver_gone

    def standing(self, address: str) -> tuple[tuple[Standing, ...], bool]:
        """What is believed of a GPU, worst and then oldest first, and whether the last look reached it."""
        with self._lock:
            gpu = self._gpus.get(address)
            if gpu is None:
                return (), False
            believed = (msgspec.structs.replace(one) for one in gpu.standing if one.believed)
            return tuple(sorted(believed, key=lambda one: (-one.finding.severity, one.since))), gpu.reached

    def dump(self) -> bytes:
        """The state to be stored."""
        with self._lock:
            gpus = {address: GpuHistory(gpu.standing) for address, gpu in self._gpus.items() if gpu.standing}
            return msgspec.json.encode(_Stored(1, self._boot_id, gpus))

    def essence(self) -> frozenset[tuple[str, object, int, bool]]:
        """What of the state is worth a write at once: which findings stand, not how often or when they were seen."""
        with self._lock:
            return frozenset(
                (address, one.finding.key, one.finding.severity, one.cleared)
                for address, gpu in self._gpus.items()
                for one in gpu.standing
            )

    def load(self, data: bytes) -> None:
        """Go on from a stored state. One of another boot says nothing about this one.

        Raises:
            ValueError: it is not one.
        """
        try:
            stored = msgspec.json.decode(data, type=_Stored)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"the stored health state cannot be read: {error}") from error
        if stored.version != 1:
            return
        self._formerly_ill = frozenset(
            address
            for address, gpu in stored.gpus.items()
            if any(one.finding.severity >= Severity.DEVICE for one in gpu.standing)
        )
        if stored.boot is None or stored.boot != self._boot_id:
            return
        with self._lock:
            for address, gpu in stored.gpus.items():
                gpu.well_since, gpu.reached = None, False
                gpu.standing = [self._again(address, one) for one in gpu.standing[:MAX_STANDING]]
                self._gpus[address] = gpu

    def _again(self, address: str, one: Standing) -> Standing:
        """A stored finding by the table and the policy of now."""
        finding = one.finding
        if finding.xid is not None:
            finding = msgspec.structs.replace(finding, severity=describe(finding.xid).severity)
        return msgspec.structs.replace(one, finding=self._judged(address, finding))

    # called with the lock held

    def _judged(self, address: str, finding: Finding) -> Finding:
        policy = self._policy
        gpu = self._best.get(address)
        names = {address, *((gpu.name, gpu.uuid) if gpu is not None else ())}
        if (
            finding.cause in policy.ignore_causes
            or (finding.xid is not None and finding.xid in policy.ignore_xids)
            or names & policy.ignore_devices
        ):
            return msgspec.structs.replace(finding, severity=Severity.APPLICATION)
        return finding

    def _improve(self, address: str, gpu: Gpu) -> None:
        """Remember a GPU at its best: what was up in this boot and is down now is a fault."""
        if gpu.state is not GpuState.READY:
            return
        best = self._best.get(address)
        if best is None or best.uuid != gpu.uuid:
            self._best[address] = gpu
            return
        links = gpu.nvlinks if gpu.nvlink_count >= best.nvlink_count else best.nvlinks
        width = max(best.pcie_link_width or 0, gpu.pcie_link_width or 0) or None
        generation = max(best.pcie_link_generation or 0, gpu.pcie_link_generation or 0) or None
        self._best[address] = replace(gpu, nvlinks=links, pcie_link_width=width, pcie_link_generation=generation)

    def _sight(self, gpu: GpuHistory, finding: Finding, count: int = 1) -> None:
        known = gpu.find(finding)
        if known is not None:
            known.finding, known.seen = finding, self._boot()
            known.count += count
            known.believed = True
            known.cleared = False
            return
        believed = finding.event or finding.cause not in SLOW
        gpu.standing.append(Standing(finding, self._wall(), self._boot(), count, believed))
        if len(gpu.standing) > MAX_STANDING:
            gpu.standing.remove(min(gpu.standing, key=lambda one: (one.finding.severity, one.since)))

    def _looked(self, gpu: GpuHistory, address: str, found: Sequence[Finding], probe: GpuHealth | None) -> None:
        now = self._boot()
        for one in gpu.standing:  # a stored one may be of a GPU whose names were not known then
            one.finding = self._judged(address, one.finding)
        judged = [self._judged(address, one) for one in found]
        for finding in judged:
            self._sight(gpu, finding)
        answers = probe is not None and probe.codes.get("handle") is None
        broken = any(one.cause in _BREAKS for one in found)
        gpu.reached = answers or broken
        if broken:
            self._clear(gpu.standing)
        elif probe is not None and probe.recovery_action == 0:
            self._clear(one for one in gpu.standing if one.finding.event)
        if not answers or any(one.severity >= Severity.DEVICE for one in judged):
            gpu.well_since = None
        elif gpu.well_since is None:
            gpu.well_since = now
        seen = {one.key for one in judged}
        gpu.standing = [
            one for one in gpu.standing if one.finding.key in seen or not self._passed(gpu, one, now, probe)
        ]

    @staticmethod
    def _clear(standing: Iterable[Standing]) -> None:
        for one in standing:
            one.cleared = True

    def _passed(self, gpu: GpuHistory, one: Standing, now: float, probe: GpuHealth | None) -> bool:
        """Whether what is not seen any more has passed."""
        if not one.believed:
            return True  # a matter of a moment
        told = findings.REMEMBERED.get(one.finding.cause)
        if told is not None and not one.finding.event and not one.cleared and getattr(probe, told, None) is None:
            return False  # what the board remembers was not told: that is no change
        wait = self._policy.recovery_seconds
        if not one.finding.event or one.finding.severity <= Severity.APPLICATION:
            return now - one.seen >= wait
        if gpu.well_since is None or now - max(gpu.well_since, one.seen) < wait:
            return False
        return one.cleared or one.finding.severity < Severity.FATAL
