"""Partitions from the published pool to the hardware and back: the agent as a process, a scheduler that counts."""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.gates import DEFAULT_GATES
from native.mock import MockNode
from native.mock.profile import Failure
from native.nvml.errors import NvmlReturn
from tests.support.agents import CLAIMS, DRIVER, NODE, POOL, Scene
from tests.support.cdispecs import given
from tests.support.countered import Counted

FINALIZER = "resource.kubernetes.io/delete-protection"


@pytest.fixture
def scene() -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="m"))  # paths of sockets are short
    with EmbeddedApiServer() as server:
        made = Scene(folder, server, MockNode.create(folder / "node", "rtx-pro-6000"))
        try:
            made.kubelet.start()
            yield made
        finally:
            made.close()
            shutil.rmtree(folder, ignore_errors=True)


def running(scene: Scene, devices: int, **flags: object) -> None:
    scene.start(**{"mig": "dynamic", **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == devices, f"{devices} devices")
    scene.until(lambda: scene.logged("published"), "the agent's word about it")


def allocate(scene: Scene, name: str, *devices: str, config: dict[str, Any] | None = None) -> None:
    """A claim that the scheduler has given these devices."""
    requests = [
        {"name": f"r{number}", "exactly": {"deviceClassName": DRIVER, "count": 1}} for number in range(len(devices))
    ]
    claim = scene.client.create(
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default", "finalizers": [FINALIZER]},
            "spec": {"devices": {"requests": requests}},
        },
    )
    results = [
        {"request": f"r{number}", "driver": DRIVER, "pool": POOL, "device": device}
        for number, device in enumerate(devices)
    ]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
    opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": config}}
    given = {"results": results, **({"config": [opaque]} if config is not None else {})}
    allocation = {"devices": given, "nodeSelector": {"nodeSelectorTerms": [term]}}
    consumers = [{"resource": "pods", "name": name, "uid": f"pod-{name}"}]
    scene.client.update(
        f"{CLAIMS}/{name}/status", {**claim, "status": {"allocation": allocation, "reservedFor": consumers}}
    )


def standing(scene: Scene) -> list[tuple[str, str, int]]:
    """(address, profile, start) of what stands."""
    return sorted(
        (gpu.address, one.profile, one.start)
        for gpu in scene.node.profile.gpus
        for one in scene.node.instances(gpu.address)
    )


def writes(scene: Scene) -> int:
    return sum(entry["writes"] for entry in scene.logged("published"))


def test_random_claims_come_and_go_and_what_the_counters_allow_can_be_prepared(scene: Scene) -> None:
    running(scene, 62)
    pool = Counted.of_slices(scene.slices())
    chance = random.Random(20261130)
    held: dict[str, str] = {}
    before = writes(scene)
    for number in range(40):
        free = [name for name in pool.devices if pool.fits(name)]
        if held and (not free or chance.random() < 0.4):
            uid = chance.choice(sorted(held))
            scene.unprepare(uid)
            pool.give_back(held.pop(uid))
            continue
        uid, device = f"c{number}", chance.choice(free)
        pool.take(device)
        allocate(scene, uid, device)
        assert len(scene.prepare(uid)) == 1, device
        held[uid] = device
        assert len(standing(scene)) == sum("-mig-" in device for device in held.values())
    for uid in held:
        scene.unprepare(uid)
    assert standing(scene) == []
    assert scene.specs() == []
    scene.until(lambda: {scene.node.number(gpu.address, "mig_current") for gpu in scene.node.profile.gpus} == {0}, "")
    assert writes(scene) == before, "claims that come and go change nothing of what is published"


def test_a_claim_is_told_of_its_partition_and_metrics_count_it(scene: Scene) -> None:
    running(scene, 62, metrics_port=0)
    pool = Counted.of_slices(scene.slices())
    device = pool.first(profile="1g.24gb")
    assert device is not None
    allocate(scene, "one", device)
    scene.prepare("one")

    def said() -> Any:
        return scene.client.get(f"{CLAIMS}/one")["status"].get("devices")

    (entry,) = scene.until(said, "the claim's status")
    parent = pool.devices[device]["attributes"]["parentUUID"]["string"]
    assert entry["data"]["profile"] == "1g.24gb"
    assert entry["data"]["parentUUID"] == parent
    (spec,) = scene.specs()
    assert entry["data"]["uuid"] in spec.read_text()
    assert entry["data"]["uuid"].startswith("MIG-")
    (served,) = scene.until(lambda: scene.logged("metrics are served"), "metrics")
    with urllib.request.urlopen(f"http://127.0.0.1:{served['port']}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'gpudra_prepared_devices{type="mig"} 1.0' in text
    assert 'gpudra_prepared_devices{type="gpu"} 0.0' in text


@pytest.mark.bug("B72")
def test_after_a_crash_and_a_reboot_a_claim_has_its_partition_again(scene: Scene) -> None:
    running(scene, 62)
    device = Counted.of_slices(scene.slices()).first(profile="2g.48gb")
    assert device is not None
    allocate(scene, "held", device)
    ids = scene.prepare("held")
    (spec,) = scene.specs()
    before = standing(scene)
    scene.end(signal.SIGKILL)
    spec.unlink()
    scene.node.reload_driver()
    (scene.node.root / "proc/sys/kernel/random/boot_id").write_text("11111111-2222-3333-4444-555555555555\n")
    scene.kubelet.restart()
    assert standing(scene) == []
    running(scene, 62)
    scene.until(lambda: standing(scene) == before and scene.specs() == [spec], "the partition and its specification")
    assert scene.prepare("held") == ids
    scene.unprepare("held")
    assert (standing(scene), scene.specs()) == ([], [])


@pytest.mark.bug("B72")
def test_a_partition_that_is_made_again_under_a_claim_is_told_by_its_new_uuid(scene: Scene) -> None:
    running(scene, 62)
    free = Counted.of_slices(scene.slices())
    for name in ("first", "held"):
        device = free.first(profile="1g.24gb")
        assert device is not None
        free.take(device)
        allocate(scene, name, device)
        scene.prepare(name)

    def told() -> str:
        devices = scene.client.get(f"{CLAIMS}/held")["status"].get("devices")
        return devices[0]["data"]["uuid"] if devices else ""

    before = scene.until(told, "the claim's status")
    scene.unprepare("first")  # the partition that is made again gets its id, and so another UUID
    (spec,) = scene.specs()
    scene.node.reload_driver()
    scene.until(lambda: before not in spec.read_text(), "the partition again")
    scene.until(lambda: told() in spec.read_text(), "its new UUID in the claim's status")


@pytest.mark.bug("B94")
def test_what_an_administrator_makes_takes_its_gpu_out_of_the_drivers_hands_until_it_is_gone(scene: Scene) -> None:
    running(scene, 62)
    address = scene.node.profile.gpus[0].address
    scene.node.nvidia_smi("-i", address, "-mig", "1")
    scene.node.nvidia_smi("mig", "-i", address, "-cgi", "14:9", "-C")
    scene.until(lambda: len(scene.devices()) == 31 + 1, "the partition in place of all that could be made")
    theirs = scene.devices()[0]
    assert theirs["name"].endswith("-mig-1g-24gb-14-9")
    before = standing(scene)
    allocate(scene, "c", theirs["name"])
    scene.prepare("c")
    scene.unprepare("c")
    assert standing(scene) == before
    scene.node.nvidia_smi("mig", "-i", address, "-dci")
    scene.node.nvidia_smi("mig", "-i", address, "-dgi")
    scene.until(lambda: len(scene.devices()) == 62, "the whole choice again")


def test_partitions_stay_published_while_nvml_does_not_list_them_also_after_a_restart(scene: Scene) -> None:
    flags: dict[str, object] = {"mig": "static", "health_seconds": 0.2, "health_recovery_seconds": 0.5}
    running(scene, 2, **flags)
    first, second = (gpu.address for gpu in scene.node.profile.gpus)
    scene.node.nvidia_smi("-i", first, "-mig", "1")
    scene.node.nvidia_smi("mig", "-i", first, "-cgi", "14:9", "-C")

    def parts() -> list[tuple[str, Any]]:
        found = [(one["name"], one["attributes"]) for one in scene.devices()]
        return [(name, attributes) for name, attributes in found if attributes["type"] == {"string": "mig"}]

    def is_tainted() -> bool:
        return any(one.get("taints") for one in scene.devices())

    ((name, attributes),) = scene.until(parts, "a partition")
    allocate(scene, "held", name)
    scene.prepare("held")
    scene.node.set_failures([Failure("nvmlDeviceGetGpuInstances", NvmlReturn.UNKNOWN)])
    scene.until(lambda: len(scene.logged("does not list its MIG instances")) == 1, "the agent's word")
    scene.node.set_gpu_state(second, "lost")  # so that the pool is published anew
    scene.until(is_tainted, "a taint on the other GPU")
    assert parts() == [(name, attributes)]
    scene.end()
    scene.start(**flags)
    scene.until(lambda: len(scene.logged("does not list its MIG instances")) == 2, "the next agent's word")
    scene.node.set_gpu_state(second, "ok")
    scene.until(lambda: not is_tainted(), "the other GPU without a taint")
    assert parts() == [(name, attributes)]
    events = scene.client.get("/api/v1/namespaces/default/events")["items"]
    assert not [event for event in events if event["reason"] == "DeviceLost"]


@pytest.mark.bug("B94")
def test_a_partition_that_is_destroyed_under_its_claim_is_told_at_the_claim_once(scene: Scene) -> None:
    running(scene, 2, mig="static")
    address = scene.node.profile.gpus[0].address
    scene.node.nvidia_smi("-i", address, "-mig", "1")
    scene.node.nvidia_smi("mig", "-i", address, "-cgi", "14:9", "-C")
    (part,) = scene.until(
        lambda: [one["name"] for one in scene.devices() if one["attributes"]["type"] == {"string": "mig"}],
        "a partition",
    )
    allocate(scene, "held", part)
    scene.prepare("held")
    scene.node.nvidia_smi("mig", "-i", address, "-dci")
    scene.node.nvidia_smi("mig", "-i", address, "-dgi")

    def events() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = scene.client.get("/api/v1/namespaces/default/events")["items"]
        return [event for event in found if event["reason"] == "DeviceLost"]

    (event,) = scene.until(events, "an Event")
    scene.until(lambda: len(scene.devices()) == 1, "the GPU to be withheld")
    about = event["involvedObject"]
    assert (about["kind"], about["name"], event["type"]) == ("ResourceClaim", "held", "Warning")
    assert "destroyed while the claim held it" in event["message"]
    # Another change is seen by a reading behind it: the same problem is not told again.
    scene.node.nvidia_smi("-i", address, "-mig", "0")
    scene.until(lambda: len(scene.devices()) == 2, "the whole GPU")
    assert [(event.get("count") or 1) for event in events()] == [1]
    scene.unprepare("held")


def test_static_partitions_are_seen_as_they_come_and_go(scene: Scene) -> None:
    running(scene, 2, mig="static")
    address = scene.node.profile.gpus[0].address
    scene.node.nvidia_smi("-i", address, "-mig", "1")
    scene.until(lambda: len(scene.devices()) == 1, "the GPU to be withheld")
    scene.node.nvidia_smi("mig", "-i", address, "-cgi", "14:9,5:0", "-C")
    scene.until(lambda: len(scene.devices()) == 3, "two partitions beside the other GPU")
    parts = [device for device in scene.devices() if device["attributes"]["type"] == {"string": "mig"}]
    assert all("consumesCounters" not in device for device in scene.devices())
    allocate(scene, "both", *(device["name"] for device in parts))
    assert len(scene.prepare("both")) == 2
    (spec,) = scene.specs()
    written = json.loads(spec.read_text())
    told = {entry["containerEdits"]["env"][0].partition("=")[2] for entry in given(written)}
    assert told == {device["attributes"]["uuid"]["string"] for device in parts}
    scene.unprepare("both")
    scene.node.nvidia_smi("mig", "-i", address, "-dci")
    scene.node.nvidia_smi("mig", "-i", address, "-dgi")
    scene.node.nvidia_smi("-i", address, "-mig", "0")
    scene.until(lambda: len(scene.devices()) == 2, "whole GPUs again")


def test_mps_runs_in_a_partition_that_is_made_for_the_claim_and_ends_with_it(scene: Scene) -> None:
    running(scene, 62, mps_dir=scene.folder / "mps")
    device = Counted.of_slices(scene.slices()).first(profile="2g.48gb")
    assert device is not None
    config = {
        "apiVersion": "resource.nvidia.com/v1beta1",
        "kind": "MigDeviceConfig",
        "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
    }
    allocate(scene, "shared", device, config=config)
    scene.prepare("shared")
    (spec,) = scene.specs()
    written = spec.read_text()
    assert "CUDA_MPS_PIPE_DIRECTORY" in written
    assert "/dev/nvidia-caps/" in written
    (folder,) = (scene.folder / "mps").glob("*/*")
    assert str(folder) in written
    scene.unprepare("shared")
    assert (standing(scene), scene.specs(), list((scene.folder / "mps").glob("*/*"))) == ([], [], [])


def test_a_sick_gpu_taints_every_partition_of_it_and_no_other(scene: Scene) -> None:
    running(scene, 62)
    scene.until(lambda: scene.logged("events are watched"), "the watching of events")
    sick = scene.node.profile.gpus[0].address
    scene.node.xid(sick, 79)

    def tainted() -> set[str]:
        return {device["name"] for device in scene.devices() if device.get("taints")}

    name = f"gpu-{sick.replace(':', '-').replace('.', '-')}"
    scene.until(lambda: len(tainted()) == 31, "the taints of one GPU and all its parts")
    assert all(device == name or device.startswith(f"{name}-mig-") for device in tainted())


@pytest.mark.bug("B35")
@pytest.mark.bug("B32")
def test_on_a_server_without_counters_no_partition_is_published_and_nothing_is_dropped(scene: Scene) -> None:
    scene.server.registry.gates = DEFAULT_GATES - {"DRAPartitionableDevices"}
    running(scene, 2)
    assert scene.logged("does not keep counters")
    assert not scene.logged("the API server dropped")
    assert [device["attributes"]["type"] for device in scene.devices()] == [{"string": "gpu"}] * 2
    allocate(scene, "whole", scene.devices()[0]["name"])
    scene.prepare("whole")
    scene.unprepare("whole")
