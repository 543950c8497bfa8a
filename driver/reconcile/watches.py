"""One watch for each claim that is prepared here, so that the end of a claim is known at once.

Why for each claim: nothing selects the claims of a node. All claims of the cluster, or of a namespace, would be sent to
each node at each of their changes. A watch of one name in one namespace costs the API server nothing but its
connection: its watch cache hands an event only to the watchers of that name (apiserver's cacher, ``namespacedName``).
So the number of them is bounded; claims beyond it wait for the periodic look, as all do while there is no watch.

A stream is opened behind a list of the same name from the server's memory, so that nothing between the two is missed.
When it ends it is opened anew, list first. Streams that fail share one pace: a server that is away is asked by one of
them at a time.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from driver.prepare import ClaimRef
from driver.reconcile.verdict import CACHED, TIMEOUT, Reader, UnknownError, path_of
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.backoff import Backoff
from kubeletplugin.client import WatchEvent
from kubeletplugin.credentials import CredentialsError

log = logging.getLogger(__name__)

STREAM_SECONDS = (1200.0, 2400.0)
"""How long one stream lasts; not all nodes shall come back in the same minute."""
FIRM_SECONDS = 5.0
"""A stream that lasted so long shows that the server is well."""
REFUSED_SECONDS = 300.0
"""Without the right to list and watch claims it is tried again as seldom as this."""
_RANDOM = random.Random()  # noqa: S311 (spreads load, guards no secret)

Document = Mapping[str, Any]


class Client(Reader, Protocol):
    """What is needed of the API server; ``KubeClient`` has it."""

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
        timeout_seconds: float = 300.0,
    ) -> Iterator[WatchEvent]:
        """The events of one stream."""

    def interrupt(self, stop: threading.Event) -> None:
        """End the streams that were opened with that event."""


class _Stream:
    """One claim's."""

    def __init__(self, ref: ClaimRef, began: float) -> None:
        self.ref = ref
        self.began = began
        self.listed: float | None = None
        """When the server had answered; None: not yet."""
        self.stop = threading.Event()

    def is_firm(self, now: float) -> bool:
        return self.listed is not None and now - self.listed >= FIRM_SECONDS


class ClaimWatches:
    """See the module. ``follow``, ``due`` and ``stop`` are for one thread; ``seen`` and ``turned`` are called from the
    streams' own.

    Args:
        client: the API server.
        seen: told what the server has under a claim's name now: the document, or None for nothing.
        turned: a stream was opened, or has ended: ``follow`` is to be called.
        limit: of streams.
    """

    def __init__(
        self,
        client: Client,
        seen: Callable[[ClaimRef, Document | None], None],
        turned: Callable[[], None],
        *,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._seen = seen
        self._turned = turned
        self._limit = limit
        self._clock = clock
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._backoff = Backoff(1.0, 60.0)
        self._failed_at = -1.0
        self._failed_uid = ""
        self._not_before = 0.0
        self._missing = False
        self._problem: str | None = None

    @property
    def watched(self) -> frozenset[str]:
        """The UIDs of claims that have a stream, or for which one is being opened."""
        with self._lock:
            return frozenset(self._streams)

    def follow(self, refs: Sequence[ClaimRef]) -> None:
        """Watch these claims, the first ones where there are more than streams, and no others."""
        wanted = {ref.uid: ref for ref in refs if _has_a_path(ref)}
        now = self._clock()
        with self._lock:
            over = [self._streams.pop(uid) for uid in self._streams.keys() - wanted.keys()]
            if any(one.is_firm(now) for one in self._trials()):
                self._well()
            room = self._limit - len(self._streams)
            missing = [ref for uid, ref in wanted.items() if uid not in self._streams][: max(0, room)]
            opened = self._allowed(missing, now)
            for ref in opened:
                self._open(ref, now)
            self._missing = len(opened) < len(missing)
        for one in over:
            self._client.interrupt(one.stop)

    def due(self) -> float | None:
        """When ``follow`` is to be called again although nothing is new; None: not at all."""
        with self._lock:
            if not self._missing:
                return None
            trials = self._trials()
            if not trials:
                return self._not_before
            firm = [one.listed + FIRM_SECONDS for one in trials if one.listed is not None]
            return min(firm, default=None)

    def stop(self) -> None:
        """End all streams; what hangs is left behind."""
        with self._lock:
            streams, self._streams, self._limit = list(self._streams.values()), {}, 0
        for one in streams:
            self._client.interrupt(one.stop)

    # called with the lock held

    def _trials(self) -> list[_Stream]:
        """Streams that were opened after the last failure."""
        return [one for one in self._streams.values() if one.began > self._failed_at]

    def _allowed(self, missing: Sequence[ClaimRef], now: float) -> Sequence[ClaimRef]:
        """Which may be opened now: all while the server is well; else one that tries, and not the one that failed
        last, where there is another."""
        if not self._backoff.failures:
            return missing
        if now < self._not_before or self._trials():
            return ()
        return sorted(missing, key=lambda ref: ref.uid == self._failed_uid)[:1]

    def _open(self, ref: ClaimRef, now: float) -> None:
        one = self._streams[ref.uid] = _Stream(ref, now)
        threading.Thread(target=self._run, args=(one,), name="claim-watch", daemon=True).start()

    def _well(self) -> None:
        self._backoff.reset()
        if self._problem is not None:
            log.info("claims are watched again")
            self._problem = None

    def _failed(self, one: _Stream, problem: str, pause: float, now: float) -> None:
        self._failed_at, self._failed_uid = now, one.ref.uid
        self._not_before = now + max(self._backoff.next(), pause)
        if self._problem is None:
            log.info("claim %s cannot be watched, the look at all claims goes on: %s", one.ref, problem)
        self._problem = problem

    # in a stream's thread

    def _run(self, one: _Stream) -> None:
        problem, pause = "the server ended the stream at once", 0.0
        try:
            self._watch(one)
        except ApiError as error:
            problem, pause = str(error), error.retry_after or (REFUSED_SECONDS if error.status in (403, 404) else 0.0)
        except (ApiUnreachableError, CredentialsError) as error:
            problem = str(error)
        except Exception as error:
            log.exception("watching claim %s failed; it is tried again", one.ref)
            problem = f"{type(error).__name__}: {error}"
        self._ended(one, problem, pause)

    def _watch(self, one: _Stream) -> None:
        collection, name = path_of(one.ref).rsplit("/", 1)
        query = {"fieldSelector": f"metadata.name={name}"}
        listed = self._client.get(collection, query={**query, **CACHED}, timeout=TIMEOUT)
        items = listed.get("items")
        found = items[0] if isinstance(items, list) and items else None
        version = str(listed.get("metadata", {}).get("resourceVersion", ""))
        with self._lock:
            one.listed = self._clock()
        self._say(one, found)
        self._turned()
        seconds = _RANDOM.uniform(*STREAM_SECONDS)
        for event in self._client.watch(
            collection, query={**query, "resourceVersion": version}, stop=one.stop, timeout_seconds=seconds
        ):
            if event.type != "BOOKMARK":
                self._say(one, None if event.type == "DELETED" else event.object)

    def _say(self, one: _Stream, document: Document | None) -> None:
        if not one.stop.is_set():
            self._seen(one.ref, document)

    def _ended(self, one: _Stream, problem: str, pause: float) -> None:
        now = self._clock()
        with self._lock:
            if self._streams.get(one.ref.uid) is not one:
                return  # nobody wants it any more
            del self._streams[one.ref.uid]
            if pause or not one.is_firm(now):
                self._failed(one, problem, pause, now)
        self._turned()


def _has_a_path(ref: ClaimRef) -> bool:
    """Whether the API server can be asked about it; a record that was made up from a CDI file may have no name."""
    try:
        path_of(ref)
    except UnknownError:
        return False
    return True
