"""That the soak would find a leak, and takes nothing for one that has a bound."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.soak.soakleaks import MIN_EVENTS, Figures, Sample, leaks, slope
from tests.soak.soakpage import EXACT, Page, preloaded

LIFE = 1000
CLAIM_KIB = 40


def life(
    heap: Callable[[int], float], events: int = LIFE, every: int = 40, descriptors: Callable[[int], int] = lambda _: 28
) -> list[Sample]:
    """What is measured of an agent with such a heap in KiB, with the noise of calls in hand and garbage."""
    chance = random.Random(events)
    return [
        Sample(at, Figures(descriptors(at), 30 + chance.randint(-2, 2), 60, 30000 + heap(at) + chance.uniform(0, 120)))
        for at in range(every, events + 1, every)
    ]


@pytest.mark.parametrize("kib", [1, 2, 50])
def test_a_leak_of_a_kibibyte_with_each_event_is_found(kib: int) -> None:
    (told,) = leaks(life(lambda at: kib * at))
    assert "heap_kib grows without an end" in told


def test_a_leak_beside_a_cache_is_found() -> None:
    assert leaks(life(lambda at: at + min(3 * at, 900)))


@pytest.mark.parametrize("full_after", [50, 300, 490, 640])
@pytest.mark.parametrize("kib", [1, 5])
def test_a_cache_that_becomes_full_is_no_leak(full_after: int, kib: int) -> None:
    assert leaks(life(lambda at: kib * min(at, full_after))) == []


def test_a_table_that_doubles_once_is_no_leak() -> None:
    for at_event in range(100, LIFE, 50):
        assert leaks(life(lambda at, then=at_event: 1900 if at >= then else 0)) == [], at_event  # type: ignore[misc] # a default


def test_noise_alone_is_no_leak() -> None:
    assert leaks(life(lambda _at: 0)) == []


def test_what_swings_between_two_states_is_no_leak_whatever_trend_it_seems_to_have() -> None:
    for seed in range(300):
        chance = random.Random(seed)
        swings = [chance.choice((0, 700)) for _ in range(LIFE + 1)]
        assert leaks(life(lambda at, swings=swings: swings[at])) == [], seed  # type: ignore[misc] # a default


def test_a_life_that_was_short_says_nothing() -> None:
    assert leaks(life(lambda at: 100 * at, MIN_EVENTS - 1)) == []
    assert leaks(life(lambda at: 100 * at, every=200)) == [], "too few samples"
    assert leaks([]) == []


def test_a_descriptor_in_twenty_events_is_a_leak_and_a_pool_is_none() -> None:
    (told,) = leaks(life(lambda _at: 0, descriptors=lambda at: 28 + at // 20))
    assert "descriptors grows without an end" in told
    assert leaks(life(lambda _at: 0, descriptors=lambda at: 28 + at % 7)) == []
    assert leaks(life(lambda _at: 0, descriptors=lambda at: 28 + min(at // 20, 24))) == []


def test_figures_that_were_not_taken_are_not_judged() -> None:
    assert leaks([Sample(at, Figures(28, 30, 60)) for at in range(0, LIFE, 20)]) == []


def test_a_slope_is_the_median_of_all_pairs() -> None:
    assert slope([(0, 0), (1, 2), (2, 4), (3, 6), (4, 600)]) == 2
    assert slope([(1, 5), (1, 9)]) == 0
    assert slope([]) == 0


_PROGRAM = """
import sys, time
kept = []
for line in sys.stdin:
    kept += [bytes(1024) for _ in range(int(line))]
    print("kept", flush=True)
    while True:
        time.time()
        if sys.stdin in __import__("select").select([sys.stdin], [], [], 0.001)[0]:
            break
"""


def test_the_gauge_counts_what_a_process_keeps_and_not_what_it_has_let_go(tmp_path: Path) -> None:
    page = Page(tmp_path)
    environment = {**os.environ, **page.environment, **preloaded(page.library), **EXACT}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def keep(count: int) -> int | None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{count}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "kept\n"
        return page.heap(lambda: process.poll() is None)

    with process:
        try:
            before, same, more = keep(0), keep(0), keep(1000)
        finally:
            process.kill()
    if before is None:
        pytest.skip("this C library does not say how much of its heap is in use")
    assert same is not None
    assert more is not None
    assert abs(same - before) < 64 * 1024
    assert 1000 * 1024 <= more - same < 1200 * 1024
