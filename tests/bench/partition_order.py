"""What the order of partitions is worth: ``python -m tests.bench.partition_order [requests]``.

Eight A100 40GB take claims for one partition each, first fit over the published pool, GPU after GPU; claims that find
no room are lost. Arrivals and lifetimes are exponential. The share of lost claims is counted once with the placements
of each profile in ascending order and once as the pool has them, those that block the fewest others first. Claims,
times and sizes are the same in both; the load is in memory slices.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections.abc import Mapping, Sequence

from driver.model import Gpu, GpuState, MigMode, MigSupport, NodeInventory, PciAddress
from driver.publish import build_pool
from tests.support.countered import Counted
from tests.unit.publish.test_partition_counters import BOARDS

GPUS = 8
SLICES = 8
PROFILES = ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
MIXES: Mapping[str, Sequence[int]] = {
    "all alike": (1, 1, 1, 1, 1, 1),
    "mostly small": (8, 4, 4, 2, 1, 1),
    "none whole": (1, 1, 1, 1, 1, 0),
}


def pool() -> Counted:
    """The pool of a node with eight A100 in MIG mode."""
    gpus = tuple(
        Gpu(
            PciAddress(0, 0x10 + number, 0, 0),
            GpuState.READY,
            uuid=f"GPU-{number}",
            architecture="Ampere",
            memory_bytes=1 << 30,
            mig=MigMode(current=True, pending=True),
            mig_profiles=BOARDS["A100-SXM4-40GB"],
        )
        for number in range(GPUS)
    )
    made = build_pool(
        NodeInventory("1", (13, 0), "13", gpus),
        node_name="node-a",
        driver_name="gpu.nvidia.com",
        mig=MigSupport.DYNAMIC,
        counters=True,
    )
    return Counted(made.devices, (counters for sets in made.counters for counters in sets))


def lost(weights: Sequence[int], load: float, requests: int, *, ascending: bool, seed: int = 20261130) -> float:
    """The share of claims that found no room."""
    counted = pool()
    devices: dict[str, list[str]] = {}
    for name, device in counted.devices.items():
        devices.setdefault(device["attributes"]["profile"]["string"], []).append(name)
    if ascending:
        devices = {profile: sorted(names) for profile, names in devices.items()}
    sizes = [counted.devices[devices[one][0]]["attributes"]["placementSize"]["int"] for one in PROFILES]
    mean = sum(size * weight for size, weight in zip(sizes, weights, strict=True)) / sum(weights)
    chance = random.Random(seed)
    now, refused = 0.0, 0
    ends: list[tuple[float, str]] = []
    for _ in range(requests):
        now += chance.expovariate(load * SLICES * GPUS / mean)
        (profile,) = chance.choices(PROFILES, weights)
        lifetime = chance.expovariate(1.0)
        while ends and ends[0][0] <= now:
            counted.give_back(heapq.heappop(ends)[1])
        found = next((name for name in devices[profile] if counted.fits(name)), None)
        if found is None:
            refused += 1
        else:
            counted.take(found)
            heapq.heappush(ends, (now + lifetime, found))
    return refused / requests


def main() -> int:
    """Print the table."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    print(
        f"| claims ({requests} a row) | load | lost, ascending | lost, least blocking first | |\n|---|---|---|---|---|"
    )
    for mix, weights in MIXES.items():
        for load in (0.6, 0.8):
            before = lost(weights, load, requests, ascending=True)
            after = lost(weights, load, requests, ascending=False)
            print(f"| {mix} | {load} | {before:.2%} | {after:.2%} | {after / before - 1:+.0%} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
