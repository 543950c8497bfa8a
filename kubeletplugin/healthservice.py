"""DRAResourceHealth on the wire: v1 (kubelet 1.37 on) and v1alpha1 (1.34 to 1.39) from one board, byte for byte alike.

A stream keeps a thread for as long as the kubelet stays connected, so streams have threads of their own: Prepare never
waits for one. There are as many as a node can need; when more come, the oldest stream has to go, because it most likely
belongs to a kubelet that is no more.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import grpc

from kubeletplugin.api import DeviceHealth, HealthStatus
from kubeletplugin.health import Devices, HealthBoard, HealthStream
from kubeletplugin.proto import dra_health_v1_pb2 as pb

log = logging.getLogger(__name__)

HEALTH_SERVICES = ("v1.DRAResourceHealth", "v1alpha1.DRAResourceHealth")
"""Ids for GetInfo and names on the wire, newest first. The kubelet watches by the newest that it knows."""

MAX_STREAMS = 8

_STATUS = {
    HealthStatus.HEALTHY: pb.HEALTHY,
    HealthStatus.UNHEALTHY: pb.UNHEALTHY,
    HealthStatus.UNKNOWN: pb.UNKNOWN,
}


class HealthService:
    """Serves a board.

    Args:
        board: what is known.
        max_streams: streams at once; the oldest is ended for one more.
    """

    def __init__(self, board: HealthBoard, *, max_streams: int = MAX_STREAMS) -> None:
        self._board = board
        self._max_streams = max_streams
        # More threads than streams, so that the one which ends the oldest stream finds a thread to do it in.
        self._pool = ThreadPoolExecutor(max_streams + 4, thread_name_prefix="dra-health")
        self._lock = threading.Lock()
        self._open: dict[HealthStream, grpc.ServicerContext] = {}
        self._closed = False

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What a server needs to serve both versions."""
        behavior = partial(self._watch)
        # grpcio runs a behavior with this attribute in the given pool, not in the server's.
        behavior.experimental_thread_pool = self._pool  # type: ignore[attr-defined] # a partial takes any attribute
        method = grpc.unary_stream_rpc_method_handler(
            behavior,
            request_deserializer=pb.NodeWatchResourcesRequest.FromString,
            response_serializer=pb.NodeWatchResourcesResponse.SerializeToString,
        )
        return [grpc.method_handlers_generic_handler(name, {"NodeWatchResources": method}) for name in HEALTH_SERVICES]

    def services(self) -> tuple[str, ...]:
        """Ids for GetInfo."""
        return tuple(HEALTH_SERVICES)

    def streams(self) -> int:
        """How many kubelets listen."""
        with self._lock:
            return len(self._open)

    def close(self) -> None:
        """Ends all streams and takes no more. Before the server is stopped, which would wait for them."""
        with self._lock:
            self._closed = True
            streams = list(self._open)
        for stream in streams:
            stream.close()

    def end(self) -> None:
        """Give the threads up. After the server is stopped: a call that found none would end the server's own."""
        self._pool.shutdown(wait=False)

    def _watch(
        self, _request: pb.NodeWatchResourcesRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        stream = self._board.stream()
        ended: Callable[[], None] = stream.close
        if not context.add_callback(ended) or not self._admit(stream, context):
            return
        log.info("a kubelet watches the health of devices")
        try:
            while (devices := stream.next()) is not None:
                yield to_response(devices)
        finally:
            with self._lock:
                self._open.pop(stream, None)
            log.info("a kubelet no longer watches the health of devices")

    def _admit(self, stream: HealthStream, context: grpc.ServicerContext) -> bool:
        with self._lock:
            if self._closed:
                return False
            surplus = list(self._open.items())[: max(0, len(self._open) + 1 - self._max_streams)]
            for old, _ in surplus:
                del self._open[old]
            self._open[stream] = context
        for old, old_context in surplus:
            log.warning("more than %d health streams are open, ending the oldest", self._max_streams)
            old.close()
            # One whose reader has stopped reading is stuck in sending: only this gets it out.
            old_context.cancel()
        return True


def to_response(devices: Devices) -> pb.NodeWatchResourcesResponse:
    """The list on the wire."""
    return pb.NodeWatchResourcesResponse(devices=[_device(device) for device in devices])


def _device(device: DeviceHealth) -> pb.DeviceHealth:
    return pb.DeviceHealth(
        device=pb.DeviceIdentifier(pool_name=device.pool, device_name=device.device),
        health=_STATUS[device.status],
        last_updated_time=int(device.checked_at),
        health_check_timeout_seconds=device.timeout_seconds,
        message=device.message,
    )
