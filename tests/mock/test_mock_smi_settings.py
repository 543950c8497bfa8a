"""What the mock nvidia-smi changes on a GPU can be read back: compute mode, persistence, time slice, MIG mode."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from native.mock import Failure, MockNode


def smi(node: MockNode, *arguments: str) -> tuple[int, list[str]]:
    """Exit status and lines, without any of the node's variables: the program stands in its node."""
    command: list[str | Path] = [node.smi, *arguments]
    done = subprocess.run(command, env={"GPUDRA_MOCK_QUIET": "1"}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def compute_mode(node: MockNode) -> str:
    return smi(node, "--query-gpu=compute_mode", "--format=csv,noheader")[1][0]


@pytest.fixture
def a30(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    return MockNode.create(tmp_path_factory.mktemp("a30") / "root", "a30")


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        (("-c", "EXCLUSIVE_PROCESS"), "Exclusive_Process"),
        (("-c", "3"), "Exclusive_Process"),
        (("--compute-mode=2",), "Prohibited"),
        (("-c", "prohibited"), "Prohibited"),
    ],
)
def test_a_compute_mode_is_set_by_uuid_and_read_back(arguments: tuple[str, ...], mode: str, own_node: MockNode) -> None:
    uuid = own_node.profile.gpus[0].uuid
    code, lines = smi(own_node, "-i", uuid, *arguments)
    assert (code, lines) == (0, [f"Set compute mode to {mode.upper()} for GPU 00000000:00:1E.0.", "All done."])
    assert compute_mode(own_node) == mode
    assert smi(own_node, "-i", uuid, *arguments)[1][0].startswith(f"Compute mode is already set to {mode.upper()} for")
    assert smi(own_node, "-i", uuid, "-c", "DEFAULT") == (
        0,
        ["Set compute mode to DEFAULT for GPU 00000000:00:1E.0.", "All done."],
    )
    assert compute_mode(own_node) == "Default"


def test_the_mode_that_cuda_8_took_away_is_refused(own_node: MockNode) -> None:
    assert smi(own_node, "-c", "EXCLUSIVE_THREAD") == (
        3,
        [
            "Unable to set the compute mode for GPU 00000000:00:1E.0: Not Supported",
            "Terminating early due to previous errors.",
        ],
    )
    assert smi(own_node, "-c", "SHARED")[0] == 2
    assert compute_mode(own_node) == "Default"


def test_on_a_divided_gpu_a_compute_mode_is_a_warning_as_captured(a30: MockNode) -> None:
    assert smi(a30, "-mig", "1", "-i", "0")[0] == 0
    bus = smi(a30, "-i", "0", "--query-gpu=pci.bus_id", "--format=csv,noheader")[1][0]
    assert smi(a30, "-i", "0", "-c", "3") == (
        0,
        [
            "Setting compute mode to EXCLUSIVE_PROCESS is not supported on a MIG-enabled device.",
            f"Unable to set the compute mode for GPU {bus}: Not Supported",
            "Treating as warning and moving on.",
            "All done.",
        ],
    )
    assert compute_mode(a30) == "Default"


def test_persistence_is_set_and_read_back(own_node: MockNode) -> None:
    assert smi(own_node, "-pm", "0")[1][0] == "Disabled persistence mode for GPU 00000000:00:1E.0."
    assert smi(own_node, "-pm", "0")[1][0] == "Persistence mode is already Disabled for GPU 00000000:00:1E.0."
    assert smi(own_node, "--query-gpu=persistence_mode", "--format=csv,noheader")[1] == ["Disabled"]
    assert smi(own_node, "--persistence-mode=ENABLED")[1][0] == "Enabled persistence mode for GPU 00000000:00:1E.0."


@pytest.mark.parametrize(("number", "word"), [(0, "Default"), (1, "Short"), (2, "Medium"), (3, "Long")])
def test_a_time_slice_is_set_by_uuid_and_read_back(number: int, word: str, own_node: MockNode) -> None:
    gpu = own_node.profile.gpus[0]
    code, lines = smi(own_node, "compute-policy", "-i", gpu.uuid, "--set-timeslice", str(number))
    assert (code, lines) == (0, [f"Set timeslice to {word} for GPU 00000000:00:1E.0.", "All done."])
    assert own_node.number(gpu.address, "timeslice") == number
    assert smi(own_node, "compute-policy", "-l") == (0, [f"GPU 0: timeslice {word}"])
    assert smi(own_node, "compute-policy", f"--set-timeslice={word.lower()}")[0] == 0


def test_a_time_slice_that_is_none_is_refused(own_node: MockNode) -> None:
    for value in ("4", "-1", "soon", ""):
        assert smi(own_node, "compute-policy", f"--set-timeslice={value}")[0] == 2


def test_a_time_slice_fails_by_a_rule_of_the_node_and_changes_nothing(own_node: MockNode) -> None:
    gpu = own_node.profile.gpus[0]
    own_node.set_failures([Failure("nvidia-smi.set-timeslice", 4, address=gpu.address)])
    assert smi(own_node, "compute-policy", "--set-timeslice", "2") == (
        4,
        [
            "Unable to set the timeslice for GPU 00000000:00:1E.0: Insufficient Permissions",
            "Terminating early due to previous errors.",
        ],
    )
    assert own_node.number(gpu.address, "timeslice") == 0


def test_nvidia_smi_itself_hangs_by_a_rule(own_node: MockNode) -> None:
    own_node.set_failures([Failure("nvidia-smi", delay_ms=-1)])
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([own_node.smi, "-L"], env={}, capture_output=True, check=False, timeout=0.3)
    own_node.set_failures([])
    assert smi(own_node, "-L")[0] == 0


def test_a_reload_of_the_driver_takes_modes_and_slices_away(own_node: MockNode) -> None:
    smi(own_node, "-c", "3")
    smi(own_node, "compute-policy", "--set-timeslice=3")
    own_node.reload_driver()
    assert compute_mode(own_node) == "Default"
    assert smi(own_node, "compute-policy", "-l")[1] == ["GPU 0: timeslice Default"]
