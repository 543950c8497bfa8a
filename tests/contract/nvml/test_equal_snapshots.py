"""The contract of the two backends: they read every mock node alike, healthy or not, codes and errors included."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native.mock import Failure, MockNode
from native.nvml import make_backend
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.protocol import Nvml
from native.nvml.types import NvmlSnapshot

DOOR = Path(__file__).parents[3] / "native" / "csrc" / "nvml_door.c"
FUNCTIONS = sorted(set(re.findall(r"CALL\(\w+, (nvml\w+)", DOOR.read_text())))
CODES = [
    NvmlReturn.NOT_SUPPORTED,
    NvmlReturn.FUNCTION_NOT_FOUND,
    NvmlReturn.ARGUMENT_VERSION_MISMATCH,
    NvmlReturn.GPU_IS_LOST,
    NvmlReturn.INVALID_ARGUMENT,
    NvmlReturn.UNINITIALIZED,
    NvmlReturn.DRIVER_NOT_LOADED,
    NvmlReturn.UNKNOWN,
    77,
]

QUESTIONS: list[Callable[[Nvml, MockNode], object]] = [
    lambda library, node: library.snapshot(None),
    lambda library, node: library.snapshot([gpu.address for gpu in node.profile.gpus]),
    lambda library, node: library.addresses(),
    lambda library, node: library.device_count(),
    lambda library, node: library.is_mock(),
]


def answers(node: MockNode, backend: str) -> list[object]:
    """What a backend says to every question; an error is an answer too."""
    library = make_backend(node.library, backend)
    found: list[object] = []
    try:
        library.open()
        for question in QUESTIONS:
            try:
                found.append(question(library, node))
            except NvmlError as error:
                found.append((type(error), error.call, error.code, str(error)))
    except NvmlError as error:
        found.append((type(error), error.call, error.code, str(error)))
    finally:
        library.close()
    return found


def agreed(node: MockNode) -> list[Any]:
    """The answers that both backends give; the test fails here if they differ."""
    first, second = answers(node, "cffi"), answers(node, "pynvml")
    assert first == second
    return first


def test_there_are_functions_to_fail() -> None:
    assert len(FUNCTIONS) > 40


def test_a_healthy_node_is_read_alike_by_address_and_by_index(node: MockNode) -> None:
    by_index, by_address, addresses, count, mock = agreed(node)
    assert isinstance(by_index, NvmlSnapshot)
    assert by_index == by_address
    assert addresses == tuple(gpu.address for gpu in node.profile.gpus)
    assert count == len(node.profile.gpus)
    assert mock is True
    assert by_index.driver_version == node.profile.driver_version
    assert len({gpu.uuid for gpu in by_index.gpus}) == count
    assert all(gpu.uuid is not None and "handle" not in gpu.codes for gpu in by_index.gpus)


@pytest.mark.bug("B13")
def test_a_lost_gpu_is_told_alike_and_hides_no_other(node: MockNode) -> None:
    healthy = agreed(node)[1]
    lost = node.profile.gpus[-1].address
    node.set_gpu_state(lost, "lost")
    by_address = agreed(node)[1]
    assert by_address.gpus[-1].codes["handle"] == NvmlReturn.GPU_IS_LOST
    assert by_address.gpus[:-1] == healthy.gpus[:-1]


def test_a_driver_that_is_not_loaded_is_told_alike(node: MockNode) -> None:
    node.set_driver_loaded(False)
    ((kind, call, code, message),) = agreed(node)
    assert (kind, call, code) == (LibraryUnavailableError, "nvmlInitWithFlags", NvmlReturn.DRIVER_NOT_LOADED)
    assert "modprobe nvidia" in message


@pytest.mark.bug("B01")
def test_a_board_whose_memory_is_not_supported_has_none(
    node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode]
) -> None:
    gpu = agreed(activate(node_of("gb10")))[0].gpus[0]
    assert gpu.address == "000f:01:00.0"
    assert gpu.memory_total is None
    assert gpu.codes["memory_total"] == NvmlReturn.NOT_SUPPORTED
    assert gpu.mig_mode is None
    assert gpu.name == "NVIDIA GB10"


@pytest.mark.bug("B26")
@pytest.mark.bug("B27")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_every_function_may_fail_in_every_way_and_is_told_alike(
    node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode], function: str
) -> None:
    node = activate(node_of("gb200"))
    healthy = agreed(node)[1].gpus
    for code in CODES[:5]:
        node.set_failures([Failure(function, int(code), node.profile.gpus[2].address)])
        failing = agreed(node)
        if function.startswith("nvmlDevice") and "Count" not in function:
            assert failing[1].gpus[:2] + failing[1].gpus[3:] == healthy[:2] + healthy[3:]
        node.set_failures([Failure(function, int(code))])
        agreed(node)


@given(
    st.lists(
        st.tuples(st.sampled_from(FUNCTIONS), st.sampled_from(CODES), st.sampled_from([None, 0, 3, 7])), max_size=6
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
def test_any_set_of_failures_is_told_alike(dgx: MockNode, rules: list[tuple[str, int, int | None]]) -> None:
    addresses = [gpu.address for gpu in dgx.profile.gpus]
    dgx.set_failures(
        Failure(function, int(code), None if index is None else addresses[index]) for function, code, index in rules
    )
    agreed(dgx)


NEWEST = {
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetGpuFabricInfoV",
    "nvmlDeviceGetAddressingMode",
    "nvmlDeviceGetNumaNodeId",
}


def without(functions: set[str]) -> Callable[[str], str]:
    return lambda text: text.replace("  abi: R580\n", f"  absent: [{', '.join(sorted(functions))}]\n")


def test_functions_that_an_old_library_lacks_are_done_without_alike(
    derived: Callable[[Callable[[str], str]], MockNode], dgx: MockNode
) -> None:
    healthy = agreed(dgx)[0].gpus[0]
    gpu = agreed(derived(without(NEWEST)))[0].gpus[0]
    assert gpu.address == healthy.address
    assert gpu.memory_total is not None
    assert gpu.fabric is not None
    assert gpu.codes == {"memory_reserved": 13, "addressing_mode": 13, "memory_numa_node": 13}


def test_a_library_that_lacks_all_but_the_essentials_still_gives_identity(
    derived: Callable[[Callable[[str], str]], MockNode],
) -> None:
    essential = {
        "nvmlInitWithFlags",
        "nvmlShutdown",
        "nvmlSystemGetDriverVersion",
        "nvmlDeviceGetCount_v2",
        "nvmlDeviceGetHandleByIndex_v2",
        "nvmlDeviceGetHandleByPciBusId_v2",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetUUID",
    }
    snapshot = agreed(derived(without(set(FUNCTIONS) - essential)))[1]
    assert all(gpu.uuid is not None and gpu.address is not None for gpu in snapshot.gpus)
    assert set(snapshot.gpus[0].codes.values()) == {NvmlReturn.FUNCTION_NOT_FOUND}


@pytest.mark.bug("B04")
def test_foreign_and_unterminated_strings_are_read_alike(
    derived: Callable[[Callable[[str], str]], MockNode],
) -> None:
    def edit(text: str) -> str:
        text = re.sub(r"(?m)^  name: NVIDIA .*$", '  name: {hex: "f8 95 8d 8f", unterminated: true}', text)
        return re.sub(r"(?m)^  vbios_version: .*$", '  vbios_version: {hex: "39 36 00 6a 75 6e 6b"}', text)

    gpu = agreed(derived(edit))[0].gpus[0]
    assert gpu.name is not None
    assert "\ufffd" in gpu.name
    assert gpu.vbios_version == "96"
