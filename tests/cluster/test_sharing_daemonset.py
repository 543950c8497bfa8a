"""The agent as a DaemonSet with the variants for MPS and passthrough: daemons in its pod, and in one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import yaml

from hack import image
from hack.cluster import access, daemonset
from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api
from hack.cluster.layout import AGENT_NAMESPACE, Layout
from hack.cluster.scene import Container, Namespace, listed, uuids
from native.mock import MockNode

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]

VARIANTS = access.DEPLOY / "variants"
KEEPER = "gpudra-mps"
ASK = "nvidia-smi -L; echo get_default_active_thread_percentage | nvidia-cuda-mps-control; exec sleep 2147483647"
HALF = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
}


@contextmanager
def deployed(cluster: Layout, api: Api, mock: MockNode, *variants: str) -> Iterator[JSON]:
    """The DaemonSet with these variants, its pod ready and its GPUs published."""
    merged = daemonset.document(cluster, *(VARIANTS / f"{name}.yaml" for name in variants))
    with daemonset.running(cluster, api, daemonset.for_this_cluster(merged, cluster, mock, image.TAG)) as pod:
        yield pod


@pytest.fixture
def keeper(cluster: Layout, api: Api, mock_node: MockNode, loaded_image: None) -> Iterator[None]:
    """mps-daemons.yaml, on this node."""
    Agent(cluster).stop()
    document = yaml.safe_load((access.DEPLOY / "mps-daemons.yaml").read_text())
    api.create("daemonsets", AGENT_NAMESPACE, daemonset.for_this_cluster(document, cluster, mock_node, image.TAG))
    try:
        yield
    finally:
        daemonset.remove(api, KEEPER)


def mode(node: MockNode, uuid: str) -> str:
    return node.nvidia_smi("-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader").split()[-1]


def answers(namespace: Namespace, pod: str) -> list[str]:
    """Make a pod that uses the claim ``mps`` and asks its daemon; what it says: its GPU, and the daemon's answer."""
    namespace.pod(pod, claim="mps", containers=[Container("main", ASK)])
    namespace.running(pod)
    return namespace.log_lines(pod, lines=2)


def test_daemons_in_the_agent_s_pod_serve_a_claim_and_leave_with_it(
    cluster: Layout, api: Api, mock_node: MockNode, namespace: Namespace, loaded_image: None
) -> None:
    with deployed(cluster, api, mock_node, "mps"):
        Agent(cluster).wait_published(api, 8)
        namespace.claim("mps", parameters=HALF)
        said = answers(namespace, "first")
        (uuid,) = uuids(api, namespace.allocated("mps"))
        assert (listed(said), said[1]) == ([uuid], "50.0")
        assert answers(namespace, "second") == said
        assert mode(mock_node, uuid) == "Exclusive_Process"
        for pod in ("first", "second"):
            namespace.delete_pod(pod)
        assert mode(mock_node, uuid) == "Default"


def test_daemons_in_a_pod_of_their_own_outlive_the_agent_s(
    keeper: None, cluster: Layout, api: Api, mock_node: MockNode, namespace: Namespace
) -> None:
    with deployed(cluster, api, mock_node, "mps-pod") as agent:
        assert "hostPID" not in agent["spec"]
        Agent(cluster).wait_published(api, 8)
        namespace.claim("mps", parameters=HALF)
        said = answers(namespace, "first")
        (uuid,) = uuids(api, namespace.allocated("mps"))
        assert (listed(said), said[1]) == ([uuid], "50.0")
        before = server(cluster, namespace)
        api.delete("pods", AGENT_NAMESPACE, agent["metadata"]["name"])
        api.wait("pods", AGENT_NAMESPACE, agent["metadata"]["name"], lambda pod: pod is None, "the agent's pod is gone")
        assert server(cluster, namespace) == before, "the daemon ended with the agent's pod"
        daemonset.ready_pod(api)
        assert answers(namespace, "second") == said
        assert server(cluster, namespace) == before
        for pod in ("first", "second"):
            namespace.delete_pod(pod)
        assert mode(mock_node, uuid) == "Default"


def server(cluster: Layout, namespace: Namespace) -> str:
    """Which MPS server serves the first pod: started when it is asked for, it lives as long as its daemon."""
    ask = "(echo start_server -uid 0; echo get_server_list) | nvidia-cuda-mps-control | tail -1"
    return access.kubectl(cluster, "exec", "-n", namespace.name, "first", "--", "sh", "-c", ask).split()[-1]


def test_a_writable_sysfs_lets_the_agent_offer_gpus_to_virtual_machines(
    cluster: Layout, api: Api, mock_node: MockNode, loaded_image: None
) -> None:
    with deployed(cluster, api, mock_node, "vfio"):
        counters = cluster.load().minor_version >= (1, 36)
        Agent(cluster).wait_published(api, 16 if counters else 8)
        name = daemonset.ready_pod(api)["metadata"]["name"]
        touch = "import os, sys; sys.exit(not os.access('/host-sys/bus/pci/drivers', os.W_OK))"
        access.kubectl(cluster, "exec", "-n", AGENT_NAMESPACE, name, "--", "/opt/gpudra/bin/python", "-c", touch)
