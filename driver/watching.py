"""The threads that look at the GPUs: the probe's, and the watcher's of what NVML reports by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from driver.health import findings
from driver.health.monitor import Look, Monitor, askable
from driver.model import Gpu, GpuState, NodeInventory
from driver.settings import Settings
from native.driverroot import find_library
from native.nvml.errors import NvmlError
from native.nvml.watching import EventWatcher, WatchState

if TYPE_CHECKING:
    from driver.watch import HealthWatch
    from native.nvml.healthtypes import GpuHealth
    from native.nvml.session import NvmlSession

log = logging.getLogger(__name__)

REST_SECONDS = 2.0


class Watching:
    """The threads that look: the probe's and the watcher's of NVML's own events.

    Args:
        watch: told of everything.
        session: the door to NVML; None as long as it was not opened.
        inventory: the newest snapshot, and why the driver does not answer now.
        publish: called where taints are to be others.
        rescan: called where the snapshot no longer tells the truth.
        looked: called with the readings of each look, for whoever counts use.
    """

    def __init__(
        self,
        watch: HealthWatch,
        settings: Settings,
        *,
        session: Callable[[], NvmlSession | None],
        inventory: Callable[[], tuple[NodeInventory | None, str | None]],
        publish: Callable[[], None],
        rescan: Callable[[], None],
        looked: Callable[[Look], None] = lambda _look: None,
    ) -> None:
        self._watch = watch
        self._session = session
        self._inventory = inventory
        self._publish = publish
        self._rescan = rescan
        self._also = looked
        self._deadline = settings.nvml_deadline_seconds
        self._monitor = Monitor(
            watch.keeper,
            inventory,
            self._probe,
            period=settings.health_seconds,
            looked=self._looked,
            heard=watch.heard,
            changed=self._changed,
            unmonitored=lambda: self._watcher.state.unmonitored,
            deaf=lambda: self._watcher.deaf,
            unheard=watch.unheard,
        )
        self._watcher = EventWatcher(
            Path(settings.nvml_library) if settings.nvml_library else _finder(Path(settings.driver_root)),
            self._monitor.event,
            self._registered,
            on_gap=lambda gap: self._monitor.gap(gap.addresses, gap.seconds, gap.reason),
            backend=settings.nvml_backend,
        )
        self._started = False
        self._door: NvmlSession | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin with a look."""
        self._monitor.start()

    def request(self) -> None:
        """Look soon."""
        self._monitor.request()

    def stop(self) -> None:
        """End both threads; calls that hang are left behind."""
        self._monitor.stop(1.0)
        self._watcher.close(1.0)

    def let_go(self) -> None:
        """Let go of the GPUs until the node is read anew: what holds one keeps it from being handed over."""
        with self._lock:
            started, self._door = self._door is not None, None
        if started and not self._watcher.rest(REST_SECONDS):
            log.warning("events are still waited for in a call that does not end: the GPUs stay open")

    def _probe(self, addresses: Sequence[str]) -> Sequence[GpuHealth] | None:
        session = self._session()
        # None: the GPUs were let go of; the next reading of the node opens them again.
        if session is None or not self._follow(session, addresses):
            return None
        try:
            found = session.health(addresses, self._deadline)
        except NvmlError:
            if self._session() is not session:
                return None  # let go of in the middle of it
            raise
        inventory, _ = self._inventory()
        if inventory is None or self._session() is not session:
            return None
        # One that was handed to a virtual machine in the middle of it is lost to NVML, and well. That the claim gets it
        # was known before the kernel was asked, so it is known here.
        still = frozenset(askable(inventory))
        return [one for one in found if one.address in still]

    def _follow(self, session: NvmlSession, addresses: Sequence[str]) -> bool:
        """Watch the events of these GPUs; the watcher begins with the first look, behind the session's own start.

        False: the GPUs were let go of meanwhile.
        """
        with self._lock:
            if self._session() is not session:
                return False
            if session is not self._door:
                self._door = session
                session.accompany(self._watcher)
                if self._started:
                    self._watcher.go_on()
                else:
                    self._started = True
                    self._watcher.start()
        self._watcher.watch(addresses)
        return True

    def _registered(self, state: WatchState) -> None:
        if state.problem is None and state.registered:
            log.info("the GPUs' events are watched", extra={"gpus": len(state.registered)})
        self._monitor.request()

    def _changed(self) -> None:
        if self._watch.judge():
            self._publish()

    def _looked(self, look: Look) -> None:
        inventory, unavailable = self._inventory()
        stale = look.problem is not None or any(_disagrees(gpu, look) for gpu in (inventory.gpus if inventory else ()))
        if inventory is not None and unavailable is None and stale:
            self._rescan()
        self._changed()
        self._watch.looked()
        self._also(look)


def _disagrees(gpu: Gpu, look: Look) -> bool:
    """Whether the probe, which is newer, found a GPU gone that the snapshot has as ready, or the reverse."""
    probe = look.health.get(str(gpu.address))
    if probe is None:
        return False
    answers = probe.codes.get("handle") is None
    return answers != (gpu.state is GpuState.READY) and (answers or probe.codes.get("handle") in findings.GONE)


def _finder(root: Path) -> Callable[[], Path]:
    return lambda: find_library(root)
