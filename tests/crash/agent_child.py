"""The agent on a mock node, ended by SIGKILL at a crash point: ``agent_child.py <point> agent <flags>``.

What it writes to the mock's sysfs happens, which plain files alone do not see to.
"""

from __future__ import annotations

import functools
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

import driver.agent
from driver.cli.main import main
from driver.making import make_preparer
from native.mock import MockNode
from tests.support.crashnode import bind_by_mock

FLAG = "--mock-root="


def run() -> int:
    """Do as the command line says."""
    wanted, *arguments = sys.argv[1:]

    def passed(point: str) -> None:
        if point == wanted:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    patch = pytest.MonkeyPatch()
    patch.setattr(driver.agent, "make_preparer", functools.partial(make_preparer, faults=passed))
    root = next(argument.removeprefix(FLAG) for argument in arguments if argument.startswith(FLAG))
    bind_by_mock(MockNode.open(Path(root)), patch)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run())
