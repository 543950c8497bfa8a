"""Whatever of MPS runs for a claim ends with it: servers without a daemon, daemons that no file names any more."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from driver.prepare.sharing.daemons import MpsDaemons
from driver.prepare.sharing.process import DaemonError, DaemonProcess, left_of
from native.commands import Deadline, DriverPrograms

ID, OTHER = "0123456789ab", "ba9876543210"


@pytest.fixture
def daemons(tmp_path: Path) -> MpsDaemons:
    return MpsDaemons(DriverPrograms(tmp_path, tmp_path / "links"), tmp_path / "mps")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[[str, Path], subprocess.Popen[bytes]]]:
    """Runs a program of that name for a pipe folder, which ends by nothing but a signal."""
    running = []

    def start(name: str, pipe: Path) -> subprocess.Popen[bytes]:
        program = tmp_path / name
        if not program.exists():
            shutil.copy("/bin/sleep", program)
        process = subprocess.Popen([program, "600"], env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe)})
        running.append(process)
        # The kernel closes the pipe by which Popen learns of the new program before /proc tells of the program.
        while Path(f"/proc/{process.pid}/cmdline").read_bytes() != os.fsencode(program) + b"\x00600\0":
            assert process.poll() is None
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.bug("B98")
@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control"])
def test_what_runs_for_a_claim_without_a_file_that_names_it_ends_with_the_claim(
    daemons: MpsDaemons, run: Callable[[str, Path], subprocess.Popen[bytes]], name: str
) -> None:
    folders = daemons.folders(ID)
    folders.make()
    own, others = run(name, folders.pipe), run(name, daemons.folders(OTHER).pipe)
    stranger = run("sleeper", folders.pipe)
    daemons.stop(ID, Deadline(10))
    assert own.wait(30) in (-signal.SIGTERM, -signal.SIGKILL)
    assert not folders.base.exists()
    assert others.poll() is None
    assert stranger.poll() is None, "a program of the claim that is none of MPS is the container's"


@pytest.mark.bug("B98")
def test_one_that_cannot_be_ended_keeps_the_claim_and_its_files(
    daemons: MpsDaemons, run: Callable[[str, Path], subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = daemons.folders(ID)
    folders.make()
    process = run("nvidia-cuda-mps-server", folders.pipe)
    with monkeypatch.context() as patch:
        patch.setattr(DaemonProcess, "end", lambda _self, _seconds: False)
        with pytest.raises(DaemonError, match=f"process {process.pid} of MPS cannot be ended"):
            daemons.stop(ID, Deadline(0.1))
    assert folders.base.exists()
    daemons.stop(ID, Deadline(10))
    assert process.wait(30) != 0
    assert not folders.base.exists()


def test_processes_that_end_while_they_are_looked_at_are_none(
    run: Callable[[str, Path], subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = run("nvidia-cuda-mps-server", tmp_path)
    names = [str(process.pid), str(2**22 + 1), "self", "١"]
    monkeypatch.setattr(os, "listdir", lambda _path: names)
    assert [one.pid for one in left_of(tmp_path)] == [process.pid]
    process.kill()
    process.wait()
    assert list(left_of(tmp_path)) == []
