"""Server-side apply of a claim's device status: the embedded server does what the real one does."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from kubeletplugin.client import APPLY_PATCH, ApiError
from tests.contract.apiserver.api_calls import CLAIMS

SINCE = {
    "test_a_share_is_an_entry_of_its_own": (36, "share IDs are kept (DRAConsumableCapacity is on by default)"),
    "test_a_claim_that_was_made_anew_is_not_written": (36, "another UID is an invalid object and no conflict"),
}
SHARE = "11111111-2222-3333-4444-555555555555"


class Claim:
    """An allocated claim with devices of two drivers, and a door to its status."""

    def __init__(self, api: Any) -> None:
        self.client = api.client
        self.a, self.b = f"a.{api.driver}", f"b.{api.driver}"
        created = self.client.create(CLAIMS, api.claim())
        self.name, self.uid = created["metadata"]["name"], created["metadata"]["uid"]
        results: list[dict[str, Any]] = [self.device(self.a, name) for name in ("d0", "d1")]
        results.append(self.device(self.b, "d0"))
        results.append(self.device(self.a, "d2") | {"shareID": SHARE, "consumedCapacity": {"memory": "1Gi"}})
        for result in results:
            result["request"] = "gpu"
        allocation = {"devices": {"results": results}}
        # Reserved for nobody: where a whole control plane runs, it takes reservations for absent pods away again.
        self.put(created | {"status": {"allocation": allocation}})

    @property
    def path(self) -> str:
        return f"{CLAIMS}/{self.name}"

    def device(self, driver: str, name: str, **fields: Any) -> dict[str, Any]:
        return {"driver": driver, "pool": "pool", "device": name, **fields}

    def put(self, document: dict[str, Any]) -> dict[str, Any]:
        return dict(self.client.update(f"{self.path}/status", document))

    def apply(self, *devices: dict[str, Any], by: str | None = None, force: bool = False, **metadata: Any) -> Any:
        query = {"fieldManager": by if by is not None else self.a, **({"force": "true"} if force else {})}
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": self.name, "namespace": "default", **metadata},
            "status": {"devices": list(devices)},
        }
        answer = self.client.request("PATCH", f"{self.path}/status", query=query, body=body, content_type=APPLY_PATCH)
        return [without_nulls(one) for one in answer.get("status", {}).get("devices") or ()]

    def refused(self, *devices: dict[str, Any], **options: Any) -> ApiError:
        before = self.client.get(self.path)["status"]
        with pytest.raises(ApiError) as caught:
            self.apply(*devices, **options)
        assert self.client.get(self.path)["status"] == before, "nothing of it is stored"
        return caught.value


def without_nulls(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if value is not None}


@pytest.fixture
def claim(api: Any) -> Claim:
    return Claim(api)


def condition(kind: str, status: str) -> dict[str, Any]:
    at = "2024-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": "Tested", "message": "", "lastTransitionTime": at}


def test_each_manager_has_its_own_entries(claim: Claim) -> None:
    mine, theirs = claim.device(claim.a, "d0", data={"uuid": "GPU-0"}), claim.device(claim.b, "d0", data={"x": 1})
    assert claim.apply(mine) == [mine]
    assert claim.apply(theirs, by=claim.b) == [mine, theirs]
    assert claim.apply(mine) == [mine, theirs], "the same again changes nothing"


def test_what_is_not_said_again_is_gone(claim: Claim) -> None:
    first, second = claim.device(claim.a, "d0", data={"n": 0}), claim.device(claim.a, "d1")
    other = claim.device(claim.b, "d0")
    claim.apply(other, by=claim.b)
    claim.apply(first)
    assert claim.apply(second) == [other, second]
    assert claim.apply() == [other]


def test_fields_of_an_entry_come_and_go(claim: Claim) -> None:
    network = {"interfaceName": "eth1", "ips": ["10.0.0.1/24"]}
    full = claim.device(claim.a, "d0", data={"n": 0}, networkData=network, conditions=[condition("Ready", "True")])
    (found,) = claim.apply(full)
    assert (found["data"], found["networkData"]) == ({"n": 0}, network)
    less = claim.device(claim.a, "d0", networkData={"interfaceName": "eth1"}, conditions=[condition("Ready", "False")])
    (found,) = claim.apply(less)
    assert "data" not in found
    assert found["networkData"] == {"interfaceName": "eth1"}
    assert [(one["type"], one["status"]) for one in found["conditions"]] == [("Ready", "False")]
    (found,) = claim.apply(claim.device(claim.a, "d0", conditions=[condition("Other", "True")]))
    assert [one["type"] for one in found["conditions"]] == ["Other"]


def test_a_share_is_an_entry_of_its_own(claim: Claim) -> None:
    shared = claim.device(claim.a, "d2", shareID=SHARE)
    assert claim.apply(shared) == [shared]
    assert claim.refused(claim.device(claim.a, "d2")).status == 422


def test_another_value_of_another_manager_is_a_conflict(claim: Claim) -> None:
    claim.apply(claim.device(claim.a, "d0", data={"n": 0}), by="first")
    error = claim.refused(claim.device(claim.a, "d0", data={"n": 1}), by="second")
    assert (error.status, error.reason) == (409, "Conflict")
    field = f'.status.devices[device="d0",driver="{claim.a}",pool="pool"].data'
    assert error.message == (f'Apply failed with 1 conflict: conflict with "first" with subresource "status": {field}')
    assert [cause["field"] for cause in error.details["causes"]] == [field]


def test_the_same_value_is_no_conflict_and_stays_until_the_last_says_it(claim: Claim) -> None:
    same = claim.device(claim.a, "d0", data={"n": 0})
    claim.apply(same, by="first")
    assert claim.apply(same, by="second") == [same]
    assert claim.apply(by="first") == [same]
    assert claim.apply(by="second") == []


def test_force_takes_a_value_over(claim: Claim) -> None:
    claim.apply(claim.device(claim.a, "d0", data={"n": 0}), by="first")
    taken = claim.device(claim.a, "d0", data={"n": 1})
    assert claim.apply(taken, by="second", force=True) == [taken]
    assert claim.apply(by="first") == [taken], "it is not the first one's any more"


def test_an_update_by_others_is_a_manager_too(claim: Claim) -> None:
    document = claim.client.get(claim.path)
    document["status"]["devices"] = [claim.device(claim.a, "d0", data={"who": "update"})]
    claim.put(document)
    mine = claim.device(claim.a, "d0", data={"who": "apply"})
    error = claim.refused(mine)
    assert error.status == 409
    assert 'with subresource "status" using resource.k8s.io/v1: ' in error.message
    assert claim.apply(mine, force=True) == [mine]


def test_an_update_of_other_parts_leaves_entries_to_their_manager(claim: Claim) -> None:
    mine = claim.device(claim.a, "d0", data={"n": 0})
    claim.apply(mine)
    document = claim.client.get(claim.path)
    document["status"]["reservedFor"] = [{"resource": "pods", "name": "two", "uid": str(uuid.uuid4())}]
    claim.put(document)
    assert claim.apply() == []


def test_a_device_that_is_not_allocated_is_refused(claim: Claim) -> None:
    error = claim.refused(claim.device(claim.a, "nowhere"))
    assert (error.status, error.reason) == (422, "Invalid")
    assert "must be an allocated device in the claim" in error.message


def test_an_entry_that_is_there_twice_is_refused(claim: Claim) -> None:
    assert claim.refused(claim.device(claim.a, "d0"), claim.device(claim.a, "d0")).status == 500


def test_a_claim_that_was_made_anew_is_not_written(claim: Claim) -> None:
    error = claim.refused(claim.device(claim.a, "d0"), uid=str(uuid.uuid4()))
    assert (error.status, error.reason) == (422, "Invalid")
    assert {cause["field"] for cause in error.details["causes"]} == {"metadata.uid"}  # 1.36 says it twice
    assert claim.apply(claim.device(claim.a, "d0"), uid=claim.uid)


def test_a_version_is_held_to(claim: Claim) -> None:
    error = claim.refused(claim.device(claim.a, "d0"), resourceVersion="1")
    assert (error.status, error.reason) == (409, "Conflict")


def test_a_manager_has_a_name(claim: Claim) -> None:
    error = claim.refused(claim.device(claim.a, "d0"), by="")
    assert (error.status, [cause["field"] for cause in error.details["causes"]]) == (422, ["fieldManager"])


def test_managed_fields_are_the_servers(claim: Claim) -> None:
    assert claim.refused(claim.device(claim.a, "d0"), managedFields=[]).status == 400


def test_status_can_be_applied_to_a_claim_that_is_there(claim: Claim) -> None:
    claim.client.delete(claim.path)
    with pytest.raises(ApiError) as caught:
        claim.apply(claim.device(claim.a, "d0"))
    assert caught.value.status == 404


def test_deallocation_clears_it(claim: Claim) -> None:
    claim.apply(claim.device(claim.a, "d0"))
    claim.put(claim.client.get(claim.path) | {"status": {}})
    assert claim.client.get(claim.path).get("status", {}) == {}
