"""Reading claims: what concerns this driver and pool is taken; everything hostile is an error that names a path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare.claims import POD_CLAIM_ANNOTATION, ClaimAllocation, is_claim_uid, read_claim
from driver.prepare.errors import ClaimError, Reason
from tests.unit.prepare.prepare_node import DRIVER, POOL, claim, config, device, gpu_config, result

SHARE = "3f0e6a0e-0f3a-4b6d-9a6e-0d6f1f0c2a11"


def read(document: Any, uid: str = "u1") -> ClaimAllocation:
    return read_claim(document, uid=uid, driver_name=DRIVER, pool_name=POOL)


def refusal(document: Any, uid: str = "u1") -> ClaimError:
    with pytest.raises(ClaimError) as caught:
        read(document, uid)
    return caught.value


def test_results_keep_the_order_of_the_scheduler() -> None:
    allocation = read(claim("u1", result(3, "b"), result(0, "a"), result(1, "a")))
    assert [(item.request, item.device) for item in allocation.results] == [
        ("b", device(3)),
        ("a", device(0)),
        ("a", device(1)),
    ]
    assert (allocation.ref.namespace, allocation.ref.name, allocation.ref.uid) == ("ns", "claim-u1", "u1")


def test_share_and_admin_access_are_read() -> None:
    allocation = read(claim("u1", result(0, shareID=SHARE), result(1, adminAccess=True)))
    assert allocation.results[0].share_id == SHARE
    assert not allocation.results[0].admin_access
    assert allocation.results[1].share_id is None
    assert allocation.results[1].admin_access


@pytest.mark.parametrize(
    ("annotations", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"other": "x"}, ""),
        ({POD_CLAIM_ANNOTATION: "my-gpu"}, "my-gpu"),
        ({POD_CLAIM_ANNOTATION: ""}, ""),
        ({POD_CLAIM_ANNOTATION: "../../etc"}, None),
        ({POD_CLAIM_ANNOTATION: "a\nb"}, None),
        ({POD_CLAIM_ANNOTATION: 7}, None),
        ("not a map", ""),
    ],
)
def test_the_pods_name_for_a_claim_is_read_and_fails_no_claim(annotations: object, name: str | None) -> None:
    document = claim("u1", result(0))
    if annotations is not None:
        document["metadata"]["annotations"] = annotations
    assert read(document).pod_claim == name


@pytest.mark.bug("B52")
def test_results_of_other_drivers_and_other_pools_are_skipped_whatever_they_hold() -> None:
    foreign = {"request": 7, "driver": "nic.example.com", "device": ["gpu-0"], "pool": None}
    other_pool = result(1) | {"pool": "node-b/gpu.nvidia.com", "device": "NOT A NAME"}
    allocation = read(claim("u1", foreign, result(0), other_pool))
    assert [item.device for item in allocation.results] == [device(0)]


@pytest.mark.bug("B52")
def test_a_claim_of_other_drivers_only_is_empty_and_its_configuration_is_not_looked_at() -> None:
    broken = {"source": 5, "opaque": {"driver": DRIVER, "parameters": 3}}
    allocation = read(claim("u1", {"driver": "nic.example.com"}, configs=[broken]))
    assert allocation.results == ()
    assert allocation.configs == ()


def test_a_claim_with_devices_in_other_pools_only_is_refused_rather_than_started_without_a_gpu() -> None:
    error = refusal(claim("u1", result(0) | {"pool": "node-b"}))
    assert error.reason is Reason.DEVICE_NOT_FOUND
    assert error.permanent
    assert "node-b" in str(error)
    assert POOL in str(error)


@pytest.mark.bug("B52")
def test_configuration_of_other_drivers_is_skipped_whatever_it_holds() -> None:
    foreign = {"source": "FromMars", "requests": 3, "opaque": {"driver": "nic.example.com", "parameters": [1]}}
    unknown_type = {"source": "FromClass", "transparent": {}}
    allocation = read(claim("u1", result(0), configs=[foreign, unknown_type, config(gpu_config())]))
    assert len(allocation.configs) == 1


def test_class_configuration_comes_before_claim_configuration_whatever_the_order_in_the_document() -> None:
    entries = [config("claim-1"), config("class-1", "FromClass"), config("claim-2"), config("class-2", "FromClass")]
    allocation = read(claim("u1", result(0), configs=entries))
    assert [item.parameters for item in allocation.configs] == ["class-1", "class-2", "claim-1", "claim-2"]


def test_a_configuration_that_names_a_request_covers_its_subrequests() -> None:
    entries = [
        config("all"),
        config("base", requests=["gpu"]),
        config("this", requests=["gpu/big"]),
        config("other", requests=["gpu/small", "nic"]),
        config("empty", requests=[]),
    ]
    allocation = read(claim("u1", result(0, "gpu/big"), configs=entries))
    applied = [item.parameters for item in allocation.configs_for(allocation.results[0])]
    assert applied == ["all", "base", "this", "empty"]


@pytest.mark.bug("B55")
def test_a_claim_of_another_uid_is_refused_and_the_refusal_may_pass() -> None:
    error = refusal(claim("u2", result(0)), uid="u1")
    assert not error.permanent
    assert "u2" in str(error)
    assert "u1" in str(error)


@pytest.mark.bug("B67")
@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("status"),
        lambda document: document["status"].pop("allocation"),
        lambda document: document["status"].update(allocation=None),
        lambda document: document.update(status=None),
    ],
)
def test_a_claim_without_an_allocation_is_refused_and_the_refusal_may_pass(change: Any) -> None:
    document = claim("u1", result(0))
    change(document)
    error = refusal(document)
    assert "not allocated" in str(error)
    assert not error.permanent


@pytest.mark.bug("B67")
def test_an_allocation_without_devices_concerns_nobody() -> None:
    document = claim("u1")
    document["status"]["allocation"] = {}
    assert read(document).results == ()


@pytest.mark.bug("B67")
def test_a_claim_that_is_being_deleted_is_still_read() -> None:
    document = claim("u1", result(0))
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert len(read(document).results) == 1


RESULTS = "status.allocation.devices.results"
CONFIG = "status.allocation.devices.config"


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"driver": DRIVER}, f"{RESULTS}[0].pool"),
        ("text", f"{RESULTS}[0]"),
        ({"driver": ["x"]}, f"{RESULTS}[0].driver"),
        (result(0, "../../etc"), f"{RESULTS}[0].request"),
        (result(0, "a/b/c"), f"{RESULTS}[0].request"),
        (result(0, "a/"), f"{RESULTS}[0].request"),
        (result(0, "gpu\n"), f"{RESULTS}[0].request"),
        (result(0) | {"device": "gpu 0"}, f"{RESULTS}[0].device"),
        (result(0) | {"device": "../gpu"}, f"{RESULTS}[0].device"),
        (result(0) | {"device": "x" * 10240}, f"{RESULTS}[0].device"),
        (result(0) | {"device": None}, f"{RESULTS}[0].device"),
        (result(0, shareID="S1/.."), f"{RESULTS}[0].shareID"),
        (result(0, adminAccess="yes"), f"{RESULTS}[0].adminAccess"),
    ],
)
def test_a_malformed_result_is_a_permanent_error_that_names_its_path(broken: Any, path: str) -> None:
    error = refusal(claim("u1", broken))
    assert error.reason is Reason.INVALID_CLAIM
    assert error.permanent
    assert f"{path}: " in str(error)
    assert len(str(error)) < 400


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        (["x"], f"{CONFIG}[0]"),
        ({"opaque": "x"}, f"{CONFIG}[0].opaque"),
        ({"opaque": {"driver": 1}}, f"{CONFIG}[0].opaque.driver"),
        (config({}, source="FromMars"), f"{CONFIG}[0].source"),
        (config({}, requests=["a b"]), f"{CONFIG}[0].requests[0]"),
        (config(None), f"{CONFIG}[0].opaque.parameters"),
    ],
)
def test_a_malformed_configuration_entry_is_a_permanent_error_that_names_its_path(broken: Any, path: str) -> None:
    error = refusal(claim("u1", result(0), configs=[broken]))
    assert error.permanent
    assert f"{path}: " in str(error)


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("uid", "../x"),
        ("uid", "a/b"),
        ("uid", "u1\n"),
        ("uid", ""),
        ("namespace", "%s"),
        ("name", "a" * 300),
        ("name", 3),
    ],
)
def test_names_that_could_reach_a_path_are_checked(key: str, value: Any) -> None:
    document = claim("u1", result(0))
    document["metadata"][key] = value
    error = refusal(document, uid=value if key == "uid" else "u1")
    assert f"metadata.{key}" in str(error)


def test_the_same_request_device_and_share_twice_is_malformed() -> None:
    assert f"{RESULTS}[1]: repeats {RESULTS}[0]" in str(refusal(claim("u1", result(0), result(0))))


def test_one_device_for_two_requests_or_two_shares_is_legal() -> None:
    other = SHARE.replace("3", "4")
    allocation = read(claim("u1", result(0, "a", shareID=SHARE), result(0, "a", shareID=other), result(0, "b")))
    assert len(allocation.results) == 3


@pytest.mark.bug("B131")
def test_deep_nesting_and_long_values_are_survived() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    document = claim("u1", result(0), configs=[config(deep)])
    assert len(read(document).configs) == 1
    assert refusal(deep).permanent


@given(st.text(max_size=80))
def test_a_uid_that_is_accepted_is_safe_in_a_file_name(text: str) -> None:
    if is_claim_uid(text):
        assert text.isascii()
        assert len(text) <= 63
        assert not set(text) & set("/.\\\0\n %")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_document_is_read_or_refused_with_a_claim_error(document: Any) -> None:
    assert refusal(document).reason is Reason.INVALID_CLAIM


@given(st.data())
def test_a_claim_with_any_one_part_replaced_is_read_or_refused_with_a_claim_error(data: st.DataObject) -> None:
    document = claim("u1", result(0, shareID=SHARE), configs=[config(gpu_config(), requests=["gpu"])])
    place: Any = document
    key: Any = data.draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], dict | list) and data.draw(st.booleans()):
        place = place[key]
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
    place[key] = data.draw(JSON)
    try:
        allocation = read(document)
    except ClaimError as error:
        assert str(error)  # noqa: PT017 - either outcome is right; what must not come is another exception
    else:
        assert allocation.ref.uid == "u1"
