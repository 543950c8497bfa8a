"""What happens to a call between its arrival and its answer, without a socket: who goes first, who is left out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kubeletplugin.api import PrepareError
from kubeletplugin.calls import Call, ClaimCalls
from tests.unit.kubelet_side.fakes import DRIVER, Driver, FakeApi, Recorder, ref


class Bench:
    """``ClaimCalls`` with everything around it."""

    def __init__(self) -> None:
        self.api = FakeApi()
        self.driver = Driver()
        self.observer = Recorder()
        self.calls = ClaimCalls(DRIVER, self.driver, self.api, self.observer, workers=4)
        for number in range(1, 4):
            self.api.add_claim(ref(number))

    def call(self, kind: str, *, seconds: float = 30.0, is_active: Callable[[], bool] = lambda: True) -> Call:
        now = time.monotonic()
        return Call(kind, now, now + seconds, is_active)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.calls.close()


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        threading.Event().wait(0.002)


def queued(bench: Bench, uid: str, count: int) -> Callable[[], bool]:
    return lambda: len(bench.calls._queues._queues.get(uid, ())) == count


@pytest.mark.bug("B47")
def test_a_call_that_was_given_up_while_it_waited_is_never_begun(bench: Bench, aside: ThreadPoolExecutor) -> None:
    gate = bench.driver.hold("uid-1")
    there = threading.Event()
    there.set()
    first = aside.submit(bench.calls.prepare, [ref()], bench.call("prepare"))
    until(queued(bench, "uid-1", 1))
    second = aside.submit(bench.calls.prepare, [ref()], bench.call("prepare", is_active=there.is_set))
    until(queued(bench, "uid-1", 2))
    undoing = aside.submit(bench.calls.unprepare, [ref()], bench.call("unprepare"))
    until(queued(bench, "uid-1", 3))
    there.clear()
    gate.set()
    assert not isinstance(first.result()["uid-1"], PrepareError)
    assert undoing.result() == {"uid-1": None}
    assert second.result()["uid-1"].reason == "Abandoned"
    assert bench.driver.log == [("prepare", "uid-1"), ("unprepare", "uid-1")]
    assert bench.driver.prepared == set()


@pytest.mark.bug("B47")
def test_a_call_that_is_given_up_while_the_claim_is_fetched_does_not_reach_the_driver(bench: Bench) -> None:
    there = threading.Event()
    there.set()
    bench.api.before_get = lambda _path: there.clear()
    outcome = bench.calls.prepare([ref()], bench.call("prepare", is_active=there.is_set))["uid-1"]
    assert isinstance(outcome, PrepareError)
    assert outcome.reason == "Abandoned"
    assert bench.driver.log == []


@pytest.mark.bug("B47")
def test_calls_about_one_claim_run_in_the_order_in_which_they_came(bench: Bench, aside: ThreadPoolExecutor) -> None:
    gate = bench.driver.hold("uid-1")
    order = ["prepare", "unprepare", "prepare", "prepare", "unprepare", "unprepare", "prepare"]
    running = []
    for number, kind in enumerate(order, start=1):
        running.append(aside.submit(getattr(bench.calls, kind), [ref()], bench.call(kind)))
        until(queued(bench, "uid-1", number))
    gate.set()
    for one in running:
        one.result()
    assert [kind for kind, _ in bench.driver.log] == order


def test_the_wait_for_the_claim_counts_as_queueing(bench: Bench, aside: ThreadPoolExecutor) -> None:
    gate = bench.driver.hold("uid-1")
    began = time.monotonic()
    first = aside.submit(bench.calls.prepare, [ref()], bench.call("prepare"))
    assert bench.driver.entered["uid-1"].wait(10)
    entered = time.monotonic()
    second = aside.submit(bench.calls.unprepare, [ref()], bench.call("unprepare"))
    until(queued(bench, "uid-1", 2))
    stood = time.monotonic()
    free = time.monotonic()
    gate.set()
    first.result()
    second.result()
    by_kind = {kind: seconds for (kind, _), seconds in zip(bench.observer.rpcs, bench.observer.queued, strict=True)}
    assert by_kind["prepare"] <= entered - began, "what it waited for in the handler is no queueing"
    assert by_kind["unprepare"] >= free - stood


def test_a_place_in_the_queue_is_given_up_at_the_deadline(bench: Bench, aside: ThreadPoolExecutor) -> None:
    gate = bench.driver.hold("uid-1")
    first = aside.submit(bench.calls.prepare, [ref()], bench.call("prepare"))
    assert bench.driver.entered["uid-1"].wait(10)
    outcome = bench.calls.unprepare([ref()], bench.call("unprepare", seconds=0.05))["uid-1"]
    assert isinstance(outcome, PrepareError)
    assert outcome.reason == "ClaimBusy"
    assert queued(bench, "uid-1", 1)()
    gate.set()
    first.result()
    assert bench.driver.log == [("prepare", "uid-1")]
    assert bench.calls.drain(10)


def test_work_that_ends_after_its_deadline_gives_the_claim_back(bench: Bench) -> None:
    gate = bench.driver.hold("uid-1")
    outcome = bench.calls.prepare([ref()], bench.call("prepare", seconds=0.05))["uid-1"]
    assert isinstance(outcome, PrepareError)
    assert outcome.reason == "DeadlineExceeded"
    assert not bench.calls.drain(0.01), "the work still runs"
    gate.set()
    assert bench.calls.drain(10)
    assert bench.calls.unprepare([ref()], bench.call("unprepare")) == {"uid-1": None}


def test_several_claims_are_fetched_side_by_side(bench: Bench) -> None:
    together = threading.Barrier(3, timeout=10)
    bench.api.before_get = lambda _path: together.wait() and None
    outcomes = bench.calls.prepare([ref(1), ref(2), ref(3)], bench.call("prepare"))
    assert not any(isinstance(outcome, PrepareError) for outcome in outcomes.values())


def test_an_exception_over_one_claim_makes_the_others_go_one_by_one(bench: Bench) -> None:
    bench.driver.raises["uid-2"] = KeyError("driver")
    outcomes = bench.calls.prepare([ref(1), ref(2), ref(3)], bench.call("prepare"))
    failed = {uid for uid, outcome in outcomes.items() if isinstance(outcome, PrepareError)}
    assert failed == {"uid-2"}
    assert bench.driver.prepared == {"uid-1", "uid-3"}


def test_after_closing_claims_are_refused_and_nothing_is_held(bench: Bench) -> None:
    bench.calls.close()
    outcome = bench.calls.prepare([ref()], bench.call("prepare"))["uid-1"]
    assert isinstance(outcome, PrepareError)
    assert str(outcome) == f"{DRIVER} is shutting down"
    assert bench.calls.drain(0)


def test_work_that_had_not_begun_when_the_plugin_closed_is_refused(bench: Bench, aside: ThreadPoolExecutor) -> None:
    narrow = ClaimCalls(DRIVER, bench.driver, bench.api, bench.observer, workers=1)
    gate = bench.driver.hold("uid-1")
    first = aside.submit(narrow.prepare, [ref(1)], bench.call("prepare"))
    assert bench.driver.entered["uid-1"].wait(10)
    second = aside.submit(narrow.prepare, [ref(2)], bench.call("prepare"))
    until(lambda: narrow._workers["prepare"]._work_queue.qsize() == 1)
    narrow.close()
    assert str(second.result()["uid-2"]) == f"{DRIVER} is shutting down"
    gate.set()
    assert not isinstance(first.result()["uid-1"], PrepareError)
    assert narrow.drain(10)
    assert bench.driver.log == [("prepare", "uid-1")]
