"""The mock nvidia-cuda-mps-control: what a supervisor of the daemon meets, in good days and bad ones."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from native.mock import Failure, MockNode
from tests.support.agents import until


@dataclass(frozen=True, slots=True)
class Mps:
    """A pipe and a log folder on a node, and the program with them in its environment."""

    node: MockNode
    folder: Path

    @property
    def pipe(self) -> Path:
        return self.folder / "pipe"

    @property
    def log(self) -> str:
        return (self.folder / "log/control.log").read_text()

    @property
    def pid(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def environment(self, **more: str) -> dict[str, str]:
        folders = {"CUDA_MPS_PIPE_DIRECTORY": self.pipe, "CUDA_MPS_LOG_DIRECTORY": self.folder / "log"}
        return {name: str(value) for name, value in folders.items()} | {"GPUDRA_MOCK_QUIET": "1", **more}

    def run(self, *arguments: str, say: str = "", **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.node.mps_control, *arguments],
            input=say,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )

    def start(self, *arguments: str, **more: str) -> None:
        done = self.run("-d", *arguments, **more)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def ask(self, *lines: str) -> list[str]:
        done = self.run(say="\n".join(lines) + "\n")
        assert done.returncode == 0, done.stdout
        return done.stdout.splitlines()


@pytest.fixture
def mps(own_node: MockNode, tmp_path: Path) -> Iterator[Mps]:
    found = Mps(own_node, tmp_path / "mps")
    found.folder.mkdir()
    yield found
    if not own_node.root.exists():
        return
    own_node.set_failures([])
    if (found.pipe / "nvidia-cuda-mps-control.pid").exists():
        found.run(say="quit -t 0\n")


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ends(pid: int) -> bool:
    """Whether a process ends within 20 seconds."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], 20)[0])
    finally:
        os.close(watched)


def test_when_the_call_returns_front_ends_can_connect(mps: Mps) -> None:
    mps.start()
    assert mps.ask("get_default_active_thread_percentage") == ["100.0"]
    assert {path.name for path in mps.pipe.iterdir()} >= {"control", "control_privileged", "control_lock"}
    assert alive(mps.pid)
    assert f"Starting control daemon using socket {mps.pipe}/control" in mps.log


def test_the_daemon_needs_no_variable_to_find_its_node(mps: Mps) -> None:
    assert "GPUDRA_MOCK_NODE" not in mps.environment()
    mps.start()
    assert alive(mps.pid)


def test_defaults_are_set_and_read_back_until_the_daemon_ends(mps: Mps) -> None:
    uuid = mps.node.profile.gpus[0].uuid
    mps.start()
    assert mps.ask(
        "set_default_active_thread_percentage 35",
        "get_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit 0 2G",
        "get_default_device_pinned_mem_limit 0",
        f"set_default_device_pinned_mem_limit {uuid} 512M",
        f"get_default_device_pinned_mem_limit {uuid}",
        "set_default_client_priority 1",
        "get_default_client_priority",
    ) == ["35.0", "35.0", "2G", "512M", "1"]
    assert mps.ask("quit") == []
    mps.start()
    assert mps.ask("get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0") == ["100.0", "0G"]


@pytest.mark.parametrize(
    "command",
    [
        "set_default_active_thread_percentage 0",
        "set_default_active_thread_percentage 101",
        "set_default_active_thread_percentage half",
        "set_default_active_thread_percentage",
        "set_default_device_pinned_mem_limit 1 2G",
        "set_default_device_pinned_mem_limit GPU-nobody 2G",
        "set_default_device_pinned_mem_limit 0 2",
        "set_default_device_pinned_mem_limit 0 -2G",
        "start_server -uid me",
        "get_client_list 1",
        "quit -t soon",
        "make_tea",
    ],
)
def test_a_wrong_command_is_answered_and_changes_nothing(command: str, mps: Mps) -> None:
    mps.start()
    answer = mps.ask(command, "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0")
    assert len(answer) == 3
    assert answer[1:] == ["100.0", "0G"]
    assert alive(mps.pid)


def test_a_second_daemon_in_the_folder_is_refused_and_one_elsewhere_is_not(mps: Mps) -> None:
    mps.start()
    second = mps.run("-d")
    assert (second.returncode, second.stdout) == (1, "An instance of this daemon is already running\n")
    other = Mps(mps.node, mps.folder / "other")
    other.folder.mkdir()
    other.start()
    assert other.pid != mps.pid
    assert other.ask("quit") == []
    assert alive(mps.pid)


def test_without_a_daemon_the_front_end_says_so(mps: Mps) -> None:
    done = mps.run(say="get_server_list\n")
    assert (done.returncode, done.stdout) == (1, "Cannot find MPS control daemon process\n")


def test_quit_comes_back_when_the_daemon_is_gone(mps: Mps) -> None:
    mps.start()
    pid = mps.pid
    assert mps.ask("quit") == []
    assert ends(pid)
    assert {path.name for path in mps.pipe.iterdir()} == {"control_lock"}
    mps.start()
    assert mps.pid != pid


def test_a_server_runs_for_a_user_with_what_was_default_at_its_start(mps: Mps) -> None:
    mps.start()
    assert mps.ask("set_default_active_thread_percentage 20", f"start_server -uid {os.getuid()}") == ["20.0"]
    (server,) = mps.ask("get_server_list")
    assert alive(int(server))
    assert mps.ask(
        "set_default_active_thread_percentage 60",
        f"get_active_thread_percentage {server}",
        f"set_active_thread_percentage {server} 30",
        f"get_active_thread_percentage {server}",
        f"set_device_pinned_mem_limit {server} 0 1G",
        f"get_device_pinned_mem_limit {server} 0",
        f"get_client_list {server}",
    ) == ["60.0", "20.0", "30.0", "30.0", "1G"]
    assert mps.ask(f"start_server -uid {os.getuid()}", "get_server_list") == [server]
    assert mps.ask(f"shutdown_server {server}") == []
    assert ends(int(server))
    until(lambda: mps.ask("get_server_list") == [], "the daemon notices the end of its server")


def test_servers_end_with_their_daemon_however_it_ends(mps: Mps) -> None:
    for end in (signal.SIGTERM, signal.SIGKILL):
        mps.start()
        pid = mps.pid
        mps.ask(f"start_server -uid {os.getuid()}")
        (server,) = mps.ask("get_server_list")
        os.kill(pid, end)
        assert ends(pid)
        assert ends(int(server))


def test_no_server_starts_on_a_gpu_that_is_lost_or_lets_nobody_in(mps: Mps) -> None:
    gpu = mps.node.profile.gpus[0]
    mps.start(CUDA_VISIBLE_DEVICES=gpu.uuid)
    refusal = f"Failed to start an MPS server for user {os.getuid()}"
    mps.node.set_gpu_state(gpu.address, "lost")
    assert mps.ask(f"start_server -uid {os.getuid()}") == [refusal]
    mps.node.set_gpu_state(gpu.address, "ok")
    mps.node.nvidia_smi("-c", "PROHIBITED")
    assert mps.ask(f"start_server -uid {os.getuid()}", "get_server_list") == [refusal]
    mps.node.nvidia_smi("-c", "EXCLUSIVE_PROCESS")
    mps.ask(f"start_server -uid {os.getuid()}")
    assert len(mps.ask("get_server_list")) == 1


def test_only_the_devices_it_was_given_can_be_limited(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    mps = Mps(node, tmp_path / "mps")
    mps.folder.mkdir()
    mine, other = node.profile.gpus[3].uuid, node.profile.gpus[4].uuid
    mps.start(CUDA_VISIBLE_DEVICES=mine)
    assert mps.ask(
        f"set_default_device_pinned_mem_limit {other} 2G",
        "set_default_device_pinned_mem_limit 1 2G",
        f"set_default_device_pinned_mem_limit {mine} 2G",
        "set_default_device_pinned_mem_limit 0 3G",
        "quit",
    ) == [f"Invalid device: {other}", "Invalid device: 1"]


@pytest.mark.parametrize("failure", [Failure("mps.start", 999), Failure("mps.*", 999, times=1)])
def test_a_start_that_fails_says_so_and_the_next_works(failure: Failure, mps: Mps) -> None:
    mps.node.set_failures([failure])
    done = mps.run("-d")
    assert (done.returncode, done.stderr) == (1, "Cannot start the MPS control daemon: Unknown Error\n")
    assert not (mps.pipe / "control").exists()
    mps.node.set_failures([])
    mps.start()


def test_a_start_that_hangs_is_over_when_it_is_killed(mps: Mps) -> None:
    mps.node.set_failures([Failure("mps.start", delay_ms=-1)])
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([mps.node.mps_control, "-d"], env=mps.environment(), timeout=0.3, check=False)
    mps.node.set_failures([])
    mps.start()


def test_a_daemon_that_crashes_leaves_its_files_and_can_be_started_again(mps: Mps) -> None:
    mps.start()
    pid = mps.pid
    mps.node.set_failures([Failure("mps.run", 999)])
    assert ends(pid)
    mps.node.set_failures([])
    assert {"control", "nvidia-cuda-mps-control.pid"} <= {path.name for path in mps.pipe.iterdir()}
    assert mps.run(say="get_server_list\n").returncode == 1
    mps.start()
    assert mps.pid != pid


def test_a_command_fails_or_hangs_by_a_rule_of_the_node(mps: Mps) -> None:
    mps.start()
    mps.node.set_failures([Failure("mps.set_default_active_thread_percentage", 23)])
    assert mps.ask("set_default_active_thread_percentage 10", "get_default_active_thread_percentage") == [
        "Failed to set_default_active_thread_percentage: Insufficient Resources",
        "100.0",
    ]
    mps.node.set_failures([Failure("mps.get_server_list", delay_ms=-1)])
    asking = subprocess.Popen([mps.node.mps_control], env=mps.environment(), stdin=-1, stdout=-1, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        asking.communicate("get_server_list\n", timeout=0.3)
    mps.node.set_failures([])
    assert asking.communicate(timeout=20)[0] == ""
    assert asking.returncode == 0


def test_in_the_foreground_it_logs_to_its_caller(mps: Mps) -> None:
    daemon = subprocess.Popen([mps.node.mps_control, "-f"], env=mps.environment(), stdout=-1, text=True)
    until((mps.pipe / "nvidia-cuda-mps-control.pid").exists, "the daemon writes its pid")
    assert mps.pid == daemon.pid
    mps.ask("quit")
    out, _ = daemon.communicate(timeout=20)
    assert daemon.returncode == 0
    assert "Starting control daemon using socket" in out


def test_the_daemon_ends_with_the_node(mps: Mps) -> None:
    mps.start()
    pid = mps.pid
    mps.node.remove()
    assert ends(pid)


def test_a_folder_that_cannot_be_used_is_named(mps: Mps) -> None:
    (mps.folder / "pipe").write_text("a file")
    done = mps.run("-d")
    assert done.returncode == 1
    assert done.stderr.startswith(f"Cannot create MPS pipe directory {mps.pipe}")


def test_an_unknown_option_is_refused_with_the_usage(mps: Mps) -> None:
    assert mps.run("--help").returncode == 0
    done = mps.run("-x")
    assert (done.returncode, "CUDA_MPS_PIPE_DIRECTORY" in done.stderr) == (1, True)
