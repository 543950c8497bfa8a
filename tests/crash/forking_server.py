"""Drivers that kill themselves, one after the other: forked from a process that has everything loaded.

A line of JSON on the standard input asks for one: ``base`` (folder of a ``CrashNode``), ``scenario`` (its name),
``uid``, ``verb`` (``prepare``, ``unprepare``, or ``start``, which is the start alone) and where it ends: ``point`` (a
crash point, or null) or ``call`` (before the n-th call that changes a file, counted by the preloaded library; 0: none).
With ``torn`` a call that writes has been done in part. The answer is a line of JSON: ``status`` as of ``subprocess``,
and ``count``, the calls that were counted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pytest

from driver.prepare import ClaimError
from tests.support.crashnode import CrashNode
from tests.support.crashscenarios import SCENARIOS
from tests.support.preload import Control


def die() -> None:
    """End as the kernel's OOM killer would end us: at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def live(order: dict[str, Any], control: Control) -> bool:
    """One driver's life; False: its work failed."""
    scenario = next(one for one in SCENARIOS if one.name == order["scenario"])
    node = CrashNode(Path(order["base"]), scenario.settings, pytest.MonkeyPatch())
    verb, uid = order["verb"], order["uid"]
    if verb == "start":
        control.arm(order["call"], torn=order["torn"])
        life = node.restart()
        control.disarm()
        return not life.problems
    life = node.restart()
    document = scenario.claim(node, uid)
    point = order["point"]
    node.faults = lambda passed: die() if passed == point else None
    control.arm(order["call"], torn=order["torn"])
    answers = life.prepare(document) if verb == "prepare" else life.unprepare(uid)
    control.disarm()
    failed = [answer for answer in answers if isinstance(answer, ClaimError)]
    print(*failed, file=sys.stderr)
    return not failed


def main() -> None:
    """Serve until the input ends."""
    control = Control.mine()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 2
            try:
                code = 0 if live(json.loads(line), control) else 1
            except BaseException:  # noqa: BLE001  nothing of the parent may run in the child
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answer = {"status": os.waitstatus_to_exitcode(status), "count": control.disarm()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
