"""Changes on the PCI bus become one prompt call, and a machine without uevents is no fault."""

from __future__ import annotations

import errno
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from native import uevents
from native.uevents import SourceUnavailableError, UeventWatcher, open_kernel_source

PATIENCE = 10.0


class PipeSource:
    """Events that a test writes; ``b`` in the pipe breaks the source, ``f`` says that events were lost."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.actions: list[str] = []
        self.closed = threading.Event()

    def send(self, *actions: str, mark: bytes = b"e") -> None:
        self.actions.extend(actions)
        os.write(self._write, mark)

    def fileno(self) -> int:
        return self.read

    def take(self) -> list[str]:
        data = os.read(self.read, 4096)
        if b"b" in data:
            raise OSError(errno.EIO, "broken")
        if b"f" in data:
            raise OSError(errno.ENOBUFS, "lost")
        taken, self.actions = self.actions, []
        return taken

    def close(self) -> None:
        os.close(self.read)
        os.close(self._write)
        self.closed.set()


class Calls:
    """Counts callbacks and lets a test wait for one."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._then = then
        self._condition = threading.Condition()

    def __call__(self) -> None:
        with self._condition:
            self.count += 1
            self._condition.notify_all()
        self._then()

    def wait_for(self, count: int) -> bool:
        with self._condition:
            return self._condition.wait_for(lambda: self.count >= count, PATIENCE)


@pytest.fixture
def source() -> PipeSource:
    return PipeSource()


@pytest.fixture
def watch(source: PipeSource) -> Iterator[Callable[..., UeventWatcher]]:
    watchers: list[UeventWatcher] = []

    def start(on_change: Callable[[], None], settle: float = 0.02, limit: float = 5.0) -> UeventWatcher:
        watcher = UeventWatcher(on_change, settle_seconds=settle, max_delay_seconds=limit, open_source=lambda: source)
        watchers.append(watcher)
        assert watcher.start()
        return watcher

    yield start
    for watcher in watchers:
        watcher.stop()


@pytest.mark.bug("B11")
@pytest.mark.parametrize("action", ["add", "remove", "bind", "unbind"])
def test_a_change_on_the_bus_calls_once(watch: Callable[..., UeventWatcher], source: PipeSource, action: str) -> None:
    calls = Calls()
    watch(calls)

    source.send(action)

    assert calls.wait_for(1)


def test_a_burst_is_one_call_after_it_has_settled(watch: Callable[..., UeventWatcher], source: PipeSource) -> None:
    calls = Calls()
    watcher = watch(calls, settle=0.2)

    for _ in range(20):
        source.send("add", "bind")

    assert calls.wait_for(1)
    watcher.stop()
    assert calls.count == 1


def test_a_stream_that_does_not_end_is_cut(watch: Callable[..., UeventWatcher], source: PipeSource) -> None:
    calls = Calls()
    watch(calls, settle=30.0, limit=0.05)
    started = time.monotonic()

    source.send("bind")

    assert calls.wait_for(1)
    assert time.monotonic() - started < PATIENCE


def test_other_actions_call_nobody(watch: Callable[..., UeventWatcher], source: PipeSource) -> None:
    calls = Calls()
    watcher = watch(calls)

    source.send("change", "online", "")
    source.send("add")

    assert calls.wait_for(1)
    watcher.stop()
    assert calls.count == 1


def test_lost_events_count_as_a_change(
    watch: Callable[..., UeventWatcher], source: PipeSource, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    watch(calls)

    source.send(mark=b"f")

    assert calls.wait_for(1)
    assert "uevents were lost" in caplog.text


def test_a_callback_that_fails_is_logged_and_the_watch_goes_on(
    watch: Callable[..., UeventWatcher], source: PipeSource, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("the rescan broke")

    calls = Calls(then=fail)
    watcher = watch(calls)

    source.send("add")
    assert calls.wait_for(1)
    source.send("remove")

    assert calls.wait_for(2)
    watcher.stop()
    assert "the rescan broke" in caplog.text


def test_a_broken_source_ends_the_watch_with_a_log_line(
    watch: Callable[..., UeventWatcher], source: PipeSource, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = watch(Calls())

    source.send(mark=b"b")

    assert source.closed.wait(PATIENCE)
    watcher.stop()
    assert "the PCI uevent source broke" in caplog.text


def test_stopping_ends_the_thread_and_closes_the_source(
    watch: Callable[..., UeventWatcher], source: PipeSource
) -> None:
    watcher = watch(Calls())

    watcher.stop()
    watcher.stop()

    assert source.closed.is_set()
    assert not [thread for thread in threading.enumerate() if thread.name == "uevents"]


def test_stopping_does_not_wait_for_a_callback_for_ever(
    watch: Callable[..., UeventWatcher], source: PipeSource
) -> None:
    release = threading.Event()
    calls = Calls(then=lambda: release.wait(PATIENCE) and None)
    watcher = watch(calls)
    source.send("add")
    assert calls.wait_for(1)

    with pytest.raises(TimeoutError, match="its callback is still running"):
        watcher.stop(timeout=0.05)

    release.set()


def test_starting_twice_is_refused(watch: Callable[..., UeventWatcher]) -> None:
    watcher = watch(Calls())

    with pytest.raises(RuntimeError, match="already started"):
        watcher.start()


def test_a_machine_without_uevents_is_told_once_and_lives_by_the_rescan(caplog: pytest.LogCaptureFixture) -> None:
    def unavailable() -> PipeSource:
        raise SourceUnavailableError("no netlink here")

    watcher = UeventWatcher(Calls(), open_source=unavailable)

    with caplog.at_level(logging.WARNING):
        assert watcher.start() is False
    watcher.stop()

    assert "no netlink here; changes are seen at the next periodic rescan only" in caplog.text


def test_without_pyudev_there_is_no_source_and_the_reason_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", None)

    with pytest.raises(SourceUnavailableError, match="install pyudev and libudev1"):
        open_kernel_source()


def test_the_kernels_own_source_opens_reads_and_closes() -> None:
    try:
        source = open_kernel_source()
    except SourceUnavailableError as error:
        pytest.skip(str(error))
    assert source.fileno() >= 0
    assert isinstance(source.take(), list)
    source.close()
    with pytest.raises(OSError, match="closed"):
        source.fileno()


def test_importing_the_module_does_not_import_pyudev() -> None:
    assert not hasattr(uevents, "pyudev")


class FakeMonitor:
    """What pyudev.Monitor is to the module: filtered, started, polled."""

    def __init__(self, refuse: Exception | None = None) -> None:
        self.refuse = refuse
        self.calls: list[tuple[str, object]] = []
        self.waiting: list[SimpleNamespace] = []

    def from_netlink(self, _context: object, source: str) -> FakeMonitor:
        if self.refuse is not None:
            raise self.refuse
        self.calls.append(("from_netlink", source))
        return self

    def filter_by(self, subsystem: str) -> None:
        self.calls.append(("filter_by", subsystem))

    def start(self) -> None:
        self.calls.append(("start", None))

    def fileno(self) -> int:
        return 0

    def poll(self, timeout: float | None = None) -> SimpleNamespace | None:
        assert timeout == 0
        return self.waiting.pop(0) if self.waiting else None


def with_pyudev(monkeypatch: pytest.MonkeyPatch, monitor: FakeMonitor) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", SimpleNamespace(Monitor=monitor, Context=object))


@pytest.mark.bug("B11")
def test_the_kernels_messages_of_the_pci_bus_are_listened_to_and_not_udevs(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor = FakeMonitor()
    with_pyudev(monkeypatch, monitor)

    source = open_kernel_source()
    monitor.waiting = [SimpleNamespace(action="add"), SimpleNamespace(action=None)]

    assert monitor.calls == [("from_netlink", "kernel"), ("filter_by", "pci"), ("start", None)]
    assert source.take() == ["add", ""]
    assert source.take() == []


@pytest.mark.parametrize("error", [PermissionError(1, "Operation not permitted"), OSError("Could not create")])
def test_a_refused_socket_is_no_source_and_the_reason_says_so(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    with_pyudev(monkeypatch, FakeMonitor(error))

    with pytest.raises(SourceUnavailableError, match="the kernel's uevent socket is refused"):
        open_kernel_source()
