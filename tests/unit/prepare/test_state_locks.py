"""Locks: by name within the process, by file between processes, never for ever, nothing left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from driver.prepare.locks import KeyedLocks, ProcessLock

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def soon() -> float:
    return time.monotonic() + 0.02


def later() -> float:
    return time.monotonic() + 30


def test_names_that_are_free_are_given_and_the_others_left_out() -> None:
    locks = KeyedLocks()
    with locks.hold(["b", "a", "b"], later()) as first, locks.hold(["a", "c"], soon()) as second:
        assert first == {"a", "b"}
        assert second == {"c"}
    with locks.hold(["a", "b", "c"], soon()) as free:
        assert free == {"a", "b", "c"}
    assert locks._locks == {}


def test_locks_are_released_when_the_work_fails() -> None:
    locks = KeyedLocks()
    with pytest.raises(RuntimeError), locks.hold(["a"], soon()):
        raise RuntimeError
    assert locks._locks == {}


def test_two_that_want_the_same_names_in_different_order_do_not_wait_for_each_other() -> None:
    locks = KeyedLocks()
    together = threading.Barrier(2, timeout=30)
    done: list[frozenset[str]] = []

    def work(names: list[str]) -> None:
        together.wait()
        for _ in range(200):
            with locks.hold(names, later()) as free:
                done.append(free)

    threads = [threading.Thread(target=work, args=(names,)) for names in (["a", "b", "c"], ["c", "b", "a"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert done == [frozenset("abc")] * 400
    assert locks._locks == {}


@pytest.mark.bug("B59")
def test_the_process_lock_keeps_other_processes_out_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "serialize.lock"
    lock = ProcessLock(path)
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match=r"serialize\.lock is held by another process"), lock.hold(soon()):
            pytest.fail("the lock was had twice")
        waited: list[bool] = []

        def wait() -> None:
            with lock.hold(later()):
                waited.append(True)

        thread = threading.Thread(target=wait)
        thread.start()
        holder.kill()
        thread.join(30)
    assert waited == [True]


def test_the_threads_of_a_process_hold_the_lock_together_and_the_last_one_frees_it(tmp_path: Path) -> None:
    path = tmp_path / "serialize.lock"
    ours, theirs = ProcessLock(path), ProcessLock(path)
    with ours.hold(later()):
        with ours.hold(soon()):
            pass
        with pytest.raises(TimeoutError), theirs.hold(soon()):
            pytest.fail("the lock was had twice")
    with theirs.hold(soon()):
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_lock_file_that_cannot_be_made_is_an_error_and_does_not_stick(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "no" / "serialize.lock")
    with pytest.raises(FileNotFoundError), lock.hold(soon()):
        pytest.fail("there is no such folder")
    (tmp_path / "no").mkdir()
    with lock.hold(soon()):
        assert lock.path.exists()
