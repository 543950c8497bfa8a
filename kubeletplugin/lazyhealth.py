"""DRAResourceHealth served from the start, made when a kubelet first watches it.

A kubelet learns of the service with the registration and comes to it a moment later; what serves it would only be in
the way of the registration.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from kubeletplugin.health import HealthBoard
    from kubeletplugin.healthservice import HealthService

SERVICES: Final = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""As ``kubeletplugin.healthservice.HEALTH_SERVICES``."""
_METHODS: Final = frozenset(f"/{name}/NodeWatchResources" for name in SERVICES)


class LazyHealthService(grpc.GenericRpcHandler):
    """A handler for a server; passes on to a ``HealthService`` of its own.

    Args:
        board: gives what is to be served; called once, in a thread of the server.
    """

    def __init__(self, board: Callable[[], HealthBoard]) -> None:
        self._board = board
        self._lock = threading.Lock()
        self._service: HealthService | None = None
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._closed = False

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler for a call of NodeWatchResources; None for any other."""
        if handler_call_details.method not in _METHODS:
            return None
        for handler in self._made():
            found = handler.service(handler_call_details)
            if found is not None:
                return found
        return None

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What a server needs."""
        return [self]

    def services(self) -> tuple[str, ...]:
        """Ids for GetInfo."""
        return SERVICES

    def close(self) -> None:
        """Ends all streams and takes no more."""
        with self._lock:
            self._closed = True
            service = self._service
        if service is not None:
            service.close()

    def end(self) -> None:
        """Gives the threads up, after the server is stopped."""
        with self._lock:
            service = self._service
        if service is not None:
            service.end()

    def _made(self) -> list[grpc.GenericRpcHandler]:
        with self._lock:
            if self._service is None and not self._closed:
                from kubeletplugin.healthservice import HealthService

                self._service = HealthService(self._board())
                self._handlers = self._service.handlers()
            return self._handlers
