"""A snapshot of a mock DGX H100 by both backends; run with ``pytest tests/bench/test_bench_nvml.py --benchmark-only``.

``steady`` polls an unchanged node; ``changed`` decodes every GPU anew, as after a change of all of them (links that did
not change are remembered by cffi).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from native.mock import MockNode
from native.nvml import open_library
from native.nvml.protocol import Nvml


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    return MockNode.create(tmp_path_factory.mktemp("bench") / "node", "dgx-h100")


@pytest.fixture(params=["cffi", "pynvml"])
def library(request: pytest.FixtureRequest, node: MockNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nvml]:
    for name, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(name, value)
    opened = open_library(Path(node.library), request.param)
    yield opened
    opened.close()


@pytest.mark.benchmark(group="nvml-snapshot-steady")
def test_steady_snapshot_of_eight_gpus(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    addresses = [gpu.address for gpu in node.profile.gpus]
    assert len(benchmark(library.snapshot, addresses).gpus) == 8


@pytest.mark.benchmark(group="nvml-snapshot-changed")
def test_changed_snapshot_of_eight_gpus(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    orders = [gpu.address for gpu in node.profile.gpus]

    def forget() -> tuple[tuple[list[str]], dict[str, object]]:
        # Another lookup in between drops what the backend remembers of the node.
        library.snapshot(())
        return (orders,), {}

    assert len(benchmark.pedantic(library.snapshot, setup=forget, rounds=200).gpus) == 8
