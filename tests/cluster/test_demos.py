"""The demos of deploy/demos, exactly as they are but for the image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.manifests import Demo, documents
from hack.cluster.scene import Namespace, listed, mig_listed, published
from native.mock import MockNode

DEMOS = Path(__file__).parents[2] / "deploy" / "demos"
NAMES = sorted(folder.name for folder in DEMOS.iterdir() if folder.is_dir())
VARIED = {"mps", "time-slices", "shares", "mig-dynamic"}
"""Demos with a test of their own below."""
Start = Callable[..., MockNode]


def apply(namespace: Namespace, name: str) -> list[str]:
    """Create what a demo holds; return its pods' names."""
    made = documents(*sorted((DEMOS / name).glob("*.yaml")))
    pods = [document for document in made if document["kind"] == "Pod"]
    assert {container["image"] for pod in pods for container in pod["spec"]["containers"]} == {"ubuntu:24.04"}
    demo = Demo(namespace.api, namespace.name)
    demo.create_all(made)
    return demo.running_pods(len(pods))


@pytest.mark.parametrize(
    ("name", "gpus", "shared"),
    [
        ("one-gpu", 1, "type"),
        ("four-gpus-one-numa-node", 4, "resource.kubernetes.io/numaNode"),
        ("two-gpus-same-pcie-root", 2, "resource.kubernetes.io/pcieRoot"),
        ("product-and-memory", 1, "productName"),
        ("shared-claim", 1, "uuid"),
    ],
)
def test_a_demo_runs_and_its_pods_see_what_it_promises(
    agent: Agent, api: Api, namespace: Namespace, name: str, gpus: int, shared: str
) -> None:
    by_uuid = {device["attributes"]["uuid"]: device["attributes"] for device in published(api).values()}
    seen = []
    for pod in apply(namespace, name):
        found = listed(namespace.log_lines(pod, lines=gpus))
        assert len(found) == gpus
        seen += found
    assert len({by_uuid[uuid][shared] for uuid in seen}) == 1


@pytest.mark.parametrize(("name", "says"), [("time-slices", []), ("mps", ["50.0"])])
def test_containers_that_share_a_gpu_see_the_same_one(
    agent: Agent, mock_node: MockNode, namespace: Namespace, name: str, says: list[str]
) -> None:
    assert apply(namespace, name) == [name]
    first, second = (namespace.log_lines(name, which, lines=1 + len(says)) for which in ("first", "second"))
    assert first == second
    (uuid,) = listed(first)
    assert first[1:] == says
    slices = mock_node.nvidia_smi("compute-policy", "-i", uuid, "-l")
    assert slices.split()[-1] == ("Long" if name == "time-slices" else "Default")


def test_two_claims_have_a_share_of_one_gpu_each(other_node: Start, cluster: Layout, namespace: Namespace) -> None:
    if cluster.load().minor_version < (1, 36):
        pytest.skip("DRAConsumableCapacity is off by default before Kubernetes 1.36")
    other_node("h200", '--shares={"*": 4}', devices=8)
    first, second = (namespace.log_lines(pod, lines=2) for pod in apply(namespace, "shares"))
    assert listed(first) == listed(second)
    assert {line.partition("=")[2] for line in (first[1], second[1])} == {"1/4"}


def test_partitions_are_made_for_a_pod_and_each_container_sees_its_own(other_node: Start, namespace: Namespace) -> None:
    node = other_node("h200", "--mig=dynamic", devices=8 * 26)
    assert apply(namespace, "mig-dynamic") == ["mig-dynamic"]
    large, small = (namespace.log_lines("mig-dynamic", which, lines=2) for which in ("large", "small"))
    told = namespace.told(namespace.claim_of("mig-dynamic"))
    assert mig_listed(large) + mig_listed(small) == [
        next(uuid for device, uuid in told.items() if f"-mig-{size}" in device) for size in ("3g", "2g")
    ]
    assert large[0] == small[0], "not of one GPU"
    namespace.delete_pod("mig-dynamic")
    assert [node.instances(gpu.address) for gpu in node.profile.gpus] == [[]] * 8


def test_every_demo_is_tested_and_has_a_readme() -> None:
    marks = test_a_demo_runs_and_its_pods_see_what_it_promises.pytestmark  # type: ignore[attr-defined] # set by pytest
    (cases,) = (mark.args[1] for mark in marks if mark.name == "parametrize")
    assert sorted({case[0] for case in cases} | VARIED) == NAMES
    assert all((DEMOS / name / "README.md").is_file() for name in NAMES)
