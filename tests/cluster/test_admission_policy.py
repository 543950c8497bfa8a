"""What a node's agent may write: slices of this driver, of its own node, through whatever version of the API."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from hack.cluster import access
from hack.cluster.api import Api
from hack.cluster.layout import AGENT_NAMESPACE, DRIVER_NAME, NODE_NAME, Layout

VERSIONS = ["v1", "v1beta2", "v1beta1"]
OTHER_NODE = "node-b"
SELECTOR = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]}


@pytest.fixture(scope="module")
def token_of_node_a(cluster: Layout) -> Iterator[Api]:
    agent = Api(cluster, "agent")
    yield agent
    agent.close()


@pytest.fixture(scope="module")
def token_of_node_b(cluster: Layout, api: Api) -> Iterator[Api]:
    """The same service account, on another node."""
    api.create("nodes", None, {"metadata": {"name": OTHER_NODE}})
    access.write_agent_kubeconfig(cluster, cluster.load(), OTHER_NODE, "agent-b")
    agent = Api(cluster, "agent-b")
    yield agent
    agent.close()
    api.delete("nodes", None, OTHER_NODE)


@pytest.fixture
def written(api: Api) -> Iterator[list[str]]:
    """Names of slices that a test may have written; they are removed after it."""
    names = [f"policy-{secrets.token_hex(4)}"]
    yield names
    for name in names:
        api.delete("resourceslices", None, name)


def document(name: str, version: str = "v1", driver: str = DRIVER_NAME, **spec: Any) -> dict[str, Any]:
    whole = {"driver": driver, "pool": {"name": f"test-{name}", "generation": 1, "resourceSliceCount": 1}, **spec}
    return {
        "apiVersion": f"resource.k8s.io/{version}",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": whole,
    }


def collection(version: str = "v1") -> str:
    return f"/apis/resource.k8s.io/{version}/resourceslices"


@pytest.fixture(autouse=True, scope="module")
def policy_in_force(api: Api, token_of_node_a: Api) -> None:
    """A policy is compiled a moment after it was written: ask, on objects that are never stored, until it denies.

    The wait between two questions is a watch of the policy's own status, which the server ends after a second.
    """
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
    for _ in range(30):
        status, _ = token_of_node_a.request("POST", collection(), document("probe", nodeName=OTHER_NODE), dryRun="All")
        if status in (403, 422):
            return
        for _line in api.lines(policies, 2, watch="1", timeoutSeconds="1", resourceVersion="0"):
            continue
    pytest.fail("the policy does not deny anything")


def refused(answer: tuple[int, dict[str, Any]], *words: str) -> bool:
    status, reply = answer
    assert status in (403, 422), reply
    assert "gpudra-agent-slices" in reply["message"]
    for word in words:
        assert word in reply["message"], reply["message"]
    return True


@pytest.mark.bug("B125")
@pytest.mark.parametrize("version", VERSIONS)
def test_a_slice_of_another_node_is_refused_through_every_version(
    token_of_node_a: Api, written: list[str], version: str
) -> None:
    answer = token_of_node_a.request("POST", collection(version), document(written[0], version, nodeName=OTHER_NODE))
    assert refused(answer, "node-b", "node-a", "own node only")


@pytest.mark.parametrize("version", VERSIONS)
def test_a_slice_of_the_own_node_is_written_changed_and_deleted_through_every_version(
    token_of_node_a: Api, written: list[str], version: str
) -> None:
    where = collection(version)
    status, stored = token_of_node_a.request("POST", where, document(written[0], version, nodeName=NODE_NAME))
    assert status == 201, stored
    stored["spec"]["pool"]["generation"] = 2
    status, stored = token_of_node_a.request("PUT", f"{where}/{written[0]}", stored)
    assert status == 200, stored
    assert token_of_node_a.request("DELETE", f"{where}/{written[0]}")[0] == 200


@pytest.mark.bug("B127")
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "scope",
    [
        {"allNodes": True},
        {"nodeSelector": SELECTOR},
        {"perDeviceNodeSelection": True, "devices": []},
    ],
    ids=["allNodes", "nodeSelector", "perDeviceNodeSelection"],
)
def test_slices_of_more_than_one_node_are_refused(
    cluster: Layout, token_of_node_a: Api, written: list[str], version: str, scope: dict[str, Any]
) -> None:
    if "perDeviceNodeSelection" in scope and cluster.load().minor_version < (1, 36):
        pytest.skip("DRAPartitionableDevices is off by default before Kubernetes 1.36: the field does not get so far")
    answer = token_of_node_a.request("POST", collection(version), document(written[0], version, **scope))
    assert refused(answer, "allNodes, nodeSelector and perDeviceNodeSelection are denied")


def test_a_slice_of_another_driver_is_refused(token_of_node_a: Api, written: list[str]) -> None:
    foreign = document(written[0], driver="nic.example.com", nodeName=NODE_NAME)
    assert refused(token_of_node_a.request("POST", collection(), foreign), "driver gpu.nvidia.com only")


@pytest.mark.bug("B126")
def test_the_token_of_one_node_cannot_touch_the_slices_of_another(
    token_of_node_a: Api, token_of_node_b: Api, written: list[str]
) -> None:
    name = written[0]
    status, stored = token_of_node_b.request("POST", collection(), document(name, nodeName=OTHER_NODE))
    assert status == 201, stored
    assert refused(token_of_node_a.request("DELETE", f"{collection()}/{name}"), "may not touch it")
    stored["spec"]["pool"]["generation"] = 7
    assert refused(token_of_node_a.request("PUT", f"{collection()}/{name}", stored))
    assert token_of_node_b.request("DELETE", f"{collection()}/{name}")[0] == 200


def test_a_slice_of_another_driver_cannot_be_deleted(token_of_node_a: Api, api: Api, written: list[str]) -> None:
    api.create("resourceslices", None, document(written[0], driver="nic.example.com", nodeName=NODE_NAME))
    assert refused(token_of_node_a.request("DELETE", f"{collection()}/{written[0]}"), "driver gpu.nvidia.com only")


def test_a_token_that_names_no_node_writes_nothing(cluster: Layout, written: list[str]) -> None:
    token = access.kubectl(cluster, "create", "token", access.AGENT_ACCOUNT, "-n", AGENT_NAMESPACE).strip()
    access.write_secret(cluster.token("stolen"), token)
    stolen = Api(cluster, "stolen")
    answer = stolen.request("POST", collection(), document(written[0], nodeName=NODE_NAME))
    stolen.close()
    assert refused(answer, "names no node")


@pytest.mark.bug("B128")
def test_the_role_of_the_agent_reaches_nothing_else(token_of_node_a: Api) -> None:
    review = token_of_node_a.call(
        "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
        {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": "default"}},
    )
    granted = {
        (resource, verb)
        for rule in review["status"]["resourceRules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    everybody = {
        ("selfsubjectreviews", "create"), ("selfsubjectaccessreviews", "create"), ("selfsubjectrulesreviews", "create"),
        ("clustertrustbundles", "get"), ("clustertrustbundles", "list"), ("clustertrustbundles", "watch"),
    }  # fmt: skip
    slices = {("resourceslices", verb) for verb in ("get", "list", "watch", "create", "update", "delete")}
    events = {("events", "create"), ("events", "patch")}
    claims = {
        *(("resourceclaims", verb) for verb in ("get", "list", "watch")),
        ("resourceclaims/status", "patch"),
        ("resourceclaims/driver", "associated-node:patch"),
    }
    assert granted - everybody == slices | events | claims | {("nodes", "get")}
