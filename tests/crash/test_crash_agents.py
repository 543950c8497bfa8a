"""Whole agents that SIGKILL ends at a crash point, and an API server that is away when they come back.

After the start, and the kubelet's repeated call once the server is there again, hardware, files, records and slices are
as in a life without a crash; slices never vanish meanwhile. An end of a pod needs no API server. Every step of the
table is in a cell, with a restart and with a reboot. ``GPUDRA_CRASH=all`` ends the agent at every point of every way of
having a GPU.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from driver.prepare import Phase
from driver.prepare.checkpoint import stored
from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agentnodes import KINDS, Node, NodeKind, Nodes, Way
from tests.support.agents import DRIVER
from tests.support.crashscenarios import ALWAYS, steps_of, table

TABLE = table()
ALL = os.environ.get("GPUDRA_CRASH") == "all"
OF_ALL = {"p1", "p2", "p3", "p4", "p5", "u1", "u2", "u3", "u4"}
"""Points of steps that every claim has something of."""
REBOOTED = {"u1", "gi-made", "s0", "s4", "v4"}
"""Points behind which the machine starts anew too."""
CELLS: list[tuple[NodeKind, Way, str, str, bool]] = [
    (kind, way, verb, point, reboots)
    for kind in KINDS
    for way in kind.ways
    for verb, points in (("prepare", TABLE.prepare_points), ("unprepare", TABLE.unprepare_points))
    for point in points
    if point in (way.points | OF_ALL if ALL else way.usual)
    for reboots in ((False, True) if ALL or point in REBOOTED else (False,))
]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.end()


def name_of(cell: tuple[NodeKind, Way, str, str, bool]) -> str:
    _, way, verb, point, reboots = cell
    return f"{way}-{verb}-{point}{'-rebooted' if reboots else ''}"


@pytest.mark.parametrize("verb", ["prepare", "unprepare"])
def test_every_step_of_the_table_is_in_a_cell(verb: str) -> None:
    steps = {step for _, way, of, _, _ in CELLS if of == verb for step in way.steps}
    assert steps | set(ALWAYS) == set(steps_of(TABLE))
    rebooted = {step for _, way, _, _, reboots in CELLS if reboots for step in way.steps}
    assert {"mig", "share", "vfio"} <= rebooted


@pytest.mark.bug("B62")
@pytest.mark.bug("B72")
@pytest.mark.parametrize(("kind", "way", "verb", "point", "reboots"), CELLS, ids=[name_of(cell) for cell in CELLS])
def test_killed_and_back_without_the_api_server(
    nodes: Nodes, kind: NodeKind, way: Way, verb: str, point: str, reboots: bool
) -> None:
    with nodes.of(kind) as node:
        killed_and_back(node, way, verb, point, reboots=reboots)


def killed_and_back(node: Node, way: Way, verb: str, point: str, *, reboots: bool) -> None:
    scene = node.scene
    prepared, unprepared = node.undisturbed(way)
    claim = node.claim("killed", way)
    if verb == "unprepare":
        scene.prepare(claim)
    scene.end(signal.SIGKILL)
    node.run(point)
    slices = {item["metadata"]["uid"] for item in scene.slices()}
    with pytest.raises(KubeletError):
        (scene.prepare if verb == "prepare" else scene.unprepare)(claim)
    assert scene.process is not None
    assert scene.process.wait(30) == -signal.SIGKILL

    port = int(scene.url.rpartition(":")[2])
    scene.server.stop()
    if reboots:
        node.reboot()
    readings = len(scene.logged("the node was read"))
    node.start()
    scene.registered()
    scene.until(lambda: len(scene.logged("the node was read")) > readings, "a reading")
    if verb == "unprepare":
        scene.unprepare(claim)
    scene.server.start(port)

    if verb == "prepare":
        scene.prepare(claim)
        node.settled(claim, prepared)
        scene.unprepare(claim)
    node.settled(claim, unprepared)
    assert slices & {item["metadata"]["uid"] for item in scene.slices()}, "slices are never taken away"
    state = stored(scene.plugins / DRIVER / "gpudra")
    assert state is not None
    assert [record.phase for record in state.records.values()] == [Phase.PREPARED]
