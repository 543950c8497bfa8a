"""What a node publishes decides which kind of node is bought, and a bad sample misleads; the lint tells beforehand."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.lint import lint
from hack.cluster.api import Api
from hack.cluster.scene import Namespace

if TYPE_CHECKING:
    from tests.autoscaler.conftest import Groups

JSON = dict[str, Any]
NUMA = "resource.kubernetes.io/numaNode"
TOLERATED = [{"key": "kwok-provider", "operator": "Exists"}]
DECISION_SECONDS = 90.0
CLASS = {
    "apiVersion": "resource.k8s.io/v1",
    "kind": "DeviceClass",
    "metadata": {"name": "any-gpu"},
    "spec": {"selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
}


@pytest.fixture(autouse=True)
def device_class(api: Api) -> None:
    if api.request("GET", "/apis/resource.k8s.io/v1/deviceclasses/any-gpu")[0] == 404:
        api.create("deviceclasses", None, CLASS)


def ask(namespace: Namespace, name: str, count: int, *, group: str | None = None) -> None:
    """A pod that wants GPUs of one NUMA node; on the nodes of a group, all of them wherever they are."""
    options: JSON = {"count": count, "device_class": "any-gpu"} | ({} if group else {"match": NUMA})
    namespace.claim(name, **options)
    spec: JSON = {
        "tolerations": TOLERATED,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
        "containers": [{"name": "main", "image": "none", "resources": {"claims": [{"name": "gpu"}]}}],
        **({"nodeSelector": {"kwok-nodegroup": group}} if group else {}),
    }
    namespace.api.create("pods", namespace.name, {"metadata": {"name": name}, "spec": spec})


def fill(namespace: Namespace) -> None:
    """Take every GPU of both samples."""
    for group, count in (("good", 8), ("bad", 4)):
        ask(namespace, f"fill-{group}", count, group=group)
        namespace.wait_pod(f"fill-{group}", lambda pod: bool(pod and pod["spec"].get("nodeName")), "placed")


def findings(slices: list[JSON]) -> set[str]:
    bodies = [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **body} for body in slices]
    return {entry.rule.id for entry in lint(collect([Value(body) for body in bodies], "cluster")).found}


@pytest.mark.usefixtures("autoscaler")
def test_the_group_whose_topology_fits_is_scaled_up_and_the_pod_runs_there(
    namespace: Namespace, groups: Groups
) -> None:
    fill(namespace)
    ask(namespace, "train", 4)

    message = namespace.wait_event("train", "good 1->2", DECISION_SECONDS)

    assert "bad" not in message
    assert len(groups.nodes("bad")) == 1
    new = next(name for name in groups.nodes("good") if name != "sample-good")
    groups.publish(new, "good")  # the new node's agent speaks
    groups.beat()
    placed = namespace.wait_pod("train", lambda pod: bool(pod and pod["spec"].get("nodeName")), "placed", 60)
    assert placed is not None
    assert placed["spec"]["nodeName"] == new


@pytest.mark.usefixtures("autoscaler")
def test_a_claim_that_no_group_can_meet_buys_nothing(namespace: Namespace, groups: Groups) -> None:
    ask(namespace, "too-much", 5)  # five GPUs on one NUMA node exist nowhere

    namespace.wait_event("too-much", "pod didn't trigger scale-up", DECISION_SECONDS)

    assert [len(groups.nodes(group)) for group in ("good", "bad")] == [1, 1]


@pytest.mark.usefixtures("autoscaler")
@pytest.mark.parametrize(("fault", "rule"), [("taint", "A08"), ("half", "A04")])
def test_a_bad_sample_keeps_the_right_node_from_being_bought_and_the_lint_says_so(
    namespace: Namespace, groups: Groups, api: Api, fault: str, rule: str
) -> None:
    fill(namespace)
    for body in groups.slices("sample-good"):
        spec = json.loads(json.dumps(body["spec"]))
        if fault == "taint":
            for device in spec.get("devices", []):
                device["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]
        else:
            spec["pool"]["resourceSliceCount"] += 1
        api.call("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{body['metadata']['name']}", {**body, "spec": spec})
    assert rule in findings(groups.slices("sample-good"))

    ask(namespace, "train", 4)
    namespace.wait_event("train", "pod didn't trigger scale-up", DECISION_SECONDS)

    assert groups.nodes("good") == ["sample-good"]
