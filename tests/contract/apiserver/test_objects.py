"""What happens to a slice that is made, changed and not there: names, versions, generations, conflicts, dry runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.contract.apiserver.api_calls import (
    NODES,
    SLICE_DETAILS,
    SLICES,
    UID,
    error_of,
    path,
)

SINCE = {
    "test_bad_metadata_is_refused[an owner without a UID]": (37, "it lacks one; before, the empty one was invalid"),
    "test_the_time_of_a_taint_is_set_by_the_server_and_kept_in_seconds": (36, "taints are kept by default"),
    "test_a_merge_patch_changes_what_it_names": (35, "a slice without devices has no such field"),
}


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
        pytest.param({}, [("FieldValueRequired", "metadata.name")], id="no name"),
        pytest.param({"name": "Bad_Name"}, [("FieldValueInvalid", "metadata.name")], id="a name"),
        pytest.param(
            {"generateName": "Bad_"},
            [("FieldValueInvalid", "metadata.generateName"), ("FieldValueInvalid", "metadata.name")],
            id="the beginning of a name",
        ),
        pytest.param({"name": "x", "labels": {"a b": "c"}}, [("FieldValueInvalid", "metadata.labels")], id="a label"),
        pytest.param(
            {"name": "x", "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n"}]},
            [("FieldValueRequired", "metadata.ownerReferences[0].uid")],
            id="an owner without a UID",
        ),
    ],
)
def test_bad_metadata_is_refused(api: Any, metadata: dict[str, Any], causes: list[tuple[str, str]]) -> None:
    """The causes are those of 1.37; a row that was another before has its note in ``SINCE``."""
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
