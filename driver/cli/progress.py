"""Says on standard error what takes long: nothing for two seconds, then a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

_SILENT_SECONDS = 2.0
_EVERY_SECONDS = 1.0


class Progress:
    """Called with what is being done and how much of it is done; prints one line a second once two have passed.

    Args:
        stream: where to; None takes standard error.
        clock: seconds that only grow.
    """

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._next = clock() + _SILENT_SECONDS

    def __call__(self, what: str, done: int) -> None:
        """Take note, and say it when it is time."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _EVERY_SECONDS
        count = f" ({done})" if done else ""
        print(f"... {what}{count}", file=self._stream or sys.stderr, flush=True)
