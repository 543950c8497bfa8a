"""Events of the Kubernetes API: what a person sees under ``kubectl describe``. Written by a thread of their own.

Rules of client-go's recorder are kept where they matter to users: the same event again raises ``count`` on the one
that is there instead of adding another; a flood is cut off; nobody who records an event ever waits for the server.
"""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

from kubeletplugin.api import JSON
from kubeletplugin.client import STRATEGIC_PATCH, ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.ratelimit import TokenBucket

log = logging.getLogger(__name__)

MAX_MESSAGE = 1024
"""Bytes of a message (validation of core/v1 Event)."""
MAX_WAITING = 256
REMEMBERED = 1024
_BURST = 25
_RATE = 1.0 / 10
"""Sustained events per second; client-go's spam filter allows 1 in 5 minutes per object, we have one object."""


@dataclass(frozen=True, slots=True)
class _Occurrence:
    regarding: JSON
    kind: str
    reason: str
    message: str
    at: float

    @property
    def key(self) -> tuple[str, ...]:
        who = (str(self.regarding.get(field, "")) for field in ("kind", "namespace", "name", "uid"))
        return (*who, self.kind, self.reason, self.message)


@dataclass(slots=True)
class _Written:
    path: str
    count: int


class EventRecorder:
    """Records Events about objects.

    Args:
        client: the API server; needs create and patch on events.
        component: who reports ("gpudra-agent").
        host: the node's name.
    """

    def __init__(self, client: KubeClient, *, component: str, host: str) -> None:
        self._client = client
        self._component = component
        self._host = host
        self._waiting: queue.Queue[_Occurrence | None] = queue.Queue(MAX_WAITING)
        self._written: OrderedDict[tuple[str, ...], _Written] = OrderedDict()
        self._bucket = TokenBucket(_RATE, _BURST)
        self._lost = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)
        self._thread.start()

    def record(self, regarding: JSON, kind: str, reason: str, message: str) -> None:
        """Queue an event and return at once; with a full queue it is dropped, and the log says so.

        Args:
            regarding: an object reference (apiVersion, kind, namespace, name, uid). Objects without a namespace have
                their events in "default", where kubectl looks for them.
            kind: ``Normal`` or ``Warning``.
            reason: a CamelCase word.
            message: a sentence; cut at 1024 bytes.
        """
        cut = message.encode()[:MAX_MESSAGE].decode(errors="ignore")
        try:
            self._waiting.put_nowait(_Occurrence(regarding, kind, reason, cut, time.time()))
        except queue.Full:
            self._lost += 1
            log.warning("the queue of events is full: dropped %s: %s (%d so far)", reason, cut, self._lost)

    def stop(self, timeout: float = 2.0) -> None:
        """Write what waits, at most for ``timeout`` seconds, and end."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            log.warning("%d events are not written", self._waiting.qsize())
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        while (occurrence := self._waiting.get()) is not None:
            try:
                self._write(occurrence)
            except (ApiError, ApiUnreachableError) as error:
                log.warning("the event %s cannot be written: %s", occurrence.reason, error)
            except Exception:
                log.exception("the event %s cannot be written", occurrence.reason)

    def _write(self, occurrence: _Occurrence) -> None:
        if self._bucket.take() > 0:
            self._bucket.give_back()
            log.warning("too many events: dropped %s: %s", occurrence.reason, occurrence.message)
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(occurrence.at))
        known = self._written.get(occurrence.key)
        if known is not None and self._count(known, now):
            return
        namespace = occurrence.regarding.get("namespace") or "default"
        folder = f"/api/v1/namespaces/{namespace}/events"
        digest = hashlib.sha256(repr((occurrence.key, occurrence.at)).encode()).hexdigest()[:16]
        name = f"{occurrence.regarding['name']}.{digest}"
        self._client.create(
            folder,
            {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": occurrence.regarding,
                "type": occurrence.kind,
                "reason": occurrence.reason,
                "message": occurrence.message,
                "source": {"component": self._component, "host": self._host},
                "firstTimestamp": now,
                "lastTimestamp": now,
                "count": 1,
                "reportingComponent": self._component,
                "reportingInstance": self._host,
            },
        )
        self._written[occurrence.key] = _Written(f"{folder}/{name}", 1)
        while len(self._written) > REMEMBERED:
            self._written.popitem(last=False)

    def _count(self, known: _Written, now: str) -> bool:
        """Raise the count of an event that is there; False if it has expired."""
        body = {"count": known.count + 1, "lastTimestamp": now}
        try:
            self._client.patch(known.path, body, content_type=STRATEGIC_PATCH)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        known.count += 1
        return True
