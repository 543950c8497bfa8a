"""The agent behind a reboot of its machine and under an upgrade of its driver, between stand-ins."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from kubeletplugin.testing.kubelet import KubeletError
from tests.support.agents import Scene

QUICK = {"health_seconds": 0.2, "reconcile_seconds": 0.3}
NEW = "580.142.09"


def running(scene: Scene, **flags: object) -> None:
    scene.start(**{**QUICK, **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 8, "eight devices")


def reboot(scene: Scene) -> None:
    scene.end(signal.SIGKILL)
    for path in scene.specs():
        path.unlink()
    scene.node.reboot()
    scene.kubelet.restart()


def libraries(path: Path) -> set[str]:
    """The versions in the names of the NVML libraries that a CDI file mounts."""
    return set(re.findall(r'"hostPath": *"[^"]*/libnvidia-ml\.so\.([0-9.]{3,})"', path.read_text()))


def versions(scene: Scene) -> set[str]:
    return {device["attributes"]["driverVersion"]["version"] for device in scene.devices()}


@pytest.mark.bug("B72")
def test_after_a_reboot_a_claim_has_its_gpu_before_the_kubelet_asks_again(scene: Scene) -> None:
    running(scene)
    scene.claim("held")
    ids = scene.prepare("held")
    (before,) = scene.specs()
    text = before.read_text()
    reboot(scene)
    running(scene)
    scene.until(lambda: scene.specs() == [before] and before.read_text() == text, "its CDI file again")
    assert scene.prepare("held") == ids
    scene.unprepare("held")
    assert scene.specs() == []


@pytest.mark.bug("B105")
def test_a_reboot_ends_the_taints_of_the_boot_before(scene: Scene) -> None:
    running(scene, health_recovery_seconds=600)
    scene.until(lambda: scene.logged("events are watched"), "the watching of events")
    scene.node.xid(scene.node.profile.gpus[2].address, 119)
    scene.until(lambda: any(device.get("taints") for device in scene.devices()), "the taint")
    reboot(scene)
    running(scene, health_recovery_seconds=600)
    scene.until(lambda: not any(device.get("taints") for device in scene.devices()), "slices without it")


@pytest.mark.bug("B09")
def test_behind_a_reboot_without_one_of_the_gpus_no_claim_gets_anothers(scene: Scene) -> None:
    running(scene)
    scene.claim("held", 8)
    scene.prepare("held")
    reboot(scene)
    scene.node.unplug(scene.node.profile.gpus[0].address)
    scene.start(**QUICK)
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 7, "seven devices")
    with pytest.raises(KubeletError, match="this node has no device gpu-0000-1b-00-0"):
        scene.prepare("held")
    assert scene.specs() == []
    scene.node.plug(scene.node.profile.gpus[0].address)
    scene.until(lambda: len(scene.devices()) == 8, "eight devices")
    assert len(scene.prepare("held")) == 8


@pytest.mark.bug("B58")
def test_under_an_upgrade_slices_and_specifications_follow_the_driver_and_the_agent_stays(scene: Scene) -> None:
    running(scene)
    scene.claim("old")
    ids = scene.prepare("old")
    (spec,) = scene.specs()
    assert libraries(spec) == {"580.105.08"}
    agent = scene.process
    scene.node.upgrade_driver(NEW)
    scene.until(lambda: versions(scene) == {"580.142.9"}, "the new version in the slices")
    scene.until(lambda: libraries(spec) == {NEW}, "the new library for a container that starts again")
    scene.claim("new")
    scene.prepare("new")
    assert [libraries(path) for path in scene.specs()] == [{NEW}, {NEW}]
    assert scene.kubelet.container_devices("default", "old") == ids
    for name in ("old", "new"):
        scene.unprepare(name)
    assert scene.specs() == []
    assert scene.process is agent
    assert scene.alive()


@pytest.mark.bug("B58")
def test_until_the_specification_is_made_anew_new_claims_are_refused_and_old_ones_keep_theirs(scene: Scene) -> None:
    running(scene)
    scene.claim("old")
    scene.prepare("old")
    (spec,) = scene.specs()
    before = spec.read_text()
    scene.node.upgrade_driver(NEW, specification=False)
    scene.until(lambda: versions(scene) == {"580.142.9"}, "the new version in the slices")
    scene.claim("new")
    with pytest.raises(KubeletError, match=r"was the driver upgraded\?"):
        scene.prepare("new")
    assert spec.read_text() == before
    assert scene.specs() == [spec]
    scene.node.write_specification()
    scene.until(lambda: libraries(spec) == {NEW}, "the new library")
    assert len(scene.prepare("new")) == 1
