"""The publisher: one thread that watches the API server, one that writes to it until it holds what the driver wants.

Level-triggered: each round compares a whole pool with what is stored, whatever the reason for the round was. Nothing is
written or deleted before the first ``update``, and nothing is deleted by stopping.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from functools import partial

import msgspec

from kubeletplugin.api import JSON, DriverResources, DroppedFields, NullObserver, Observer, Pool, PublishFailure, Slice
from kubeletplugin.backoff import Backoff
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.clock import SYSTEM_CLOCK, Clock
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.publisher.cache import Change, SliceCache
from kubeletplugin.publisher.diff import Path, differences, feature_gates, without_positions
from kubeletplugin.publisher.features import Features, Wish, server_version
from kubeletplugin.publisher.plan import Owner, pool_problem, slice_of
from kubeletplugin.publisher.queue import PoolQueue, RepairPace
from kubeletplugin.publisher.scope import Scope
from kubeletplugin.publisher.writer import MovedError, PoolWriter, Stored, UnsafeError

logger = logging.getLogger(__name__)

_RANDOM = random.Random()  # noqa: S311 (spreads load, guards no secret)

PERMANENT = frozenset({400, 413, 422})
"""Answers that the same content will get again."""
RETRY_CAP = 30.0
REJECTED_RETRY = 600.0
"""Seconds after which refused content is offered again, for the sake of webhooks and policies that were mended."""
REPAIR_DELAY = 0.5
"""Seconds to let a foreign change settle; a collection delete is one event for each slice."""
SHORT_STREAM = 5.0
"""A server that ends watches sooner than this, in seconds, is asked again only after a pause: no hot loop."""
CONFLICT_RETRIES = 5
DETECT = ""
"""In the queue of pools: find out what the server keeps. No pool has an empty name."""
DETECT_AGAIN = 3600.0
"""Seconds; another flag of the same version leaves no trace that could be watched for."""


class Publisher:
    """Publishes the pools of one driver, on one node or for the whole cluster.

    Args:
        client: talks to the API server; needs list, watch, create, update and delete on resourceslices, get on nodes.
        driver_name: ``spec.driver`` of all slices.
        node_name: name of the Node object; the slices' owner and ``spec.nodeName``. ``None`` for devices that are not
            of one node: then each pool says where they can be reached.
        owner: whose slices they are where there is no node; ``None``: nobody's.
        only_pool: the one pool that this publisher cares for, where several publish for one driver. Its slices carry
            no node name; with ``node_name`` they still belong to the Node.
        observer: told about results, from the publisher's threads.
        repair_delay: seconds to let a foreign change settle.
        rejected_retry: seconds after which refused content is offered again.
        clock: the time.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        driver_name: str,
        node_name: str | None,
        owner: Owner | None = None,
        only_pool: str | None = None,
        observer: Observer | None = None,
        repair_delay: float = REPAIR_DELAY,
        rejected_retry: float = REJECTED_RETRY,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self._client = client
        self._scope = Scope(client, driver_name, node_name, only_pool)
        self._observer: Observer = observer or NullObserver()
        self._rejected_retry = rejected_retry
        self._lock = threading.Lock()
        self._wanted: DriverResources | None = None
        self._build: Callable[[Features], DriverResources] | None = None
        self._detected = False
        self._server = ""
        self._unsure = False
        self._cache = SliceCache()
        self._queue = PoolQueue(clock)
        self._pace = RepairPace(repair_delay, clock)
        self._writer = PoolWriter(client, self._cache, owner=self._scope.owner(owner), clock=clock)
        self._backoffs: dict[str, Backoff] = {}
        self._failing: set[str] = set()
        self._rejected: dict[str, Pool] = {}
        self._adopted: dict[tuple[str, int], tuple[Slice, Slice]] = {}
        self._reported: set[DroppedFields] = set()
        self._active: str | None = None
        self._touched = False
        self._asked: set[str] = set()
        self._listed = False
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch; returns at once, also when the API server cannot be reached."""
        for name, target in (("publisher-watch", self._watch), ("publisher-write", self._write)):
            thread = threading.Thread(target=target, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def update(self, wish: Wish) -> None:
        """Have exactly these pools published; slices of this driver and node in any other pool are deleted.

        A function is called in the publisher's thread once it is known what the server keeps, and again when that may
        be different: after an upgrade, after the server was away, and every hour. It must be quick.

        Raises:
            ValueError: the publisher cares for one pool only, and another one is among them.
        """
        if callable(wish):
            with self._lock:
                self._build, self._detected = wish, False
            self._queue.add(DETECT)
            return
        with self._lock:
            self._build = None
        self._failing.discard(DETECT)
        self._want(wish)

    def _want(self, resources: DriverResources) -> None:
        self._scope.check(resources)
        with self._lock:
            before = self._wanted
            self._wanted = resources
            names = set(resources.pools) | set(before.pools if before else ()) | self._cache.pools()
            for name in names:
                if name in self._rejected and self._rejected[name] == resources.pools.get(name):
                    continue  # the server would refuse it again
                self._rejected.pop(name, None)
                self._asked.add(name)
                self._queue.add(name)

    def synced(self, timeout: float | None) -> bool:
        """Wait until the API server holds what the last ``update`` asked for; False after ``timeout`` seconds."""
        return self._queue.wait_for(self._is_synced, timeout)

    def stop(self) -> None:
        """End both threads. The slices stay: the next instance goes on with them."""
        self._queue.close()
        self._client.interrupt(self._stop)
        for thread in self._threads:
            thread.join(timeout=10.0)

    def _is_synced(self) -> bool:
        if self._build is not None and not self._detected:
            return False
        return self._wanted is not None and self._listed and not self._failing and not self._queue.busy(ignoring=DETECT)

    # The watching thread.

    def _watch(self) -> None:
        backoff = Backoff(0.5, RETRY_CAP)
        broken = False
        while not self._stop.is_set():
            try:
                version = self._list(after_outage=broken)
                broken = False
                self._follow(version, backoff)
            except ApiError as error:
                if error.status == 410:
                    logger.info("the watch of ResourceSlices is too old, listing again")
                else:
                    broken = True
                    self._outage(_explain(error), error.status)
                self._clock.wait(self._stop, max(backoff.next(), error.retry_after or 0.0))
            except (ApiUnreachableError, CredentialsError) as error:
                broken = True
                self._outage(str(error), None)
                self._clock.wait(self._stop, backoff.next())
            except Exception:
                broken = True
                logger.exception("watching ResourceSlices failed, starting over")
                self._clock.wait(self._stop, backoff.next())

    def _list(self, *, after_outage: bool) -> str:
        items, version = self._scope.list()
        change = self._cache.replace(items, version)
        if after_outage or not self._listed:
            self._start_afresh()
        else:
            self._changed(change)
        self._queue.wake()
        return version

    def _start_afresh(self) -> None:
        """The server may be another one now (upgraded, other feature gates): all verdicts are open again."""
        self._writer.forget()
        with self._lock:
            self._rejected.clear()
            self._adopted.clear()
            for name in self._cache.pools() | set(self._wanted.pools if self._wanted else ()):
                self._queue.add(name)
            if self._build is not None:
                self._detected = False
                self._queue.add(DETECT)
            # Last, and under the lock: nobody may find us listed and idle before the work is in the queue.
            self._listed = True

    def _follow(self, version: str, backoff: Backoff) -> None:
        """Watch from ``version`` on, stream after stream, until one breaks."""
        while not self._stop.is_set():
            self._check_server()
            started = self._clock.monotonic()
            # Not all nodes shall come back in the same second.
            seconds = _RANDOM.uniform(240.0, 360.0)
            for event in self._scope.watch(version, self._stop, seconds):
                version = event.resource_version or version
                self._changed(self._cache.apply(event))
            if self._clock.monotonic() - started >= SHORT_STREAM:
                backoff.reset()
            else:
                self._clock.wait(self._stop, backoff.next())

    def _check_server(self) -> None:
        """Upgrades end watches, and nothing else says that there was one."""
        server = server_version(self._client)
        if self._server and server != self._server:
            logger.info("the API server is %s now, it was %s", server or "of unknown version", self._server)
            self._start_afresh()
        self._server = server

    def _changed(self, change: Change) -> None:
        """Somebody else touched our slices."""
        if change.lost:
            self._writer.distrust_node()
        with self._lock:
            for name in change.pools if self._wanted is not None else ():
                if name == self._active:
                    self._touched = True  # most likely our own write, seen before its answer came
                elif name not in self._rejected:
                    self._queue.add(name, self._pace.delay(name))

    def _outage(self, message: str, status: int | None) -> None:
        logger.warning("ResourceSlices cannot be watched: %s", message)
        if self._listed:
            return  # what we know still serves; a write that fails is reported by itself
        with self._lock:
            names = sorted(self._wanted.pools) if self._wanted else []
        for name in names:
            self._tell(partial(self._observer.publish_failed, PublishFailure(name, status, message, True)))

    # The writing thread.

    def _write(self) -> None:
        while (name := self._queue.take()) is not None:
            try:
                with self._lock:
                    ready = self._listed and self._wanted is not None and name != DETECT
                    self._active, self._touched = (name, False) if ready else (None, False)
                    detect = name == DETECT and self._listed and self._build is not None
                if detect:
                    self._detect()
                elif ready:
                    self._round(name)
                    self._look_again(name)
            finally:
                self._queue.done()

    def _detect(self) -> None:
        """Ask what the server keeps, and publish what the driver makes of it."""
        try:
            features = self._scope.features()
            with self._lock:
                build = self._build
            if build is not None:
                self._want(build(features))
        except ApiError as error:
            self._failed(DETECT, _explain(error), error.status, error.retry_after)
        except (ApiUnreachableError, CredentialsError) as error:
            self._failed(DETECT, str(error), None, None)
        except Exception as error:
            logger.exception("the driver cannot say what to publish; what is published stays")
            self._failed(DETECT, f"{type(error).__name__}: {error}", None, None)
        else:
            self._failing.discard(DETECT)
            self._backoffs.pop(DETECT, None)
            with self._lock:
                self._detected = self._build is build
            self._queue.add(DETECT, DETECT_AGAIN)

    def _look_again(self, name: str) -> None:
        """Events that came while we wrote the pool: ours as a rule, and then nothing is left to do."""
        with self._lock:
            self._active = None
            touched, pool = self._touched, self._wanted.pools.get(name) if self._wanted else None
            rejected = name in self._rejected
        if not touched or rejected or name in self._failing:
            return
        if pool is None:
            settled = not self._cache.pool(name)
        else:
            settled = self._writer.is_settled(name, self._effective(name, pool))
        if not settled:
            self._queue.add(name, self._pace.delay(name))

    def _round(self, name: str) -> None:
        with self._lock:
            asked = name in self._asked
            self._asked.discard(name)
        try:
            if self._unsure:
                self._refresh()
            writes = self._sync(name)
        except ApiError as error:
            self._unsure |= error.status >= 500
            self._failed(name, _explain(error), error.status, error.retry_after)
        except (ApiUnreachableError, CredentialsError, MovedError) as error:
            self._unsure |= isinstance(error, ApiUnreachableError)
            self._failed(name, str(error), None, None)
        except Exception as error:
            self._unsure = True
            logger.exception("publishing pool %s failed", name)
            self._failed(name, f"{type(error).__name__}: {error}", None, None)
        else:
            if writes and not asked:
                self._pace.count(name)
            if name not in self._rejected:
                self._failing.discard(name)
            self._backoffs.pop(name, None)

    def _refresh(self) -> None:
        """A write without an answer may have been carried out: look, or the same slice would be made twice."""
        self._changed(self._cache.replace(*self._scope.list()))
        self._unsure = False

    def _sync(self, name: str) -> int:
        """One comparison and what follows from it; returns the number of writes."""
        with self._lock:
            pool = self._wanted.pools.get(name) if self._wanted else None
        if pool is None:
            writes = self._again(lambda: self._writer.remove(name))
            if writes:
                self._tell(lambda: self._observer.published(name, slices=0, writes=writes))
            return writes
        problem = pool_problem(pool)
        if problem is not None:
            self._refused(name, pool, PublishFailure(name, None, f"pool {name}: {problem}", False))
            return 0
        try:
            writes = self._again(
                lambda: self._writer.write(name, self._effective(name, pool), self._stored(name, pool))
            )
        except ApiError as error:
            if error.status not in PERMANENT:
                raise
            self._refused(
                name, pool, PublishFailure(name, error.status, error.message + self._scope.missing(pool), False)
            )
            return 0
        except UnsafeError as error:
            self._dropped(name, error.index, error.missing)
            self._refused(name, pool, PublishFailure(name, None, str(error), False))
            return 0
        with self._lock:
            self._rejected.pop(name, None)
        self._tell(lambda: self._observer.published(name, slices=len(pool.slices), writes=writes))
        return writes

    def _again(self, attempt: Callable[[], int]) -> int:
        """Somebody else wrote in between: what changed has been read again, so try with that."""
        for _ in range(CONFLICT_RETRIES - 1):
            try:
                return attempt()
            except MovedError as error:
                logger.info("%s; trying again", error)
        return attempt()

    def _effective(self, name: str, pool: Pool) -> Pool:
        """The pool as this server can keep it."""
        pieces = []
        for index, piece in enumerate(pool.slices):
            wanted, stored = self._adopted.get((name, index), (None, piece))
            pieces.append(stored if wanted == piece else piece)
        return msgspec.structs.replace(pool, slices=tuple(pieces))

    def _stored(self, name: str, pool: Pool) -> Stored:
        """Called after each write: adopt what the server left out, or we would write it again for ever."""

        def stored(index: int, sent: JSON, answer: JSON) -> None:
            missing = differences(sent, answer)
            if not missing:
                return
            kept = slice_of(answer)
            with self._lock:
                self._adopted[name, index] = (pool.slices[index], kept)
            self._dropped(name, index, missing)

        return stored

    def _dropped(self, name: str, index: int, missing: list[Path]) -> None:
        dropped = DroppedFields(name, index, without_positions(missing), feature_gates(missing))
        if dropped in self._reported:
            return
        self._reported.add(dropped)
        logger.warning(
            "the API server did not keep %s of slice %d in pool %s; feature gates: %s",
            ", ".join(dropped.fields),
            dropped.slice_index,
            dropped.pool,
            ", ".join(dropped.feature_gates) or "unknown",
        )
        self._tell(lambda: self._observer.dropped(dropped))

    def _refused(self, name: str, pool: Pool, failure: PublishFailure) -> None:
        """The content is at fault: wait for other content, or for a long time."""
        logger.error("pool %s is refused: %s", name, failure.message)
        with self._lock:
            if self._wanted is not None and self._wanted.pools.get(name) == pool:
                self._rejected[name] = pool
                self._failing.add(name)
                self._queue.add(name, self._rejected_retry)
        self._tell(lambda: self._observer.publish_failed(failure))

    def _failed(self, name: str, message: str, status: int | None, retry_after: float | None) -> None:
        delay = max(self._backoffs.setdefault(name, Backoff(0.5, RETRY_CAP)).next(), retry_after or 0.0)
        self._failing.add(name)
        logger.warning("pool %s could not be published, trying again in %.1f s: %s", name, delay, message)
        self._queue.add(name, delay)
        self._tell(lambda: self._observer.publish_failed(PublishFailure(name, status, message, True)))

    def _tell(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            logger.exception("the observer failed")


def _explain(error: ApiError) -> str:
    if error.status == 404 and not error.details.get("name"):
        return f"{error.message}: resource.k8s.io/v1 is not served here; Kubernetes 1.34 or newer is needed"
    if error.status == 403:
        return f"{error.message}: check the ClusterRole and admission policies of this service account"
    return error.message
