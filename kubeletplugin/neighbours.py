"""Who else on this node claims to be the same driver.

Two different drivers of one name would hand out the same hardware. An older or newer instance of the same driver is
welcome (that is a rolling update); it is told from a stranger by the mark that this library puts beside its GetInfo.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.registration import IMPLEMENTATION_KEY, IMPLEMENTATION_NAME, PLUGIN_TYPE

log = logging.getLogger(__name__)

GET_INFO_TIMEOUT = 1.0
"""Seconds; what the kubelet gives."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A living plugin of the same name that is not ours."""

    socket: Path
    """Its registration socket."""
    endpoint: str
    """Where it serves."""

    def __str__(self) -> str:
        return f"another plugin registers as this driver at {self.socket} (it serves at {self.endpoint or self.socket})"


def find_foreign(registry_dir: Path, driver_name: str, timeout: float = GET_INFO_TIMEOUT) -> Neighbour | None:
    """The first living DRA plugin of this name in the registration folder that was not made with this library.

    Args:
        registry_dir: the folder that the kubelet watches; a folder that is not there has no plugins.
        driver_name: the DRA driver's name.
        timeout: seconds for each socket. One that does not answer is stale, or somebody else's trouble.
    """
    for socket in _sockets(registry_dir):
        try:
            with grpc.insecure_channel(f"unix:{socket}") as channel:
                stub = registration_v1_pb2_grpc.RegistrationStub(channel)
                info, call = stub.GetInfo.with_call(registration_v1_pb2.InfoRequest(), timeout=timeout)
        except grpc.RpcError as error:
            log.debug("%s does not answer: %s", socket, error)
            continue
        mine = (IMPLEMENTATION_KEY, IMPLEMENTATION_NAME) in {(key, value) for key, value in call.initial_metadata()}
        if info.type == PLUGIN_TYPE and info.name == driver_name and not mine:
            return Neighbour(socket, info.endpoint)
    return None


def _sockets(folder: Path) -> Iterator[Path]:
    """Sockets below the folder, as the kubelet looks for them: names that begin with a dot are not plugins'."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if not hidden and path.is_socket():
            yield path
