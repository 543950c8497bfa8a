"""The order in which devices are published decides which of them the real scheduler takes, and what still fits."""

from __future__ import annotations

import heapq
import itertools
import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from driver.names import DeviceName
from hack.cluster.layout import DRIVER_NAME
from tests.bench import partition_order
from tests.scheduler.isolation import NODE_LABEL, Document, pod
from tests.scheduler.plane import Plane, results_of
from tests.support.agents import until

CLAIMS = 50
"""Of the simulation's arrivals that are replayed."""


def published(node: str, *flags: str) -> list[Document]:
    """What ``gpudra slices`` says that a node would publish."""
    command = [sys.executable, "-m", "driver.cli.main", "slices", "--mig=dynamic", "-o", "json", f"--node-name={node}"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=True)
    items: list[Document] = json.loads(done.stdout)["items"]
    return items


def by_name(slices: Sequence[Document]) -> list[Document]:
    """The same with the devices of each slice in the order of their names."""
    made = [json.loads(json.dumps(each)) for each in slices]
    for each in made:
        each["spec"].get("devices", []).sort(key=lambda device: device["name"])
    return made


class Bench:
    """Nodes with slices, and claims for one partition each that come and go one after the other."""

    def __init__(self, plane: Plane, batch: str) -> None:
        self.plane = plane
        self.batch = batch

    def node(self, name: str, slices: Sequence[Document]) -> None:
        """A node that publishes these slices."""
        self.plane.make("nodes", {"metadata": {"name": name, "labels": {NODE_LABEL: name}}}, self.batch)
        for each in slices:
            self.plane.make("resourceslices", each, self.batch)

    def claim(self, name: str, node: str, profile: str, **more: Any) -> str | None:
        """The device that the claim of a pod for that node gets; None: none is free."""
        spec = partition_order.claim(profile)["spec"]
        spec["devices"] |= more
        self.plane.make("resourceclaims", {"metadata": {"name": name}, "spec": spec}, self.batch)
        self.plane.make("pods", pod(name, [name], {NODE_LABEL: node}), self.batch)
        verdict = self.plane.verdicts({name: [name]}, self.batch)[name]
        if not verdict.claims:
            assert verdict.reason == "Unschedulable", verdict.message
            return None
        (result,) = results_of(verdict.claims[0])
        return str(result["device"])

    def end(self, name: str) -> None:
        """The pod ends, and its claim with it; returns when its device is free for the scheduler."""
        self.plane.remove(name)
        gone = f"metadata.name={name}"
        until(lambda: not self.plane.api.items("resourceclaims", self.plane.namespace, fieldSelector=gone), gone)


@pytest.fixture
def bench(plane: Plane, request: pytest.FixtureRequest) -> Bench:
    if plane.release < 36:
        pytest.skip("Kubernetes 1.34 keeps no counters")
    return Bench(plane, request.node.name.replace("_", "-").split("[")[0][:60].strip("-"))


def start_of(device: str | None) -> int | None:
    """The first memory slice of a partition."""
    name = DeviceName.parse(device or "")
    return None if name is None else name.start


def test_the_order_decides_which_partition_is_taken_and_so_what_still_fits(bench: Bench) -> None:
    bench.node("ours", published("ours", "--mock-profile=h100-nvl"))
    bench.node("theirs", by_name(published("theirs", "--mock-profile=h100-nvl")))
    bench.plane.settle(bench.batch)
    # Both GPUs get one small partition each, then large ones are wanted.
    first = [bench.claim("o1", "ours", "1g.12gb"), bench.claim("t1", "theirs", "1g.12gb")]
    assert [start_of(each) for each in first] == [6, 0]
    whole = [f"{name}-{number}" for name in ("ours", "theirs") for number in range(2)]
    found = {name: bench.claim(name, name.split("-")[0], "4g.47gb") for name in whole}
    # On our node the GPU with the small one has room for half a GPU beside it; on the other one it has not.
    assert [name for name, device in found.items() if device] == ["ours-0", "ours-1", "theirs-0"]
    bench.plane.clear(bench.batch)


def test_pack_fills_a_gpu_and_spread_goes_round(bench: Bench) -> None:
    for order in ("pack", "spread"):
        bench.node(order, published(order, "--mock-profile=h100-nvl", f"--device-order={order}"))
    bench.plane.settle(bench.batch)
    gpus: dict[str, list[str]] = {}
    for number, order in itertools.product(range(4), ("pack", "spread")):
        name = DeviceName.parse(bench.claim(f"{order}{number}", order, "1g.12gb") or "")
        assert name is not None
        gpus.setdefault(order, []).append(str(name.address))
    one, other = sorted(set(gpus["spread"]))
    assert gpus["pack"] == [one] * 4
    assert gpus["spread"] == [one, other, one, other]
    bench.plane.clear(bench.batch)


@pytest.mark.parametrize("ascending", [False, True], ids=["ours", "by-name"])
def test_the_simulation_of_the_order_is_what_the_scheduler_does(bench: Bench, ascending: bool) -> None:
    node = f"replay-{'name' if ascending else 'ours'}"
    documents = partition_order.slices(node=node, ascending=ascending)
    sizes = partition_order.profiles(documents)
    weights = partition_order.MIXES["all profiles alike"]
    expected = list(partition_order.placed(documents, partition_order.arrivals(sizes, weights, 2.0), CLAIMS))
    bench.node(node, documents)
    bench.plane.settle(bench.batch)
    real: list[str | None] = []
    ends: list[tuple[float, str]] = []
    for number, arrival in enumerate(itertools.islice(partition_order.arrivals(sizes, weights, 2.0), CLAIMS)):
        while ends and ends[0][0] <= arrival.time:
            bench.end(heapq.heappop(ends)[1])
        name = f"{node}-{number}"
        real.append(bench.claim(name, node, arrival.profile))
        if real[-1] is None:
            bench.end(name)
        else:
            heapq.heappush(ends, (arrival.time + arrival.lifetime, name))
    assert real == expected
    assert None in real, "it was full at times"
    assert any(device and DeviceName.parse(device) for device in real)
    bench.plane.clear(bench.batch)


def test_the_classes_are_those_of_the_installation(plane: Plane) -> None:
    installed = plane.api.get("deviceclasses", None, partition_order.CLASS)
    assert installed["spec"]["selectors"] == partition_order.device_class()["spec"]["selectors"]
    assert partition_order.DRIVER == DRIVER_NAME
