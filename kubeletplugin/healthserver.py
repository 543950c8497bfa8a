"""The standard gRPC health protocol (``grpc.health.v1.Health/Check``) on a TCP port, for the pod's probes.

A service that is not well is answered with the status UNAVAILABLE and the reason as its text, not with NOT_SERVING:
both fail the probe, but only the text of a failed call reaches the event of the pod (pkg/probe/grpc of Kubernetes).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import grpc

from kubeletplugin.proto import probe_pb2
from kubeletplugin.sockets import SocketError

log = logging.getLogger(__name__)

SERVICE = "grpc.health.v1.Health"

Check: TypeAlias = Callable[[], str | None]
"""What is wrong, or ``None``. Called from the server's threads; must answer within the probe's timeout."""


class HealthServer:
    """Serves checks by name.

    Args:
        address: ``host:port`` as gRPC takes it (``0.0.0.0:8081``, ``[::]:8081``); port 0 takes a free one.
        checks: service name of the probe -> check. A probe without a service name asks all of them.
    """

    def __init__(self, address: str, checks: Mapping[str, Check]) -> None:
        self._address = address
        self._checks = dict(checks)
        self._last: dict[str, str | None] = {}
        self._server: grpc.Server | None = None

    def start(self) -> int:
        """Starts serving; the port.

        Raises:
            SocketError: the address cannot be bound.
        """
        server = grpc.server(
            ThreadPoolExecutor(2, thread_name_prefix="health"),
            handlers=[
                grpc.method_handlers_generic_handler(
                    SERVICE,
                    {
                        "Check": grpc.unary_unary_rpc_method_handler(
                            self._check,
                            request_deserializer=probe_pb2.HealthCheckRequest.FromString,
                            response_serializer=probe_pb2.HealthCheckResponse.SerializeToString,
                        )
                    },
                )
            ],
            options=(("grpc.so_reuseport", 0),),
        )
        try:
            port: int = server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise SocketError(
                f"health address {self._address} cannot be bound: {error}; another process of this node or of the pod"
                " uses the port, choose another"
            ) from error
        server.start()
        self._server = server
        return port

    def stop(self) -> None:
        """Ends it. Safe to call twice."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(0).wait()

    def _check(
        self, request: probe_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> probe_pb2.HealthCheckResponse:
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
