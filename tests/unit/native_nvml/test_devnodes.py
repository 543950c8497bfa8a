"""Device nodes below a device root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from native.devnodes import DeviceNodeStatus, list_nodes, missing_nodes, read_node

NULL = os.stat("/dev/null").st_rdev  # noqa: PTH116 - a device of every Linux, at import time


def device(root: Path, path: str) -> None:
    """A character device where we may make one; else a link to one, which counts the same."""
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.mknod(target, stat.S_IFCHR | 0o666, NULL)
    except PermissionError:
        target.symlink_to("/dev/null")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia10", "nvidia2", "nvidia-caps/nvidia-cap1"):
        device(tmp_path, f"/dev/{name}")
    return tmp_path


def test_a_node_says_its_kind_and_numbers(root: Path) -> None:
    assert read_node(root, "/dev/nvidia0") == DeviceNodeStatus("/dev/nvidia0", "character device", 1, 3)


def test_what_is_not_there_is_none(root: Path) -> None:
    assert read_node(root, "/dev/nvidia1") is None
    assert read_node(root, "/dev/nvidia0/below") is None


def test_files_and_folders_are_named_as_what_they_are(root: Path) -> None:
    (root / "dev/nvidia3").write_text("")
    (root / "dev/nvidia4").mkdir()
    os.mkfifo(root / "dev/nvidia5")
    found = [read_node(root, f"/dev/nvidia{minor}") for minor in (3, 4, 5)]
    assert [(node.kind, node.major, node.is_device) for node in found if node] == [
        ("regular file", None, False),
        ("folder", None, False),
        ("special file", None, False),
    ]


def test_nodes_are_listed_control_first_then_by_minor(root: Path) -> None:
    assert [node.path for node in list_nodes(root)] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia0",
        "/dev/nvidia2",
        "/dev/nvidia10",
        "/dev/nvidia-caps/nvidia-cap1",
    ]


def test_a_root_without_dev_has_no_nodes(tmp_path: Path) -> None:
    assert list_nodes(tmp_path) == ()


def test_nothing_is_missing_for_a_gpu_whose_nodes_are_there(root: Path) -> None:
    assert missing_nodes(root, 2) == ()


def test_what_is_missing_is_named_with_what_makes_it(root: Path) -> None:
    (root / "dev/nvidia-uvm").unlink()
    (root / "dev/nvidia7").write_text("")
    problems = missing_nodes(root, 7)
    assert len(problems) == 2
    assert problems[0] == (
        "/dev/nvidia7 is a regular file, not a character device: remove it and run `nvidia-modprobe -c=7` on the host"
    )
    assert "/dev/nvidia-uvm does not exist" in problems[1]
    assert "nvidia-modprobe -u" in problems[1]
