"""A thin client of the Kubernetes API: JSON in, JSON out, over urllib3 and msgspec. No models, so nothing is lost.

Why not the generated client: its models refuse and drop fields that they do not know, which breaks read-modify-write
of slices against a newer server.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit

import msgspec

from kubeletplugin.api import JSON
from kubeletplugin.apierrors import ApiError, ApiUnreachableError, error_of_answer, error_of_status
from kubeletplugin.credentials import SERVICE_ACCOUNT, Access, CredentialsError, Secret, TlsSource, TokenSource
from kubeletplugin.kubeconfig import load_kubeconfig
from kubeletplugin.ratelimit import TokenBucket

if TYPE_CHECKING:
    # urllib3 with ssl and http.client is a quarter of a plugin's way to its registration socket, and is of use only
    # behind it: imported with the first request.
    import urllib3

__all__ = ["MERGE_PATCH", "ApiError", "ApiUnreachableError", "KubeClient", "WatchEvent"]

logger = logging.getLogger(__name__)

MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

DEFAULT_TIMEOUT = 15.0
"""Seconds for one request with everything in it; the kubelet gives a whole Prepare call 45 s."""
CONNECT_TIMEOUT = 5.0
POOL_SIZE = 16
"""Connections that are kept: eight claims may be fetched at once, beside a watch and writes. One that does not fit is
closed after its request, and the next pays for a TLS handshake."""
WATCH_SLACK = 15.0
"""Seconds that a watch may stay silent after the server should have ended it."""


class WatchEvent(msgspec.Struct, frozen=True):
    """One event of a watch: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``."""

    type: str
    object: JSON

    @property
    def resource_version(self) -> str:
        """Where to go on after this event."""
        return str(self.object.get("metadata", {}).get("resourceVersion", ""))


class KubeClient:
    """One API server, one identity, one pool of connections. Safe for threads; ``close`` ends all of it.

    Args:
        server: base URL, with a path prefix where the server has one.
        token, ca, client_cert: a ``str`` is the secret itself (token, PEM), a ``Path`` a file, re-read on change.
        rate, burst: client-side limit in requests a second, against a fault of our own that asks without end. The
            server protects itself (priority and fairness, 429), and the kubelet's calls come at its own pace: a burst
            of claims must not wait here. Watches count once, when they are opened.
    """

    def __init__(
        self,
        server: str,
        *,
        token: Secret | None = None,
        ca: Secret | None = None,
        client_cert: tuple[Secret, Secret] | None = None,
        insecure_skip_verify: bool = False,
        tls_server_name: str | None = None,
        rate: float = 200.0,
        burst: int = 500,
        user_agent: str = "gpudra-kubeletplugin",
    ) -> None:
        parts = urlsplit(server)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"server must be a URL like https://host:port, not {server!r}")
        access = Access(server, token, ca, client_cert, insecure_skip_verify, tls_server_name)
        self.server = server.rstrip("/")
        self._scheme, self._host, self._port = parts.scheme, parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._server_name = tls_server_name
        self._tokens = TokenSource(access.token)
        self._tls = TlsSource(access) if parts.scheme == "https" else None
        if insecure_skip_verify:
            logger.warning("certificates of %s are not verified, as asked for", server)
            import urllib3
            from urllib3.exceptions import InsecureRequestWarning

            # Said once here; urllib3 would say it with each request.
            urllib3.disable_warnings(InsecureRequestWarning)
        self._bucket = TokenBucket(rate, burst)
        self._user_agent = user_agent
        self._lock = threading.Lock()
        self._pool: urllib3.HTTPConnectionPool | None = None
        self._pool_tls: Any = None
        self._watches: dict[urllib3.BaseHTTPResponse, threading.Event] = {}
        self._closed = threading.Event()

    @classmethod
    def from_pod(cls, root: Path = SERVICE_ACCOUNT, *, user_agent: str = "gpudra-kubeletplugin") -> KubeClient:
        """The pod's own service account. Raises ``CredentialsError`` outside a pod."""
        return cls._from_access(Access.from_pod(root), user_agent)

    @classmethod
    def from_kubeconfig(
        cls, path: str | Path, context: str | None = None, *, user_agent: str = "gpudra-kubeletplugin"
    ) -> KubeClient:
        """A context of a kubeconfig file (the current one by default). Raises ``CredentialsError``."""
        return cls._from_access(load_kubeconfig(path, context), user_agent)

    @classmethod
    def _from_access(cls, access: Access, user_agent: str) -> KubeClient:
        return cls(
            access.server,
            token=access.token,
            ca=access.ca,
            client_cert=access.client_cert,
            insecure_skip_verify=access.insecure_skip_verify,
            tls_server_name=access.tls_server_name,
            user_agent=user_agent,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> JSON:
        """Read an object or a list."""
        return self.request("GET", path, query=query, timeout=timeout)

    def create(self, path: str, body: JSON, *, query: Mapping[str, str] | None = None) -> JSON:
        """Create an object in the collection ``path``; returns it as stored."""
        return self.request("POST", path, query=query, body=body)

    def update(self, path: str, body: JSON, *, query: Mapping[str, str] | None = None) -> JSON:
        """Replace the object at ``path``; returns it as stored."""
        return self.request("PUT", path, query=query, body=body)

    def patch(
        self, path: str, body: Any, *, content_type: str = MERGE_PATCH, query: Mapping[str, str] | None = None
    ) -> JSON:
        """Patch the object at ``path``; returns it as stored."""
        return self.request("PATCH", path, query=query, body=body, content_type=content_type)

    def apply(self, path: str, body: JSON, *, field_manager: str) -> JSON:
        """Server-side apply: make ``body`` what ``field_manager`` says about the object; returns it as stored.

        What the manager said before and does not repeat is removed, what others say stays. A value that somebody else
        has set is taken over. Fields of lists that are keyed belong to each manager by entry.
        """
        query = {"fieldManager": field_manager, "force": "true"}
        return self.request("PATCH", path, query=query, body=body, content_type=APPLY_PATCH)

    def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        query: Mapping[str, str] | None = None,
    ) -> JSON:
        """Delete an object (only if it still has that UID and version), or a collection selected by ``query``."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        body: JSON | None = None
        if preconditions:
            body = {"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions}
        return self.request("DELETE", path, query=query, body=body)

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout: float | None = None,
    ) -> JSON:
        """One request; returns the JSON object of the answer ({} where it is empty).

        A 429 is repeated after its ``Retry-After`` as long as ``timeout`` (seconds, default 15) allows it; a 401 once
        with the token file read again; a reused connection that turns out to be dead once for GET.

        Raises:
            ApiError: the server answered with an error.
            ApiUnreachableError: no usable answer came, or the client was closed.
            CredentialsError: a token or certificate file is unusable.
        """
        deadline = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        payload = None if body is None else msgspec.json.encode(body)
        return self._decode(method, path, self._answer(method, path, query, payload, content_type, deadline))

    def text(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> str:
        """What a path that does not speak JSON answers (``/readyz``: "ok"). Raises as ``request``."""
        deadline = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout)
        return self._answer("GET", path, query, None, "", deadline).decode("utf-8", "replace")

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        payload: bytes | None,
        content_type: str,
        deadline: float,
    ) -> bytes:
        from urllib3.exceptions import HTTPError

        renewed = False
        while True:
            try:
                with self._open(method, path, query, payload, content_type, deadline, renewed) as response:
                    data = response.data
            except (HTTPError, OSError) as error:
                raise self._unreachable(method, path, error) from error
            if response.status < 300:
                return data
            error_answer = error_of_answer(response, data)
            if error_answer.status == 401 and self._tokens.may_change and not renewed:
                renewed = True
                continue
            if error_answer.status == 429 and self._may_wait(error_answer.retry_after, deadline):
                continue
            raise error_answer

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
        timeout_seconds: float = 300.0,
    ) -> Iterator[WatchEvent]:
        """The events of one watch stream, bookmarks too; the caller owns the loop around it.

        Ends quietly when the server ends it after ``timeout_seconds`` or when ``stop`` is set (``interrupt`` does that
        and wakes a silent stream at once). Pass ``resourceVersion`` in ``query`` to go on from a list.

        Raises:
            ApiError: the watch was refused, or an ERROR event came (410 ``Expired``: list again).
            ApiUnreachableError: the stream broke or is no watch.
        """
        from urllib3.exceptions import HTTPError

        stop = stop or threading.Event()
        options = {
            **(query or {}),
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, math.ceil(timeout_seconds))),
        }
        deadline = time.monotonic() + timeout_seconds + WATCH_SLACK
        try:
            with self._open("GET", path, options, None, "application/json", deadline, False) as response:
                if response.status != 200:
                    raise error_of_answer(response, response.data)
                with self._registered(response, stop):
                    yield from self._events(path, response, stop)
        except (HTTPError, OSError) as error:
            if not (stop.is_set() or self._closed.is_set()):
                raise self._unreachable("WATCH", path, error) from error

    def warm_up(self) -> None:
        """Do ahead what the first request would do before it is sent: import urllib3, make the TLS context.

        Asks nobody. What is wrong with certificates is said by the first request.
        """
        import urllib3.exceptions  # noqa: F401 - for whoever sends

        with contextlib.suppress(ApiUnreachableError, CredentialsError):
            self._current_pool()

    def interrupt(self, stop: threading.Event) -> None:
        """Set ``stop`` and end at once every watch that was opened with it."""
        stop.set()
        with self._lock:
            streams = [response for response, event in self._watches.items() if event is stop]
        self._shut(streams)

    def close(self) -> None:
        """End all watches and waits and close the connections. The client cannot be used again."""
        self._closed.set()
        with self._lock:
            streams, pool = list(self._watches), self._pool
            self._pool = None
        self._shut(streams)
        if pool is not None:
            pool.close()

    @staticmethod
    def _shut(streams: list[urllib3.BaseHTTPResponse]) -> None:
        for response in streams:
            # A stream that ended in this moment has nothing left to shut.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                response.shutdown()

    @contextlib.contextmanager
    def _registered(self, response: urllib3.BaseHTTPResponse, stop: threading.Event) -> Iterator[None]:
        with self._lock:
            self._watches[response] = stop
        try:
            yield
        finally:
            with self._lock:
                del self._watches[response]

    def _events(self, path: str, response: urllib3.BaseHTTPResponse, stop: threading.Event) -> Iterator[WatchEvent]:
        buffer = bytearray()
        while not (stop.is_set() or self._closed.is_set()):
            chunk = response.read1(1 << 16)
            if not chunk:
                return
            buffer += chunk
            *lines, rest = buffer.split(b"\n")
            buffer = bytearray(rest)
            for line in lines:
                if line.strip():
                    yield self._event(path, bytes(line))
                if stop.is_set():
                    return

    def _event(self, path: str, line: bytes) -> WatchEvent:
        document = self._decode("WATCH", path, line)
        kind, content = document.get("type"), document.get("object")
        if not isinstance(kind, str) or not isinstance(content, dict):
            raise ApiUnreachableError(f"WATCH {self.server}{path}: a line of the stream is no watch event")
        if kind == "ERROR":
            code = content.get("code")
            raise error_of_status(content, code if isinstance(code, int) and code else 500, None)
        return WatchEvent(kind, content)

    @contextlib.contextmanager
    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        payload: bytes | None,
        content_type: str,
        deadline: float,
        renew_token: bool,
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send one request. The body is unread; the connection goes back to the pool only if it was read to the end."""
        self._wait(self._bucket.take(), method, path, deadline)
        headers = {"Accept": "application/json, */*;q=0.1", "User-Agent": self._user_agent}
        if payload is not None:
            headers["Content-Type"] = content_type
        token = self._tokens.get(force=renew_token)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        pool = self._current_pool()
        response = self._send(pool, method, target, payload, headers, deadline)
        try:
            yield response
        finally:
            # Read to its end, it has given the connection back already; else the connection ends with it.
            response.close()

    def _send(
        self,
        pool: urllib3.HTTPConnectionPool,
        method: str,
        target: str,
        payload: bytes | None,
        headers: Mapping[str, str],
        deadline: float,
    ) -> urllib3.BaseHTTPResponse:
        from urllib3 import Timeout
        from urllib3.exceptions import ProtocolError

        attempts = 2 if method == "GET" else 1
        while True:
            attempts -= 1
            left = max(0.1, deadline - time.monotonic())
            try:
                return pool.urlopen(
                    method,
                    target,
                    body=payload,
                    headers=headers,
                    retries=False,
                    redirect=False,
                    timeout=Timeout(connect=min(CONNECT_TIMEOUT, left), read=left),
                    preload_content=False,
                )
            except ProtocolError:
                # A kept connection that the server closed in the same moment; a second one is fresh.
                if attempts == 0 or self._closed.is_set():
                    raise

    def _current_pool(self) -> urllib3.HTTPConnectionPool:
        tls = self._tls.get() if self._tls is not None else None
        with self._lock:
            if self._closed.is_set():
                raise ApiUnreachableError(f"the client of {self.server} is closed")
            if self._pool is None or tls is not self._pool_tls:
                old = self._pool
                self._pool, self._pool_tls = self._new_pool(tls), tls
                if old is not None:
                    old.close()
            return self._pool

    def _new_pool(self, tls: Any) -> urllib3.HTTPConnectionPool:
        import urllib3

        if tls is None:
            return urllib3.HTTPConnectionPool(self._host, self._port, maxsize=POOL_SIZE)
        return urllib3.HTTPSConnectionPool(
            self._host,
            self._port or 443,
            maxsize=POOL_SIZE,
            ssl_context=tls,
            server_hostname=self._server_name,
            assert_hostname=self._server_name,
        )

    def _wait(self, seconds: float, method: str, path: str, deadline: float) -> None:
        if seconds > 0:
            if time.monotonic() + seconds > deadline:
                self._bucket.give_back()
                raise ApiUnreachableError(
                    f"{method} {self.server}{path}: not sent, the client's own rate limit is used up"
                )
            self._closed.wait(seconds)
        if self._closed.is_set():
            raise ApiUnreachableError(f"the client of {self.server} is closed")

    def _may_wait(self, seconds: float | None, deadline: float) -> bool:
        """Wait out a Retry-After; False where the server named none, the deadline is nearer, or we are closing."""
        if seconds is None or time.monotonic() + seconds >= deadline:
            return False
        return not self._closed.wait(max(seconds, 0.05))

    def _decode(self, method: str, path: str, data: bytes) -> JSON:
        if not data:
            return {}
        try:
            document = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ApiUnreachableError(f"{method} {self.server}{path}: the answer is not JSON: {error}") from error
        if not isinstance(document, dict):
            raise ApiUnreachableError(f"{method} {self.server}{path}: the answer is not a JSON object")
        return document

    def _unreachable(self, method: str, path: str, error: Exception) -> ApiUnreachableError:
        return ApiUnreachableError(f"{method} {self.server}{path}: {error}")
