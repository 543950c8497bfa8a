"""The driver's programs, as far as the mock has them: MPS daemons started, found, restarted, ended; settings kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from msgspec.structs import replace

from driver.prepare.sharing.daemons import DaemonSettings, MpsDaemons
from driver.prepare.sharing.process import DaemonError, DaemonProcess
from native.commands import Deadline, DriverPrograms
from native.mock import Failure, MockNode
from native.smi import ComputeMode, NotSupportedError, NvidiaSmi

ID = "0123456789ab"


class Changes:
    """Waits until something holds, at the pace at which it is looked at."""

    def __init__(self) -> None:
        self._never = threading.Event()

    def wait(self, holds: object, seconds: float = 20.0) -> None:
        assert callable(holds)
        deadline = Deadline(seconds)
        while not holds():
            assert deadline.left > 0, "it did not come about"
            self._never.wait(0.02)


@pytest.fixture
def node(own_node: MockNode, monkeypatch: pytest.MonkeyPatch) -> MockNode:
    for name, value in {**own_node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(name, value)
    return own_node


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets are in it."""
    made = Path(tempfile.mkdtemp(prefix="mps"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def programs(node: MockNode, tmp_path: Path) -> DriverPrograms:
    return DriverPrograms(node.root, tmp_path / "links")


@pytest.fixture
def daemons(programs: DriverPrograms, folder: Path) -> Iterator[MpsDaemons]:
    made = MpsDaemons(programs, folder, private_shm=False)
    yield made
    made.sweep(frozenset)


def settings(node: MockNode, percentage: int | None = None, mib: int | None = None) -> DaemonSettings:
    uuid = node.profile.gpus[0].uuid
    return DaemonSettings(ID, (uuid,), percentage, ((uuid, mib),) if mib else (), claim="ns/c (uid u)")


def test_one_server_for_several_users_is_asked_for(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms
) -> None:
    uuid = node.profile.gpus[0].uuid
    daemons.start(DaemonSettings(ID, (uuid,), multi_user=True), Deadline(30))
    assert b"-M" in Path(f"/proc/{pid_of(daemons)}/cmdline").read_bytes().split(b"\0")
    first = ask(daemons, programs, "start_server -uid 1000")
    assert ask(daemons, programs, "start_server -uid 2000") == first
    assert len(ask(daemons, programs, "get_server_list").split()) == 1


def pid_of(daemons: MpsDaemons) -> int:
    return int(daemons.folders(ID).pid_file.read_text())


def ask(daemons: MpsDaemons, programs: DriverPrograms, line: str) -> str:
    environment = daemons.folders(ID).environment
    done = programs.run("nvidia-cuda-mps-control", [], seconds=20, stdin=f"{line}\n", environment=environment)
    return done.output.strip()


def test_a_daemon_answers_with_its_limits_and_ends_without_a_trace(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms, folder: Path
) -> None:
    daemons.start(settings(node, 40, 2048), Deadline(30))
    assert daemons.runs(ID)
    environment = Path(f"/proc/{pid_of(daemons)}/environ").read_text().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={node.profile.gpus[0].uuid}" in environment
    assert any(entry.startswith(f"PATH={node.root}/usr/bin:") for entry in environment)  # where the server lies
    assert ask(daemons, programs, "get_default_active_thread_percentage") == "40.0"
    assert ask(daemons, programs, f"get_default_device_pinned_mem_limit {node.profile.gpus[0].uuid}") == "2048M"
    pid = pid_of(daemons)
    daemons.stop(ID, Deadline(30))
    assert not Path(f"/proc/{pid}").exists()
    assert list(folder.iterdir()) == []
    daemons.stop(ID, Deadline(30))  # again: nothing to end is a success


def test_clients_of_any_user_can_reach_it(node: MockNode, daemons: MpsDaemons) -> None:
    before = os.umask(0o077)
    try:
        daemons.start(settings(node), Deadline(30))
    finally:
        os.umask(before)
    folders = daemons.folders(ID)
    assert folders.pipe.stat().st_mode & 0o777 == 0o755
    assert folders.shm.stat().st_mode & 0o7777 == 0o1777


def test_starting_twice_is_one_daemon_with_the_later_settings(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms
) -> None:
    daemons.start(settings(node, 40), Deadline(30))
    pid = pid_of(daemons)
    daemons.start(settings(node, 60), Deadline(30))
    assert pid_of(daemons) == pid
    assert ask(daemons, programs, "get_default_active_thread_percentage") == "60.0"


def test_several_at_once_have_one_daemon(node: MockNode, daemons: MpsDaemons) -> None:
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(daemons.start, settings(node, 40), Deadline(60)) for _ in range(4)]:
            job.result()
    pid = pid_of(daemons)
    daemons.stop(ID, Deadline(30))
    assert not Path(f"/proc/{pid}").exists()
    assert not [thread for thread in threading.enumerate() if thread.name == f"mps-{ID}"]


def test_a_daemon_that_crashes_comes_back_with_its_settings_and_a_word_in_the_log(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms, caplog: pytest.LogCaptureFixture
) -> None:
    daemons.start(settings(node, 40), Deadline(30))
    pid = pid_of(daemons)
    os.kill(pid, signal.SIGKILL)
    Changes().wait(lambda: daemons.runs(ID) and daemons.folders(ID).socket.exists() and pid_of(daemons) != pid)
    Changes().wait(lambda: ask(daemons, programs, "get_default_active_thread_percentage") == "40.0")
    assert any("ns/c (uid u) ended (exit code -9); it is started again in 1 s" in text for text in caplog.messages)
    Changes().wait(lambda: daemons.restarts == 1)


def test_a_daemon_of_an_earlier_agent_is_found_and_watched(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms, folder: Path
) -> None:
    daemons.start(settings(node, 40), Deadline(30))
    pid = pid_of(daemons)
    daemons.detach()
    later = MpsDaemons(programs, folder, private_shm=False)
    assert not later.runs(ID)
    later.start(settings(node, 40), Deadline(30))
    assert pid_of(later) == pid
    os.kill(pid, signal.SIGKILL)
    Changes().wait(lambda: later.runs(ID) and later.folders(ID).socket.exists() and pid_of(later) != pid)
    later.stop(ID, Deadline(30))


def test_a_daemon_of_an_earlier_agent_is_ended_without_having_been_taken_over(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms, folder: Path
) -> None:
    daemons.start(settings(node), Deadline(30))
    pid = pid_of(daemons)
    daemons.detach()
    later = MpsDaemons(programs, folder, private_shm=False)
    later.stop(ID, Deadline(30))
    Changes().wait(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
    assert list(folder.iterdir()) == []


def test_daemons_that_belong_to_no_claim_are_swept(node: MockNode, daemons: MpsDaemons, folder: Path) -> None:
    daemons.start(settings(node), Deadline(30))
    (folder / "ffffffffffff" / "pipe").mkdir(parents=True)
    (folder / "somebody-elses").mkdir()
    assert daemons.sweep(lambda: frozenset({ID})) == ("ffffffffffff",)
    assert daemons.runs(ID)
    assert daemons.sweep(frozenset) == (ID,)
    assert [entry.name for entry in folder.iterdir()] == ["somebody-elses"]


@pytest.mark.bug("B99")
@pytest.mark.parametrize("code", [3, 999])
def test_a_daemon_that_cannot_start_is_told_with_its_last_words(node: MockNode, daemons: MpsDaemons, code: int) -> None:
    node.set_failures([Failure("mps.start", code)])
    with pytest.raises(DaemonError, match=r"ended at once: .+"):
        daemons.start(settings(node), Deadline(30))
    assert not daemons.runs(ID)


def test_a_driver_without_mps_and_a_path_too_long_are_told(node: MockNode, daemons: MpsDaemons, tmp_path: Path) -> None:
    (node.root / "usr/bin/nvidia-cuda-mps-control").rename(node.root / "elsewhere")
    with pytest.raises(DaemonError, match="no nvidia-cuda-mps-control below the driver root"):
        daemons.start(settings(node), Deadline(30))
    (node.root / "elsewhere").rename(node.root / "usr/bin/nvidia-cuda-mps-control")
    long = MpsDaemons(DriverPrograms(node.root, tmp_path), tmp_path / ("x" * 80), private_shm=False)
    with pytest.raises(DaemonError, match="too long for a socket: choose a shorter mpsDir"):
        long.start(settings(node), Deadline(30))


@pytest.mark.bug("B131")
@pytest.mark.parametrize("name", ["../../etc", "x", "0123456789ab/..", "0123456789AB", ""])
def test_what_is_no_id_never_becomes_a_path(daemons: MpsDaemons, name: str) -> None:
    with pytest.raises(DaemonError, match="no id of a daemon"):
        daemons.stop(name, Deadline(1))


def test_a_daemon_may_have_shared_memory_of_its_own(node: MockNode, programs: DriverPrograms, folder: Path) -> None:
    private = MpsDaemons(programs, folder, private_shm=True)
    try:
        private.start(settings(node), Deadline(30))
    except DaemonError as error:
        if "Operation not permitted" in str(error):
            pytest.skip("needs CAP_SYS_ADMIN")
        raise
    try:
        (private.folders(ID).shm / "mark").write_text("here")
        assert Path(f"/proc/{pid_of(private)}/root/dev/shm/mark").read_text() == "here"
        assert not Path("/dev/shm/mark").exists()
    finally:
        private.stop(ID, Deadline(30))


def test_nvidia_smi_sets_and_tells_modes_and_slices(node: MockNode, programs: DriverPrograms) -> None:
    smi, uuid = NvidiaSmi(programs), node.profile.gpus[0].uuid
    smi.set_time_slice(uuid, 3, Deadline(30))
    assert smi.time_slice(uuid, Deadline(30)) == 3
    smi.set_compute_mode(uuid, ComputeMode.EXCLUSIVE_PROCESS, Deadline(30))
    assert smi.compute_mode(uuid, Deadline(30)) is ComputeMode.EXCLUSIVE_PROCESS
    smi.set_compute_mode(uuid, ComputeMode.DEFAULT, Deadline(30))
    assert smi.compute_mode(uuid, Deadline(30)) is ComputeMode.DEFAULT


@pytest.mark.bug("B97")
def test_a_gpu_without_time_slices_says_so(node: MockNode, programs: DriverPrograms) -> None:
    node.set_failures([Failure("nvidia-smi.set-timeslice", 3)])
    with pytest.raises(NotSupportedError):
        NvidiaSmi(programs).set_time_slice(node.profile.gpus[0].uuid, 3, Deadline(30))


def emptied(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()


@pytest.mark.parametrize("what", ["emptied", "removed", "socket", "shm", "replaced"])
def test_a_daemon_whose_folders_are_taken_away_is_ended_and_made_anew(
    node: MockNode, daemons: MpsDaemons, programs: DriverPrograms, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    daemons.start(settings(node, 40), Deadline(30))
    pid, folders = pid_of(daemons), daemons.folders(ID)
    if what == "emptied":
        emptied(folders.pipe)
    elif what == "socket":
        folders.socket.unlink()
    elif what == "replaced":
        folders.pipe.rename(folders.base / "old")
        shutil.copytree(folders.base / "old", folders.pipe, ignore=lambda _folder, names: names)
    else:
        shutil.rmtree(folders.pipe if what == "removed" else folders.shm)
    assert not daemons.runs(ID)
    daemons.start(settings(node, 40), Deadline(30))
    assert daemons.runs(ID)
    assert pid_of(daemons) != pid
    Changes().wait(lambda: not Path(f"/proc/{pid}").exists())
    assert ask(daemons, programs, "get_default_active_thread_percentage") == "40.0"
    (told,) = [text for text in caplog.messages if "it is ended and started anew" in text]
    assert f"control daemon {pid} of claim ns/c (uid u) runs, but {folders.base}/" in told
    assert daemons.restarts == 1
    assert len([thread for thread in threading.enumerate() if thread.name == f"mps-{ID}"]) == 1


def test_folders_that_stand_are_kept_for_the_containers_that_have_them(node: MockNode, daemons: MpsDaemons) -> None:
    daemons.start(settings(node), Deadline(30))
    folders = daemons.folders(ID)
    before = [folder.stat().st_ino for folder in (folders.pipe, folders.shm)]
    emptied(folders.pipe)
    daemons.start(settings(node), Deadline(30))
    assert [folder.stat().st_ino for folder in (folders.pipe, folders.shm)] == before


def test_a_daemon_is_replaced_once_for_each_time_that_its_gpus_were_lost(
    node: MockNode, daemons: MpsDaemons, caplog: pytest.LogCaptureFixture
) -> None:
    daemons.start(settings(node, 40), Deadline(30))
    pids = [pid_of(daemons)]
    for renewal in ("first", "first", "", "second"):
        daemons.start(replace(settings(node, 40), renewal=renewal), Deadline(30))
        pids.append(pid_of(daemons))
    assert pids[0] != pids[1] == pids[2] == pids[3] != pids[4]
    told = [text for text in caplog.messages if "it is ended and started anew" in text]
    assert len(told) == 2
    assert all("a GPU that it serves was lost to it" in text for text in told)


def test_a_daemon_that_is_well_is_left_alone_however_often_it_is_looked_at(
    node: MockNode, daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.start(settings(node), Deadline(30))
    pid = pid_of(daemons)
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", lambda *_arguments, **_fields: pytest.fail("a process was started"))
        assert all(daemons.runs(ID) for _ in range(100))
    (daemons.folders(ID).shm / "cuda.shm.0").write_text("a program's")
    (daemons.folders(ID).pipe / "somebody's").write_text("x")
    assert daemons.runs(ID)
    daemons.start(settings(node), Deadline(30))
    assert pid_of(daemons) == pid


def test_one_that_does_not_end_is_told_and_no_second_one_runs_beside_it(
    node: MockNode, daemons: MpsDaemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.start(settings(node), Deadline(30))
    pid = pid_of(daemons)
    emptied(daemons.folders(ID).pipe)
    with monkeypatch.context() as patch:
        patch.setattr(DaemonProcess, "end", lambda _self, _seconds: False)
        for _ in range(2):
            with pytest.raises(DaemonError, match=f"process {pid} of MPS cannot be ended"):
                daemons.start(settings(node), Deadline(30))
            assert not daemons.runs(ID)
    daemons.start(settings(node), Deadline(30))
    assert daemons.runs(ID)
    assert pid_of(daemons) != pid
