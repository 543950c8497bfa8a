"""A driver process that kills itself on a mock node: ``mig_child.py <folder> <mig> <when> <verb> <uid=device,...>``.

``folder`` holds the mock node (``node``) and the driver's state. ``when`` is a crash point or ``never``, the verb is
``prepare`` or ``unprepare``.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from driver.model import MigSupport
from driver.prepare import ClaimError
from native.mock import MockNode
from tests.support.mignodes import MigNode


def main() -> None:
    """Do as the command line says."""
    folder, mig, when, verb, *pairs = sys.argv[1:]
    claims = {uid: devices.split(",") for uid, devices in (pair.split("=") for pair in pairs)}
    node = MigNode(MockNode.open(Path(folder) / "node"), Path(folder), MigSupport(mig))
    node.unprepare("nobody")
    node.read()

    def passed(point: str) -> None:
        if point == when:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    node.faults = passed
    node.preparer.recover()
    answers: list[object] = []
    for uid, devices in claims.items():
        answers.append(node.prepare(uid, *devices) if verb == "prepare" else node.unprepare(uid))
    for answer in answers:
        if isinstance(answer, ClaimError):
            print(answer, file=sys.stderr)
    sys.stdout.flush()
    os._exit(any(isinstance(answer, ClaimError) for answer in answers))


if __name__ == "__main__":
    main()
