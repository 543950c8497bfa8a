"""The autoscalers as processes beside a test cluster: what they are started with, and what they say."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from hack.autoscaler.fakenodes import AMOUNTS, node_document
from hack.cluster import access
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.processes import tail

JSON: TypeAlias = dict[str, Any]

GROUP_LABEL: Final = "kwok-nodegroup"
"""Label of a fake node that says to which of Cluster Autoscaler's node groups it belongs."""
NAMESPACE: Final = "kube-system"
PATIENCE: Final = 90.0
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_STEP = 0.2


class EndedError(Exception):
    """The autoscaler has ended by itself; the text is the end of its log."""


@dataclass(frozen=True, slots=True)
class Running:
    """A program that runs, and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self, text: str, timeout: float = PATIENCE) -> str:
        """Wait until a line of the log holds ``text``; the first such line.

        Raises:
            EndedError: the program has ended.
            AssertionError: the time is over.
        """
        deadline = time.monotonic() + timeout
        while True:
            ended = self.process.poll() is not None  # before its log is read: what it said last counts
            lines = self.log.read_text(errors="replace").splitlines()
            found = next((line for line in lines if text in line), None)
            if found is not None:
                return found
            if ended:
                raise EndedError(tail(self.log))
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:.0f} s: {text!r} in\n{tail(self.log)}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STEP)


@contextlib.contextmanager
def _started(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[Running]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=os.environ | environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Running(process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(20)


@contextlib.contextmanager
def cluster_autoscaler(binary: Path, layout: Layout, api: Api, groups: list[str], log: Path) -> Iterator[Running]:
    """Cluster Autoscaler with node groups of these names, which looks every two seconds and never scales down.

    Its provider deletes all fake nodes of its groups when it ends.
    """
    _configure(api, groups)
    kubeconfig = str(layout.kubeconfig())
    environment = {"KWOK_PROVIDER_MODE": "local", "KUBECONFIG": kubeconfig, "POD_NAMESPACE": NAMESPACE}
    command = [
        str(binary),
        "--cloud-provider=kwok",
        f"--kubeconfig={kubeconfig}",
        f"--namespace={NAMESPACE}",
        "--address=127.0.0.1:0",
        "--leader-elect=false",
        "--scan-interval=2s",
        "--scale-down-enabled=false",
        "--v=4",
    ]
    with _started(command, environment, log) as running:
        yield running


def _configure(api: Api, groups: list[str]) -> None:
    """The ConfigMaps of the kwok provider: node groups by label, a template Node for each."""
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP_LABEL},
        "configmap": {"name": "kwok-provider-templates"},
        "kwok": {"install": False},
    }
    nodes = [node_document(f"template-{group}", {GROUP_LABEL: group}) for group in groups]
    templates = {"apiVersion": "v1", "kind": "List", "items": nodes}
    for name, key, value in (
        ("kwok-provider-config", "config", config),
        ("kwok-provider-templates", "templates", templates),
    ):
        api.delete("configmaps", NAMESPACE, name)
        api.create("configmaps", NAMESPACE, {"metadata": {"name": name}, "data": {key: json.dumps(value)}})


@contextlib.contextmanager
def karpenter(
    binary: Path, layout: Layout, prices: Mapping[str, float], shapes: Mapping[str, JSON] | None, log: Path,
    *, ignore_claims: bool = False,
) -> Iterator[Running]:  # fmt: skip
    """Karpenter whose kwok provider sells these instance types.

    Args:
        binary: ``go/karpenter.go``.
        layout: of the cluster, which has Karpenter's CRDs.
        prices: instance type -> price an hour; all have the same CPUs and memory.
        shapes: instance type -> what ``gpudra shape export --format karpenter`` wrote; None leaves the provider as it
            is released, without devices.
        log: the file for what it says.
        ignore_claims: Karpenter's own default for pods with claims.
    """
    folder = log.parent
    types = folder / "instance-types.json"
    types.write_text(json.dumps([_instance_type(name, price) for name, price in prices.items()]))
    environment = {
        "KUBECONFIG": str(layout.kubeconfig()),
        "DISABLE_LEADER_ELECTION": "true",
        "METRICS_PORT": "0",
        "HEALTH_PROBE_PORT": "0",
        "INSTANCE_TYPES_FILE_PATH": str(types),
        "IGNORE_DRA_REQUESTS": str(ignore_claims).lower(),
        "LOG_LEVEL": "debug",
    }
    if shapes is not None:
        given = folder / "shapes.json"
        given.write_text(json.dumps(shapes))
        environment["SHAPES_FILE"] = str(given)
    with _started([str(binary)], environment, log) as running:
        yield running


def _instance_type(name: str, price: float) -> JSON:
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["test-zone-a"]},
    ]
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": dict(AMOUNTS),
        "offerings": [{"Price": price, "Available": True, "Requirements": requirements}],
    }


def install_karpenter(layout: Layout, module: Path) -> None:
    """Karpenter's kinds, and one NodePool that may buy every instance type."""
    for crds in (module / "kwok" / "charts" / "crds", module / "kwok" / "apis" / "crds"):
        access.kubectl(layout, "apply", "--server-side", "-f", str(crds))
    names = ("nodepools.karpenter.sh", "nodeclaims.karpenter.sh", "kwoknodeclasses.karpenter.kwok.sh")
    for name in names:
        access.kubectl(layout, "wait", "--for=condition=Established", f"crd/{name}", "--timeout=30s")
    reference = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": reference,
                    "expireAfter": "Never",
                    "requirements": [{"key": INSTANCE_TYPE, "operator": "Exists"}],
                }
            },
            "disruption": {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "Never"},
        },
    }
    kind = {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    items = {"apiVersion": "v1", "kind": "List", "items": [kind, pool]}
    access.kubectl(layout, "apply", "--server-side", "-f", "-", stdin=json.dumps(items))
