"""One claim tried on 5,000 nodes with 8 GPUs each: ``pytest tests/bench/test_bench_allocator.py --benchmark-only``.

``load`` reads slices and claims; ``first`` is the first try, which reads every device and evaluates every selector;
``again`` is a second claim of the same kind on the same cluster, which remembers what selectors said. In ``busy`` six
of eight GPUs are held, so that no node fits and every search runs to its end.
"""

from __future__ import annotations

from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from driver.analysis.allocator import Allocator, rules

Document = dict[str, Any]
NODES = 5000
DRIVER = "gpu.nvidia.com"
IS_GPU = 'device.driver == "gpu.nvidia.com" && device.attributes["gpu.nvidia.com"].type == "gpu"'
IS_BIG = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("100Gi")) >= 0'


def gpu(node: int, number: int) -> Document:
    attributes = {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H200"},
        "architecture": {"string": "Hopper"},
        "brand": {"string": "Nvidia"},
        "uuid": {"string": f"GPU-{node:08x}-{number}"},
        "driverVersion": {"version": "570.86.15"},
        "resource.kubernetes.io/numaNode": {"int": number // 4},
        "resource.kubernetes.io/pcieRoot": {"string": f"pci0000:{number // 2:02x}"},
    }
    return {"name": f"gpu-{number}", "attributes": attributes, "capacity": {"memory": {"value": "141Gi"}}}


def slice_of(node: int) -> Document:
    pool = {"name": f"node-{node}/{DRIVER}", "generation": 1, "resourceSliceCount": 1}
    devices = [gpu(node, number) for number in range(8)]
    spec = {"driver": DRIVER, "pool": pool, "nodeName": f"node-{node}", "devices": devices}
    return {"metadata": {"name": f"slice-{node}"}, "spec": spec}


def held(node: int) -> Document:
    results = [
        {"request": "r", "driver": DRIVER, "pool": f"node-{node}/{DRIVER}", "device": f"gpu-{number}"}
        for number in range(6)
    ]
    return {"metadata": {"name": f"held-{node}"}, "status": {"allocation": {"devices": {"results": results}}}}


CLASSES: list[Document] = [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": IS_GPU}}]}}]
SLICES = [slice_of(node) for node in range(NODES)]
PLACES: list[Document] = [{"metadata": {"name": f"node-{node}"}} for node in range(NODES)]
EXACTLY = {
    "deviceClassName": "gpu",
    "allocationMode": "ExactCount",
    "count": 4,
    "selectors": [{"cel": {"expression": IS_BIG}}],
}
CLAIM: Document = {
    "metadata": {"name": "claim", "namespace": "ns"},
    "spec": {
        "devices": {
            "requests": [{"name": "r", "exactly": EXACTLY}],
            "constraints": [{"matchAttribute": "resource.kubernetes.io/numaNode"}],
        }
    },
}


@pytest.fixture(params=["idle", "busy"])
def before(request: pytest.FixtureRequest) -> list[Document]:
    return [held(node) for node in range(NODES)] if request.param == "busy" else []


def tried(allocator: Allocator) -> int:
    return sum(outcome.fits for outcome in allocator.allocate_each(PLACES, [CLAIM]))


def test_load(benchmark: BenchmarkFixture, before: list[Document]) -> None:
    benchmark.pedantic(Allocator, args=(rules(37), CLASSES, SLICES, before), rounds=3)


def test_first(benchmark: BenchmarkFixture, before: list[Document]) -> None:
    def setup() -> tuple[tuple[Allocator], dict[str, object]]:
        return (Allocator(rules(37), CLASSES, SLICES, before),), {}

    assert benchmark.pedantic(tried, setup=setup, rounds=3) == (0 if before else NODES)


def test_again(benchmark: BenchmarkFixture, before: list[Document]) -> None:
    allocator = Allocator(rules(37), CLASSES, SLICES, before)
    tried(allocator)
    assert benchmark.pedantic(tried, args=(allocator,), rounds=3) == (0 if before else NODES)
