"""From one event set to the next: each event counts once, whenever it comes, and a gap that must be is told."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native.nvml import EventWatcher, WatchState, watching
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.eventtypes import EventType, NvmlEvent
from native.nvml.types import CallInProgress
from native.nvml.watching import Gap

A, B, C = "0000:1b:00.0", "0000:43:00.0", "0000:52:00.0"
XID = int(EventType.XID_CRITICAL_ERROR)
WAIT = 20.0


def xid(address: str, code: int) -> NvmlEvent:
    return NvmlEvent(address, XID, code, None, None)


class Driver:
    """What gives events to sets. Points of a watcher's way (``set``, ``register A``, ``free``, ...) may have events
    happen just then."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.sets: list[Library] = []
        self.lost: set[str] = set()
        self.gone = False
        self.at: dict[str, list[NvmlEvent]] = {}
        self.then: dict[str, Callable[[], None]] = {}
        self.most = 0

    def happen(self, *events: NvmlEvent) -> None:
        with self.condition:
            for event in events:
                for one in self.sets:
                    if event.address in one.registered:
                        one.queue.append(event)
            self.condition.notify_all()

    def passed(self, point: str) -> None:
        self.happen(*self.at.pop(point, ()))
        self.then.pop(point, lambda: None)()

    def lose(self, address: str) -> None:
        with self.condition:
            self.lost.add(address)
            self.condition.notify_all()


class Library:
    """A backend: one set of a driver's."""

    name, library_path = "fake", "/fake"

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.registered: set[str] = set()
        self.queue: deque[NvmlEvent] = deque()
        self.stopped = False

    def open(self) -> None:
        if self.driver.gone:
            raise LibraryUnavailableError("nvmlInit", NvmlReturn.DRIVER_NOT_LOADED, "not loaded")

    def open_events(self) -> None:
        with self.driver.condition:
            self.driver.sets.append(self)
            self.driver.most = max(self.driver.most, len(self.driver.sets))
        self.driver.passed("set")

    def register_events(self, address: str, mask: int) -> int:
        if address in self.driver.lost:
            raise NvmlError("nvmlDeviceRegisterEvents", NvmlReturn.GPU_IS_LOST, device=address)
        self.driver.passed(f"before {address}")
        with self.driver.condition:
            self.registered.add(address)
        self.driver.passed(f"after {address}")
        return mask

    def wait_event(self, seconds: float) -> NvmlEvent | None:
        with self.driver.condition:
            self.driver.condition.wait_for(
                lambda: self.queue or self.stopped or self.driver.gone or self.driver.lost & self.registered, seconds
            )
            if self.stopped:
                self.stopped = False
                return None
            if self.queue:
                return self.queue.popleft()
            if self.driver.gone:
                raise NvmlError("nvmlEventSetWait_v2", NvmlReturn.UNINITIALIZED)
            if self.driver.lost & self.registered:
                raise NvmlError("nvmlEventSetWait_v2", NvmlReturn.GPU_IS_LOST)
        return None

    def stop_waiting(self) -> None:
        with self.driver.condition:
            self.stopped = True
            self.driver.condition.notify_all()

    def close(self) -> None:
        self.driver.passed("free")
        with self.driver.condition:
            if self in self.driver.sets:
                self.driver.sets.remove(self)
        self.driver.passed("freed")

    def progress(self) -> CallInProgress | None:
        return None


class Room:
    """A watcher of that driver."""

    def __init__(self, library: Path) -> None:
        self.driver = Driver()
        self.condition = threading.Condition()
        self.events: list[NvmlEvent] = []
        self.gaps: list[Gap] = []
        self.watcher = EventWatcher(
            library,
            lambda event: self.note(self.events, event),
            self.changed,
            on_gap=lambda gap: self.note(self.gaps, gap),
            mask=XID,
            retry_after=0.02,
            make=lambda _path: Library(self.driver),  # type: ignore[arg-type, return-value]  # what is used of one
        )

    def changed(self, _state: WatchState) -> None:
        with self.condition:
            self.condition.notify_all()  # something to look at anew

    def note(self, where: list[Any], what: object) -> None:
        with self.condition:
            where.append(what)
            self.condition.notify_all()

    def watch(self, *addresses: str) -> None:
        self.watcher.watch(addresses)
        self.until(lambda: tuple(self.watcher.state.registered) == tuple(sorted({*addresses} - self.driver.lost)))

    def until(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, WAIT), (self.events, self.gaps, self.watcher.state)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    monkeypatch.setattr(watching, "LOOK_AFTER", 0.05)
    made = opened(tmp_path)
    yield made
    assert made.watcher.close(WAIT)


def opened(folder: Path) -> Room:
    library = folder / "libnvidia-ml.so.1"
    library.touch()
    room = Room(library)
    room.watcher.start()
    room.watch(A, B, C)
    return room


POINTS = ("set", f"before {A}", f"after {A}", f"before {B}", f"after {B}", "free", "freed")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("why", ["a GPU is lost", "a GPU is not wanted any more"])
def test_an_event_at_any_moment_between_two_sets_is_heard_once(room: Room, why: str, point: str) -> None:
    room.driver.at[point] = [xid(A, 48), xid(B, 95), xid(A, 31)]
    if why == "a GPU is lost":
        room.driver.lose(C)
        room.until(lambda: C in room.watcher.state.unmonitored)
    else:
        room.watch(A, B)
    room.until(lambda: len(room.events) >= 3)
    room.driver.happen(xid(A, 1))
    room.until(lambda: xid(A, 1) in room.events)
    assert Counter(room.events) == Counter([xid(A, 48), xid(B, 95), xid(A, 31), xid(A, 1)])
    assert [one for one in room.events if one.address == A] == [xid(A, 48), xid(A, 31), xid(A, 1)]
    assert room.gaps == []
    assert room.driver.most == 2, "the new set stood beside the one before"


def test_equal_events_are_as_many_as_happened(room: Room) -> None:
    room.driver.at = {f"after {B}": [xid(A, 31)] * 3}
    room.watch(A, B)
    room.driver.happen(xid(B, 7))
    room.until(lambda: xid(B, 7) in room.events)
    assert Counter(room.events) == {xid(A, 31): 3, xid(B, 7): 1}


def test_sets_that_follow_each_other_at_once_pass_on_what_was_heard_already(room: Room) -> None:
    room.driver.at = {f"after {C}": [xid(A, 48)]}  # in the first set and in the second
    room.driver.then = {f"after {C}": lambda: room.watcher.watch((A,))}  # which is left before it was waited for
    room.watcher.watch((A, C))
    room.until(lambda: tuple(room.watcher.state.registered) == (A,))
    room.driver.happen(xid(A, 7))
    room.until(lambda: xid(A, 7) in room.events)
    assert room.events == [xid(A, 48), xid(A, 7)]


def test_after_the_overlap_equal_events_are_two(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "OVERLAP_SECONDS", 0.05)
    room.driver.at = {f"before {A}": [xid(A, 31)]}  # only the set before has it
    room.watch(A, B)
    room.until(lambda: room.events == [xid(A, 31)])
    threading.Event().wait(0.1)
    room.driver.happen(xid(A, 31))
    room.until(lambda: len(room.events) == 2)


@given(st.dictionaries(st.sampled_from(POINTS), st.lists(st.sampled_from([A, B]), max_size=4), max_size=7))
@settings(max_examples=25, deadline=None)
def test_whatever_happens_in_whatever_order_counts_once(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, list[str]]
) -> None:
    room = opened(tmp_path_factory.mktemp("w"))
    try:
        code = 100
        wanted: list[NvmlEvent] = []
        for point in POINTS:
            events = [xid(address, code + number) for number, address in enumerate(plan.get(point, ()))]
            room.driver.at[point] = events
            wanted += events
            code += len(events)
        room.driver.lose(C)
        room.until(lambda: C in room.watcher.state.unmonitored and not any(room.driver.at.values()))
        room.driver.happen(xid(B, 1))
        room.until(lambda: xid(B, 1) in room.events)
        assert Counter(room.events) == Counter([*wanted, xid(B, 1)])
    finally:
        assert room.watcher.close(WAIT)


def test_a_time_without_the_library_is_a_gap(room: Room) -> None:
    assert room.watcher.rest(WAIT)
    assert room.driver.sets == []
    assert room.watcher.deaf == {A, B, C}
    room.driver.happen(xid(A, 79))
    room.watcher.go_on()
    room.until(lambda: len(room.gaps) == 1)
    assert room.gaps[0].addresses == (A, B, C)
    assert room.gaps[0].seconds > 0
    assert room.gaps[0].reason == "NVML was let go of for a moment"
    assert room.watcher.deaf == frozenset()
    assert room.events == []


def test_a_driver_that_was_away_is_a_gap_that_says_why(room: Room) -> None:
    room.driver.gone = True
    room.until(lambda: room.watcher.state.problem is not None)
    assert room.watcher.deaf == {A, B, C}
    room.driver.gone = False
    room.until(lambda: len(room.gaps) == 1)
    assert "NVML failed" in room.gaps[0].reason


def test_a_gpu_that_could_not_be_registered_for_a_while_is_a_gap_of_its_own(room: Room) -> None:
    room.driver.lose(C)
    room.until(lambda: C in room.watcher.state.unmonitored)
    assert room.watcher.deaf == {C}
    room.driver.lost.clear()
    room.until(lambda: len(room.gaps) == 1)
    assert room.gaps[0].addresses == (C,)
    assert "GPU_IS_LOST" in room.gaps[0].reason


def test_the_first_set_a_gpu_that_comes_and_one_that_was_let_go_on_purpose_are_no_gaps(room: Room) -> None:
    room.watch(A)
    room.watch(A, B)
    assert room.gaps == []
    assert room.watcher.rest(WAIT)
    room.watcher.watch((B,))
    room.watcher.go_on()
    room.until(lambda: len(room.gaps) == 1)
    assert room.gaps[0].addresses == (B,), "nobody asks about the other any more"
    assert room.watcher.deaf == frozenset()


@pytest.mark.bug("B108")
def test_a_listener_to_gaps_that_fails_stops_nothing(room: Room) -> None:
    def fail(gap: Gap) -> None:
        room.note(room.gaps, gap)
        raise RuntimeError("a fault of ours")

    room.watcher._on_gap = fail
    assert room.watcher.rest(WAIT)
    room.watcher.go_on()
    room.until(lambda: len(room.gaps) == 1)
    room.driver.happen(xid(A, 79))
    room.until(lambda: room.events == [xid(A, 79)])
