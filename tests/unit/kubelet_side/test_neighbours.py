"""Another driver of the same name is found before it is too late; an older instance is no stranger."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubeletplugin.neighbours import Neighbour, find_neighbours
from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc
from tests.unit.kubelet_side.fakes import DRIVER, Node


class Stranger(registration_v1_pb2_grpc.RegistrationServicer):
    """A plugin in another language."""

    def __init__(self, name: str) -> None:
        self.name = name

    def GetInfo(self, request: object, context: grpc.ServicerContext) -> registration_v1_pb2.PluginInfo:
        return registration_v1_pb2.PluginInfo(type="DRAPlugin", name=self.name, endpoint="/elsewhere/dra.sock")


Serve = Callable[[str, str], Path]


@pytest.fixture
def serve(node: Node) -> Iterator[Serve]:
    servers = []
    node.registry_dir.mkdir()

    def start(file: str, name: str) -> Path:
        server = grpc.server(ThreadPoolExecutor(1))
        registration_v1_pb2_grpc.add_RegistrationServicer_to_server(Stranger(name), server)
        server.add_insecure_port(f"unix:{node.registry_dir / file}")
        server.start()
        servers.append(server)
        return node.registry_dir / file

    yield start
    for server in servers:
        server.stop(0).wait()


def test_a_stranger_of_our_name_is_found_before_and_after_the_start(node: Node, serve: Serve) -> None:
    path = serve("theirs.sock", DRIVER)
    plugin = node.plugin()
    expected = [Neighbour(path, "/elsewhere/dra.sock", related=False)]
    assert plugin.foreign_plugins() == expected
    with plugin:
        assert plugin.foreign_plugins() == expected


def test_a_plugin_of_another_name_is_none_of_our_business(node: Node, serve: Serve) -> None:
    serve("theirs.sock", "other.example.com")
    assert node.plugin().foreign_plugins() == []


def test_another_instance_of_ours_is_related(node: Node) -> None:
    with node.plugin(instance_uid="old"), node.plugin(instance_uid="new") as new:
        assert new.foreign_plugins() == []
        (old,) = find_neighbours(node.registry_dir, DRIVER, own=node.registry_dir / f"{DRIVER}-new-reg.sock")
        assert old.related
        assert old.socket.name == f"{DRIVER}-old-reg.sock"


def test_what_does_not_answer_is_no_neighbour(node: Node, serve: Serve) -> None:
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as mute:
        dead.bind(os.fspath(node.registry_dir / "dead.sock"))
        dead.close()
        mute.bind(os.fspath(node.registry_dir / "mute.sock"))
        mute.listen()
        (node.registry_dir / "notes.txt").write_text("")
        hidden = serve(".hidden.sock", DRIVER)
        assert hidden.exists()
        assert find_neighbours(node.registry_dir, DRIVER, timeout=0.2) == []


def test_no_folder_means_no_neighbours(node: Node) -> None:
    assert node.plugin().foreign_plugins() == []
