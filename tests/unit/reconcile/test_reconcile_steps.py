"""What a step of the reconciler does, and when the next one is due: by news from watches, and without any."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.prepare import ClaimError, ClaimRecord, ClaimRef, DeviceRecord, Phase, Reason
from driver.reconcile import Reconciler, Swept
from kubeletplugin.apierrors import ApiError, ApiUnreachableError

DRIVER, POOL = "gpu.nvidia.com", "node-a/gpu.nvidia.com"
PERIOD, GRACE, SETTLE = 300.0, 60.0, 10.0


def ref(number: int = 1) -> ClaimRef:
    return ClaimRef("ns", f"c{number}", f"uid-{number}")


def record(number: int = 1) -> ClaimRecord:
    device = DeviceRecord("r", POOL, f"gpu-{number}", None, False, f"0000:0{number}:00.0", f"GPU-{number}", "cdi")
    return ClaimRecord(ref(number), Phase.PREPARED, (device,))


def claim(number: int = 1, uid: str = "", *, allocated: bool = True) -> dict[str, Any]:
    results = [{"driver": DRIVER, "pool": POOL, "device": f"gpu-{number}"}] if allocated else []
    return {"metadata": {"uid": uid or f"uid-{number}"}, "status": {"allocation": {"devices": {"results": results}}}}


class Node:
    """Claims, an API server that can be away, a clock, and watches that say what they are told to say."""

    def __init__(self, *numbers: int) -> None:
        self.now = 1000.0
        self.records = {number: record(number) for number in numbers}
        self.there = {number: claim(number) for number in numbers}
        self.away = False
        self.stuck: set[int] = set()
        self.asked: list[int] = []
        self.told: list[Swept] = []
        self.followed: list[str] = []
        self.watch_due: float | None = None
        self.stopped = threading.Event()
        self.reconciler = Reconciler(
            self,
            lambda: tuple(self.records.values()),
            self.unprepare,
            driver_name=DRIVER,
            pool_name=POOL,
            told=self.told.append,
            period=PERIOD,
            grace=GRACE,
            settle=SETTLE,
            clock=lambda: self.now,
        )
        self.reconciler._watches = self

    def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> dict[str, Any]:
        number = int(path[-1])
        self.asked.append(number)
        if self.away:
            raise ApiUnreachableError("refused")
        if number not in self.there:
            raise ApiError(404, "NotFound", "gone", {"kind": "resourceclaims", "name": f"c{number}"})
        return {"kind": "ResourceClaim", **self.there[number]}

    def unprepare(self, refs: Sequence[ClaimRef]) -> Mapping[str, ClaimError | None]:
        answers: dict[str, ClaimError | None] = {}
        for one in refs:
            number = int(one.name[-1])
            stuck = number in self.stuck
            answers[one.uid] = ClaimError("held by a process", Reason.BUSY) if stuck else None
            if not stuck:
                del self.records[number]
        return answers

    # the watches

    def follow(self, refs: Sequence[ClaimRef]) -> None:
        self.followed = [one.name for one in refs]

    def due(self) -> float | None:
        return self.watch_due

    def stop(self) -> None:
        self.stopped.set()

    def step(self, seconds: float = 0.0) -> float:
        self.now += seconds
        return self.reconciler.step() - self.now


def test_the_end_of_a_claim_that_a_watch_tells_of_is_acted_upon_after_the_grace_and_not_a_period_later() -> None:
    node = Node(1, 2)
    node.step()
    node.step(SETTLE)
    node.asked.clear()
    del node.there[1]
    node.reconciler.seen(ref(1), None)
    assert node.step(5) == GRACE
    assert node.asked == [], "the kubelet goes first"
    assert node.followed == ["c1", "c2"]
    node.step(GRACE)
    assert node.asked == [1]
    assert node.followed == ["c2"], "what was unprepared is not watched any more"
    assert [(one.ref, one.why, one.error) for one in node.told] == [(ref(1), "deleted", None)]


@pytest.mark.bug("B55")
@pytest.mark.parametrize(
    ("document", "why"), [(claim(1, "another"), "replaced"), (claim(1, allocated=False), "deallocated")]
)
def test_a_watch_also_tells_of_a_claim_made_anew_or_taken_back(document: dict[str, Any], why: str) -> None:
    node = Node(1)
    node.step()
    node.there[1] = document
    node.reconciler.seen(ref(1), document)
    node.step(1)
    node.step(GRACE)
    assert [one.why for one in node.told] == [why]


def test_a_watch_that_is_wrong_does_no_harm() -> None:
    node = Node(1)
    node.step()
    node.reconciler.seen(ref(1), None)
    node.step(1)
    node.step(GRACE)
    assert node.told == []
    assert node.step(GRACE) > GRACE, "it is no longer in doubt"


def test_a_claim_that_is_back_is_not_asked_about() -> None:
    node = Node(1)
    node.step()
    node.asked.clear()
    node.reconciler.seen(ref(1), claim(1, allocated=False))
    node.step(1)
    node.reconciler.seen(ref(1), claim(1))
    node.step(1)
    node.step(GRACE)
    assert node.asked == []


def test_news_that_is_nobody_s_or_no_claim_changes_nothing() -> None:
    node = Node(1)
    node.step()
    node.reconciler.seen(ref(7), None)
    node.reconciler.seen(ref(1), {"kind": "Status"})
    assert node.step(SETTLE) == PERIOD - SETTLE
    assert node.told == []


def test_the_kubelet_that_comes_within_the_grace_leaves_nothing_to_do() -> None:
    node = Node(1)
    node.step()
    del node.there[1]
    node.reconciler.seen(ref(1), None)
    node.step(1)
    node.asked.clear()
    del node.records[1]
    node.step(GRACE)
    assert (node.asked, node.told) == ([], [])


def test_without_a_watch_the_look_at_all_finds_the_same() -> None:
    node = Node(1, 2)
    node.step()
    del node.there[2]
    assert node.step(PERIOD) == GRACE
    node.step(GRACE)
    assert [one.ref for one in node.told] == [ref(2)]


def test_claims_are_watched_once_they_have_settled_the_oldest_first() -> None:
    node = Node(2)
    assert node.step() == SETTLE
    assert node.followed == []
    node.records[1] = record(1)
    node.there[1] = claim(1)
    node.step(SETTLE)
    assert node.followed == ["c2"]
    node.step(SETTLE)
    assert node.followed == ["c2", "c1"]
    del node.records[2]
    node.step(1)
    assert node.followed == ["c1"]


def test_a_watch_that_wants_to_be_opened_again_decides_when_the_next_step_is() -> None:
    node = Node(1)
    node.step()
    node.watch_due = node.now + SETTLE + 3
    assert node.step(SETTLE) == 3


def test_claims_that_come_and_go_wake_the_thread_once_in_the_settling_time() -> None:
    node = Node()
    reconciler = node.reconciler
    with reconciler._condition:
        reconciler._due = math.inf
    reconciler.changed()
    first = reconciler._soon
    node.now += 1
    reconciler.changed()
    assert first == reconciler._soon == node.now - 1 + SETTLE
    node.step()
    assert reconciler._soon == math.inf


@pytest.mark.bug("B110")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["gone", "back", "away", "here", "stuck", "free", "told gone", "told there", "nothing"]),
            st.integers(1, 3),
            st.sampled_from([0.0, 1.0, 30.0, GRACE, PERIOD]),
        ),
        max_size=25,
    )
)
def test_the_next_step_is_always_later_and_a_claim_that_is_there_is_never_unprepared(
    happenings: list[tuple[str, int, float]],
) -> None:
    node = Node(1, 2, 3)
    for what, number, seconds in happenings:
        if what == "gone":
            node.there.pop(number, None)
        elif what == "back":
            node.there[number] = claim(number)
        elif what in ("away", "here"):
            node.away = what == "away"
        elif what == "stuck":
            node.stuck.add(number)
        elif what == "free":
            node.stuck.discard(number)
        elif what != "nothing":
            node.reconciler.seen(ref(number), None if what == "told gone" else claim(number))
        known = len(node.told)
        assert node.step(seconds) > 0
        assert all(int(one.ref.name[-1]) not in node.there for one in node.told[known:])
        assert not (node.away and len(node.told) > known)


def test_the_thread_acts_on_news_at_once_and_ends_with_its_watches() -> None:
    acted = threading.Event()
    node = Node(1)
    reconciler = Reconciler(
        node,
        lambda: tuple(node.records.values()),
        node.unprepare,
        driver_name=DRIVER,
        pool_name=POOL,
        told=lambda _swept: acted.set(),
        period=PERIOD,
        grace=0.05,
        settle=0.0,
    )
    reconciler.start(node)
    del node.there[1]
    reconciler.seen(ref(1), None)
    assert acted.wait(20)
    reconciler.stop(20)
    assert node.stopped.is_set()
    assert not reconciler._thread.is_alive()
