"""What keeps CPUs awake during a measurement."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.awake import cpus_awake


def held(path: Path) -> bool:
    """Whether this process has the file open."""
    return any(os.path.realpath(fd) == str(path) for fd in Path("/proc/self/fd").iterdir())


def test_no_time_to_wake_up_is_allowed_for_as_long_as_the_file_is_held(tmp_path: Path) -> None:
    file = tmp_path / "cpu_dma_latency"
    file.touch()
    with cpus_awake(file):
        assert file.read_bytes() == bytes(4)
        assert held(file)
    assert not held(file)


def test_a_measurement_that_fails_lets_it_go(tmp_path: Path) -> None:
    file = tmp_path / "cpu_dma_latency"
    with pytest.raises(ZeroDivisionError), cpus_awake(file):
        _ = 1 / 0
    assert not held(file)


def test_a_kernel_that_has_none_is_told_instead_of_measured(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cpu_dma_latency"), cpus_awake(tmp_path / "dev/cpu_dma_latency"):
        pytest.fail("nothing keeps the CPUs awake")
