"""Programs that nobody here wrote, unchanged, on the mock: if they are fooled, much of what NVML says must be right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from native.mock import MockNode, Process
from tests.support.nvmlcalls import Nvml

TOOLS = ("nvitop", "gpustat")
_NO_INDEX = ("dns error", "error sending request", "failed to fetch", "connection", "network", "offline", "timed out")


@pytest.fixture(scope="module")
def tool() -> list[str]:
    """The beginning of a command in an environment that holds the tools and nothing of this project."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed: it makes the environment of the tools")
    command = [uv, "run", "--quiet", "--no-project", "--python", sys.executable]
    for name in TOOLS:
        command += ["--with", name]
    made = subprocess.run(
        [*command, "python", "-c", "import nvitop, gpustat"],
        cwd="/",
        env=plain(),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    if made.returncode != 0 and any(word in made.stderr.lower() for word in _NO_INDEX):
        pytest.skip(f"the package index cannot be reached: {made.stderr.strip().splitlines()[-1]}")
    assert made.returncode == 0, made.stderr
    return command


def plain() -> dict[str, str]:
    """This environment without what leads back into the project."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def run(tool: list[str], node: MockNode, *arguments: str) -> str:
    environment = plain() | node.environment | {"GPUDRA_MOCK_QUIET": "1", "LD_LIBRARY_PATH": str(node.library.parent)}
    done = subprocess.run(
        [*tool, *arguments], cwd="/", env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def busy(folder: Path, profile: str) -> MockNode:
    """A node whose first GPU this very process uses."""
    node = MockNode.create(folder / "root", profile)
    first = node.profile.gpus[0].address
    node.set_processes(first, [Process(os.getpid(), "python3", 1024, sm=33)])
    node.set_number(first, "utilization_gpu", 42)
    return node


@pytest.mark.parametrize("profile", ["dgx-h100", "gb10"])
def test_gpustat_shows_the_node(profile: str, tool: list[str], tmp_path: Path) -> None:
    node = busy(tmp_path, profile)
    said = json.loads(run(tool, node, "gpustat", "--json"))
    assert said["driver_version"] == node.profile.driver_version
    assert [gpu["uuid"] for gpu in said["gpus"]] == [gpu.uuid for gpu in node.profile.gpus]
    first = said["gpus"][0]
    assert (first["utilization.gpu"], first["name"]) == (42, node.profile.gpus[0].texts["name"].value.decode())
    assert [process["pid"] for process in first["processes"]] == [os.getpid()]


def test_nvitop_shows_the_node(tool: list[str], tmp_path: Path) -> None:
    node = busy(tmp_path, "dgx-h100")
    said = run(tool, node, "nvitop", "-1", "--ascii", "--colorful")
    assert f"Driver Version: {node.profile.driver_version}" in said
    assert said.count("00000000:") == 8
    assert "1024MiB" in said
    assert "42%" in said
    assert str(os.getpid()) in said


def test_nvitop_shows_mig_devices(tool: list[str], tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "h100-nvl")
    node.nvidia_smi("mig", "-i", "0", "-cgi", "9,19", "-C")
    said = run(tool, node, "nvitop", "-1", "--ascii")
    assert "3g.47gb" in said
    assert "1g.12gb" in said


def test_nvitop_survives_a_gpu_that_is_lost(tool: list[str], tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    node.set_gpu_state(node.profile.gpus[5].address, "lost")
    said = run(tool, node, "nvitop", "-1", "--ascii")
    assert said.count("00000000:") >= 7


def test_a_board_of_a_data_centre_drives_no_display(tmp_path: Path) -> None:
    nvml = Nvml(busy(tmp_path, "t4"))
    assert nvml.number("nvmlDeviceGetDisplayActive", nvml.gpu()) == 0
    assert nvml.close() == 0
