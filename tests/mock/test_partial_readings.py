"""An agent on a node of which NVML does not tell everything: nothing is offered, or put down, by a guess."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from driver.cli.main import build_parser
from driver.cli.node import read_node
from driver.journal import Record, read, replay
from native.mock import profiles
from native.mock.profile import Failure
from native.nvml.errors import NvmlReturn
from tests.support.agents import DRIVER, Scene, open_scene

QUICK: dict[str, object] = {"health_seconds": 0.2, "health_recovery_seconds": 0.5}


@pytest.fixture
def divided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Two GPUs; the first is in MIG mode with a partition that somebody else uses."""
    with open_scene(tmp_path_factory.mktemp("p"), "rtx-pro-6000") as scene:
        first = scene.node.profile.gpus[0].address
        scene.node.nvidia_smi("-i", first, "-mig", "1")
        scene.node.nvidia_smi("mig", "-i", first, "-cgi", "14:9", "-C")
        yield scene


def of_first(scene: Scene) -> list[tuple[str, Any]]:
    """(name, taints) of what is published of the first GPU."""
    name = "gpu-" + scene.node.profile.gpus[0].address.replace(":", "-").replace(".", "-")
    return [(one["name"], one.get("taints")) for one in scene.devices() if one["name"].startswith(name)]


def told(scene: Scene, *kinds: str) -> list[tuple[str, str | None]]:
    folder = scene.plugins / DRIVER / "gpudra" / "journal"
    entries = read(folder) if folder.exists() else ()
    return [(one.kind, one.device) for one in entries if isinstance(one, Record) and one.kind in kinds]


@pytest.mark.bug("B24")
@pytest.mark.parametrize("mig", ["static", "dynamic"])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMigMode", "nvmlDeviceGetGpuInstances"])
def test_a_gpu_whose_partitions_are_not_told_at_the_start_is_offered_once_they_are(
    divided: Scene, call: str, mig: str
) -> None:
    first = divided.node.profile.gpus[0].address
    divided.node.set_failures([Failure(call, NvmlReturn.UNKNOWN, first)])
    divided.start(mig=mig, **QUICK)
    divided.registered()
    divided.until(divided.devices, "what is published of the other GPU")
    assert of_first(divided) == []
    (word, *_) = divided.until(lambda: divided.logged("has not told"), "the agent's word")
    assert first in str(word)
    divided.node.set_failures([])
    ((name, taints),) = divided.until(lambda: of_first(divided), "its partition")
    assert "-mig-1g" in name or "-mig-2g" in name
    assert taints is None


def test_partitions_that_nvml_does_not_list_for_a_while_are_not_gone_in_the_journal(divided: Scene) -> None:
    first, second = (gpu.address for gpu in divided.node.profile.gpus)
    divided.start(mig="static", **QUICK)
    divided.registered()
    divided.until(lambda: len(told(divided, "mig.create")) == 1, "the partition")
    for call in ("nvmlDeviceGetGpuInstances", "nvmlDeviceGetMigMode"):
        divided.node.set_failures([Failure(call, NvmlReturn.UNKNOWN, first)])
        lost_and_found(divided, second)  # so that readings are known to have ended meanwhile
        divided.node.set_failures([])
        lost_and_found(divided, second)
    lost_and_found(divided, first)
    assert [kind for kind, _ in told(divided, "mig.create", "mig.destroy")] == ["mig.create"]
    divided.node.nvidia_smi("mig", "-i", first, "-dci")
    divided.node.nvidia_smi("mig", "-i", first, "-dgi")
    divided.until(lambda: ("mig.destroy", f"gpu-{label(first)}") in told(divided, "mig.destroy"), "its real end")


def test_what_stands_against_one_partition_stands_on_while_the_driver_is_away(divided: Scene) -> None:
    first = divided.node.profile.gpus[0].address
    (instance,) = divided.node.instances(first)

    def keys() -> list[str]:
        ((_, taints),) = of_first(divided)
        return sorted(one["key"].partition("/")[2] for one in taints or ())

    divided.start(mig="static", health_seconds=0.2, health_recovery_seconds=600)
    divided.registered()
    divided.until(lambda: divided.logged("events are watched"), "the watching of events")
    ((name, _),) = divided.until(lambda: of_first(divided), "the partition")
    divided.give("held", name)
    divided.prepare("held")
    divided.node.xid(first, 119, gi=instance.id)
    divided.until(lambda: keys() == ["xid"], "its taint, once")
    divided.node.set_driver_loaded(False)
    divided.until(lambda: "driver-unavailable" in keys(), "the driver's taint")
    assert keys() == ["driver-unavailable", "xid"]
    divided.until(lambda: len(told_of(divided, "device.taint")) > 1, "the journal's word")
    of_xid = [one for one in told_of(divided, "device.taint") if one.data["key"] == "gpu.nvidia.com/xid"]
    assert [(one.device, one.data["after"]) for one in of_xid] == [(name, "119:NoSchedule")], "never taken away"


def told_of(scene: Scene, kind: str) -> list[Record]:
    entries = read(scene.plugins / DRIVER / "gpudra" / "journal")
    return [one for one in entries if isinstance(one, Record) and one.kind == kind]


def lost_and_found(scene: Scene, address: str) -> None:
    for state, word in (("lost", "lost"), ("ok", "ready")):
        scene.node.set_gpu_state(address, state)
        scene.until(lambda word=word: said_of(scene, address) == word, f"{address} as {word}")


def said_of(scene: Scene, address: str) -> str:
    entries = read(scene.plugins / DRIVER / "gpudra" / "journal")
    devices = replay(entry for entry in entries if isinstance(entry, Record)).devices
    return str(devices[f"gpu-{label(address)}"]["state"])


def label(address: str) -> str:
    return address.replace(":", "-").replace(".", "-")


@pytest.mark.parametrize("profile", profiles.names())
def test_a_healthy_node_of_any_kind_tells_everything(profile: str) -> None:
    inventory = read_node(build_parser(["lint"]).parse_args(["lint", "--mock-profile", profile]))
    assert {gpu.address: gpu.unread for gpu in inventory.gpus if gpu.unread} == {}
    assert inventory.gpus_known
