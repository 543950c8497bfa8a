"""Who else registers the driver's name on this node.

Two drivers of one name take turns at the kubelet's calls without knowing of each other's claims. During an upgrade
that is meant (two instances of one program over one state); with another vendor's driver it loses devices. A socket
that answers GetInfo with our name is an instance of this library if it also answers
``kubeletplugin.Instance/Describe``, which the kubelet never calls.
"""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import grpc
import msgspec

from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc

log = logging.getLogger(__name__)

INSTANCE_SERVICE = "kubeletplugin.Instance"


class Neighbour(msgspec.Struct, frozen=True):
    """A plugin that answers from a registration socket."""

    socket: Path
    endpoint: str
    related: bool
    """Made with this library: another instance of the same program, by all that can be known."""


def instance_handler() -> grpc.GenericRpcHandler:
    """What a registration server answers to be known as related."""
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: request,
        request_deserializer=registration_v1_pb2.InfoRequest.FromString,
        response_serializer=registration_v1_pb2.InfoRequest.SerializeToString,
    )
    return grpc.method_handlers_generic_handler(INSTANCE_SERVICE, {"Describe": handler})


def find_neighbours(
    registry_dir: Path, driver_name: str, *, own: Path | None = None, timeout: float = 1.0
) -> list[Neighbour]:
    """Asks every live socket of the registry folder for its name; those with ours, in the order of their paths.

    Sockets that nobody listens behind or that do not answer within ``timeout`` seconds each are no neighbours: the
    kubelet would not register them either.

    Args:
        registry_dir: the folder that the kubelet watches; none there means no neighbours.
        driver_name: the name in question.
        own: the caller's registration socket, left out.
        timeout: seconds for each socket.
    """
    found = []
    for root, _folders, names in os.walk(registry_dir):
        for name in sorted(names):
            path = Path(root, name)
            if path != own and not name.startswith(".") and _is_socket(path):
                found.append(_ask(path, driver_name, timeout))
    return sorted((one for one in found if one is not None), key=lambda one: one.socket)


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _ask(path: Path, driver_name: str, timeout: float) -> Neighbour | None:
    with grpc.insecure_channel(f"unix:{path}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        try:
            info = stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=timeout)
        except grpc.RpcError as error:
            log.debug("registration socket %s does not answer: %s", path, error)
            return None
        if info.name != driver_name:
            return None
        return Neighbour(path, info.endpoint, related=_is_related(channel, timeout))


def _is_related(channel: grpc.Channel, timeout: float) -> bool:
    describe = channel.unary_unary(
        f"/{INSTANCE_SERVICE}/Describe",
        request_serializer=registration_v1_pb2.InfoRequest.SerializeToString,
        response_deserializer=registration_v1_pb2.InfoRequest.FromString,
    )
    try:
        describe(registration_v1_pb2.InfoRequest(), timeout=timeout)
    except grpc.RpcError as error:
        log.debug("not an instance of this library: %s", error)
        return False
    return True
