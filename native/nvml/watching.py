"""Events of GPUs, from a thread of its own with a library context of its own, beside that of the session.

A wait never holds up a reading, and a reading never holds up an event. What goes wrong is a state that is told and
mended: no driver, a replaced library, a GPU that is lost (NVML does not say which: each is asked, the dead one is left
out, the others go on in a new set), a GPU that cannot be registered (asked again now and then, unless it never will).

A new set is registered before the one before it is emptied and freed, so nothing goes by unheard between the two. NVML
gives an event to both then: of two equal ones that come by both ways, one counts. Where the library must be let go of,
or a GPU cannot be registered, there is a gap. It is told once it has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec

from native.nvml.errors import NvmlError, NvmlReturn, code_name
from native.nvml.eventtypes import HEALTH_EVENTS, NvmlEvent
from native.nvml.opening import make_backend
from native.nvml.protocol import Nvml
from native.nvml.types import CallInProgress
from native.nvml.worker import file_identity
from native.pci import canonical_address

logger = logging.getLogger(__name__)

RETRY_AFTER = 5.0
RETRY_AT_MOST = 60.0
LOOK_AFTER = 5.0
"""Seconds of quiet waiting after which the library's file and the wanted GPUs are looked at again."""
OVERLAP_SECONDS = 1.0
"""For which an event of the new set may be one that the set before it had too; and for which that is emptied at most,
because a storm may fill it as fast."""
NEVER = frozenset({NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND})
"""Codes with which a GPU says that it will not report events under this driver."""


class WatchState(msgspec.Struct, frozen=True):
    """What is watched at present."""

    registered: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """Address -> kinds of events (``EventType``) that are reported."""
    unmonitored: Mapping[str, int] = msgspec.field(default_factory=lambda: MappingProxyType({}))
    """Address -> NVML's code, for GPUs that are not: NOT_SUPPORTED (3) is no fault of the GPU."""
    problem: str | None = None
    """Why nothing is watched at all; None while events are waited for."""


class Gap(msgspec.Struct, frozen=True):
    """Events of GPUs were not heard for a while, and are again."""

    addresses: tuple[str, ...]
    seconds: float
    """The longest of theirs."""
    reason: str
    """Why, as a clause."""


class EventWatcher:
    """See the module. Methods may be called from any thread.

    Args:
        find: gives the library's path; as for ``NvmlSession``.
        on_event: called in the watcher's thread with every event, in their order. While it runs no event is taken from
            NVML (which keeps them), so it should only pass them on. What it raises is logged and stops nothing.
        on_state: called in that thread with every new ``WatchState``.
        on_gap: called in that thread when events that were not heard for a while are heard again.
        backend: ``auto``, ``cffi`` or ``pynvml``.
        mask: the kinds of events that are wanted (``EventType``).
        retry_after: seconds before what failed is tried again; doubles up to RETRY_AT_MOST while it goes on failing.
        make: gives a backend, not opened, for a path; for tests and for other backends.
    """

    def __init__(
        self,
        find: Callable[[], Path] | Path | str,
        on_event: Callable[[NvmlEvent], None],
        on_state: Callable[[WatchState], None] = lambda _state: None,
        *,
        on_gap: Callable[[Gap], None] = lambda _gap: None,
        backend: str = "auto",
        mask: int = HEALTH_EVENTS,
        retry_after: float = RETRY_AFTER,
        make: Callable[[Path], Nvml] | None = None,
    ) -> None:
        self._find = find if callable(find) else (lambda path=Path(find): path)
        self._make = make or (lambda path: make_backend(path, backend))
        self._on_event = on_event
        self._on_state = on_state
        self._on_gap = on_gap
        self._mask = int(mask)
        self._retry_after = retry_after
        self._condition = threading.Condition()
        self._wanted: tuple[str, ...] = ()
        self._changed = False
        self._closing = False
        self._resting = False
        self._backend: Nvml | None = None
        self._former: Nvml | None = None
        """The one with the set before, until it is empty."""
        self._identity: tuple[object, ...] = ()
        self._listening: frozenset[str] = frozenset()
        self._deaf: Mapping[str, tuple[float, str]] = {}
        """Address -> since when (time.monotonic), and why, its events are not heard that were heard before."""
        self._twice: Counter[NvmlEvent] = Counter()
        self._twice_until = 0.0
        self._state = WatchState(problem="nothing is watched yet")
        self._alive_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)

    @property
    def state(self) -> WatchState:
        """What is watched now."""
        return self._state

    @property
    def alive_at(self) -> float | None:
        """When NVML last answered (time.monotonic); it does so every ``LOOK_AFTER`` seconds while all is well."""
        return self._alive_at

    @property
    def deaf(self) -> frozenset[str]:
        """The GPUs whose events were heard before and are not now."""
        return frozenset(self._deaf)

    def progress(self) -> CallInProgress | None:
        """The NVML call under way."""
        backend = self._backend
        return backend.progress() if backend is not None else None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def watch(self, addresses: Iterable[str]) -> None:
        """The GPUs to watch from now on; no event of those that stay is lost by the change.

        Raises:
            ValueError: one of them is no PCI address.
        """
        wanted = tuple(sorted({canonical_address(address) for address in addresses}))
        with self._condition:
            if wanted != self._wanted:
                self._wanted, self._changed = wanted, True
                self._condition.notify_all()
                self._interrupt()

    def rest(self, timeout: float) -> bool:
        """Let go of the library until ``go_on``; False when a call keeps it longer than ``timeout`` seconds.

        NVML counts who has initialised it: it looks for new GPUs only after everybody has let go. What happens
        meanwhile is not reported.
        """
        with self._condition:
            self._resting = True
            self._condition.notify_all()
            self._interrupt()
            return self._condition.wait_for(lambda: self._backend is self._former is None, timeout)

    def go_on(self) -> None:
        """End the rest."""
        with self._condition:
            self._resting = False
            self._condition.notify_all()

    def close(self, timeout: float = 5.0) -> bool:
        """End the wait, free the set, shut NVML down. False: a call does not come back, the thread is left to it."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            self._interrupt()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def _interrupt(self) -> None:
        backend = self._backend
        if backend is not None:
            backend.stop_waiting()

    def _run(self) -> None:
        failures = 0
        while not self._closing:
            self._rest()
            begin = time.monotonic()
            try:
                self._watch()
                failures = 0
            except NvmlError as error:
                lost = error.code == NvmlReturn.GPU_IS_LOST
                failures = 1 if time.monotonic() - begin > self._retry_after else failures + 1
                if not lost:
                    self._shut(f"NVML failed ({error})")
                    self._say(WatchState(problem=str(error)))
                self._pause(self._delay(failures, at_once=lost))
        self._shut("the watching ended")

    def _rest(self) -> None:
        if self._resting:
            self._shut("NVML was let go of for a moment")
        with self._condition:
            self._condition.wait_for(lambda: not self._resting or self._closing)

    def _delay(self, failures: int, *, at_once: bool) -> float:
        """A set that lost a GPU is made anew at once; what fails again and again is tried ever more rarely."""
        if at_once and failures == 1:
            return 0.0
        doublings = min(failures - (2 if at_once else 1), 10)
        return float(min(self._retry_after * 2**doublings, RETRY_AT_MOST))

    def _watch(self) -> None:
        """Open a new set, register, empty the one before, and wait until something is to be made anew."""
        path = self._find()
        backend = self._opened(path)
        if backend is None:
            return
        self._drain()  # the less is in it, the less can come by both ways
        self._register(backend, self._take_wanted(), anew=True)
        self._retire()
        self._alive_at = time.monotonic()
        retry_at = time.monotonic() + self._retry_after
        while not (self._closing or self._resting):
            event = self._next(backend)
            self._alive_at = time.monotonic()
            if event is not None:
                if not self._is_second(event):
                    self._deliver(event)
            elif file_identity(self._find()) != self._identity:
                logger.info("the NVML library %s was replaced: watching events with the new one", path)
                self._shut("the NVML library was replaced")
                return
            if self._changed and not self._follow(backend):
                return
            if self._alive_at >= retry_at:
                self._register(backend, self._failed())
                retry_at = time.monotonic() + self._retry_after

    def _opened(self, path: Path) -> Nvml | None:
        """A new set in a context of its own, beside the one before; None: it is time to let go of the library."""
        identity = file_identity(path)
        if self._backend is not None and identity != self._identity:
            self._shut("the NVML library was replaced")
        backend = self._make(path)
        with self._condition:
            if self._closing or self._resting:
                return None
            self._former, self._backend = self._backend, backend
        try:
            backend.open()
            backend.open_events()
        except BaseException:
            with self._condition:
                self._former, self._backend = None, self._former
            backend.close()
            raise
        self._identity = identity
        return backend

    def _next(self, backend: Nvml) -> NvmlEvent | None:
        if self._state.registered:
            return backend.wait_event(LOOK_AFTER)
        # What NVML says to a wait for nothing is not laid down.
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._resting or self._changed, LOOK_AFTER)
        return None

    def _follow(self, backend: Nvml) -> bool:
        """Take up a new set of wanted GPUs; False where only a new event set can leave some out."""
        known = {*self._state.registered, *self._state.unmonitored}
        wanted = self._take_wanted()
        if not known <= set(wanted):
            return False
        self._register(backend, tuple(address for address in wanted if address not in known))
        return True

    def _retire(self) -> None:
        """Empty and free the set before: what it has by now, the new one may have too."""
        self._twice = Counter(self._drain())
        self._twice_until = time.monotonic() + OVERLAP_SECONDS
        if self._former is not None:
            self._former.close()
            with self._condition:
                self._former = None
                self._condition.notify_all()

    def _is_second(self, event: NvmlEvent) -> bool:
        """Whether an event was heard by way of the set before already."""
        if self._twice and time.monotonic() >= self._twice_until:
            self._twice.clear()
        if not self._twice[event]:
            return False
        self._twice[event] -= 1
        return True

    def _drain(self) -> list[NvmlEvent]:
        """Deliver what the set before still has, and has alone. A wait may end by a stop that was meant for another."""
        drained: list[NvmlEvent] = []
        empty, end = 0, time.monotonic() + OVERLAP_SECONDS
        while self._former is not None and empty < 2 and time.monotonic() < end:
            try:
                event = self._former.wait_event(0.0)
            except NvmlError as error:
                if error.code != NvmlReturn.GPU_IS_LOST:  # which is why there is a new one
                    logger.info("the set of events before cannot be emptied: %s", error)
                break
            if event is not None and not self._is_second(event):
                self._deliver(event)
                drained.append(event)
            empty = 0 if event is not None else empty + 1
        return drained

    def _take_wanted(self) -> tuple[str, ...]:
        with self._condition:
            self._changed = False
            return self._wanted

    def _failed(self) -> tuple[str, ...]:
        return tuple(address for address, code in self._state.unmonitored.items() if code not in NEVER)

    def _register(self, backend: Nvml, addresses: tuple[str, ...], *, anew: bool = False) -> None:
        registered = {} if anew else dict(self._state.registered)
        unmonitored = {} if anew else dict(self._state.unmonitored)
        for address in addresses:
            try:
                kinds = backend.register_events(address, self._mask)
            except NvmlError as error:
                unmonitored[address] = error.code
                continue
            unmonitored.pop(address, None)
            if kinds:
                registered[address] = kinds
            else:
                unmonitored[address] = NvmlReturn.NOT_SUPPORTED
        self._say(WatchState(MappingProxyType(registered), MappingProxyType(unmonitored)))
        self._account(registered, unmonitored)

    def _account(self, registered: Mapping[str, int], unmonitored: Mapping[str, int]) -> None:
        """Which GPUs are not heard any more, and which are again."""
        now = time.monotonic()
        deaf = {address: since for address, since in self._deaf.items() if address in registered}
        for address, code in unmonitored.items():
            if code not in NEVER and (address in self._deaf or address in self._listening):
                deaf[address] = self._deaf.get(
                    address, (now, f"its events could not be registered ({code_name(code)})")
                )
        back = {address: deaf.pop(address) for address in registered if address in deaf}
        self._listening, self._deaf = frozenset(registered), deaf
        if back:
            since, reason = min(back.values())
            self._tell_gap(Gap(tuple(sorted(back)), now - since, reason))

    def _tell_gap(self, gap: Gap) -> None:
        logger.info("events of %d GPUs were not heard for %.1f s: %s", len(gap.addresses), gap.seconds, gap.reason)
        try:
            self._on_gap(gap)
        except Exception:
            logger.exception("the listener for gaps in event watching failed on %s", gap)

    def _say(self, state: WatchState) -> None:
        before, self._state = self._state, state
        if state == before:
            return
        if state.problem is not None:
            logger.warning("events of GPUs are not watched: %s", state.problem)
        for address, code in state.unmonitored.items():
            if before.unmonitored.get(address) != code:
                logger.warning("GPU %s reports no events: %s", address, code_name(code))
        try:
            self._on_state(state)
        except Exception:
            logger.exception("the listener for the state of event watching failed")

    def _deliver(self, event: NvmlEvent) -> None:
        try:
            self._on_event(event)
        except Exception:
            logger.exception("the listener for GPU events failed on %s", event)

    def _pause(self, seconds: float) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._closing or self._resting, seconds)

    def _shut(self, reason: str) -> None:
        now = time.monotonic()
        self._deaf = {**dict.fromkeys(self._listening, (now, reason)), **self._deaf}
        self._listening = frozenset()
        self._twice.clear()
        for backend in (self._former, self._backend):
            if backend is not None:
                backend.close()
        with self._condition:
            self._backend = self._former = None
            self._condition.notify_all()
