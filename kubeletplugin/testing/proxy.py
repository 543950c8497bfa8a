"""A TCP proxy on 127.0.0.1 that breaks connections: what load balancers, service meshes and bad cables do."""

from __future__ import annotations

import contextlib
import random
import selectors
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Self
from urllib.parse import urlsplit

CHUNK = 1 << 16


class Proxy:
    """Passes bytes to a server until told otherwise. Start it, use ``url``; also a context manager.

    Args:
        server: base URL of the server (http, or https without a look at the content).
        closes_watches: end a connection as soon as the answer to a watch has begun.
        seconds: for each new connection, how long it lives; ``None`` from it means for ever.
    """

    def __init__(
        self, server: str, *, closes_watches: bool = False, seconds: Callable[[], float | None] | None = None
    ) -> None:
        parts = urlsplit(server)
        self._target = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._scheme = parts.scheme
        self.closes_watches = closes_watches
        self.seconds = seconds
        self.connections = 0
        self.broken = 0
        """Connections that were ended by the proxy."""
        self._stop = threading.Event()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    @classmethod
    def breaking(cls, server: str, rng: random.Random, mean_seconds: float) -> Proxy:
        """One whose connections live for random times, ``mean_seconds`` on average."""
        return cls(server, seconds=lambda: rng.expovariate(1.0 / mean_seconds))

    @property
    def url(self) -> str:
        """Base URL of the proxy."""
        if self._listener is None:
            raise RuntimeError("the proxy is not started")
        return f"{self._scheme}://127.0.0.1:{self._listener.getsockname()[1]}"

    def heal(self) -> None:
        """New connections are left alone from now on; old ones end when they have to."""
        self.closes_watches = False
        self.seconds = None

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.1)
        self._spawn(self._accept)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=10.0)
        if self._listener is not None:
            self._listener.close()

    def _spawn(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None and not self._stop.is_set():
            try:
                client, _ = listener.accept()
            except TimeoutError:
                continue
            self.connections += 1
            seconds = self.seconds() if self.seconds is not None else None
            self._spawn(partial(self._serve, client, seconds))

    def _serve(self, client: socket.socket, seconds: float | None) -> None:
        try:
            server = socket.create_connection(self._target, timeout=5.0)
        except OSError:
            client.close()
            return
        with client, server, contextlib.suppress(OSError):
            self._pump(client, server, seconds)

    def _pump(self, client: socket.socket, server: socket.socket, seconds: float | None) -> None:
        ends = None if seconds is None else time.monotonic() + seconds
        watching = False
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._stop.is_set():
                if ends is not None and time.monotonic() >= ends:
                    self.broken += 1
                    return
                left = 0.05 if ends is None else min(0.05, ends - time.monotonic())
                for key, _ in selector.select(max(0.0, left)):
                    source, sink = key.fileobj, key.data
                    data = source.recv(CHUNK) if isinstance(source, socket.socket) else b""
                    if not data:
                        return
                    sink.sendall(data)
                    if source is client:
                        watching = b"watch=true" in data
                    elif watching and self.closes_watches:
                        self.broken += 1
                        return
