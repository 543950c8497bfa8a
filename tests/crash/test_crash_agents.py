"""Whole agents that SIGKILL ends at a crash point, and an API server that is away when they come back.

After the start, and the kubelet's repeated call once the server is there again, hardware, files, records and slices are
as in a life without a crash; slices never vanish meanwhile. An end of a pod needs no API server. ``GPUDRA_CRASH=all``
ends the agent at every point of every scenario.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.prepare import Phase, read_boot_id
from driver.prepare.checkpoint import stored
from driver.prepare.records import record_to_json
from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agents import CLAIMS, DRIVER, Scene, open_scene
from tests.support.crashnode import differences, hardware
from tests.support.crashscenarios import sharing, table

CHILD = Path(__file__).parent / "agent_child.py"
TABLE = table()
READINGS = "gpudra_snapshot_duration_seconds_count"
PARTITION = "-mig-1g-12gb-19-0"
LONG = sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"})
SCENARIOS: dict[str, tuple[str, Any, set[str]]] = {
    "full GPU": ("", None, set()),
    "MIG": (PARTITION, None, {"mode-on", "gi-made", "gi-known", "ci-made", "ci-gone", "gi-gone", "mode-off"}),
    "time slices": ("", LONG, {"s1", "v1"}),
    "MPS": ("", sharing("MPS"), {"s2", "v2"}),
}
"""Name -> (end of the device's name, parameters, points of its own)."""
USUAL = {
    "full GPU": {"p3", "u1", "u4"},
    "MIG": {"gi-made"},
    "MPS": {"s2"},
}
ALL = os.environ.get("GPUDRA_CRASH") == "all"
REBOOTED = {"u1", "gi-made"}
"""Points behind which the machine starts anew too."""
CELLS = [
    pytest.param(name, verb, point, reboots, id=f"{name}-{verb}-{point}{'-rebooted' if reboots else ''}")
    for name, (_, _, own) in SCENARIOS.items()
    for verb, points, always in (
        ("prepare", TABLE.prepare_points, {"p1", "p2", "p3", "p4", "p5"}),
        ("unprepare", TABLE.unprepare_points, {"u1", "u2", "u3", "u4"}),
    )
    for point in points
    if point in (own | always if ALL else USUAL.get(name, set()))
    for reboots in ((False, True) if ALL or (name != "MPS" and point in REBOOTED) else (False,))
]


class Node:
    """A scene, with one claim that is held all the time."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.claims = 0
        self.run()
        self.scene.prepare(self.claim("held", 1, "", None))

    def start(self, point: str = "never") -> None:
        self.scene.program = (str(CHILD), point)
        self.scene.start(mig="dynamic", mps_dir=self.scene.folder / "mps", health_seconds=3600, metrics_port=0)

    def run(self, point: str = "never") -> None:
        """An agent starts that ends at this point; wait until it has read the node and published."""
        seen = len(self.scene.logged("the node was read"))
        self.start(point)
        self.scene.registered()
        self.scene.until(lambda: len(self.scene.logged("the node was read")) > seen, "a reading")
        self.scene.until(self.scene.devices, "devices")

    def reboot(self) -> None:
        """Nothing is left of tmpfs folders, daemons and partitions; the boot id is another."""
        scene = self.scene
        for pid_file in (scene.folder / "mps").glob("*/*/pipe/*.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
        for folder in (scene.cdi, scene.folder / "mps"):
            shutil.rmtree(folder, ignore_errors=True)
        scene.node.reboot()

    def read(self) -> None:
        """Wait for three readings: what the first one changed is in the slices before the third one ends."""
        served = self.scene.until(lambda: self.scene.logged("metrics are served"), "metrics")

        def count() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{served[-1]['port']}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith(READINGS))

        before = count()
        self.scene.until(lambda: count() >= before + 3, "three readings")

    def claim(self, name: str, index: int, end: str, parameters: Any) -> str:
        scene = self.scene
        self.claims += 1
        full = f"{name}-{self.claims}"
        gpus = [one["name"] for one in scene.devices() if "-mig-" not in one["name"]]
        scene.give(full, f"{gpus[index]}{end}", parameters)
        return full

    def picture(self, claim: str) -> Any:
        """Everything, in which what is of one claim alone has the same names as of any other."""
        scene = self.scene
        uid = scene.client.get(f"{CLAIMS}/{claim}")["metadata"]["uid"]
        state = stored(scene.plugins / DRIVER / "gpudra")
        assert state is not None
        records = {uid: record_to_json(record) for uid, record in state.records.items()}
        for record in records.values():
            record.pop("specDigest", None)
            record["bootID"] = "this" if record["bootID"] == read_boot_id(scene.node.root / "proc") else "another"
        specs = {path.name: json.loads(path.read_bytes()) for path in scene.specs()}
        slices = [item["spec"] for item in scene.slices()]
        for spec in slices:
            spec["pool"].pop("generation")
        folders = [path.relative_to(scene.folder) for path in (scene.folder / "mps" / DRIVER).glob("*")]
        seen = {
            "hardware": hardware(scene.node),
            "records": records,
            "specs": specs,
            "slices": sorted(slices, key=json.dumps),
            "daemons": len(folders),
        }
        word = uid.upper().replace("-", "_")  # in names of variables
        text = json.dumps(seen).replace(uid, "the claim's UID").replace(word, "UID").replace(claim, "the claim")
        for folder in folders:
            text = text.replace(folder.name, "daemon")
        return json.loads(re.sub(r"MIG-[0-9a-f-]{36}", "MIG-UUID", text))

    def settled(self, claim: str, wanted: Any) -> None:
        """The picture becomes this one: slices follow a little later."""
        left: list[str] = []

        def same() -> bool:
            left[:] = differences(self.picture(claim), wanted)
            return not left

        try:
            self.scene.until(same, "the picture of a life without a crash")
        except AssertionError as error:
            raise AssertionError(f"{left}\n{error}") from None


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    base = Path(tempfile.mkdtemp(prefix="a"))  # sockets of MPS daemons lie deep in it
    with open_scene(base, "h100-nvl") as scene:
        scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
        yield Node(scene)
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="module")
def undisturbed(node: Node) -> dict[str, tuple[Any, Any]]:
    """Scenario -> pictures with the claim prepared, and behind its end."""
    found = {}
    for name, (end, parameters, _) in SCENARIOS.items():
        claim = node.claim("calm", 0, end, parameters)
        node.scene.prepare(claim)
        node.read()
        prepared = node.picture(claim)
        node.scene.unprepare(claim)
        node.read()
        found[name] = prepared, node.picture(claim)
    return found


@pytest.mark.bug("B62")
@pytest.mark.bug("B72")
@pytest.mark.parametrize(("name", "verb", "point", "reboots"), CELLS)
def test_killed_and_back_without_the_api_server(
    node: Node, undisturbed: dict[str, tuple[Any, Any]], name: str, verb: str, point: str, reboots: bool
) -> None:
    scene = node.scene
    end, parameters, _ = SCENARIOS[name]
    prepared, unprepared = undisturbed[name]
    claim = node.claim("killed", 0, end, parameters)
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
