"""One queue per claim: operations about a claim run one after the other, in the order in which they arrived.

The kubelet gives up on a call after 45 s and repeats it or sends the opposite, while the first one still runs here
(a thread cannot be cancelled). Order of arrival is the only order in which the last word is the kubelet's last word,
so a plain mutex, which lets anybody win, is not enough.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence

import msgspec


class Turn(msgspec.Struct, eq=False):
    """A place in the queue of one claim. Held until ``ClaimQueues.leave``."""

    uid: str
    label: str
    """What is said about the holder to those who wait ("prepare, operation 1a2b3c4d")."""
    since: float = msgspec.field(default_factory=time.monotonic)
    """Monotonic time at which the turn was queued, seconds."""


class ClaimQueues:
    """The queues of all claims; safe for threads.

    The turns of one request are queued in a single step. Two requests therefore stand in the same order in every queue
    that they share, and cannot wait for each other in a circle.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[Turn]] = {}

    def enter(self, uids: Iterable[str], label: str) -> list[Turn]:
        """Queues one turn per UID. The UIDs must differ from each other, or the second waits for the first."""
        with self._changed:
            turns = [Turn(uid, label) for uid in uids]
            for turn in turns:
                self._queues.setdefault(turn.uid, deque()).append(turn)
            return turns

    def leave(self, turn: Turn) -> None:
        """Gives the turn up, whether it had come or not. Leaving twice is harmless."""
        with self._changed:
            queue = self._queues.get(turn.uid)
            if queue is None or turn not in queue:
                return
            queue.remove(turn)
            if not queue:
                del self._queues[turn.uid]
            self._changed.notify_all()

    def wait_any(self, turns: Sequence[Turn], timeout: float) -> list[Turn]:
        """Waits until at least one of the turns has come; all that have. Empty after ``timeout`` seconds."""
        with self._changed:
            ready: list[Turn] = []

            def come() -> bool:
                ready[:] = [turn for turn in turns if self._is_first(turn)]
                return bool(ready)

            self._changed.wait_for(come, timeout)
            return ready

    def holder(self, uid: str) -> Turn | None:
        """The turn that is first in the claim's queue."""
        with self._changed:
            queue = self._queues.get(uid)
            return queue[0] if queue else None

    def wait_idle(self, timeout: float) -> bool:
        """Waits until nobody holds or awaits a turn; ``False`` after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queues, timeout)

    def __len__(self) -> int:
        """The number of claims that somebody works on or waits for."""
        with self._changed:
            return len(self._queues)

    def _is_first(self, turn: Turn) -> bool:
        queue = self._queues.get(turn.uid)
        return queue is not None and queue[0] is turn
