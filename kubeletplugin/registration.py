"""Registration with the kubelet: who this plugin is (GetInfo) and what the kubelet thinks of it.

The kubelet waits one second for GetInfo and starts over when it does not come, so this service has threads of its own:
nothing that Prepare does can delay it (k8s.io/kubelet/pkg/apis/pluginregistration/v1).
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import msgspec

from kubeletplugin.api import Observer
from kubeletplugin.doors import OnThreadsOf
from kubeletplugin.operation import operation
from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc

log = logging.getLogger(__name__)

PLUGIN_TYPE = "DRAPlugin"
SERVICE = "pluginregistration.Registration"


class RegistrationStatus(msgspec.Struct, frozen=True):
    """The kubelet's last word; ``None`` in ``Registered.status`` means that it has not spoken yet."""

    ok: bool
    error: str


class Registered:
    """Whether the kubelet has taken the plugin; can be waited for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._status: RegistrationStatus | None = None

    @property
    def status(self) -> RegistrationStatus | None:
        """The last notification of the kubelet."""
        with self._changed:
            return self._status

    def is_set(self) -> bool:
        """Whether the kubelet's last word was yes."""
        status = self.status
        return status is not None and status.ok

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until the plugin is registered; ``False`` after ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._status is not None and self._status.ok, timeout)

    def wait_answer(self, timeout: float | None = None) -> RegistrationStatus | None:
        """Waits for the kubelet's word, yes or no; ``None`` after ``timeout`` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._status is not None, timeout)
            return self._status

    def set(self, status: RegistrationStatus) -> None:
        """Records the kubelet's word."""
        with self._changed:
            self._status = status
            self._changed.notify_all()


class RegistrationService(registration_v1_pb2_grpc.RegistrationServicer):
    """The gRPC service behind the registration socket.

    Args:
        driver_name: the name to register.
        endpoint: absolute path of the DRA socket, which must be serving already.
        services: ids of the services behind the endpoint, newest first.
        registered: told what the kubelet says.
        observer: told too.
    """

    def __init__(
        self, driver_name: str, endpoint: Path, services: tuple[str, ...], registered: Registered, observer: Observer
    ) -> None:
        self._info = registration_v1_pb2.PluginInfo(
            type=PLUGIN_TYPE, name=driver_name, endpoint=str(endpoint), supported_versions=services
        )
        self._registered = registered
        self._observer = observer

    def GetInfo(  # noqa: N802 - the name is the wire's
        self, request: registration_v1_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_v1_pb2.PluginInfo:
        """Who this plugin is. Answers from memory."""
        return self._info

    def NotifyRegistrationStatus(  # noqa: N802 - the name is the wire's
        self, request: registration_v1_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_v1_pb2.RegistrationStatusResponse:
        """Takes the kubelet's word. A refusal is logged; the kubelet tries again by itself."""
        with operation():
            if request.plugin_registered:
                log.info("registered with the kubelet as %s", self._info.name)
            else:
                log.error("the kubelet refused the plugin %s: %s", self._info.name, request.error)
            self._registered.set(RegistrationStatus(ok=request.plugin_registered, error=request.error))
            self._observer.registered(ok=request.plugin_registered, error=request.error)
        return registration_v1_pb2.RegistrationStatusResponse()


def registration_handler(service: RegistrationService, pool: ThreadPoolExecutor) -> grpc.GenericRpcHandler:
    """The service for a server that is busy with other things too: it is answered in these threads."""
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                OnThreadsOf(pool, service.GetInfo),
                request_deserializer=registration_v1_pb2.InfoRequest.FromString,
                response_serializer=registration_v1_pb2.PluginInfo.SerializeToString,
            ),
            "NotifyRegistrationStatus": grpc.unary_unary_rpc_method_handler(
                OnThreadsOf(pool, service.NotifyRegistrationStatus),
                request_deserializer=registration_v1_pb2.RegistrationStatus.FromString,
                response_serializer=registration_v1_pb2.RegistrationStatusResponse.SerializeToString,
            ),
        },
    )
