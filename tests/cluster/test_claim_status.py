"""Who says what in a claim's status: the agent with the rights of its node, a control plane's driver with its own."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hack.cluster import access
from hack.cluster.agent import Agent
from hack.cluster.api import Api, path
from hack.cluster.layout import DRIVER_NAME, NODE_NAME, Layout
from hack.cluster.scene import Namespace, published
from kubeletplugin.api import ClaimRef, DeviceStatus
from kubeletplugin.claimstatus import ClaimStatusWriter
from kubeletplugin.client import KubeClient

CONTROL_PLANE = "net.example.com"
GROUP = "resource.k8s.io"
SORTED: dict[str, object] = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}},
}


def allocated(namespace: Namespace, name: str, driver: str, node: str) -> ClaimRef:
    """A claim with a device of the driver on the node, as a scheduler writes it."""
    claim = namespace.claim(name)
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
    result = {"request": "gpu", "driver": driver, "pool": f"{node}/pool", "device": "device-0"}
    claim["status"] = {"allocation": {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": terms}}}
    namespace.api.call("PUT", f"{path('resourceclaims', namespace.name, name)}/status", claim)
    return ClaimRef(namespace.name, name, claim["metadata"]["uid"])


def said(namespace: Namespace, name: str) -> list[dict[str, Any]]:
    """What stands in the claim's status: driver and data of each entry."""
    status = namespace.api.get("resourceclaims", namespace.name, name)["status"]
    return [{key: entry.get(key) for key in ("driver", "data")} for entry in status.get("devices", [])]


@contextmanager
def speaking(client: KubeClient, driver: str) -> Iterator[tuple[ClaimStatusWriter, list[str]]]:
    """A writer of claims' statuses, and what it could not write."""
    failures: list[str] = []
    writer = ClaimStatusWriter(client, driver, on_failure=lambda _ref, text, _again: failures.append(text))
    try:
        yield writer, failures
    finally:
        writer.stop()


@pytest.mark.parametrize("parameters", [None, SORTED, dict(reversed(SORTED.items()))], ids=["none", "a to z", "z to a"])
def test_the_agent_says_which_hardware_a_claim_got(
    agent: Agent, api: Api, namespace: Namespace, parameters: dict[str, object] | None
) -> None:
    """Whatever order the keys of its configuration stand in: an apply would put them in the alphabet's."""
    namespace.claim("one", parameters=parameters)
    namespace.pod("p", claim="one")
    namespace.running("p")

    def described(claim: dict[str, Any] | None) -> bool:
        return bool(claim and claim.get("status", {}).get("devices"))

    found = api.wait("resourceclaims", namespace.name, "one", described, "has a status of its device")
    assert found is not None
    (device,) = namespace.allocated("one")
    (entry,) = found["status"]["devices"]
    attributes = published(api)[device]["attributes"]
    assert (entry["driver"], entry["device"]) == (DRIVER_NAME, device)
    hardware = {"uuid": attributes["uuid"], "pciBusID": attributes["resource.kubernetes.io/pciBusID"]}
    assert entry["data"] == hardware


def test_the_agent_s_account_speaks_about_claims_of_its_own_node_alone(cluster: Layout, namespace: Namespace) -> None:
    if cluster.load().minor_version < (1, 36):
        pytest.skip("rights by node came with Kubernetes 1.36 (DRAResourceClaimGranularStatusAuthorization)")
    here, there = (allocated(namespace, node, DRIVER_NAME, node) for node in (NODE_NAME, "node-b"))
    with KubeClient.from_kubeconfig(cluster.kubeconfig("agent")) as client:
        with speaking(client, DRIVER_NAME) as (writer, failures):
            writer.report(here, [DeviceStatus(f"{NODE_NAME}/pool", "device-0", data={"uuid": "x"})])
            assert writer.settled(30)
            assert failures == []
        with speaking(client, DRIVER_NAME) as (writer, failures):
            writer.report(there, [DeviceStatus("node-b/pool", "device-0", data={"uuid": "x"})])
            assert not writer.settled(2)
            assert "associated-node:patch" in failures[0]
    assert said(namespace, NODE_NAME) == [{"driver": DRIVER_NAME, "data": {"uuid": "x"}}]
    assert said(namespace, "node-b") == []


@pytest.fixture
def control_plane(cluster: Layout) -> Iterator[KubeClient]:
    """An account that may speak about the claims of its driver on any node."""
    name = f"control-plane-{secrets.token_hex(3)}"
    rules = [
        {"apiGroups": [GROUP], "resources": ["resourceclaims/status"], "verbs": ["patch"]},
        {
            "apiGroups": [GROUP],
            "resources": ["resourceclaims/driver"],
            "resourceNames": [CONTROL_PLANE],
            "verbs": ["arbitrary-node:patch"],
        },
    ]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    account = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    role = {"kind": "ClusterRole", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
    items = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": "default"}},
        {**rbac, "kind": "ClusterRole", "rules": rules},
        {**rbac, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": [account]},
    ]
    objects = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    access.kubectl(cluster, "apply", "-f", "-", stdin=objects)
    token = access.kubectl(cluster, "create", "token", name, "-n", "default").strip()
    with KubeClient(cluster.load().server, token=token, ca=cluster.ca) as client:
        yield client
    access.kubectl(cluster, "delete", "-f", "-", stdin=objects)


def test_a_driver_of_the_control_plane_speaks_about_claims_of_every_node(
    control_plane: KubeClient, namespace: Namespace
) -> None:
    nodes = (NODE_NAME, "node-b")
    refs = [allocated(namespace, node, CONTROL_PLANE, node) for node in nodes]
    with speaking(control_plane, CONTROL_PLANE) as (writer, failures):
        for ref, node in zip(refs, nodes, strict=True):
            writer.report(ref, [DeviceStatus(f"{node}/pool", "device-0", data={"node": node})])
        assert writer.settled(30), failures
    for node in nodes:
        assert said(namespace, node) == [{"driver": CONTROL_PLANE, "data": {"node": node}}]
