"""The agent as users run it: the DaemonSet of ``deploy/`` with variants, moved to the paths of the test node."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml

from native.mock import MockNode
from native.mock.tree import NODE_FILE

from . import access
from .agent import Agent
from .api import JSON, Api
from .layout import AGENT_NAMESPACE, DRIVER_NAME, NODE_NAME, Layout
from .scene import Namespace

DAEMONSET = access.DEPLOY / "daemonset.yaml"
NAME = "gpudra-agent"
_STATE = "/mock-state"
IMAGE = "gpudra:0.1.0"
"""As the manifest names it."""


def merged(layout: Layout, *variants: Path) -> str:
    """The DaemonSet with these variants, by the command of ``deploy/README.md``; YAML."""
    document = DAEMONSET.read_text()
    for variant in variants:
        command = ("patch", "--local", "-f", "-", f"--patch-file={variant}", "-o", "yaml")
        document = access.kubectl(layout, *command, stdin=document)
    return document


def for_this_cluster(document: JSON, layout: Layout, mock: MockNode, image: str) -> JSON:
    """The manifest with the paths of the test node: another kubelet root, and a machine that is a folder."""
    moved = {"/var/lib/kubelet": str(layout.kubelet), "/var/run/cdi": str(layout.cdi), IMAGE: image}
    text = json.dumps(document)
    assert IMAGE in text
    for old, new in moved.items():
        text = text.replace(old, new)
    changed: JSON = json.loads(text)
    pod = changed["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["imagePullPolicy"] = "Never"
        settings = machine(mock)
        container["env"] = [entry for entry in container["env"] if entry["name"] not in settings]
        container["env"] += [{"name": name, "value": value} for name, value in settings.items()]
        container.setdefault("volumeMounts", []).append({"name": "mock-state", "mountPath": _STATE})
    for volume in pod["volumes"]:
        if volume["name"] == "driver-root":
            volume["hostPath"]["path"] = str(mock.root)
        if volume["name"] == "sys":
            volume["hostPath"]["path"] = str(mock.root / "sys")
    # The driver root is read-only; what a kernel would keep (modes, partitions), the mock keeps in a file.
    pod["volumes"].append({"name": "mock-state", "hostPath": {"path": str(mock.root / NODE_FILE.parent)}})
    return changed


def machine(mock: MockNode) -> Mapping[str, str]:
    """Settings that lead the agent to the mock node, which stands at /driver-root for it."""
    return {
        "GPUDRA_HOST_DRIVER_ROOT": str(mock.root),
        "GPUDRA_DEV_ROOT": "/driver-root/dev",
        "GPUDRA_HOST_DEV_ROOT": f"{mock.root}/dev",
        "GPUDRA_PROC_ROOT": "/driver-root/proc",
        "GPUDRA_MOCK_NODE": f"{_STATE}/{NODE_FILE.name}",
        "GPUDRA_MOCK_DEV": "/driver-root/dev",
    }


@contextmanager
def running(layout: Layout, api: Api, document: JSON) -> Iterator[JSON]:
    """The agent's pod, ready. No other agent runs meanwhile, and what one published is gone."""
    Agent(layout).stop()
    for item in api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}"):
        api.delete("resourceslices", None, item["metadata"]["name"])
    api.patch("nodes", None, NODE_NAME, {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}})
    api.create("daemonsets", AGENT_NAMESPACE, document)
    try:
        yield ready_pod(api)
    finally:
        remove(api, document["metadata"]["name"])


def remove(api: Api, name: str = NAME) -> None:
    """Delete a DaemonSet and wait until its pods are gone."""
    api.delete("daemonsets", AGENT_NAMESPACE, name)
    api.wait_all("pods", AGENT_NAMESPACE, lambda pods: not _of(pods, name), f"the pods of {name} are gone", 60)


def ready_pod(api: Api, name: str = NAME) -> JSON:
    """Wait until a DaemonSet's one pod passes its probes."""

    def ready(pods: dict[str, JSON]) -> bool:
        return [
            condition["status"]
            for pod in _of(pods, name)
            for condition in pod["status"].get("conditions", [])
            if condition["type"] == "Ready"
        ] == ["True"]

    try:
        return _of(api.wait_all("pods", AGENT_NAMESPACE, ready, f"the pod of {name} is ready", 90), name)[0]
    except AssertionError as error:
        own = Namespace(api, AGENT_NAMESPACE)
        pods = [pod["metadata"]["name"] for pod in api.items("pods", AGENT_NAMESPACE)]
        said = [(own.events(pod), own.log_lines(pod, _container(api, pod), timeout=2)[-15:]) for pod in pods]
        raise AssertionError(f"{error}\n{json.dumps(said, indent=1)}") from None


def document(layout: Layout, *variants: Path) -> JSON:
    """The DaemonSet with these variants as it is."""
    made: JSON = yaml.safe_load(merged(layout, *variants))
    return made


def _of(pods: Mapping[str, JSON], name: str) -> list[JSON]:
    owners = {key: [owner["name"] for owner in pod["metadata"].get("ownerReferences", [])] for key, pod in pods.items()}
    return [pod for key, pod in pods.items() if name in owners[key]]


def _container(api: Api, pod: str) -> str:
    return str(api.get("pods", AGENT_NAMESPACE, pod)["spec"]["containers"][0]["name"])
