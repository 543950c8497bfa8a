"""Pods that ask for nvidia.com/gpu in their limits: the scheduler makes a claim for them, the agent prepares it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import access
from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.images import TEST_IMAGE
from hack.cluster.layout import Layout
from hack.cluster.manifests import applied
from hack.cluster.scene import Namespace, listed, mig_listed, uuids
from native.mock import MockNode

DEPLOY = access.DEPLOY
DEMO = Path(__file__).parent / "data" / "quickstart" / "gpu-full.yaml"
SINCE = (1, 36)
"""DRAExtendedResource is on by default."""


@pytest.fixture
def extended(cluster: Layout) -> Iterator[None]:
    """The device class with its extended resource."""
    access.kubectl(cluster, "apply", "--server-side", "-f", str(DEPLOY / "extended-resource.yaml"))
    yield
    access.kubectl(cluster, "apply", "--server-side", "-f", str(DEPLOY / "deviceclasses.yaml"))


@pytest.fixture
def served(cluster: Layout, extended: None) -> None:
    """The same, on a server that has it."""
    if cluster.load().minor_version < SINCE:
        pytest.skip("DRAExtendedResource is off by default before Kubernetes 1.36")


def pod(namespace: Namespace, name: str, **limits: dict[str, int]) -> None:
    """A pod whose containers list their GPUs: container -> its limits."""
    containers = [
        {
            "name": container,
            "image": TEST_IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", "nvidia-smi -L; exec sleep 2147483647"],
            "resources": {"limits": {key: str(count) for key, count in asked.items()}},
        }
        for container, asked in limits.items()
    ]
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": containers}
    namespace.api.create("pods", namespace.name, {"metadata": {"name": name}, "spec": spec})


def status(namespace: Namespace, name: str) -> dict[str, Any]:
    """What the pod's status says of the claim that was made for it."""
    found: dict[str, Any] = namespace.api.get("pods", namespace.name, name)["status"]["extendedResourceClaimStatus"]
    return found


def test_the_demo_of_nvidia_s_driver_gets_a_gpu_without_a_claim_of_its_own(
    served: None, agent: Agent, cluster: Layout, api: Api
) -> None:
    with applied(api, DEMO) as demo:
        assert demo.running_pods(1) == ["gpu-full-pod"]
        said = status(demo, "gpu-full-pod")
        (mapping,) = said["requestMappings"]
        assert (mapping["containerName"], mapping["resourceName"]) == ("cuda-container", "nvidia.com/gpu")
        expected = uuids(api, demo.allocated(said["resourceClaimName"]))
        listing = access.kubectl(cluster, "exec", "-n", demo.name, "gpu-full-pod", "--", "nvidia-smi", "-L")
        assert listed(listing.splitlines()) == expected
        assert len(expected) == 1
        assert list(demo.told(said["resourceClaimName"]).values()) == expected
        assert len(list(cluster.cdi.glob("*.json"))) == 1
    assert list(cluster.cdi.glob("*.json")) == []


def test_each_container_sees_the_gpus_of_its_own_limits(
    served: None, agent: Agent, api: Api, namespace: Namespace
) -> None:
    pod(namespace, "p", one={"nvidia.com/gpu": 1}, two={"nvidia.com/gpu": 2})
    namespace.running("p")
    claim = status(namespace, "p")["resourceClaimName"]
    one, two = listed(namespace.log_lines("p", "one", lines=1)), listed(namespace.log_lines("p", "two", lines=2))
    assert (len(one), len(two)) == (1, 2)
    assert sorted(one + two) == uuids(api, namespace.allocated(claim))


def test_the_ninth_gpu_is_not_there(served: None, agent: Agent, api: Api, namespace: Namespace) -> None:
    namespace.claim("seven", count=7)
    namespace.pod("seven", claim="seven")
    namespace.running("seven")
    pod(namespace, "two", main={"nvidia.com/gpu": 2})
    assert namespace.unschedulable("two")
    namespace.delete_pod("seven")
    namespace.running("two", 60)
    assert len(listed(namespace.log_lines("two", lines=2))) == 2


def test_a_class_has_a_resource_by_its_own_name_too(
    served: None, other_node: Callable[..., MockNode], cluster: Layout, api: Api, namespace: Namespace
) -> None:
    node = other_node("dgx-a100", devices=8)
    first = node.profile.gpus[0].address
    node.nvidia_smi("-i", first, "-mig", "1")
    node.nvidia_smi("mig", "-i", first, "-cgi", "3g.20gb,3g.20gb", "-C")
    Agent(cluster, "dgx-a100").wait_published(api, 7 + 2)
    pod(namespace, "p", main={"deviceclass.resource.kubernetes.io/mig.nvidia.com": 1})
    namespace.running("p")
    told = namespace.told(status(namespace, "p")["resourceClaimName"])
    assert mig_listed(namespace.log_lines("p", lines=2)) == list(told.values())


def test_a_server_without_the_feature_drops_the_name_and_such_a_pod_stays_pending(
    extended: None, agent: Agent, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    if cluster.load().minor_version >= SINCE:
        pytest.skip("this server has it")
    assert "extendedResourceName" not in api.get("deviceclasses", None, "gpu.nvidia.com")["spec"]
    pod(namespace, "p", main={"nvidia.com/gpu": 1})
    assert "Insufficient nvidia.com/gpu" in namespace.unschedulable("p")
