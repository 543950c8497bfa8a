"""What the order of partitions is worth: ``python -m tests.bench.partition_order [requests [board]]``.

Eight GPUs of a board take claims for one partition each that come and go, as the port of the scheduler's allocator
gives them out over the published slices; claims that find no room are lost. Arrivals and lifetimes are exponential. The
share of lost claims is counted once with the devices of each slice in the order of their names, as NVIDIA's driver
sorts them, and once as the pool has them, those that block the fewest others first. Claims, times and sizes are the
same in both; the load is in memory slices. ``tests/scheduler/test_order.py`` replays the same on the real scheduler.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driver.analysis.allocator import Allocator, rules
from driver.model import Gpu, GpuState, MigMode, MigSupport, NodeInventory, PciAddress
from driver.publish import build_pool, slice_objects
from tests.unit.publish.test_partition_counters import BOARDS

Document = dict[str, Any]

GPUS = 8
BOARD = "A100-SXM4-40GB"
DRIVER = "gpu.nvidia.com"
CLASS = "mig.nvidia.com"
RELEASE = 37
MIXES: Mapping[str, Sequence[int]] = {
    "all profiles alike": (1, 1, 1, 1, 1, 1),
    "mostly small": (8, 4, 4, 2, 1, 1),
    "none whole": (1, 1, 1, 1, 1, 0),
}
"""Weights of the profiles, the smallest first."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A claim for one partition."""

    time: float
    profile: str
    lifetime: float


def slices(board: str = BOARD, *, node: str = "node-a", ascending: bool = False) -> list[Document]:
    """The slices of a node with eight such GPUs in MIG mode, by name; ``ascending``: devices sorted by their names."""
    gpus = tuple(
        Gpu(
            PciAddress(0, 0x10 + number, 0, 0),
            GpuState.READY,
            uuid=f"GPU-{number}",
            architecture="Ampere",
            memory_bytes=1 << 30,
            mig=MigMode(current=True, pending=True),
            mig_profiles=BOARDS[board],
        )
        for number in range(GPUS)
    )
    inventory = NodeInventory("1", (13, 0), "13", gpus)
    pool = build_pool(inventory, node_name=node, driver_name=DRIVER, mig=MigSupport.DYNAMIC, counters=True)
    made = []
    for each in slice_objects(pool, node_name=node, driver_name=DRIVER):
        spec = each["spec"]
        if ascending and "devices" in spec:
            spec = spec | {"devices": sorted(spec["devices"], key=lambda device: str(device["name"]))}
        made.append({**each, "metadata": {"name": each["metadata"]["generateName"] + "0"}, "spec": spec})
    return made


def profiles(documents: Sequence[Document]) -> dict[str, int]:
    """Memory slices of a partition by its profile, the smallest first; without those that only have more engines."""
    found = {}
    for each in documents:
        for device in each["spec"].get("devices", ()):
            values = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
            found[str(values["profile"])] = int(values["placementSize"])
    plain = [name for name in found if "+" not in name and "-" not in name]
    return {name: found[name] for name in sorted(plain, key=_size)}


def _size(profile: str) -> tuple[int, int]:
    compute, memory = profile.split(".")
    return int(compute.rstrip("g")), int(memory.rstrip("gb"))


def arrivals(sizes: Mapping[str, int], weights: Sequence[int], load: float, seed: int = 20261130) -> Iterator[Arrival]:
    """Claims without end, that would fill this part of all memory slices if all found room."""
    mean = sum(size * weight for size, weight in zip(sizes.values(), weights, strict=True)) / sum(weights)
    whole = max(sizes.values()) * GPUS
    chance = random.Random(seed)
    now = 0.0
    while True:
        now += chance.expovariate(load * whole / mean)
        (profile,) = chance.choices(list(sizes), weights)
        yield Arrival(now, profile, chance.expovariate(1.0))


def claim(profile: str) -> Document:
    """The claim for a partition of a profile."""
    selector = {"cel": {"expression": f'device.attributes["{DRIVER}"].profile == "{profile}"'}}
    wish = {"deviceClassName": CLASS, "selectors": [selector], "allocationMode": "ExactCount", "count": 1}
    request = {"name": "mig", "exactly": wish}
    return {"metadata": {"name": "claim", "namespace": "default"}, "spec": {"devices": {"requests": [request]}}}


def device_class() -> Document:
    """The class that the driver's own files have."""
    expression = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'mig'"
    return {"metadata": {"name": CLASS}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}


def placed(documents: Sequence[Document], coming: Iterator[Arrival], requests: int) -> Iterator[str | None]:
    """The device that each claim gets, or None, by the port of the allocator."""
    whole = Allocator(rules(RELEASE), [device_class()], documents)
    node = {"metadata": {"name": documents[0]["spec"]["nodeName"]}}
    ends: list[tuple[float, int]] = []
    held: dict[int, Document] = {}
    for number in range(requests):
        arrival = next(coming)
        while ends and ends[0][0] <= arrival.time:
            del held[heapq.heappop(ends)[1]]
        found = whole.holding(held.values()).allocate(node, [claim(arrival.profile)])
        if found.allocations is None:
            assert not found.kind, found.error
            yield None
            continue
        held[number] = {"metadata": {"name": f"c{number}"}, "status": {"allocation": found.allocations[0]}}
        heapq.heappush(ends, (arrival.time + arrival.lifetime, number))
        yield str(found.allocations[0]["devices"]["results"][0]["device"])


def lost(board: str, weights: Sequence[int], load: float, requests: int, *, ascending: bool) -> float:
    """The share of claims that found no room."""
    documents = slices(board, ascending=ascending)
    coming = arrivals(profiles(documents), weights, load)
    return sum(device is None for device in placed(documents, coming, requests)) / requests


def main() -> int:
    """Print the table."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    board = sys.argv[2] if len(sys.argv) > 2 else BOARD
    print(f"| {board}, {requests} claims a row | load | lost, by name | lost, least blocking first | |")
    print("|---|---|---|---|---|")
    for mix, weights in MIXES.items():
        for load in (0.6, 0.8):
            before = lost(board, weights, load, requests, ascending=True)
            after = lost(board, weights, load, requests, ascending=False)
            print(f"| {mix} | {load} | {before:.2%} | {after:.2%} | {after / before - 1:+.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
