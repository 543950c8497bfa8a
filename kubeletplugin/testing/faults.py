"""A handle for tests and demonstrations to make the embedded API server misbehave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from kubeletplugin.testing.status import StatusError
from kubeletplugin.testing.store import Store


@dataclass(slots=True)
class _Failure:
    error: StatusError
    methods: frozenset[str]
    path: str
    left: int | None


@dataclass(slots=True)
class Faults:
    """Safe for threads. All methods take effect from the next request on."""

    store: Store
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _failures: list[_Failure] = field(default_factory=list)
    _latency: float = 0.0
    _watch_generation: int = 0
    _watch_ends: int = 0
    _losing: frozenset[str] = frozenset()
    _losses: int = 0

    def fail(
        self,
        status: int,
        reason: str,
        *,
        message: str = "injected",
        methods: tuple[str, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE"),
        path: str = "",
        times: int | None = 1,
        retry_after: int | None = None,
    ) -> None:
        """Answer requests whose path contains ``path`` with an error, ``times`` times (None: until ``clear``)."""
        with self._lock:
            error = StatusError(status, reason, message, None, retry_after)
            self._failures.append(_Failure(error, frozenset(methods), path, times))

    def lose_answers(self, *, methods: tuple[str, ...] = ("POST", "PUT", "PATCH", "DELETE"), times: int = 1) -> None:
        """Carry the next ``times`` requests of these methods out, and break the connection instead of answering.

        Dry runs are answered: there is nothing to carry out.
        """
        with self._lock:
            self._losing, self._losses = frozenset(methods), times

    def delay(self, seconds: float) -> None:
        """Let every request wait before it is served."""
        with self._lock:
            self._latency = seconds

    def clear(self) -> None:
        """No more failures and delays."""
        with self._lock:
            self._failures.clear()
            self._latency = 0.0
            self._losses = 0
        self.store.release_watches()

    def close_watches(self) -> None:
        """Break all watch streams that are open now, in the middle of the stream."""
        with self._lock:
            self._watch_generation += 1
        with self.store.changed:
            self.store.changed.notify_all()

    def end_watches(self) -> None:
        """End all watch streams that are open now as a server does that is about to be replaced: without an error."""
        with self._lock:
            self._watch_ends += 1
        with self.store.changed:
            self.store.changed.notify_all()

    def expire_watches(self) -> None:
        """Forget the history: a watch that is opened again from an old version gets 410."""
        self.store.compact()
        self.close_watches()

    def hold_watches(self) -> None:
        """Let watches lag: nothing is delivered until ``clear``."""
        self.store.hold_watches()

    @property
    def latency(self) -> float:
        """Seconds that a request has to wait."""
        with self._lock:
            return self._latency

    @property
    def watch_ends(self) -> int:
        """Changes when the open watches are to end in order."""
        with self._lock:
            return self._watch_ends

    @property
    def watch_generation(self) -> int:
        """Changes when the open watches are to break."""
        with self._lock:
            return self._watch_generation

    def loses(self, method: str, path: str) -> bool:
        """Whether the answer to this request is to be lost."""
        with self._lock:
            lost = self._losses > 0 and method in self._losing and "dryRun" not in path
            self._losses -= lost
            return lost

    def take(self, method: str, path: str) -> StatusError | None:
        """The error for this request, if there is one."""
        with self._lock:
            for failure in self._failures:
                if method in failure.methods and failure.path in path and failure.left != 0:
                    if failure.left is not None:
                        failure.left -= 1
                    return failure.error
        return None
