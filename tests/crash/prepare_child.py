"""A driver process that kills itself: ``prepare_child.py <folder> <when> <verb> <uid=gpu>...``.

``when`` is a crash point (``p3``), the n-th call that touches the disk (``disk-7``), or ``never``. The verb is
``prepare``, ``unprepare`` or ``storm`` (prepare and unprepare for ever, until somebody else kills it).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from driver.prepare import ClaimError, Preparer
from tests.unit.prepare.prepare_node import FakeNode, claim, ref, result


def die() -> None:
    """End as the kernel's OOM killer would end us: at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


def die_at_disk_call(nth: int) -> None:
    """End right before the n-th call that could change the disk."""
    count = 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == nth:
                die()
            return call(*arguments, **options)

        return wrapped

    for name in ("open", "write", "pwrite", "fsync", "fdatasync", "fchmod"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("rename", "unlink", "mkdir", "chmod"):
        setattr(Path, name, counted(getattr(Path, name)))


def storm(preparer: Preparer, uids: dict[str, int]) -> None:
    """Prepare and unprepare each claim in turn, for ever."""
    print("started", flush=True)
    while True:
        for uid, index in uids.items():
            preparer.prepare({uid: claim(uid, result(index))})
        for uid in uids:
            preparer.unprepare([ref(uid)])


def main() -> None:
    """Do as the command line says."""
    folder, when, verb, *pairs = sys.argv[1:]
    uids = {uid: int(index) for uid, index in (pair.split("=") for pair in pairs)}
    node = FakeNode(Path(folder))
    preparer = node.start()
    preparer.recover()
    if when.startswith("disk-"):
        die_at_disk_call(int(when.removeprefix("disk-")))
    node.faults = lambda point: die() if point == when else None
    answers: list[object]
    if verb == "storm":
        storm(preparer, uids)
    if verb == "prepare":
        answers = list(preparer.prepare({uid: claim(uid, result(index)) for uid, index in uids.items()}).values())
    else:
        answers = list(preparer.unprepare([ref(uid) for uid in uids]).values())
    sys.exit(any(isinstance(answer, ClaimError) for answer in answers))


if __name__ == "__main__":
    main()
