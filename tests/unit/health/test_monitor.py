"""The thread that looks: heartbeats of real looks, storms in one piece, and no end by a fault."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.health.keeper import Keeper, Policy
from driver.health.monitor import Heard, Look, Monitor
from driver.health.remembered import KEEP_SECONDS, Album, Remembered
from driver.health.store import HealthStore
from driver.model import Gpu, GpuState, MigPartition, NodeInventory, NvLinkGroup, Placement
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlTimeoutError
from native.nvml.eventtypes import EventType, NvmlEvent
from native.nvml.healthtypes import GpuHealth

WAIT = 20.0
ADDRESS = "0000:1b:00.0"


class Room:
    """A monitor between stand-ins."""

    def __init__(self, gpu: Gpu) -> None:
        self.keeper = Keeper(Policy(), boot_id="b")
        self.inventory: NodeInventory | None = NodeInventory("580.1", (13, 0), "13", (gpu,))
        self.unavailable: str | None = None
        self.answer: Callable[[Sequence[str]], Sequence[GpuHealth]] = lambda asked: [GpuHealth(one) for one in asked]
        self.asked: list[tuple[str, ...]] = []
        self.looks: list[Look] = []
        self.heard: list[Heard] = []
        self.changes = 0
        self.condition = threading.Condition()
        self.monitor = Monitor(
            self.keeper,
            lambda: (self.inventory, self.unavailable),
            self.probe,
            period=0.02,
            looked=lambda look: self.note(self.looks, look),
            heard=lambda heard: self.note(self.heard, *heard),
            changed=self.change,
            coalesce=0.01,
        )

    def probe(self, addresses: Sequence[str]) -> Sequence[GpuHealth]:
        self.asked.append(tuple(addresses))
        return self.answer(addresses)

    def note(self, where: list[Any], *what: Any) -> None:
        with self.condition:
            where.extend(what)
            self.condition.notify_all()

    def change(self) -> None:
        with self.condition:
            self.changes += 1
            self.condition.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        with self.condition:
            assert self.condition.wait_for(condition, WAIT)

    def xid(self, code: int) -> None:
        self.monitor.event(NvmlEvent(ADDRESS, EventType.XID_CRITICAL_ERROR, code, None, None))


@pytest.fixture
def room(bench: Any) -> Iterator[Room]:
    made = Room(bench.gpu())
    yield made
    made.monitor.stop(WAIT)


def test_it_looks_again_and_again_at_every_gpu_of_nvidias_driver(room: Room) -> None:
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 3)
    assert set(room.asked) == {(ADDRESS,)}
    assert room.looks[0].problem is None
    assert room.looks[0].health[ADDRESS].address == ADDRESS


def test_a_gpu_of_another_driver_is_not_asked(room: Room, bench: Any) -> None:
    room.inventory = NodeInventory(None, None, None, (bench.gpu(driver="vfio-pci", state=GpuState.UNBOUND),))
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2)
    assert room.asked == []


@pytest.mark.bug("B111")
def test_a_probe_that_hangs_is_no_heartbeat(room: Room) -> None:
    hold, held = threading.Event(), threading.Event()

    def hang(asked: Sequence[str]) -> Sequence[GpuHealth]:
        held.set()
        hold.wait(WAIT)
        return [GpuHealth(one) for one in asked]

    room.answer = hang
    room.monitor.start()
    assert held.wait(WAIT)
    assert room.looks == []
    hold.set()
    room.until(lambda: len(room.looks) >= 1)


def test_a_probe_without_an_answer_is_a_look_that_says_so(room: Room) -> None:
    def fail(_asked: Sequence[str]) -> Sequence[GpuHealth]:
        raise NvmlError("nvmlInit_v2", 9)

    room.answer = fail
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2)
    assert room.looks[0].problem is not None
    assert "nvmlInit" in room.looks[0].problem
    assert room.keeper.unanswered == room.looks[0].problem


def test_gpus_that_must_not_be_asked_now_are_left_alone_and_nothing_is_said(room: Room) -> None:
    answers = iter([None, None, [GpuHealth(ADDRESS)]])
    room.answer = lambda _asked: next(answers, [GpuHealth(ADDRESS)])  # type: ignore[assignment, return-value] # or None
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 1)
    assert len(room.asked) >= 3
    assert room.looks[0].problem is None


def test_while_the_node_says_that_there_is_no_driver_a_look_says_so_too(room: Room) -> None:
    room.unavailable = "not loaded"
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2)
    assert room.looks[0].problem == "not loaded"
    assert room.keeper.unanswered == "not loaded"


@pytest.mark.bug("B111")
def test_a_probe_that_did_not_end_in_time_is_no_look_and_ends_no_fault(room: Room) -> None:
    late = NvmlTimeoutError("nvmlDeviceGetMemoryInfo", ADDRESS, 30.0)
    outcomes: list[Exception | None] = [None, late, late, None]

    def answer(asked: Sequence[str]) -> Sequence[GpuHealth]:
        outcome = outcomes.pop(0) if outcomes else None
        if outcome is not None:
            raise outcome
        return [GpuHealth(one) for one in asked]

    room.answer = answer
    room.xid(119)
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2 and not outcomes)
    assert all(look.problem is None for look in room.looks)
    (standing, *_), _ = room.keeper.standing(ADDRESS)
    assert not standing.cleared, "a busy driver is no reset"


def test_a_driver_that_was_unloaded_ends_what_a_reset_ends(room: Room) -> None:
    def answer(_asked: Sequence[str]) -> Sequence[GpuHealth]:
        raise LibraryUnavailableError("nvmlInit_v2", 9, "not loaded")

    room.xid(119)
    room.answer = answer
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2)
    assert room.keeper.standing(ADDRESS)[0][0].cleared


@pytest.mark.bug("B110")
def test_a_storm_of_events_is_one_change_and_each_of_them_counts(room: Room) -> None:
    for _ in range(1000):
        room.xid(31)
    room.monitor.start()
    room.until(lambda: room.changes >= 1)
    assert [(one.event.xid, one.count) for one in room.heard] == [(31, 1000)]
    assert room.changes == 1
    for _ in range(50):
        room.xid(31)
    room.until(lambda: room.changes >= 2)
    assert len(room.heard) == 1, "repeats are told later, with their count"
    room.until(lambda: room.keeper.standing(ADDRESS)[0][0].count == 1050)


def test_a_flood_of_different_events_takes_bounded_memory(room: Room) -> None:
    for code in range(5000):
        room.xid(10_000 + code)
    assert len(room.monitor._events) <= 1025
    room.monitor.start()
    room.until(lambda: room.changes >= 1)
    assert sum(one.count for one in room.heard) == 5000


@pytest.mark.bug("B108")
def test_a_fault_of_who_listens_does_not_end_the_looking(room: Room) -> None:
    broken = room.monitor._looked
    faults: list[Look] = []

    def fail_once(look: Look) -> None:
        if not faults:
            faults.append(look)
            raise RuntimeError("a fault of ours")
        broken(look)

    room.monitor._looked = fail_once
    room.monitor.start()
    room.until(lambda: len(room.looks) >= 2)


def test_the_store_keeps_findings_and_minds_no_bad_file(tmp_path: Path, bench: Any) -> None:
    bench.look()
    bench.xid(119)
    store = HealthStore(tmp_path)
    assert not store.exists()
    store.save(bench.keeper)
    assert (tmp_path / "health.json").stat().st_mode & 0o777 == 0o600
    again = bench.make("11111111-1111-1111-1111-111111111111")
    HealthStore(tmp_path).load(again)
    assert again.dump() == bench.keeper.dump()
    for bad in (b"", b"[]", b"\x00" * 100, b'{"version":1}'):
        (tmp_path / "health.json").write_bytes(bad)
        HealthStore(tmp_path).load(again)
    (tmp_path / "health.json").unlink()
    (tmp_path / "health.json").mkdir()
    HealthStore(tmp_path).load(again)
    HealthStore(tmp_path / "none").save(again)
    assert again.standing(ADDRESS)[0]


def test_findings_are_written_at_once_and_their_counts_now_and_then(tmp_path: Path, bench: Any) -> None:
    store = HealthStore(tmp_path, clock=lambda: bench.boot)
    file = tmp_path / "health.json"

    def count() -> int:
        again = bench.make("11111111-1111-1111-1111-111111111111")
        HealthStore(tmp_path).load(again)
        return sum(one.count for one in again.standing(ADDRESS)[0])

    bench.look()
    bench.xid(119)
    store.save(bench.keeper)
    assert count() == 1
    inode = file.stat().st_ino
    for _ in range(5):
        bench.xid(119)
        store.save(bench.keeper)
    assert (file.stat().st_ino, count()) == (inode, 1)
    bench.advance(61)
    store.save(bench.keeper)
    assert count() == 6
    bench.xid(74)
    store.save(bench.keeper)
    assert count() == 7


def node(*gpus: Gpu, groups: tuple[NvLinkGroup, ...] = ()) -> NodeInventory:
    return NodeInventory("580.1", (13, 0), "13", gpus, nvlink_groups=groups)


def test_a_gpu_that_fell_ill_stays_in_view_as_it_was(bench: Any) -> None:
    remembered = Remembered(lambda _gpu: False)
    well, other = bench.gpu(), bench.gpu("0000:1c:00.0")
    remembered.view(node(well, other))
    lost = bench.gpu(state=GpuState.LOST, uuid=None, nvlinks=())
    assert remembered.view(node(lost, other)).gpus == (well, other)
    assert remembered.vanished() == frozenset()


def test_one_that_was_never_well_is_shown_as_it_is(bench: Any) -> None:
    lost = bench.gpu(state=GpuState.LOST, uuid=None)
    assert Remembered(lambda _gpu: False).view(node(lost)).gpus == (lost,)


def test_one_that_was_taken_away_on_purpose_is_not_held(bench: Any) -> None:
    remembered = Remembered(lambda _gpu: True)
    remembered.view(node(bench.gpu()))
    unbound = bench.gpu(state=GpuState.UNBOUND, driver="vfio-pci")
    assert remembered.view(node(unbound)).gpus == (unbound,)


def test_one_that_left_the_bus_stays_as_long_as_a_claim_holds_it_and_some_time_more(bench: Any) -> None:
    held = [True]
    remembered = Remembered(lambda _gpu: held[0], clock=lambda: bench.boot)
    well, other = bench.gpu(), bench.gpu("0000:1c:00.0")
    remembered.view(node(well, other))
    assert remembered.view(node(other)).gpus == (well, other)
    assert remembered.vanished() == {well.name}
    bench.advance(KEEP_SECONDS * 2)
    assert remembered.view(node(other)).gpus == (well, other)
    held[0] = False
    assert remembered.view(node(other)).gpus == (other,)
    assert remembered.vanished() == frozenset()


def test_one_that_is_back_is_shown_as_it_is_now(bench: Any) -> None:
    remembered = Remembered(lambda _gpu: True)
    remembered.view(node(bench.gpu()))
    remembered.view(node())
    back = bench.gpu(uuid="GPU-new")
    assert remembered.view(node(back)).gpus == (back,)
    assert remembered.vanished() == frozenset()


def test_the_others_keep_their_nvlink_groups_when_one_falls_ill(bench: Any) -> None:
    addresses = ["0000:1b:00.0", "0000:1c:00.0", "0000:1d:00.0", "0000:1e:00.0"]
    a, b, c, d = (bench.gpu(one, nvlink_group=number // 2) for number, one in enumerate(addresses))
    groups = (NvLinkGroup(0, (a.address, b.address)), NvLinkGroup(1, (c.address, d.address)))
    remembered = Remembered(lambda _gpu: False)
    remembered.view(node(a, b, c, d, groups=groups))
    lost = bench.gpu(state=GpuState.LOST, uuid=None)
    alone = bench.gpu("0000:1c:00.0", nvlink_group=None)
    renumbered = [bench.gpu(one, nvlink_group=0) for one in addresses[2:]]
    shown = remembered.view(node(lost, alone, *renumbered, groups=(NvLinkGroup(0, (c.address, d.address)),)))
    assert [gpu.nvlink_group for gpu in shown.gpus] == [0, 0, 1, 1]
    assert shown.nvlink_groups == groups


def test_a_restart_in_the_same_boot_still_knows_how_a_sick_gpu_was(tmp_path: Path, bench: Any) -> None:
    well = node(bench.gpu(), bench.gpu("0000:1c:00.0"))
    Album(tmp_path, "boot").keep(well)
    assert Album(tmp_path, "boot").load() == well
    assert Album(tmp_path, "another boot").load() is None
    assert Album(tmp_path, None).load() is None
    remembered = Remembered(lambda _gpu: False)
    remembered.go_on(well)
    lost = bench.gpu(state=GpuState.LOST, uuid=None)
    assert remembered.view(node(lost, well.gpus[1])).gpus == well.gpus


def test_an_album_that_cannot_be_used_costs_only_that(tmp_path: Path, bench: Any) -> None:
    for bad in (b"", b"[]", b"\xff" * 9, b'{"boot":"boot","node":{"gpus":[{"address":1}]}}'):
        (tmp_path / "node.json").write_bytes(bad)
        assert Album(tmp_path, "boot").load() is None
    (tmp_path / "node.json").unlink()
    (tmp_path / "node.json").mkdir()
    album = Album(tmp_path, "boot")
    assert album.load() is None
    album.keep(node(bench.gpu()))
    Album(tmp_path / "none", "boot").keep(node(bench.gpu()))


def test_what_changes_with_each_claim_is_not_written_again(tmp_path: Path, bench: Any) -> None:
    album = Album(tmp_path, "boot")
    album.keep(node(bench.gpu()))
    before = (tmp_path / "node.json").stat()
    part = MigPartition("MIG-1", 3, 0, 19, "1g.10gb", Placement(0, 1), managed=True)
    album.keep(node(bench.gpu(partitions=(part,))))
    assert (tmp_path / "node.json").stat().st_ino == before.st_ino
    theirs = node(bench.gpu(partitions=(replace(part, managed=False),)))
    album.keep(theirs)
    assert Album(tmp_path, "boot").load() == theirs, "what an administrator made is not made with each claim"
    other = node(bench.gpu(uuid="GPU-new"))
    album.keep(other)
    assert Album(tmp_path, "boot").load() == other
