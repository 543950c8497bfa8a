"""What takes over two seconds says so on standard error, by whatever verb of the analysis; what does not is silent."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.cli import cluster, lint, shape
from driver.cli.main import main
from driver.cli.progress import Progress
from tests.support import dradocs as dra

JSON = dict[str, Any]
Clock = Callable[[], float]
GROUP: dict[str, Any] = {"node.kubernetes.io__instance-type": "p5"}
SELECTOR = "device.attributes['gpu.nvidia.com'].type == 'gpu'"


def documents() -> list[JSON]:
    names = [f"node-{number}" for number in range(3)]
    slices = [dra.resource_slice(dra.device("gpu-0", {"type": "gpu"}), node=name) for name in names]
    return [*(dra.node(name, **GROUP) for name in names), *slices, dra.device_class("gpus", SELECTOR)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "all.json"
    path.write_text(json.dumps(documents()))
    return str(path)


@pytest.fixture(params=["slow", "quick"])
def pace(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A machine on which each look at the clock is three seconds after the last, and one on which time stands still."""
    step = 3.0 if request.param == "slow" else 0.0
    for module in (lint, shape):
        ticks = itertools.count(0.0, step)
        monkeypatch.setattr(module, "Progress", lambda ticks=ticks: Progress(clock=lambda: next(ticks)))
    return str(request.param)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["lint", "--fail-on", "never"], ["... reading", "... rule A", "... shapes of group", "... selectors of"]),
        (["shape", "export", "--of", "node-0"], ["... reading"]),
        (["shape", "diff", "--of", "node-0"], ["... reading", "... shapes of nodes"]),
    ],
    ids=["lint", "export", "diff"],
)
def test_long_work_says_what_it_is_at(
    arguments: list[str], said: list[str], pace: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, file]) == 0

    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if line.startswith("... ")]
    if pace == "quick":
        assert told == []
    for words in said if pace == "slow" else ():
        assert any(line.startswith(words) for line in told), lines


def test_results_are_not_mixed_with_it(pace: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["lint", "-o", "json", file])

    json.loads(capsys.readouterr().out)


class Pages:
    """A server that gives one object a page."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get(self, _path: str, query: dict[str, str]) -> JSON:
        number = int(query.get("continue", "0"))
        more = {"continue": str(number + 1)} if number + 1 < self.count else {}
        body = dra.resource_slice(dra.device("gpu-0"), node=f"node-{number}")
        return {"items": [body], "metadata": more}


def test_a_large_cluster_is_counted_while_it_is_listed() -> None:
    stream, ticks = io.StringIO(), itertools.count(0.0, 3.0)
    kinds = tuple(kind for kind in cluster.KINDS if kind.name == "ResourceSlice")

    found = cluster.read_cluster(Pages(4), kinds, progress=Progress(stream, lambda: next(ticks)))

    assert len(found.slices) == 4
    counted = [line for line in stream.getvalue().splitlines() if line.startswith("... listing resourceslices")]
    assert counted == [f"... listing resourceslices ({number})" for number in range(1, 5)]


def test_a_count_of_nothing_is_not_said() -> None:
    stream, ticks = io.StringIO(), itertools.count(0.0, 3.0)

    Progress(stream, lambda: next(ticks))("reading dump.json", 0)

    assert stream.getvalue() == "... reading dump.json\n"
