"""A mock DGX H100 read by both backends, topology included: ``pytest tests/bench/test_bench_nvml.py --benchmark-only``.

Four rows each, because what a backend remembers makes the difference: ``steady`` polls an unchanged node, ``one`` has
one GPU changed since, ``changed`` decodes every GPU anew (as after a change of all of them; what they have in common is
remembered), ``cold`` remembers nothing, as the first reading of a process. pynvml remembers nothing in any of them.
The mock answers in a fraction of a microsecond: on hardware the ioctls come on top for both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from native.mock import MockNode
from native.nvml import cffi_backend, cffi_library, open_library, values
from native.nvml.cffi_backend import CffiNvml
from native.nvml.protocol import Nvml

ROUNDS = 300
Read = Callable[[list[str]], int]


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


def forget_gpus(library: Nvml) -> None:
    """What a backend remembers of the GPUs themselves."""
    if isinstance(library, CffiNvml):
        library._memo.clear()
        library._topology = None


def forget_all(library: Nvml) -> None:
    """And what it remembers of their parts."""
    forget_gpus(library)
    for cached in (cffi_backend._links, cffi_library.canonical, values.pci_address):
        cached.cache_clear()


def measure(benchmark: BenchmarkFixture, library: Nvml, node: MockNode, before: Callable[[], object]) -> None:
    addresses = [gpu.address for gpu in node.profile.gpus]

    def setup() -> None:
        before()

    def read() -> int:
        return len(library.snapshot(addresses).gpus) + len(library.topology(addresses).levels)

    assert benchmark.pedantic(read, setup=setup, rounds=ROUNDS, warmup_rounds=5) == 8 + 56


@pytest.mark.benchmark(group="nvml 8 GPUs with topology: steady")
def test_steady(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    measure(benchmark, library, node, lambda: None)


@pytest.mark.benchmark(group="nvml 8 GPUs with topology: one GPU changed")
def test_one_changed(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    first = node.profile.gpus[0].address

    def forget_one() -> None:
        if isinstance(library, CffiNvml):
            library._memo.pop(first, None)

    measure(benchmark, library, node, forget_one)


@pytest.mark.benchmark(group="nvml 8 GPUs with topology: all changed")
def test_all_changed(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    measure(benchmark, library, node, lambda: forget_gpus(library))


@pytest.mark.benchmark(group="nvml 8 GPUs with topology: cold")
def test_cold(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    measure(benchmark, library, node, lambda: forget_all(library))


@pytest.mark.benchmark(group="nvml health of 8 GPUs")
def test_health(benchmark: BenchmarkFixture, library: Nvml, node: MockNode) -> None:
    addresses = [gpu.address for gpu in node.profile.gpus]
    assert len(benchmark.pedantic(library.health, (addresses,), rounds=ROUNDS, warmup_rounds=5)) == 8
