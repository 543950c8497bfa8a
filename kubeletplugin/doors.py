"""Which calls a server answers to whom, and in whose threads.

One gRPC server listens on the kubelet's unix sockets, which are root's alone, and on the TCP port of the pod's probes,
which the whole network can reach. Each server has threads that look for work several times a second, so there is one
for both; what may come in by which door is decided here, and what is not let in explicitly stays outside.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import grpc

log = logging.getLogger(__name__)

Method: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class OnThreadsOf:
    """A method that gRPC runs in threads of its own instead of the server's."""

    def __init__(self, pool: ThreadPoolExecutor, method: Callable[[Any, grpc.ServicerContext], Any]) -> None:
        self.experimental_thread_pool = pool
        """The name by which grpc._server finds it; without that the server's own threads would answer."""
        self._method = method

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer a call."""
        return self._method(request, context)


class Doors(grpc.GenericRpcHandler):
    """The only handler of a server.

    Args:
        local: answered on unix sockets only. On any other address these methods do not exist (UNIMPLEMENTED).
        public: answered on every address.
    """

    def __init__(self, local: Sequence[grpc.GenericRpcHandler], public: Sequence[grpc.GenericRpcHandler] = ()) -> None:
        self._local = local
        self._public = public
        self._guarded: dict[str, Method] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Method | None:
        """The method's handler; None: there is no such method."""
        name = handler_call_details.method
        known = self._guarded.get(name) or _find(self._public, handler_call_details)
        if known is None and (found := _find(self._local, handler_call_details)) is not None:
            known = self._guarded[name] = _for_unix_only(name, found)
        return known


def _find(handlers: Sequence[grpc.GenericRpcHandler], details: grpc.HandlerCallDetails) -> Method | None:
    for handler in handlers:
        found: Method | None = handler.service(details)
        if found is not None:
            return found
    return None


def _for_unix_only(name: str, method: Method) -> Method:
    if method.unary_unary is not None:
        make, behavior = grpc.unary_unary_rpc_method_handler, method.unary_unary
    elif method.unary_stream is not None:
        make, behavior = grpc.unary_stream_rpc_method_handler, method.unary_stream
    else:
        raise TypeError(f"{name} takes a stream of requests; no service of the kubelet does")
    return make(
        _UnixOnly(name, behavior),
        request_deserializer=method.request_deserializer,
        response_serializer=method.response_serializer,
    )


class _UnixOnly:
    """A method that is not there for callers from elsewhere."""

    def __init__(self, name: str, method: Callable[[Any, grpc.ServicerContext], Any]) -> None:
        self._name = name
        self._method = method
        self._said = False
        pool = getattr(method, "experimental_thread_pool", None)
        if pool is not None:
            self.experimental_thread_pool = pool

    def __call__(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Answer a call, or refuse it."""
        peer = context.peer()
        if not peer.startswith("unix:"):
            level = logging.DEBUG if self._said else logging.WARNING  # nobody from outside fills the log
            self._said = True
            log.log(level, "refused a call of %s by %s: it is served on the node's own sockets only", self._name, peer)
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
        return self._method(request, context)
