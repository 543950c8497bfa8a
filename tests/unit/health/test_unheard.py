"""Behind a time in which no events were heard: what persists is looked for, and that there was a gap is told."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from driver.health.keeper import Keeper, Policy
from driver.health.monitor import Look, Monitor, Unheard
from driver.later import Later
from driver.metrics import Deferred
from driver.model import Gpu, NodeInventory
from driver.settings import Settings
from driver.watch import HealthWatch
from native.nvml.errors import NvmlError
from native.nvml.healthtypes import GpuHealth

WAIT = 20.0
A, B = "0000:1b:00.0", "0000:1c:00.0"


class Room:
    """A monitor that looks when it is asked to, and counters that rise when a test lets them."""

    def __init__(self, *gpus: Gpu) -> None:
        self.inventory = NodeInventory("580.1", (13, 0), "13", gpus)
        self.errors = {A: 0, B: 0}
        self.deaf: frozenset[str] = frozenset()
        self.fails = False
        self.let_go = False
        self.before_probe: Callable[[], None] = lambda: None
        self.told: list[Unheard] = []
        self.looks: list[Look] = []
        self.condition = threading.Condition()
        self.monitor = Monitor(
            Keeper(Policy(), boot_id="b"),
            lambda: (self.inventory, None),
            self.probe,
            period=3600.0,
            looked=lambda look: self.note(self.looks, look),
            deaf=lambda: self.deaf,
            unheard=lambda gap: self.note(self.told, gap),
            coalesce=0.001,
        )

    def probe(self, asked: Sequence[str]) -> Sequence[GpuHealth] | None:
        self.before_probe()
        if self.fails:
            raise NvmlError("nvmlDeviceGetCount_v2", 999)
        if self.let_go:
            return None
        return [GpuHealth(one, ecc_uncorrected_aggregate=self.errors[one]) for one in asked]

    def note(self, where: list[Any], what: Any) -> None:
        with self.condition:
            where.append(what)
            self.condition.notify_all()

    def look(self) -> None:
        before = len(self.looks)
        self.monitor.request()
        self.until(lambda: len(self.looks) > before)

    def until(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, WAIT)


@pytest.fixture
def room(bench: Any) -> Iterator[Room]:
    made = Room(bench.gpu(), bench.gpu(B))
    made.monitor.start()
    made.until(lambda: len(made.looks) == 1)
    yield made
    made.monitor.stop(WAIT)


def test_a_gap_is_told_once_with_what_the_counters_have_risen_by(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("driver.health.monitor.LOOK_SECONDS", 0.01)
    room.errors[A] = 3
    room.monitor.gap((A, B), 1.5, "NVML was let go of for a moment")
    room.until(lambda: len(room.told) == 1)
    assert room.told == [
        Unheard(frozenset({A, B}), 1.5, "NVML was let go of for a moment", {A: "3 uncorrected ECC errors"})
    ]
    room.errors[A] = 5
    room.look()
    assert len(room.told) == 1, "what happens after it was heard, or seen"


def test_what_is_compared_with_is_what_was_read_before_the_events_were_not_heard_any_more(room: Room) -> None:
    room.deaf = frozenset({A})
    room.errors = {A: 1, B: 1}
    room.look()  # in the middle of the gap
    room.errors = {A: 2, B: 2}
    room.deaf = frozenset()
    room.monitor.gap((A,), 20.0, "why")
    room.look()
    room.until(lambda: len(room.told) == 1)
    assert room.told[0].found == {A: "2 uncorrected ECC errors"}


def test_a_gap_is_kept_until_a_look_had_an_answer(room: Room) -> None:
    room.errors[A] = 1
    room.fails = True
    room.monitor.gap((A,), 1.0, "why")
    room.look()
    assert room.told == []
    room.fails, room.let_go = False, True
    room.monitor.request()
    room.let_go = False
    room.look()
    room.until(lambda: len(room.told) == 1)
    assert room.told[0].found == {A: "1 uncorrected ECC errors"}


def test_gaps_that_come_together_are_told_as_one(room: Room) -> None:
    room.monitor.gap((A,), 1.0, "first")
    room.monitor.gap((B,), 2.0, "second")
    room.look()
    room.until(lambda: len(room.told) == 1)
    assert room.told == [Unheard(frozenset({A, B}), 3.0, "first", {})]


def test_a_gap_that_ends_during_a_look_waits_for_the_next_one(room: Room) -> None:
    def once() -> None:
        room.before_probe = lambda: None
        room.monitor.gap((A,), 1.0, "why")

    room.before_probe = once
    room.look()
    assert room.told == [], "what that look read may be of before"
    room.errors[A] = 4
    room.look()
    room.until(lambda: len(room.told) == 1)
    assert room.told[0].found == {A: "4 uncorrected ECC errors"}


def test_the_journal_is_told_by_the_names_of_devices(tmp_path: Path, bench: Any) -> None:
    told: list[tuple[float, str, Any]] = []

    class Scribe:
        def deaf(self, seconds: float, reason: str, found: Any) -> None:
            told.append((seconds, reason, found))

    later = Later[Any]()
    later.attach(Scribe())
    settings = Settings(node_name="node-a", plugins_dir=str(tmp_path))
    watch = HealthWatch(settings, "pool", "boot", tuple, Deferred(), later, lambda _record, _verdict: None)
    watch.shown(NodeInventory("580.1", (13, 0), "13", (bench.gpu(),)))
    watch.unheard(Unheard(frozenset({A, B}), 2.0, "why", {A: "1 memory rows remapped", B: "it does not answer"}))
    found = {"gpu-0000-1b-00-0": "1 memory rows remapped", f"gpu-at-{B}": "it does not answer"}
    assert told == [(2.0, "why", found)]
