"""Holds a claim's Prepare back for a short while when what it waits for is likely to come.

The kubelet repeats a failed Prepare only when it looks at the pod again, which may take more than a minute. Three
failures pass much sooner: the driver's first reading of the node just after its start; a GPU whose former claim is
still being undone, as after a forced deletion of a pod (the scheduler hands the GPU out as soon as the pod is gone from
the API, the kubelet's Unprepare comes later); a GPU that somebody partitioned anew after the last reading. Such claims
are tried again as soon as something has changed.

Unprepare of a partition needs NVML, and waits for it in the same way: this driver itself lets go of NVML for a moment
when it hands another GPU over to a virtual machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence

from driver.prepare.claims import ClaimRef
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord
from driver.prepare.state import Answers, Preparer

log = logging.getLogger(__name__)

PASSING = frozenset({Reason.DRIVER_NOT_READY, Reason.DEVICE_IN_USE, Reason.NODE_CHANGED})
"""Failures that end without anybody's doing."""

RECHECK_SECONDS = 2.0
"""Another process (the instance that an update replaces) may free a GPU without a word to this one."""


class PatientPreparer:
    """A ``Preparer`` that waits for what passes. Safe to use from several threads, which its waits occupy.

    Args:
        preparer: does the work; never held while a claim waits.
        patience: seconds that one call may wait in all; 0 does not wait.
    """

    def __init__(self, preparer: Preparer, patience: float) -> None:
        self._preparer = preparer
        self._patience = patience
        self._condition = threading.Condition()
        self._changes = 0
        self._closed = False

    def prepare(self, claims: Mapping[str, object]) -> Answers:
        """As ``Preparer.prepare``; claims that fail for a passing reason are tried again until the patience is over."""
        deadline = time.monotonic() + self._patience
        answers: Answers = {}
        waiting = dict(claims)
        said = False
        while True:
            seen = self._changes
            answers.update(self._preparer.prepare(waiting))
            waiting = {uid: document for uid, document in waiting.items() if _passes(answers[uid])}
            if not waiting or not self._wait(seen, deadline):
                return answers
            if not said:
                said = True
                for uid in waiting:
                    log.info("claim uid %s waits at most %g s: %s", uid, self._patience, answers[uid])

    def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, ClaimError | None]:
        """As ``Preparer.unprepare``, tried again where NVML is away; claims that waited for a GPU are tried again."""
        deadline = time.monotonic() + self._patience
        answers: dict[str, ClaimError | None] = {}
        waiting = list(refs)
        while waiting:
            seen = self._changes
            answers.update(self._preparer.unprepare(waiting))
            left = [ref for ref in waiting if _is_away(answers[ref.uid])]
            if len(left) < len(waiting):  # not after every attempt: two that wait would wake each other
                self.changed()
                seen += 1
            waiting = left
            if left and not self._wait(seen, deadline):
                break
        return answers

    def prepared(self) -> tuple[ClaimRecord, ...]:
        """As ``Preparer.prepared``."""
        return self._preparer.prepared()

    def changed(self) -> None:
        """Something is different now (the node was read, a claim undone): whoever waits tries again."""
        with self._condition:
            self._changes += 1
            self._condition.notify_all()

    def close(self) -> None:
        """End all waits, now and from now on: each call gets the answer of its last attempt."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()

    def _wait(self, seen: int, deadline: float) -> bool:
        """Wait for a change after ``seen``; False when the time is over."""
        with self._condition:
            left = min(deadline - time.monotonic(), RECHECK_SECONDS)
            if self._closed or left <= 0:
                return False
            self._condition.wait_for(lambda: self._closed or self._changes != seen, left)
            return not self._closed


def _is_away(answer: ClaimError | None) -> bool:
    return answer is not None and answer.reason is Reason.DRIVER_NOT_READY


def _passes(answer: object) -> bool:
    return isinstance(answer, ClaimError) and not answer.permanent and answer.reason in PASSING
