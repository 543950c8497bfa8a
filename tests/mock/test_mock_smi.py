"""The mock nvidia-smi: NVIDIA's format, and no need of anything but the node file and device nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from native.mock import Failure, MockNode
from tests.support.mocknodes import Node


def smi(node: MockNode, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**node.environment, **environment}
    return subprocess.run([node.smi, *arguments], env=variables, capture_output=True, text=True, check=False)


def test_the_list_is_nvidias(node_of: Node) -> None:
    node = node_of("dgx-h100")
    done = smi(node, "-L")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {gpu.uuid})" for index, gpu in enumerate(node.profile.gpus)
    ]
    assert "this is not hardware" in done.stderr
    assert smi(node, "--list-gpus", GPUDRA_MOCK_QUIET="1").stderr == ""


def test_the_summary_shows_versions_and_memory_in_a_straight_frame(node_of: Node) -> None:
    assert {len(line) for line in smi(node_of("rtx-pro-6000")).stdout.splitlines()} == {54}
    lines = smi(node_of("dgx-h100")).stdout.splitlines()
    assert {len(line) for line in lines} == {54}
    text = "\n".join(lines)
    assert "580.105.08" in text
    assert "13.0" in text
    assert text.count("81559MiB") == 8


def test_what_a_board_does_not_have_is_not_made_up(node_of: Node) -> None:
    assert "N/A /" in re.sub(r" +", " ", smi(node_of("gb10")).stdout)


def test_versions_are_told(node_of: Node) -> None:
    assert "DRIVER version      : 595.91.07\n" in smi(node_of("t4"), "--version").stdout


def test_an_unknown_option_is_refused_with_the_usage(node_of: Node) -> None:
    assert smi(node_of("t4"), "--help").returncode == 0
    for arguments in (("-q",), ("-L", "-x")):
        done = smi(node_of("t4"), *arguments)
        assert (done.returncode, "--list-gpus" in done.stderr) == (2, True)


def test_without_a_driver_it_says_what_nvidias_says(own_node: MockNode) -> None:
    own_node.set_driver_loaded(False)
    done = smi(own_node, "-L")
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_a_lost_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "rtx-pro-6000")
    node.set_gpu_state(node.profile.gpus[0].address, "lost")
    done = smi(node, "-L")
    assert done.returncode == 15
    assert "gpu 0: GPU is lost" in done.stdout
    assert node.profile.gpus[1].uuid in done.stdout
    assert "GPU is lost" in smi(node).stdout


def test_a_getter_that_fails_shows_as_not_available(own_node: MockNode) -> None:
    own_node.set_failures([Failure("nvmlDeviceGetUUID", 999)])
    assert smi(own_node, "-L").stdout == "GPU 0: Tesla T4 (UUID: N/A)\n"


def test_no_gpu_at_all_is_said(own_node: MockNode, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert smi(own_node, "-L", GPUDRA_MOCK_DEV=str(tmp_path / "dev")).stdout == "No devices found.\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root folder of a process")
def test_a_container_without_a_libc_sees_just_the_gpu_it_got(node_of: Node, tmp_path: Path) -> None:
    node = node_of("dgx-h100")
    (tmp_path / "dev").mkdir()
    (tmp_path / "run/gpudra-mock").mkdir(parents=True)
    shutil.copy(node.smi, tmp_path / "nvidia-smi")
    shutil.copy(node.root / "run/gpudra-mock/node", tmp_path / "run/gpudra-mock/node")
    (tmp_path / "dev/nvidia6").touch()
    done = subprocess.run(
        ["chroot", tmp_path, "/nvidia-smi", "-L"],
        env={"GPUDRA_MOCK_NODE": "/run/gpudra-mock/node", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {node.profile.gpus[6].uuid})\n", done.stderr
