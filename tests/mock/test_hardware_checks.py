"""The checks for real hardware, kept true where there is none: run on a look-alike that does not say that it is one.

Without its marker the library is linked for this test alone, into a folder of the test's own. So the one script that a
machine with GPUs runs has run before, and what it keeps is known to become a profile.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from driver.cli import main as command
from native.mock import MockNode, build, profile

REPOSITORY = Path(__file__).parents[2]
PROFILES = ["dgx-h100", "gb10"]


def unmarked(folder: Path, name: str) -> MockNode:
    """A node whose library has no marker."""
    node = MockNode.create(folder, name)
    script = folder.parent / "exports.map"
    script.write_text("{ global: nvml*; local: *; };\n")
    core = build.cache_root() / build.key() / "core.o"
    linking = ["-shared", "-Wl,-soname,libnvidia-ml.so.1", f"-Wl,--version-script={script}"]
    subprocess.run([build.compiler(), *linking, "-o", node.library.resolve(), core, "-pthread"], check=True)
    return node


def check(node: MockNode, capture: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    roots = {
        "GPUDRA_TEST_DRIVER_ROOT": str(node.root),
        "GPUDRA_TEST_SYS_ROOT": str(node.root / "sys"),
        "GPUDRA_TEST_PROC_ROOT": str(node.root / "proc"),
        "GPUDRA_CAPTURE": str(capture),
        "GPUDRA_MOCK_QUIET": "1",
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-q", "-n0", "-rs", "-p", "no:cacheprovider", *arguments],
        env={**os.environ, **node.environment, **roots},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.parametrize("name", PROFILES)
def test_every_check_runs_and_what_it_keeps_becomes_the_same_machine(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = unmarked(tmp_path / "root", name)
    kept = tmp_path / "readings.json"
    done = check(node, kept)
    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    assert len(node.profile.gpus) == 1 or skipped == []
    capsys.readouterr()
    assert command.main(["mock", "capture", "--from", str(kept), "--name", "kept"]) == 0
    copy = profile.parse(yaml.safe_load(capsys.readouterr().out))
    assert [gpu.address for gpu in copy.gpus] == [gpu.address for gpu in node.profile.gpus]
    assert [gpu.device.path for gpu in copy.gpus] == [gpu.device.path for gpu in node.profile.gpus]
    assert node.profile.driver_version in copy.sources["gpu"]
    assert node.profile.gpus[0].uuid not in copy.gpus[0].uuid


def test_on_the_mock_itself_every_check_is_skipped_with_the_reason(own_node: MockNode, tmp_path: Path) -> None:
    done = check(own_node, tmp_path / "readings.json")
    assert "passed" not in done.stdout
    assert "is the mock: these tests are about hardware" in done.stdout
    assert not (tmp_path / "readings.json").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "these are no readings of tests/gpu: format is None"),
        ('{"format": "gpudra.readings/v0"}', "format is 'gpudra.readings/v0'"),
        ('{"format": "gpudra.readings/v1", "snapshot": {"gpus": 3}, "host": {}}', "cannot be used"),
    ],
)
def test_a_file_that_holds_no_readings_is_refused_by_name(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "notes.json"
    path.write_text(text)
    assert command.main(["mock", "capture", "--from", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert str(path) in error
