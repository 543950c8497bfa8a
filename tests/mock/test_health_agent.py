"""Sick GPUs under a running agent: what the scheduler, the kubelet, the claim and the journal are told."""

from __future__ import annotations

import signal
from typing import Any

import grpc
import pytest

from driver.journal import JournalState, Record, read, replay
from driver.journal.telling import line
from kubeletplugin.testing.health_watch import V1, HealthWatcher
from tests.support.agents import CLAIMS, DRIVER, POOL, Scene

QUICK = {"health_seconds": 0.2, "health_recovery_seconds": 1.0, "rescan_seconds": 60}


def running(scene: Scene, **flags: object) -> Scene:
    watched = len(scene.logged("events are watched"))
    scene.start(**{**QUICK, **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 8, "eight devices")
    scene.until(lambda: len(scene.logged("events are watched")) > watched, "the watching of events")
    return scene


def taints(scene: Scene) -> dict[str, list[str]]:
    """Device -> its taints, as ``key=value:effect`` without the driver's domain."""
    return {
        device["name"]: [
            f"{one['key'].partition('/')[2]}={one.get('value', '')}:{one['effect']}" for one in device["taints"]
        ]
        for device in scene.devices()
        if device.get("taints")
    }


def records(scene: Scene, *kinds: str) -> list[Record]:
    folder = scene.plugins / DRIVER / "gpudra" / "journal"
    entries = list(read(folder)) if folder.exists() else []
    assert all(isinstance(entry, Record) for entry in entries), entries
    return [entry for entry in entries if isinstance(entry, Record) and (not kinds or entry.kind in kinds)]


def state(scene: Scene) -> JournalState:
    return replay(records(scene))


def addresses(scene: Scene) -> list[str]:
    return [gpu.address for gpu in scene.node.profile.gpus]


def name_of(address: str) -> str:
    return f"gpu-{address.lower().replace(':', '-').replace('.', '-')}"


def hold(scene: Scene, name: str) -> tuple[str, str]:
    """Prepare a claim; gives its device's name and address."""
    claim = scene.claim(name)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    scene.prepare(name)
    address = next(one for one in addresses(scene) if name_of(one) == result["device"])
    return result["device"], address


def watch(scene: Scene) -> tuple[grpc.Channel, HealthWatcher]:
    (socket,) = (scene.plugins / DRIVER).glob("dra*.sock")
    channel = grpc.insecure_channel(f"unix:{socket}")
    watcher = HealthWatcher(channel, V1)
    watcher.start()
    return channel, watcher


@pytest.mark.bug("B11")
def test_a_gpu_falls_off_the_bus_under_a_pod_and_seven_others_work_on(scene: Scene) -> None:
    running(scene)
    device, address = hold(scene, "held")
    channel, watcher = watch(scene)
    scene.until(lambda: watcher.health(POOL, device).status == "Healthy", "a healthy device")
    scene.node.xid(address, 79)
    scene.node.set_gpu_state(address, "lost")
    scene.until(lambda: "gpu-lost=:NoSchedule" in taints(scene).get(device, ()), "the taint")
    assert set(taints(scene)) == {device}, "no other GPU is touched"
    assert len(scene.devices()) == 8, "what a claim holds stays in view"
    scene.until(lambda: watcher.health(POOL, device).status == "Unhealthy", "the kubelet's word")
    others = {name_of(one) for one in addresses(scene)} - {device}
    assert {watcher.health(POOL, name).status for name in others} == {"Healthy"}

    def condition() -> Any:
        (entry,) = scene.client.get(f"{CLAIMS}/held")["status"]["devices"]
        return entry.get("conditions")

    (said,) = scene.until(condition, "a condition in the claim's status")
    assert (said["type"], said["status"]) == ("Healthy", "False")
    scene.until(lambda: events(scene, "DeviceUnhealthy"), "an Event about the claim")
    scene.claim("other", 7)
    assert len(scene.prepare("other")) == 7
    scene.node.set_gpu_state(address, "ok")
    scene.until(lambda: taints(scene) == {}, "recovery")
    scene.until(lambda: watcher.health(POOL, device).status == "Healthy", "the kubelet's word again")
    scene.until(lambda: condition()[0]["status"] == "True", "the claim's status again")
    watcher.stop()
    channel.close()

    def changes() -> list[tuple[Any, Any]]:
        told = [one.data for one in records(scene, "device.health") if one.device == device]
        return [(one["before"], one["after"]) for one in told]

    scene.until(lambda: changes()[-2:] == [("healthy", "unhealthy"), ("unhealthy", "healthy")], "the journal's word")


def events(scene: Scene, reason: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = scene.client.get("/api/v1/namespaces/default/events")["items"]
    return [item for item in items if item["reason"] == reason and item["involvedObject"]["kind"] == "ResourceClaim"]


@pytest.mark.bug("B11")
def test_a_gpu_that_leaves_the_bus_under_a_claim_stays_in_view_and_comes_back(scene: Scene) -> None:
    # A reading in the middle of it may find the GPU on one side of the machine and not on the other, for a moment.
    running(scene, rescan_seconds=0.2, health_recovery_seconds=0.5)
    device, address = hold(scene, "held")
    uuid = {one["name"]: one["attributes"]["uuid"] for one in scene.devices()}[device]
    scene.node.unplug(address)
    scene.until(lambda: "gpu-lost=:NoSchedule" in taints(scene).get(device, ()), "the taint")
    assert taints(scene).keys() == {device}
    assert {one["name"]: one["attributes"]["uuid"] for one in scene.devices()}[device] == uuid
    scene.until(lambda: state(scene).devices.get(device, {}).get("health") == "unhealthy", "the journal's word")
    scene.node.plug(address)
    scene.until(lambda: taints(scene) == {}, "recovery")
    scene.until(lambda: state(scene).devices[device].get("state") == "ready", "the journal's word about its return")
    told = [(one.data["before"], one.data["after"]) for one in records(scene, "device.state") if one.device == device]
    assert told[0] == (None, "ready")
    assert len(told) > 1
    assert told[-1] in [(None, "ready"), ("lost", "ready"), ("unreadable", "ready")]


@pytest.mark.bug("B104")
def test_a_storm_of_xids_is_one_taint_and_few_writes(scene: Scene) -> None:
    running(scene)
    address = addresses(scene)[0]
    before = writes(scene)
    for _ in range(60):
        scene.node.xid(address, 74)
        scene.node.xid(address, 31)
    scene.until(lambda: taints(scene) == {name_of(address): ["xid=74:NoSchedule"]}, "one taint")
    assert writes(scene) - before <= 2
    scene.until(lambda: len(records(scene, "xid")) >= 2, "the events in the journal")
    scene.until(lambda: len(records(scene, "device.taint")) == 1, "the taint in the journal, once")


def writes(scene: Scene) -> int:
    return sum(int(item["metadata"]["generation"]) for item in scene.slices())


@pytest.mark.bug("B44")
def test_a_taint_outlives_a_restart_of_the_agent_and_is_in_the_first_slice_that_it_writes(scene: Scene) -> None:
    running(scene, health_recovery_seconds=600)
    address = addresses(scene)[3]
    scene.node.xid(address, 119)
    wanted = {name_of(address): ["xid=119:NoSchedule"]}
    scene.until(lambda: taints(scene) == wanted, "the taint")
    scene.end(signal.SIGKILL)
    for item in scene.slices():
        scene.client.delete(f"/apis/resource.k8s.io/v1/resourceslices/{item['metadata']['name']}")
    running(scene, health_recovery_seconds=600)
    assert taints(scene) == wanted
    causes = scene.until(lambda: [one.data["cause"] for one in records(scene, "gap")], "the gap in the journal")
    assert causes == ["killed"]


def test_a_gpu_that_was_lost_before_a_restart_of_the_agent_stays_in_view_too(scene: Scene) -> None:
    running(scene)
    device, address = hold(scene, "held")
    scene.until(lambda: (scene.plugins / DRIVER / "gpudra" / "node.json").exists(), "the picture of the node")
    scene.node.set_gpu_state(address, "lost")
    scene.until(lambda: device in taints(scene), "the taint")
    scene.end(signal.SIGKILL)
    scene.start(**QUICK)
    scene.registered()
    scene.until(lambda: len(scene.logged("the node was read")) == 2, "the next agent's reading")
    scene.until(lambda: len(scene.logged("events are watched")) == 2, "its looks")
    assert len(scene.devices()) == 8
    assert taints(scene) == {device: ["gpu-lost=:NoSchedule"]}


def test_a_driver_upgrade_under_a_claim_is_told_and_passes(scene: Scene) -> None:
    running(scene)
    device, _ = hold(scene, "held")
    scene.node.set_driver_loaded(False)
    scene.until(lambda: len(taints(scene)) == 8, "taints while there is no driver")
    scene.until(lambda: state(scene).driver.get("available") is False, "the journal's word")
    scene.node.set_driver_loaded(True)
    scene.until(lambda: taints(scene) == {}, "no taint once it is back")
    scene.until(lambda: state(scene).driver.get("available") is True, "the journal's word")
    assert device in state(scene).claims[next(iter(state(scene).claims))]["devices"]
    scene.unprepare("held")
    scene.until(lambda: state(scene).claims == {}, "the end of the claim in the journal")


@pytest.mark.bug("B110")
def test_what_happened_while_events_were_not_heard_is_found_behind_it_and_the_gap_is_in_the_journal(
    scene: Scene,
) -> None:
    running(scene)
    address = addresses(scene)[5]
    scene.until(lambda: {one.get("health") for one in state(scene).devices.values()} == {"healthy"}, "their health")
    scene.node.set_driver_loaded(False)
    scene.until(lambda: scene.logged("events of GPUs are not watched"), "the watcher's word")
    scene.node.ecc(address, double=2)
    scene.node.set_number(address, "remap_pending", 1)
    scene.node.set_driver_loaded(True)
    (gap,) = scene.until(lambda: records(scene, "gap"), "the gap")
    assert gap.data["cause"] == "events"
    assert gap.data["seconds"] > 0
    assert "NVML failed" in gap.data["reason"]
    assert gap.data["found"] == {name_of(address): "2 uncorrected ECC errors, a memory row waits to be remapped"}
    assert line(gap).count("events of GPUs were not heard") == 1


def test_the_journal_adds_up_to_what_the_agent_has(scene: Scene) -> None:
    running(scene)
    device, _ = hold(scene, "one")
    hold(scene, "two")
    scene.unprepare("two")
    scene.until(lambda: len(records(scene, "claim.unprepare")) == 2, "the end of the second claim")
    assert [one["name"] for one in state(scene).claims.values()] == ["one"]
    scene.until(lambda: len(state(scene).devices) == 8, "the devices")
    scene.until(lambda: {one.get("health") for one in state(scene).devices.values()} == {"healthy"}, "their health")
    assert state(scene).agent["registered"] is True
    phases = [one.data.get("phase", one.data.get("step")) for one in records(scene, "claim.prepare", "claim.unprepare")]
    assert phases == ["began", "Prepared", "began", "Prepared", "began", None]
    assert scene.end() == 0
    assert state(scene).agent["running"] is False
    assert records(scene)[-1].kind == "agent.stop"
    running(scene)
    scene.until(lambda: state(scene).agent["running"], "the next agent")
    scene.until(lambda: state(scene).agent["registered"], "its registration")
    assert [one["devices"] for one in state(scene).claims.values()] == [[device]]
    assert records(scene, "gap") == []
    assert len(records(scene, "device.state")) == 8, "nothing is told twice"
