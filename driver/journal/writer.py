"""The writing end of the journal: a bounded queue, and one thread that takes from it.

Whoever records something puts it into memory and goes on: no caller waits for the disk, and none fails because of it.
What finds no room in the queue is counted, and told by a ``gap`` record as soon as there is room. A disk that is full
or read-only is tried again; what the queue holds is kept meanwhile. Written lines survive the end of this process at
any moment; against a power cut they are synced a few seconds later, because a journal must not slow down a Prepare
that syncs its own record on the same disk.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from driver import statefile
from driver.journal.records import ClaimId, Kind, Record, encode, plain
from driver.journal.ring import LockedError, Ring, Tail
from driver.journal.state import JournalState, apply, replay

log = logging.getLogger(__name__)

MAX_BYTES = 16 * 1024 * 1024
QUEUED = 8192
RETRY_SECONDS = 5.0
SYNC_SECONDS = 5.0
LINGER_SECONDS = 0.02
"""Whoever records something is about to answer the kubelet; writing at once would only be in its way."""
JUMP_SECONDS = 1.0
"""The wall clock moved by more than this against the clock that runs since the boot: told by a ``gap``."""


class Draft(msgspec.Struct, frozen=True):
    """A record without its number and time."""

    kind: Kind
    device: str | None = None
    claim: ClaimId | None = None
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)


class Clock(msgspec.Struct, frozen=True):
    """Where times come from."""

    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    boot: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    """Nanoseconds since the boot, sleep included."""


class _Item(msgspec.Struct, frozen=True):
    make: Callable[[JournalState], Iterable[Draft]]
    wall: float
    mono: int


class Journal:
    """One node's journal. All methods may be called from any thread and return at once, ``close`` apart.

    Args:
        folder: the journal's own; made when the first record is written.
        boot_id: of the running system; None: unknown.
        max_bytes: of all files together.
        truth: what really holds, given what the records add up to, which stands wherever nobody can tell: asked when
            records were lost, and when an older journal is taken up. Its ``agent`` is ignored. None: the records' word.
        lost: told how many records were dropped and why (``queue``, ``error``, ``end``), and of failed writes
            (``write``).
        written: called with every record once it is in the file, in the writer's thread.
        clock: for tests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        boot_id: str | None,
        max_bytes: int = MAX_BYTES,
        queued: int = QUEUED,
        truth: Callable[[JournalState], JournalState | None] = lambda _known: None,
        lost: Callable[[str, int], None] = lambda _cause, _count: None,
        written: Callable[[Record], None] = lambda _record: None,
        clock: Clock | None = None,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        self._folder = folder
        self._boot_id = boot_id or ""
        self._max_bytes = max_bytes
        self._queued = queued
        self._truth = truth
        self._lost = lost
        self._written = written
        self._clock = clock or Clock()
        self._retry_seconds = retry_seconds
        self._condition = threading.Condition()
        self._queue: deque[_Item] = deque()
        self._dropped: Counter[str] = Counter()
        self._closing = False
        self._end_asked = threading.Event()
        self._busy = False
        self._ring: Ring | None = None
        self._state = JournalState()
        self._seq = 1
        self._offset: float | None = None
        self._full_at = 0
        self._problem: str | None = None
        self._dirty_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self) -> None:
        """Begin to write; what was recorded before waits in the queue."""
        self._thread.start()

    @property
    def problem(self) -> str | None:
        """Why nothing is written at the moment; None while all is well."""
        return self._problem

    def record(
        self,
        kind: Kind,
        *,
        device: str | None = None,
        claim: ClaimId | None = None,
        data: Mapping[str, Any] | None = None,
    ) -> None:
        """Put one record down. ``data`` is what JSON can hold; anything else becomes text."""
        draft = Draft(kind, device, claim, dict(data or {}))
        self.compare(lambda _state: (draft,))

    def compare(self, make: Callable[[JournalState], Iterable[Draft]]) -> None:
        """Put down what ``make`` finds different from the journal's own state when its turn comes, in writing order.

        For what is looked at again and again: the same sight twice leaves one record, also over a restart.
        """
        item = _Item(make, self._clock.wall(), self._clock.boot())
        with self._condition:
            if self._closing or len(self._queue) >= self._queued:
                cause = "end" if self._closing else "queue"
                self._dropped[cause] += 1
                self._lost(cause, 1)
                return
            self._queue.append(item)
            self._condition.notify_all()

    def settled(self, timeout: float) -> bool:
        """Wait until everything recorded so far is in the file; False after ``timeout`` seconds."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._queue and not self._busy, timeout)

    def state(self) -> JournalState:
        """What the written records add up to."""
        with self._condition:
            return self._state.copy()

    def close(self, timeout: float = 5.0) -> bool:
        """Write and sync what is queued, for at most ``timeout`` seconds. False: not all of it was written."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._end_asked.set()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        with self._condition:
            left = len(self._queue)
        if left:
            self._lost("end", left)
        return not left and not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._queue or self._closing, self._sync_in())
                if self._closing and not self._queue:
                    break
                self._busy = bool(self._queue)
            self._end_asked.wait(LINGER_SECONDS)
            try:
                self._step()
            except (OSError, LockedError) as error:
                self._failed(error)
                if self._rest():
                    break
            finally:
                with self._condition:
                    self._busy = False
                    self._condition.notify_all()
        self._end()

    def _step(self) -> None:
        """Write what is queued, one item after the other; each leaves the queue once it is in the file."""
        with self._condition:
            count = len(self._queue)
        for _ in range(count):
            item = self._queue[0]  # only this thread takes from the queue
            self._write(self._ring or self._open(item), item)
            with self._condition:
                self._queue.popleft()
            self._healed()
        if not count and self._ring is not None:
            self._ring.sync()
            self._dirty_since = None

    def _healed(self) -> None:
        if self._problem is not None:
            log.info("the journal in %s is written again", self._folder)
            self._problem = None

    def _rest(self) -> bool:
        """After a failure: wait before the next attempt. True: the end has come, there is none."""
        with self._condition:
            return self._condition.wait_for(lambda: self._closing, self._retry_seconds)

    def _sync_in(self) -> float | None:
        if self._dirty_since is None:
            return None
        return max(0.0, self._dirty_since + SYNC_SECONDS - time.monotonic())

    def _failed(self, error: Exception) -> None:
        self._lost("write", 1)
        problem = f"{error}; {statefile.remedy(error)}" if isinstance(error, OSError) else str(error)
        if problem != self._problem:
            log.warning(
                "the journal in %s cannot be written: %s; it is tried again every %g s, claims are not affected",
                self._folder,
                problem,
                self._retry_seconds,
            )
        self._problem = problem
        if self._ring is not None:
            self._ring.close()
        self._ring = None
        self._dirty_since = None

    def _end(self) -> None:
        if self._ring is None:
            return
        try:
            self._ring.sync()
        except OSError as error:
            self._failed(error)
            return
        self._ring.close()
        self._ring = None

    # what is written

    def _open(self, first: _Item) -> Ring:
        """Take up the journal where it ends, and say what may be missing there."""
        ring = Ring(self._folder, self._max_bytes)
        try:
            tail = ring.open_tail()
            again = self._seq > 1
            if not again:
                with self._condition:
                    self._state = replay(tail.records)
                self._offset = _offset(tail.last, self._boot_id)
            self._seq = max(self._seq, tail.next_seq)
            self._ring = ring
            gaps = [] if again else _gaps(tail, self._boot_id)
            self._full_at = ring.file_bytes + len(msgspec.json.encode(self._state))
            if not ring.is_open:
                self._begin(ring, first)
            if gaps:
                self._put(ring, [(Draft(Kind.GAP, data=gap), first) for gap in gaps], truth=True)
        except BaseException:
            self._ring = None
            ring.close()
            raise
        return ring

    def _begin(self, ring: Ring, at: _Item) -> None:
        ring.begin(self._seq)
        self._put(ring, [(Draft(Kind.STATE, data=self._state.as_data()), at)])
        # A file holds so much beside its state, however large that is.
        self._full_at = ring.size + ring.file_bytes
        ring.prune()

    def _write(self, ring: Ring, item: _Item) -> None:
        if self._dropped:
            with self._condition:
                dropped = dict(self._dropped)
            self._put(ring, [(Draft(Kind.GAP, data={"cause": "dropped", **dropped}), item)], truth=True)
            with self._condition:
                self._dropped -= Counter(dropped)
        offset, jump = self._jump(item)
        gaps = [Draft(Kind.GAP, data={"cause": "clock", "seconds": jump})] if jump else []
        if ring.size >= self._full_at:
            self._begin(ring, item)
        self._put(ring, [(draft, item) for draft in (*gaps, *self._made(item))])
        self._offset = offset

    def _made(self, item: _Item) -> list[Draft]:
        try:
            return list(item.make(self._state))
        except Exception:
            log.exception("a record of the journal cannot be made")
            self._lost("error", 1)
            return []

    def _put(self, ring: Ring, drafts: list[tuple[Draft, _Item]], *, truth: bool = False) -> None:
        """Append records; with ``truth``, followed by what really holds."""
        if truth and drafts and (real := self._real()) is not None:
            drafts = [*drafts, (Draft(Kind.STATE, data=real.as_data()), drafts[-1][1])]
        records = [self._record(self._seq + number, draft, item) for number, (draft, item) in enumerate(drafts)]
        if not records:
            return
        ring.append(b"".join(encode(record) for record in records))
        if self._dirty_since is None:
            self._dirty_since = time.monotonic()
        self._seq += len(records)
        with self._condition:
            for record in records:
                apply(self._state, record)
        for record in records:
            self._written(record)

    def _real(self) -> JournalState | None:
        try:
            real = self._truth(self.state())
        except Exception:
            log.exception("the present state cannot be told to the journal")
            return None
        if real is not None:
            real.agent = self.state().agent
        return real

    def _record(self, seq: int, draft: Draft, item: _Item) -> Record:
        # A state is made of what records held: cutting it anew could only make it another one.
        data = draft.data if draft.kind is Kind.STATE else plain(draft.data)
        wall = datetime.fromtimestamp(item.wall, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        return Record(seq, wall, item.mono, self._boot_id, draft.kind.value, draft.device, draft.claim, data)

    def _jump(self, item: _Item) -> tuple[float, float | None]:
        """How far the wall clock is ahead of the boot's, and by how much that has changed; None: hardly."""
        offset = item.wall - item.mono / 1e9
        if self._offset is None or abs(offset - self._offset) <= JUMP_SECONDS:
            return offset, None
        return offset, round(offset - self._offset, 3)


def _offset(last: Record | None, boot_id: str) -> float | None:
    """How far the wall clock was ahead of the boot's at the last record of this boot."""
    if last is None or last.boot != boot_id or not boot_id:
        return None
    return datetime.fromisoformat(last.wall).timestamp() - last.mono / 1e9


def _gaps(tail: Tail, boot_id: str) -> list[dict[str, Any]]:
    """Why something may be missing at the place where this journal is taken up."""
    gaps: list[dict[str, Any]] = []
    if tail.damaged:
        gaps.append({"cause": "damaged", "lines": tail.damaged})
    if tail.torn:
        gaps.append({"cause": "torn", "bytes": tail.torn})
    if tail.last is not None and tail.last.kind != Kind.AGENT_STOP:
        # What was in the memory of the agent that ended without a word, or not yet on the disk at a power cut.
        gaps.append({"cause": "killed" if tail.last.boot == boot_id else "reboot"})
    return gaps
