"""What ends with the node's power: everything that descends from its first process, and nothing else."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import node, processes, reboot
from hack.cluster.components import START_ORDER
from hack.cluster.processes import Process

SHIM = "(sleep 1000 & exec sleep 2000) & exec sleep 3000"
"""A process with a child that has a child, as a container's shim is one."""


@pytest.fixture
def first() -> Iterator[subprocess.Popen[bytes]]:
    """Stands in for the node's PID 1, which waits for its children."""
    child = subprocess.Popen(["sh", "-c", f"sh -c '{SHIM}' & sleep 4000 & wait; exec sleep 5000"])
    yield child
    reboot._kill_containers(described(child))
    child.kill()
    child.wait()


def described(child: subprocess.Popen[bytes]) -> Process:
    return processes.of_pid("init", child.pid)


def test_its_children_and_theirs_are_killed_and_it_lives_on(first: subprocess.Popen[bytes], tmp_path: Path) -> None:
    init, log = described(first), tmp_path / "log"
    stranger = subprocess.Popen(["sleep", "1000"])
    processes.wait_for("the tree", lambda: len(list(reboot._descendants(first.pid))) == 4, init, log)
    found = [processes.of_pid("container", pid) for pid in reboot._descendants(first.pid)]
    processes.wait_for("their end", lambda: reboot._kill_containers(init), init, log)
    assert [one.alive() for one in found] == [False] * 4
    assert init.alive()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_where_nothing_runs_any_more_that_is_said(first: subprocess.Popen[bytes], tmp_path: Path) -> None:
    init = described(first)
    processes.wait_for("their end", lambda: reboot._kill_containers(init), init, tmp_path / "log")
    assert reboot._kill_containers(init) is True


def test_the_parts_of_the_node_are_started_in_the_order_of_a_cluster() -> None:
    assert [name for name in START_ORDER if name in reboot.NODE_COMPONENTS] == list(reboot.NODE_COMPONENTS)


def test_a_folder_without_mounts_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    node.unmount_below(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
