"""Who is told of a device's health, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver.health.verdicts import Status, Verdict
from driver.health.xids import Severity
from driver.later import Later
from driver.metrics import Deferred, Metrics
from driver.model import GpuState, MigPartition, NodeInventory, Placement
from driver.names import name_of
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase
from driver.prepare.partition import Origin, PartitionRecord
from driver.settings import Settings
from driver.watch import HealthWatch
from kubeletplugin.api import HealthStatus
from native.nvml.eventtypes import EventType, NvmlEvent
from native.nvml.healthtypes import GpuHealth

ADDRESS, OTHER = "0000:1b:00.0", "0000:1c:00.0"
NAME, OTHER_NAME = "gpu-0000-1b-00-0", "gpu-0000-1c-00-0"
BOOT = "11111111-1111-1111-1111-111111111111"
REF = ClaimRef("ns", "c", "uid-1")


class Scribe:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, Any]] = []
        self.whole: list[bool] = []

    def verdicts(self, verdicts: dict[str, Verdict], *, whole: bool = True) -> None:
        self.whole.append(whole)
        self.told.append(("verdicts", {name: one.status.value for name, one in verdicts.items()}))

    def taints(self, taints: Any) -> None:
        self.told.append(("taints", taints))


class Room:
    """A watch among stand-ins."""

    def __init__(self, folder: Path, bench: Any, **settings: Any) -> None:
        self.bench = bench
        self.metrics = Metrics()
        self.records: list[ClaimRecord] = []
        self.affected: list[tuple[str, str]] = []
        self.scribe = Scribe()
        self.settings = Settings(node_name="node-a", plugins_dir=str(folder), **settings)
        self.settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.gpus = [bench.gpu(), bench.gpu(OTHER)]
        self.open()

    def open(self, boot: str = BOOT) -> None:
        deferred, later = Deferred(), Later[Any]()
        deferred.attach(self.metrics)
        later.attach(self.scribe)
        about = "pool", boot, lambda: self.records
        self.watch = HealthWatch(self.settings, *about, deferred, later, self.tell)
        self.watch.shown(NodeInventory("580.1", (13, 0), "13", tuple(self.gpus)))

    def tell(self, record: ClaimRecord, verdict: Verdict) -> None:
        self.affected.append((record.ref.name, verdict.status.value))

    def look(self, **sick: Any) -> bool:
        """A look ends; keywords are of the first GPU's reading."""
        readings = {
            str(gpu.address): GpuHealth(str(gpu.address), **(sick if str(gpu.address) == ADDRESS else {}))
            for gpu in self.gpus
        }
        self.watch.keeper.look(self.gpus, readings)
        stale = self.watch.judge()
        if stale:
            self.publish()
        self.watch.looked()
        return stale

    def publish(self, *names: str) -> None:
        self.watch.published([NAME, OTHER_NAME, *names], self.watch.taints())

    def xid(self, code: int, gi: int | None = None) -> None:
        self.watch.keeper.event(NvmlEvent(ADDRESS, EventType.XID_CRITICAL_ERROR, code, gi, None))

    def said(self) -> dict[str, HealthStatus]:
        return {one.device: one.status for one in self.watch.board.current()}

    def claim(self, gi: int | None = None, device: str = NAME) -> None:
        made = DeviceRecord("r", "pool", device, None, False, ADDRESS, "GPU-1b", "cdi")
        if gi is not None:
            part = PartitionRecord(19, "1g.10gb", Placement(0, 1), "GPU-1b", Origin.MADE, None, gi, 0)
            made = made.with_partition(part, "MIG-1")
        self.records.append(ClaimRecord(REF, Phase.PREPARED, (made,)))


@pytest.fixture
def room(tmp_path: Path, bench: Any) -> Room:
    return Room(tmp_path, bench)


def test_a_look_that_finds_nothing_is_a_heartbeat_and_no_news(room: Room) -> None:
    assert room.look() is False
    assert room.said() == {NAME: HealthStatus.HEALTHY, OTHER_NAME: HealthStatus.HEALTHY}
    assert room.scribe.told == [("verdicts", {NAME: "healthy", OTHER_NAME: "healthy"})]
    assert room.look() is False
    assert len(room.scribe.told) == 1


def test_a_sick_gpu_is_told_to_the_kubelet_the_claim_the_metrics_and_the_slices(room: Room) -> None:
    room.claim()
    room.look()
    room.xid(119)
    assert room.look() is True
    assert room.said() == {NAME: HealthStatus.UNHEALTHY, OTHER_NAME: HealthStatus.HEALTHY}
    assert room.affected == [("c", "unhealthy")]
    assert room.scribe.told[-1] == (
        "taints",
        {NAME: [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule", "value": "119"}]},
    )
    value = room.metrics.registry.get_sample_value
    assert value("gpudra_devices_health", {"health": "unhealthy"}) == 1
    assert value("gpudra_device_unhealthy", {"device": NAME, "cause": "xid-119"}) == 1
    assert room.look() is False, "what is published already is not published again"


def test_verdicts_are_on_all_devices_only_once_the_node_was_read_and_published(room: Room) -> None:
    room.look()
    assert room.scribe.whole == [False]
    assert room.watch.present() == (None, None)
    room.publish()
    room.look()
    assert room.scribe.whole == [False, True], "told again, so that devices that are no more can be forgotten"
    verdicts, taints = room.watch.present()
    assert verdicts is not None
    assert set(verdicts) == {NAME, OTHER_NAME}
    assert taints == {}


@pytest.mark.bug("B104")
def test_numbers_that_no_table_has_make_no_series_of_their_own(room: Room) -> None:
    room.look()
    for code in (40_001, 40_002):
        room.xid(code)
        room.look()
    value = room.metrics.registry.get_sample_value
    assert value("gpudra_device_unhealthy", {"device": NAME, "cause": "xid-other"}) == 1
    assert value("gpudra_device_unhealthy", {"device": NAME, "cause": "xid-40001"}) is None


@pytest.mark.bug("B45")
def test_taints_that_were_not_taken_over_are_asked_for_again(room: Room) -> None:
    room.look()
    room.xid(119)
    assert room.watch.judge() is True
    assert room.watch.judge() is True, "as long as they are not published"
    room.publish()
    assert room.watch.judge() is False


def test_a_gpu_that_was_held_back_long_enough_is_published_again_without_a_new_reading(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(room.watch._remembered, "_clock", lambda: now[0])
    other = room.bench.gpu("0000:1d:00.0", unread=("fabric",))
    lacking = NodeInventory("580.1", (13, 0), "13", (*room.gpus, other))
    assert room.watch.shown(lacking).gpus[2].state is GpuState.UNREADABLE
    room.look()
    room.publish()
    assert room.watch.judge() is False
    now[0] = 60.0
    assert room.watch.judge() is True
    assert room.watch.shown(lacking).gpus[2].state is GpuState.READY
    assert room.watch.judge() is False


def test_the_drivers_own_taint_is_no_reason_to_publish_again(room: Room) -> None:
    room.look()
    room.watch.published([NAME], {NAME: [{"key": "gpu.nvidia.com/driver-unavailable", "effect": "NoSchedule"}]})
    assert room.watch.judge() is False


def test_a_claims_condition_comes_with_an_illness_and_stays_after_it(room: Room) -> None:
    room.look()
    verdict = room.watch.verdict(NAME)
    assert verdict is not None
    assert room.watch.condition(verdict) is None, "nothing is said of what was never ill"
    room.xid(119)
    room.look()
    ill = room.watch.condition(room.watch.verdict(NAME) or verdict)
    assert ill is not None
    assert (ill["type"], ill["status"], ill["reason"]) == ("Healthy", "False", "Xid119")
    assert "XID 119" in ill["message"]
    well = room.watch.condition(verdict)
    assert well is not None
    assert (well["status"], well["reason"]) == ("True", "Recovered")


def test_what_is_only_noted_of_a_gpu_that_is_well_again_does_not_stay_in_the_claims_condition(room: Room) -> None:
    room.look()
    room.xid(119)
    room.look()
    noted = Verdict(NAME, Status.HEALTHY, 1.0, Severity.APPLICATION, "xid", 13, "XID 13: graphics engine exception")
    well = room.watch.condition(noted)
    assert well is not None
    assert (well["status"], well["reason"], well["message"]) == ("True", "Recovered", "")


@pytest.mark.bug("B107")
def test_partitions_of_claims_are_judged_by_their_instance(room: Room) -> None:
    one, two = f"{NAME}-mig-1g-10gb-19-0", f"{NAME}-mig-1g-10gb-19-1"
    room.claim(3, one)
    room.claim(4, two)
    room.publish(one, two)
    room.look()
    room.xid(74, gi=3)
    room.look()
    assert room.said()[one] is HealthStatus.UNHEALTHY
    assert room.said()[two] is HealthStatus.HEALTHY
    room.xid(79)
    room.look()
    assert room.said()[two] is HealthStatus.UNHEALTHY


@pytest.mark.bug("B107")
def test_partitions_that_no_claim_has_are_judged_by_the_instance_that_they_stand_on(room: Room) -> None:
    one, two = (MigPartition(f"MIG-{n}", 3 + n, 0, 19, "1g.10gb", Placement(n, 1)) for n in (0, 1))
    divided = room.bench.gpu(partitions=(one, two))
    names = [name_of(divided, part) for part in (one, two)]
    room.watch.shown(NodeInventory("580.1", (13, 0), "13", (divided, room.gpus[1])))
    room.publish(*names)
    room.look()
    room.xid(74, gi=3)
    assert list(room.watch.taints()) == [names[0]]
    room.look()
    assert [room.said()[name] for name in names] == [HealthStatus.UNHEALTHY, HealthStatus.HEALTHY]


def test_a_gpu_that_left_the_bus_is_tainted_and_unhealthy(room: Room) -> None:
    room.claim()
    room.look()
    room.gpus = room.gpus[1:]
    shown = room.watch.shown(NodeInventory("580.1", (13, 0), "13", tuple(room.gpus)))
    assert [gpu.name for gpu in shown.gpus] == [NAME, OTHER_NAME]
    assert room.look() is True
    assert room.said()[NAME] is HealthStatus.UNHEALTHY
    assert room.watch.taints() == {NAME: [{"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}]}
    assert room.affected == [("c", "unhealthy")]


@pytest.mark.parametrize(
    ("evict", "effect"), [("never", "NoSchedule"), ("fatal", "NoExecute"), ("device", "NoExecute")]
)
def test_a_gpu_that_left_the_bus_evicts_where_a_fatal_fault_does(
    tmp_path: Path, bench: Any, evict: str, effect: str
) -> None:
    room = Room(tmp_path, bench, evict=evict)
    room.look()
    room.watch.shown(NodeInventory("580.1", (13, 0), "13", (room.gpus[1],)))
    assert room.watch.taints() == {NAME: [{"key": "gpu.nvidia.com/gpu-lost", "effect": effect}]}


def test_the_claims_that_are_hit_are_counted_by_name_as_long_as_they_are(room: Room) -> None:
    room.claim()
    room.look()
    room.xid(119)
    room.look()
    value = room.metrics.registry.get_sample_value
    series = {"namespace": "ns", "claim": "c", "device": NAME, "cause": "xid-119"}
    assert value("gpudra_claim_device_unhealthy", series) == 1
    room.records.clear()
    room.look()
    assert value("gpudra_claim_device_unhealthy", series) is None


def test_a_claim_whose_gpu_was_ill_before_the_reboot_is_told_that_it_is_well(room: Room) -> None:
    room.claim()
    room.look()
    room.xid(119)
    room.look()
    room.affected.clear()
    room.open("22222222-2222-2222-2222-222222222222")
    room.look()
    assert room.affected == [("c", "healthy")]
    verdict = room.watch.verdict(NAME)
    assert verdict is not None
    condition = room.watch.condition(verdict)
    assert condition is not None
    assert (condition["type"], condition["status"]) == ("Healthy", "True")
    room.look()
    assert len(room.affected) == 1, "once"
    other = room.watch.verdict(OTHER_NAME)
    assert other is not None
    assert room.watch.condition(other) is None, "the other GPU was never ill"


def test_a_gpu_that_is_still_ill_in_the_next_agent_is_told_as_ill_and_later_as_well(tmp_path: Path, bench: Any) -> None:
    room = Room(tmp_path, bench, health_recovery_seconds=0.000001)
    room.claim()
    room.look()
    room.look(recovery_action=1)
    room.open()
    room.affected.clear()
    room.look(recovery_action=1)
    assert room.affected == [("c", "unhealthy")]
    room.look()
    room.look()
    assert room.affected == [("c", "unhealthy"), ("c", "healthy")]


def test_without_a_driver_devices_are_unknown_and_no_claim_is_told(room: Room) -> None:
    room.claim()
    room.look()
    room.watch.keeper.driver_gone("not loaded")
    room.watch.judge()
    room.watch.looked()
    assert set(room.said().values()) == {HealthStatus.UNKNOWN}
    assert room.affected == []


@pytest.mark.bug("B44")
def test_the_next_agent_has_the_taints_before_it_has_looked(room: Room) -> None:
    room.look()
    room.xid(119)
    room.look()
    room.open()
    assert room.watch.taints() == {NAME: [{"key": "gpu.nvidia.com/xid", "effect": "NoSchedule", "value": "119"}]}


def test_settings_reach_the_rules(tmp_path: Path, bench: Any) -> None:
    room = Room(tmp_path, bench, evict="fatal", ignore_xids="74, 13")
    room.look()
    room.xid(74)
    assert room.watch.taints() == {}
    room.xid(119)
    assert room.watch.taints()[NAME][0]["effect"] == "NoExecute"


def test_an_unbound_gpu_is_nobodys_business(tmp_path: Path, bench: Any) -> None:
    room = Room(tmp_path, bench)
    room.gpus = [bench.gpu(state=GpuState.UNBOUND, driver="vfio-pci"), bench.gpu(OTHER)]
    room.open()
    room.look()
    assert set(room.said()) == {OTHER_NAME}
