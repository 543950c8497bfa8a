"""The kubelet's side of DRAResourceHealth: one stream per plugin, and what is remembered of it and for how long.

The rules are those of pkg/kubelet/cm/dra/healthinfo.go and plugin/dra_plugin_manager.go of Kubernetes 1.37: the newest
version that both know, a pause of 5 s before a new stream, nothing remembered after the end of one, no second try where
the service turns out not to be there, and Unknown for what was not renewed in time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import grpc

from kubeletplugin.api import HealthStatus
from kubeletplugin.proto import dra_health_v1_pb2, dra_health_v1_pb2_grpc, dra_health_v1alpha1_pb2_grpc
from kubeletplugin.proto.dra_health_v1alpha1_pb2 import NodeWatchResourcesRequest as AlphaRequest

log = logging.getLogger(__name__)

V1, V1ALPHA1 = "v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth"
RETRY_SECONDS = 5.0
DEFAULT_TIMEOUT = 30.0

_STATUS = {
    dra_health_v1_pb2.UNKNOWN: HealthStatus.UNKNOWN,
    dra_health_v1_pb2.HEALTHY: HealthStatus.HEALTHY,
    dra_health_v1_pb2.UNHEALTHY: HealthStatus.UNHEALTHY,
}


def pick_health_service(offered: Iterable[str], known: Iterable[str] = (V1, V1ALPHA1)) -> str | None:
    """The newest version that both sides know; the order of the plugin's list does not matter."""
    services = set(offered)
    return next((service for service in known if service in services), None)


@dataclass(frozen=True, slots=True)
class Remembered:
    """A device's health as the kubelet would put it into pod status."""

    status: HealthStatus
    message: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    said: Remembered
    at: float
    timeout: float


class _Message(Protocol):
    """A response of either version."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


class HealthWatcher:
    """Watches one plugin.

    Args:
        channel: to the DRA socket.
        service: ``v1.DRAResourceHealth`` or ``v1alpha1.DRAResourceHealth``.
        retry: seconds before a stream that ended is opened again.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        channel: grpc.Channel,
        service: str,
        *,
        retry: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel = channel
        self._service = service
        self._retry = retry
        self._clock = clock
        self._changed = threading.Condition()
        self._devices: dict[tuple[str, str], _Entry] = {}
        self._stop = threading.Event()
        self._call: grpc.Call | None = None
        self._thread = threading.Thread(target=self._run, name="kubelet-health", daemon=True)
        self.messages = 0
        """Messages received so far."""
        self.refused = False
        """The plugin does not serve what it advertises."""

    def start(self) -> None:
        """Opens the first stream."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it and waits for the thread."""
        self._stop.set()
        with self._changed:
            if self._call is not None:
                self._call.cancel()
        self._thread.join(timeout=10.0)

    def health(self, pool: str, device: str) -> Remembered:
        """What is known of a device now."""
        with self._changed:
            entry = self._devices.get((pool, device))
            if entry is None or self._clock() - entry.at > entry.timeout:
                return Remembered(HealthStatus.UNKNOWN)
            return entry.said

    def wait_for(self, pool: str, device: str, status: HealthStatus, timeout: float = 10.0) -> bool:
        """Waits until the device has this status; ``False`` after ``timeout`` seconds."""
        end = time.monotonic() + timeout
        with self._changed:
            while self.health(pool, device).status is not status:
                left = end - time.monotonic()
                if left <= 0:
                    return False
                # Time alone makes a device Unknown, so it is looked at between messages too.
                self._changed.wait(min(left, 0.05))
            return True

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._follow()
            except grpc.RpcError as error:
                call: object = error  # gRPC raises errors that also are calls
                log.debug("health stream ended: %s", error)
                if isinstance(call, grpc.Call) and call.code() is grpc.StatusCode.UNIMPLEMENTED:
                    self.refused = True
                    return
            finally:
                with self._changed:
                    self._devices.clear()
                    self._changed.notify_all()
            self._stop.wait(self._retry)

    def _follow(self) -> None:
        with self._changed:
            if self._stop.is_set():
                return
            messages: Iterable[_Message]
            if self._service == V1:
                stub = dra_health_v1_pb2_grpc.DRAResourceHealthStub(self._channel)
                messages = self._call = stub.NodeWatchResources(dra_health_v1_pb2.NodeWatchResourcesRequest())
            else:
                alpha = dra_health_v1alpha1_pb2_grpc.DRAResourceHealthStub(self._channel)
                messages = self._call = alpha.NodeWatchResources(AlphaRequest())
        for message in messages:
            self._take(dra_health_v1_pb2.NodeWatchResourcesResponse.FromString(message.SerializeToString()))

    def _take(self, message: dra_health_v1_pb2.NodeWatchResourcesResponse) -> None:
        now = self._clock()
        with self._changed:
            for device in message.devices:
                said = Remembered(_STATUS[device.health], device.message)
                seconds = device.health_check_timeout_seconds
                key = device.device.pool_name, device.device.device_name
                self._devices[key] = _Entry(said, now, float(seconds) if seconds > 0 else DEFAULT_TIMEOUT)
            for key in [key for key, entry in self._devices.items() if now - entry.at > entry.timeout]:
                del self._devices[key]
            self.messages += 1
            self._changed.notify_all()
