"""The agent as a process on a mock node, between an embedded API server and a kubelet stand-in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubeletplugin.client import KubeClient
from kubeletplugin.testing.allocator import AllocationError, Allocator
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.kubelet import Kubelet
from native.mock import MockNode

NODE = "node-a"
DRIVER = "gpu.nvidia.com"
POOL = f"{NODE}/{DRIVER}"
RESOURCES = "/apis/resource.k8s.io/v1"
CLAIMS = f"{RESOURCES}/namespaces/default/resourceclaims"
PATIENCE = 30.0


def until(
    condition: Callable[[], Any],
    what: str,
    alive: Callable[[], bool] = lambda: True,
    *,
    every: float = 0.02,
    patience: float = PATIENCE,
) -> Any:
    """Wait until the condition gives something true, asking ``every`` so many seconds, and give that."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not (value := condition()):
        assert alive(), f"the agent ended while waiting for: {what}"
        assert time.monotonic() < deadline, f"not in {patience} s: {what}"
        pause.wait(every)
    return value


class Scene:
    """One node with everything around the agent, and the agent itself, which may be ended and started again."""

    def __init__(self, folder: Path, server: EmbeddedApiServer, node: MockNode) -> None:
        self.folder = folder
        self.server = server
        self.node = node
        self.url = server.url  # known also while it is stopped
        self.client: KubeClient = server.client()
        self.registry = folder / "plugins_registry"
        self.plugins = folder / "plugins"
        self.cdi = folder / "cdi"
        self.registry.mkdir()
        self.kubelet = Kubelet(self.registry, node_name=NODE, client=self.client, root_dir=folder)
        self.allocator = Allocator(self.client)
        self.log = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.registrations = 0
        self.environment: dict[str, str] = {}
        """What the agent has in its environment beside the test's own."""
        self.program: tuple[str, ...] = ("-m", "driver.cli.main")
        """What Python runs as ``gpudra``."""
        self.client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        self.client.create(
            f"{RESOURCES}/deviceclasses",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceClass",
                "metadata": {"name": DRIVER},
                "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
            },
        )

    def start(self, **flags: object) -> None:
        """Start the agent."""
        self.registrations = len(self.logged("the kubelet has registered the plugin"))
        settings: dict[str, object] = {
            "node_name": NODE,
            "api_server": self.url,
            "plugins_dir": self.plugins,
            "registry_dir": self.registry,
            "cdi_dir": self.cdi,
            "mock_root": self.node.root,
            "metrics_port": -1,
            "health_port": -1,
            "driver_retry_seconds": 0.1,
            "rescan_seconds": 0.2,
            **flags,
        }
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *self.program, "agent", *arguments],
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "GPUDRA_MOCK_QUIET": "1",
                    **self.environment,
                },
            )

    def alive(self) -> bool:
        """Whether the agent runs."""
        return self.process is not None and self.process.poll() is None

    def until(self, condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
        """Wait while the agent lives; what is not in time is shown with the agent's stacks."""
        try:
            return until(condition, what, self.alive, patience=patience)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._last_words()}") from None

    def _last_words(self) -> str:
        if self.alive():
            assert self.process is not None
            self.process.send_signal(signal.SIGUSR2)
            until(lambda: "most recent call first" in self.log.read_text(), "the agent's stacks", self.alive)
        return self.log.read_text()[-8000:] if self.log.exists() else ""

    def registered(self) -> None:
        """Wait until the kubelet has taken the agent that was started last."""
        self.until(
            lambda: len(self.logged("the kubelet has registered the plugin")) > self.registrations, "a registration"
        )

    def end(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End the agent and give its exit code."""
        assert self.process is not None
        self.process.send_signal(sign)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """End everything that still runs."""
        if self.alive():
            self.end(signal.SIGKILL)
        self.kubelet.stop()
        self.node.set_driver_loaded(True)

    # what can be seen

    def slices(self) -> list[dict[str, Any]]:
        """The slices in the API server."""
        items: list[dict[str, Any]] = self.client.get(f"{RESOURCES}/resourceslices")["items"]
        return items

    def devices(self) -> list[dict[str, Any]]:
        """The devices of a complete pool, else none."""
        slices = self.slices()
        if not slices or len(slices) != slices[0]["spec"]["pool"]["resourceSliceCount"]:
            return []
        return [device for item in slices for device in item["spec"].get("devices", [])]

    def logged(self, text: str) -> list[dict[str, Any]]:
        """The log's entries whose message holds the text."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if text in entry["message"]]

    def specs(self) -> list[Path]:
        """The CDI specifications in the folder."""
        return sorted(self.cdi.glob("*")) if self.cdi.exists() else []

    # what a user and the scheduler do

    def claim(self, name: str, count: int = 1, match: str = "", config: object = None, pod: str = "") -> dict[str, Any]:
        """Create a claim and let the stand-in allocate it for a pod (of the same name, if none is given)."""
        devices: dict[str, Any] = {
            "requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER, "count": count}}]
        }
        if match:
            devices["constraints"] = [{"matchAttribute": match}]
        if config is not None:
            devices["config"] = [{"opaque": {"driver": DRIVER, "parameters": config}}]
        self.client.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": devices},
            },
        )

        def allocated() -> dict[str, Any] | None:
            # Slices come and go around a restart: a scheduler would try again, too.
            try:
                return self.allocator.allocate(
                    "default", name, node_name=NODE, pod_name=pod or name, pod_uid=f"pod-{pod or name}"
                )
            except AllocationError:
                return None

        made: dict[str, Any] = self.until(allocated, f"an allocation for {name}")
        return made

    def give(self, name: str, device: str, parameters: object = None, **result: object) -> None:
        """Create a claim that is allocated one device of this node, by name, for a pod of the claim's own name.

        Args:
            name: of the claim.
            device: as published.
            parameters: of an opaque configuration for this driver; None: there is none.
            result: further fields of the allocation result.
        """
        made = self.client.create(
            CLAIMS,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
            },
        )
        allocation: dict[str, Any] = {
            "results": [{"request": "gpus", "driver": DRIVER, "pool": POOL, "device": device, **result}]
        }
        if parameters is not None:
            allocation["config"] = [{"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": parameters}}]
        made["status"] = {
            "allocation": {"devices": allocation},
            "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
        }
        self.client.update(f"{CLAIMS}/{name}/status", made)

    def prepare(self, *names: str) -> list[str]:
        """Prepare the claims for the pod of the first one's name; gives the CDI devices of all."""
        self.kubelet.prepare_pod(f"pod-{names[0]}", "default", list(names))
        return [cdi for name in names for cdi in self.kubelet.container_devices("default", name)]

    def unprepare(self, name: str) -> None:
        """End the pod of that name."""
        self.kubelet.unprepare_pod(f"pod-{name}")


@contextmanager
def open_scene(folder: Path, profile: str) -> Iterator[Scene]:
    """A scene on a mock node of that profile, whose kubelet runs; everything of it has ended behind it."""
    with EmbeddedApiServer() as server:
        made = Scene(folder, server, MockNode.create(folder / "node", profile))
        try:
            made.kubelet.start()
            yield made
        finally:
            made.close()
