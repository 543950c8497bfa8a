"""The real Cluster Autoscaler beside the test cluster: its kwok provider, fake nodes, and slices made from shapes.

It runs where ``GPUDRA_CLUSTER_AUTOSCALER`` names the binary: kubernetes-sigs/cluster-autoscaler, ``go build ./kwok``
(its go.mod replaces k8s.io/autoscaler/cluster-autoscaler/apis by that folder of a kubernetes/autoscaler checkout).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, temporary_namespace

JSON = dict[str, Any]
BINARY = os.environ.get("GPUDRA_CLUSTER_AUTOSCALER")
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
GROUP_LABEL = "kwok-nodegroup"
PROFILES = {"good": "dgx-h100", "bad": "gb200"}
"""Node group -> the machine that its nodes are: eight GPUs on two NUMA nodes, four on two."""
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS = 5.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster and the autoscaler's binary."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)
            if not BINARY:
                reason = "GPUDRA_CLUSTER_AUTOSCALER names no binary of the Cluster Autoscaler (kwok)"
                item.add_marker(pytest.mark.skip(reason=reason))


def gpudra(*arguments: str, stdin: str | None = None) -> str:
    """What a ``gpudra`` command prints."""
    command = [sys.executable, "-c", "import sys; from driver.cli.main import main; sys.exit(main())", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="session")
def shapes() -> dict[str, str]:
    """Node group -> the shape of its nodes, as JSON."""
    return {group: gpudra("shape", "export", "--mock-profile", profile) for group, profile in PROFILES.items()}


@pytest.fixture(scope="session")
def api() -> Iterator[Api]:
    """The administrator's connection to a cluster that is started for this run, unless one is there."""
    layout = Layout.default()
    ran_before = lifecycle.is_running(layout)
    if not ran_before:
        lifecycle.up(layout, owner=os.getpid())
    connection = Api(layout)
    yield connection
    connection.close()
    if not ran_before:
        lifecycle.down(layout)


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace that is empty before and gone after."""
    with temporary_namespace(api, request.node.name) as own:
        yield own


def node_document(name: str, group: str) -> JSON:
    """A fake node that has been Ready for ten minutes."""
    since = (datetime.now(UTC) - timedelta(minutes=10)).strftime("%Y-%m-%dT%H:%M:%SZ")
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {GROUP_LABEL: group, "kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        },
        "spec": {"providerID": f"kwok:{name}"},
        "status": {
            "allocatable": amounts,
            "capacity": amounts,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": since, "reason": "Fake"}],
        },
    }


@dataclass
class Groups:
    """The two node groups."""

    api: Api
    shapes: dict[str, str]

    def publish(self, node: str, group: str) -> list[JSON]:
        """Slices for a node, as its agent would publish them; what was there before goes."""
        self.withdraw(node)
        uid = self.api.get("nodes", None, node)["metadata"]["uid"]
        made = gpudra("shape", "instantiate", "-", "--as", node, "--node-uid", uid, stdin=self.shapes[group])
        return [self.api.create("resourceslices", None, body) for body in json.loads(made)["items"]]

    def withdraw(self, node: str) -> None:
        """No slices of this node."""
        for body in self.api.items("resourceslices", fieldSelector=f"spec.nodeName={node}"):
            self.api.delete("resourceslices", None, body["metadata"]["name"])

    def slices(self, node: str) -> list[JSON]:
        """What a node publishes."""
        return self.api.items("resourceslices", fieldSelector=f"spec.nodeName={node}")

    def nodes(self, group: str) -> list[str]:
        """Names of the nodes of a group, the first one first."""
        found = self.api.items("nodes", labelSelector=f"{GROUP_LABEL}={group}")
        return sorted(
            (node["metadata"]["name"] for node in found), key=lambda name: (not name.startswith("sample"), name)
        )

    def beat(self) -> None:
        """Renew the leases and the readiness of all fake nodes."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        for group in PROFILES:
            for name in self.nodes(group):
                lease = {
                    "metadata": {"name": name},
                    "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
                }
                if self.api.request("PUT", f"{LEASES}/{name}", lease)[0] == 404:
                    self.api.request("POST", LEASES, lease)


@pytest.fixture
def groups(api: Api, shapes: dict[str, str]) -> Iterator[Groups]:
    """One Ready node of each group, all of whose GPUs are free, and a heart that beats for all of the fake nodes."""
    made = Groups(api, shapes)
    stop = threading.Event()
    heart = Api(Layout.default())
    beating = Groups(heart, shapes)

    def keep_alive() -> None:
        while not stop.wait(HEARTBEAT_SECONDS):
            beating.beat()

    for group in PROFILES:
        document = node_document(f"sample-{group}", group)
        api.create("nodes", None, document)
        api.call("PATCH", f"/api/v1/nodes/sample-{group}/status", {"status": document["status"]})
        made.publish(f"sample-{group}", group)
    made.beat()
    thread = threading.Thread(target=keep_alive, daemon=True)
    thread.start()
    yield made
    stop.set()
    thread.join()
    heart.close()
    for group in PROFILES:
        for name in made.nodes(group):
            made.withdraw(name)
            api.delete("nodes", None, name)


@pytest.fixture
def autoscaler(groups: Groups, api: Api, tmp_path: Path) -> Iterator[Path]:
    """The running Cluster Autoscaler; gives the file that it logs to. It wants the files of a service account."""
    layout = Layout.default()
    configure(api)
    SERVICE_ACCOUNT.mkdir(parents=True, exist_ok=True)
    files = {
        "token": layout.token("admin").read_text(),
        "ca.crt": layout.ca.read_text(),
        "namespace": "kube-system",
    }
    for name, text in files.items():
        (SERVICE_ACCOUNT / name).write_text(text)
    state = layout.load()
    environment = os.environ | {
        "KUBERNETES_SERVICE_HOST": state.address,
        "KUBERNETES_SERVICE_PORT": "6443",
        "POD_NAMESPACE": "kube-system",
    }
    command = [
        str(BINARY),
        "--cloud-provider=kwok",
        f"--kubeconfig={layout.kubeconfig()}",
        "--leader-elect=false",
        "--scan-interval=5s",
        "--scale-down-enabled=false",
        "--v=4",
    ]
    log = tmp_path / "cluster-autoscaler.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield log
        finally:
            process.terminate()
            process.wait(30)
            for name in files:
                (SERVICE_ACCOUNT / name).unlink()


def configure(api: Api) -> None:
    """The ConfigMaps of the kwok provider: node groups by label, a template Node for each."""
    config = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP_LABEL},
        "configmap": {"name": "kwok-provider-templates"},
        "kwok": {"install": False},
    }
    templates = {
        "apiVersion": "v1",
        "kind": "List",
        "items": [node_document(f"template-{group}", group) for group in PROFILES],
    }
    for name, key, value in (
        ("kwok-provider-config", "config", config),
        ("kwok-provider-templates", "templates", templates),
    ):
        api.delete("configmaps", "kube-system", name)
        api.create("configmaps", "kube-system", {"metadata": {"name": name}, "data": {key: json.dumps(value)}})
