"""An API server on 127.0.0.1 with the kinds, verbs and rules that a kubelet plugin meets; nothing is kept on disk.

It is held to the real kube-apiserver by tests/contract/apiserver, which runs against both.
"""

from __future__ import annotations

import contextlib
import http.server
import re
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

import msgspec

from kubeletplugin.api import JSON
from kubeletplugin.client import APPLY_PATCH, KubeClient
from kubeletplugin.testing.faults import Faults
from kubeletplugin.testing.gates import DEFAULT_GATES, GATES
from kubeletplugin.testing.kinds import Kind, find_kind
from kubeletplugin.testing.registry import Registry, field_matcher, list_document
from kubeletplugin.testing.status import StatusError, bad_request, expired
from kubeletplugin.testing.store import Matcher, Store, as_event

_PATH = re.compile(
    r"/(?:api/(?P<core>v1)|apis/(?P<group>[^/]+)/(?P<version>[^/]+))"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<subresource>[^/]+))?"
)
_VERSION = {"major": "1", "minor": "37", "gitVersion": "v1.37.0-embedded", "platform": "linux/amd64"}
_JSON_TYPES = ("application/json",)
_MERGE_TYPES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
MAX_BODY = 3 << 20


@dataclass(frozen=True, slots=True)
class Request:
    """What came in: log entry and argument of the handlers."""

    method: str
    path: str
    query: dict[str, str]

    @property
    def writes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET" and "dryRun" not in self.query


@dataclass(frozen=True, slots=True)
class _Target:
    kind: Kind
    namespace: str | None
    name: str
    subresource: str


class EmbeddedApiServer:
    """Start it, talk to ``url`` (or through ``client()``), stop it; also a context manager.

    Args:
        token: requests must carry it as bearer token; None lets everybody in.
        disabled_gates: feature gates whose fields are dropped on write, as by a real server.
        bookmark_seconds: how often a silent watch gets a bookmark.
    """

    def __init__(
        self, *, token: str | None = None, disabled_gates: frozenset[str] = frozenset(), bookmark_seconds: float = 60.0
    ) -> None:
        self.token = token
        self.git_version = _VERSION["gitVersion"]
        self.store = Store()
        self.registry = Registry(self.store)
        self.registry.gates = DEFAULT_GATES - disabled_gates
        self.faults = Faults(self.store)
        self.bookmark_seconds = bookmark_seconds
        self.requests: list[Request] = []
        self.stopping = threading.Event()
        self.open_watches = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._clients: list[KubeClient] = []

    @property
    def url(self) -> str:
        """Base URL, known after ``start``."""
        if self._server is None:
            raise RuntimeError("the embedded API server is not started")
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self, port: int = 0) -> Self:
        """Listen on ``port`` (0: any free one). A stopped server goes on with the objects that it had."""
        self.stopping = threading.Event()
        self._server = _Server(self, port)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="embedded-apiserver", daemon=True
        )
        self._thread.start()
        return self

    def client(self) -> KubeClient:
        """A client without a rate limit worth mentioning; closed with the server."""
        client = KubeClient(self.url, token=self.token, rate=100_000.0, burst=100_000)
        self._clients.append(client)
        return client

    def stop(self) -> None:
        """End all connections and the listener; objects stay for another ``start``."""
        self.stopping.set()
        with self.store.changed:
            self.store.changed.notify_all()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.close_connections()
            self._server.server_close()
        self._server = self._thread = None

    def close(self) -> None:
        """Stop, and close the clients that were handed out."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self.stop()

    def upgrade(self, git_version: str, *, enable: frozenset[str] = frozenset()) -> None:
        """Become another version with more feature gates, as a rolling upgrade of several servers looks from outside.

        Watches end; no request is refused.
        """
        self.git_version = git_version
        for gate in enable:
            self.set_gate(gate, enabled=True)
        self.faults.end_watches()

    def set_gate(self, gate: str, *, enabled: bool) -> None:
        """Switch a feature gate, as an upgrade or another flag would."""
        if gate not in GATES:
            raise ValueError(f"{gate} governs no field that is known here; known gates: {', '.join(sorted(GATES))}")
        self.registry.gates = self.registry.gates | {gate} if enabled else self.registry.gates - {gate}

    @contextlib.contextmanager
    def counted_watch(self) -> Iterator[None]:
        """``open_watches`` is one more inside; ``store.changed`` is told both times."""
        self._count_watch(1)
        try:
            yield
        finally:
            self._count_watch(-1)

    def _count_watch(self, change: int) -> None:
        with self.store.changed:
            self.open_watches += change
            self.store.changed.notify_all()

    def writes(self, plural: str = "resourceslices") -> list[Request]:
        """The requests so far that could change something of that kind."""
        return [request for request in self.requests if request.writes and f"/{plural}" in request.path]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_exc: object) -> None:
        self.close()


class _Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = False
    block_on_close = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, owner: EmbeddedApiServer, port: int) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", port), _Handler)

    def server_bind(self) -> None:
        # HTTPServer asks the resolver for its own name here, which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_lock:
            self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up are no news; anything else is printed by the base class."""
        import sys

        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)

    def close_connections(self) -> None:
        with self._connections_lock:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):  # the client was faster
                connection.shutdown(socket.SHUT_RDWR)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the base class names it so)
        """Keep quiet."""

    def handle_method(self) -> None:
        """Serve one request of any method."""
        owner = self.server.owner
        parts = urlsplit(self.path)
        request = Request(self.command, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)))
        owner.requests.append(request)
        try:
            body = self._body()
            owner.stopping.wait(owner.faults.latency)
            error = owner.faults.take(request.method, self.path)
            if error is not None:
                raise error
            self._authenticate()
            self._route(request, body)
        except StatusError as error:
            self._answer(error.code, error.document(), retry_after=error.retry_after)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_method  # noqa: N815 (http.server looks for these names)

    def _body(self) -> bytes:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {MAX_BODY}")
        return self.rfile.read(length)

    def _authenticate(self) -> None:
        token = self.server.owner.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise StatusError(401, "Unauthorized", "Unauthorized")

    def _route(self, request: Request, body: bytes) -> None:
        if request.path in ("/readyz", "/livez", "/healthz"):
            self._send(200, b"ok", "text/plain")
        elif request.path == "/version":
            self._answer(200, {**_VERSION, "gitVersion": self.server.owner.git_version})
        elif not request.path.startswith(("/api/v1/", "/apis/resource.k8s.io/v1/")):
            self._send(404, b"404 page not found\n", "text/plain")
        else:
            self._resource(request, self._target(request.path), body)

    def _target(self, path: str) -> _Target:
        match = _PATH.fullmatch(path)
        kind = match and find_kind(match["group"] or "", match["core"] or match["version"], match["plural"])
        if (
            match is None
            or kind is None
            or (match["subresource"] and not (kind.status and match["subresource"] == "status"))
        ):
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        namespace = match["namespace"] if kind.namespaced else ""
        return _Target(kind, namespace, match["name"] or "", match["subresource"] or "")

    def _resource(self, request: Request, target: _Target, body: bytes) -> None:
        registry, kind = self.server.owner.registry, target.kind
        dry_run = request.query.get("dryRun") == "All"
        if target.name:
            self._object(request, target, body, dry_run=dry_run)
            return
        matches = field_matcher(kind, request.query.get("fieldSelector", ""))
        if request.method == "GET" and request.query.get("watch") in ("true", "1"):
            self._watch(target, matches, request.query)
        elif request.method == "GET":
            self._answer(200, registry.select(kind, target.namespace, matches))
        elif request.method == "POST" and target.namespace is not None:
            self._answer(201, registry.create(kind, target.namespace, self._json(body), dry_run=dry_run))
        elif request.method == "DELETE" and target.namespace is not None:
            deleted = registry.delete_collection(kind, target.namespace, matches)
            self._answer(200, list_document(kind, deleted, registry.store.revision))
        else:
            raise _not_allowed()

    def _object(self, request: Request, target: _Target, body: bytes, *, dry_run: bool) -> None:
        registry, kind, namespace = self.server.owner.registry, target.kind, target.namespace or ""
        sub, method = target.subresource, request.method
        if method == "GET":
            self._answer(200, registry.get(kind, namespace, target.name))
        elif method == "PUT":
            manager = request.query.get("fieldManager") or (self.headers.get("User-Agent") or "").partition("/")[0]
            sent = self._json(body)
            self._answer(
                200,
                registry.update(kind, namespace, target.name, sent, subresource=sub, dry_run=dry_run, manager=manager),
            )
        elif method == "PATCH" and kind.applicable and sub == "status" and self._content_type() == APPLY_PATCH:
            sent = self._json(body, (APPLY_PATCH,))
            manager, force = request.query.get("fieldManager", ""), request.query.get("force") in ("true", "1")
            self._answer(
                200, registry.apply(kind, namespace, target.name, sent, manager=manager, force=force, dry_run=dry_run)
            )
        elif method == "PATCH":
            patch = self._json(body, _MERGE_TYPES)
            self._answer(200, registry.merge(kind, namespace, target.name, patch, subresource=sub, dry_run=dry_run))
        elif method == "DELETE" and not target.subresource:
            wanted = self._json(body) if body else {}
            self._answer(
                200, self._deleted(kind, registry.delete(kind, namespace, target.name, wanted, dry_run=dry_run))
            )
        else:
            raise _not_allowed()

    def _deleted(self, kind: Kind, document: JSON) -> JSON:
        if kind.returns_deleted:
            return document
        metadata = document["metadata"]
        details = {"name": metadata["name"], "kind": kind.plural, "uid": metadata["uid"]}
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}

    def _json(self, body: bytes, types: tuple[str, ...] = _JSON_TYPES) -> Any:
        if self._content_type() not in types:
            text = (
                f"the body of the request was in an unknown format - accepted media types include: {', '.join(types)}"
            )
            raise StatusError(415, "UnsupportedMediaType", text)
        try:
            return msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise bad_request(f"the body of the request is not JSON: {error}") from error

    def _content_type(self) -> str:
        return (self.headers.get("Content-Type") or "application/json").partition(";")[0].strip()

    def _answer(self, code: int, document: JSON, *, retry_after: int | None = None) -> None:
        self._send(code, msgspec.json.encode(document), "application/json", retry_after)

    def _send(self, code: int, body: bytes, content_type: str, retry_after: int | None = None) -> None:
        if self.server.owner.faults.loses(self.command, self.path):
            self.close_connection = True
            return
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(body)

    # Watches

    def _watch(self, target: _Target, matches: Matcher, query: dict[str, str]) -> None:
        store, kind = self.server.owner.store, target.kind
        sent = query.get("resourceVersion", "")
        if sent and not sent.isdigit():
            text = f'resourceVersion: Invalid value: "{sent}": strconv.ParseUint: parsing "{sent}": invalid syntax'
            raise StatusError(500, "", text)
        # Before the client can have seen anything: a break that follows its first event is this stream's, too.
        marks = self.server.owner.faults.watch_generation, self.server.owner.faults.watch_ends
        with store.lock:
            revision = int(sent or 0)
            first = [] if revision else store.select(kind.collection, target.namespace)
            revision = revision or store.revision
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _, document in first:
            if matches(document):
                self._event("ADDED", document)
        self.wfile.flush()
        with self.server.owner.counted_watch():
            clean = self._stream(target, matches, revision, query, marks)
        if clean:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.close_connection or not clean

    def _stream(
        self, target: _Target, matches: Matcher, revision: int, query: dict[str, str], marks: tuple[int, int]
    ) -> bool:
        """Send events until the time is up (True) or the stream is to break (False)."""
        generation, ends = marks
        owner, kind = self.server.owner, target.kind
        now = time.monotonic()
        end = now + float(query.get("timeoutSeconds") or 1800)
        bookmarks = query.get("allowWatchBookmarks") in ("true", "1")
        bookmark = now + owner.bookmark_seconds
        while True:
            happenings, known = owner.store.since(revision)
            if not known:
                self._event(
                    "ERROR", expired(f"too old resource version: {revision} ({owner.store.revision})").document()
                )
                return True
            for happening in happenings:
                revision = happening.revision
                key = happening.key
                if key.collection == kind.collection and target.namespace in (None, key.namespace):
                    event = as_event(happening, matches)
                    if event is not None:
                        self._event(*event)
            now = time.monotonic()
            over = now >= end or owner.faults.watch_ends != ends
            if bookmarks and (over or now >= bookmark):
                bookmark = now + owner.bookmark_seconds
                self._event("BOOKMARK", _bookmark(kind, revision))
            self.wfile.flush()
            if over:
                return True
            if owner.stopping.is_set() or owner.faults.watch_generation != generation or self._hung_up():
                return False
            with owner.store.changed:
                if not owner.store.since(revision)[0]:
                    owner.store.changed.wait(min(0.25, end - now, max(0.0, bookmark - now)))

    def _event(self, event: str, document: JSON) -> None:
        line = msgspec.json.encode({"type": event, "object": document}) + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _hung_up(self) -> bool:
        """Whether the client closed its end; a client of HTTP/1.1 sends nothing while it reads a watch."""
        try:
            peeked: bytes = self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return not peeked


def _bookmark(kind: Kind, revision: int) -> JSON:
    metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
    return {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}


def _not_allowed() -> StatusError:
    return StatusError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")
