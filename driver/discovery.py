"""Keeps the picture of the node fresh: reads it at start, on uevents, and periodically, and says when it changed.

The periodic rescan is the truth; a uevent only brings it forward. A driver that is not there (not loaded yet, being
upgraded, gone) is a state: it is looked for again, more often than a healthy node is rescanned, and whoever asks for
the inventory meanwhile gets the last one, or None before the first. So is a reading in which NVML refused to tell
something of a GPU.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from driver.model import NodeInventory
from kubeletplugin.ratelimit import TokenBucket

log = logging.getLogger(__name__)


AT_ONCE = 10
"""Requested readings that follow each other without a pause; further ones have a second each. What asks for a reading
because of what a reading has shown (a GPU whose instances cannot be listed) must not keep the node busy for ever."""


class DriverUnavailableError(Exception):
    """The NVIDIA driver cannot be asked at the moment; the message says why and what would help."""


class View(msgspec.Struct, frozen=True):
    """What is known of the node."""

    inventory: NodeInventory | None
    """The last whole reading; None before the first."""
    unavailable: str | None
    """Why the driver cannot be asked now; None while it answers."""
    read: bool = True
    """False: nobody has tried yet."""


class Discovery:
    """The rescan loop, in a daemon thread of its own.

    Args:
        read: gives one whole reading; raises DriverUnavailableError while there is no driver. Anything else it
            raises is logged as a fault of ours and retried like an absent driver.
        changed: called in this loop's thread with the new view whenever it differs from the one before.
        looked: called in this loop's thread after each whole reading, also when nothing has changed.
        measured: called with the seconds that a reading took and why it failed (None: it did not).
    """

    def __init__(
        self,
        read: Callable[[], NodeInventory],
        changed: Callable[[View], None],
        *,
        rescan_seconds: float,
        retry_seconds: float,
        looked: Callable[[], None] = lambda: None,
        measured: Callable[[float, str | None], None] = lambda _seconds, _failure: None,
    ) -> None:
        self._read = read
        self._changed = changed
        self._rescan_seconds = rescan_seconds
        self._retry_seconds = retry_seconds
        self._looked = looked
        self._measured = measured
        self._pace = TokenBucket(1.0, AT_ONCE)
        self._condition = threading.Condition()
        self._requested = True
        self._stopping = False
        self._lacking: frozenset[tuple[str, str]] = frozenset()
        """(GPU, field) that the last reading did not tell."""
        self._again = retry_seconds
        """Seconds until what was not told is asked for again; doubles as long as that does not change."""
        self._view = View(None, "the node has not been read yet", read=False)
        self._told = self._view
        self._thread = threading.Thread(target=self._run, name="discovery", daemon=True)

    @property
    def view(self) -> View:
        """The present view; safe from any thread."""
        with self._condition:
            return self._view

    def inventory(self) -> NodeInventory | None:
        """The last whole reading."""
        return self.view.inventory

    def start(self) -> None:
        """Begin with a reading at once."""
        self._thread.start()

    def request(self) -> None:
        """Read soon: something may have changed. Requests during a reading lead to one more reading."""
        with self._condition:
            self._requested = True
            self._condition.notify_all()

    def stop(self, timeout: float) -> None:
        """End the loop; a reading that hangs is left behind."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _run(self) -> None:
        while True:
            with self._condition:
                pause = self._pause()
                self._condition.wait_for(lambda: self._requested or self._stopping, timeout=pause)
                if self._requested:
                    self._condition.wait_for(lambda: self._stopping, timeout=self._pace.take())
                if self._stopping:
                    return
                self._requested = False
            self._rescan()

    def _pause(self) -> float:
        if self._view.unavailable is not None:
            return self._retry_seconds
        return self._again if self._lacking else self._rescan_seconds

    def _rescan(self) -> None:
        before = self.view
        started = time.monotonic()
        failure: str | None = None
        try:
            after = View(self._read(), None)
        except DriverUnavailableError as err:
            failure = "driver_unavailable"
            after = msgspec.structs.replace(before, unavailable=str(err), read=True)
        except Exception as err:
            failure = type(err).__name__
            log.exception("reading the node failed; it is tried again in %g s", self._retry_seconds)
            after = msgspec.structs.replace(before, unavailable=f"reading the node failed: {err}", read=True)
        self._measured(time.monotonic() - started, failure)
        if after != before:
            self._say(before, after)
            with self._condition:
                self._view = after
        if failure is None and after.inventory is not None:
            self._ask_again(after.inventory)
        self._tell(after, whole=failure is None)

    def _ask_again(self, inventory: NodeInventory) -> None:
        """What was not told may be told at the next moment: asked at once where that is new, then ever more rarely."""
        lacking = frozenset((gpu.name, field) for gpu in inventory.gpus for field in gpu.unread)
        if inventory.gpus and inventory.driver_version is None:
            lacking |= {("node", "driver_version")}
        if not lacking <= self._lacking:
            self._again = min(self._retry_seconds, self._rescan_seconds)
            self.request()
        else:
            self._again = min(2 * self._again, self._rescan_seconds)
        self._lacking = lacking

    def _tell(self, view: View, *, whole: bool) -> None:
        """Call back; what fails is called again after the next reading, and never ends the loop."""
        try:
            if view != self._told:
                self._changed(view)
                self._told = view
            if whole:
                self._looked()
        except Exception:
            log.exception("what follows from the node's state failed; it is tried again with the next reading")

    @staticmethod
    def _say(before: View, after: View) -> None:
        if after.unavailable is not None:
            if after.unavailable != before.unavailable:
                log.warning("the NVIDIA driver does not answer: %s", after.unavailable)
            return
        inventory = after.inventory
        if inventory is None:
            return
        if before.unavailable is not None:
            log.info(
                "the node was read",
                extra={"driverVersion": inventory.driver_version, "gpus": len(inventory.gpus), "mock": inventory.mock},
            )
        known = before.inventory.problems if before.inventory else ()
        for problem in inventory.problems:
            if problem not in known:
                log.warning("%s: %s", problem.subject, problem.message)
        old = {gpu.address: gpu for gpu in before.inventory.gpus} if before.inventory else {}
        for gpu in inventory.gpus:
            was = old.get(gpu.address)
            if was is not None and was.state is not gpu.state:
                log.warning(
                    "GPU %s is %s now (was %s): %s",
                    gpu.address,
                    gpu.state.value,
                    was.state.value,
                    gpu.reason or "recovered",
                )
