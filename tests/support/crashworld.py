"""A node for one scenario with pictures of it without any crash, and drivers that are killed on it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.crashnode import CrashNode, differences
from tests.support.crashscenarios import Scenario
from tests.support.preload import Control

UID = "11111111-0000-4000-8000-000000000000"
BYSTANDER = "22222222-0000-4000-8000-000000000000"
REPOSITORY = Path(__file__).parents[2]
SERVER = REPOSITORY / "tests/crash/forking_server.py"


class World:
    """A node on which the bystander is prepared."""

    def __init__(self, scenario: Scenario, base: Path, patch: pytest.MonkeyPatch) -> None:
        self.scenario = scenario
        self.turn = 1
        """Which point of a start a driver ends at that ends once more."""
        self.node = node = CrashNode(base, scenario.settings, patch, scenario.boot)
        life = node.restart()
        self.document = scenario.claim(node, UID)
        assert_prepared(life.prepare(scenario.bystander(node, BYSTANDER)))
        self.prepare()  # links to the driver's libraries come with the first claim that needs them, and stay
        self.unprepare()
        self.unprepared = self.settled()
        self.prepare()
        self.prepared = self.settled()
        self.unprepare()
        assert not differences(self.settled(), self.unprepared), "a claim leaves nothing, also without a crash"

    def prepare(self) -> None:
        assert_prepared(self.node.life.prepare(self.document))

    def unprepare(self) -> None:
        assert self.node.life.unprepare(UID) == [None]

    def settled(self) -> dict[str, Any]:
        """The picture at the next reading of the node."""
        self.node.life.read()
        return self.node.picture()


def assert_prepared(answers: list[object]) -> None:
    assert all(isinstance(answer, tuple) for answer in answers), answers


class Worlds:
    """Makes the world of a scenario; it serves tests of the scenario as long as they leave it as it was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self._made: tuple[Scenario, World] | None = None

    @contextmanager
    def of(self, scenario: Scenario) -> Iterator[World]:
        """The world of a scenario; a failure ends it."""
        if self._made is None or self._made[0] is not scenario:
            self.end()
            base = Path(tempfile.mkdtemp(prefix="c"))  # sockets of MPS daemons lie deep in it
            try:
                self._made = scenario, World(scenario, base, self._patch)
            except BaseException:
                shutil.rmtree(base)
                raise
        try:
            yield self._made[1]
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        made, self._made = self._made, None
        if made is not None:
            made[1].node.close()
            shutil.rmtree(made[1].node.base)


@contextmanager
def worlds_of_a_module() -> Iterator[Worlds]:
    """For a fixture; what a mock node leaves in the environment is put back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPUDRA_MOCK_QUIET", "1")
        for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
            patch.setenv(name, "")
        made = Worlds(patch)
        try:
            yield made
        finally:
            made.end()


class Killer:
    """Runs drivers that are killed (``tests/crash/forking_server.py``).

    Args:
        under: calls about paths below it count.
    """

    def __init__(self, under: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="killer")
        # The mock's files are its hardware, of which no half is ever seen.
        control = Control(Path(self._folder.name), under, beside="/node/")
        self._process = subprocess.Popen(
            [sys.executable, str(SERVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=REPOSITORY,
            env={**os.environ, **control.environment},
        )

    def run(
        self, world: World, verb: str, *, point: str | None = None, call: int = 0, torn: bool = False
    ) -> tuple[int, int]:
        """One driver's life on a node where none lives now; gives its exit status and the calls that it made.

        Args:
            verb: ``prepare``, ``unprepare`` or ``start``.
            point: the crash point at which it ends.
            call: before which call that changes a file it ends; 0: it does not.
            torn: that call, if it is a write, has been done in part.
        """
        world.node.life.end()
        order = {"base": str(world.node.base), "scenario": world.scenario.name, "uid": UID, "verb": verb}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**order, "point": point, "call": call, "torn": torn}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer["status"], answer["count"]

    def end(self) -> None:
        self._process.communicate(timeout=30)
        self._folder.cleanup()
