"""A handler that goes wrong on demand: fails, forgets, hangs or breaks around a driver that does not.

Wrap any handler in it to see how a kubelet, real or stood in for, and the library take it:

    faulty = FaultyHandler(driver)
    faulty.fail(PREPARE, times=2)
    with faulty.held(UNPREPARE): ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from kubeletplugin.api import Claim, ClaimRef, Handler, PrepareError, PrepareResult

PREPARE, UNPREPARE = "prepare", "unprepare"
FAULT_REASON = "Injected"

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """One call of the handler, as it came in."""

    kind: str
    """``prepare`` or ``unprepare``."""
    uids: tuple[str, ...]


@dataclass(slots=True)
class _Fault:
    kind: str
    what: str
    message: str
    uids: frozenset[str]
    left: int | None

    def concerns(self, kind: str, uid: str) -> bool:
        return self.kind == kind and self.left != 0 and (not self.uids or uid in self.uids)


class FaultyHandler:
    """Passes calls on to ``inner`` unless told otherwise. Safe for threads; without ``inner`` nothing has devices."""

    def __init__(self, inner: Handler | None = None) -> None:
        self._inner = inner
        self._changed = threading.Condition()
        self._faults: list[_Fault] = []
        self._held: set[str] = set()
        self._waiting = 0
        self.calls: list[HandlerCall] = []
        self.ended: list[HandlerCall] = []

    def fail(
        self, kind: str, *, times: int | None = None, uids: Sequence[str] = (), message: str = "injected failure"
    ) -> None:
        """Answer claims (those of ``uids``, or all) with an error, ``times`` calls long (None: until ``heal``)."""
        self._add(_Fault(kind, "fail", message, frozenset(uids), times))

    def forget(self, kind: str, *, times: int | None = None, uids: Sequence[str] = ()) -> None:
        """Leave claims out of the answer."""
        self._add(_Fault(kind, "forget", "", frozenset(uids), times))

    def fail_afterwards(self, kind: str, *, times: int | None = None, uids: Sequence[str] = ()) -> None:
        """Do the work and answer with an error all the same: the next try finds it done."""
        self._add(_Fault(kind, "late", "injected failure after the work", frozenset(uids), times))

    def crash(self, kind: str, *, times: int | None = None) -> None:
        """Raise an exception that no handler should."""
        self._add(_Fault(kind, "crash", "injected crash", frozenset(), times))

    def heal(self) -> None:
        """No more faults; held calls go on."""
        with self._changed:
            self._faults.clear()
            self._held.clear()
            self._changed.notify_all()

    @contextmanager
    def held(self, kind: str) -> Iterator[None]:
        """Inside the block calls of this kind hang; at its end they go on."""
        with self._changed:
            self._held.add(kind)
        try:
            yield
        finally:
            with self._changed:
                self._held.discard(kind)
                self._changed.notify_all()

    def count(self, kind: str, uid: str | None = None) -> int:
        """How many calls of this kind (about this claim) have come in."""
        with self._changed:
            return self._count(kind, uid)

    def wait_called(self, kind: str, count: int = 1, *, uid: str | None = None, timeout: float = 10.0) -> bool:
        """Waits until ``count`` calls have come in; ``False`` after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count(kind, uid) >= count, timeout)

    def wait_hanging(self, count: int = 1, *, timeout: float = 10.0) -> bool:
        """Waits until ``count`` calls hang in ``held``; ``False`` after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._waiting >= count, timeout)

    def wait_until(self, condition: Callable[[], bool], *, timeout: float = 10.0) -> bool:
        """Waits for whatever calls bring about: ``condition`` is looked at when one comes in and when one has ended."""
        with self._changed:
            return self._changed.wait_for(condition, timeout)

    def prepare(self, claims: Sequence[Claim]) -> Mapping[str, PrepareResult]:
        """As ``Handler.prepare``."""
        by_uid = {claim.ref.uid: claim for claim in claims}

        def work(uids: list[str]) -> Mapping[str, PrepareResult]:
            if self._inner is None:
                return dict.fromkeys(uids, ())
            return self._inner.prepare([by_uid[uid] for uid in uids])

        return self._call(PREPARE, list(by_uid), work)

    def unprepare(self, claims: Sequence[ClaimRef]) -> Mapping[str, PrepareError | None]:
        """As ``Handler.unprepare``."""
        by_uid = {ref.uid: ref for ref in claims}

        def work(uids: list[str]) -> Mapping[str, PrepareError | None]:
            if self._inner is None:
                return dict.fromkeys(uids)
            return self._inner.unprepare([by_uid[uid] for uid in uids])

        return self._call(UNPREPARE, list(by_uid), work)

    def _add(self, fault: _Fault) -> None:
        with self._changed:
            self._faults.append(fault)

    def _count(self, kind: str, uid: str | None) -> int:
        return sum(call.kind == kind and (uid is None or uid in call.uids) for call in self.calls)

    def _call(
        self, kind: str, uids: list[str], work: Callable[[list[str]], Mapping[str, _T]]
    ) -> Mapping[str, _T | PrepareError]:
        call = HandlerCall(kind, tuple(uids))
        with self._changed:
            self.calls.append(call)
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: kind not in self._held)
            self._waiting -= 1
            faults = self._take(kind, uids)
        try:
            if any(fault.what == "crash" for fault in faults.values()):
                raise RuntimeError("injected crash")
            failed = {uid for uid, fault in faults.items() if fault.what in ("fail", "forget")}
            answer: dict[str, _T | PrepareError] = dict(work([uid for uid in uids if uid not in failed]))
            for uid, fault in faults.items():
                if fault.what in ("fail", "late"):
                    answer[uid] = PrepareError(fault.message, reason=FAULT_REASON)
            return answer
        finally:
            with self._changed:
                self.ended.append(call)
                self._changed.notify_all()

    def _take(self, kind: str, uids: list[str]) -> dict[str, _Fault]:
        """The fault of each claim of this call; each fault that is used is used up by one."""
        found = {uid: fault for uid in uids for fault in reversed(self._faults) if fault.concerns(kind, uid)}
        for fault in {id(fault): fault for fault in found.values()}.values():
            if fault.left is not None:
                fault.left -= 1
        return found
