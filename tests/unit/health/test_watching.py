"""The threads that look and NVML's door: opened with it, let go of with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.health.keeper import Keeper, Policy
from driver.health.monitor import Unheard
from driver.model import GpuState, NodeInventory
from driver.settings import Settings
from driver.watching import Watching
from native.nvml.errors import NvmlError
from native.nvml.healthtypes import GpuHealth
from native.nvml.watching import WatchState

ADDRESS = "0000:1b:00.0"
WAIT = 20.0


class Door:
    """A session."""

    def __init__(self) -> None:
        self.companions: list[Any] = []
        self.closed = False

    def accompany(self, companion: Any) -> None:
        self.companions.append(companion)

    def health(self, addresses: Sequence[str], _deadline: float) -> Sequence[GpuHealth]:
        if self.closed:
            raise NvmlError("use of a closed session", 1)
        return [GpuHealth(one) for one in addresses]


class Watcher:
    """What watches events."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.state = WatchState()
        self.deaf: frozenset[str] = frozenset()

    def start(self) -> None:
        self.said.append("start")

    def watch(self, addresses: Sequence[str]) -> None:
        self.said.append(f"watch {len(addresses)}")

    def rest(self, _timeout: float) -> bool:
        self.said.append("rest")
        return True

    def go_on(self) -> None:
        self.said.append("go on")

    def close(self, _timeout: float) -> None:
        self.said.append("close")


class Watch:
    """Who is told."""

    def __init__(self) -> None:
        self.keeper = Keeper(Policy(), boot_id="b")
        self.looks = 0
        self.gaps: list[Unheard] = []

    def heard(self, _heard: Any) -> None:
        """No events here."""

    def unheard(self, gap: Unheard) -> None:
        self.gaps.append(gap)

    def judge(self) -> bool:
        return False

    def looked(self) -> None:
        self.looks += 1


class Room:
    """Everything around."""

    def __init__(self, folder: Path, gpu: Any) -> None:
        self.door: Door | None = Door()
        self.watch = Watch()
        self.rescans = 0
        self.looked = threading.Event()
        self.inventory = NodeInventory("580.1", (13, 0), "13", (gpu,))
        self.watching = Watching(
            self.watch,  # type: ignore[arg-type] # a stand-in
            Settings(node_name="node-a", plugins_dir=str(folder), health_seconds=0.01),
            session=lambda: self.door,  # type: ignore[arg-type, return-value] # a stand-in
            inventory=lambda: (self.inventory, None),
            publish=lambda: None,
            rescan=self.rescan,
            looked=lambda _look: self.looked.set(),
        )
        self.watcher = Watcher()
        self.watching._watcher = self.watcher  # type: ignore[assignment] # a stand-in

    def rescan(self) -> None:
        self.rescans += 1

    def probe(self) -> Any:
        return self.watching._probe([ADDRESS])


@pytest.fixture
def room(tmp_path: Path, bench: Any) -> Iterator[Room]:
    made = Room(tmp_path, bench.gpu())
    yield made
    made.watching.stop()


def test_the_watcher_begins_with_the_first_look_and_accompanies_the_session(room: Room) -> None:
    assert [one.address for one in room.probe()] == [ADDRESS]
    room.probe()
    assert room.watcher.said == ["start", "watch 1", "watch 1"]
    assert room.door is not None
    assert room.door.companions == [room.watcher]


def test_before_the_first_reading_nothing_is_asked(room: Room) -> None:
    room.door = None
    assert room.probe() is None
    assert room.watcher.said == []


def test_gpus_that_are_let_go_of_are_opened_again_by_the_next_session_only(room: Room) -> None:
    room.probe()
    first, room.door = room.door, None
    room.watching.let_go()
    assert room.probe() is None
    assert room.watcher.said[-1] == "rest"
    room.door = Door()
    room.probe()
    assert room.watcher.said[-2:] == ["go on", "watch 1"]
    assert room.door.companions == [room.watcher]
    assert first is not room.door


def test_letting_go_before_the_first_look_wakes_nobody(room: Room) -> None:
    room.watching.let_go()
    assert room.watcher.said == []


def test_a_session_that_ends_under_a_probe_is_no_fault_of_the_driver(room: Room) -> None:
    door = room.door
    assert door is not None
    room.probe()

    def end(_addresses: Sequence[str], _deadline: float) -> Sequence[GpuHealth]:
        room.door = None
        raise NvmlError("use of a closed session", 1)

    door.health = end  # type: ignore[method-assign] # it ends while it is asked
    assert room.probe() is None


def test_what_a_session_said_that_was_let_go_of_meanwhile_is_no_look(room: Room) -> None:
    door = room.door
    assert door is not None
    answer = door.health

    def end(addresses: Sequence[str], _deadline: float) -> Sequence[GpuHealth]:
        room.door = Door()
        return answer(addresses, _deadline)

    door.health = end  # type: ignore[method-assign] # it ends while it is asked
    assert room.probe() is None
    assert [one.address for one in room.probe()] == [ADDRESS], "and the next one is asked"


def test_a_gpu_that_is_handed_to_a_virtual_machine_under_a_probe_was_not_asked(room: Room) -> None:
    door = room.door
    assert door is not None
    answer = door.health

    def hand_over(addresses: Sequence[str], _deadline: float) -> Sequence[GpuHealth]:
        gpus = tuple(replace(gpu, state=GpuState.UNBOUND, driver="vfio-pci") for gpu in room.inventory.gpus)
        room.inventory = replace(room.inventory, gpus=gpus)
        return answer(addresses, _deadline)

    door.health = hand_over  # type: ignore[method-assign] # the claim is prepared while it is asked
    assert list(room.probe()) == [], "NVML would say GPU_IS_LOST"


def test_a_driver_that_does_not_answer_is_a_fault_and_a_reason_to_read_the_node(room: Room) -> None:
    assert room.door is not None
    room.door.closed = True
    with pytest.raises(NvmlError):
        room.probe()
    room.watching.start()
    assert room.looked.wait(WAIT)
    assert room.rescans >= 1
    assert room.watch.looks >= 1
