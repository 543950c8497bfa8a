"""Claims, classes, events, and the server itself."""

from __future__ import annotations

from typing import Any

from kubeletplugin.client import ApiError
from tests.contract.apiserver.api_calls import (
    CLAIMS,
    CLASSES,
    EVENTS,
    SLICES,
    error_of,
)

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
