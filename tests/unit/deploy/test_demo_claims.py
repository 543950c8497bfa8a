"""Claims that users are given, and those of NVIDIA's demos, are such as the driver takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.cli.main import main

ROOT = Path(__file__).parents[3]
QUICKSTART = sorted((ROOT / "tests" / "cluster" / "data" / "quickstart").glob("*.yaml"))
DEMOS = sorted((ROOT / "deploy" / "demos").rglob("*.yaml"))


@pytest.mark.parametrize("file", QUICKSTART + DEMOS, ids=lambda file: file.name)
def test_nothing_is_wrong_with_the_configuration_of_a_demo(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file)]) == 0, capsys.readouterr().out


def test_the_quickstart_is_complete() -> None:
    names = {file.stem for file in QUICKSTART}
    assert names >= {f"gpu-test{number}" for number in range(1, 7)} | {"gpu-test-mps", "gpu-full"}
    assert names >= {f"{kind}-sharing" for kind in ("integer", "memory", "unlimited")}
