"""Kubernetes Events: what an operator sees with ``kubectl describe``. Best effort, never in anybody's way."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from kubeletplugin.api import JSON
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.ratelimit import TokenBucket

logger = logging.getLogger(__name__)

MAX_MESSAGE = 1024
"""Bytes of a message; the API server refuses longer ones."""
MAX_QUEUED = 256
MAX_REMEMBERED = 512
BURST_PER_OBJECT = 25
RATE_PER_OBJECT = 1.0 / 300.0
"""Events a second about one object after the burst, as in client-go: a fault that repeats must not flood etcd."""

_Key: TypeAlias = tuple[str, str, str, str, str, str, str]


class Regarding(msgspec.Struct, frozen=True):
    """The object that an event is about. ``namespace`` is empty for a cluster-scoped one."""

    kind: str
    name: str
    uid: str = ""
    namespace: str = ""
    api_version: str = "v1"

    @classmethod
    def of(cls, reference: JSON) -> Regarding:
        """From a reference (``apiVersion``, ``kind``, ``name``, ``uid``, ``namespace``) as it stands in documents."""
        return cls(
            kind=str(reference.get("kind", "")),
            name=str(reference.get("name", "")),
            uid=str(reference.get("uid", "")),
            namespace=str(reference.get("namespace", "")),
            api_version=str(reference.get("apiVersion", "v1")),
        )

    def reference(self) -> JSON:
        """As ``involvedObject``."""
        fields = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "namespace": self.namespace,
        }
        return {name: value for name, value in fields.items() if value}


class _Entry(msgspec.Struct, frozen=True):
    regarding: Regarding
    type: str
    reason: str
    message: str
    at: str

    @property
    def key(self) -> _Key:
        about = self.regarding
        return (about.kind, about.namespace, about.name, about.uid, self.type, self.reason, self.message)


class _Posted(msgspec.Struct):
    path: str
    count: int


class EventRecorder:
    """Posts core/v1 Events from a thread of its own; the same event again only counts up the first one.

    Args:
        client: needs create and patch on events.
        component: who reports, for example the driver's name.
        host: the node this runs on.
        on_drop: called for each event that is thrown away, with the cause (``queue``, ``rate``, ``error``).
    """

    def __init__(
        self, client: KubeClient, *, component: str, host: str, on_drop: Callable[[str], None] | None = None
    ) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._on_drop = on_drop
        self._queue: queue.Queue[_Entry | None] = queue.Queue(MAX_QUEUED)
        self._posted: OrderedDict[_Key, _Posted] = OrderedDict()
        self._buckets: OrderedDict[Regarding, TokenBucket] = OrderedDict()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def record(self, regarding: Regarding | JSON, type: str, reason: str, message: str) -> None:  # noqa: A002 (its name in the API)
        """Queue one event; returns at once. ``type`` is ``Normal`` or ``Warning``, ``reason`` a CamelCase word."""
        if type not in ("Normal", "Warning"):
            raise ValueError(f"the type of an event is Normal or Warning, not {type!r}")
        about = regarding if isinstance(regarding, Regarding) else Regarding.of(regarding)
        entry = _Entry(about, type, reason, _cut(message), _now())
        with self._lock:
            if self._closed:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="events", daemon=True)
                self._thread.start()
        try:
            self._queue.put_nowait(entry)
        except queue.Full:
            self._dropped("queue", entry)

    def stop(self, timeout: float = 5.0) -> None:
        """Post what is queued, for at most ``timeout`` seconds; events recorded later are thrown away."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is None:
            return
        end = time.monotonic() + timeout
        with contextlib.suppress(queue.Full):  # then the queue is emptied below
            self._queue.put(None, timeout=timeout)
            thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            self._empty()
            self._queue.put_nowait(None)

    def _empty(self) -> None:
        """Throw away what is queued, so that the thread finds the end of it."""
        while True:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                return
            if entry is not None:
                self._dropped("queue", entry)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            try:
                self._post(entry)
            except (ApiError, ApiUnreachableError, CredentialsError) as error:
                logger.warning("event %s about %s is lost: %s", entry.reason, entry.regarding.name, error)
                self._dropped("error", entry)
            except Exception:
                logger.exception("event %s about %s is lost", entry.reason, entry.regarding.name)
                self._dropped("error", entry)

    def _post(self, entry: _Entry) -> None:
        if not self._allowed(entry.regarding):
            self._dropped("rate", entry)
            return
        posted = self._posted.get(entry.key)
        if posted is not None:
            try:
                self._client.patch(posted.path, {"count": posted.count + 1, "lastTimestamp": entry.at})
            except ApiError as error:
                if error.status != 404:
                    raise
                # Events expire after an hour; this one begins anew.
                del self._posted[entry.key]
            else:
                posted.count += 1
                self._posted.move_to_end(entry.key)
                return
        self._create(entry)

    def _create(self, entry: _Entry) -> None:
        namespace = entry.regarding.namespace or "default"
        collection = f"/api/v1/namespaces/{namespace}/events"
        name = f"{entry.regarding.name[:230]}.{time.time_ns():x}"
        self._client.create(
            collection,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": entry.regarding.reference(),
                "type": entry.type,
                "reason": entry.reason,
                "message": entry.message,
                "firstTimestamp": entry.at,
                "lastTimestamp": entry.at,
                "count": 1,
                "source": {"component": self._component, "host": self._host},
                "reportingComponent": self._component,
                "reportingInstance": self._host,
            },
        )
        self._posted[entry.key] = _Posted(f"{collection}/{name}", 1)
        while len(self._posted) > MAX_REMEMBERED:
            self._posted.popitem(last=False)

    def _allowed(self, regarding: Regarding) -> bool:
        bucket = self._buckets.setdefault(regarding, TokenBucket(RATE_PER_OBJECT, BURST_PER_OBJECT))
        self._buckets.move_to_end(regarding)
        while len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        if bucket.take() > 0:
            bucket.give_back()
            return False
        return True

    def _dropped(self, cause: str, entry: _Entry) -> None:
        if cause != "error":
            logger.warning("event %s about %s is dropped: %s is full", entry.reason, entry.regarding.name, cause)
        if self._on_drop is not None:
            self._on_drop(cause)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _cut(message: str) -> str:
    """At most 1024 bytes, cut between characters."""
    return message.encode("utf-8", "replace")[:MAX_MESSAGE].decode("utf-8", "ignore")
