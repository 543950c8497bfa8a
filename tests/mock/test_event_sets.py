"""The watcher of events on the mock's library: XIDs that come while one event set gives way to the next."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native.mock import MockNode
from native.nvml import EventWatcher, NvmlSession, watching
from native.nvml.eventtypes import NvmlEvent
from native.nvml.watching import Gap

WAIT = 30.0


class Room:
    """A watcher of the GPUs of a DGX H100."""

    def __init__(self, node: MockNode, backend: str) -> None:
        self.node = node
        self.addresses = [gpu.address for gpu in node.profile.gpus]
        self.condition = threading.Condition()
        self.events: list[NvmlEvent] = []
        self.gaps: list[Gap] = []
        self.watcher = EventWatcher(
            node.library,
            lambda event: self.note(self.events, event),
            lambda state: self.note([], state),
            on_gap=lambda gap: self.note(self.gaps, gap),
            backend=backend,
            retry_after=0.05,
        )

    def note(self, where: list, what: object) -> None:  # type: ignore[type-arg] # of either kind
        with self.condition:
            where.append(what)
            self.condition.notify_all()

    def until(self, condition: Callable[[], object]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, WAIT), (self.watcher.state, len(self.events), self.gaps)

    def watch(self, *addresses: str) -> None:
        self.watcher.watch(addresses)
        self.until(lambda: sorted(self.watcher.state.registered) == sorted(addresses))


@pytest.fixture(params=["cffi", "pynvml"])
def room(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Room]:
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    for key, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setattr(watching, "LOOK_AFTER", 0.1)
    made = Room(node, request.param)
    made.watcher.start()
    made.watch(*made.addresses)
    yield made
    assert made.watcher.close(WAIT)


@pytest.mark.bug("B110")
def test_xids_that_come_all_the_time_are_each_heard_once_while_sets_come_and_go(room: Room) -> None:
    stay, leave = room.addresses[:4], room.addresses[4:]
    stop = threading.Event()
    reported: list[tuple[str, int]] = []

    def report() -> None:
        while not stop.is_set():
            address, code = stay[len(reported) % 4], 100_000 + len(reported)
            room.node.xid(address, code)
            reported.append((address, code))
            stop.wait(0.0005)

    reporter = threading.Thread(target=report)
    reporter.start()
    try:
        for _ in range(10):
            room.watch(*stay)  # a new set, without the others
            room.watch(*room.addresses)
            seen = len(room.events)
            room.until(lambda seen=seen: len(room.events) > seen + 3)
        for number, address in enumerate(leave):
            room.node.set_gpu_state(address, "lost")
            room.until(lambda address=address: address in room.watcher.state.unmonitored)
            room.watch(*stay, *leave[number + 1 :])
    finally:
        stop.set()
        reporter.join()
    room.node.xid(stay[0], 79)
    room.until(lambda: any(event.xid == 79 for event in room.events))
    heard = Counter((event.address, event.xid) for event in room.events if event.xid != 79)
    assert len(reported) > 30
    assert heard == Counter(reported)
    for address in stay:
        codes = [event.xid for event in room.events if event.address == address and event.xid != 79]
        assert codes == sorted(code for code in codes if code is not None), "in their order"
    assert not {address for gap in room.gaps for address in gap.addresses} & set(stay)


def test_a_gpu_that_was_lost_and_is_back_was_not_heard_for_a_while(room: Room) -> None:
    lost = room.addresses[3]
    room.node.set_gpu_state(lost, "lost")
    room.until(lambda: lost in room.watcher.deaf)
    room.node.set_gpu_state(lost, "ok")
    room.until(lambda: room.gaps)
    assert [gap.addresses for gap in room.gaps] == [(lost,)]
    room.node.xid(lost, 48)
    room.until(lambda: any(event.address == lost and event.xid == 48 for event in room.events))


def test_a_driver_that_is_loaded_anew_and_a_session_that_begins_anew_are_gaps(room: Room) -> None:
    room.node.set_driver_loaded(False)
    room.until(lambda: room.watcher.state.problem is not None)
    room.node.set_driver_loaded(True)
    room.until(lambda: len(room.gaps) == 1)
    assert room.gaps[0].addresses == tuple(sorted(room.addresses))
    with NvmlSession(room.node.library, "cffi", renew_after=0.0) as session:
        session.accompany(room.watcher)
        session.snapshot(room.addresses)
        session.snapshot(["0000:fe:00.0"])  # which NVML does not know, so it is initialised anew
    room.until(lambda: len(room.gaps) == 2)
    assert room.gaps[1].reason == "NVML was let go of for a moment"
