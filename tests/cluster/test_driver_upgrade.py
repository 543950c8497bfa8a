"""Another version of NVIDIA's driver comes under running pods, and the agent goes on."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api
from hack.cluster.layout import DRIVER_NAME, Layout
from hack.cluster.scene import Container, Namespace, listed, mig_listed, uuids
from native.mock import MockNode

Start = Callable[..., MockNode]
OURS = f"spec.driver={DRIVER_NAME}"
NEW, NEW_SEMVER = "580.142.09", "580.142.9"
SCRIPT = """
nvidia-smi -L
nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1
cd /usr/lib/*-linux-gnu && echo libnvidia-ml.so.5*
echo told
if [ ! -e /signal/$HOSTNAME ]; then
  while [ ! -e /signal/$HOSTNAME ]; do sleep 0.2; done
  exit 0
fi
exec sleep 2147483647
"""
"""Says which GPU, driver and library the container has; ends once, when a file of the pod's name is there."""


def run(namespace: Namespace, name: str, signals: Path, **claim: Any) -> None:
    """A pod with a claim of its own, that is started again when it ends."""
    namespace.claim(name, **claim)
    volume = ({"hostPath": {"path": str(signals)}}, {"mountPath": "/signal"})
    container = Container("main", SCRIPT)
    namespace.pod(name, claim=name, containers=[container], volumes=[volume], restart="Always")


def said(namespace: Namespace, name: str) -> list[str]:
    """What a pod's present container said of its driver."""
    return namespace.log_lines(name, until="told")[:-1]


def restart(namespace: Namespace, signals: Path, *names: str) -> None:
    """Let pods' containers end, and wait until the kubelet has made others in the same sandboxes."""

    def again(pod: JSON | None) -> bool:
        (status,) = pod["status"]["containerStatuses"] if pod else ({},)
        return bool(status.get("restartCount")) and "running" in status["state"]

    for name in names:
        (signals / name).touch()
    for name in names:
        namespace.wait_pod(name, again, "in another container")


def untouched(namespace: Namespace, name: str) -> bool:
    (status,) = namespace.running(name)["status"]["containerStatuses"]
    return bool(status["restartCount"] == 0)


def library(agent: Agent, namespace: Namespace, name: str) -> set[str]:
    """The versions of the driver whose NVML a claim's CDI file mounts, by the names of the files on the host."""
    uid = namespace.api.get("resourceclaims", namespace.name, name)["metadata"]["uid"]
    text = (agent.layout.cdi / f"{DRIVER_NAME}-claim_{uid}.json").read_text()
    return set(re.findall(r'"hostPath": *"[^"]*/libnvidia-ml\.so\.([0-9.]{3,})"', text))


def all_of_version(slices: dict[str, JSON]) -> bool:
    """Every device is published with the new version, and without a taint."""
    devices = [device for item in slices.values() for device in item["spec"].get("devices", [])]
    versions = {device["attributes"]["driverVersion"]["version"] for device in devices}
    return versions == {NEW_SEMVER} and not any(device.get("taints") for device in devices)


@pytest.mark.bug("B58")
@pytest.mark.bug("B05")
def test_pods_go_on_under_a_driver_upgrade_and_new_claims_get_the_new_driver_from_the_same_agent(
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace, noise: list[str], tmp_path: Path
) -> None:
    noise.append("was the driver upgraded")  # a claim comes before somebody has run nvidia-ctk for the new driver
    quick = ("--driver-retry-seconds=0.5", "--health-seconds=1", "--prepare-wait-seconds=1")
    node = other_node("h200", "--mig=dynamic", *quick, devices=8 * 26)
    agent = Agent(cluster, "h200")
    before, process = node.profile.driver_version, agent.process
    run(namespace, "whole", tmp_path)
    cel = f'device.attributes["{DRIVER_NAME}"].profile == "1g.18gb"'
    run(namespace, "part", tmp_path, device_class="mig.nvidia.com", cel=[cel])
    for name in ("whole", "part"):
        namespace.running(name)
        assert said(namespace, name)[-2:] == [before, f"libnvidia-ml.so.{before}"]

    node.upgrade_driver(NEW, specification=False)
    api.wait_all("resourceslices", None, all_of_version, f"all devices of driver {NEW_SEMVER}", 60, OURS)
    run(namespace, "new", tmp_path)
    namespace.wait_event("new", "was the driver upgraded?")
    node.write_specification()
    namespace.touch_pod("new")
    namespace.running("new")
    assert listed(said(namespace, "new")) == uuids(api, namespace.allocated("new"))
    assert said(namespace, "new")[-2:] == [NEW, f"libnvidia-ml.so.{NEW}"]
    assert untouched(namespace, "whole")
    assert untouched(namespace, "part")

    agent.wait(
        lambda: [library(agent, namespace, name) for name in ("whole", "part")] == [{NEW}, {NEW}],
        "the new library in the CDI files of the claims of before",
    )
    restart(namespace, tmp_path, "whole", "part")
    for name in ("whole", "part"):
        assert said(namespace, name)[-2:] == [NEW, f"libnvidia-ml.so.{NEW}"]
    assert listed(said(namespace, "whole")) == uuids(api, namespace.allocated("whole"))
    assert mig_listed(said(namespace, "part")) == list(namespace.told("part").values())
    for name in ("whole", "part", "new"):
        namespace.delete_pod(name)
    assert list(agent.layout.cdi.iterdir()) == []
    assert [one for gpu in node.profile.gpus for one in node.instances(gpu.address)] == []
    assert agent.process == process, "one agent all the time"
