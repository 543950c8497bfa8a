"""Every write that can fail does, for each file that the agent owns: disk full, read-only, no permission, cut in two.

The error names the file and the remedy and reaches the pod, nothing that was there is lost, and the next attempt works
once the disk is mended. Which files there are is a table (``tests/support/ownfiles.py``), which is held to what an
agent changes in a life with every kind of claim. The agent is a process of its own before whose libc stands a library
that fails calls by path (``tests/support/preload.c``).
"""

from __future__ import annotations

import functools
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agents import DRIVER, Scene
from tests.support.ownfiles import OWN, Own, purpose
from tests.support.watched import FAULTS, MPS, REMEDY, SLICED, Fault, Watched, a_watched


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
