"""Time for loops that wait for hours: one object to read it and to wait by, so that a test can let an hour pass."""

from __future__ import annotations

import threading
import time


class Clock:
    """The machine's own: seconds that neither a new date nor a leap second disturbs."""

    def monotonic(self) -> float:
        """Now, in seconds from some point in the past."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait for the event, for at most ``seconds``; whether it is set."""
        return event.wait(seconds)

    def wait_changed(self, condition: threading.Condition, seconds: float | None) -> None:
        """Wait to be notified, for at most ``seconds`` (None: without end). The condition's lock is held."""
        condition.wait(seconds)


SYSTEM_CLOCK = Clock()
