"""Processes that outlive their starter: exactly the right one is found, waited for and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import processes
from hack.cluster.layout import ClusterError
from hack.cluster.processes import Process

STAYS = ("sh", "-c", '"$@"; exit $?', "sh")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def start(log: Path, *argv: str, expected: str = "sleep") -> Process:
    """Spawn, and wait until the shell has turned into the program."""
    process = processes.spawn("x", STAYS, argv, log)
    name = Path(f"/proc/{process.pid}/comm")
    processes.wait_for("the program", lambda: name.read_text() == f"{expected}\n", process, log)
    return process


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen(["sleep", "1000"])
    yield child
    child.kill()
    child.wait()


def test_a_spawned_process_is_the_program_itself_in_a_session_of_its_own(log: Path) -> None:
    process = start(log, "sleep", "1000")
    try:
        assert os.getsid(process.pid) != os.getsid(0)
        assert process.alive()
    finally:
        processes.end(process, grace=0)
    assert not process.alive()


def test_what_it_prints_goes_to_its_log(log: Path) -> None:
    process = processes.spawn("x", STAYS, ["sh", "-c", "echo out; echo err >&2; exec sleep 1000"], log)
    processes.wait_for("both lines", lambda: log.read_text() == "out\nerr\n", process, log)
    processes.end(process, grace=0)


def test_it_inherits_no_descriptor_but_the_three_usual_ones(log: Path) -> None:
    process = start(log, "sleep", "1000")
    held = Path(f"/proc/{process.pid}/fd")
    # The dynamic loader has libraries open for a moment; what was inherited stays.
    processes.wait_for(
        "no other descriptor", lambda: sorted(path.name for path in held.iterdir()) == ["0", "1", "2"], process, log
    )
    processes.end(process, grace=0)


def test_a_program_that_does_not_exist_is_an_error_with_the_shell_s_words(log: Path) -> None:
    with pytest.raises(ClusterError, match=r"ended[^$]*/no/such/program"):
        start(log, "/no/such/program")


def test_a_wait_ends_at_once_when_the_process_dies_and_shows_its_last_words(log: Path) -> None:
    process = start(log, "sh", "-c", "sleep 0.1; echo cannot bind; exit 3", expected="sh")
    with pytest.raises(ClusterError, match="cannot bind"):
        processes.wait_for("never", lambda: False, process, log, timeout=60)


def test_a_wait_ends_when_its_time_is_over(log: Path, sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.of_pid("x", sleeper.pid)
    with pytest.raises(ClusterError, match="not within 0 s"):
        processes.wait_for("never", lambda: False, process, log, timeout=0.2)


def test_a_process_with_the_same_number_and_another_start_is_a_stranger(sleeper: subprocess.Popen[bytes]) -> None:
    right = processes.of_pid("x", sleeper.pid)
    stranger = Process("x", right.pid, right.started - 1, ())
    assert right.alive()
    assert not stranger.alive()
    assert not processes.send_signal(stranger, signal.SIGKILL)
    processes.end(stranger, grace=0)
    assert processes.wait_gone(stranger, 0)
    assert sleeper.poll() is None


def test_a_zombie_counts_as_dead(sleeper: subprocess.Popen[bytes]) -> None:
    process = processes.of_pid("x", sleeper.pid)
    processes.end(process, grace=0)
    assert not process.alive()
    assert sleeper.returncode is None  # nobody has collected it yet


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace(log: Path) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    )
    process = processes.spawn("x", STAYS, [sys.executable, "-c", script], log)
    processes.wait_for("its deafness", lambda: "deaf" in log.read_text(), process, log)
    processes.end(process, grace=0.1)
    assert not process.alive()


def test_a_name_with_spaces_and_brackets_does_not_confuse_the_start_time(log: Path, tmp_path: Path) -> None:
    program = tmp_path / "a ) S 1 2 3"
    program.symlink_to("/bin/sleep")
    process = start(log, str(program), "1000", expected="a ) S 1 2 3")
    assert process.alive()
    assert process.started > 1000
    processes.end(process, grace=0)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"pid": 1}', '{"name": "x", "pid": "y", "started": 1, "argv": []}']
)
def test_a_pid_file_that_was_cut_short_names_nobody(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    assert Process.load(path) is None


def test_a_pid_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    process = Process("x", 12, 34, ("a", "b c"))
    process.save(tmp_path / "x.json")
    assert Process.load(tmp_path / "x.json") == process
    assert Process.load(tmp_path / "absent.json") is None


def test_a_short_command_that_fails_is_an_error_with_its_words() -> None:
    assert processes.run_checked(["cat"], stdin="hello") == "hello"
    with pytest.raises(ClusterError, match="no such thing"):
        processes.run_checked(["sh", "-c", "echo no such thing >&2; exit 1"])
