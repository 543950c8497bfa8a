"""The demos of deploy/demos, exactly as they are but for the image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.images import TEST_IMAGE
from hack.cluster.scene import Namespace, listed, published

DEMOS = Path(__file__).parents[2] / "deploy" / "demos"
RESOURCES = {"Pod": "pods", "ResourceClaim": "resourceclaims", "ResourceClaimTemplate": "resourceclaimtemplates"}
NAMES = sorted(folder.name for folder in DEMOS.iterdir() if folder.is_dir())


def apply(namespace: Namespace, name: str) -> list[str]:
    """Create what a demo holds; return its pods' names."""
    pods = []
    for file in sorted((DEMOS / name).glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document["kind"] == "Pod":
                use_the_test_image(document)
                pods.append(document["metadata"]["name"])
            namespace.api.create(RESOURCES[document["kind"]], namespace.name, document)
    return pods


def use_the_test_image(pod: dict[str, Any]) -> None:
    pod["spec"]["terminationGracePeriodSeconds"] = 1
    for container in pod["spec"]["containers"]:
        assert container["image"] == "ubuntu:24.04"
        container |= {"image": TEST_IMAGE, "imagePullPolicy": "Never"}


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
        namespace.running(pod)
        found = listed(namespace.log_lines(pod, lines=gpus))
        assert len(found) == gpus
        seen += found
    assert len({by_uuid[uuid][shared] for uuid in seen}) == 1


def test_every_demo_is_tested_and_has_a_readme() -> None:
    marks = test_a_demo_runs_and_its_pods_see_what_it_promises.pytestmark  # type: ignore[attr-defined] # set by pytest
    (cases,) = (mark.args[1] for mark in marks if mark.name == "parametrize")
    assert [case[0] for case in sorted(cases)] == NAMES
    assert all((DEMOS / name / "README.md").is_file() for name in NAMES)
