"""Lists, selections and deletions of slices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.apiserver.api_calls import (
    NODES,
    SLICES,
    error_of,
    path,
)

SINCE = {
    "test_slices_are_selected_by_their_fields[spec.driver={driver},spec.pool.name={node}/other-found3]": (
        37,
        "a selector can name the pool",
    ),
}


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
