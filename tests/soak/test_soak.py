"""A bounded number of random events on each kind of node; ``python -m tests.soak`` goes on for as long as one wants."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar, cast

import pytest

from tests.soak.soakloop import soak
from tests.soak.soaknode import SoakNode
from tests.soak.soakrun import WORLDS, Run

EVENTS = 60
SEED = 7
BUGS = ("B13", "B34", "B46", "B47", "B56", "B57", "B62", "B63", "B72", "B73", "B83", "B105")


_Test = TypeVar("_Test", bound=Callable[..., None])


def bugs(test: _Test) -> _Test:
    """Mark a test with every row that the events bring about."""
    for row in BUGS:
        test = pytest.mark.bug(row)(test)
    return test


@bugs
@pytest.mark.timeout(300)
@pytest.mark.parametrize("world", sorted(WORLDS))
def test_whatever_happens_devices_records_files_and_hardware_agree_and_nothing_is_left(world: str) -> None:
    result = soak(world, SEED, EVENTS)
    assert sum(result.counts.values()) >= EVENTS
    assert result.rests >= 2


def test_what_goes_wrong_again_after_a_reboot_has_mended_it_is_mended_again() -> None:
    ended: list[str] = []
    run = Run(WORLDS["sharing"], cast("SoakNode", None), random.Random(SEED))
    run.trouble("failing calls", lambda: ended.append("first"))
    run.trouble("failing calls", lambda: ended.append("beside it"))
    run.heal()
    assert not run.calm, "the agent has yet to see it"
    run.trouble("failing calls", lambda: ended.append("second"))
    run.heal()
    run.heal()
    assert ended == ["first", "second"]
