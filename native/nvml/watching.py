"""Events of GPUs, from a thread of its own with a library context of its own, beside that of the session.

A wait never holds up a reading, and a reading never holds up an event. What goes wrong is a state that is told and
mended: no driver, a replaced library, a GPU that is lost (NVML does not say which: each is asked, the dead one is left
out, the others go on in a new set, and what happens between the two sets is not heard), a GPU that cannot be registered
(asked again now and then, unless it never will).
"""

from __future__ import annotations

import logging
import threading
import time
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


class EventWatcher:
    """See the module. Methods may be called from any thread.

    Args:
        find: gives the library's path; as for ``NvmlSession``.
        on_event: called in the watcher's thread with every event, in their order. While it runs no event is taken from
            NVML (which keeps them), so it should only pass them on. What it raises is logged and stops nothing.
        on_state: called in that thread with every new ``WatchState``.
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
        backend: str = "auto",
        mask: int = HEALTH_EVENTS,
        retry_after: float = RETRY_AFTER,
        make: Callable[[Path], Nvml] | None = None,
    ) -> None:
        self._find = find if callable(find) else (lambda path=Path(find): path)
        self._make = make or (lambda path: make_backend(path, backend))
        self._on_event = on_event
        self._on_state = on_state
        self._mask = int(mask)
        self._retry_after = retry_after
        self._condition = threading.Condition()
        self._wanted: tuple[str, ...] = ()
        self._changed = False
        self._closing = False
        self._resting = False
        self._backend: Nvml | None = None
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
            return self._condition.wait_for(lambda: self._backend is None, timeout)

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
                    self._say(WatchState(problem=str(error)))
                    self._shut()
                self._pause(self._delay(failures, at_once=lost))
        self._shut()

    def _rest(self) -> None:
        if self._resting:
            self._shut()
        with self._condition:
            self._condition.wait_for(lambda: not self._resting or self._closing)

    def _delay(self, failures: int, *, at_once: bool) -> float:
        """A set that lost a GPU is made anew at once; what fails again and again is tried ever more rarely."""
        if at_once and failures == 1:
            return 0.0
        doublings = min(failures - (2 if at_once else 1), 10)
        return float(min(self._retry_after * 2**doublings, RETRY_AT_MOST))

    def _watch(self) -> None:
        """Open what is not open, register, and wait until something is to be made anew."""
        path = self._find()
        identity = file_identity(path)
        with self._condition:
            if self._closing or self._resting:
                return
            self._backend = backend = self._backend or self._make(path)
        backend.open()
        backend.open_events()
        self._register(backend, self._take_wanted(), anew=True)
        self._alive_at = time.monotonic()
        retry_at = time.monotonic() + self._retry_after
        while not (self._closing or self._resting):
            event = self._next(backend)
            self._alive_at = time.monotonic()
            if event is not None:
                self._deliver(event)
            elif file_identity(self._find()) != identity:
                logger.info("the NVML library %s was replaced: watching events with the new one", path)
                self._shut()
                return
            if self._changed and not self._follow(backend):
                return
            if self._alive_at >= retry_at:
                self._register(backend, self._failed())
                retry_at = time.monotonic() + self._retry_after

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
            self._drain(backend)
            return False
        self._register(backend, tuple(address for address in wanted if address not in known))
        return True

    def _drain(self, backend: Nvml) -> None:
        """What is pending, before the set goes. The first wait may end by the very stop that announced the change."""
        empty = 0
        while empty < 2:
            event = backend.wait_event(0.0)
            if event is not None:
                self._deliver(event)
            empty = 0 if event is not None else empty + 1

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

    def _shut(self) -> None:
        backend = self._backend
        if backend is not None:
            backend.close()
        with self._condition:
            self._backend = None
            self._condition.notify_all()
