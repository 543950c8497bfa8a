"""GPU nodes without a kubelet: a mock node, the real agent on it, and the stand-in that asks it to prepare claims."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hack.cluster import access
from hack.cluster.api import Api
from hack.cluster.layout import DRIVER_NAME
from kubeletplugin.client import KubeClient
from kubeletplugin.testing.kubelet import Kubelet
from native.mock import MockNode
from tests.scheduler.isolation import NODE_LABEL, Document
from tests.scheduler.plane import Plane
from tests.support.agents import until

PASSTHROUGH_LABEL = "gpudra.test/passthrough"


@dataclass(frozen=True, slots=True)
class Model:
    """What a node is and how its agent is set up."""

    name: str
    profile: str
    flags: Mapping[str, str] = field(default_factory=dict)
    smi: Sequence[Sequence[str]] = ()
    """What an administrator has done to its GPUs, as arguments of nvidia-smi."""

    @property
    def passes_through(self) -> bool:
        return "passthrough_devices" in self.flags


class Machine:
    """One node. ``start`` makes its Node, starts the agent and waits until the kubelet's stand-in knows it."""

    def __init__(self, plane: Plane, model: Model, folder: Path) -> None:
        self.plane = plane
        self.model = model
        self.folder = folder
        self.log = folder / "agent.log"
        self.cdi = folder / "cdi"
        self.node = MockNode.create(folder / "node", model.profile)
        for arguments in model.smi:
            self.node.nvidia_smi(*arguments)
        registry = folder / "r"
        registry.mkdir()
        self._client = KubeClient.from_kubeconfig(plane.layout.kubeconfig())
        self.kubelet = Kubelet(registry, node_name=model.name, client=self._client, root_dir=folder)
        self._agent: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start everything; returns when the node's devices are published."""
        plane, name = self.plane, self.model.name
        labels = {NODE_LABEL: name, PASSTHROUGH_LABEL: "yes" if self.model.passes_through else "no"}
        plane.make("nodes", {"metadata": {"name": name, "labels": labels}}, "machines")
        access.write_agent_kubeconfig(plane.layout, plane.layout.load(), node=name, name=f"agent-{name}")
        self.kubelet.start()
        with self.log.open("ab") as log:
            self._agent = subprocess.Popen(
                [sys.executable, "-m", "tests.support.kernelagent", "agent", *self._arguments()],
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "GPUDRA_MOCK_QUIET": "1"},
            )
        until(lambda: self.devices(plane.api), f"the devices of {name}", self.alive)

    def _arguments(self) -> list[str]:
        settings = {
            "mock_root": str(self.node.root),
            "node_name": self.model.name,
            "kubeconfig": str(self.plane.layout.kubeconfig(f"agent-{self.model.name}")),
            "plugins_dir": str(self.folder / "p"),
            "registry_dir": str(self.folder / "r"),
            "cdi_dir": str(self.cdi),
            "mps_dir": str(self.folder / "mps"),
            "metrics_port": "-1",
            "health_port": "-1",
            "rescan_seconds": "1",
            "health_seconds": "30",
            **self.model.flags,
        }
        return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]

    def alive(self) -> bool:
        return self._agent is not None and self._agent.poll() is None

    def devices(self, api: Api) -> list[Document]:
        """The published devices; none while the pool is incomplete."""
        slices = [each for each in api.items("resourceslices", fieldSelector=f"spec.nodeName={self.model.name}")
                  if each["spec"]["driver"] == DRIVER_NAME]  # fmt: skip
        newest = max((each["spec"]["pool"]["generation"] for each in slices), default=0)
        whole = [each for each in slices if each["spec"]["pool"]["generation"] == newest]
        if not whole or len(whole) != whole[0]["spec"]["pool"]["resourceSliceCount"]:
            return []
        return [device for each in whole for device in each["spec"].get("devices", ())]

    def complaints(self) -> str:
        """The last that the agent said which is not as usual."""
        lines = [line for line in self.log.read_text().splitlines() if '"level":"info"' not in line]
        return "\n".join([f"agent of {self.model.name}:", *lines[-8:]])

    def stop(self) -> None:
        """End the agent and the stand-in."""
        if self._agent is not None and self.alive():
            self._agent.send_signal(signal.SIGTERM)
            self._agent.wait(30)
        self.kubelet.stop()
        self._client.close()

    def left(self) -> list[str]:
        """What of claims is still on the machine, in words."""
        found = [f"file {path.name}" for path in self.cdi.glob("*")]
        for gpu in self.node.profile.gpus:
            driver = self.node.kernel.driver(gpu.address)
            if driver != "nvidia":
                found.append(f"{gpu.address} is bound to {driver}")
            elif self.model.flags.get("mig") == "dynamic":
                found += [f"{one.profile} on {gpu.address}" for one in self.node.instances(gpu.address)]
        return found
