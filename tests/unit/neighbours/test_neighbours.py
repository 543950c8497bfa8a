"""A stranger that registers under our name is found; our own instances, other drivers and dead sockets are not."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubeletplugin.api import NullObserver
from kubeletplugin.neighbours import find_foreign
from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.registration import Registered, RegistrationService

DRIVER = "gpu.nvidia.com"


class Stranger(registration_v1_pb2_grpc.RegistrationServicer):
    """GetInfo of a plugin that was made with something else."""

    def __init__(self, name: str, kind: str = "DRAPlugin") -> None:
        self.info = registration_v1_pb2.PluginInfo(type=kind, name=name, endpoint="/plugins/dra.sock")

    def GetInfo(
        self, request: registration_v1_pb2.InfoRequest, context: grpc.ServicerContext
    ) -> registration_v1_pb2.PluginInfo:
        return self.info


Serve = Callable[[str, registration_v1_pb2_grpc.RegistrationServicer], Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers: list[grpc.Server] = []

    def start(name: str, service: registration_v1_pb2_grpc.RegistrationServicer) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        server = grpc.server(ThreadPoolExecutor(1))
        registration_v1_pb2_grpc.add_RegistrationServicer_to_server(service, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(0).wait()


def ours() -> RegistrationService:
    return RegistrationService(DRIVER, Path("/plugins/dra.sock"), ("v1.DRAPlugin",), Registered(), NullObserver())


def test_a_stranger_with_our_name_is_found_and_described(serve: Serve, tmp_path: Path) -> None:
    path = serve("gpu.nvidia.com-reg.sock", Stranger(DRIVER))
    found = find_foreign(tmp_path, DRIVER)
    assert found is not None
    assert found.socket == path
    assert str(found) == f"another plugin registers as this driver at {path} (it serves at /plugins/dra.sock)"


def test_a_stranger_is_found_in_a_folder_below_too(serve: Serve, tmp_path: Path) -> None:
    path = serve("deeper/other-reg.sock", Stranger(DRIVER))
    assert find_foreign(tmp_path, DRIVER).socket == path  # type: ignore[union-attr]


def test_an_instance_of_ours_is_no_stranger(serve: Serve, tmp_path: Path) -> None:
    serve("gpu.nvidia.com-old-reg.sock", ours())
    assert find_foreign(tmp_path, DRIVER) is None


def test_a_stranger_is_found_beside_an_instance_of_ours(serve: Serve, tmp_path: Path) -> None:
    serve("a-reg.sock", ours())
    path = serve("b-reg.sock", Stranger(DRIVER))
    assert find_foreign(tmp_path, DRIVER).socket == path  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "service", [Stranger("compute-domain.nvidia.com"), Stranger(DRIVER, "CSIPlugin"), Stranger(DRIVER, "DevicePlugin")]
)
def test_other_drivers_and_other_kinds_of_plugin_are_left_alone(
    serve: Serve, tmp_path: Path, service: Stranger
) -> None:
    serve("other-reg.sock", service)
    assert find_foreign(tmp_path, DRIVER) is None


def test_a_socket_that_nobody_serves_is_passed_over(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(tmp_path / "gpu.nvidia.com-reg.sock"))
    assert find_foreign(tmp_path, DRIVER, timeout=0.2) is None


def test_a_socket_that_takes_connections_and_says_nothing_does_not_hold_us_up(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "gpu.nvidia.com-reg.sock"))
        mute.listen()
        assert find_foreign(tmp_path, DRIVER, timeout=0.2) is None


def test_hidden_sockets_and_plain_files_are_not_plugins(serve: Serve, tmp_path: Path) -> None:
    serve(".hidden-reg.sock", Stranger(DRIVER))
    serve(".folder/x-reg.sock", Stranger(DRIVER))
    (tmp_path / "file-reg.sock").write_text("no socket")
    assert find_foreign(tmp_path, DRIVER) is None


def test_a_registration_folder_that_is_not_there_has_no_plugins(tmp_path: Path) -> None:
    assert find_foreign(tmp_path / "absent", DRIVER) is None
