"""Which pools need work and when: a queue of names with due times, one worker, nothing twice at once."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kubeletplugin.clock import SYSTEM_CLOCK, Clock


class PoolQueue:
    """Names with due times; the earliest due time of a name counts. Safe for threads."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[str, float] = {}
        self._active: str | None = None
        self._closed = False

    def add(self, name: str, delay: float = 0.0) -> None:
        """Have ``name`` worked on in ``delay`` seconds, or earlier where that was asked for already."""
        due = self._clock.monotonic() + delay
        with self._changed:
            self._due[name] = min(due, self._due.get(name, due))
            self._changed.notify_all()

    def take(self) -> str | None:
        """The next name that is due; waits for it. None when the queue is closed."""
        with self._changed:
            while not self._closed:
                name = min(self._due, key=self._due.__getitem__, default=None)
                left = None if name is None else self._due[name] - self._clock.monotonic()
                if name is not None and left is not None and left <= 0:
                    del self._due[name]
                    self._active = name
                    return name
                self._clock.wait_changed(self._changed, left)
            return None

    def done(self) -> None:
        """The name that was taken is finished with."""
        with self._changed:
            self._active = None
            self._changed.notify_all()

    def busy(self, *, ignoring: str | None = None) -> bool:
        """Whether anything (but ``ignoring``) is waiting or being worked on."""
        with self._changed:
            return bool(self._due.keys() - {ignoring}) or self._active not in (None, ignoring)

    def wait_for(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``condition`` holds (looked at whenever work ends); False after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: condition() or self._closed, timeout) and condition()

    def wake(self) -> None:
        """Have ``wait_for`` look again."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waits; the queue cannot be used again."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class RepairPace:
    """How fast to undo what others did: at once as a rule, slower and slower against somebody who insists."""

    WINDOW = 60.0
    FREE = 5
    CAP = 30.0

    def __init__(self, delay: float, clock: Clock = SYSTEM_CLOCK) -> None:
        self._delay = delay
        self._clock = clock
        self._repairs: dict[str, deque[float]] = {}

    def delay(self, pool: str) -> float:
        """Seconds to wait before the next repair of ``pool``."""
        return min(self.CAP, self._delay * 2.0 ** max(0, len(self._recent(pool)) - self.FREE))

    def count(self, pool: str) -> None:
        """``pool`` was repaired."""
        self._recent(pool).append(self._clock.monotonic())

    def _recent(self, pool: str) -> deque[float]:
        times = self._repairs.setdefault(pool, deque(maxlen=32))
        while times and self._clock.monotonic() - times[0] > self.WINDOW:
            times.popleft()
        return times
