"""Every write that can fail does, for each file that the agent owns: disk full, read-only, no permission, cut in two.

The error names the file and the remedy and reaches the pod, nothing that was there is lost, and the next attempt works
once the disk is mended. Which files there are is a table (``tests/support/ownfiles.py``), which is held to what an
agent changes in a life with every kind of claim. The agent is a process of its own before whose libc stands a library
that fails calls by path (``tests/support/preload.c``).
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from driver.prepare.checkpoint import stored
from kubeletplugin.devicemetadata import KNOWN_VERSIONS
from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agents import DRIVER, Scene, open_scene
from tests.support.ownfiles import OWN, Own, purpose
from tests.support.preload import CHANGES, GROWS, Control, Kind

PARAMETERS = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
SLICED = {**PARAMETERS, "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}}}
MPS = {**PARAMETERS, "sharing": {"strategy": "MPS"}}
REMEDY = re.compile(r"free space|mount|write access|check the disk")
"""What is to be done about a file that cannot be written."""


@dataclass(frozen=True)
class Fault:
    """One way in which calls fail."""

    name: str
    code: int
    kinds: Kind
    torn: bool = False

    def __str__(self) -> str:
        return self.name


FAULTS = (
    Fault("disk full", errno.ENOSPC, GROWS),
    Fault("cut in two by a full disk", errno.ENOSPC, Kind.WRITE, torn=True),
    Fault("read-only", errno.EROFS, CHANGES),
    Fault("no permission", errno.EACCES, Kind.OPEN | Kind.NAME | Kind.MODE | Kind.REMOVE | Kind.BIND),
    Fault("broken disk", errno.EIO, Kind.WRITE | Kind.SYNC),
)


class Watched:
    """A scene whose agent's calls can be failed."""

    def __init__(self, scene: Scene, control: Control) -> None:
        self.scene = scene
        self.control = control
        self.names = 0

    def start(self, **flags: object) -> None:
        scene = self.scene
        usual = {
            "mig": "dynamic",
            "mps_dir": scene.folder / "mps",
            "metadata_versions": KNOWN_VERSIONS[0],
            "health_seconds": 0.2,
            "health_recovery_seconds": 0.3,
        }
        scene.start(**{**usual, **flags})

    def run(self, **flags: object) -> None:
        """Start, and wait until the node has been read."""
        self.start(**flags)
        self.scene.registered()
        self.scene.until(self.scene.devices, "devices")

    def run_and_watch(self) -> None:
        """The same, and until events are heard."""
        watched = len(self.scene.logged("the GPUs' events are watched"))
        self.run()
        self.scene.until(lambda: len(self.scene.logged("the GPUs' events are watched")) > watched, "events")

    def claim(self, name: str, index: int = 0, config: object = None, suffix: str = "") -> str:
        """A claim of a GPU, or of the partition whose name ends so, as a scheduler would allocate it."""
        scene = self.scene
        gpus = [one["name"] for one in scene.devices() if "-mig-" not in one["name"]]
        devices = [one["name"] for one in scene.devices() if one["name"].startswith(gpus[index])]
        device = next(one for one in devices if one.endswith(suffix)) if suffix else gpus[index]
        self.names += 1
        full = f"{name}-{self.names}"
        scene.give(full, device, config)
        return full

    def end_claims(self) -> None:
        """Unprepare all but the one that is held."""
        self.control.mend()
        for ref in self.scene.kubelet.prepared_claims():
            if not ref.name.startswith("held-"):
                self.scene.unprepare(ref.name)

    def left(self) -> dict[str, bytes]:
        """What there is for claims, with its content: records, CDI files, metadata, and what daemons have."""
        scene = self.scene
        state = stored(scene.plugins / DRIVER / "gpudra")
        found = {uid: record.phase.encode() for uid, record in (state.records if state else {}).items()}
        for folder in (scene.cdi, scene.plugins / DRIVER / "dra-device-metadata", scene.folder / "mps" / DRIVER):
            for path in sorted(folder.rglob("*")):
                found[str(path)] = path.read_bytes() if path.is_file() and "mps" not in path.parts else b""
        return found


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """An agent that lives through all tests of claims, with one claim that is held all the time."""
    with a_watched() as made:
        made.run()
        made.scene.prepare(made.claim("held", 1))
        yield made


@pytest.fixture
def fresh() -> Iterator[Watched]:
    """A node of the test's own, without an agent yet."""
    with a_watched() as made:
        yield made


@contextmanager
def a_watched(under: Path | None = None) -> Iterator[Watched]:
    base = Path(tempfile.mkdtemp(prefix="w"))  # sockets of MPS daemons lie deep in it
    inside = base / "s"
    inside.mkdir()
    try:
        with open_scene(inside, "h100-nvl") as scene:
            scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
            control = Control(base, under or inside)
            scene.environment = {**control.environment, "PYTHONDONTWRITEBYTECODE": "1"}
            yield Watched(scene, control)
            control.mend()
    finally:
        shutil.rmtree(base, ignore_errors=True)


def test_the_table_has_every_file_that_an_agent_changes_and_no_other() -> None:
    with a_watched(Path("/")) as watched:
        scene = watched.scene
        watched.control.trace()
        live_with_every_kind_of_claim(watched)
        # The folder of the whole scene is looked at by whoever makes folders in it.
        foreign = (scene.node.root, scene.log, Path("/dev"), Path("/proc"))
        paths = {
            path
            for _, path in watched.control.traced()
            if path != scene.folder
            and not any(one in (path, *path.parents) for one in foreign)
            and not path.name.endswith(" (deleted)")
        }
        assert {path for path in paths if purpose(path, scene.folder) is None} == set()
        assert {purpose(path, scene.folder) for path in paths} == {own.name for own in OWN}


def live_with_every_kind_of_claim(watched: Watched) -> None:
    scene = watched.scene
    watched.run()
    claims = [watched.claim("part", 0, suffix="-mig-1g-12gb-19-0"), watched.claim("mps", 1, MPS)]
    for name in claims:
        scene.prepare(name)
    scene.until(lambda: scene.logged("the GPUs' events are watched"), "events")
    scene.node.xid(scene.node.profile.gpus[1].address, 79)
    state = scene.plugins / DRIVER / "gpudra"
    for name in ("health.json", "idle.json", "node.json", "links.json", "journal"):
        scene.until((state / name).exists, name)
    scene.end(signal.SIGKILL)
    watched.run()
    for name in claims:
        scene.unprepare(name)
    sliced = watched.claim("sliced", 0, SLICED)
    scene.prepare(sliced)
    scene.unprepare(sliced)
    assert scene.end() == 0


def failing(watched: Watched, own: Own, fault: Fault, call: Callable[[], object]) -> None:
    """Make a call while writes fail: where one failed and the call did, it is said which and what to do."""
    said: str | None = None
    watched.control.fail(own.match, fault.code, fault.kinds, torn=fault.torn)
    try:
        call()
    except KubeletError as error:
        said = str(error)
    failed = watched.control.mend()
    if said is not None:
        assert failed, said
        assert any(part in said for part in own.match.split("|")), said
        assert os.strerror(fault.code) in said
        assert REMEDY.search(said), said


CELLS = [
    pytest.param(own, fault, id=f"{own}-{fault}")
    for own in OWN
    if own.claim and own.name != "links to libraries"
    for fault in FAULTS
]


@pytest.mark.bug("B63")
@pytest.mark.parametrize(("own", "fault"), CELLS)
def test_a_claim_whose_file_cannot_be_written_is_told_so_and_goes_on_when_it_can(
    watched: Watched, own: Own, fault: Fault
) -> None:
    try:
        a_claim_meets(watched, own, fault)
    finally:
        watched.end_claims()


def a_claim_meets(watched: Watched, own: Own, fault: Fault) -> None:
    scene = watched.scene
    config = {"sliced": SLICED, "mps": MPS}[own.claim]
    before = watched.left()

    name = watched.claim("deleted", 0, config)
    failing(watched, own, fault, lambda: scene.prepare(name))
    assert before.items() <= watched.left().items()
    assert all(json.loads(path.read_text()) for path in scene.cdi.glob("*.json")), "no half of a file is seen"
    scene.unprepare(name)
    assert watched.left() == before

    name = watched.claim("tried-again", 0, config)
    failing(watched, own, fault, lambda: scene.prepare(name))
    scene.prepare(name)
    failing(watched, own, fault, lambda: scene.unprepare(name))
    assert before.items() <= watched.left().items()
    scene.unprepare(name)
    assert watched.left() == before


@pytest.mark.bug("B63")
def test_after_all_these_faults_a_killed_agent_comes_back_with_the_claim_that_was_held(watched: Watched) -> None:
    scene = watched.scene
    before = watched.left()
    assert len(before) > 3
    scene.end(signal.SIGKILL)
    watched.run()
    assert watched.left() == before
    assert not [one for one in (scene.plugins / DRIVER / "gpudra").iterdir() if "damaged" in one.name]


EVERY = os.environ.get("GPUDRA_CRASH") == "all"
HELPFUL = [own for own in OWN if not own.needed]


@pytest.mark.bug("B63")
@pytest.mark.parametrize("fault", FAULTS if EVERY else FAULTS[1:3], ids=str)
def test_a_file_that_only_helps_costs_a_warning_and_is_written_when_it_can_be(fresh: Watched, fault: Fault) -> None:
    scene, control = fresh.scene, fresh.control
    address = scene.node.profile.gpus[1].address
    state = scene.plugins / DRIVER / "gpudra"
    control.fail("|".join(own.match for own in HELPFUL), fault.code, fault.kinds, torn=fault.torn)
    fresh.run_and_watch()
    name = fresh.claim("part", 0, suffix="-mig-1g-12gb-19-0")
    scene.prepare(name)
    scene.node.xid(address, 79)
    scene.until(lambda: "taints" in json.dumps(scene.devices()), "the taint, which does not need its file")
    for own in HELPFUL:
        told = scene.until(functools.partial(warnings, scene, own.match), f"a word about {own}")
        assert any(os.strerror(fault.code) in one and REMEDY.search(one) for one in told), told
    assert control.mend() >= len(HELPFUL)
    assert not list(state.glob("*.tmp")), "what could not be written whole is not left"
    scene.end(signal.SIGKILL)

    fresh.run_and_watch()
    scene.node.xid(address, 79)
    for file in ("health.json", "idle.json", "node.json", "links.json"):
        text = scene.until(functools.partial(content, state / file), file)
        json.loads(text)
    scene.until(lambda: list((state / "journal").glob("*.jsonl")), "the journal")
    scene.unprepare(name)
    assert scene.specs() == []


def warnings(scene: Scene, about: str) -> list[str]:
    """What the agent's log says about it, from warnings on."""
    lines = [json.loads(line) for line in scene.log.read_text().splitlines() if line.startswith("{")]
    told = [line["message"] for line in lines if line["level"].lower() in ("warning", "error")]
    return [message for message in told if about in message]


def content(path: Path) -> str:
    return path.read_text() if path.exists() else ""


AT_BIND = [fault for fault in FAULTS if fault.kinds & (Kind.BIND | Kind.NAME)]
AT_START = [own for own in OWN if own.name.startswith("socket") or own.name == "folder of the plugin"]


@pytest.mark.parametrize("own", AT_START, ids=str)
def test_what_an_agent_cannot_begin_without_ends_it_with_a_word_and_it_begins_when_it_can(
    fresh: Watched, own: Own
) -> None:
    scene, control = fresh.scene, fresh.control
    for fault in AT_BIND if EVERY else AT_BIND[1:2]:
        control.fail(own.match, fault.code, fault.kinds)
        fresh.start()
        assert scene.process is not None
        assert scene.process.wait(30) == 1
        control.mend()
        text = scene.log.read_text()
        assert os.strerror(fault.code) in text  # of a socket gRPC says it, in a line of its own
        assert [line for line in text.splitlines() if line.startswith("{") and own.match in line and "check" in line]
        scene.log.unlink()
        shutil.rmtree(scene.plugins, ignore_errors=True)
    fresh.run()
    scene.prepare(fresh.claim("whole"))
