"""What a look does not tell has not changed: nothing is put down as gone, or as new, that was there all along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.health.verdicts import Status, Verdict
from driver.journal import Journal, JournalState, Kind, Record, read, replay
from driver.journal.scribe import Scribe, present_state
from driver.model import Gpu, GpuState, MigPartition, NodeInventory, PciAddress, Placement
from driver.prepare import ClaimRecord, ClaimRef, Phase
from tests.unit.journal.journal_desk import WAIT, Desk

GPU = "gpu-0000-01-00-0"
PART = MigPartition("MIG-1", 1, 0, 19, "1g.10gb", Placement(0, 1))
BARE = replace(PART, uuid=None, compute_instance=None)


@pytest.fixture
def desk(folder: Any) -> Desk:
    return Desk(folder)


def gpu(number: int = 1, *partitions: MigPartition, **fields: Any) -> Gpu:
    return Gpu(PciAddress(0, number, 0, 0), fields.pop("state", GpuState.READY), partitions=partitions, **fields)


def node(*gpus: Gpu, version: str | None = "580.1", **fields: Any) -> NodeInventory:
    return NodeInventory(version, (13, 0), "13", gpus, **fields)


WELL = node(gpu(1, PART))
UNTOLD = {
    "the partitions are not listed": node(gpu(1, partitions_known=False)),
    "their UUIDs are not told": node(gpu(1, replace(PART, uuid=None), partitions_known=False)),
    "somebody changes them at this moment": node(gpu(1, BARE, mig_settled=False)),
    "what a function of the bus is cannot be read": node(gpus_known=False),
    "the driver's version is not told": node(gpu(1, PART), version=None),
}


@pytest.mark.parametrize("look", UNTOLD.values(), ids=UNTOLD)
def test_what_a_look_leaves_out_is_no_change_and_none_when_it_is_told_again(desk: Desk, look: NodeInventory) -> None:
    desk.scribe.node(WELL, None)
    before = desk.told(*Kind)
    desk.scribe.node(look, None)
    desk.scribe.node(WELL, None)
    assert desk.told(*Kind) == before


@pytest.mark.parametrize("state", [GpuState.LOST, GpuState.WEDGED, GpuState.UNREADABLE])
def test_a_gpu_that_does_not_answer_keeps_its_partitions_in_the_journal(desk: Desk, state: GpuState) -> None:
    desk.scribe.node(WELL, None)
    desk.scribe.node(node(gpu(state=state, partitions_known=False)), None)
    desk.scribe.node(WELL, None)
    assert len(desk.told("device.state")) == 3
    assert [kind for kind, _, _ in desk.told("mig.create", "mig.destroy")] == ["mig.create"]


def test_what_went_unseen_is_told_by_the_first_look_that_shows_it(desk: Desk) -> None:
    desk.scribe.node(WELL, None)
    desk.scribe.node(node(gpu(1, partitions_known=False)), None)
    desk.scribe.node(node(gpu(1)), None)
    assert [kind for kind, _, _ in desk.told("mig.create", "mig.destroy")] == ["mig.create", "mig.destroy"]


def test_a_partition_that_is_told_among_others_that_are_not_is_news(desk: Desk) -> None:
    second = replace(PART, uuid="MIG-2", gpu_instance=2, placement=Placement(1, 1))
    desk.scribe.node(WELL, None)
    desk.scribe.node(node(gpu(1, second, partitions_known=False)), None)
    assert desk.told("mig.create", "mig.destroy")[1:] == [
        ("mig.create", GPU, {"instance": "2/0", "uuid": "MIG-2", "profile": "1g.10gb"})
    ]


def test_devices_that_were_not_judged_keep_the_word_about_their_health(desk: Desk) -> None:
    both = {name: Verdict(name, Status.HEALTHY) for name in ("gpu-0", "gpu-1")}
    desk.scribe.verdicts(both)
    before = desk.told("device.health")
    desk.scribe.verdicts({"gpu-0": both["gpu-0"]}, whole=False)
    desk.scribe.verdicts(both)
    assert desk.told("device.health") == before
    desk.scribe.verdicts({"gpu-0": both["gpu-0"]})
    assert desk.told("device.health")[2:] == [("device.health", "gpu-1", {"before": "healthy", "after": None})]


@pytest.mark.bug("B64")
def test_claims_of_a_checkpoint_that_cannot_be_loaded_are_not_gone(desk: Desk) -> None:
    record = ClaimRecord(ClaimRef("ns", "c", "uid-1"), Phase.PREPARED, ())
    desk.hold(record)
    kinds = ("claim.prepare", "claim.unprepare")
    before = desk.told(*kinds)
    desk.journal.close()
    desk.open()
    desk.records = ()
    desk.scribe.claims({"uid-2": 0.1})
    assert desk.scribe.known_records() is None
    desk.records = (record,)
    desk.scribe.claims()
    assert desk.told(*kinds) == before
    desk.records = ()
    desk.scribe.claims({"uid-1": 0.1})
    assert [kind for kind, _, _ in desk.told("claim.unprepare")] == ["claim.unprepare"]


def test_an_agent_that_has_seen_nothing_yet_forgets_nothing_of_the_one_before() -> None:
    known = JournalState(
        devices={GPU: {"state": "ready", "health": "unhealthy", "cause": "xid-79"}},
        taints={GPU: {"gpu.nvidia.com/xid": "79:NoSchedule"}},
        partitions={GPU: {"1/0": "MIG-1"}},
        driver={"available": True, "version": "580.1"},
    )
    assert present_state(known, None, None, None, None, None) == known


def test_a_driver_that_does_not_answer_yet_has_taken_nothing_away() -> None:
    known = JournalState(partitions={GPU: {"1/0": "MIG-1"}}, driver={"available": True, "version": "580.1"})
    assert present_state(known, (), None, "not loaded", None, None) == JournalState(
        partitions=known.partitions, driver={"available": False, "version": "580.1"}
    )


class World:
    """Hardware, looks at it of which some are partial, and what was last told of each thing by any of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        self.standing: dict[int, dict[str, str]] = {1: {}, 2: {}}
        self.lost: set[int] = set()
        self.version = "580.1"
        self.last = JournalState()
        self.seen: NodeInventory | None = None
        self.unavailable: str | None = None
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.folder, boot_id="boot", truth=self.truth)
        self.scribe = Scribe(self.journal, tuple)
        self.scribe.started("1", {})
        self.journal.start()

    def truth(self, known: JournalState) -> JournalState:
        return present_state(known, (), self.seen, self.unavailable, None, None)

    # the hardware

    def create(self, number: int) -> None:
        if number in self.standing:
            self.made += 1
            self.standing[number][f"{self.made % 3}/0"] = f"MIG-{self.made}"

    def destroy(self, number: int) -> None:
        for instance in sorted(self.standing.get(number, ()))[:1]:
            del self.standing[number][instance]

    def lose(self, number: int) -> None:
        self.lost ^= {number} & set(self.standing)

    def pull(self, number: int) -> None:
        if self.standing.pop(number, None) is None:
            self.standing[number] = {}
        self.lost.discard(number)

    def upgrade(self, _number: int) -> None:
        self.version = "590.2" if self.version == "580.1" else "580.1"

    # looks

    def gpus(self) -> dict[int, Gpu]:
        return {
            number: gpu(number, state=GpuState.LOST, partitions_known=False)
            if number in self.lost
            else gpu(number, *(replace(PART, uuid=u, gpu_instance=int(i[0])) for i, u in sorted(parts.items())))
            for number, parts in sorted(self.standing.items())
        }

    def look(self, _number: int) -> None:
        self.tell(self.gpus())

    def look_without_a_list(self, number: int) -> None:
        gpus = self.gpus()
        if number in gpus and number not in self.lost:
            gpus[number] = gpu(number, partitions_known=False)
        self.tell(gpus)

    def look_with_half_a_list(self, number: int) -> None:
        gpus = self.gpus()
        if number in gpus and number not in self.lost:
            gpus[number] = replace(gpus[number], partitions=gpus[number].partitions[1:], partitions_known=False)
        self.tell(gpus)

    def look_at_part_of_the_bus(self, number: int) -> None:
        gpus = self.gpus()
        gpus.pop(number, None)
        self.tell(gpus, whole=False)

    def look_without_a_version(self, _number: int) -> None:
        self.tell(self.gpus(), version=None)

    def look_in_vain(self, _number: int) -> None:
        self.unavailable = "does not answer"
        self.scribe.node(self.seen, self.unavailable)
        self.last.driver = {**self.last.driver, "available": False}

    def tell(self, gpus: dict[int, Gpu], *, whole: bool = True, version: str | None = "") -> None:
        told = self.version if version == "" else version
        self.seen, self.unavailable = node(*gpus.values(), version=told, gpus_known=whole), None
        self.scribe.node(self.seen, None)
        kept = {} if whole else {name: dict(parts) for name, parts in self.last.partitions.items()}
        for one in gpus.values():
            before = {} if one.partitions_known else self.last.partitions.get(one.name, {})
            kept[one.name] = before | {f"{p.gpu_instance}/0": str(p.uuid) for p in one.partitions}
        states = {} if whole else dict(self.last.devices)
        self.last.devices = states | {one.name: {"state": one.state.value} for one in gpus.values()}
        self.last.partitions = {name: parts for name, parts in kept.items() if parts}
        self.last.driver = {"available": True, "version": told or self.last.driver.get("version")}
        if self.last.driver["version"] is None:
            del self.last.driver["version"]

    # the agent

    def restart(self, number: int) -> None:
        """In order, or killed; the next one has seen nothing yet."""
        if number == 1:
            self.scribe.ended()
        assert self.journal.close(WAIT)
        self.seen = self.unavailable = None
        self.open()


OPERATIONS: tuple[Callable[[World, int], None], ...] = (
    World.create, World.destroy, World.lose, World.pull, World.upgrade, World.look, World.look_without_a_list,
    World.look_with_half_a_list, World.look_at_part_of_the_bus, World.look_without_a_version, World.look_in_vain,
    World.restart,
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(1, 2)), max_size=24))
@settings(max_examples=60, deadline=None)
def test_the_records_add_up_to_the_last_that_was_told_and_nothing_that_stands_is_ever_told_as_gone(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Callable[[World, int], None], int]]
) -> None:
    world = World(tmp_path_factory.mktemp("w") / "journal")
    try:
        for operation, number in steps:
            operation(world, number)
            assert world.journal.settled(WAIT)
            records = [entry for entry in read(world.folder) if isinstance(entry, Record)]
            state = replay(records)
            state.agent = {}
            assert state == world.last
            standing = {uuid for parts in world.standing.values() for uuid in parts.values()}
            told = Counter((one.kind, one.data.get("uuid")) for one in records if one.kind.startswith("mig."))
            assert all(count == 1 for count in told.values()), "a partition comes once and goes once"
            assert not standing & {uuid for kind, uuid in told if kind == "mig.destroy"}
    finally:
        world.journal.close(WAIT)
