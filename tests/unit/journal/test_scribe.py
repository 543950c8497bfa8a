"""Which news become which records, and that the same sight is told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from driver.health.findings import of_event
from driver.health.monitor import Heard
from driver.health.verdicts import Status, Verdict
from driver.journal import JournalState, replay
from driver.journal.scribe import present_state
from driver.model import Gpu, GpuState, MigPartition, NodeInventory, PciAddress, Placement
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase
from native.nvml.eventtypes import EventType, NvmlEvent
from tests.unit.journal.journal_desk import Desk

REF = ClaimRef("ns", "c", "uid-1")


def gpu(number: int, state: GpuState = GpuState.READY, reason: str | None = None) -> Gpu:
    return Gpu(PciAddress(0, number, 0, 0), state, reason)


def node(*gpus: Gpu, version: str = "580.1") -> NodeInventory:
    return NodeInventory(version, (13, 0), "13", gpus)


def claim(phase: Phase, device: str = "gpu-0") -> ClaimRecord:
    made = DeviceRecord("r", "pool", device, None, False, "0000:01:00.0", "GPU-1", "cdi")
    return ClaimRecord(REF, phase, (made,))


@pytest.fixture
def desk(folder: Any) -> Desk:
    return Desk(folder)


def again(desk: Desk, look: Callable[[], None]) -> None:
    """Look, look again, and once more after a restart."""
    look()
    look()
    desk.scribe.ended()
    desk.journal.close()
    desk.open()
    look()


def test_a_node_is_told_once_and_each_change_of_it(desk: Desk) -> None:
    again(desk, lambda: desk.scribe.node(node(gpu(1), gpu(2)), None))
    desk.scribe.node(node(gpu(1), gpu(2, GpuState.LOST, "fell off"), gpu(3)), None)
    desk.scribe.node(node(gpu(1)), None)
    assert desk.written("device.state") == [
        ("gpu-0000-01-00-0", {"before": None, "after": "ready"}),
        ("gpu-0000-02-00-0", {"before": None, "after": "ready"}),
        ("gpu-0000-02-00-0", {"before": "ready", "after": "lost", "reason": "fell off"}),
        ("gpu-0000-03-00-0", {"before": None, "after": "ready"}),
        ("gpu-0000-02-00-0", {"before": "lost", "after": None}),
        ("gpu-0000-03-00-0", {"before": "ready", "after": None}),
    ]


def test_the_driver_comes_goes_and_changes(desk: Desk) -> None:
    again(desk, lambda: desk.scribe.node(node(), None))
    desk.scribe.node(node(), "not loaded")
    desk.scribe.node(node(), "not loaded, second look")
    desk.scribe.node(node(version="590.2"), None)
    said = [data for _, data in desk.written("node.driver")]
    assert [(one["available"], one.get("version")) for one in said] == [
        (True, "580.1"), (False, "580.1"), (True, "590.2"),
    ]  # fmt: skip
    assert said[1]["reason"] == "not loaded"


def test_each_phase_of_a_claim_is_told_once(desk: Desk) -> None:
    for phase in (Phase.PREPARING, Phase.PREPARED, Phase.UNPREPARING):
        desk.records = (claim(phase),)
        again(desk, lambda: desk.scribe.claims({"uid-1": 0.5}))
    desk.records = ()
    again(desk, desk.scribe.claims)
    told = [data for _, data in desk.written("claim.prepare", "claim.unprepare")]
    assert [(one.get("before"), one.get("phase")) for one in told] == [
        (None, "Preparing"), ("Preparing", "Prepared"), ("Prepared", "Unpreparing"), ("Unpreparing", None),
    ]  # fmt: skip
    assert told[1]["devices"] == ["gpu-0"]
    assert told[1]["seconds"] == 0.5


def test_verdicts_and_taints_are_told_when_they_change(desk: Desk) -> None:
    ill = Verdict("gpu-0", Status.UNHEALTHY, 1.0, 4, "xid", 79, "XID 79: off the bus")
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    for verdict, taints in (
        (Verdict("gpu-0", Status.HEALTHY), []),
        (ill, [taint]),
        (Verdict("gpu-0", Status.HEALTHY), []),
    ):

        def look(verdict: Verdict = verdict, taints: Any = taints) -> None:
            desk.scribe.verdicts({"gpu-0": verdict})
            desk.scribe.taints({"gpu-0": taints})

        again(desk, look)
    desk.scribe.verdicts({})
    assert [(one["before"], one["after"], one.get("cause")) for _, one in desk.written("device.health")] == [
        (None, "healthy", None),
        ("healthy", "unhealthy", "xid-79"),
        ("unhealthy", "healthy", None),
        ("healthy", None, None),
    ]
    assert [(one["before"], one["after"]) for _, one in desk.written("device.taint")] == [
        (None, "79:NoSchedule"), ("79:NoSchedule", None),
    ]  # fmt: skip
    assert desk.journal.state().devices == {}


def test_partitions_that_come_and_go_are_told_once(desk: Desk) -> None:
    part = MigPartition("MIG-1", 3, 0, 19, "1g.10gb", Placement(0, 1))
    again(desk, lambda: desk.scribe.node(node(replace(gpu(1), partitions=(part,))), None))
    remade = replace(part, uuid="MIG-2")
    desk.scribe.node(node(replace(gpu(1), partitions=(remade,))), None)
    desk.scribe.node(node(gpu(1)), None)
    told = desk.written("mig.create", "mig.destroy")
    assert [(data["instance"], data["uuid"], data.get("profile")) for _, data in told] == [
        ("3/0", "MIG-1", "1g.10gb"), ("3/0", "MIG-1", None), ("3/0", "MIG-2", "1g.10gb"), ("3/0", "MIG-2", None),
    ]  # fmt: skip
    assert desk.journal.state().partitions == {}


def test_a_gpu_that_left_the_bus_keeps_the_word_about_its_health(desk: Desk) -> None:
    desk.scribe.node(node(gpu(1)), None)
    ill = Verdict("gpu-0000-01-00-0", Status.UNHEALTHY, 1.0, 4, "lost", None, "gone")
    desk.scribe.verdicts({ill.device: ill})
    desk.scribe.node(node(), None)
    desk.written()
    assert desk.journal.state().devices == {ill.device: {"health": "unhealthy", "cause": "lost"}}
    desk.scribe.verdicts({})
    desk.written()
    assert desk.journal.state().devices == {}


def test_writes_without_a_wish_are_repairs(desk: Desk) -> None:
    desk.scribe.wished()
    desk.scribe.published("pool", slices=1, writes=1)
    desk.scribe.published("pool", slices=1, writes=0)
    desk.scribe.published("pool", slices=1, writes=1)
    desk.written()
    assert [record.kind for record in desk.folder.records("slice.publish", "slice.lost")] == [
        "slice.publish", "slice.lost",
    ]  # fmt: skip


def test_settings_are_told_when_they_are_others_than_before(desk: Desk) -> None:
    again(desk, lambda: desk.scribe.started("1.0", {"nodeName": "a"}))
    desk.scribe.started("1.0", {"nodeName": "a", "evict": "fatal"})
    assert [one["after"] for _, one in desk.written("agent.settings")] == [
        {"nodeName": "a"}, {"nodeName": "a", "evict": "fatal"},
    ]  # fmt: skip


def test_an_event_says_what_how_bad_and_how_often(desk: Desk) -> None:
    event = NvmlEvent("0000:01:00.0", EventType.XID_CRITICAL_ERROR, 31, 3, None)
    finding = of_event(event)
    assert finding is not None
    desk.scribe.heard("gpu-0", Heard(event, finding, 7))
    ((device, data),) = desk.written("xid")
    assert (device, data["xid"], data["gpuInstance"], data["count"], data["severity"]) == (
        "gpu-0",
        31,
        3,
        7,
        "application",
    )


def test_what_else_happens_to_claims(desk: Desk) -> None:
    desk.scribe.began(REF, "prepare")
    desk.scribe.failed(REF, "prepare", reason="DeviceInUse", error="held", permanent=False)
    desk.scribe.recovered({"undone": ["uid-1"], "orphan": ["uid-9"]}, {"uid-1": claim(Phase.PREPARING)})
    desk.scribe.recovered({"remade": ["uid-1"]}, {"uid-1": claim(Phase.PREPARED)}, lacked={"uid-1": "its CDI file"})
    desk.scribe.swept(REF, "deleted", None)
    desk.scribe.idle(REF, "gpu-0", idle=True, seconds=700.4)
    desk.written()
    said = [(one.kind, str(one.claim), dict(one.data)) for one in desk.folder.records() if one.kind.startswith("claim")]
    assert said == [
        ("claim.prepare", "ns/c", {"step": "began"}),
        (
            "claim.error",
            "ns/c",
            {"operation": "prepare", "reason": "DeviceInUse", "error": "held", "permanent": False},
        ),
        ("claim.recover", "ns/c", {"outcome": "undone"}),
        ("claim.recover", "/", {"outcome": "orphan"}),
        ("claim.recover", "ns/c", {"outcome": "remade", "what": "its CDI file"}),
        ("claim.sweep", "ns/c", {"why": "deleted"}),
        ("claim.idle", "ns/c", {"idle": True, "seconds": 700}),
    ]


def test_what_is_told_adds_up_to_what_holds(desk: Desk) -> None:
    inventory = node(gpu(1), gpu(2, GpuState.LOST, "gone"))
    verdicts = {
        "gpu-0000-01-00-0": Verdict("gpu-0000-01-00-0", Status.HEALTHY),
        "gpu-0000-02-00-0": Verdict("gpu-0000-02-00-0", Status.UNHEALTHY, 1.0, 4, "lost", None, "gone"),
    }
    taints = {"gpu-0000-02-00-0": [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}]}
    desk.records = (claim(Phase.PREPARED),)
    desk.scribe.claims()
    desk.scribe.node(inventory, None)
    desk.scribe.verdicts(verdicts)
    desk.scribe.taints(taints)
    desk.written()
    real = present_state(JournalState(), desk.records, inventory, None, verdicts, taints)
    assert replay(desk.folder.records()) == real
