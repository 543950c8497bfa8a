"""Events through both backends, and the thread that watches for them."""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native.nvml import EventWatcher, NvmlSession, WatchState, make_backend, watching
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.eventtypes import HEALTH_EVENTS, EventType, NvmlEvent
from native.nvml.protocol import Nvml

Open = Callable[..., Nvml]
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
GPU = ADDRESSES[1]
XID = int(EventType.XID_CRITICAL_ERROR)
MAKER = Callable[..., EventWatcher]


def registered(node, library: Nvml, addresses: tuple[str, ...] = ADDRESSES, mask: int = XID) -> Nvml:
    library.open_events()
    for address in addresses:
        library.register_events(address, mask)
    return library


def test_an_event_says_its_gpu_its_kind_and_its_instance(node, opened: Open) -> None:
    library = registered(node, opened(node), mask=XID | 2)
    node.event(GPU, XID, 31, 3, 0).event(ADDRESSES[0], 2)
    assert library.wait_event(5) == NvmlEvent(GPU, XID, 31, 3, 0)
    second = library.wait_event(5)
    assert second == NvmlEvent(ADDRESSES[0], 2, 0, None, None)
    assert second.xid is None
    assert library.wait_event(0) is None


@pytest.mark.bug("B107")
def test_an_event_of_the_whole_gpu_names_no_instance(node, opened: Open) -> None:
    library = registered(node, opened(node))
    node.event(GPU, XID, 79)
    event = library.wait_event(5)
    assert event is not None
    assert (event.xid, event.gpu_instance, event.compute_instance) == (79, None, None)


def test_only_what_is_wanted_and_supported_is_registered(node, opened: Open) -> None:
    library = opened(node.set("supported", 0xC))
    library.open_events()
    assert library.register_events(GPU, XID | 2) == XID
    assert library.register_events(ADDRESSES[0], 2) == 0


def test_gpus_that_are_not_registered_are_not_heard(node, opened: Open) -> None:
    library = registered(node, opened(node), ADDRESSES[:1])
    node.event(GPU, XID, 79).event(ADDRESSES[0], XID, 48)
    event = library.wait_event(5)
    assert event is not None
    assert (event.address, event.xid) == (ADDRESSES[0], 48)


@pytest.mark.bug("B110")
def test_the_device_of_an_event_that_does_not_answer_is_known_by_its_handle(node, opened: Open) -> None:
    library = registered(node, opened(node))
    node.code("nvmlDeviceGetPciInfo_v3", NvmlReturn.GPU_IS_LOST, GPU)
    node.event(GPU, XID, 79).event("-", XID, 62)
    event = library.wait_event(5)
    assert event is not None
    assert event.address == GPU
    nobody = library.wait_event(5)
    assert nobody is not None
    assert (nobody.address, nobody.xid) == (None, 62)


@pytest.mark.parametrize("quick", [0, 1])
def test_a_wait_lasts_as_long_as_it_was_given(node, opened: Open, quick: int) -> None:
    library = registered(node, opened(node.set("quick", quick)))
    begin = time.monotonic()
    assert library.wait_event(0.3) is None
    assert 0.25 < time.monotonic() - begin < 10


def test_a_wait_is_ended_from_another_thread(node, opened: Open, until) -> None:
    library = registered(node, opened(node))
    results: list[NvmlEvent | None] = []
    thread = threading.Thread(target=lambda: results.append(library.wait_event(3600)))
    thread.start()
    until(lambda: library.progress() is not None)
    library.stop_waiting()
    thread.join(20)
    assert results == [None]


def test_a_stop_before_the_wait_ends_it_and_only_it(node, opened: Open) -> None:
    library = registered(node, opened(node))
    library.stop_waiting()
    assert library.wait_event(3600) is None
    node.event(GPU, XID, 79)
    assert library.wait_event(5) is not None


@pytest.mark.parametrize("code", [NvmlReturn.GPU_IS_LOST, NvmlReturn.UNKNOWN])
def test_a_wait_that_fails_is_an_error_with_its_code(node, opened: Open, code: int) -> None:
    library = registered(node, opened(node))
    node.code("nvmlEventSetWait_v2", code, "-")
    with pytest.raises(NvmlError) as caught:
        library.wait_event(5)
    assert (caught.value.call, caught.value.code) == ("nvmlEventSetWait_v2", code)


@pytest.mark.bug("B26")
@pytest.mark.parametrize("call", ["nvmlDeviceGetSupportedEventTypes", "nvmlDeviceRegisterEvents"])
def test_a_registration_that_fails_names_its_call_and_gpu(node, opened: Open, call: str) -> None:
    library = opened(node.code(call, NvmlReturn.NO_PERMISSION, GPU))
    library.open_events()
    with pytest.raises(NvmlError) as caught:
        library.register_events(GPU, XID)
    assert (caught.value.call, caught.value.code, caught.value.device) == (call, NvmlReturn.NO_PERMISSION, GPU)
    assert library.register_events(ADDRESSES[0], XID) == XID


def test_an_old_library_has_no_events_and_says_so(make_node, opened: Open) -> None:
    library = opened(make_node(absent=("nvmlEventSetCreate",)))
    with pytest.raises(NvmlError, match=r"nvmlEventSetCreate: FUNCTION_NOT_FOUND \(13\)"):
        library.open_events()


def test_without_a_set_nothing_is_registered_or_awaited(node, opened: Open) -> None:
    library = opened(node)
    for ask in (lambda: library.register_events(GPU, XID), lambda: library.wait_event(0)):
        with pytest.raises(NvmlError) as caught:
            ask()
        assert caught.value.code == NvmlReturn.UNINITIALIZED
    library.close_events()


def test_sets_are_freed_when_they_are_replaced_and_closed(node, backend_name: str) -> None:
    import ctypes

    library = make_backend(node.library, backend_name)
    library.open()
    same = ctypes.CDLL(str(node.library))
    for _ in range(5):
        registered(node, library)
    assert same.stub_open_sets() == 1
    library.close_events()
    library.close_events()
    assert same.stub_open_sets() == 0
    registered(node, library)
    library.close()
    assert same.stub_open_sets() == 0
    ctypes.cdll.LoadLibrary("libdl.so.2").dlclose(ctypes.c_void_p(same._handle))


class Heard:
    """What a watcher told."""

    def __init__(self) -> None:
        self.events: list[NvmlEvent] = []
        self.states: list[WatchState] = []

    def xids(self) -> list[tuple[str | None, int | None]]:
        return [(event.address, event.xid) for event in self.events]


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watcher_of(backend_name: str, heard: Heard, monkeypatch: pytest.MonkeyPatch) -> Iterator[MAKER]:
    monkeypatch.setattr(watching, "LOOK_AFTER", 0.02)
    watchers: list[EventWatcher] = []
    nodes: list[object] = []

    def make(node, *addresses: str, **options: object) -> EventWatcher:
        chosen = {"backend": backend_name, "retry_after": 0.05, "mask": XID, **options}
        watcher = EventWatcher(node.library, heard.events.append, heard.states.append, **chosen)  # type: ignore[arg-type]  # from a dict
        watchers.append(watcher)
        nodes.append(node)
        watcher.watch(addresses or ADDRESSES)
        watcher.start()
        return watcher

    yield make
    for node in nodes:
        node.mend()  # type: ignore[attr-defined]  # StubNode lives in conftest
    assert all(watcher.close(20) for watcher in watchers)


def watched(watcher: EventWatcher, *addresses: str) -> Callable[[], bool]:
    return lambda: watcher.state.problem is None and tuple(watcher.state.registered) == addresses


def test_the_watcher_passes_events_on_in_their_order(node, watcher_of: MAKER, heard: Heard, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    node.event(GPU, XID, 31).event(ADDRESSES[3], XID, 79)
    until(lambda: len(heard.events) == 2)
    assert heard.xids() == [(GPU, 31), (ADDRESSES[3], 79)]
    assert watcher.state.registered[GPU] == XID
    assert watcher.alive_at is not None


def test_the_watcher_and_the_session_do_not_wait_for_each_other(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    with NvmlSession(node.library, "cffi") as session:
        assert len(session.snapshot(ADDRESSES).gpus) == 4
        assert session.close()
    node.event(GPU, XID, 79)
    until(lambda: watcher.state.problem is None)


def test_closing_ends_a_long_wait(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    assert watcher.close(20)
    assert [thread for thread in threading.enumerate() if thread.name == "nvml-events"] == []


def test_a_watcher_that_was_never_started_closes(node) -> None:
    assert EventWatcher(node.library, lambda _event: None).close()


@pytest.mark.bug("B109")
def test_a_gpu_that_cannot_report_events_is_unmonitored_and_not_asked_again(
    node, watcher_of: MAKER, heard: Heard, until
) -> None:
    node.code("nvmlDeviceRegisterEvents", NvmlReturn.NOT_SUPPORTED, GPU)
    watcher = watcher_of(node)
    until(watched(watcher, ADDRESSES[0], *ADDRESSES[2:]))
    assert dict(watcher.state.unmonitored) == {GPU: NvmlReturn.NOT_SUPPORTED}
    node.mend()
    node.event(ADDRESSES[0], XID, 48)
    until(lambda: bool(heard.events))
    assert dict(watcher.state.unmonitored) == {GPU: NvmlReturn.NOT_SUPPORTED}


@pytest.mark.bug("B109")
def test_a_gpu_that_supports_none_of_the_kinds_is_unmonitored(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node.set("supported", 4))
    until(lambda: watcher.state.problem is None)
    assert dict(watcher.state.unmonitored) == dict.fromkeys(ADDRESSES, NvmlReturn.NOT_SUPPORTED)


def test_a_registration_that_failed_is_tried_again(node, watcher_of: MAKER, heard: Heard, until) -> None:
    node.code("nvmlDeviceRegisterEvents", NvmlReturn.UNKNOWN, GPU)
    watcher = watcher_of(node)
    until(lambda: dict(watcher.state.unmonitored) == {GPU: NvmlReturn.UNKNOWN})
    node.mend()
    until(lambda: GPU in watcher.state.registered)
    assert watcher.state.unmonitored == {}
    node.event(GPU, XID, 79)
    until(lambda: heard.xids() == [(GPU, 79)])


@pytest.mark.bug("B110")
def test_a_lost_gpu_is_left_out_and_the_others_are_heard_on(node, watcher_of: MAKER, heard: Heard, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    node.lines += [
        f"code nvmlDeviceGetHandleByPciBusId_v2 {GPU} 15",
        "code nvmlEventSetWait_v2 - 15",
    ]
    node.write()
    until(lambda: GPU in watcher.state.unmonitored)
    assert watcher.state.unmonitored[GPU] == NvmlReturn.GPU_IS_LOST
    assert watcher.state.problem is None
    node.lines.pop()
    node.event(ADDRESSES[2], XID, 63)
    until(lambda: heard.xids() == [(ADDRESSES[2], 63)])
    node.mend()
    until(lambda: GPU in watcher.state.registered)


@pytest.mark.bug("B110")
def test_a_wait_that_fails_for_ever_is_no_busy_loop(node, backend_name: str, until) -> None:
    calls: list[float] = []

    def make(path: Path) -> Nvml:
        library = make_backend(path, backend_name)
        inner = library.open_events

        def open_events() -> None:
            calls.append(time.monotonic())
            inner()

        library.open_events = open_events  # type: ignore[method-assign]  # counted
        return library

    node.code("nvmlEventSetWait_v2", NvmlReturn.GPU_IS_LOST, "-")
    watcher = EventWatcher(node.library, lambda _event: None, make=make, retry_after=0.2)
    watcher.watch(ADDRESSES)
    watcher.start()
    until(lambda: len(calls) >= 4)
    assert watcher.close(20)
    pauses = [later - earlier for earlier, later in itertools.pairwise(calls)]
    assert pauses[1] >= 0.15
    assert pauses[2] >= 0.3


def test_gpus_that_come_are_heard_without_a_new_set(node, watcher_of: MAKER, heard: Heard, until) -> None:
    watcher = watcher_of(node, ADDRESSES[0])
    until(watched(watcher, ADDRESSES[0]))
    node.event(ADDRESSES[0], XID, 48)
    watcher.watch(ADDRESSES[:2])
    until(watched(watcher, *ADDRESSES[:2]))
    until(lambda: heard.xids() == [(ADDRESSES[0], 48)])


def test_gpus_that_go_are_not_heard_any_more(node, watcher_of: MAKER, heard: Heard, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    watcher.watch(ADDRESSES[2:])
    until(watched(watcher, *ADDRESSES[2:]))
    node.event(GPU, XID, 79).event(ADDRESSES[2], XID, 48)
    until(lambda: bool(heard.events))
    assert (ADDRESSES[2], 48) in heard.xids()
    assert (GPU, 79) not in heard.xids()


def test_a_misspelt_address_is_refused(node) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        EventWatcher(node.library, lambda _event: None).watch(("GPU-1",))


@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_is_not_there_is_waited_for(node, watcher_of: MAKER, until, code: int) -> None:
    node.code("nvmlInitWithFlags", code)
    watcher = watcher_of(node)
    until(lambda: f"({code})" in (watcher.state.problem or ""))
    node.mend()
    until(watched(watcher, *ADDRESSES))


def test_a_driver_that_goes_away_is_opened_anew(node, watcher_of: MAKER, heard: Heard, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    node.code("nvmlEventSetWait_v2", 9, "-")
    until(lambda: "modprobe" in (watcher.state.problem or ""))
    node.mend()
    until(watched(watcher, *ADDRESSES))


def test_a_library_that_was_replaced_is_followed(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    new = node.library.with_suffix(".new")
    shutil.copy(node.library, new)
    new.replace(node.library)
    inode = node.library.stat().st_ino

    def mapped() -> set[int]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return {int(line.split()[4]) for line in lines if str(node.library) in line}

    until(lambda: mapped() == {inode})
    until(watched(watcher, *ADDRESSES))


@pytest.mark.bug("B108")
def test_a_listener_that_fails_stops_nothing(node, backend_name: str, caplog: pytest.LogCaptureFixture, until) -> None:
    events: list[NvmlEvent] = []

    def on_event(event: NvmlEvent) -> None:
        events.append(event)
        raise RuntimeError("the listener is broken")

    def on_state(_state: WatchState) -> None:
        raise RuntimeError("so is this one")

    watcher = EventWatcher(node.library, on_event, on_state, backend=backend_name, mask=XID)
    watcher.watch(ADDRESSES)
    watcher.start()
    until(watched(watcher, *ADDRESSES))
    node.event(GPU, XID, 31).event(GPU, XID, 79)
    until(lambda: len(events) == 2)
    assert watcher.close(20)
    assert "the listener is broken" in caplog.text
    assert "so is this one" in caplog.text


@pytest.mark.bug("B111")
def test_a_wait_that_does_not_come_back_shows_in_the_signs_of_life(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    node.hang("nvmlEventSetWait_v2", "-")
    until(lambda: (call := watcher.progress()) is not None and call.call == "nvmlEventSetWait_v2")
    until(lambda: watcher.alive_at is not None and time.monotonic() - watcher.alive_at > 1.0)
    assert watcher.close(0.1) is False
    node.mend()
    assert watcher.close(20)


def test_a_library_that_is_not_there_yet_is_waited_for(node, watcher_of: MAKER, until) -> None:
    away = node.library.with_suffix(".away")
    node.library.rename(away)
    watcher = watcher_of(node)
    until(lambda: "cannot be looked at" in (watcher.state.problem or ""))
    away.rename(node.library)
    until(watched(watcher, *ADDRESSES))


def test_what_is_watched_by_default_are_the_signs_of_ill_health() -> None:
    assert HEALTH_EVENTS & EventType.XID_CRITICAL_ERROR
    assert HEALTH_EVENTS & EventType.GPU_RECOVERY_ACTION
    assert not HEALTH_EVENTS & (EventType.CLOCK | EventType.PSTATE | EventType.SINGLE_BIT_ECC_ERROR)
    assert issubclass(LibraryUnavailableError, NvmlError)


@pytest.mark.bug("B110")
def test_gpus_that_come_while_there_is_no_driver_make_no_busy_loop(node) -> None:
    looked: list[float] = []

    def find() -> Path:
        looked.append(time.monotonic())
        raise LibraryUnavailableError("find_library", NvmlReturn.LIBRARY_NOT_FOUND, "nothing here")

    watcher = EventWatcher(find, lambda _event: None, retry_after=0.1)
    watcher.watch(ADDRESSES[:1])
    watcher.start()
    for count in range(1, 4):
        watcher.watch(ADDRESSES[:count])
        threading.Event().wait(0.1)
    assert watcher.close(20)
    assert 1 <= len(looked) <= 4


def test_a_resting_watcher_holds_no_library_and_goes_on_afterwards(
    node, watcher_of: MAKER, heard: Heard, until
) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    assert watcher.rest(20)
    assert str(node.library) not in Path("/proc/self/maps").read_text()
    assert watcher.rest(0)
    watcher.go_on()
    node.event(GPU, XID, 79)
    until(lambda: heard.xids() == [(GPU, 79)])


def test_a_watcher_that_is_stuck_cannot_rest_and_says_so(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    node.hang("nvmlEventSetWait_v2", "-")
    until(lambda: (call := watcher.progress()) is not None and call.call == "nvmlEventSetWait_v2")
    until(lambda: watcher.alive_at is not None and time.monotonic() - watcher.alive_at > 0.5)
    assert watcher.rest(0.1) is False
    watcher.go_on()
    node.mend()
    until(watched(watcher, *ADDRESSES))


def test_a_watcher_is_closed_while_it_rests(node, watcher_of: MAKER, until) -> None:
    watcher = watcher_of(node)
    until(watched(watcher, *ADDRESSES))
    assert watcher.rest(20)
    assert watcher.close(20)


@pytest.mark.bug("B109")
def test_where_no_gpu_reports_events_nvml_is_not_waited_on(node, watcher_of: MAKER, heard: Heard, until) -> None:
    node.code("nvmlDeviceRegisterEvents", NvmlReturn.NOT_SUPPORTED)
    node.code("nvmlEventSetWait_v2", NvmlReturn.INVALID_ARGUMENT, "-")
    watcher = watcher_of(node)
    until(lambda: len(watcher.state.unmonitored) == 4)
    begin = watcher.alive_at
    until(lambda: watcher.alive_at != begin)
    assert watcher.state.problem is None
    assert [state.problem for state in heard.states] == [None]
