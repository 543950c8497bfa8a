"""How long to wait before trying again: exponential, with jitter, capped."""

from __future__ import annotations

import random
from collections.abc import Callable

_RANDOM = random.Random()  # noqa: S311 (spreads load, guards no secret)
"""Our own: who seeds the module's for a repeatable run (a simulation, a property test) keeps it to himself."""


class Backoff:
    """``base`` seconds doubling up to ``cap``; each wait is between half and all of that, so that nodes spread out."""

    def __init__(self, base: float, cap: float, *, jitter: Callable[[], float] = _RANDOM.random) -> None:
        self._base = base
        self._cap = cap
        self._jitter = jitter
        self._failures = 0

    @property
    def failures(self) -> int:
        """Failures in a row so far."""
        return self._failures

    def next(self) -> float:
        """Count one failure; the seconds to wait now."""
        # 2**30 is far beyond any cap and keeps a long outage from growing the exponent for ever.
        whole = min(self._cap, self._base * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return whole * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """A success: start from ``base`` again."""
        self._failures = 0
