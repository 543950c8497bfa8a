"""How large a GPU's memory is, and whose it is."""

from __future__ import annotations

import pytest

from driver.inventory import build_inventory
from driver.inventory.memory import memory_of
from driver.model import MemoryKind
from native.nvml.errors import NvmlReturn
from tests.support.nodes import H100_BYTES, address, host, nvml, nvml_gpu, pci_gpu

A = address(0)
HOST = 120 * 2**30


@pytest.mark.bug("B01")
@pytest.mark.parametrize(
    "gpu",
    [
        nvml_gpu(A, codes={"memory_total": NvmlReturn.NOT_SUPPORTED}),
        nvml_gpu(A, memory_total=0),
        nvml_gpu(A, memory_total=None),
        nvml_gpu(A, memory_total=HOST),
    ],
    ids=["not-supported", "zero", "nothing", "the-hosts"],
)
def test_a_gpu_without_memory_of_its_own_has_the_hosts(gpu: object) -> None:
    memory = memory_of(gpu, HOST)  # type: ignore[arg-type]  # the parameter is a snapshot, made in the table above

    assert (memory.total_bytes, memory.kind) == (HOST, MemoryKind.UNIFIED)


@pytest.mark.bug("B01")
@pytest.mark.parametrize("unknown", [None, 0])
def test_without_memtotal_the_size_is_unknown_and_never_zero(unknown: int | None) -> None:
    memory = memory_of(nvml_gpu(A, codes={"memory_total": NvmlReturn.NOT_SUPPORTED}), unknown)

    assert (memory.total_bytes, memory.kind) == (None, MemoryKind.UNIFIED)


@pytest.mark.bug("B01")
def test_unified_memory_is_told_once_and_the_gpu_is_ready() -> None:
    reading = nvml_gpu(A, codes={"memory_total": NvmlReturn.NOT_SUPPORTED, "mig_mode": NvmlReturn.NOT_SUPPORTED})

    node = build_inventory(nvml(reading), host(pci_gpu(A), memory_bytes=HOST), mock=False)

    assert (node.gpus[0].reason, node.gpus[0].memory_bytes) == (None, HOST)
    assert [problem.subject for problem in node.problems] == [A]
    assert "the host's MemTotal is taken" in node.problems[0].message


@pytest.mark.parametrize("code", [NvmlReturn.UNKNOWN, NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.NO_PERMISSION])
def test_any_other_failure_does_not_turn_a_board_into_a_unified_one(code: NvmlReturn) -> None:
    memory = memory_of(nvml_gpu(A, codes={"memory_total": code}), HOST)

    assert (memory.total_bytes, memory.kind) == (None, MemoryKind.DEDICATED)


@pytest.mark.parametrize("changes", [{"addressing_mode": 2}, {"memory_numa_node": 2}])
def test_memory_that_the_host_sees_as_a_numa_node_is_coherent(changes: dict[str, int]) -> None:
    memory = memory_of(nvml_gpu(A, **changes), HOST)

    assert (memory.total_bytes, memory.kind) == (H100_BYTES, MemoryKind.COHERENT)


def test_a_board_with_memory_of_its_own_is_dedicated_and_there_is_nothing_to_say() -> None:
    memory = memory_of(nvml_gpu(A), HOST)

    assert (memory.total_bytes, memory.kind, memory.remark) == (H100_BYTES, MemoryKind.DEDICATED, None)
