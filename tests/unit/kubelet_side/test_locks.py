"""Claims have queues: arrival decides."""

from __future__ import annotations

import threading

from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.locks import ClaimQueues


def test_a_turn_comes_at_once_when_nobody_is_before_it() -> None:
    queues = ClaimQueues()
    (turn,) = queues.enter(["a"], "prepare")
    assert queues.wait_any([turn], 0) == [turn]
    assert queues.holder("a") is turn


def test_a_turn_waits_for_the_one_before_it() -> None:
    queues = ClaimQueues()
    (first,) = queues.enter(["a"], "prepare")
    (second,) = queues.enter(["a"], "unprepare")
    assert queues.wait_any([second], 0.01) == []
    threading.Timer(0.01, queues.leave, [first]).start()
    assert queues.wait_any([second], 10) == [second]


def test_a_busy_claim_does_not_hold_up_the_others_of_the_request() -> None:
    queues = ClaimQueues()
    queues.enter(["busy"], "prepare")
    busy, free = queues.enter(["busy", "free"], "prepare")
    assert queues.wait_any([busy, free], 10) == [free]


def test_giving_up_a_place_in_the_middle_lets_the_next_move_up() -> None:
    queues = ClaimQueues()
    turns = [queues.enter(["a"], label)[0] for label in ("1", "2", "3")]
    queues.leave(turns[1])
    queues.leave(turns[0])
    assert queues.wait_any([turns[2]], 0) == [turns[2]]


def test_leaving_twice_is_harmless_to_the_next() -> None:
    queues = ClaimQueues()
    (first,) = queues.enter(["a"], "1")
    (second,) = queues.enter(["a"], "2")
    queues.leave(first)
    queues.leave(first)
    assert queues.wait_any([second], 0) == [second]


def test_nothing_is_kept_of_claims_that_nobody_works_on() -> None:
    queues = ClaimQueues()
    turns = queues.enter(["a", "b"], "prepare")
    assert len(queues) == 2
    assert not queues.wait_idle(0)
    for turn in turns:
        queues.leave(turn)
    assert len(queues) == 0
    assert queues.wait_idle(0)
    assert queues.holder("a") is None


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(st.lists(st.sets(st.sampled_from("abcd"), min_size=1), max_size=12))
def test_requests_that_share_claims_never_wait_in_a_circle(requests: list[set[str]]) -> None:
    queues = ClaimQueues()
    waiting = [queues.enter(sorted(uids), str(number)) for number, uids in enumerate(requests)]
    order: dict[str, list[str]] = {uid: [] for uid in "abcd"}
    while any(waiting):
        moved = False
        for turns in waiting:
            for turn in queues.wait_any(turns, 0):
                order[turn.uid].append(turn.label)
                queues.leave(turn)
                turns.remove(turn)
                moved = True
        assert moved, "all wait for each other"
    for uid, labels in order.items():
        assert labels == [str(number) for number, uids in enumerate(requests) if uid in uids], "not in order of arrival"
