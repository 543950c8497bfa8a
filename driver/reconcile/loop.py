"""The thread that finds out which claims are gone, and unprepares them: those that were deleted while the node was off,
by force, or with their namespace, or made anew under the same name, and that the kubelet did not come back for.

A watch of each claim says so at once (``driver.reconcile.watches``); a look at all of them every few minutes makes up
for whatever a watch misses. Neither acts: a claim that was found gone has a grace in which the kubelet's own Unprepare
goes first, and then must be found gone once more, by an answer that comes from etcd.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from driver.prepare import ClaimError, ClaimRecord, ClaimRef
from driver.reconcile.verdict import Reader, UnknownError, judged, why_gone
from driver.reconcile.watches import Document

log = logging.getLogger(__name__)

GRACE_SECONDS = 60.0
"""Between the look that finds a claim gone and the one that acts on it."""
SETTLE_SECONDS = 10.0
"""A claim is watched once it has been prepared for so long: those that come and go cost no watch."""


_News: TypeAlias = tuple[ClaimRef, Document | None]


class Swept(msgspec.Struct, frozen=True):
    """One claim that was unprepared, or could not be."""

    ref: ClaimRef
    why: str
    error: str | None


class Watches(Protocol):
    """``ClaimWatches`` is one."""

    def follow(self, refs: Sequence[ClaimRef]) -> None:
        """Watch these claims and no others."""

    def due(self) -> float | None:
        """When ``follow`` is to be called again."""

    def stop(self) -> None:
        """End them."""


class _Gone(msgspec.Struct):
    """A claim that was found gone."""

    ripe: float
    """When the grace is over."""
    again: float
    """When it is to be looked at again."""
    said: str | None = None
    """Why it could not be unprepared, as told last."""


class Reconciler:
    """The thread that looks. ``seen``, ``changed`` and ``turned`` may be called from any thread.

    Args:
        reader: the API server.
        records: the claims that are prepared, or under way.
        unprepare: undoes claims.
        told: called with what was done.
        held: why the devices of a claim that is gone must not be let go of now; None: they may.
        period: seconds between two looks at all claims.
        grace: seconds between finding a claim gone and acting on it.
        settle: seconds for which a claim must have been there before it is watched.
    """

    def __init__(
        self,
        reader: Reader,
        records: Callable[[], Sequence[ClaimRecord]],
        unprepare: Callable[[Sequence[ClaimRef]], Mapping[str, ClaimError | None]],
        *,
        driver_name: str,
        pool_name: str,
        told: Callable[[Swept], None] = lambda _swept: None,
        held: Callable[[ClaimRef], str | None] = lambda _ref: None,
        period: float,
        grace: float = GRACE_SECONDS,
        settle: float = SETTLE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._records = records
        self._unprepare = unprepare
        self._names = driver_name, pool_name
        self._told = told
        self._held = held
        self._period = period
        self._grace = grace
        self._settle = settle
        self._clock = clock
        self._watches: Watches | None = None
        self._gone: dict[str, _Gone] = {}
        self._known_since: dict[str, float] = {}
        self._unknown: frozenset[str] = frozenset()
        self._look_at = clock()
        self._condition = threading.Condition()
        self._news: dict[str, _News] = {}
        self._asked = False
        self._due = self._soon = math.inf
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)

    def start(self, watches: Watches | None = None) -> None:
        """Begin with a look at once.

        Args:
            watches: tell of claims as they change; None: only looks do.
        """
        self._watches = watches
        self._thread.start()

    def stop(self, timeout: float) -> None:
        """End; a look under way is left behind."""
        with self._condition:
            self._stopping.set()
            self._condition.notify_all()
        if self._watches is not None:
            self._watches.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout)

    # what comes in

    def seen(self, ref: ClaimRef, document: Document | None) -> None:
        """The API server has this under the claim's name; None: nothing."""
        with self._condition:
            self._news[ref.uid] = ref, document
            self._condition.notify_all()

    def turned(self) -> None:
        """A watch was opened, or has ended."""
        with self._condition:
            self._asked = True
            self._condition.notify_all()

    def changed(self) -> None:
        """Claims were prepared or unprepared. However often that is, the thread looks at it once in the settling
        time."""
        wanted = self._clock() + self._settle
        with self._condition:
            if wanted < self._soon:
                self._soon = wanted
                if wanted < self._due:
                    self._condition.notify_all()

    # the thread's work

    def step(self) -> float:
        """Do what is due.

        Returns:
            When the next step is due, by the clock.
        """
        with self._condition:
            news, self._news, self._asked, self._soon = self._news, {}, False, math.inf
        records = {record.ref.uid: record for record in self._records()}
        now = self._clock()
        for gone in self._gone.keys() - records.keys():
            del self._gone[gone]
        self._known_since = {uid: self._known_since.get(uid, now) for uid in records}
        self._take(news, records, now)
        if now >= self._look_at:
            self._look_at = now + self._period
            self.look()
        else:
            self.look([records[uid] for uid, one in self._gone.items() if now >= one.again])
        return min([self._look_at, *(one.again for one in self._gone.values()), *self._watch()])

    def look(self, records: Sequence[ClaimRecord] | None = None) -> None:
        """Ask about claims (all by default), and unprepare those that have been gone for the grace."""
        unknown: dict[str, str] = {}
        for record in self._records() if records is None else records:
            if self._stopping.is_set():
                return
            ref, now = record.ref, self._clock()
            gone = self._gone.get(ref.uid)
            ripe = gone is not None and now >= gone.ripe
            try:
                why = why_gone(self._reader, ref, *self._names, cached=not ripe)
            except UnknownError as error:
                unknown[ref.uid] = str(error)
                if gone is not None and ripe:
                    gone.again = now + self._pause
                continue
            self._judge(ref, why, now)
            if ripe and gone is not None and why is not None:
                self._sweep(ref, why, gone)
        self._say_unknown(unknown, complete=records is None)

    @property
    def _pause(self) -> float:
        return min(self._period, self._grace)

    def _judge(self, ref: ClaimRef, why: str | None, now: float) -> None:
        if why is None:
            self._gone.pop(ref.uid, None)
        elif ref.uid not in self._gone:
            log.info("claim %s is %s by the API server's word; the kubelet may unprepare it now", ref, why)
            self._gone[ref.uid] = _Gone(now + self._grace, now + self._grace)

    def _take(self, news: Mapping[str, _News], records: Mapping[str, ClaimRecord], now: float) -> None:
        for uid, (ref, document) in news.items():
            if uid not in records:
                continue
            try:
                self._judge(ref, judged(document, ref, *self._names), now)
            except UnknownError as error:
                log.info("a watch says something of claim %s that is not understood: %s", ref, error)

    def _watch(self) -> Sequence[float]:
        """Have the claims watched that have settled, the oldest first; gives when there is more to do."""
        if self._watches is None:
            return ()
        now = self._clock()
        records = {record.ref.uid: record for record in self._records()}  # without those that were unprepared just now
        settled = {uid: since + self._settle for uid, since in self._known_since.items() if uid in records}
        ready = sorted((at, uid) for uid, at in settled.items() if at <= now)
        self._watches.follow([records[uid].ref for _, uid in ready])
        due = self._watches.due()
        later = [at for at in settled.values() if at > now]
        return later if due is None else [*later, due]

    def _sweep(self, ref: ClaimRef, why: str, gone: _Gone) -> None:
        """Unprepare one claim: at once behind the answer about it, so that it cannot come back in between."""
        error = self._held(ref)
        if error is None:
            answer = self._unprepare([ref]).get(ref.uid)
            error = None if answer is None else str(answer)
        if error is None:
            self._gone.pop(ref.uid, None)
            log.info("claim %s was unprepared: the API server says it is %s", ref, why)
        else:
            gone.again = self._clock() + self._pause
            if error == gone.said:
                return
            gone.said = error
            log.warning("claim %s is %s by the API server's word and cannot be unprepared: %s", ref, why, error)
        self._told(Swept(ref, why, error))

    def _say_unknown(self, unknown: Mapping[str, str], *, complete: bool) -> None:
        """Once for each claim and silence: an API server that is away is no news every few minutes."""
        for uid in unknown.keys() - self._unknown:
            log.info("whether claim uid %s still exists cannot be found out: %s", uid, unknown[uid])
        self._unknown = frozenset(unknown) if complete else self._unknown | unknown.keys()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                due = self.step()
            except Exception:
                log.exception("looking for claims that are gone failed; it is tried again")
                due = self._clock() + self._pause
            with self._condition:
                self._due = due
                while not (self._news or self._asked or self._stopping.is_set()):
                    left = min(due, self._soon) - self._clock()
                    if left <= 0:
                        break
                    self._condition.wait(left)
