"""The contract of the two backends on health, processes, topology and events: they tell the same of every mock node."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from native.mock import Failure, MockNode
from native.nvml import make_backend
from native.nvml.errors import NvmlError, NvmlReturn
from native.nvml.protocol import Nvml
from native.pcipath import PathClass, path_class
from native.sysfs import read_host

CSRC = Path(__file__).parents[3] / "native" / "csrc"
SOURCES = "".join((CSRC / name).read_text() for name in ("nvml_health.c", "nvml_topology.c", "nvml_events.c"))
FUNCTIONS = sorted(set(re.findall(r"CALL\(door, (nvml\w+)", SOURCES)) - {"nvmlEventSetFree"})
CODES = (NvmlReturn.NOT_SUPPORTED, NvmlReturn.GPU_IS_LOST, NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.UNKNOWN)


def addresses(node: MockNode) -> list[str]:
    return [gpu.address for gpu in node.profile.gpus]


def events(library: Nvml, node: MockNode) -> object:
    """What is registered on each GPU, and what a wait of no time gives."""
    library.open_events()
    told: list[object] = []
    for address in addresses(node):
        try:
            told.append(library.register_events(address, 0xFFFF))
        except NvmlError as error:
            told.append((error.call, error.code, str(error)))
    told.append(library.wait_event(0))
    library.close_events()
    return told


QUESTIONS: list[Callable[[Nvml, MockNode], object]] = [
    lambda library, node: library.health(addresses(node)),
    lambda library, node: library.topology(addresses(node)),
    events,
]


def answers(node: MockNode, backend: str) -> list[object]:
    library = make_backend(node.library, backend)
    library.open()
    found: list[object] = []
    for question in QUESTIONS:
        try:
            found.append(question(library, node))
        except NvmlError as error:
            found.append((type(error), error.call, error.code, str(error)))
    library.close()
    return found


def agreed(node: MockNode) -> list[Any]:
    """The answers that both backends give; the test fails here if they differ."""
    first, second = answers(node, "cffi"), answers(node, "pynvml")
    assert first == second
    return first


def test_there_are_functions_to_fail() -> None:
    assert len(FUNCTIONS) > 18


def test_a_healthy_node_is_told_alike(node: MockNode) -> None:
    health, lay, heard = agreed(node)
    assert [gpu.address for gpu in health] == addresses(node)
    assert all(gpu.uuid is not None and "handle" not in gpu.codes for gpu in health)
    assert lay.addresses == tuple(addresses(node))
    assert heard[-1] is None


def test_nvmls_distances_agree_with_those_of_sysfs(node: MockNode) -> None:
    lay = agreed(node)[1]
    places = {device.address: device.place for device in read_host(node.root / "sys", node.root / "proc").devices}
    told = {pair: PathClass(level) for pair, level in lay.levels.items()}
    assert told == {(a, b): path_class(places[a], places[b]) for a, b in told}
    assert len(told) == len(addresses(node)) * (len(addresses(node)) - 1)


@pytest.mark.bug("B22")
def test_nvmls_affinity_agrees_with_that_of_sysfs(node: MockNode) -> None:
    lay = agreed(node)[1]
    host = read_host(node.root / "sys", node.root / "proc")
    for device in host.gpus:
        assert lay.cpus[device.address] == numbers(device.local_cpulist or "")
        if device.numa_node is not None:
            assert lay.memory_nodes[device.address] == {device.numa_node}


def numbers(cpulist: str) -> set[int]:
    """``0-2,8`` as a set."""
    ends = [part.split("-") for part in cpulist.split(",") if part]
    return {number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)}


@pytest.mark.bug("B13")
def test_a_lost_gpu_is_told_alike_and_hides_no_other(node: MockNode) -> None:
    healthy = agreed(node)
    lost = addresses(node)[-1]
    node.set_gpu_state(lost, "lost")
    health, lay, heard = agreed(node)
    assert health[:-1] == healthy[0][:-1]
    assert health[-1].codes == {"handle": NvmlReturn.GPU_IS_LOST}
    assert lay.codes["handle", lost] == NvmlReturn.GPU_IS_LOST
    assert heard[:-2] == healthy[2][:-2]


@pytest.mark.bug("B26")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_may_fail_in_every_way_and_is_told_alike(dgx: MockNode, function: str) -> None:
    for code in CODES:
        dgx.set_failures([Failure(function, int(code), addresses(dgx)[2])])
        agreed(dgx)
        dgx.set_failures([Failure(function, int(code))])
        agreed(dgx)
