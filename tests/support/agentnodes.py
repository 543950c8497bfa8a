"""Nodes with whole agents that are killed: ways of having a GPU, and all that can be seen of a node as one value."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from driver.prepare import read_boot_id
from driver.prepare.checkpoint import stored
from driver.prepare.records import record_to_json
from native.mock import MockNode
from tests.support.agents import CLAIMS, DRIVER, Scene, open_scene
from tests.support.crashnode import differences, hardware, unbind_all
from tests.support.crashscenarios import NOT_MADE, sharing

CHILD = Path(__file__).parents[1] / "crash/agent_child.py"
READINGS = "gpudra_snapshot_duration_seconds_count"


@dataclass(frozen=True)
class Way:
    """One way of having a GPU.

    Args:
        gpu: the GPU's place among those of the node.
        end: of the device's name.
        points: crash points that only such claims have something to do at, beside those of all claims.
        usual: the points that are tried where not all are.
        steps: names of the steps of the table that have something to do, beside those of every claim.
        result: further fields of the allocation result.
    """

    name: str
    gpu: int = 0
    end: str = ""
    parameters: Any = None
    points: frozenset[str] = frozenset()
    usual: frozenset[str] = frozenset()
    steps: frozenset[str] = frozenset()
    result: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name


def nothing(node: MockNode) -> None:
    """The administrator leaves the node as it is."""


def partitioned_by_hand(node: MockNode) -> None:
    """What the administrator does at each boot."""
    node.nvidia_smi("-i", "0", "-mig", "1")
    node.nvidia_smi("mig", "-i", "0", "-cgi", "9:4,14:0,14:2", "-C")


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one configuration.

    Args:
        flags: of the agent, beside the usual ones.
        held: how the claim is had that nothing may happen to.
        ways: what is tried there.
        boot: what the administrator's services do at each boot.
    """

    name: str
    flags: Mapping[str, Any]
    held: Way
    ways: tuple[Way, ...]
    boot: Callable[[MockNode], None] = nothing


def a_share(number: int) -> dict[str, Any]:
    """What the scheduler says of a quarter of a GPU."""
    share_id = f"{number:08x}-0f3a-4b6d-9a6e-0d6f1f0c2a11"
    return {"shareID": share_id, "consumedCapacity": {"shares": "1", "memory": "20Gi"}}


OTHER_GPU = Way("other GPU", gpu=1)
LONG = sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"})
SHORT = sharing("TimeSlicing", timeSlicingConfig={"interval": "Short"})
MIG_POINTS = frozenset({"mode-on", "gi-made", "gi-known", "ci-made", "ci-gone", "gi-gone", "mode-off"})
SHARE_POINTS = frozenset({"s0", "s3", "v3", "v0"})
SLICE_POINTS = frozenset({"s1", "s5", "v1", "v5"})
MPS_POINTS = frozenset({"s2", "s5", "v2", "v5"})
SHARE_STEPS = frozenset({"share", "sharingRules"})

KINDS = (
    NodeKind(
        "dynamic MIG",
        {"mig": "dynamic"},
        OTHER_GPU,
        (
            Way("full GPU", usual=frozenset({"p3", "u1", "u4"})),
            Way("MIG", 0, "-mig-1g-12gb-19-0", None, MIG_POINTS, frozenset({"gi-made", "ci-gone"}), frozenset({"mig"})),
            Way("time slices", 0, "", LONG, SLICE_POINTS, frozenset(), frozenset({"timeSlice", "modes"})),
            Way("MPS", 0, "", sharing("MPS"), MPS_POINTS, frozenset({"s2"}), frozenset({"mps", "modes"})),
        ),
    ),
    NodeKind(
        "MIG by hand",
        {"mig": "static"},
        Way("other partition", 0, "-mig-2g-24gb-14-0"),
        (
            Way(
                "static MIG",
                end="-mig-3g-47gb-9-4",
                points=MIG_POINTS - NOT_MADE,
                usual=frozenset({"p3", "u1"}),
                steps=frozenset({"mig"}),
            ),
        ),
        partitioned_by_hand,
    ),
    NodeKind(
        "shares",
        {"shares": '{"*": 4}'},
        Way("other share", result=a_share(9)),
        (
            Way("shares", 0, "", None, SHARE_POINTS, frozenset({"s0", "u1", "v0"}), SHARE_STEPS, a_share(1)),
            Way(
                "shares with time slices",
                gpu=1,
                parameters=SHORT,
                points=SHARE_POINTS | SLICE_POINTS,
                usual=frozenset({"s1", "v5"}),
                steps=SHARE_STEPS | {"timeSlice", "modes"},
                result=a_share(2),
            ),
            Way(
                "shares with MPS",
                gpu=1,
                parameters=sharing("MPS"),
                points=SHARE_POINTS | MPS_POINTS,
                usual=frozenset({"s2", "v2"}),
                steps=SHARE_STEPS | {"mps", "modes"},
                result=a_share(3),
            ),
        ),
    ),
    NodeKind(
        "passthrough",
        {"passthrough_devices": "*"},
        OTHER_GPU,
        (
            Way(
                "VFIO",
                end="-vfio",
                points=frozenset({"s4", "v4"}),
                usual=frozenset({"p1", "s4", "u1", "v4"}),
                steps=frozenset({"vfio"}),
            ),
        ),
    ),
)


class Node:
    """A scene on which everything of one kind of node can be tried, with one claim that is held all the time."""

    def __init__(self, scene: Scene, kind: NodeKind) -> None:
        self.scene = scene
        self.kind = kind
        self.claims = 0
        self._served = 0
        """Of how many agents before the present one metrics were served."""
        self._calm: dict[str, tuple[Any, Any]] = {}
        scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
        kind.boot(scene.node)
        self.run()
        self.scene.prepare(self.claim("held", kind.held))

    def start(self, point: str = "never") -> None:
        self.scene.program = (str(CHILD), point)
        self._served = len(self.scene.logged("metrics are served"))
        flags = {"mps_dir": self.scene.folder / "mps", "health_seconds": 3600, "metrics_port": 0, **self.kind.flags}
        self.scene.start(**flags)

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
        unbind_all(scene.node)
        scene.node.reboot()
        self.kind.boot(scene.node)

    def read(self) -> None:
        """Wait for three readings: what the first one changed is in the slices before the third one ends."""
        served = self.scene.until(lambda: self.scene.logged("metrics are served")[self._served :], "metrics")

        def count() -> float:
            with urllib.request.urlopen(f"http://127.0.0.1:{served[-1]['port']}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
            return sum(float(line.split()[-1]) for line in lines if line.startswith(READINGS))

        before = count()
        self.scene.until(lambda: count() >= before + 3, "three readings")

    def claim(self, name: str, way: Way) -> str:
        self.claims += 1
        full = f"{name}-{self.claims}"
        address = self.scene.node.profile.gpus[way.gpu].address
        gpu = f"gpu-{address.replace(':', '-').replace('.', '-')}"
        self.scene.give(full, f"{gpu}{way.end}", way.parameters, **way.result)
        return full

    def undisturbed(self, way: Way) -> tuple[Any, Any]:
        """Pictures of a life without a crash: with a claim of that way prepared, and behind its end."""
        if way.name not in self._calm:
            claim = self.claim("calm", way)
            self.scene.prepare(claim)
            self.read()
            prepared = self.picture(claim)
            self.scene.unprepare(claim)
            self.read()
            self._calm[way.name] = prepared, self.picture(claim)
        return self._calm[way.name]

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


@contextmanager
def a_node(kind: NodeKind) -> Iterator[Node]:
    """A node of that kind, with an agent that is registered."""
    base = Path(tempfile.mkdtemp(prefix="a"))  # sockets of MPS daemons lie deep in it
    try:
        with open_scene(base, "h100-nvl") as scene:
            yield Node(scene, kind)
    finally:
        shutil.rmtree(base, ignore_errors=True)


class Nodes:
    """Makes the node that a way of having a GPU needs; one is kept, for tests come in the order of the kinds, as long
    as tests leave it as it was."""

    def __init__(self) -> None:
        self._made: tuple[NodeKind, Node, contextlib.ExitStack] | None = None

    @contextmanager
    def of(self, kind: NodeKind) -> Iterator[Node]:
        """The node of that kind; a failure ends it."""
        if self._made is None or self._made[0] is not kind:
            self.end()
            stack = contextlib.ExitStack()
            self._made = kind, stack.enter_context(a_node(kind)), stack
        try:
            yield self._made[1]
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the one that there is."""
        made, self._made = self._made, None
        if made is not None:
            made[2].close()
