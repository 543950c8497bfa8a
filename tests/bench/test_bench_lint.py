"""Reading and linting a large cluster: ``pytest tests/bench/test_bench_lint.py --benchmark-only``.

5,000 nodes of one group with eight GPUs, a claim on each, the usual classes: one dump of 40 MB. ``read`` is from the
text to documents, ``lint`` all rules, ``shape`` one node's shape.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from driver.analysis.documents import Collection, read_text
from driver.analysis.lint import Options, lint
from driver.analysis.shape import AttributeKinds, export
from driver.publish.kinds import attribute_kinds
from tests.support import dradocs as dra

NODES = 5000
KINDS = AttributeKinds(attribute_kinds(dra.DRIVER))
LABELS = {"node.kubernetes.io__instance-type": "p5.48xlarge"}


def gpu(node: int, number: int) -> dict[str, Any]:
    attributes = {
        "type": "gpu",
        "uuid": f"GPU-{node:08}-{number}",
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.105.8"},
        "cudaDriverVersion": {"version": "13.0.0"},
        "nvlinkGroup": "0000:1b:00.0",
        "nvlinkCount": 18,
        "eccEnabled": True,
        "resource.kubernetes.io/numaNode": number // 4,
        "resource.kubernetes.io/pcieRoot": f"pci0000:{number // 2:02x}",
        "resource.kubernetes.io/pciBusID": f"0000:{number:02x}:00.0",
    }
    return dra.device(f"gpu-{number}", attributes, capacity={"memory": {"value": "81559Mi"}})


@pytest.fixture(scope="module")
def dump() -> str:
    items = [
        dra.device_class(name, f"device.driver == '{dra.DRIVER}' && device.attributes['{dra.DRIVER}'].type == '{name}'")
        for name in ("gpu", "mig", "vfio")
    ]
    for number in range(NODES):
        node = f"node-{number}"
        items += [
            dra.node(node, **LABELS),
            dra.resource_slice(*(gpu(number, index) for index in range(8)), node=node),
            dra.claim(f"claim-{number}", results=[("gpu-0", f"{node}/{dra.DRIVER}")], node=node),
        ]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


@pytest.fixture(scope="module")
def documents(dump: str) -> Collection:
    return read_text(dump, "dump.json")


def test_reading(benchmark: BenchmarkFixture, dump: str) -> None:
    read = benchmark.pedantic(read_text, args=(dump, "dump.json"), rounds=3)
    assert len(read.documents) == 3 * NODES + 3


def test_linting(benchmark: BenchmarkFixture, documents: Collection) -> None:
    report = benchmark.pedantic(lint, args=(documents, Options(kinds=KINDS)), rounds=1)
    assert report.documents == 3 * NODES + 3


def test_a_shape(benchmark: BenchmarkFixture, documents: Collection) -> None:
    shape = benchmark(lambda: export([documents.slices[0].body], KINDS))
    assert len(shape.devices) == 8
