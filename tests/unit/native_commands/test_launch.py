"""A program gets a folder bound over another one, for itself alone; what cannot be done is told and nothing runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from native import launch

SCRIPT = str(Path(launch.__file__))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "file").write_text("bound")
    if "Operation not permitted" in run("--bind", f"{source}:{target}", "--", "/bin/true").stderr:
        pytest.skip("needs CAP_SYS_ADMIN")
    return source, target


def test_the_program_sees_the_folder_and_nobody_else_does(folders: tuple[Path, Path]) -> None:
    source, target = folders
    done = run("--bind", f"{source}:{target}", "--", "/bin/cat", str(target / "file"))
    assert (done.returncode, done.stdout) == (0, "bound")
    assert list(target.iterdir()) == []


def test_the_programs_exit_code_is_its_own(folders: tuple[Path, Path]) -> None:
    source, target = folders
    assert run("--bind", f"{source}:{target}", "--", "/bin/sh", "-c", "exit 7").returncode == 7


def test_a_folder_or_program_that_is_not_there_is_told(folders: tuple[Path, Path]) -> None:
    source, target = folders
    done = run("--bind", f"{source}/none:{target}", "--", "/bin/true")
    assert (done.returncode, "none on" in done.stderr) == (launch.FAILED, True)
    done = run("--bind", f"{source}:{target}", "--", "/no/program")
    assert (done.returncode, "No such file" in done.stderr) == (launch.FAILED, True)


@pytest.mark.parametrize(
    "arguments", [(), ("--bind", "x", "--", "/bin/true"), ("--bind", "a:b", "/bin/true", "x"), ("a:b", "--", "p", "q")]
)
def test_wrong_arguments_start_nothing(arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, "usage" in done.stderr) == (launch.FAILED, True)
