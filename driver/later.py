"""News for a part of the agent that is not there yet: kept in order, and told once it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """Keeps calls on a ``T`` until there is one, then passes them on. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Callable[[T], None]] = []
        self._target: T | None = None
        self._never = False

    def tell(self, call: Callable[[T], None]) -> None:
        """Do ``call`` with the target, now or once it is there."""
        with self._lock:
            if self._target is None:
                if not self._never:
                    self._waiting.append(call)
                return
            target = self._target
        call(target)

    def give_up(self) -> None:
        """There will be none: forget what waits, and all that comes."""
        with self._lock:
            self._never = True
            self._waiting.clear()

    def attach(self, target: T) -> None:
        """From now on calls go to ``target``; those that waited go first."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
            for call in waiting:
                call(target)
            self._target = target
