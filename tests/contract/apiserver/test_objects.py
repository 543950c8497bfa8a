"""What happens to objects: names, versions, generations, conflicts, selections, deletions, dry runs, other kinds."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kubeletplugin.client import ApiError

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
NODES = "/api/v1/nodes"
EVENTS = "/api/v1/namespaces/default/events"
SINCE = {
    "test_bad_metadata_is_refused[metadata4-causes4]": (36, "an owner without a UID lacks it, and has no invalid one"),
    "test_the_time_of_a_taint_is_set_by_the_server_and_kept_in_seconds": (36, "taints are kept by default"),
    "test_a_merge_patch_changes_what_it_names": (35, "a slice without devices has no such field"),
    "test_slices_are_selected_by_their_fields[spec.driver={driver},spec.pool.name={node}/other-found3]": (
        37,
        "a selector can name the pool",
    ),
}
UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SLICE_DETAILS = {"group": "resource.k8s.io", "kind": "resourceslices"}


def error_of(call: Any, *args: Any, **kwargs: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call(*args, **kwargs)
    return caught.value


def path(document: dict[str, Any]) -> str:
    return f"{SLICES}/{document['metadata']['name']}"


# Creation


def test_a_created_object_gets_its_identity_from_the_server(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())

    metadata = stored["metadata"]
    assert (stored["kind"], stored["apiVersion"]) == ("ResourceSlice", "resource.k8s.io/v1")
    assert UID.fullmatch(metadata["uid"])
    assert metadata["resourceVersion"].isdigit()
    assert metadata["generation"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", metadata["creationTimestamp"])
    assert "namespace" not in metadata
    assert api.client.get(path(stored)) == stored


def test_what_the_client_says_about_uid_and_generation_is_ignored(api: Any) -> None:
    document = api.slice()
    document["metadata"] |= {"uid": "mine", "generation": 17, "creationTimestamp": "2000-01-01T00:00:00Z"}

    metadata = api.client.create(SLICES, document)["metadata"]

    assert UID.fullmatch(metadata["uid"])
    assert metadata["generation"] == 1
    assert not metadata["creationTimestamp"].startswith("2000")


def test_generate_name_is_cut_to_58_characters_and_completed_by_five(api: Any) -> None:
    document = api.slice()
    prefix = f"00000-{api.driver}-{'a-long-node-name.' * 4}example.com-"
    document["metadata"] = {"generateName": prefix}

    first, second = (api.client.create(SLICES, document)["metadata"] for _ in range(2))

    assert first["name"].startswith(prefix[:58])
    assert re.fullmatch(r"[bcdfghjklmnpqrstvwxz2456789]{5}", first["name"][58:])
    assert first["generateName"] == prefix
    assert first["name"] != second["name"]


def test_a_short_generate_name_stays_whole(api: Any) -> None:
    document = api.slice()
    document["metadata"] = {"generateName": f"00000-{api.driver}-"}

    name = api.client.create(SLICES, document)["metadata"]["name"]

    assert name.startswith(f"00000-{api.driver}-")
    assert len(name) == len(f"00000-{api.driver}-") + 5


@pytest.mark.parametrize(
    ("metadata", "causes"),
    [
        ({}, [("FieldValueRequired", "metadata.name")]),
        ({"name": "Bad_Name"}, [("FieldValueInvalid", "metadata.name")]),
        (
            {"generateName": "Bad_"},
            [("FieldValueInvalid", "metadata.generateName"), ("FieldValueInvalid", "metadata.name")],
        ),
        ({"name": "x", "labels": {"a b": "c"}}, [("FieldValueInvalid", "metadata.labels")]),
        (
            {"name": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]},
            [("FieldValueRequired", "metadata.ownerReferences[0].uid")],
        ),
    ],
)
def test_bad_metadata_is_refused(api: Any, metadata: dict[str, Any], causes: list[tuple[str, str]]) -> None:
    error = api.refused(api.slice() | {"metadata": metadata})

    assert error.status == 422
    assert [(cause["reason"], cause["field"]) for cause in error.details["causes"]] == causes


def test_a_name_is_given_once(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    name = stored["metadata"]["name"]

    error = error_of(api.client.create, SLICES, api.slice())

    assert (error.status, error.reason) == (409, "AlreadyExists")
    assert error.message == f'resourceslices.resource.k8s.io "{name}" already exists'
    assert error.details == {"name": name, **SLICE_DETAILS}


@pytest.mark.parametrize(
    "change", [{"kind": "Nope"}, {"apiVersion": "resource.k8s.io/v1beta9"}], ids=["of kind", "of version"]
)
def test_an_object_of_another_type_is_a_bad_request(api: Any, change: dict[str, str]) -> None:
    error = api.refused(api.slice() | change)

    assert (error.status, error.reason) == (400, "BadRequest")
    assert "cannot be handled as a ResourceSlice: no kind" in error.message


def test_the_type_may_be_left_to_the_path(api: Any) -> None:
    document = {key: value for key, value in api.slice().items() if key in ("metadata", "spec")}

    assert api.client.create(SLICES, document)["kind"] == "ResourceSlice"


def test_quantities_come_back_in_canonical_form(api: Any) -> None:
    capacity = {"a": {"value": "1024Mi"}, "b": {"value": "1.5"}, "c": {"value": 80}, "d": {"value": "0.5Gi"}}

    stored = api.client.create(SLICES, api.slice(devices=[{"name": "gpu-0", "capacity": capacity}]))

    kept = stored["spec"]["devices"][0]["capacity"]
    assert {name: entry["value"] for name, entry in kept.items()} == {"a": "1Gi", "b": "1500m", "c": "80", "d": "512Mi"}


def test_empty_and_unknown_fields_are_not_kept(api: Any) -> None:
    device = {"name": "gpu-0", "attributes": {}, "taints": [], "odd": {"a": 1}}

    stored = api.client.create(SLICES, api.slice(devices=[device], nonsense=1))

    assert stored["spec"]["devices"] == [{"name": "gpu-0"}]
    assert "nonsense" not in stored["spec"]


@pytest.mark.bug("B35")
def test_the_time_of_a_taint_is_set_by_the_server_and_kept_in_seconds(api: Any) -> None:
    taints = [
        {"key": "a", "value": "", "effect": "NoSchedule"},
        {"key": "b", "effect": "NoExecute", "timeAdded": "2026-01-01T01:00:00.7+01:00"},
    ]

    stored = api.client.create(SLICES, api.slice(devices=[{"name": "gpu-0", "taints": taints}]))

    first, second = stored["spec"]["devices"][0]["taints"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first.pop("timeAdded"))
    assert first == {"key": "a", "effect": "NoSchedule"}
    assert second["timeAdded"] == "2026-01-01T00:00:00Z"


def test_fields_of_a_disabled_feature_are_dropped_without_a_word(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice(skipNodeOperations=["*"]))

    assert "skipNodeOperations" not in stored["spec"]


def test_a_dry_run_answers_like_the_real_thing_and_stores_nothing(api: Any) -> None:
    answer = api.client.create(SLICES, api.slice(), query={"dryRun": "All"})

    assert UID.fullmatch(answer["metadata"]["uid"])
    assert error_of(api.client.get, path(answer)).status == 404


# Update


def test_an_update_of_the_spec_counts_the_generation(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    stored["spec"]["pool"]["generation"] = 2

    changed = api.client.update(path(stored), stored)

    assert changed["metadata"]["generation"] == 2
    assert int(changed["metadata"]["resourceVersion"]) > int(stored["metadata"]["resourceVersion"])
    assert changed["metadata"]["uid"] == stored["metadata"]["uid"]


def test_an_update_of_labels_leaves_the_generation(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    stored["metadata"]["labels"] = {"a": "b"}

    changed = api.client.update(path(stored), stored)

    assert changed["metadata"]["generation"] == 1
    assert changed["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]


def test_an_update_without_a_change_writes_nothing(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())

    again = api.client.update(path(stored), stored)

    assert again["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]


def test_an_update_from_an_old_version_is_a_conflict(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    name = stored["metadata"]["name"]
    stored["spec"]["pool"]["generation"] = 2
    api.client.update(path(stored), stored)

    error = error_of(api.client.update, path(stored), stored)

    assert (error.status, error.reason) == (409, "Conflict")
    assert error.message == (
        f'Operation cannot be fulfilled on resourceslices.resource.k8s.io "{name}": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )
    assert error.details == {"name": name, **SLICE_DETAILS}


def test_an_update_without_a_version_is_unconditional(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    document = api.slice()
    document["spec"]["pool"]["generation"] = 5

    assert api.client.update(path(stored), document)["spec"]["pool"]["generation"] == 5


def test_an_update_of_another_uid_is_a_conflict(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    stored["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"

    error = error_of(api.client.update, path(stored), stored)

    assert (error.status, error.reason) == (409, "Conflict")
    assert "Precondition failed: UID in precondition: 00000000-0000-0000-0000-000000000000" in error.message


def test_an_update_of_another_name_is_a_bad_request(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    where = path(stored)
    stored["metadata"]["name"] = "other"

    error = error_of(api.client.update, where, stored)

    assert error.status == 400
    assert error.message.startswith("the name of the object (other) does not match the name on the URL")


@pytest.mark.parametrize("field", ["driver", "nodeName", "pool.name"])
def test_driver_node_and_pool_of_a_slice_are_fixed(api: Any, field: str) -> None:
    stored = api.client.create(SLICES, api.slice())
    if field == "pool.name":
        stored["spec"]["pool"]["name"] = "other"
    else:
        stored["spec"][field] = "other"

    error = error_of(api.client.update, path(stored), stored)

    assert error.status == 422
    cause = {"reason": "FieldValueInvalid", "message": 'Invalid value: "other": field is immutable'}
    assert error.details["causes"] == [cause | {"field": f"spec.{field}"}]


def test_an_owner_can_be_exchanged_without_a_new_generation(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    node = api.client.create(NODES, {"metadata": {"name": api.node}})
    owner = {"apiVersion": "v1", "kind": "Node", "name": api.node, "uid": node["metadata"]["uid"], "controller": True}
    stored["metadata"]["ownerReferences"] = [owner]

    changed = api.client.update(path(stored), stored)

    assert changed["metadata"]["ownerReferences"] == [owner]
    assert changed["metadata"]["generation"] == 1
    api.client.delete(f"{NODES}/{api.node}")


def test_a_merge_patch_changes_what_it_names(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())

    changed = api.client.patch(path(stored), {"metadata": {"labels": {"a": "b"}}, "spec": {"devices": None}})

    assert changed["metadata"]["labels"] == {"a": "b"}
    assert "devices" not in changed["spec"]
    assert changed["metadata"]["generation"] == 2


# What is not there


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_an_object_that_is_not_there_is_not_found(api: Any, method: str) -> None:
    name = f"{api.tag}-none"
    body = {"PUT": api.slice(name), "PATCH": {}}.get(method)
    content_type = "application/merge-patch+json" if method == "PATCH" else "application/json"

    error = error_of(api.client.request, method, f"{SLICES}/{name}", body=body, content_type=content_type)

    assert (error.status, error.reason) == (404, "NotFound")
    assert error.message == f'resourceslices.resource.k8s.io "{name}" not found'
    assert error.details == {"name": name, **SLICE_DETAILS}


def test_a_core_object_that_is_not_there_is_named_without_a_group(api: Any) -> None:
    error = error_of(api.client.get, f"{NODES}/{api.tag}")

    assert error.message == f'nodes "{api.tag}" not found'
    assert error.details == {"name": api.tag, "kind": "nodes"}


def test_an_unknown_resource_is_not_found(api: Any) -> None:
    error = error_of(api.client.get, "/apis/resource.k8s.io/v1/nopes")

    assert (error.status, error.reason) == (404, "NotFound")
    assert error.message == "the server could not find the requested resource"
    assert error.details == {}


@pytest.mark.bug("B33")
def test_an_unknown_group_is_answered_in_plain_text(api: Any) -> None:
    error = error_of(api.client.get, "/apis/nope.example.com/v1/things")

    assert (error.status, error.message) == (404, "404 page not found")


def test_a_collection_is_not_updated(api: Any) -> None:
    error = error_of(api.client.update, SLICES, api.slice())

    assert (error.status, error.reason) == (405, "MethodNotAllowed")
    assert error.message == "the server does not allow this method on the requested resource"


def test_only_known_media_types_are_read(api: Any) -> None:
    error = error_of(api.client.request, "POST", SLICES, body=api.slice(), content_type="text/plain")

    assert (error.status, error.reason) == (415, "UnsupportedMediaType")


# Lists and selectors


def test_a_list_has_a_version_and_items_without_type(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())

    answer = api.client.get(SLICES, query=api.mine)

    assert (answer["kind"], answer["apiVersion"]) == ("ResourceSliceList", "resource.k8s.io/v1")
    assert int(answer["metadata"]["resourceVersion"]) >= int(stored["metadata"]["resourceVersion"])
    assert answer["items"] == [{"metadata": stored["metadata"], "spec": stored["spec"]}]


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("spec.nodeName={node}", ["a", "b"]),
        ("spec.driver={driver},spec.nodeName={node}", ["a", "b"]),
        ("spec.driver={driver},spec.nodeName=", ["everywhere"]),
        ("spec.driver={driver},spec.pool.name={node}/other", ["b"]),
        ("spec.driver=={driver},spec.nodeName!={node}", ["everywhere"]),
        ("metadata.name={tag}-a", ["a"]),
        ("spec.driver={driver},spec.nodeName=elsewhere", []),
    ],
)
def test_slices_are_selected_by_their_fields(api: Any, selector: str, found: list[str]) -> None:
    other = {"name": f"{api.node}/other", "generation": 1, "resourceSliceCount": 1}
    api.client.create(SLICES, api.slice(f"{api.tag}-a"))
    api.client.create(SLICES, api.slice(f"{api.tag}-b", pool=other))
    api.client.create(SLICES, api.slice(f"{api.tag}-everywhere", nodeName=None, allNodes=True))

    query = {"fieldSelector": selector.format(tag=api.tag, driver=api.driver, node=api.node)}
    items = api.client.get(SLICES, query=query)["items"]

    assert [item["metadata"]["name"] for item in items] == [f"{api.tag}-{name}" for name in found]


@pytest.mark.parametrize(
    ("selector", "message"),
    [
        ("spec.bogus=1", "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.bogus"),
        ("spec.driver", "invalid selector: 'spec.driver'; can't understand 'spec.driver'"),
    ],
)
def test_a_selector_that_is_not_supported_is_a_bad_request(api: Any, selector: str, message: str) -> None:
    error = error_of(api.client.get, SLICES, query={"fieldSelector": selector})

    assert error.status == 400
    assert message in error.message


# Deletion


def test_a_deleted_slice_is_the_answer(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())

    answer = api.client.delete(path(stored))

    assert (answer["kind"], answer["metadata"]["uid"]) == ("ResourceSlice", stored["metadata"]["uid"])
    assert error_of(api.client.get, path(stored)).status == 404


def test_a_deletion_under_conditions_that_hold_succeeds(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice())
    metadata = stored["metadata"]

    api.client.delete(path(stored), uid=metadata["uid"], resource_version=metadata["resourceVersion"])

    assert api.client.get(SLICES, query=api.mine)["items"] == []


@pytest.mark.parametrize(
    ("conditions", "text"),
    [
        (
            {"uid": "0-0"},
            (
                "the UID in the precondition (0-0) does not match the UID in record ({uid}). The object might have "
                "been deleted and then recreated"
            ),
        ),
        (
            {"resource_version": "1"},
            (
                "the ResourceVersion in the precondition (1) does not match the ResourceVersion in record ({version}). "
                "The object might have been modified"
            ),
        ),
    ],
)
def test_a_deletion_under_conditions_that_fail_is_a_conflict(api: Any, conditions: dict[str, str], text: str) -> None:
    stored = api.client.create(SLICES, api.slice())
    metadata = stored["metadata"]

    error = error_of(api.client.delete, path(stored), **conditions)

    assert (error.status, error.reason) == (409, "Conflict")
    wanted = text.format(uid=metadata["uid"], version=metadata["resourceVersion"])
    assert error.message == (
        f'Operation cannot be fulfilled on ResourceSlice.resource.k8s.io "{metadata["name"]}": {wanted}'
    )
    assert api.client.get(path(stored)) == stored


def test_a_collection_is_deleted_as_far_as_it_is_selected(api: Any) -> None:
    api.client.create(SLICES, api.slice(f"{api.tag}-a"))
    api.client.create(SLICES, api.slice(f"{api.tag}-b", nodeName="node-elsewhere"))

    answer = api.client.delete(SLICES, query={"fieldSelector": f"spec.driver={api.driver},spec.nodeName={api.node}"})

    assert answer["kind"] == "ResourceSliceList"
    assert [item["metadata"]["name"] for item in answer["items"]] == [f"{api.tag}-a"]
    left = api.client.get(SLICES, query=api.mine)["items"]
    assert [item["metadata"]["name"] for item in left] == [f"{api.tag}-b"]


def test_a_deleted_node_is_answered_by_a_status(api: Any) -> None:
    node = api.client.create(NODES, {"metadata": {"name": api.node}})

    answer = api.client.delete(f"{NODES}/{api.node}")

    assert (answer["kind"], answer["status"]) == ("Status", "Success")
    assert answer["details"] == {"name": api.node, "kind": "nodes", "uid": node["metadata"]["uid"]}


# Claims, classes, events, the server itself


def test_a_claim_is_allocated_through_its_status_only(api: Any) -> None:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    claim["status"] = {"allocation": api.allocation()}

    plain = api.client.update(where, claim)
    allocated = api.client.update(f"{where}/status", claim | {"metadata": plain["metadata"]})

    assert "allocation" not in (plain.get("status") or {})
    assert allocated["status"]["allocation"] == api.allocation()
    assert allocated["metadata"]["namespace"] == "default"
    api.client.delete(where)


def test_a_claim_asks_for_one_device_unless_it_says_otherwise(api: Any) -> None:
    answer = api.client.create(CLAIMS, api.claim(), query={"dryRun": "All"})

    request = answer["spec"]["devices"]["requests"][0]["exactly"]
    assert request == {"deviceClassName": "gpu.example.com", "allocationMode": "ExactCount", "count": 1}


def test_the_spec_of_a_claim_is_fixed(api: Any) -> None:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    claim["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "other.example.com"

    error = error_of(api.client.update, where, claim)

    assert error.status == 422
    assert [(cause["field"], cause["reason"]) for cause in error.details["causes"]] == [("spec", "FieldValueInvalid")]
    assert "field is immutable" in error.message
    api.client.delete(where)


def status_error(api: Any, status: dict[str, Any], before: dict[str, Any] | None = None) -> ApiError:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    try:
        if before is not None:
            claim = api.client.update(f"{where}/status", claim | {"status": before})
        return error_of(api.client.update, f"{where}/status", claim | {"status": status})
    finally:
        api.client.delete(where)


def fields_of(error: ApiError) -> list[tuple[str, str]]:
    return sorted((cause["field"], cause["reason"]) for cause in error.details["causes"])


def test_an_allocation_names_requests_of_the_claim(api: Any) -> None:
    allocation = api.allocation()
    allocation["devices"]["results"][0]["request"] = "other"

    error = status_error(api, {"allocation": allocation})

    assert fields_of(error) == [("status.allocation.devices.results[0].request", "FieldValueInvalid")]


def test_an_allocation_is_not_exchanged(api: Any) -> None:
    other = api.allocation()
    other["devices"]["results"][0]["device"] = "gpu-1"

    error = status_error(api, {"allocation": other}, before={"allocation": api.allocation()})

    assert fields_of(error) == [("status.allocation", "FieldValueInvalid")]


def test_a_claim_is_reserved_only_when_it_is_allocated(api: Any) -> None:
    error = status_error(api, {"reservedFor": [{"resource": "pods", "name": "pod", "uid": "u"}]})

    assert fields_of(error) == [("status.reservedFor", "FieldValueForbidden")]


def test_a_device_status_is_about_an_allocated_device(api: Any) -> None:
    device = {"driver": api.driver, "pool": f"{api.node}/gpus", "device": "gpu-7"}

    error = status_error(api, {"allocation": api.allocation(), "devices": [device]})

    assert fields_of(error) == [("status.devices[0]", "FieldValueInvalid")]
    assert "must be an allocated device in the claim" in error.message


def test_a_device_status_with_data_is_kept(api: Any) -> None:
    claim = api.client.create(CLAIMS, api.claim())
    where = f"{CLAIMS}/{claim['metadata']['name']}"
    device = {"driver": api.driver, "pool": f"{api.node}/gpus", "device": "gpu-0", "data": {"uuid": "GPU-1"}}

    claim["status"] = {"allocation": api.allocation(), "devices": [device]}
    stored = api.client.update(f"{where}/status", claim)

    assert stored["status"]["devices"] == [device | {"conditions": None}]
    api.client.delete(where)


def test_a_class_is_stored(api: Any) -> None:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{api.driver}"'}}]}
    stored = api.client.create(CLASSES, {"metadata": {"name": api.driver}, "spec": spec})

    assert stored["spec"] == spec
    api.client.delete(f"{CLASSES}/{api.driver}")


def event(api: Any, namespace: str) -> dict[str, Any]:
    return {
        "metadata": {"name": f"{api.tag}.1", "namespace": namespace},
        "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": api.node},
        "reason": "Refused",
        "message": "a slice was refused",
        "type": "Warning",
        "source": {"component": "test"},
        "count": 1,
    }


def test_an_event_about_a_node_lives_in_the_default_namespace(api: Any) -> None:
    stored = api.client.create(EVENTS, event(api, "default"))

    selector = {"fieldSelector": f"involvedObject.name={api.node}"}
    assert stored["count"] == 1
    assert [item["reason"] for item in api.client.get(EVENTS, query=selector)["items"]] == ["Refused"]


def test_an_event_about_a_node_lives_in_no_other_namespace(api: Any) -> None:
    error = error_of(
        api.client.create, "/api/v1/namespaces/kube-system/events", event(api, "kube-system"), query={"dryRun": "All"}
    )

    assert error.status == 422
    assert ("involvedObject.namespace", "FieldValueInvalid") in fields_of(error)


def test_the_server_says_its_version_and_that_it_is_ready(api: Any) -> None:
    version = api.client.get("/version")

    assert (version["major"], version["minor"] >= "34") == ("1", True)
    assert api.client.text("/readyz") == "ok"


def test_a_wrong_token_is_unauthorized(api: Any) -> None:
    with api.stranger() as stranger:
        error = error_of(stranger.get, SLICES)

    assert (error.status, error.reason, error.message) == (401, "Unauthorized", "Unauthorized")
