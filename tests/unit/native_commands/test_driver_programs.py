"""The driver's programs are run from below the driver root, with their own libraries and a deadline that holds."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

import pytest

from native.commands import CommandError, Completed, Deadline, DriverPrograms, failed

VERSION = "580.105.08"


class Root:
    """A driver root with programs that are shell scripts."""

    def __init__(self, base: Path) -> None:
        self.path = base / "driver"
        self.links = base / "links"
        (self.path / "usr/bin").mkdir(parents=True)
        (self.path / "usr/lib64").mkdir(parents=True)

    def program(self, name: str, script: str) -> None:
        path = self.path / "usr/bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def library(self, name: str) -> Path:
        path = self.path / "usr/lib64" / name
        path.write_bytes(b"library")
        return path

    def programs(self, version: str | None = VERSION) -> DriverPrograms:
        return DriverPrograms(self.path, self.links, lambda: version)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_a_program_gets_its_arguments_as_they_are_and_both_streams_come_back(root: Root) -> None:
    root.program("nvidia-smi", 'for a in "$@"; do echo "<$a>"; done; echo err >&2; cat; exit 7')
    done = root.programs().run("nvidia-smi", ["-i", "; touch x", "$(id)"], seconds=10, stdin="in\n")
    assert done == Completed(7, "<-i>\n<; touch x>\n<$(id)>\nerr\nin\n")


def test_a_program_that_is_nowhere_is_told_with_the_places(root: Root) -> None:
    with pytest.raises(CommandError, match=r"no nvidia-smi below the driver root .*usr/bin/nvidia-smi"):
        root.programs().run("nvidia-smi", [], seconds=10)


def test_a_program_that_cannot_be_started_is_told(root: Root) -> None:
    root.program("nvidia-smi", "true")
    (root.path / "usr/bin/nvidia-smi").chmod(0o644)
    with pytest.raises(CommandError, match="cannot be started: Permission denied"):
        root.programs().run("nvidia-smi", [], seconds=10)


def test_a_program_that_hangs_is_killed_with_what_it_started(root: Root, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    root.program("nvidia-smi", f"sleep 600 & echo $! > {pids}; echo $$ >> {pids}; echo begun; wait")
    with pytest.raises(CommandError, match=r"nvidia-smi -L did not end within 0\.5 s and was killed: begun") as caught:
        root.programs().run("nvidia-smi", ["-L"], seconds=0.5)
    assert caught.value.code is None
    for pid in pids.read_text().split():
        wait_for_end(int(pid))


def wait_for_end(pid: int) -> None:
    """Until the process is gone, or a zombie that waits for whoever inherits it."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended, _, _ = select.select([descriptor], [], [], 60)
        assert ended, f"process {pid} still runs"
    finally:
        os.close(descriptor)


def test_a_grandchild_that_keeps_the_output_open_does_not_hold_the_caller(root: Root, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    root.program("nvidia-smi", f"sleep 600 & echo $! > {pid}; echo done")
    try:
        assert root.programs().run("nvidia-smi", [], seconds=30) == Completed(0, "done\n")
    finally:
        os.kill(int(pid.read_text()), 9)


def test_libraries_are_found_in_a_folder_that_holds_the_drivers_alone(root: Root) -> None:
    """NV#7: with the host's whole library folder its libc meets the container's loader."""
    library = root.library(f"libnvidia-ml.so.{VERSION}")
    root.library("libc.so.6")
    root.program("nvidia-smi", 'echo "$LD_LIBRARY_PATH"; ls "$LD_LIBRARY_PATH"')
    done = root.programs().run("nvidia-smi", [], seconds=10)
    assert done.output.splitlines() == [str(root.links), library.name]
    assert (root.links / library.name).resolve() == library


def test_after_an_upgrade_the_links_are_made_again(root: Root) -> None:
    root.library("libcuda.so.580.105.08")
    new = root.library("libcuda.so.590.1")
    root.program("nvidia-smi", "true")
    version = "580.105.08"
    programs = DriverPrograms(root.path, root.links, lambda: version)
    programs.run("nvidia-smi", [], seconds=10)
    version = "590.1"
    programs.run("nvidia-smi", [], seconds=10)
    assert [link.resolve() for link in root.links.iterdir()] == [new]


def test_while_the_version_is_unknown_earlier_links_are_used(root: Root) -> None:
    library = root.library(f"libcuda.so.{VERSION}")
    root.programs().environment()
    assert root.programs(None).environment()["LD_LIBRARY_PATH"] == str(root.links)
    assert [link.resolve() for link in root.links.iterdir()] == [library]


def test_without_a_driver_root_of_its_own_nothing_is_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    environment = DriverPrograms(Path("/"), tmp_path / "links", lambda: VERSION).environment({"A": "b"})
    assert environment["A"] == "b"
    assert environment["LC_ALL"] == "C"
    assert not {"LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_MPS_PIPE_DIRECTORY"} & environment.keys()
    assert not (tmp_path / "links").exists()


def test_links_that_cannot_be_made_are_told(root: Root) -> None:
    root.links.write_text("in the way")
    with pytest.raises(CommandError, match="cannot be linked"):
        root.programs().environment()


def test_a_failure_names_program_code_and_words() -> None:
    error = failed("nvidia-smi", ["-c", "X"], Completed(2, "No such\n  mode\n" + "x" * 500))
    assert str(error).startswith("nvidia-smi -c X failed with exit code 2: No such mode xxx")
    assert len(str(error)) < 480
    assert (error.code, failed("p", [], Completed(1, "")).args) == (2, ("p failed with exit code 1",))


def test_a_deadline_runs_out_and_stays_so() -> None:
    assert 0 < Deadline(60).left <= 60
    assert Deadline(0).left == 0
