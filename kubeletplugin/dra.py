"""The DRA gRPC service on the wire: v1 and v1beta1 of DRAPlugin over one implementation.

Source of the rules: k8s.io/kubelet/pkg/apis/dra/v1/api.proto and pkg/kubelet/cm/dra/manager.go. v1beta1 is v1 without
``share_id``. Whatever goes wrong with one claim is in that claim's entry; the call itself succeeds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar, cast

import grpc

from kubeletplugin.api import ClaimRef, PreparedDevice, PrepareError
from kubeletplugin.calls import Call, ClaimCalls, Outcome, encodable
from kubeletplugin.operation import operation
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc, dra_v1beta1_pb2, dra_v1beta1_pb2_grpc

SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Ids for GetInfo, newest first. They are not the names on the wire."""

MAX_ERROR_TEXT = 4096
"""Characters of an error that travel; an event of the pod shows 1024 of them."""

_P = ParamSpec("_P")
_T = TypeVar("_T")
_thread = threading.local()


class ArrivalPool(ThreadPoolExecutor):
    """A server's threads that know when their call came, so that the wait for a thread counts as queueing."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """As in the base class, with the time of arrival kept for ``arrival``."""
        arrived = time.monotonic()

        def run() -> _T:
            _thread.arrived = arrived
            return fn(*args, **kwargs)

        return super().submit(run)


def arrival() -> float:
    """Monotonic time at which the call that this thread serves came in."""
    arrived: float = getattr(_thread, "arrived", time.monotonic())
    return arrived


class DraService(dra_v1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin``.

    Args:
        calls: does the work.
        call_deadline: seconds after which a call is answered whatever its state; less than the kubelet's 45.
    """

    def __init__(self, calls: ClaimCalls, call_deadline: float) -> None:
        self._calls = calls
        self._call_deadline = call_deadline

    def NodePrepareResources(  # noqa: N802 - the name is the wire's
        self, request: dra_v1_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1_pb2.NodePrepareResourcesResponse:
        """Prepares every claim of the request."""
        reply = dra_v1_pb2.NodePrepareResourcesResponse()
        with operation():
            outcomes = self._calls.prepare(_refs(request.claims), self._call("prepare", context))
            for uid, outcome in outcomes.items():
                reply.claims[uid].CopyFrom(_prepare_entry(outcome))
        return reply

    def NodeUnprepareResources(  # noqa: N802 - the name is the wire's
        self, request: dra_v1_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1_pb2.NodeUnprepareResourcesResponse:
        """Unprepares every claim of the request."""
        reply = dra_v1_pb2.NodeUnprepareResourcesResponse()
        with operation():
            outcomes = self._calls.unprepare(_refs(request.claims), self._call("unprepare", context))
            for uid, outcome in outcomes.items():
                error = _error_text(outcome) if isinstance(outcome, PrepareError) else ""
                reply.claims[uid].CopyFrom(dra_v1_pb2.NodeUnprepareResourceResponse(error=error))
        return reply

    def _call(self, kind: str, context: grpc.ServicerContext) -> Call:
        arrived = arrival()
        deadline = arrived + self._call_deadline
        left = context.time_remaining()
        if left is not None:
            # A tenth (at most a second) is left for the answer's way back.
            deadline = min(deadline, time.monotonic() + left - min(1.0, left / 10))
        return Call(kind, arrived, deadline, context.is_active)


class DraServiceV1beta1(dra_v1beta1_pb2_grpc.DRAPluginServicer):
    """``k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin``: the same bytes without ``share_id``."""

    def __init__(self, service: DraService) -> None:
        self._service = service

    def NodePrepareResources(  # noqa: N802 - the name is the wire's
        self, request: dra_v1beta1_pb2.NodePrepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1beta1_pb2.NodePrepareResourcesResponse:
        """Prepares every claim of the request."""
        translated = dra_v1_pb2.NodePrepareResourcesRequest.FromString(request.SerializeToString())
        reply = self._service.NodePrepareResources(translated, context)
        for entry in reply.claims.values():
            for device in entry.devices:
                device.ClearField("share_id")
        return dra_v1beta1_pb2.NodePrepareResourcesResponse.FromString(reply.SerializeToString())

    def NodeUnprepareResources(  # noqa: N802 - the name is the wire's
        self, request: dra_v1beta1_pb2.NodeUnprepareResourcesRequest, context: grpc.ServicerContext
    ) -> dra_v1beta1_pb2.NodeUnprepareResourcesResponse:
        """Unprepares every claim of the request."""
        translated = dra_v1_pb2.NodeUnprepareResourcesRequest.FromString(request.SerializeToString())
        reply = self._service.NodeUnprepareResources(translated, context)
        return dra_v1beta1_pb2.NodeUnprepareResourcesResponse.FromString(reply.SerializeToString())


def dra_handlers(service: DraService) -> list[grpc.GenericRpcHandler]:
    """What a server needs to serve both versions."""
    handlers = _Handlers()
    server = cast("grpc.Server", handlers)  # of which the generated code calls no more than the two methods
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(service, server)
    dra_v1beta1_pb2_grpc.add_DRAPluginServicer_to_server(DraServiceV1beta1(service), server)
    return handlers.found


class _Handlers:
    """Stands in for the server to which the generated code adds a service."""

    def __init__(self) -> None:
        self.found: list[grpc.GenericRpcHandler] = []

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Keep them."""
        self.found.extend(handlers)

    def add_registered_method_handlers(self, _service: str, _methods: object) -> None:
        """Not by name: such calls would not come by the doors (``kubeletplugin.doors``)."""


def _refs(claims: Iterable[dra_v1_pb2.Claim]) -> list[ClaimRef]:
    return [ClaimRef(namespace=claim.namespace, name=claim.name, uid=claim.uid) for claim in claims]


def _prepare_entry(outcome: Outcome) -> dra_v1_pb2.NodePrepareResourceResponse:
    if isinstance(outcome, PrepareError):
        return dra_v1_pb2.NodePrepareResourceResponse(error=_error_text(outcome))
    return dra_v1_pb2.NodePrepareResourceResponse(devices=[_device(device) for device in outcome or ()])


def _device(device: PreparedDevice) -> dra_v1_pb2.Device:
    """The kubelet compares request names with a container's ``resources.claims[].request``: base names only."""
    return dra_v1_pb2.Device(
        request_names=dict.fromkeys(name.partition("/")[0] for name in device.requests),
        pool_name=device.pool,
        device_name=device.device,
        cdi_device_ids=device.cdi_device_ids,
        share_id=device.share_id,
    )


def _error_text(error: PrepareError) -> str:
    """Never empty (the kubelet reads an empty error as success) and always valid UTF-8."""
    text = str(error).strip() or error.reason
    return encodable(text[:MAX_ERROR_TEXT])
