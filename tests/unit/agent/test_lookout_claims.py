"""What the lookout says of claims that are gone: whether their devices may be let go of, and who is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver.bridge import AgentObserver
from driver.later import Later
from driver.lookout import AT_WORK_SECONDS, Lookout, Surroundings
from driver.metrics import Deferred, Metrics
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase
from driver.reconcile import Swept
from driver.settings import Settings
from native.nvml.healthtypes import GpuHealth

REF, OTHER = ClaimRef("ns", "c", "uid-1"), ClaimRef("ns", "d", "uid-2")
ADDRESS = "0000:1b:00.0"


def record(ref: ClaimRef, device: str = "gpu-0", **fields: Any) -> ClaimRecord:
    made = DeviceRecord("r", "pool", device, None, False, ADDRESS, "GPU-1", f"cdi-{ref.uid}")
    return ClaimRecord(ref, Phase.PREPARED, (made,), **fields)


class Look:
    """What a probe has read."""

    problem = None

    def __init__(self, utilization: int) -> None:
        self.health = {ADDRESS: GpuHealth(ADDRESS, utilization=(utilization, 0))}


class Room:
    """A lookout among stand-ins."""

    def __init__(self, folder: Path) -> None:
        self.records: list[ClaimRecord] = []
        self.metrics = Metrics()
        self.events: list[tuple[str, str, str, str]] = []
        self.told: list[tuple[Any, ...]] = []
        deferred, scribe = Deferred(), Later[Any]()
        deferred.attach(self.metrics)
        scribe.attach(self)
        observer = AgentObserver(deferred)
        observer.claim_event = lambda ref, kind, reason, message: self.events.append((ref.name, kind, reason, message))  # type: ignore[method-assign] # the end of the way
        settings = Settings(node_name="node-a", plugins_dir=str(folder))
        settings.state_dir.mkdir(parents=True)
        nothing: Any = None
        about = Surroundings(
            settings, "pool", "boot", deferred, observer, lambda: self.records, nothing, nothing, nothing, nothing
        )
        self.lookout = Lookout(about, scribe)

    def looked(self, utilization: int) -> None:
        look: Any = Look(utilization)
        self.lookout._count_use(look)

    # the scribe

    def swept(self, *said: Any) -> None:
        self.told.append(said)

    def claims(self) -> None:
        self.told.append(("claims",))

    def idle(self, *_said: Any, **_more: Any) -> None:
        """Not looked at here."""


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def test_a_device_that_computes_is_not_let_go_of_and_one_that_never_did_is(room: Room) -> None:
    room.records = [record(REF)]
    room.looked(0)
    assert room.lookout._held(REF) is None
    room.looked(80)
    held = room.lookout._held(REF)
    assert held is not None
    assert "gpu-0 is still at work" in held


def test_a_device_that_rests_for_long_enough_is_let_go_of(room: Room) -> None:
    room.records = [record(REF)]
    room.looked(80)
    assert room.lookout._idle is not None
    (use,) = room.lookout._idle.uses()
    use.used -= AT_WORK_SECONDS + 1
    room.looked(0)
    assert room.lookout._held(REF) is None


def test_what_claims_share_says_nothing_of_one_of_them(room: Room) -> None:
    room.records = [record(REF), record(OTHER)]
    room.looked(80)
    assert room.lookout._held(REF) is None


def test_a_claim_that_was_swept_is_told_as_an_event_a_count_and_a_record(room: Room) -> None:
    room.lookout._swept(Swept(REF, "deleted", None))
    room.lookout._swept(Swept(OTHER, "replaced", "held by a process"))
    assert [one[:3] for one in room.events] == [("c", "Normal", "ClaimSwept"), ("d", "Warning", "ClaimNotSwept")]
    assert "held by a process" in room.events[1][3]
    value = room.metrics.registry.get_sample_value
    assert [value("gpudra_claims_swept_total", {"outcome": word}) for word in ("ok", "error")] == [1, 1]
    assert room.told == [
        (REF, "deleted", None), ("claims",), (OTHER, "replaced", "held by a process"), ("claims",),
    ]  # fmt: skip


def test_news_of_claims_before_the_reconciler_is_there_is_no_fault(room: Room) -> None:
    room.lookout.claims_changed()


def test_what_is_left_of_a_claim_on_a_lost_gpu_is_not_looked_for_at_the_api_server(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.records = [record(REF), record(OTHER, data={"mig": {"lost": True}})]
    assert [one.ref for one in room.lookout._held_claims()] == [REF]
