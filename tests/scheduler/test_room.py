"""What the scheduler gives away is there: claims of all kinds come and go, and no Prepare fails for want of room.

The agents publish what they publish, the scheduler places what it can, and every allocation is prepared by the agent of
its node on the mock hardware. A claim that leaves is unprepared while others arrive, as on a busy cluster.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kubeletplugin.testing.kubelet import KubeletError
from tests.scheduler.isolation import Document, pod
from tests.scheduler.machines import Machine, Model
from tests.scheduler.plane import Plane, node_of, results_of
from tests.scheduler.wishes import Wishes
from tests.support.agents import until

STEPS = int(os.environ.get("GPUDRA_SCHEDULER_STEPS", "200"))
"""Comings and goings; 1,000 take two to four minutes."""
SEED = int(os.environ.get("GPUDRA_SCHEDULER_SEED", "0"))
ROUND = 12
"""Claims that come at the same time, at most."""
STAY = 60
"""Claims that there are room and wishes for at the same time, about."""
COMMON = {"admin", "partition", "share", "vfio", "whole"}
"""Kinds that find room soon."""
MODELS = (
    Model("hopper", "dgx-h100", {"mig": "dynamic", "shares": '{"index=0": 4, "index=1": 2}',
                                 "passthrough_devices": "index=6,index=7"}),
    Model("nvl", "h100-nvl", {"mig": "dynamic"}),
    Model("blackwell", "rtx-pro-6000", {"mig": "dynamic", "device_order": "spread", "shares": '{"index=1": 3}'}),
    Model("ampere", "a100-80", {"mig": "dynamic"}, (("-i", "0", "-mig", "1"),)),
    Model("divided", "a30", {"mig": "static"}, (("-mig", "1"), ("mig", "-i", "0", "-cgi", "5,14,14", "-C"),
                                                ("mig", "-i", "1", "-cgi", "14,14,14,14", "-C"))),
    Model("small", "l40s", {"shares": '{"*": 4}'}),
    Model("virtual", "a30", {"passthrough_devices": "*"}),
)  # fmt: skip


@dataclass
class Live:
    """A claim that is prepared, with its pod."""

    name: str
    kind: str
    uid: str
    node: str
    devices: list[str]


@dataclass
class Traffic:
    """Claims that come and go."""

    plane: Plane
    machines: Mapping[str, Machine]
    chance: random.Random
    wishes: Wishes
    live: dict[str, Live] = field(default_factory=dict)
    placed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    """What made an Unprepare be repeated."""
    made: int = 0
    steps: int = 0

    def round(self) -> None:
        """Some come while others go."""
        batch = f"round-{self.steps}"
        asked = [(f"c{self.made + number}", *self.wishes.one()) for number in range(self.chance.randint(1, ROUND))]
        self.made += len(asked)
        self.plane.map(lambda one: self._arrive(one[0], one[2], one[3], batch), asked)
        surplus = max(0, len(self.live) - STAY)
        going = self.chance.sample(sorted(self.live), min(len(self.live), surplus + self.chance.randint(0, ROUND // 2)))
        self.plane.map(self._depart, going)
        self._place({name: kind for name, kind, _, _ in asked}, batch)
        self.steps += len(asked) + len(going)

    def _arrive(self, name: str, spec: Document, labels: dict[str, str], batch: str) -> None:
        """A pod asks for something."""
        self.plane.make("resourceclaims", {"metadata": {"name": name}, "spec": spec}, batch)
        self.plane.make("pods", pod(name, [name], labels), batch)

    def _place(self, coming: Mapping[str, str], batch: str) -> None:
        """Prepare what was placed and take back what was not."""
        verdicts = self.plane.verdicts({name: [name] for name in coming}, batch)
        for name, verdict in verdicts.items():
            if verdict.reason:
                self.refused[coming[name]] += 1
                assert verdict.reason == "Unschedulable", verdict.message
                self.plane.remove(name)
        placed = [(name, coming[name], verdict.claims[0]) for name, verdict in verdicts.items() if verdict.claims]
        self.plane.map(lambda one: self._prepare(*one), placed)

    def _prepare(self, name: str, kind: str, claim: Document) -> None:
        (consumer,) = claim["status"]["reservedFor"]
        devices = [result["device"] for result in results_of(claim)]
        one = Live(name, kind, consumer["uid"], str(node_of(claim)), devices)
        self.placed[kind] += 1
        self.live[name] = one
        try:
            self.machines[one.node].kubelet.prepare_pod(one.uid, self.plane.namespace, [name])
        except KubeletError as error:
            beside = [other.devices for other in list(self.live.values()) if other.node == one.node and other != one]
            self.failures.append(f"step {self.steps}: {kind} on {one.node}, {devices}: {error}; beside it {beside}")

    def _depart(self, name: str) -> None:
        """Its pod ends. The kubelet repeats what fails, and so does this; the pod is gone only then."""
        one = self.live.pop(name)
        kubelet = self.machines[one.node].kubelet
        said: list[str] = []

        def unprepared() -> bool:
            try:
                kubelet.unprepare_pod(one.uid)
            except KubeletError as error:
                said.append(str(error))
                return False
            return True

        until(unprepared, f"the end of {one.kind} on {one.node}, {one.devices}", every=0.5)
        self.repeated += said
        self.plane.remove(name)

    def end(self) -> None:
        """All go."""
        self.plane.map(self._depart, list(self.live))


@pytest.fixture
def machines(plane: Plane) -> Iterator[dict[str, Machine]]:
    """All nodes, running."""
    if plane.release < 36:
        pytest.skip("Kubernetes 1.34 keeps no counters and no shares")
    base = Path(tempfile.mkdtemp(prefix="m"))  # paths of sockets are short
    made = {model.name: Machine(plane, model, _made(base / str(number))) for number, model in enumerate(MODELS)}
    try:
        for machine in made.values():
            machine.start()
        yield made
    finally:
        for machine in made.values():
            machine.stop()
        plane.clear("machines")
        shutil.rmtree(base, ignore_errors=True)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def profiles(devices: Sequence[Document]) -> list[str]:
    """The partitions that a node offers, the smallest first."""
    sizes = {
        device["attributes"]["profile"]["string"]: device["attributes"]["placementSize"]["int"]
        for device in devices
        if device["attributes"]["type"] == {"string": "mig"}
    }
    return sorted(sizes, key=lambda name: (sizes[name], name))


@pytest.mark.timeout(900)
def test_what_the_scheduler_gives_away_is_there(
    plane: Plane, machines: dict[str, Machine], record_property: Callable[[str, object], None]
) -> None:
    offered = [profiles(machine.devices(plane.api)) for machine in machines.values()]
    plane.settle("machines")
    wishes = Wishes(random.Random(SEED + 1), [each for each in offered if each])
    traffic = Traffic(plane, machines, random.Random(SEED), wishes)
    while traffic.steps < STEPS and not traffic.failures:
        traffic.round()
    traffic.end()
    print(f"{traffic.steps} steps, placed {dict(traffic.placed)}, refused {dict(traffic.refused)}")
    print(f"Unprepare was repeated: {Counter(traffic.repeated)}")
    record_property("placed", dict(traffic.placed))
    record_property("refused", dict(traffic.refused))
    assert not traffic.failures, "\n".join(
        [*traffic.failures, *(machine.complaints() for machine in machines.values())]
    )
    until(lambda: not any(machine.left() for machine in machines.values()), "nothing of claims to be left anywhere")
    if STEPS >= 200:
        assert set(traffic.placed) >= (set(wishes.kinds) if STEPS >= 1000 else COMMON), "kinds that found room"
        assert sum(traffic.refused.values()) > STEPS / 20, "the nodes were full"
