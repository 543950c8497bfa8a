"""Every function that the library exports obeys the rules, not only those that somebody thought of."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from native.mock import Failure, MockNode
from tests.support.nvmlcalls import Nvml

pytest.importorskip("pycparser", reason="the functions are read from nvml.h by pycparser")

FAILS = 38  # NVML_ERROR_... of no version: nobody returns it but a rule
BEFORE_A_SESSION = {"nvmlInit", "nvmlInit_v2", "nvmlInitWithFlags", "nvmlShutdown", "nvmlErrorString"}
DEVICE, GPU_INSTANCE, COMPUTE_INSTANCE = "nvmlDevice_t", "nvmlGpuInstance_t", "nvmlComputeInstance_t"
ABOUT_MIG_DEVICES = {
    "nvmlDeviceGetAttributes",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
    "nvmlDeviceGetGpuInstanceId",
}
ARGUMENTS = 12
"""More than any function takes; what is left over does no harm in the C calling convention."""


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    node = MockNode.create(tmp_path_factory.mktemp("every") / "root", "dgx-h100")
    library = Nvml(node)
    yield library
    node.set_failures([])
    assert library.close() == 0


def subjects(nvml: Nvml) -> dict[str, ctypes.c_void_p]:
    """A handle of every kind that a call can be about."""
    gpu = nvml.gpu()
    assert nvml.set_mig_mode(gpu, 1) == (0, 0)
    code, instance = nvml.create_gi(gpu, 19)
    assert code == 0
    code, compute = nvml.create_ci(instance, 0)
    assert code == 0
    code, mig = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, 0)
    assert code == 0
    return {DEVICE: gpu, GPU_INSTANCE: instance, COMPUTE_INSTANCE: compute, "MIG": mig}


def test_a_rule_for_all_functions_lets_every_one_of_them_fail(nvml: Nvml) -> None:
    from native.mock import generate

    absent = set(nvml.node.profile.absent)
    functions = [one for one in generate.prototypes() if one.name not in absent | BEFORE_A_SESSION]
    assert len(functions) > 380
    handles = subjects(nvml)
    nvml.node.set_failures([Failure("nvml*", FAILS)])
    obeyed = {}
    for function in functions:
        call = getattr(nvml.library, function.name)
        call.restype = ctypes.c_int
        kind = "MIG" if function.name in ABOUT_MIG_DEVICES else function.subject
        first = handles.get(kind, ctypes.c_void_p())
        obeyed[function.name] = call(first, *[ctypes.c_void_p()] * ARGUMENTS)
    assert {name: code for name, code in obeyed.items() if code != FAILS} == {}
    nvml.node.set_failures([])


def test_a_rule_for_one_function_is_about_no_other(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure("nvmlDeviceGetSerial", FAILS)])
    assert nvml.text("nvmlDeviceGetSerial", nvml.gpu(1)) == -FAILS
    assert nvml.number("nvmlDeviceGetMinorNumber", nvml.gpu(1)) == 1


def test_the_functions_of_the_header_are_those_that_are_exported(nvml: Nvml, tmp_path: Path) -> None:
    from native.mock import generate

    absent = set(nvml.node.profile.absent)
    for function in generate.prototypes():
        assert hasattr(nvml.library, function.name) is (function.name not in absent), function.name
