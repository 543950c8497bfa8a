"""The look-alike as a file that a process loads: what it exports and lacks, what it says, which node it shows."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from native.mock import MockNode, profiles
from native.mock import profile as profile_module
from tests.support.mocknodes import Ask, Node


def of_branch(branch: str | None, folder: Path) -> MockNode:
    """An RTX PRO 6000 with a library of that driver branch; None: all that the vendored header declares."""
    document = yaml.safe_load(profiles.text("rtx-pro-6000"))
    document["driver"] |= {"abi": branch}
    path = folder / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    return MockNode.create(folder / "root", path)


def test_the_newest_library_has_every_function_that_pynvml_looks_up(tmp_path: Path, ask: Ask) -> None:
    import pynvml

    wanted = sorted(set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', inspect.getsource(pynvml))))
    assert len(wanted) > 350
    answer = ask(of_branch(None, tmp_path), f"answer = [n for n in {wanted!r} if not hasattr(pynvml.nvmlLib, n)]")
    assert answer == []


def test_an_older_driver_truly_lacks_functions(node_of: Node, ask: Ask) -> None:
    node = node_of("dgx-a100")
    names = [*node.profile.absent, "nvmlDeviceGetGpuFabricInfoV"]
    answer = ask(node, f"answer = [n for n in {names!r} if not hasattr(pynvml.nvmlLib, n)]")
    assert answer == list(node.profile.absent)


@pytest.mark.parametrize(
    ("branch", "lacks", "has"),
    [
        ("R575", "nvmlDeviceGetAddressingMode", "nvmlDeviceGetGpuFabricInfoV"),
        ("R580", "nvmlDeviceGetRemappedRows_v2", "nvmlDeviceGetAddressingMode"),
        ("R610", "nvmlEventSetWait_v3", "nvmlDeviceGetRemappedRows_v2"),
    ],
)
def test_a_library_of_an_older_branch_has_what_its_header_has(
    branch: str, lacks: str, has: str, tmp_path: Path, ask: Ask
) -> None:
    node = of_branch(branch, tmp_path)
    absent = set(profile_module.abis()[branch])
    assert lacks in absent
    wanted = sorted({*absent, has})
    assert set(ask(node, f"answer = [n for n in {wanted!r} if not hasattr(pynvml.nvmlLib, n)]")) == absent


def test_each_branch_has_all_that_the_one_before_had() -> None:
    oldest, middle, newest = (set(profile_module.abis()[branch]) for branch in ("R575", "R580", "R610"))
    assert oldest > middle > newest


def test_nothing_but_nvml_and_the_marker_is_exported(node_of: Node) -> None:
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", node_of("t4").library], capture_output=True, text=True, check=True
    )
    names = [line.split()[-1] for line in lines.stdout.splitlines()]
    assert "gpudra_mock_marker" in names
    assert [name for name in names if not name.startswith("nvml")] == ["gpudra_mock_marker"]


def test_the_library_is_called_libnvidia_ml_so_1(node_of: Node) -> None:
    node = node_of("t4")
    dump = subprocess.run(["readelf", "-d", node.library], capture_output=True, text=True, check=True).stdout
    assert "[libnvidia-ml.so.1]" in dump
    assert node.library.name == "libnvidia-ml.so.1"
    assert node.library.resolve().name == f"libnvidia-ml.so.{node.profile.driver_version}"


def test_a_process_sees_only_the_gpus_whose_device_nodes_it_has(node_of: Node, tmp_path: Path, ask: Ask) -> None:
    node = node_of("dgx-h100")
    for name in ("nvidia3", "nvidia5", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    code = """
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
answer = [[pynvml.nvmlDeviceGetIndex(h), pynvml.nvmlDeviceGetUUID(h)] for h in handles]
answer.append(call(pynvml.nvmlDeviceGetHandleByPciBusId, "0000:1b:00.0"))
"""
    expected = [[0, node.profile.gpus[3].uuid], [1, node.profile.gpus[5].uuid], {"code": 6}]
    assert ask(node, code, GPUDRA_MOCK_DEV=str(tmp_path)) == expected
    assert ask(node, "pynvml.nvmlInit(); answer = pynvml.nvmlDeviceGetCount()", GPUDRA_MOCK_DEV="") == 8


def load(node: MockNode, **environment: str | None) -> tuple[str, str]:
    """(code of nvmlInit, stderr) in a process with the given changes to its environment."""
    program = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).nvmlInit_v2())"
    variables = {**os.environ, **node.environment}
    for name, content in environment.items():
        variables.pop(name, None)
        if content is not None:
            variables[name] = content
    done = subprocess.run(
        [sys.executable, "-c", program, str(node.library)], env=variables, capture_output=True, text=True, check=True
    )
    return done.stdout.strip(), done.stderr


def test_the_library_says_once_that_it_is_no_hardware(node_of: Node) -> None:
    assert load(node_of("t4")) == (
        "0",
        f"gpudra mock NVML: this is not hardware, node {node_of('t4').environment['GPUDRA_MOCK_NODE']}\n",
    )
    assert load(node_of("t4"), GPUDRA_MOCK_QUIET="1") == ("0", "")


def test_without_a_node_the_library_refuses_and_says_why(node_of: Node, tmp_path: Path) -> None:
    code, said = load(node_of("t4"), GPUDRA_MOCK_NODE=None)
    assert (code, "GPUDRA_MOCK_NODE is not set" in said) == ("12", True)
    code, said = load(node_of("t4"), GPUDRA_MOCK_NODE=str(tmp_path / "none"))
    assert (code, "cannot open the node file" in said) == ("12", True)
    for junk in (b"", b"GPUDRAMK", bytes(1 << 20)):
        (tmp_path / "junk").write_bytes(junk)
        code, said = load(node_of("t4"), GPUDRA_MOCK_NODE=str(tmp_path / "junk"))
        assert code == "12"
        assert "node file" in said or "written by another version" in said


def test_the_trace_names_each_call_and_the_gpu_it_was_about(node_of: Node, tmp_path: Path, ask: Ask) -> None:
    code = "pynvml.nvmlInit(); h = pynvml.nvmlDeviceGetHandleByIndex(0); answer = pynvml.nvmlDeviceGetName(h)"
    ask(node_of("t4"), code, GPUDRA_MOCK_TRACE=str(tmp_path / "trace"))
    assert (tmp_path / "trace").read_text().splitlines() == [
        "nvmlDeviceGetHandleByIndex_v2 -1",
        "nvmlDeviceGetName 0",
    ]


def test_two_nodes_in_one_process_are_two_libraries(node_of: Node, ask: Ask) -> None:
    other = node_of("l40s")
    code = f"""
os.environ["GPUDRA_MOCK_NODE"], os.environ["GPUDRA_MOCK_DEV"] = {json.dumps(list(node_of("t4").environment.values()))}
first = ctypes.CDLL({str(node_of("t4").library)!r}); answer = [first.nvmlInit_v2()]
os.environ["GPUDRA_MOCK_NODE"], os.environ["GPUDRA_MOCK_DEV"] = {json.dumps(list(other.environment.values()))}
second = ctypes.CDLL({str(other.library)!r}); answer += [second.nvmlInit_v2()]
for library in (first, second):
    h, room = ctypes.c_void_p(), ctypes.create_string_buffer(96)
    library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h)); library.nvmlDeviceGetName(h, room, 96)
    answer.append(room.value.decode())
"""
    assert ask(other, code) == [0, 0, "Tesla T4", "NVIDIA L40S"]


def test_the_session_counts_its_users(node_of: Node, ask: Ask) -> None:
    code = """
library = pynvml.nvmlLib
count = ctypes.c_uint()
ask_count = lambda: library.nvmlDeviceGetCount_v2(ctypes.byref(count))
answer = [ask_count(), library.nvmlShutdown(), library.nvmlInitWithFlags(1), library.nvmlInit_v2(),
          library.nvmlShutdown(),
          ask_count(), library.nvmlShutdown(), ask_count(), library.nvmlShutdown()]
"""
    assert ask(node_of("t4"), code) == [1, 1, 0, 0, 0, 0, 0, 1, 1]


def test_a_handle_that_is_none_is_an_invalid_argument(node_of: Node, ask: Ask) -> None:
    code = """
pynvml.nvmlInit()
h = ctypes.cast(pynvml.nvmlDeviceGetHandleByIndex(0), ctypes.c_void_p).value
minor = ctypes.c_uint()
given = (None, 1, 2**47, h + 1, h + 4096, h)
answer = [pynvml.nvmlLib.nvmlDeviceGetMinorNumber(ctypes.c_void_p(g), ctypes.byref(minor)) for g in given]
"""
    assert ask(node_of("t4"), code) == [2, 2, 2, 2, 2, 0]


RELOADING = """
from native.nvml import make_backend
def resident():
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
backend = make_backend(os.environ["LIBRARY"], BACKEND)
def cycle():
    backend.open()
    backend.snapshot(None)
    backend.close()
for _ in range(20):
    cycle()
before = resident()
for _ in range(100):
    cycle()
answer = resident() - before
"""


@pytest.mark.parametrize("backend", ["cffi", "pynvml"])
def test_loading_and_unloading_again_and_again_keeps_nothing_resident(backend: str, node_of: Node, ask: Ask) -> None:
    assert ask(node_of("dgx-h100"), f"BACKEND = {backend!r}\n{RELOADING}") < 1024
