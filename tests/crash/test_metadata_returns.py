"""Whole agents whose containers know their devices (KEP-5304): the files are there again before anybody asks for them.

The kubelet starts a container of a running pod anew without calling Prepare. What the container runtime needs then is
compared as a whole with what it was: CDI files, and the files that they mount.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.devicemetadata import KNOWN_VERSIONS
from tests.support.agents import CLAIMS, DRIVER, Scene, open_scene

PARTITION = "-mig-1g-12gb-19-"


class Node:
    """A scene whose agent hands out metadata. Claims: a GPU, a partition, and a partition by way of a template."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.data = scene.plugins / DRIVER / "dra-device-metadata"
        self.run()
        gpus = [one["name"] for one in scene.devices() if "-mig-" not in one["name"]]
        scene.give("whole", gpus[0])
        scene.give("part", f"{gpus[1]}{PARTITION}0")
        scene.give("made", f"{gpus[1]}{PARTITION}1")
        self.annotate("made", "my-gpu")
        self.ids = {name: scene.prepare(name) for name in ("whole", "part", "made")}
        self.uids = {name: scene.client.get(f"{CLAIMS}/{name}")["metadata"]["uid"] for name in self.ids}
        scene.until(lambda: self.files() == self.files() and len(self.files()) == 9, "nine files")

    def annotate(self, name: str, pod_claim: str) -> None:
        claim = self.scene.client.get(f"{CLAIMS}/{name}")
        claim["metadata"]["annotations"] = {"resource.kubernetes.io/pod-claim-name": pod_claim}
        self.scene.client.update(f"{CLAIMS}/{name}", claim)

    def start(self, **flags: object) -> None:
        versions = ",".join(KNOWN_VERSIONS)
        self.scene.start(mig="dynamic", metadata_versions=versions, health_seconds=3600, **flags)

    def run(self) -> None:
        self.start()
        self.scene.registered()
        self.scene.until(self.scene.devices, "devices")

    def files(self) -> dict[str, Any]:
        """Everything that the runtime reads for the claims, without what is another one with each partition."""
        found: dict[str, Any] = {}
        for folder in (self.scene.cdi, self.data):
            for path in folder.rglob("*"):
                with contextlib.suppress(FileNotFoundError):  # it was only there for a moment
                    if path.is_file():
                        found[str(path)] = [path.read_bytes(), stat.S_IMODE(path.stat().st_mode)]
        return found

    def resolvable(self) -> bool:
        """Whether a container of any of the claims could start: each CDI name is there, with all that it mounts."""
        there: dict[str, Any] = {}
        for path in self.scene.cdi.glob("*.json"):
            spec = json.loads(path.read_bytes())
            there |= {f"{spec['kind']}={one['name']}": one["containerEdits"] for one in spec["devices"]}
        names = [name for ids in self.ids.values() for name in ids]
        mounts = [mount for name in names if name in there for mount in there[name].get("mounts", ())]
        metadata = [mount["hostPath"] for mount in mounts if "dra-device-metadata" in mount["hostPath"]]
        return all(name in there for name in names) and len(metadata) == 3 and all(map(json_of, metadata))

    def uuids(self, name: str) -> set[str]:
        """What a container of the claim reads of its devices' UUIDs."""
        (path,) = (self.data / self.uids[name]).glob("*/metadata.json")
        devices = [one for request in json_of(str(path))["requests"] for one in request["devices"]]
        return {one["attributes"]["uuid"]["string"] for one in devices if "uuid" in one["attributes"]}


def json_of(path: str) -> Any:
    text = Path(path).read_text()
    return json.JSONDecoder().raw_decode(text)[0] if text else None


@pytest.fixture
def node() -> Iterator[Node]:
    base = Path(tempfile.mkdtemp(prefix="d"))
    with open_scene(base, "h100-nvl") as scene:
        scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
        yield Node(scene)
    shutil.rmtree(base, ignore_errors=True)


def specifications_gone(node: Node) -> None:
    shutil.rmtree(node.scene.cdi)


def everything_gone(node: Node) -> None:
    shutil.rmtree(node.scene.cdi)
    shutil.rmtree(node.data)


def everything_cut(node: Node) -> None:
    for path in node.files():
        Path(path).write_bytes(Path(path).read_bytes()[:40])


def everything_closed(node: Node) -> None:
    for path in node.files():
        Path(path).chmod(0o600)


HARM: list[Callable[[Node], None]] = [specifications_gone, everything_gone, everything_cut, everything_closed]


@pytest.mark.bug("B73")
@pytest.mark.parametrize("harm", HARM)
def test_an_agent_that_runs_mends_what_somebody_does_to_its_files(node: Node, harm: Callable[[Node], None]) -> None:
    before = node.files()
    harm(node)
    node.scene.until(lambda: node.files() == before, "all files as they were")
    for name in node.ids:
        node.scene.unprepare(name)
    assert node.files() == {}


@pytest.mark.bug("B73")
@pytest.mark.parametrize("harm", HARM)
def test_an_agent_that_was_killed_mends_them_at_its_start_without_the_api_server(
    node: Node, harm: Callable[[Node], None]
) -> None:
    scene = node.scene
    before = node.files()
    port = int(scene.url.rpartition(":")[2])
    scene.end(signal.SIGKILL)
    scene.server.stop()
    harm(node)
    node.start()
    scene.until(lambda: node.files() == before, "all files as they were")
    scene.server.start(port)
    scene.registered()
    assert {name: scene.prepare(name) for name in node.ids} == node.ids
    assert node.files() == before, "the kubelet's call finds nothing to do"


@pytest.mark.bug("B72")
@pytest.mark.bug("B73")
def test_behind_a_reboot_containers_can_start_before_the_kubelet_asks_and_the_api_server_answers(node: Node) -> None:
    scene = node.scene
    before, uuids = node.files(), node.uuids("whole")
    port = int(scene.url.rpartition(":")[2])
    scene.end(signal.SIGKILL)
    scene.server.stop()
    shutil.rmtree(scene.cdi)
    scene.node.reboot()
    node.start()
    scene.until(node.resolvable, "all that containers need")
    assert node.files().keys() == before.keys()
    metadata = [path for path in before if "_metadata_" in path]
    assert len(metadata) == 3
    assert {path: node.files()[path] for path in metadata} == {path: before[path] for path in metadata}
    assert node.uuids("whole") == uuids
    scene.server.start(port)
    scene.registered()
    assert {name: scene.prepare(name) for name in node.ids} == node.ids
    for name in node.ids:
        scene.unprepare(name)
    assert node.files() == {}


@pytest.mark.bug("B58")
def test_specifications_of_metadata_do_not_wait_for_a_driver_that_does_not_load(node: Node) -> None:
    scene = node.scene
    before = node.files()
    scene.end(signal.SIGKILL)
    shutil.rmtree(scene.cdi)
    scene.node.reboot()
    scene.node.set_driver_loaded(False)
    node.start()
    scene.registered()
    found = node.files()
    assert {path for path in before if "metadata" in path.removeprefix(str(scene.folder))} == found.keys()
    assert found.items() <= before.items()
    scene.unprepare("made")
    assert len(node.files()) == 4


@pytest.mark.bug("B63")
def test_metadata_that_cannot_be_made_again_is_told_at_the_claim_and_mended_when_it_can(node: Node) -> None:
    scene = node.scene
    before = node.files()
    scene.end(signal.SIGKILL)
    held = node.data / node.uids["whole"]
    shutil.rmtree(held)
    held.write_text("a file where a folder was")
    node.start()
    scene.registered()
    scene.until(lambda: len(scene.logged(f"metadata file {held}")) == 1, "a word about it")

    def told() -> list[str]:
        events = scene.client.get("/api/v1/namespaces/default/events")["items"]
        return [one["message"] for one in events if one["reason"] == "MetadataFailed"]

    (message,) = scene.until(told, "an Event on the claim")
    assert str(held) in message
    others = {path: content for path, content in before.items() if str(held) not in path}
    assert others.items() <= node.files().items()
    held.unlink()
    scene.until(lambda: node.files() == before, "all files as they were")
