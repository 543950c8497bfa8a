"""The rescan loop: reads at start, on request, again and again; an absent driver is a state, not an end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace

from driver.discovery import AT_ONCE, Discovery, DriverUnavailableError, View
from driver.model import Gpu, GpuState, NodeInventory, PciAddress
from kubeletplugin.ratelimit import TokenBucket

PATIENCE = 10.0


def node(version: str) -> NodeInventory:
    return NodeInventory(driver_version=version, cuda_driver_version=None, nvml_version=None, gpus=())


class Script:
    """Readings to give one after the other (the last one again and again), and what was told of them."""

    def __init__(self, *readings: NodeInventory | Exception) -> None:
        self.readings = list(readings)
        self.count = 0
        self.views: list[View] = []
        self.failures: list[str | None] = []
        self.condition = threading.Condition()

    def read(self) -> NodeInventory:
        with self.condition:
            reading = self.readings[min(self.count, len(self.readings) - 1)]
            self.count += 1
        if isinstance(reading, Exception):
            raise reading
        return reading

    def changed(self, view: View) -> None:
        with self.condition:
            self.views.append(view)
            self.condition.notify_all()

    def measured(self, _seconds: float, failure: str | None) -> None:
        with self.condition:
            self.failures.append(failure)
            self.condition.notify_all()

    def until(self, predicate: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(predicate, timeout=PATIENCE)


@pytest.fixture
def running() -> Iterator[Callable[..., Discovery]]:
    started: list[Discovery] = []

    def start(script: Script, *, rescan: float = 3600, retry: float = 3600) -> Discovery:
        discovery = Discovery(
            script.read, script.changed, rescan_seconds=rescan, retry_seconds=retry, measured=script.measured
        )
        started.append(discovery)
        discovery.start()
        return discovery

    yield start
    for discovery in started:
        discovery.stop(PATIENCE)


def test_there_is_no_inventory_before_the_first_reading() -> None:
    discovery = Discovery(lambda: node("1"), lambda _view: None, rescan_seconds=1, retry_seconds=1)
    assert discovery.inventory() is None
    assert discovery.view.unavailable == "the node has not been read yet"


def test_the_first_reading_is_told(running: Callable[..., Discovery]) -> None:
    script = Script(node("1"))
    discovery = running(script)
    script.until(lambda: len(script.views) == 1)
    assert script.views[0] == View(node("1"), None)
    assert discovery.inventory() == node("1")


def test_a_reading_that_says_the_same_is_not_told_again(running: Callable[..., Discovery]) -> None:
    script = Script(node("1"), node("1"), node("2"))
    discovery = running(script, rescan=0.01)
    script.until(lambda: len(script.views) == 2)
    assert [v.inventory for v in script.views] == [node("1"), node("2")]
    assert discovery.inventory() == node("2")


def test_a_request_brings_the_next_reading_forward(running: Callable[..., Discovery]) -> None:
    script = Script(node("1"), node("2"))
    discovery = running(script)
    script.until(lambda: len(script.views) == 1)
    discovery.request()
    script.until(lambda: len(script.views) == 2)
    assert script.views[-1].inventory == node("2")


def test_readings_that_ask_for_the_next_one_follow_each_other_at_a_bounded_pace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while NVML does not list the instances of a GPU: each reading says that it must be read again."""
    taken: list[float] = []

    class Pace(TokenBucket):
        def take(self) -> float:
            taken.append(super().take())
            return 0.0 if taken[-1] == 0.0 else 3600.0  # so that the loop stands where it has to wait

    monkeypatch.setattr("driver.discovery.TokenBucket", Pace)
    script = Script(node("580"))
    loop: Discovery

    def read() -> NodeInventory:
        loop.request()
        return script.read()

    loop = Discovery(read, script.changed, rescan_seconds=3600, retry_seconds=3600, measured=script.measured)
    loop.start()
    script.until(lambda: len(script.failures) == AT_ONCE)
    until_waiting = threading.Event()
    while len(taken) <= AT_ONCE:
        until_waiting.wait(0.001)
    loop.stop(PATIENCE)
    assert taken[:AT_ONCE] == [0.0] * AT_ONCE
    assert taken[AT_ONCE] > 0.0
    assert script.count == AT_ONCE


def lacking(*fields: str) -> NodeInventory:
    gpu = Gpu(PciAddress(0, 1, 0, 0), GpuState.READY, unread=fields)
    return NodeInventory(driver_version="1", cuda_driver_version=None, nvml_version=None, gpus=(gpu,))


def test_what_was_not_told_is_asked_for_again_at_once(running: Callable[..., Discovery]) -> None:
    script = Script(lacking("mig"), lacking())
    running(script)
    script.until(lambda: len(script.views) == 2)
    assert script.views[-1].inventory == lacking()
    assert script.count == 2


def test_a_version_that_was_not_told_is_asked_for_again_too(running: Callable[..., Discovery]) -> None:
    script = Script(replace(lacking(), driver_version=None), lacking())
    running(script)
    script.until(lambda: len(script.views) == 2)


def test_what_is_never_told_is_asked_for_ever_more_rarely_up_to_the_period_of_the_rescan() -> None:
    discovery = Discovery(lambda: lacking(), lambda _view: None, rescan_seconds=60, retry_seconds=5)
    pauses = []
    for _ in range(6):
        discovery._requested = False
        discovery._ask_again(lacking("mig"))
        discovery._view = View(lacking("mig"), None)
        pauses.append((discovery._requested, discovery._pause()))
    assert pauses == [(True, 5), (False, 10), (False, 20), (False, 40), (False, 60), (False, 60)]
    discovery._ask_again(lacking("mig", "fabric"))
    assert (discovery._requested, discovery._pause()) == (True, 5), "something new is missing"
    discovery._ask_again(lacking())
    assert discovery._pause() == 60


def test_an_absent_driver_is_told_once_and_looked_for_until_it_comes(running: Callable[..., Discovery]) -> None:
    absent = DriverUnavailableError("no library below /driver-root")
    script = Script(absent, absent, absent, node("1"))
    running(script, retry=0.01)
    script.until(lambda: len(script.views) == 2)
    assert script.views == [View(None, "no library below /driver-root"), View(node("1"), None)]
    assert script.failures[:4] == ["driver_unavailable"] * 3 + [None]


@pytest.mark.bug("B58")
def test_a_driver_that_goes_away_leaves_the_last_inventory_in_place(running: Callable[..., Discovery]) -> None:
    script = Script(node("1"), DriverUnavailableError("driver not loaded"))
    discovery = running(script)
    script.until(lambda: len(script.views) == 1)
    discovery.request()
    script.until(lambda: len(script.views) == 2)
    assert discovery.view == View(node("1"), "driver not loaded")


def test_a_fault_of_our_own_is_logged_and_does_not_end_the_loop(
    running: Callable[..., Discovery], caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(ZeroDivisionError("memory total is 0"), node("1"))
    discovery = running(script, retry=0.01)
    script.until(lambda: len(script.views) == 2)
    assert discovery.inventory() == node("1")
    assert script.failures[0] == "ZeroDivisionError"
    assert "reading the node failed" in caplog.text
    assert "memory total is 0" in caplog.text


@pytest.mark.bug("B108")
def test_a_listener_that_fails_is_told_again_after_the_next_reading(caplog: pytest.LogCaptureFixture) -> None:
    told: list[View] = []
    done = threading.Event()

    def changed(view: View) -> None:
        told.append(view)
        if len(told) == 1:
            raise RuntimeError("the disk is full")
        done.set()

    discovery = Discovery(lambda: node("1"), changed, rescan_seconds=0.01, retry_seconds=0.01)
    discovery.start()
    assert done.wait(PATIENCE)
    discovery.stop(PATIENCE)
    assert told[:2] == [View(node("1"), None)] * 2
    assert "the disk is full" in caplog.text


def test_every_whole_reading_is_followed_by_a_look_even_when_nothing_changed() -> None:
    absent = DriverUnavailableError("no library")
    script = Script(node("1"), node("1"), absent, node("1"))
    looks: list[int] = []
    done = threading.Event()

    def looked() -> None:
        looks.append(script.count)
        if script.count >= 4:
            done.set()

    discovery = Discovery(script.read, script.changed, rescan_seconds=0.01, retry_seconds=0.01, looked=looked)
    discovery.start()
    assert done.wait(PATIENCE)
    discovery.stop(PATIENCE)
    assert looks[:3] == [1, 2, 4], "a reading that failed is none"


def test_stop_ends_a_loop_that_waits() -> None:
    script = Script(node("1"))
    discovery = Discovery(script.read, script.changed, rescan_seconds=3600, retry_seconds=3600)
    discovery.start()
    script.until(lambda: len(script.views) == 1)
    discovery.stop(PATIENCE)
    assert "discovery" not in {thread.name for thread in threading.enumerate()}


def test_stop_does_not_wait_for_a_reading_that_hangs() -> None:
    reading, release = threading.Event(), threading.Event()

    def read() -> NodeInventory:
        reading.set()
        assert release.wait(PATIENCE)
        return node("1")

    discovery = Discovery(read, lambda _view: None, rescan_seconds=1, retry_seconds=1)
    discovery.start()
    assert reading.wait(PATIENCE)
    discovery.stop(0.01)
    release.set()
