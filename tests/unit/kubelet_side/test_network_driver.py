"""The documentation's driver, run from its first slice to its last claim against stand-ins for all of Kubernetes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubeletplugin.api import JSON
from kubeletplugin.client import KubeClient
from kubeletplugin.plugin import Plugin
from kubeletplugin.testing.allocator import AllocationError, Allocator
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.kubelet import Kubelet, KubeletError
from tests.unit.kubelet_side.network_driver import DRIVER, NetworkDriver

ROOT = Path(__file__).parents[3]
API = "/apis/resource.k8s.io/v1"
NODE = "node-1"


def test_the_documentation_shows_exactly_this_program() -> None:
    page = (ROOT / "docs/plugin-library.md").read_text()
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[0]
    assert shown == Path(__file__).with_name("network_driver.py").read_text()


class Cluster:
    """One node with the documentation's driver on it."""

    def __init__(self, root: Path, client: KubeClient, kubelet: Kubelet) -> None:
        self.client = client
        self.kubelet = kubelet
        self.allocator = Allocator(client)
        self.cdi_dir = root / "cdi"
        self.cdi_dir.mkdir()
        self.driver = NetworkDriver(NODE, self.cdi_dir, ["eth1", "eth2"])
        self.plugin = Plugin(
            DRIVER,
            NODE,
            self.driver,
            client=client,
            plugins_dir=root / "plugins",
            registry_dir=root / "plugins_registry",
        )

    def claim(self, name: str, count: int = 1) -> JSON:
        request = {"name": "nic", "exactly": {"deviceClassName": "nic", "allocationMode": "ExactCount", "count": count}}
        return self.client.create(
            f"{API}/namespaces/default/resourceclaims",
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"devices": {"requests": [request]}},
            },
        )

    def run_pod(self, pod: str, claim: str) -> list[str]:
        self.allocator.allocate("default", claim, node_name=NODE, pod_name=pod, pod_uid=pod)
        self.kubelet.prepare_pod(pod, "default", [claim])
        return self.kubelet.container_devices("default", claim)

    def end_pod(self, pod: str, claim: str) -> None:
        self.kubelet.unprepare_pod(pod)
        self.allocator.release("default", claim, pod_uid=pod)

    def wait_slices(self, count: int) -> list[JSON]:
        """Waits by watching; the test's timeout is the limit."""
        seen: dict[str, JSON] = {}
        for event in self.client.watch(f"{API}/resourceslices", query={"resourceVersion": "0"}, timeout_seconds=20):
            name = event.object["metadata"].get("name", "")
            if event.type == "DELETED":
                seen.pop(name, None)
            elif event.type in ("ADDED", "MODIFIED"):
                seen[name] = event.object
            if len(seen) == count:
                return list(seen.values())
        raise AssertionError(f"there are {len(seen)} slices, not {count}")


@pytest.fixture
def cluster(root: Path) -> Iterator[Cluster]:
    server = EmbeddedApiServer().start()
    client = server.client()
    client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    selector = {"cel": {"expression": f'device.driver == "{DRIVER}"'}}
    client.create(
        f"{API}/deviceclasses",
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "nic"},
            "spec": {"selectors": [selector]},
        },
    )
    kubelet = Kubelet(root / "plugins_registry", node_name=NODE, client=client, poll=0.02, wiping_delay=0.3)
    with kubelet:
        yield Cluster(root, client, kubelet)
    server.close()


def test_a_claim_from_slice_to_container_and_back(cluster: Cluster) -> None:
    with cluster.plugin as plugin:
        assert plugin.registered.wait(10)
        plugin.publish(cluster.driver.resources())
        (published,) = cluster.wait_slices(1)
        assert [device["name"] for device in published["spec"]["devices"]] == ["eth1", "eth2"]
        assert published["spec"]["nodeName"] == NODE

        uid = cluster.claim("one")["metadata"]["uid"]
        assert cluster.run_pod("pod-1", "one") == [f"{DRIVER}/claim={uid}-eth1"]
        spec = json.loads((cluster.cdi_dir / f"{DRIVER}-{uid}.json").read_text())
        assert spec["kind"] == f"{DRIVER}/claim"
        assert spec["devices"] == [{"name": f"{uid}-eth1", "containerEdits": {"env": ["NET_ETH1=yes"]}}]

        cluster.claim("two")
        cluster.run_pod("pod-2", "two")
        cluster.claim("three")
        with pytest.raises(AllocationError, match="2 devices fit; 2 are in use"):
            cluster.run_pod("pod-3", "three")
        cluster.end_pod("pod-1", "one")
        assert cluster.run_pod("pod-3", "three")[0].endswith("-eth1")
        for pod, claim in (("pod-2", "two"), ("pod-3", "three")):
            cluster.end_pod(pod, claim)
    assert list(cluster.cdi_dir.iterdir()) == []


def test_slices_survive_the_plugin_and_end_with_the_kubelets_patience(cluster: Cluster) -> None:
    with cluster.plugin as plugin:
        assert plugin.registered.wait(10)
        plugin.publish(cluster.driver.resources())
        cluster.wait_slices(1)
    assert len(cluster.client.get(f"{API}/resourceslices")["items"]) == 1, "the plugin must not delete them"
    cluster.wait_slices(1)
    assert cluster.kubelet.plugins.wait_gone(DRIVER)
    gone = cluster.client.watch(f"{API}/resourceslices", query={"resourceVersion": "0"}, timeout_seconds=20)
    assert any(event.type == "DELETED" for event in gone), "the kubelet removes what nobody stands for"


@pytest.mark.bug("B55")
def test_a_claim_that_is_deleted_and_made_again_is_another_claim(cluster: Cluster) -> None:
    with cluster.plugin as plugin:
        assert plugin.registered.wait(10)
        plugin.publish(cluster.driver.resources())
        cluster.wait_slices(1)
        first = cluster.claim("one")["metadata"]["uid"]
        cluster.run_pod("pod-1", "one")
        cluster.end_pod("pod-1", "one")
        cluster.client.delete(f"{API}/namespaces/default/resourceclaims/one")
        second = cluster.claim("one")["metadata"]["uid"]
        assert first != second
        assert cluster.run_pod("pod-2", "one") == [f"{DRIVER}/claim={second}-eth1"]


def test_a_device_that_the_driver_does_not_have_fails_the_pod_with_its_name(cluster: Cluster) -> None:
    with cluster.plugin as plugin:
        assert plugin.registered.wait(10)
        plugin.publish(cluster.driver.resources())
        cluster.wait_slices(1)
        cluster.claim("one")
        cluster.driver.interfaces = []
        with pytest.raises(KubeletError, match="ResourceClaim one: there is no interface eth1 here"):
            cluster.run_pod("pod-1", "one")
        cluster.driver.interfaces = ["eth1"]
        assert len(cluster.run_pod("pod-1", "one")) == 1
