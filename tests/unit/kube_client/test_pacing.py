"""Token bucket and back-off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.backoff import Backoff
from kubeletplugin.ratelimit import TokenBucket


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_free_and_then_the_rate_rules() -> None:
    bucket = TokenBucket(10.0, 3, clock=Clock())

    assert [bucket.take() for _ in range(5)] == pytest.approx([0, 0, 0, 0.1, 0.2])


def test_time_fills_the_bucket_up_to_the_burst() -> None:
    clock = Clock()
    bucket = TokenBucket(10.0, 2, clock=clock)
    for _ in range(2):
        bucket.take()
    clock.now += 60

    assert [bucket.take() for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_a_token_given_back_can_be_taken() -> None:
    bucket = TokenBucket(1.0, 1, clock=Clock())
    bucket.take()
    assert bucket.take() == 1.0
    bucket.give_back()

    assert bucket.take() == 1.0


@pytest.mark.parametrize(("rate", "burst"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_a_bucket_without_rate_or_room_is_refused(rate: float, burst: int) -> None:
    with pytest.raises(ValueError, match="a token bucket needs"):
        TokenBucket(rate, burst)


@given(st.lists(st.floats(0, 5), max_size=30), st.integers(1, 5), st.floats(0.5, 20))
def test_no_more_is_given_than_rate_and_burst_allow(pauses: list[float], burst: int, rate: float) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, burst, clock=clock)
    for taken, pause in enumerate(pauses, start=1):
        clock.now += pause
        at = clock.now + bucket.take()
        assert taken <= burst + rate * (at - 100.0) + 1e-6


def test_back_off_doubles_up_to_the_cap() -> None:
    backoff = Backoff(0.5, 4.0, jitter=lambda: 1.0)

    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 4.0, 4.0]
    assert backoff.failures == 5


def test_a_success_starts_the_back_off_anew() -> None:
    backoff = Backoff(0.5, 4.0, jitter=lambda: 1.0)
    backoff.next()
    backoff.next()
    backoff.reset()

    assert backoff.next() == 0.5


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 2000))
def test_a_wait_lies_between_half_and_all_of_the_cap_at_last(jitter: float, times: int) -> None:
    backoff = Backoff(0.5, 30.0, jitter=lambda: jitter)
    waits = [backoff.next() for _ in range(times)]

    assert all(0.25 <= wait <= 30.0 for wait in waits)
    assert times < 10 or waits[-1] >= 15.0
