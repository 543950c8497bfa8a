"""Looks at the GPUs again and again, takes in what NVML reports by itself, and says what came of it.

One thread. A look is a real probe of every GPU; ``looked`` is called only because one has ended, whatever its answer
was, so that whoever passes it on to the kubelet passes on a heartbeat of the real thing. A probe that hangs says
nothing, and what was said before goes stale there.

Events are taken from the watcher's thread at once and handled here: equal ones that come together count as one, so
that a storm of a thousand XIDs is one change, and changes follow each other at a bounded pace.

Where events were not heard for a while, what is left of them is looked for: a look soon after shows what persists (a
row or a page that waits for a reset, a recovery action, a lost GPU), and the counters are compared with those of
before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from driver.health.findings import NO_DRIVER, Finding, of_event, risen
from driver.health.keeper import Keeper
from driver.model import NodeInventory
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlTimeoutError, code_name
from native.nvml.eventtypes import NvmlEvent
from native.nvml.healthtypes import GpuHealth

log = logging.getLogger(__name__)

COALESCE_SECONDS = 0.2
LOOK_SECONDS = 2.0
"""An event leads to a look at once, unless one was less than this ago."""
REPEAT_SECONDS = 10.0
"""An event that repeats is told again after so long, with how often it came."""
MAX_KINDS = 1024
"""Different events that wait to be handled; more are counted as one of an unknown kind."""


class Heard(msgspec.Struct, frozen=True):
    """An event, with how often it came since it was told last."""

    event: NvmlEvent
    finding: Finding
    count: int


class Look(msgspec.Struct, frozen=True):
    """A look that has ended."""

    health: Mapping[str, GpuHealth]
    """Address -> what was read; empty where nothing could be."""
    problem: str | None
    """Why nothing could be read."""


class Unheard(msgspec.Struct, frozen=True):
    """Events of GPUs were not heard for a while, and what a look showed after it."""

    addresses: frozenset[str]
    seconds: float
    reason: str
    found: Mapping[str, str]
    """Address -> what has happened to it meanwhile, as far as its counters tell."""


class Monitor:
    """See the module. Methods may be called from any thread.

    Args:
        keeper: takes everything in.
        inventory: the newest snapshot and, where there is one, why the driver does not answer now.
        probe: reads the GPUs at these addresses; raises NvmlError. None: they must not be asked now: that is no look.
        period: seconds between two looks.
        looked: called after each look, in this thread.
        heard: called with the events that came, in this thread; after it ``changed``.
        changed: called after events were taken in.
        unmonitored: address -> NVML's code, for GPUs whose events are not reported.
        deaf: the GPUs whose events are not heard at present.
        unheard: called after the first look behind a time without events, in this thread.
    """

    def __init__(
        self,
        keeper: Keeper,
        inventory: Callable[[], tuple[NodeInventory | None, str | None]],
        probe: Callable[[Sequence[str]], Sequence[GpuHealth] | None],
        *,
        period: float,
        looked: Callable[[Look], None],
        heard: Callable[[Sequence[Heard]], None] = lambda _heard: None,
        changed: Callable[[], None] = lambda: None,
        unmonitored: Callable[[], Mapping[str, int]] = dict,
        deaf: Callable[[], frozenset[str]] = frozenset,
        unheard: Callable[[Unheard], None] = lambda _unheard: None,
        coalesce: float = COALESCE_SECONDS,
    ) -> None:
        self._keeper = keeper
        self._inventory = inventory
        self._probe = probe
        self._period = period
        self._looked = looked
        self._heard = heard
        self._changed = changed
        self._unmonitored = unmonitored
        self._deaf = deaf
        self._unheard = unheard
        self._gaps: list[Unheard] = []
        self._gap_is_new = False
        self._before: dict[str, GpuHealth] = {}
        """Of each GPU the last reading before its events were not heard any more."""
        self._coalesce = coalesce
        self._condition = threading.Condition()
        self._events: Counter[NvmlEvent] = Counter()
        self._told: dict[NvmlEvent, float] = {}
        self._held: Counter[NvmlEvent] = Counter()
        self._asked = True
        self._stopping = False
        self._silent: str | None = None
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        """Begin with a look at once."""
        self._thread.start()

    def event(self, event: NvmlEvent) -> None:
        """Take an event; returns at once."""
        with self._condition:
            if event not in self._events and len(self._events) >= MAX_KINDS:
                event = NvmlEvent(event.address, event.type, 999, None, None)
            self._events[event] += 1
            self._condition.notify_all()

    def request(self) -> None:
        """Look soon."""
        with self._condition:
            self._asked = True
            self._condition.notify_all()

    def gap(self, addresses: Iterable[str], seconds: float, reason: str) -> None:
        """Events of these GPUs were not heard for a while and are again; returns at once. Gaps that come together are
        told as one."""
        with self._condition:
            self._gaps.append(Unheard(frozenset(addresses), seconds, reason, {}))
            self._gap_is_new = True
            self._condition.notify_all()

    def stop(self, timeout: float) -> None:
        """End the loop; a probe that hangs is left behind."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    def _run(self) -> None:
        due = looked_at = time.monotonic()
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._events or self._asked or self._stopping or self._gap_is_new,
                    max(0.0, due - time.monotonic()),
                )
                if self._stopping:
                    return
                events, self._events = self._events, Counter()
                asked, self._asked = self._asked, False
                gap, self._gap_is_new = self._gap_is_new, False
            try:
                if events or gap:
                    due = min(due, looked_at + LOOK_SECONDS)
                if events:
                    self._take(events)
                if asked or time.monotonic() >= due:
                    looked_at = time.monotonic()
                    due = looked_at + self._period
                    self._look()
            except Exception:
                log.exception("what follows from the GPUs' health failed; it is tried again with the next look")
            with self._condition:
                self._condition.wait_for(lambda: self._stopping, self._coalesce)

    def _take(self, events: Mapping[NvmlEvent, int]) -> None:
        now = time.monotonic()
        told = []
        for event, count in events.items():
            finding = self._keeper.event(event, count)
            if finding is None:
                if event.address is None:
                    log.warning("NVML reported %s and not of which GPU; see dmesg", event)
                continue
            self._held[event] += count
            if now - self._told.get(event, -REPEAT_SECONDS) >= REPEAT_SECONDS:
                told.append(self._tell(event, finding, now))
        self._heard(told)
        self._changed()

    def _tell(self, event: NvmlEvent, finding: Finding, now: float) -> Heard:
        self._told[event] = now
        return Heard(event, finding, self._held.pop(event))

    def _tell_rest(self) -> None:
        """Repeats that were held back, now that their time has come; forget what is long ago."""
        now = time.monotonic()
        late = [event for event in self._held if now - self._told.get(event, 0.0) >= REPEAT_SECONDS]
        told = [self._tell(event, finding, now) for event in late if (finding := of_event(event)) is not None]
        self._told = {event: at for event, at in self._told.items() if now - at < REPEAT_SECONDS or event in self._held}
        if told:
            self._heard(told)

    def _look(self) -> None:
        inventory, unavailable = self._inventory()
        with self._condition:
            gaps = tuple(self._gaps)  # this look begins behind them
        health: Mapping[str, GpuHealth] = {}
        problem, unloaded = unavailable or "the node has not been read yet", False
        if inventory is not None:
            addresses = askable(inventory)
            try:
                read = self._probe(addresses) if addresses else ()
            except NvmlTimeoutError as error:
                # No answer is no look: what was said before grows old where it was said.
                self._say_silent(str(error))
                return
            except NvmlError as error:
                read, failure, unloaded = (), str(error), isinstance(error, LibraryUnavailableError)
            else:
                if read is None:
                    return
                failure = _driver_problem(read) or ""
                unloaded = bool(failure)
            health = {one.address: one for one in read}
            problem = unavailable or failure
        self._silent = None
        if problem or inventory is None:
            self._keeper.driver_gone(problem, unloaded=unloaded)
        else:
            self._keeper.look(inventory.gpus, health, self._unmonitored())
        self._tell_rest()
        if gaps and not problem:
            self._tell_gaps(gaps, health)
        self._remember(health)
        self._looked(Look(health, problem or None))

    def _tell_gaps(self, gaps: Sequence[Unheard], health: Mapping[str, GpuHealth]) -> None:
        """What was not heard has left its traces in what was read behind it."""
        addresses = frozenset[str]().union(*(gap.addresses for gap in gaps))
        found = {
            address: said
            for address in sorted(addresses & health.keys() & self._before.keys())
            if (said := risen(self._before[address], health[address]))
        }
        for address in addresses:
            self._before.pop(address, None)
        with self._condition:
            del self._gaps[: len(gaps)]
        self._unheard(Unheard(addresses, sum(gap.seconds for gap in gaps), gaps[0].reason, found))

    def _remember(self, health: Mapping[str, GpuHealth]) -> None:
        """The readings to compare with later: of a GPU that is not heard, the last one before."""
        with self._condition:
            pending = frozenset[str]().union(*(gap.addresses for gap in self._gaps))
        unheard = self._deaf() | pending
        for address, one in health.items():
            if one.codes.get("handle") is None and (address not in unheard or address not in self._before):
                self._before[address] = one

    def _say_silent(self, problem: str) -> None:
        """Once for each silence."""
        if self._silent is None:
            log.warning("the GPUs' health cannot be probed: %s", problem)
        self._silent = problem


def askable(inventory: NodeInventory) -> list[str]:
    """The addresses of GPUs that NVML can be asked about: one with another driver than NVIDIA's is nobody's."""
    return [str(gpu.address) for gpu in inventory.gpus if gpu.driver in (None, "nvidia")]


def _driver_problem(health: Iterable[GpuHealth]) -> str | None:
    """A driver that went away during the look shows as a failure of GPUs: it is none of theirs."""
    codes = {code for one in health if (code := one.codes.get("handle")) in NO_DRIVER}
    return f"NVML says {', '.join(code_name(code) for code in sorted(codes))}" if codes else None
