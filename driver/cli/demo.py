"""``gpudra demo``: one claim's whole life on a mock node, against an embedded API server and a kubelet stand-in."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kubeletplugin.client import KubeClient
    from native.mock import MockNode

_DESCRIPTION = """\
Walk one claim through its whole life on a machine that is not here: a mock node is built, an API server and a kubelet
stand-in are started, the agent registers and publishes, a claim for four GPUs of one NUMA node is allocated, prepared,
looked at from inside a container, and unprepared. Needs no GPU, no cluster, no root; a C compiler compiles the mock.
"""

NODE = "node-a"
DRIVER = "gpu.nvidia.com"
NAMESPACE = "default"
POD = {"name": "trainer", "uid": "6c1d7a52-0b6e-4a53-9a0c-3f1f8a9d4e10"}
RESOURCE_API = "/apis/resource.k8s.io/v1"
PATIENCE = 30.0

DEVICE_CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": DRIVER},
    "spec": {
        "selectors": [
            {"cel": {"expression": f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"}}
        ]
    },
}

CLAIM = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "ResourceClaim",
    "metadata": {"name": "four-of-one-numa-node", "namespace": NAMESPACE},
    "spec": {
        "devices": {
            "requests": [
                {"name": "gpus", "exactly": {"deviceClassName": DRIVER, "allocationMode": "ExactCount", "count": 4}}
            ],
            "constraints": [{"requests": ["gpus"], "matchAttribute": "resource.kubernetes.io/numaNode"}],
        }
    },
}


class DemoError(Exception):
    """A step did not do what it should; the message says which and what was seen."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "demo",
        help="a claim's whole life on a mock node",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--mock-profile", metavar="NAME|FILE", default="dgx-h100", help="the machine (default: dgx-h100)"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run all steps; 0 when each did what it should."""
    screen = Screen(sys.stdout)
    # Socket paths are at most 107 bytes long: a short folder, wherever TMPDIR points.
    folder = Path(tempfile.mkdtemp(prefix="gpudra-", dir="/tmp"))
    from kubeletplugin.testing.allocator import AllocationError
    from kubeletplugin.testing.kubelet import KubeletError

    try:
        _walk(screen, folder, options.mock_profile)
    except (DemoError, AllocationError, KubeletError) as err:
        screen.text(f"\nfailed: {err}")
        log = folder / "agent.log"
        if log.exists():
            screen.text("the end of the agent's log:\n" + "\n".join(log.read_text().splitlines()[-15:]))
        return 1
    finally:
        shutil.rmtree(folder)
    return 0


class Screen:
    """Where a person looks: numbered steps with the time that each took, details indented below."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._bold = ("\x1b[1m", "\x1b[0m") if out.isatty() and "NO_COLOR" not in os.environ else ("", "")
        self._started = time.monotonic()
        self._number = 0

    def step(self, title: str) -> None:
        """Begin a step."""
        self._number += 1
        on, off = self._bold
        elapsed = time.monotonic() - self._started
        self.text(f"\n{on}{self._number}. {title}{off}  [{elapsed:.1f} s]")

    def text(self, text: str) -> None:
        """Write a line or several."""
        print(text, file=self._out, flush=True)

    def block(self, text: str) -> None:
        """Write lines indented."""
        self.text("\n".join(f"   {line}".rstrip() for line in text.splitlines()))


def _walk(screen: Screen, folder: Path, profile: str) -> None:
    from kubeletplugin.testing.allocator import Allocator
    from kubeletplugin.testing.apiserver import EmbeddedApiServer
    from kubeletplugin.testing.kubelet import Kubelet

    screen.text("gpudra demo: the driver on a machine that is not here. GPUs, API server and kubelet are stand-ins;")
    screen.text("the agent, its NVML binding, what it publishes and what it writes for containers are the real ones.")
    node = _show_node(screen, folder, profile)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedApiServer())
        client = server.client()
        client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        client.create(f"{RESOURCE_API}/deviceclasses", DEVICE_CLASS)
        registry = folder / "kubelet" / "plugins_registry"
        registry.mkdir(parents=True)
        kubelet = stack.enter_context(Kubelet(registry, node_name=NODE, client=client))
        screen.step("The agent starts, registers with the kubelet and publishes what the node has")
        agent = stack.enter_context(_agent(folder, node, server.url))
        agent.until("the kubelet has no plugin of that name", lambda: any(kubelet.plugins.registered()))
        screen.block(f"registered as {DRIVER}")
        _show_slices(screen, _wait_for_slices(client, agent))
        _live(screen, folder, node, client, Allocator(client), kubelet)
        screen.step("The agent ends; the slices stay for its successor")
        code = agent.end()
        if code != 0:
            raise DemoError(f"the agent ended with exit code {code}")
        left = len(client.get(f"{RESOURCE_API}/resourceslices")["items"])
        screen.block(f"exit code 0, {left} ResourceSlice left in the API server")
    screen.text("\nDone. Next: gpudra topology, gpudra slices -o yaml, and deploy/README.md for a real cluster.")


def _show_node(screen: Screen, folder: Path, profile: str) -> MockNode:
    from driver.cli.topology import tree
    from driver.cli.tree import plain
    from driver.node import NodePaths, NodeReader
    from native.mock import MockNode

    screen.step(f"A mock {profile} is built: NVML library, /sys, /proc, /dev, nvidia-smi")
    try:
        node = MockNode.create(folder / "node", profile)
    except (OSError, ValueError) as err:
        raise DemoError(f"--mock-profile {profile}: {err}") from err
    os.environ["GPUDRA_MOCK_QUIET"] = "1"
    node.activate()
    reader = NodeReader(NodePaths(node.root, node.root / "sys", node.root / "proc"))
    screen.block("\n".join(plain(tree(reader.read(), NODE))))
    reader.close()
    return node


def _live(screen: Screen, folder: Path, node: MockNode, client: KubeClient, allocator: Any, kubelet: Any) -> None:
    """The claim's life."""
    name = CLAIM["metadata"]["name"]  # type: ignore[index]
    screen.step("A user asks for four GPUs of one NUMA node")
    client.create(f"{RESOURCE_API}/namespaces/{NAMESPACE}/resourceclaims", CLAIM)
    screen.block(_yaml(CLAIM["spec"]))
    claim = allocator.allocate(NAMESPACE, name, node_name=NODE, pod_name=POD["name"], pod_uid=POD["uid"])
    results = claim["status"]["allocation"]["devices"]["results"]
    screen.text("   allocated (by a first-fit stand-in for kube-scheduler):")
    for result in results:
        screen.block(f"  {result['device']}  of pool {result['pool']}")

    screen.step("The kubelet asks the agent to prepare the claim")
    started = time.monotonic()
    kubelet.prepare_pod(POD["uid"], NAMESPACE, [name])
    screen.block(f"NodePrepareResources answered in {1000 * (time.monotonic() - started):.1f} ms with CDI devices")
    ids = kubelet.container_devices(NAMESPACE, name)
    for cdi in ids:
        screen.block(f"  {cdi}")
    specs = sorted((folder / "cdi").glob("*.json"))
    if len(specs) != 1:
        raise DemoError(f"expected one CDI specification, found {len(specs)} in {folder / 'cdi'}")
    spec = json.loads(specs[0].read_bytes())
    screen.text(f"   {specs[0].name}, shortened:")
    screen.block(_yaml(_shortened(spec)))

    screen.step("What the container sees")
    seen = _inside(folder, node, spec, ids)
    screen.block("$ nvidia-smi -L\n" + seen)
    slices = client.get(f"{RESOURCE_API}/resourceslices")["items"]
    expected = {_uuid(slices, result["device"]) for result in results}
    if seen.count("GPU ") != len(expected) or not all(uuid in seen for uuid in expected):
        raise DemoError(f"the container should see exactly {', '.join(sorted(expected))}")
    screen.block("exactly the allocated GPUs, and no other")

    screen.step("The pod has ended: the claim is unprepared and released")
    kubelet.unprepare_pod(POD["uid"])
    allocator.release(NAMESPACE, name, pod_uid=POD["uid"])
    left = list((folder / "cdi").iterdir())
    if left:
        raise DemoError(f"Unprepare left {left}")
    screen.block("no CDI specification left, the four GPUs are free again")


@dataclass
class _Agent:
    """The agent's process."""

    process: subprocess.Popen[bytes]

    def until(self, complaint: str, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the agent lives."""
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        while not condition():
            if self.process.poll() is not None:
                raise DemoError(f"the agent ended with exit code {self.process.returncode}")
            if time.monotonic() > deadline:
                raise DemoError(f"{complaint} after {PATIENCE:g} s")
            pause.wait(0.02)

    def end(self) -> int:
        """End it as a node would, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@contextlib.contextmanager
def _agent(folder: Path, node: MockNode, server: str) -> Iterator[_Agent]:
    command = [sys.executable, "-m", "driver.cli.main", "agent"]
    flags: Mapping[str, object] = {
        "node-name": NODE,
        "api-server": server,
        "plugins-dir": folder / "kubelet" / "plugins",
        "registry-dir": folder / "kubelet" / "plugins_registry",
        "cdi-dir": folder / "cdi",
        "mock-root": node.root,
        "metrics-port": -1,
        "health-port": -1,
    }
    with (folder / "agent.log").open("wb") as log:
        process = subprocess.Popen([*command, *(f"--{name}={value}" for name, value in flags.items())], stderr=log)
    agent = _Agent(process)
    try:
        yield agent
    finally:
        agent.end()


def _wait_for_slices(client: KubeClient, agent: _Agent) -> list[dict[str, Any]]:
    def complete() -> bool:
        slices[:] = client.get(f"{RESOURCE_API}/resourceslices")["items"]
        return bool(slices) and len(slices) == slices[0]["spec"]["pool"]["resourceSliceCount"]

    slices: list[dict[str, Any]] = []
    agent.until("there is no complete pool of ResourceSlices", complete)
    return slices


def _show_slices(screen: Screen, slices: list[dict[str, Any]]) -> None:
    for item in slices:
        pool = item["spec"]["pool"]
        screen.block(
            f"ResourceSlice {item['metadata']['name']}  pool {pool['name']} generation {pool['generation']}, "
            f"{len(item['spec'].get('devices', []))} devices:"
        )
        rows: list[tuple[str, ...]] = [("DEVICE", "NUMA", "PCIE ROOT", "SWITCH", "NVLINKS", "MEMORY")]
        rows += [_row(device) for device in item["spec"].get("devices", [])]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            screen.block("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def _row(device: Mapping[str, Any]) -> tuple[str, ...]:
    standard = "resource.kubernetes.io"
    return (
        device["name"],
        _value(device, f"{standard}/numaNode"),
        _value(device, f"{standard}/pcieRoot"),
        _value(device, "pcieSwitch"),
        _value(device, "nvlinkCount"),
        device.get("capacity", {}).get("memory", {}).get("value", "-"),
    )


def _value(device: Mapping[str, Any], attribute: str) -> str:
    value = device["attributes"].get(attribute)
    return "-" if value is None else str(next(iter(value.values())))


def _uuid(slices: list[dict[str, Any]], name: str) -> str:
    devices = [device for item in slices for device in item["spec"].get("devices", []) if device["name"] == name]
    if len(devices) != 1:
        raise DemoError(f"{len(devices)} devices are called {name}")
    return _value(devices[0], "uuid")


def _shortened(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A specification with the first of its devices and the first lines of its common edits."""
    edits = dict(spec["containerEdits"])
    for key in ("mounts", "deviceNodes", "env"):
        if len(edits.get(key, [])) > 3:
            edits[key] = [*edits[key][:3], f"... {len(edits[key]) - 3} more"]
    devices = spec["devices"]
    more = [f"... {len(devices) - 1} more"] if len(devices) > 1 else []
    return {**spec, "devices": [*devices[:1], *more], "containerEdits": edits}


def _inside(folder: Path, node: MockNode, spec: Mapping[str, Any], ids: list[str]) -> str:
    """Do to a folder what a container runtime does to a container, and run nvidia-smi on it."""
    devices = {f"{spec['kind']}={device['name']}": device["containerEdits"] for device in spec["devices"]}
    edits = [spec["containerEdits"], *(devices[cdi] for cdi in ids)]
    dev = folder / "container" / "dev"
    dev.mkdir(parents=True)
    for entry in [node for edit in edits for node in edit.get("deviceNodes", [])]:
        link = dev / entry["path"].removeprefix("/dev/")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(entry["hostPath"])
    environment = {**node.environment, "GPUDRA_MOCK_DEV": str(dev), "GPUDRA_MOCK_QUIET": "1"}
    done = subprocess.run([node.smi, "-L"], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"nvidia-smi -L ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout.rstrip()


def _yaml(document: Any) -> str:
    """The document as YAML where PyYAML is there, else as JSON."""
    try:
        import yaml
    except ImportError:
        return json.dumps(document, indent=2)
    return str(yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)).rstrip()
