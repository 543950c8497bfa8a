"""Nodes that the tests of a folder share, and a Python of its own for every library: a process keeps what it loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from native.mock import MockNode
from tests.support.agents import Scene, open_scene
from tests.support.mocknodes import Ask, Node

REPOSITORY = Path(__file__).parents[2]

_PRELUDE = """
import ctypes, json, os, sys
import pynvml
pynvml.nvmlLib = ctypes.CDLL(os.environ["LIBRARY"])
def call(function, *arguments):
    "A value, or the code of the error."
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        return {"code": error.value}
"""


@pytest.fixture(scope="session")
def node_of(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """One untouched node a profile; a test that changes its node makes its own."""
    made: dict[str, MockNode] = {}

    def get(profile: str) -> MockNode:
        if profile not in made:
            made[profile] = MockNode.create(tmp_path_factory.mktemp(profile) / "root", profile)
        return made[profile]

    return get


@pytest.fixture
def own_node(tmp_path: Path) -> MockNode:
    """A T4 node of the test's own: the smallest."""
    return MockNode.create(tmp_path / "root", "t4")


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A DGX H100 between stand-ins, with no agent yet."""
    # Socket paths are short; the test's own tmp_path, which carries its name, would be too long.
    with open_scene(tmp_path_factory.mktemp("s"), "dgx-h100") as made:
        yield made


@pytest.fixture
def ask() -> Ask:
    """Run Python code with pynvml on a node and give what it leaves in ``answer``."""

    def run(node: MockNode, code: str, **environment: str) -> Any:
        program = f"{_PRELUDE}\n{code}\nprint(json.dumps(answer))"
        variables = {**os.environ, **node.environment, "LIBRARY": str(node.library), "GPUDRA_MOCK_QUIET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=variables | environment,
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """No C compiler, no mock: say so instead of failing everywhere."""
    from native.mock import build

    try:
        build.compiler()
    except build.BuildError as error:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=str(error)))
