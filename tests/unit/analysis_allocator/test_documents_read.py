"""Documents are read field by field: right types, defaults, paths, and what is held."""

from __future__ import annotations

from typing import Any

import pytest

from driver.analysis.allocator import Allocated, DocumentError, allocated
from driver.analysis.allocator.claims import Toleration, claim
from driver.analysis.allocator.fields import Reader
from driver.analysis.allocator.model import Slice, Taint
from driver.analysis.allocator.nodes import Node, SelectorError, node, node_matches, selector
from driver.analysis.quantity import NANO
from tests.unit.analysis_allocator.cluster_documents import claim as claim_document
from tests.unit.analysis_allocator.cluster_documents import device, first_of, held, request, slice_of


def reader(**fields: Any) -> Reader:
    return Reader(fields, "Kind/name", [])


@pytest.mark.parametrize(
    ("read", "value", "text"),
    [
        (lambda one: one.text("f"), 1, "must be a string, is int"),
        (lambda one: one.number("f"), "1", "must be a number, is str"),
        (lambda one: one.number("f"), True, "must be a number, is bool"),
        (lambda one: one.flag("f"), 0, "must be true or false, is int"),
        (lambda one: one.texts("f"), "a", "must be a list of strings, is str"),
        (lambda one: one.texts("f"), [1], "must be a list of strings, is list"),
        (lambda one: one.quantity("f"), "1X", "is not a quantity"),
        (lambda one: one.sub("f"), [], "must be an object, is list"),
        (lambda one: list(one.each("f")), {}, "must be a list, is dict"),
        (lambda one: list(one.each("f")), [1], "must be an object, is int"),
        (lambda one: one.need("f"), None, "is missing"),
    ],
)
def test_a_field_of_another_type_is_named(read: Any, value: object, text: str) -> None:
    with pytest.raises(DocumentError, match=r"^Kind/name\.f") as caught:
        read(reader(f=value))
    assert text in str(caught.value)


def test_absent_and_null_fields_have_defaults() -> None:
    for one in (reader(), reader(t=None, n=None, b=None, l=None, q=None, s=None)):
        assert (one.text("t"), one.number("n"), one.flag("b"), one.texts("l")) == ("", 0, None, None)
        assert (one.quantity("q"), one.sub("s"), list(one.each("l")), list(one.items("s"))) == (None, None, [], [])
        assert not one.has("t")


def test_only_fields_that_nobody_knows_are_reported() -> None:
    one = reader(a=1, b=2)
    one.known(frozenset("ab"))
    assert one.unsupported == []
    one.known(frozenset("a"))
    assert one.unsupported == ["Kind/name.b"]


def test_devices_are_read_when_they_are_asked_for_and_once() -> None:
    unsupported: list[str] = []
    one = Slice(slice_of(device("x", future=1)), 0, unsupported)
    assert unsupported == []
    assert one.devices is one.devices
    assert unsupported == ["ResourceSlice/slice.spec.devices[0].future"]


def test_a_rule_adds_its_taint_to_the_devices_it_names() -> None:
    one = Slice(slice_of(device("x"), device("y")), 0, [])
    one.rules += [("x", Taint("k", "", "NoSchedule")), (None, Taint("all", "", "NoExecute"))]
    assert [[taint.key for taint in each.taints] for each in one.devices] == [["k", "all"], ["all"]]


def test_alternatives_know_their_request() -> None:
    found = claim(claim_document(first_of("r", request("a"), request("b"))), [])
    ((name, alternatives, requests),) = found.requests
    assert (name, alternatives, [each.full_name for each in requests]) == ("r", True, ["r/a", "r/b"])


def test_a_constraint_concerns_a_request_by_its_name_or_that_of_its_alternative() -> None:
    wish = claim_document(
        first_of("r", request("a"), request("b")), constraints=[{"matchAttribute": "x/y", "requests": ["r/a"]}]
    )
    found = claim(wish, [])
    a, b = found.requests[0][2]
    assert (found.constraints[0].concerns(a), found.constraints[0].concerns(b)) == (True, False)


def test_tolerations_without_a_key_tolerate_every_key() -> None:
    taint = Taint("k", "v", "NoSchedule")
    assert Toleration("", "Exists", "", "").tolerates(taint)
    assert not Toleration("", "Equal", "", "").tolerates(taint)
    assert Toleration("", "Equal", "v", "").tolerates(taint)


def test_what_claims_hold_is_counted_as_the_scheduler_counts_it() -> None:
    share = {"shareID": "s-1", "consumedCapacity": {"m": "2"}}
    claims = [held("whole"), held("admin", adminAccess=True), held("part", **share), held("part", shareID="s-2")]
    found = allocated(claims, consumable=True)
    assert {device for _, _, device in found.devices} == {"whole"}
    assert {device for _, _, device in found.shared} == {"part"}
    assert list(found.capacity.values()) == [{"m": 2 * NANO}]
    assert {device for _, _, device in found.everything} == {"whole", "part"}


def test_without_consumable_capacity_a_share_is_a_whole_device() -> None:
    assert len(allocated([held("part", shareID="s")], consumable=False).devices) == 1


def test_a_claim_without_an_allocation_holds_nothing() -> None:
    assert allocated([claim_document(request())], consumable=True) == Allocated()


NODE_A = Node("node-a", {"zone": "a"}, frozenset())


def chosen(**term: object) -> Any:
    return selector(reader(nodeSelectorTerms=[term]))


def test_a_node_is_read_with_its_labels_and_declared_features() -> None:
    document = {"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"declaredFeatures": ["F"]}}
    assert node(document) == Node("n", {"a": "b"}, frozenset(("F",)))


@pytest.mark.parametrize(
    ("name", "everywhere", "term", "there"),
    [
        ("node-a", False, None, True),
        ("node-b", False, None, False),
        ("", True, None, True),
        ("", False, None, False),
        ("node-b", True, None, False),
        ("", False, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}, True),
        ("", False, {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-a"]}]}, False),
        ("", False, {"matchFields": [{"key": "metadata.uid", "operator": "In", "values": ["x"]}]}, False),
    ],
)
def test_node_selection(name: str, everywhere: bool, term: dict[str, object] | None, there: bool) -> None:
    assert node_matches(NODE_A, name, everywhere, chosen(**term) if term else None) is there


@pytest.mark.parametrize(
    "requirement",
    [
        {"key": "zone", "operator": "Near", "values": ["a"]},
        {"key": "zone", "operator": "In"},
        {"key": "zone", "operator": "Exists", "values": ["a"]},
        {"key": "zone", "operator": "Gt", "values": ["x"]},
        {"key": "zone", "operator": "Gt", "values": ["1", "2"]},
    ],
)
def test_a_selector_that_is_not_valid_fails_when_it_is_asked(requirement: dict[str, object]) -> None:
    with pytest.raises(SelectorError, match=r"matchExpressions\[0\]"):
        chosen(matchExpressions=[requirement]).matches(NODE_A)


def test_terms_are_alternatives_and_an_empty_one_selects_nothing() -> None:
    here = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    assert selector(reader(nodeSelectorTerms=[{}, here])).matches(NODE_A)  # type: ignore[union-attr]  # there are terms
    assert not selector(reader(nodeSelectorTerms=[{}])).matches(NODE_A)  # type: ignore[union-attr]  # there is a term
