"""The agent that is measured is installed as in the image."""

from __future__ import annotations

import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests.bench.installation import install


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installed") / "own")


def python(command: Path, program: str) -> str:
    done = subprocess.run(
        [command.with_name("python"), "-I", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_its_command_runs_and_knows_its_version(command: Path) -> None:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    assert done.stdout == f"gpudra {metadata.version('gpudra')}\n", done.stderr


def test_its_modules_are_its_own_and_the_dependencies_are_found(command: Path) -> None:
    found = python(command, "import driver.model, native._nvml, grpc; print(driver.model.__file__)")
    assert Path(found).is_relative_to(command.parents[1])


def test_no_hook_of_a_development_install_is_in_the_way(command: Path) -> None:
    assert python(command, "import sys; print([name for name in sys.modules if 'editable' in name])") == "[]"


def test_byte_code_is_believed_without_a_look_at_the_source(command: Path) -> None:
    (made,) = command.parents[1].glob("lib/*/site-packages/driver/__pycache__/agent.*.pyc")
    assert made.read_bytes()[4:8] == b"\1\0\0\0"  # PEP 552: hash based, not checked
