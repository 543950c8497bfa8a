"""The standard gRPC health protocol (``grpc.health.v1.Health/Check``), for the pod's probes.

A service that is not well is answered with the status UNAVAILABLE and the reason as its text, not with NOT_SERVING:
both fail the probe, but only the text of a failed call reaches the event of the pod (pkg/probe/grpc of Kubernetes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from kubeletplugin.doors import OnThreadsOf

if TYPE_CHECKING:
    from kubeletplugin.proto import probe_pb2

log = logging.getLogger(__name__)

METHOD = "/grpc.health.v1.Health/Check"

Check: TypeAlias = Callable[[], str | None]
"""What is wrong, or ``None``. Called from threads of its own; must answer within the probe's timeout."""


class Probes(grpc.GenericRpcHandler):
    """Answers by name, for a server. What the server's other threads do cannot delay it.

    Args:
        checks: service name of the probe -> check. A probe without a service name asks all of them.
    """

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = dict(checks)
        self._last: dict[str, str | None] = {}
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="probes")
        self._method: grpc.RpcMethodHandler[Any, Any] | None = None

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of Check; None for any other method."""
        if handler_call_details.method != METHOD:
            return None
        if self._method is None:
            from kubeletplugin.proto import probe_pb2  # the first probe comes long after the registration

            self._method = grpc.unary_unary_rpc_method_handler(
                OnThreadsOf(self._pool, self._check),
                request_deserializer=probe_pb2.HealthCheckRequest.FromString,
                response_serializer=probe_pb2.HealthCheckResponse.SerializeToString,
            )
        return self._method

    def close(self) -> None:
        """Answers no more. Safe to call twice."""
        self._pool.shutdown(wait=False)

    def _check(
        self, request: probe_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> probe_pb2.HealthCheckResponse:
        from kubeletplugin.proto import probe_pb2

        if request.service and request.service not in self._checks:
            known = ", ".join(sorted(self._checks))
            context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here, only {known}")
        names = [request.service] if request.service else sorted(self._checks)
        for name in names:
            problem = self._ask(name)
            if problem is not None:
                context.abort(grpc.StatusCode.UNAVAILABLE, f"{name}: {problem}")
        return probe_pb2.HealthCheckResponse(status=probe_pb2.HealthCheckResponse.SERVING)

    def _ask(self, name: str) -> str | None:
        try:
            problem = self._checks[name]()
        except Exception as error:
            log.exception("health check %s failed", name)
            problem = f"the check itself failed: {type(error).__name__}: {error}"
        if self._last.get(name) != problem:
            log.log(logging.WARNING if problem else logging.INFO, "health of %s: %s", name, problem or "well")
        self._last[name] = problem
        return problem
