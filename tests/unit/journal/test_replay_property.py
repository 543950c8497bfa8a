"""Whatever happens to a node, and however its agents end: the records add up to what holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driver.health.verdicts import Status, Verdict
from driver.journal import Journal, JournalState, Record, read, replay
from driver.journal.scribe import Scribe, present_state
from driver.model import Gpu, GpuState, MigPartition, NodeInventory, PciAddress, Placement
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase

WAIT = 20.0
BOOTS = ("boot-a", "boot-b")


class World:
    """A node, its agent, and the agent's journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.boot = 0
        self.records: dict[str, ClaimRecord] = {}
        self.gpus: dict[int, GpuState] = {0: GpuState.READY}
        self.divided = False
        self.unavailable: str | None = None
        self.verdicts: dict[str, Verdict] = {}
        self.taints: dict[str, list[dict[str, Any]]] = {}
        self.open()

    def open(self) -> None:
        self.journal = Journal(self.folder, boot_id=BOOTS[self.boot % 2], max_bytes=1 << 20, truth=self.truth)
        self.scribe = Scribe(self.journal, lambda: tuple(self.records.values()))
        self.scribe.started("1", {})
        self.journal.start()
        self.look()

    def inventory(self) -> NodeInventory:
        part = MigPartition("MIG-1", 1, 0, 19, "1g.10gb", Placement(0, 1))
        parts = (part,) if self.divided else ()
        gpus = tuple(Gpu(PciAddress(0, n, 0, 0), state, partitions=parts) for n, state in sorted(self.gpus.items()))
        return NodeInventory("580.1", (13, 0), "13", gpus)

    def truth(self, known: JournalState) -> JournalState:
        claims = tuple(self.records.values())
        return present_state(known, claims, self.inventory(), self.unavailable, self.verdicts, self.taints)

    def look(self) -> None:
        self.scribe.claims()
        self.scribe.node(self.inventory(), self.unavailable)
        self.scribe.verdicts(dict(self.verdicts))
        self.scribe.taints({name: list(some) for name, some in self.taints.items()})

    # what happens

    def claim(self, number: int) -> None:
        uid = f"uid-{number}"
        phases = [None, Phase.PREPARING, Phase.PREPARED, Phase.UNPREPARING]
        known = self.records.get(uid)
        following = phases[(phases.index(known.phase if known else None) + 1) % 4]
        if following is None:
            del self.records[uid]
        else:
            share = f"share-{number}" if number % 2 else None
            device = DeviceRecord("r", "pool", f"gpu-{number}", share, False, "0000:01:00.0", "GPU-1", "cdi")
            self.records[uid] = ClaimRecord(ClaimRef("ns", f"c{number}", uid), following, (device,))
        self.scribe.claims()

    def gpu(self, number: int) -> None:
        states = [None, GpuState.READY, GpuState.LOST]
        following = states[(states.index(self.gpus.get(number)) + 1) % 3]
        if following is None:
            del self.gpus[number]
        else:
            self.gpus[number] = following
        self.look()

    def health(self, number: int) -> None:
        name = f"gpu-{number}"
        if name in self.verdicts and self.verdicts[name].status is Status.UNHEALTHY:
            del self.verdicts[name]
            self.taints.pop(name, None)
        else:
            self.verdicts[name] = Verdict(name, Status.UNHEALTHY, 1.0, 4, "xid", 79, "gone")
            self.taints[name] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
        self.look()

    def driver(self, _number: int) -> None:
        self.unavailable = None if self.unavailable else "not loaded"
        self.look()

    def divide(self, _number: int) -> None:
        self.divided = not self.divided
        self.look()

    def restart(self, _number: int) -> None:
        self.scribe.ended()
        assert self.journal.close(WAIT)
        self.open()

    def kill(self, number: int) -> None:
        """The agent ends without a word; what it did last is in no record, and part of a line may be left."""
        assert self.journal.close(WAIT)
        newest = max(self.folder.glob("*.jsonl"))
        newest.write_bytes(newest.read_bytes()[: -(number * 37 + 1)])
        self.records.pop("uid-0", None)
        self.boot += number % 2
        self.open()


OPERATIONS: tuple[Callable[[World, int], None], ...] = (
    World.claim, World.gpu, World.health, World.driver, World.divide, World.restart, World.kill,
)  # fmt: skip


@pytest.mark.bug("B108")
@given(st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 2)), max_size=14))
@settings(max_examples=40, deadline=None)
def test_the_records_add_up_to_what_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Callable[[World, int], None], int]]
) -> None:
    world = World(tmp_path_factory.mktemp("w") / "journal")
    try:
        for operation, number in steps:
            operation(world, number)
        assert world.journal.settled(WAIT)
        entries = list(read(world.folder))
        state = replay(entry for entry in entries if isinstance(entry, Record))
        state.agent = {}
        assert state == world.truth(JournalState())
        kept = world.journal.state()
        kept.agent = {}
        assert kept == state
    finally:
        world.journal.close(WAIT)
