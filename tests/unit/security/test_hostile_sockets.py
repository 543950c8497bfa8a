"""Sockets and what stands in their place: modes, foreign files, foreign servers."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubeletplugin.neighbours import find_neighbours
from kubeletplugin.sockets import SocketError, bind_server, make_folder, remove_dead, socket_paths

DRIVER = "gpu.nvidia.com"


@pytest.fixture
def short() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="x") as folder:
        yield Path(folder)


@pytest.fixture
def server() -> Iterator[grpc.Server]:
    made = grpc.server(ThreadPoolExecutor(1))
    yield made
    made.stop(0).wait()


@pytest.mark.bug("B133")
def test_sockets_are_roots_alone_and_lie_in_a_folder_that_is_closed(short: Path, server: grpc.Server) -> None:
    paths = socket_paths(DRIVER, short / "plugins", short / "registry", None)
    paths.dra.parent.mkdir(parents=True)
    paths.dra.parent.chmod(0o777)
    make_folder(paths.dra.parent, private=True)
    bound = bind_server(server, paths.dra)
    assert stat.S_IMODE(paths.dra.lstat().st_mode) == 0o600
    assert stat.S_IMODE(paths.dra.parent.stat().st_mode) == 0o750
    bound.remove()
    assert not paths.dra.exists()


@pytest.mark.parametrize("kind", ["file", "folder", "pipe", "link"])
def test_what_is_no_socket_is_neither_replaced_nor_followed(short: Path, server: grpc.Server, kind: str) -> None:
    path, target = short / "dra.sock", short / "target"
    target.write_text("theirs")
    make = {"file": path.touch, "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}
    make.get(kind, lambda: path.symlink_to(target))()
    with pytest.raises(SocketError, match="is not a socket; move it away"):
        bind_server(server, path)
    assert os.path.lexists(path)
    assert target.read_text() == "theirs"


def test_a_foreign_socket_that_lives_is_not_removed_with_dead_ones(short: Path) -> None:
    paths = socket_paths(DRIVER, short / "plugins", short / "registry", None)
    for folder in (paths.dra.parent, paths.registration.parent):
        folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as living, socket.socket(socket.AF_UNIX) as dead:
        living.bind(str(paths.dra))
        living.listen()
        dead.bind(str(paths.registration))
        dead.close()
        other = paths.registration.with_name("other.example-reg.sock")
        other.touch()
        remove_dead(paths, DRIVER, None)
        assert paths.dra.exists()
        assert not paths.registration.exists()
        assert other.exists()


def test_neighbours_that_say_nothing_say_nonsense_or_are_no_sockets_are_passed_over(short: Path) -> None:
    (short / "file-reg.sock").touch()
    os.mkfifo(short / "pipe-reg.sock")
    (short / "link-reg.sock").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(short / "silent-reg.sock"))
        silent.listen()
        assert find_neighbours(short, DRIVER, timeout=0.2) == []
