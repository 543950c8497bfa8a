"""A gRPC server behind unix sockets and perhaps a port, from the first bind to the last file that is removed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec

from kubeletplugin.sockets import BoundSocket, SocketError, bind_port, bind_server


class PooledServer(msgspec.Struct, frozen=True):
    """A server that is not started, and the threads that it runs calls in."""

    server: grpc.Server
    pools: tuple[ThreadPoolExecutor, ...]

    def end(self, grace: float) -> None:
        """Refuse new calls and wait at most ``grace`` seconds for running ones."""
        self.server.stop(grace).wait(grace + 1)
        for pool in self.pools:
            pool.shutdown(wait=False)


class Endpoint:
    """A running server and its sockets.

    Attributes:
        port: of the probes; None: there is none.
    """

    def __init__(self, server: PooledServer, sockets: Sequence[BoundSocket], port: int | None) -> None:
        self.port = port
        self._server = server
        self._sockets = sockets

    @classmethod
    def serve(cls, server: PooledServer, paths: Sequence[Path], address: str | None) -> Endpoint:
        """Bind the address, then the paths in their order, and start.

        Raises:
            SocketError: an address or path cannot be used; nothing is left behind.
        """
        bound: list[BoundSocket] = []
        try:
            port = None if address is None else bind_port(server.server, address)
            bound.extend(bind_server(server.server, path) for path in paths)
        except SocketError:
            server.end(0)
            for socket in bound:
                socket.remove()
            raise
        server.server.start()
        return cls(server, bound, port)

    def drain(self, grace: float) -> None:
        """Refuse new calls and wait at most ``grace`` seconds for running ones. The files stay."""
        self._server.end(grace)

    def remove(self) -> None:
        """Remove the sockets' files that are still ours."""
        for socket in self._sockets:
            socket.remove()
