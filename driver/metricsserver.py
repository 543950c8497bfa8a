"""The HTTP server of /metrics: one thread that sleeps in the kernel until somebody asks.

``prometheus_client.start_http_server`` looks twice a second whether it is to end, which the agent never asks it to, and
asks the name service for the name of its own address, which takes seconds on a node whose DNS is broken.
"""

from __future__ import annotations

import socket
import threading
from socketserver import TCPServer
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class _Server(ThreadingWSGIServer):
    def server_bind(self) -> None:
        """As ``http.server.HTTPServer`` without asking what the address is called."""
        TCPServer.server_bind(self)
        host, self.server_port = self.server_address[:2]
        self.server_name = str(host)
        self.setup_environ()


class _SixServer(_Server):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Scrapes are no news."""


def serve(registry: CollectorRegistry, address: str, port: int) -> int:
    """Serve the registry's text in daemon threads for the life of the process; the port (a free one for 0).

    Raises:
        OSError: the address cannot be bound.
    """
    server = (_SixServer if ":" in address else _Server)((address, port), _Handler)
    server.set_app(make_wsgi_app(registry))
    forever = threading.Thread(target=server.serve_forever, args=(None,), name="metrics", daemon=True)
    forever.start()
    return server.server_port
