"""What an agent cannot begin without: its folders and both sockets, where the kernel or somebody's file is in the way.

It ends with exit code 1 and a word that names the path and the remedy (the pod's restart is the retry), changes nothing
of what claims have, and works once that is mended. What is in nobody's way, like a socket of a process that was killed,
costs a warning at most.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.agents import CLAIMS, DRIVER
from tests.support.preload import Kind
from tests.support.watched import FAULTS, REMEDY, Fault, Watched, a_watched

PLACES = {
    "folder of the registration": "plugins_registry",
    "folder of the plugin": f"plugins/{DRIVER}",
    "socket of the registration": f"plugins_registry/{DRIVER}-reg.sock",
    "socket of the plugin": f"plugins/{DRIVER}/dra.sock",
}
SOCKETS = [name for name in PLACES if name.startswith("socket")]
REFUSALS = [fault for fault in FAULTS if fault.kinds & (Kind.BIND | Kind.NAME)]


class Held:
    """A node on which a claim is prepared, and on which no agent lives now."""

    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.scene = watched.scene
        watched.run()
        self.name = watched.claim("held", 1)
        self.ids = self.scene.prepare(self.name)
        self.rest()

    def rest(self) -> None:
        """The agent ends as a pod does."""
        assert self.scene.end() == 0
        self.before = self.watched.left()
        self.slices = {item["metadata"]["uid"] for item in self.scene.slices()}

    def path(self, place: str) -> Path:
        return self.scene.folder / PLACES[place]

    def refused(self) -> list[str]:
        """An agent starts and ends; what it said is wrong."""
        scene = self.scene
        scene.log.unlink()
        self.watched.start()
        assert scene.process is not None
        assert scene.process.wait(30) == 1
        lines = [json.loads(line) for line in scene.log.read_text().splitlines() if line.startswith("{")]
        return [line["message"] + line.get("exception", "") for line in lines if line["level"] == "error"]

    def untouched(self) -> None:
        assert self.watched.left() == self.before
        assert {item["metadata"]["uid"] for item in self.scene.slices()} == self.slices

    def mended(self) -> None:
        """An agent starts and serves the claim as before, and others."""
        scene = self.scene
        self.watched.run()
        assert scene.prepare(self.name) == self.ids
        assert self.watched.left() == self.before
        other = self.watched.claim("other", 0)
        scene.prepare(other)
        scene.unprepare(other)
        scene.client.delete(f"{CLAIMS}/{other}")
        self.rest()


@pytest.fixture(scope="module")
def node() -> Iterator[Held]:
    with a_watched() as watched:
        yield Held(watched)


@pytest.fixture
def held(node: Held) -> Iterator[Held]:
    """What a test has put in the way is taken away behind it."""
    yield node
    node.watched.control.mend()
    if node.scene.alive():
        node.scene.end(signal.SIGKILL)


@pytest.mark.bug("B63")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", REFUSALS, ids=str)
def test_what_the_kernel_refuses_ends_the_agent_with_a_word_and_it_begins_when_it_can(
    held: Held, place: str, fault: Fault
) -> None:
    if place in SOCKETS:
        match = "-reg.sock" if "registration" in place else "/dra"
    elif place == "folder of the plugin":
        match = str(held.path(place))
        held.scene.plugins.rename(held.scene.plugins.with_name("aside"))
    else:
        match = str(held.path(place))
        held.path(place).rmdir()
    held.watched.control.fail(match, fault.code, fault.kinds)
    said = held.refused()
    assert held.watched.control.mend() > 0
    if place == "folder of the plugin":
        shutil.rmtree(held.scene.plugins, ignore_errors=True)
        held.scene.plugins.with_name("aside").rename(held.scene.plugins)
    held.path("folder of the registration").mkdir(exist_ok=True)
    (told,) = [one for one in said if match in one]
    assert os.strerror(fault.code) in told, "of a socket gRPC itself does not say it"
    assert REMEDY.search(told), told
    held.untouched()
    held.mended()


def a_file(path: Path) -> None:
    path.write_text("somebody's notes")


def a_folder(path: Path) -> None:
    path.mkdir()
    (path / "notes").write_text("somebody's notes")


def a_link(path: Path) -> None:
    path.symlink_to(path.with_name("elsewhere.sock"))


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


IN_THE_WAY: list[Callable[[Path], None]] = [a_file, a_folder, a_link, a_pipe]


@pytest.mark.bug("B63")
@pytest.mark.parametrize("place", SOCKETS)
@pytest.mark.parametrize("put", IN_THE_WAY)
def test_what_somebody_put_in_a_sockets_place_stays_and_is_named(
    held: Held, place: str, put: Callable[[Path], None]
) -> None:
    path = held.path(place)
    put(path)
    status = path.lstat()
    said = held.refused()
    (told,) = [one for one in said if str(path) in one]
    assert "is not a socket; move it away" in told
    assert os.path.samestat(path.lstat(), status)
    others = {"folder of the plugin", "folder of the registration"}
    assert not [one for name in others for one in held.path(name).glob("*.sock") if one != path], "nothing half-made"
    held.untouched()
    shutil.rmtree(path) if put is a_folder else path.unlink()
    held.mended()


@pytest.mark.bug("B63")
def test_a_file_in_the_place_of_the_registrations_folder_is_named(held: Held) -> None:
    path = held.path("folder of the registration")
    path.rmdir()
    path.write_text("somebody's notes")
    said = held.refused()
    path.unlink()
    path.mkdir()
    assert [one for one in said if f"folder {path} cannot be used" in one and "move it away" in one]
    held.untouched()
    held.mended()


@pytest.mark.bug("B37")
@pytest.mark.parametrize("place", SOCKETS)
def test_a_socket_that_nobody_serves_any_more_is_in_nobodys_way(held: Held, place: str) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(held.path(place)))
    held.mended()
    assert not held.path(place).exists()


@pytest.mark.bug("B37")
def test_dead_sockets_that_cannot_be_removed_cost_a_warning(held: Held) -> None:
    scene = held.scene
    held.watched.run()
    scene.end(signal.SIGKILL)
    held.watched.control.fail("-reg.sock|/dra", errno.EACCES, Kind.REMOVE)
    scene.log.unlink()
    held.watched.run()
    assert held.watched.control.mend() > 0
    assert scene.prepare(held.name) == held.ids
    told = [one["message"] for one in scene.logged("cannot be removed")]
    assert [one for one in told if str(held.path("socket of the registration")) in one and REMEDY.search(one)]
    held.rest()
    held.mended()


@pytest.mark.bug("B115")
@pytest.mark.parametrize("flag", ["plugins_dir", "registry_dir"])
def test_a_path_that_no_socket_fits_into_is_told_with_its_length_and_what_helps(held: Held, flag: str) -> None:
    deep = held.scene.folder / ("deep" * 30)
    held.scene.log.unlink()
    held.watched.start(**{flag: deep})
    assert held.scene.process is not None
    assert held.scene.process.wait(30) == 1
    text = held.scene.log.read_text()
    assert str(deep) in text
    assert "unix sockets allow 107" in text
    assert "use a shorter driver name, or a shorter path to the kubelet's folder" in text
    held.untouched()
    shutil.rmtree(deep, ignore_errors=True)
    held.mended()
