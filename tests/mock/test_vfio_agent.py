"""GPUs that go to virtual machines and come back, by the agent as a process, while other claims come and go."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import CLAIMS, DRIVER, POOL, Scene, open_scene

ROUNDS = 12


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with open_scene(tmp_path, "dgx-h100") as made:
        made.program = ("-m", "tests.support.kernelagent")
        made.start(mig="dynamic", passthrough_devices="index=6,index=7", mps_dir=tmp_path / "mps")
        made.registered()
        made.until(made.devices, "devices")
        yield made


def given(scene: Scene, name: str, device: str) -> None:
    """A claim that has been given this device, for the pod of its name."""
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}}
    claim: dict[str, Any] = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "spec": spec}
    made = scene.client.create(CLAIMS, claim | {"metadata": {"name": name, "namespace": "default"}})
    result = {"request": "gpus", "driver": DRIVER, "pool": POOL, "device": device}
    made["status"] = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
    }
    scene.client.update(f"{CLAIMS}/{name}/status", made)


def bound(scene: Scene) -> str | None:
    """The driver of the first GPU that is for virtual machines."""
    return scene.node.kernel.driver(scene.node.profile.gpus[6].address)


def named(scene: Scene, part: str) -> str:
    """The first device whose name holds this."""
    return next(str(device["name"]) for device in scene.devices() if part in device["name"])


def test_a_gpu_goes_to_a_machine_and_is_offered_to_others_again_when_it_is_back(scene: Scene) -> None:
    vfio = named(scene, "-vfio")
    gpu = vfio.removesuffix("-vfio")
    everything = {device["name"] for device in scene.devices()}
    given(scene, "vm", vfio)
    (cdi,) = scene.prepare("vm")
    assert cdi.endswith(vfio)
    assert bound(scene) == "vfio-pci"
    scene.until(lambda: {d["name"] for d in scene.devices() if d["name"].startswith(gpu)} == {vfio}, "it alone")
    scene.unprepare("vm")
    assert bound(scene) == "nvidia"
    scene.until(lambda: {device["name"] for device in scene.devices()} == everything, "all of them")
    assert scene.specs() == []


@pytest.mark.bug("B65")
def test_a_gpu_that_is_handed_over_is_not_taken_for_lost_by_a_look_that_comes_before_the_next_reading(
    tmp_path: Path,
) -> None:
    with open_scene(tmp_path, "h100-nvl") as scene:
        scene.node.nvidia_smi("-mig", "0")  # its capture was taken with the mode on
        scene.program = ("-m", "tests.support.kernelagent")
        scene.start(passthrough_devices="*", health_seconds=0.01)
        scene.registered()
        scene.until(lambda: scene.logged("events are watched"), "events")
        vfio = named(scene, "-vfio")
        gpu = vfio.removesuffix("-vfio")
        for number in range(4):
            given(scene, f"vm-{number}", vfio)
            scene.prepare(f"vm-{number}")
            scene.until(lambda: gpu not in [one["name"] for one in scene.devices()], "the machine's GPU")
            scene.unprepare(f"vm-{number}")
            scene.until(lambda: gpu in [one["name"] for one in scene.devices()], "everybody's GPU")
        scene.until(lambda: len(scene.devices()) == 4, "all devices")
        assert [entry["message"] for entry in scene.logged("GPU_IS_LOST")] == []
        assert not any("taints" in one for one in scene.devices())


def test_claims_of_other_gpus_wait_for_nvml_while_gpus_are_handed_over_and_none_fails(scene: Scene) -> None:
    """NVML holds every GPU open, so the agent lets go of it for the hand-over: those who need it then are not told."""
    names = [device["name"] for device in scene.devices()]
    whole = [name for name in names if f"{name}-mig-" in " ".join(names)]
    parts = [next(name for name in names if name.startswith(f"{gpu}-mig-1g-10gb-19")) for gpu in whole[:2]]
    ended = threading.Event()

    def come_and_go(device: str, kind: str) -> int:
        for count in itertools.count():
            if ended.is_set() or ("-vfio" in device and count == ROUNDS):
                return count
            name = f"{kind}-{count}"
            given(scene, name, device)
            scene.prepare(name)
            scene.unprepare(name)
        raise AssertionError

    with ThreadPoolExecutor(6) as pool:
        others = [
            pool.submit(come_and_go, device, f"other{number}") for number, device in enumerate(parts + whole[2:4])
        ]
        machines = [name for name in names if name.endswith("-vfio")]
        handed = [pool.submit(come_and_go, device, f"vm{number}") for number, device in enumerate(machines)]
        try:
            assert [each.result(100) for each in handed] == [ROUNDS, ROUNDS]
        finally:
            ended.set()
        assert all(other.result(60) for other in others)
    assert scene.specs() == []
    assert {scene.node.kernel.driver(gpu.address) for gpu in scene.node.profile.gpus} == {"nvidia"}
