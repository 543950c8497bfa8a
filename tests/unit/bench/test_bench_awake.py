"""The processes that keep CPUs awake during a measurement."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import awake
from tests.bench.awake import cpus_awake


def test_one_process_of_the_lowest_class_turns_on_each_cpu() -> None:
    with cpus_awake() as pids:
        assert [os.sched_getaffinity(pid) for pid in pids] == [{cpu} for cpu in sorted(os.sched_getaffinity(0))]
        assert {os.sched_getscheduler(pid) for pid in pids} == {os.SCHED_IDLE}


def test_none_is_left_when_the_measurement_has_ended_or_failed() -> None:
    with pytest.raises(ZeroDivisionError), cpus_awake() as pids:
        _ = 1 / 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_they_end_by_themselves_when_the_measurement_is_killed() -> None:
    program = (
        "import os, signal\nfrom tests.bench.awake import cpus_awake\nwith cpus_awake() as pids:\n"
        "    print(*pids, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert pids
    assert [pid for pid in pids if not _ends(pid)] == []


def test_a_kernel_that_refuses_is_told_instead_of_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake, "_TURN", "raise SystemExit('no')")
    with pytest.raises(OSError, match="was to keep a CPU awake has ended"), cpus_awake():
        pytest.fail("nothing keeps the CPUs awake")


def _ends(pid: int) -> bool:
    """Whether the process ends within a minute; a pidfd can be read from then on (pidfd_open(2))."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 60)[0])
    finally:
        os.close(process)
