"""Which claims a driver gets to see."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeletplugin.api import ClaimRef, PrepareError
from kubeletplugin.claims import check_claim, check_ref, claim_path, fetch_claim
from kubeletplugin.client import ApiError, ApiUnreachableError
from kubeletplugin.credentials import CredentialsError
from tests.unit.kubelet_side.fakes import FakeApi, claim_document, ref


def refusal(one: ClaimRef, document: dict[str, object]) -> PrepareError:
    with pytest.raises(PrepareError) as caught:
        check_claim(one, document)
    return caught.value


def test_an_allocated_and_reserved_claim_is_accepted() -> None:
    api = FakeApi()
    api.add_claim(ref())
    claim = fetch_claim(api, ref(), 1)
    assert claim.ref == ref()
    assert claim.document == claim_document(ref())


@pytest.mark.bug("B55")
def test_a_claim_that_was_replaced_under_its_name_is_refused() -> None:
    document = claim_document(ref())
    document["metadata"]["uid"] = "uid-new"
    error = refusal(ref(), document)
    assert error.reason == "ClaimReplaced"
    assert "uid uid-1) was replaced" in str(error)
    assert "uid-new" in str(error)
    assert not error.permanent


@pytest.mark.bug("B67")
@pytest.mark.parametrize(
    ("change", "reason", "text"),
    [
        (lambda c: c.pop("status"), "ClaimNotReserved", "is reserved for no pod"),
        (lambda c: c.update(status=None), "ClaimNotReserved", "is reserved for no pod"),
        (lambda c: c["status"].pop("reservedFor"), "ClaimNotReserved", "is reserved for no pod"),
        (lambda c: c["status"].pop("allocation"), "ClaimNotAllocated", "is not allocated"),
        (lambda c: c["status"].update(allocation=None), "ClaimNotAllocated", "is not allocated"),
        (lambda c: c["status"].update(allocation={}), "ClaimNotAllocated", "allocation without devices"),
        (lambda c: c["status"]["allocation"]["devices"].update(results=[]), "ClaimNotAllocated", "without devices"),
    ],
)
def test_a_claim_without_what_is_needed_is_refused_in_clear_words(change, reason: str, text: str) -> None:  # type: ignore[no-untyped-def]
    document = claim_document(ref())
    change(document)
    error = refusal(ref(), document)
    assert error.reason == reason
    assert text in str(error)


@pytest.mark.bug("B67")
def test_a_claim_that_is_being_deleted_works_as_long_as_a_pod_has_it() -> None:
    document = claim_document(ref())
    document["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    check_claim(ref(), document)
    document["status"]["reservedFor"] = []
    assert "is being deleted and reserved for no pod" in str(refusal(ref(), document))


@pytest.mark.bug("B67")
def test_a_claim_that_is_gone_is_refused_as_such() -> None:
    with pytest.raises(PrepareError, match=r"claim default/claim-1 \(uid uid-1\) does not exist any more") as caught:
        fetch_claim(FakeApi(), ref(), 1)
    assert caught.value.reason == "ClaimNotFound"


@pytest.mark.parametrize(
    ("error", "reason", "text"),
    [
        (ApiError(403, "Forbidden", "no"), "ClaimUnreadable", "ClusterRole needs get on resourceclaims"),
        (ApiError(500, "InternalError", "etcd"), "ClaimUnreadable", "the API server answered 500 etcd"),
        (ApiUnreachableError("connection refused"), "ApiServerUnreachable", "connection refused"),
        (CredentialsError("no token"), "ApiServerUnreachable", "no token"),
    ],
)
def test_an_api_server_that_gives_no_claim_is_quoted(error: Exception, reason: str, text: str) -> None:
    api = FakeApi()

    def fail(_path: str) -> None:
        raise error

    api.before_get = fail
    with pytest.raises(PrepareError) as caught:
        fetch_claim(api, ref(), 1)
    assert caught.value.reason == reason
    assert text in str(caught.value)
    assert not caught.value.permanent, "the next try may succeed"


@pytest.mark.bug("B131")
@pytest.mark.parametrize("uid", ["../x", "a/b", "", ".", "..", "a.b", "x\0y", "x\n", "%2e", "-a", "u" * 64])
def test_a_uid_that_could_be_a_path_is_refused(uid: str) -> None:
    with pytest.raises(PrepareError, match=r"claim UID .* is malformed") as caught:
        check_ref(ClaimRef(namespace="default", name="claim", uid=uid))
    assert caught.value.permanent


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("namespace", "name", "what"),
    [
        ("a%2fb", "c", "namespace"),
        ("../..", "c", "namespace"),
        ("", "c", "namespace"),
        ("n.s", "c", "namespace"),
        ("ns", "../pods", "name"),
        ("ns", "a/status", "name"),
        ("ns", "", "name"),
        ("ns", "A", "name"),
        ("ns", "a?x=y", "name"),
    ],
)
def test_names_that_would_leave_their_place_in_the_url_are_refused(namespace: str, name: str, what: str) -> None:
    with pytest.raises(PrepareError, match=f"claim {what} .* is malformed"):
        check_ref(ClaimRef(namespace=namespace, name=name, uid="uid-1"))


@settings(deadline=None)  # a loaded machine is slow, not wrong
@given(uid=st.text(), namespace=st.text(), name=st.text())
def test_whatever_is_accepted_makes_a_path_of_five_known_parts(uid: str, namespace: str, name: str) -> None:
    one = ClaimRef(namespace=namespace, name=name, uid=uid)
    try:
        check_ref(one)
    except PrepareError:
        return
    assert claim_path(one).isascii()
    parts = claim_path(one).split("/")
    assert parts == ["", "apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name]
    assert "/" not in uid


def test_real_names_are_accepted() -> None:
    check_ref(ClaimRef("kube-system", "my-pod-gpu.shared-x7k2p", "ad4af911-5bcd-47c5-a554-f35cea869472"))
