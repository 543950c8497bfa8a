"""What the embedded API server has beyond the real one: gates, faults, garbage collection at hand, a quick start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kubeletplugin.client import ApiError, ApiUnreachableError
from kubeletplugin.testing.apiserver import EmbeddedApiServer

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
NODES = "/api/v1/nodes"


@pytest.fixture
def server() -> Iterator[EmbeddedApiServer]:
    with EmbeddedApiServer() as server:
        yield server


def slice_(name: str = "a", owner: str | None = None, **device: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name}
    if owner is not None:
        metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": owner}]
    spec = {
        "driver": "d",
        "nodeName": "n",
        "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "gpu-0", **device}],
    }
    return {"metadata": metadata, "spec": spec}


def test_it_starts_in_no_time() -> None:
    began = time.monotonic()
    with EmbeddedApiServer() as server:
        assert server.client().text("/readyz") == "ok"

    assert time.monotonic() - began < 1.0


def test_it_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with EmbeddedApiServer() as server:
        client = server.client()
        stop = threading.Event()
        watcher = threading.Thread(target=lambda: list(client.watch(SLICES, stop=stop)))
        watcher.start()
        client.create(NODES, {"metadata": {"name": "n"}})
    watcher.join(5)

    assert threading.active_count() == before


def test_it_goes_on_with_its_objects_after_a_pause(server: EmbeddedApiServer) -> None:
    server.client().create(NODES, {"metadata": {"name": "n"}})
    port = int(server.url.rpartition(":")[2])
    server.stop()
    server.start(port)

    assert server.client().get(f"{NODES}/n")["metadata"]["name"] == "n"


def test_an_address_is_known_only_while_it_runs() -> None:
    with pytest.raises(RuntimeError, match="is not started"):
        _ = EmbeddedApiServer().url


# Feature gates


def test_a_field_in_use_survives_its_gate(server: EmbeddedApiServer) -> None:
    client = server.client()
    taint = {"key": "a", "effect": "None"}
    stored = client.create(SLICES, slice_(taints=[taint]))
    server.set_gate("DRADeviceTaints", enabled=False)
    stored["spec"]["devices"][0]["taints"].append({"key": "b", "effect": "None"})

    assert len(client.update(f"{SLICES}/a", stored)["spec"]["devices"][0]["taints"]) == 2
    assert "taints" not in client.create(SLICES, slice_("b", taints=[taint]))["spec"]["devices"][0]


def test_lists_are_values_where_their_gate_is_on(server: EmbeddedApiServer) -> None:
    client = server.client()
    server.set_gate("DRAListTypeAttributes", enabled=True)

    stored = client.create(SLICES, slice_(attributes={"numa": {"ints": [0, 1]}}))

    assert stored["spec"]["devices"][0]["attributes"]["numa"] == {"ints": [0, 1]}


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"a": {"ints": []}}, "must not be empty if specified"),
        ({"a": {"strings": ["x" * 65]}}, "spec.devices[0].attributes[a].strings[0]: Too long"),
        ({"a": {"versions": ["1.0"]}}, "spec.devices[0].attributes[a].versions[0]: Invalid value"),
        ({"a": {"ints": list(range(49))}}, "the total number of attribute values must not exceed 48"),
    ],
)
def test_lists_have_rules_of_their_own(server: EmbeddedApiServer, attributes: dict[str, Any], text: str) -> None:
    server.set_gate("DRAListTypeAttributes", enabled=True)

    with pytest.raises(ApiError) as caught:
        server.client().create(SLICES, slice_(attributes=attributes))

    assert caught.value.status == 422
    assert text in caught.value.message


def test_operations_are_skipped_in_pairs(server: EmbeddedApiServer) -> None:
    server.set_gate("DRAOptionalNodeOperations", enabled=True)
    document = slice_()
    document["spec"]["skipNodeOperations"] = ["NodePrepareResources"]

    with pytest.raises(ApiError, match="cannot be skipped unless NodeUnprepareResources"):
        server.client().create(SLICES, document)


def test_an_unknown_gate_is_named(server: EmbeddedApiServer) -> None:
    with pytest.raises(ValueError, match=r"known gates: .*DRADeviceTaints"):
        server.set_gate("DRADeviceTaint", enabled=False)


# Garbage collection and finalizers


@pytest.mark.bug("B38")
def test_slices_go_with_their_node(server: EmbeddedApiServer) -> None:
    client = server.client()
    uid = client.create(NODES, {"metadata": {"name": "n"}})["metadata"]["uid"]
    client.create(SLICES, slice_("owned", uid))
    client.create(SLICES, slice_("free"))
    client.create(SLICES, slice_("orphan", "an-earlier-node"))

    client.delete(f"{NODES}/n")

    assert [item["metadata"]["name"] for item in client.get(SLICES)["items"]] == ["free"]


def test_an_object_with_a_finalizer_goes_when_the_finalizer_goes(server: EmbeddedApiServer) -> None:
    client = server.client()
    claim = {"metadata": {"name": "c", "finalizers": ["resource.kubernetes.io/delete-protection"]}, "spec": {}}
    client.create(CLAIMS, claim)
    client.delete(f"{CLAIMS}/c")
    assert "deletionTimestamp" in client.get(f"{CLAIMS}/c")["metadata"]

    client.patch(f"{CLAIMS}/c", {"metadata": {"finalizers": None}})

    assert client.get(CLAIMS)["items"] == []


# Claims


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"requests": [{}]}, 'spec.devices.requests[0].name: Invalid value: ""'),
        ({"requests": [{"name": "a"}]}, "spec.devices.requests[0]: Invalid value"),
        (
            {"requests": [{"name": "a", "exactly": {}}]},
            "spec.devices.requests[0].exactly.deviceClassName: Required value",
        ),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c"}}] * 2},
            "spec.devices.requests[1]: Duplicate value",
        ),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "allocationMode": "Some"}}]},
            'exactly.allocationMode: Unsupported value: "Some"',
        ),
        (
            {"requests": [{"name": "a", "exactly": {"deviceClassName": "c", "count": -1}}]},
            "exactly.count: Invalid value: -1",
        ),
        ({"config": [{"opaque": {"driver": "d"}}]}, "spec.devices.config[0].opaque.parameters: Required value"),
        ({"config": [{"opaque": {"driver": "d", "parameters": [1]}}]}, "must be a valid JSON object"),
        (
            {"config": [{"requests": ["b"], "opaque": {"driver": "d", "parameters": {}}}]},
            "must be the name of a request",
        ),
        ({"constraints": [{}]}, "exactly one of matchAttribute or distinctAttribute is required"),
    ],
)
def test_a_malformed_claim_is_refused(server: EmbeddedApiServer, spec: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        server.client().create(CLAIMS, {"metadata": {"name": "c"}, "spec": {"devices": spec}})

    assert caught.value.status == 422
    assert field in caught.value.message


# Faults


def test_a_failure_happens_as_often_as_it_is_asked_for(server: EmbeddedApiServer) -> None:
    client = server.client()
    server.faults.fail(500, "InternalError", message="boom", methods=("GET",), path="/nodes", times=2)
    client.get(SLICES)
    for _ in range(2):
        with pytest.raises(ApiError, match="boom"):
            client.get(NODES)

    assert client.get(NODES)["items"] == []


def test_an_old_version_has_expired_after_a_compaction(server: EmbeddedApiServer) -> None:
    client = server.client()
    client.create(NODES, {"metadata": {"name": "n"}})
    server.faults.expire_watches()

    with pytest.raises(ApiError) as caught:
        list(client.watch(NODES, query={"resourceVersion": "1"}, timeout_seconds=2))

    assert (caught.value.status, caught.value.reason) == (410, "Expired")


def test_open_watches_can_be_broken(server: EmbeddedApiServer) -> None:
    client = server.client()
    client.create(NODES, {"metadata": {"name": "n"}})
    watch = client.watch(NODES, timeout_seconds=20)
    next(watch)
    server.faults.close_watches()

    with pytest.raises(ApiUnreachableError):
        next(watch)


def test_a_silent_watch_gets_bookmarks() -> None:
    with EmbeddedApiServer(bookmark_seconds=0.05) as server:
        watch = server.client().watch(NODES, query={"resourceVersion": "1"}, timeout_seconds=20)

        assert [next(watch).type for _ in range(2)] == ["BOOKMARK", "BOOKMARK"]
        watch.close()  # type: ignore[attr-defined] # it is a generator


def test_a_lagging_watch_delivers_later(server: EmbeddedApiServer) -> None:
    client = server.client()
    server.faults.hold_watches()
    client.create(NODES, {"metadata": {"name": "n"}})
    assert [event.type for event in client.watch(NODES, query={"resourceVersion": "1"}, timeout_seconds=1)] == [
        "BOOKMARK"
    ]

    server.faults.clear()

    first = next(iter(client.watch(NODES, query={"resourceVersion": "1"}, timeout_seconds=10)))
    assert first.type == "ADDED"


def test_writes_are_counted_without_dry_runs_and_reads(server: EmbeddedApiServer) -> None:
    client = server.client()
    client.get(SLICES)
    client.create(SLICES, slice_(), query={"dryRun": "All"})
    client.create(SLICES, slice_())

    assert [request.method for request in server.writes()] == ["POST"]
