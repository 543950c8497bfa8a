"""Publishing 16 GPUs with every partition: ``pytest tests/bench/test_bench_partitions.py --benchmark-only``.

``build`` makes the 416 devices and their counter sets from the inventory; ``publish`` also plans and encodes the
requests of a first publication; ``again`` is what a rescan costs that has changed nothing of what is published.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from driver.bridge import resources
from driver.model import EccMode, Gpu, GpuState, MigMode, MigSupport, NodeInventory, PciAddress
from driver.publish import PoolDocument, build_pool
from kubeletplugin.publisher.plan import Owner, Plan, plan_pool
from tests.unit.publish.test_partition_counters import BOARDS

OWNER = Owner("gpu.nvidia.com", "node-a", "11111111-2222-3333-4444-555555555555")
ROUNDS = 50


@pytest.fixture
def inventory() -> NodeInventory:
    """Sixteen H200."""

    def gpu(number: int) -> Gpu:
        return Gpu(
            address=PciAddress(0, 0x10 + number, 0, 0),
            state=GpuState.READY,
            uuid=f"GPU-00000000-0000-0000-0000-{number:012d}",
            product_name="NVIDIA H200",
            brand="Nvidia",
            architecture="Hopper",
            cuda_compute_capability=(9, 0),
            memory_bytes=143771 << 20,
            addressing_mode="HMM",
            ecc=EccMode(current=True, pending=True),
            mig=MigMode(current=False, pending=False),
            mig_profiles=BOARDS["H200-141GB"],
            pcie_root=f"pci0000:{number:02x}",
            numa_node=number // 8,
        )

    return NodeInventory("580.105.08", (13, 0), "13.580", tuple(gpu(number) for number in range(16)))


def build(inventory: NodeInventory) -> PoolDocument:
    return build_pool(
        inventory, node_name="node-a", driver_name="gpu.nvidia.com", mig=MigSupport.DYNAMIC, counters=True
    )


def planned(inventory: NodeInventory, stored: list[dict[str, Any]]) -> Plan:
    ((name, pool),) = resources(build(inventory)).pools.items()
    return plan_pool(name, pool, stored, OWNER)


@pytest.mark.benchmark(group="16 GPUs with dynamic MIG")
def test_build(benchmark: BenchmarkFixture, inventory: NodeInventory) -> None:
    pool = benchmark.pedantic(build, (inventory,), rounds=ROUNDS, warmup_rounds=2)
    assert len(pool.devices) == 16 * 26
    assert (len(pool.counters), len(pool.slices)) == (2, 8)


@pytest.mark.benchmark(group="16 GPUs with dynamic MIG")
def test_publish(benchmark: BenchmarkFixture, inventory: NodeInventory) -> None:
    def publish() -> int:
        return len([msgspec.json.encode(write.document) for write in planned(inventory, []).creates])

    assert benchmark.pedantic(publish, rounds=ROUNDS, warmup_rounds=2) == 10


@pytest.mark.benchmark(group="16 GPUs with dynamic MIG")
def test_again(benchmark: BenchmarkFixture, inventory: NodeInventory) -> None:
    stored = []
    for number, write in enumerate(planned(inventory, []).creates):
        name = f"{write.document['metadata']['generateName']}{number:05x}"
        stored.append({**write.document, "metadata": {**write.document["metadata"], "name": name}})
    plan = benchmark.pedantic(planned, (inventory, stored), rounds=ROUNDS, warmup_rounds=2)
    assert (plan.creates, plan.updates, plan.deletes) == ((), (), ())
