"""A token bucket: how fast one process may ask the API server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class TokenBucket:
    """``rate`` tokens a second, at most ``burst`` saved up. Safe for threads; first come, first served.

    A caller takes its token at once and is told how long to wait for it, so that waiting can be interrupted by
    whatever event the caller listens to.
    """

    def __init__(self, rate: float, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"a token bucket needs a rate above 0 and a burst of at least 1, not {rate} and {burst}")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Take one token; returns the seconds to wait until it is there (0.0: now)."""
        with self._lock:
            now = self._clock()
            self._tokens = min(float(self._burst), self._tokens + (now - self._at) * self._rate)
            self._at = now
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._rate)

    def give_back(self) -> None:
        """Return a token that was taken and not used."""
        with self._lock:
            self._tokens = min(float(self._burst), self._tokens + 1.0)
