"""Nodes that are only objects: how they are kept alive, and what is published for them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from hack.autoscaler import fakenodes
from hack.autoscaler.fakenodes import FAKE, LEASES, FakeNodes, gpudra, node_document, ready
from hack.cluster.api import ApiError

JSON = dict[str, Any]


class Server:
    """What of the API is used, over a dictionary; ``refuse`` answers a path with a status."""

    def __init__(self) -> None:
        self.nodes: dict[str, JSON] = {}
        self.slices: dict[str, JSON] = {}
        self.leases: dict[str, JSON] = {}
        self.refuse: dict[str, int] = {}
        self.asked: list[tuple[str, str]] = []

    def items(self, resource: str, _namespace: str | None = None, **query: str) -> list[JSON]:
        if resource == "nodes":
            return [copy.deepcopy(node) for node in self.nodes.values()]
        node = query["fieldSelector"].removeprefix("spec.nodeName=")
        # As the server does it: items of a list say neither kind nor version.
        found = [body for body in self.slices.values() if body["spec"]["nodeName"] == node]
        return [{key: value for key, value in body.items() if key not in ("kind", "apiVersion")} for body in found]

    def get(self, _resource: str, _namespace: str | None, name: str) -> JSON:
        return self.nodes[name]

    def create(self, resource: str, _namespace: str | None, body: JSON) -> JSON:
        name = body["metadata"]["name"]
        stored = copy.deepcopy(body)
        stored["metadata"].setdefault("uid", f"uid-of-{name}")
        stored["metadata"].setdefault("creationTimestamp", f"2026-01-01T00:00:{len(self.nodes):02}Z")
        if resource == "nodes":
            stored["status"] = {}
            taints = stored.setdefault("spec", {}).setdefault("taints", [])
            taints.append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
            self.nodes[name] = stored
        else:
            self.slices[name] = stored
        return stored

    def delete(self, resource: str, _namespace: str | None, name: str) -> None:
        (self.nodes if resource == "nodes" else self.slices).pop(name, None)

    def call(self, method: str, where: str, body: JSON) -> JSON:
        status, document = self.request(method, where, body)
        if status >= 400:
            raise ApiError(status, document)
        return document

    def request(self, method: str, where: str, body: JSON) -> tuple[int, JSON]:
        self.asked.append((method, where))
        if where in self.refuse:
            return self.refuse[where], {"reason": "Refused", "message": "no"}
        if where.startswith(LEASES):
            return self._lease(method, where, body)
        if where.startswith("/apis/resource.k8s.io"):
            self.slices[where.rpartition("/")[2]] = body
            return 200, body
        name = where.split("/")[4]
        if name not in self.nodes:
            return 404, {}
        for part in body:
            self.nodes[name][part].update(body[part])
        return 200, self.nodes[name]

    def _lease(self, method: str, where: str, body: JSON) -> tuple[int, JSON]:
        name = body["metadata"]["name"]
        if method == "PUT":
            return 422, {"reason": "Invalid", "message": "metadata.resourceVersion: must be specified for an update"}
        if method == "PATCH" and name not in self.leases:
            return 404, {}
        self.leases[name] = body
        return 200, body


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def nodes(server: Server) -> FakeNodes:
    return FakeNodes(server)  # type: ignore[arg-type]  # what of it is used


def test_a_node_that_was_added_is_ready_and_known_as_fake(server: Server, nodes: FakeNodes) -> None:
    nodes.add("node-0", {"kwok-nodegroup": "good"})

    (node,) = nodes.all()
    assert node["metadata"]["annotations"][FAKE] == "fake"
    (condition,) = node["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("Ready", "True")
    assert node["spec"]["providerID"] == "kwok:node-0"


def test_pods_can_be_placed_on_it_and_taints_of_others_stay(server: Server, nodes: FakeNodes) -> None:
    nodes.add("node-0", {})
    document = node_document("new", {})
    document["spec"]["taints"] = [{"key": "kwok-provider", "effect": "NoSchedule"}]
    server.create("nodes", None, document)

    nodes.beat()

    assert server.nodes["node-0"]["spec"]["taints"] is None
    assert [taint["key"] for taint in server.nodes["new"]["spec"]["taints"]] == ["kwok-provider"]


def test_nodes_are_found_by_their_labels_the_oldest_first_and_real_ones_never(server: Server, nodes: FakeNodes) -> None:
    for name, group in (("z-sample", "good"), ("a-new", "good"), ("other", "bad")):
        nodes.add(name, {"kwok-nodegroup": group})
    server.create("nodes", None, {"metadata": {"name": "node-a", "labels": {"kwok-nodegroup": "good"}}})

    assert nodes.names(kwok_nodegroup="good") == ["z-sample", "a-new"]
    assert nodes.names() == ["z-sample", "a-new", "other"]


def test_a_heart_beats_for_all_fake_nodes_and_makes_new_ones_ready(server: Server, nodes: FakeNodes) -> None:
    nodes.add("old", {})
    new = node_document("new", {})
    server.create("nodes", None, new)  # as a provider makes it: nobody has said that it is ready

    nodes.beat()
    first = {name: lease["spec"]["renewTime"] for name, lease in server.leases.items()}
    nodes.beat()

    assert first.keys() == {"old", "new"}
    assert all(server.leases[name]["spec"]["renewTime"] > first[name] for name in first)
    assert server.nodes["new"]["status"]["conditions"][0]["status"] == "True"
    statuses = [where for method, where in server.asked if method == "PATCH" and where.endswith("/status")]
    assert statuses.count("/api/v1/nodes/new/status") == 1
    assert statuses.count("/api/v1/nodes/old/status") == 1  # by add alone


@pytest.mark.parametrize("status", [404, 409])
def test_a_node_that_goes_meanwhile_does_not_stop_the_heart(server: Server, nodes: FakeNodes, status: int) -> None:
    server.create("nodes", None, node_document("going", {}))
    nodes.add("staying", {})
    server.refuse = {"/api/v1/nodes/going/status": status, f"{LEASES}/going": 409}

    nodes.beat()

    assert "staying" in server.leases


def test_any_other_refusal_is_an_error(server: Server, nodes: FakeNodes) -> None:
    nodes.add("node-0", {})
    server.refuse = {f"{LEASES}/node-0": 403}

    with pytest.raises(ApiError, match="403"):
        nodes.beat()


def test_slices_of_a_shape_are_published_whole_and_replace_what_was_there(server: Server, nodes: FakeNodes) -> None:
    shape = gpudra("shape", "export", "--mock-profile", "gb200")
    nodes.add("node-0", {})
    nodes.publish("node-0", shape)
    before = set(server.slices)

    made = nodes.publish("node-0", shape)

    assert set(server.slices) == {body["metadata"]["name"] for body in made} == before
    (owner,) = made[0]["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Node", "node-0", "uid-of-node-0")
    assert [body["kind"] for body in nodes.slices("node-0")] == ["ResourceSlice"] * len(made)
    nodes.withdraw("node-0")
    assert server.slices == {}


def test_all_fake_nodes_go_with_their_slices_whatever_holds_them(server: Server, nodes: FakeNodes) -> None:
    nodes.add("node-0", {})
    server.nodes["node-0"]["metadata"]["finalizers"] = ["karpenter.sh/termination"]
    server.slices["s"] = {"metadata": {"name": "s"}, "spec": {"nodeName": "node-0"}}
    server.create("nodes", None, {"metadata": {"name": "node-a"}})

    nodes.remove_all()

    assert set(server.nodes) == {"node-a"}
    assert server.slices == {}
    assert ("PATCH", "/api/v1/nodes/node-0") in server.asked


def test_readiness_has_lasted_for_as_long_as_was_said() -> None:
    assert ready(fakenodes.READY_FOR)["lastTransitionTime"] < ready()["lastTransitionTime"]


def test_a_command_that_fails_is_told_with_its_words() -> None:
    with pytest.raises(RuntimeError, match="none-such"):
        gpudra("shape", "export", "--mock-profile", "none-such")


def test_a_slice_is_written_anew_by_its_name(server: Server, nodes: FakeNodes) -> None:
    body = json.loads(json.dumps({"metadata": {"name": "s"}, "spec": {"nodeName": "n", "devices": []}}))

    nodes.replace(body)

    assert server.asked == [("PUT", "/apis/resource.k8s.io/v1/resourceslices/s")]
