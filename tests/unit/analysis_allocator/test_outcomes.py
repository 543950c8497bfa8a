"""What an outcome carries beside the devices: node selector, configuration, errors, and what nobody knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driver.analysis.allocator import (
    RELEASES,
    Allocator,
    DocumentError,
    Features,
    UnknownGateError,
    UnknownReleaseError,
    default_features,
    rules,
    scheduler_features,
)
from tests.unit.analysis_allocator.cluster_documents import (
    CLASS,
    DRIVER,
    NODE,
    allocate,
    claim,
    device,
    first_of,
    names,
    request,
    slice_of,
)

ONE = slice_of(device("x"))
WITHOUT_CAPACITY = replace(default_features(37), consumable_capacity=False)


def selecting(expression: str) -> list[dict[str, object]]:
    return [{"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}]


def term(key: str, operator: str, *values: str) -> dict[str, object]:
    expression = {"key": key, "operator": operator, "values": list(values)}
    return {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}


def test_a_local_device_ties_the_claim_to_its_node() -> None:
    outcome = allocate([ONE], claim(request()))
    assert outcome.allocations is not None
    field = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    assert outcome.allocations[0]["nodeSelector"] == {"nodeSelectorTerms": [{"matchFields": [field]}]}


def test_a_device_for_all_nodes_ties_it_to_none() -> None:
    outcome = allocate([slice_of(device("x"), allNodes=True)], claim(request()))
    assert outcome.allocations is not None
    assert "nodeSelector" not in outcome.allocations[0]


def test_requirements_of_several_devices_are_put_together_once() -> None:
    pools = [slice_of(device("x"), pool=name, name=name, nodeSelector=term("zone", "In", "a")) for name in ("p", "q")]
    outcome = allocate(pools, claim(request(count=2)))
    assert outcome.allocations is not None
    assert outcome.allocations[0]["nodeSelector"] == term("zone", "In", "a")


@pytest.mark.parametrize(
    ("selector", "fits"),
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("zone", "NotIn", "b"), True),
        (term("zone", "Exists"), True),
        (term("zone", "DoesNotExist"), False),
        (term("cores", "Gt", "4"), True),
        (term("cores", "Lt", "4"), False),
        (term("zone", "Gt", "4"), False),
        ({"nodeSelectorTerms": [{}]}, False),
    ],
)
def test_node_selectors_select_as_in_pods(selector: dict[str, object], fits: bool) -> None:
    node = {"metadata": {"name": "node-a", "labels": {"zone": "a", "cores": "8"}}}
    assert allocate([slice_of(device("x"), nodeSelector=selector)], claim(request()), node=node).fits is fits


def test_a_node_selector_that_cannot_be_read_ends_the_attempt() -> None:
    outcome = allocate([slice_of(device("x"), nodeSelector=term("zone", "Near", "a"))], claim(request()))
    assert outcome.kind == "fatal"
    assert "Near" in outcome.error


def test_devices_choose_their_nodes_where_the_slice_says_so() -> None:
    devices = [device("theirs", nodeName="node-b"), device("ours", nodeName="node-a")]
    assert names(allocate([slice_of(*devices, perDeviceNodeSelection=True)], claim(request()))) == ["ours"]


def configured(**more: object) -> dict[str, object]:
    return {"opaque": {"driver": DRIVER, "parameters": more}}


def test_class_configuration_comes_first_and_names_the_requests() -> None:
    classes = [CLASS | {"spec": {"config": [configured(a=1)]}}, {"metadata": {"name": "other"}, "spec": {}}]
    two = slice_of(device("x"), device("y"))
    wish = claim(request("r"), request("s") | {}, config=[configured(b=2) | {"requests": ["s"]}])
    wish["spec"]["devices"]["requests"][1]["exactly"]["deviceClassName"] = "other"
    outcome = allocate([two], wish, classes=classes)
    assert outcome.allocations is not None
    assert outcome.allocations[0]["devices"]["config"] == [
        {"source": "FromClass", "requests": ["r"], **configured(a=1)},
        {"source": "FromClaim", "requests": ["s"], **configured(b=2)},
    ]


def test_configuration_for_every_request_names_none_since_1_37() -> None:
    classes = [CLASS | {"spec": {"config": [configured(a=1)]}}]
    for release, named in ((36, ["r"]), (37, None)):
        outcome = allocate([ONE], claim(request("r")), classes=classes, release=release)
        assert outcome.allocations is not None
        assert outcome.allocations[0]["devices"]["config"][0].get("requests") == named


@pytest.mark.parametrize(
    ("expression", "kind", "text"),
    [
        ('device.attributes["gpu.example.com"].nope == 1', "fatal", "no such key: nope"),
        ("device.nope", "fatal", "1:7: undefined field 'nope'"),
        ('device.attributes["x"].y + 1 == ', "fatal", "Syntax error"),
        ("google.protobuf.BoolValue{value: true}", "unknown", "not supported"),
    ],
)
def test_a_selector_that_fails_says_whose_it_is_and_why(expression: str, kind: str, text: str) -> None:
    outcome = allocate([ONE], claim(request()), classes=selecting(expression))
    assert outcome.kind == kind
    assert "class gpu: selector #0" in outcome.error
    assert text in outcome.error


def test_a_selector_with_too_much_work_is_an_error() -> None:
    numbers = "[1,2,3,4,5,6,7,8,9,10]"
    loops = "".join(f"{numbers}.all({name}, " for name in "abcdef") + "true" + ")" * 6
    outcome = allocate([ONE], claim(request()), classes=selecting(loops))
    assert "cost limit exceeded" in outcome.error


@pytest.mark.parametrize(
    ("wish", "features", "text"),
    [
        (claim(first_of("r", request("a"))), Features(), "has subrequests"),
        (claim(request(adminAccess=True)), Features(), "admin access is requested"),
        (claim(request(adminAccess=False)), Features(), "admin access is requested"),
        (claim(request(count=33)), None, "exceeds the claim limit of 32"),
        (claim(request(count=20), request("s", 20)), None, "with 20 already accounted for"),
        (claim(request(allocationMode="Some")), None, "unsupported count mode Some"),
        (claim(request(deviceClassName="")), None, "missing device class name"),
        (claim(request(deviceClassName="nope")), None, "could not retrieve device class nope"),
        (claim(request(selectors=[{}])), None, "CEL expression empty"),
        (claim(request(), constraints=[{}]), None, "empty constraint"),
        (claim(request(capacity={"requests": {"m": "1"}})), WITHOUT_CAPACITY, "capacity requests"),
    ],
)
def test_a_claim_that_nobody_could_serve_ends_the_attempt(
    wish: dict[str, object], features: Features | None, text: str
) -> None:
    outcome = allocate([ONE], wish, features=features)
    assert outcome.kind == "fatal"
    assert text in outcome.error


def test_a_search_that_takes_too_long_is_given_up() -> None:
    devices = [device(f"gpu-{number}", attributes={"n": {"int": number}}) for number in range(10)]
    wish = claim(request(count=8), constraints=[{"matchAttribute": "gpu.example.com/n"}])
    chosen = rules(37)
    allocator = Allocator(chosen, [CLASS], [slice_of(*devices)], limit=5)
    assert allocator.allocate(NODE, [wish]).kind == "timeout"


@pytest.mark.parametrize(
    ("broken", "path"),
    [
        ({"metadata": {"name": "s"}}, "ResourceSlice/s.spec"),
        ({"metadata": {"name": "s"}, "spec": {"driver": 1, "pool": {}}}, "ResourceSlice/s.spec.driver"),
        (
            slice_of(device("x", capacity={"m": {"value": "1X"}})),
            "ResourceSlice/slice.spec.devices[0].capacity[m].value",
        ),
        (slice_of(device("x", taints={})), "ResourceSlice/slice.spec.devices[0].taints"),
        (slice_of(device("x", bindsToNode="yes")), "ResourceSlice/slice.spec.devices[0].bindsToNode"),
        ([], "ResourceSlice"),
    ],
)
def test_a_document_that_cannot_be_read_is_named_with_the_field(broken: object, path: str) -> None:
    with pytest.raises(DocumentError) as caught:
        allocate([broken], claim(request()))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda one: one["spec"].update(future=1), "ResourceSlice/slice.spec.future"),
        (lambda one: one["spec"]["devices"][0].update(future=1), "ResourceSlice/slice.spec.devices[0].future"),
        (
            lambda one: one["spec"]["devices"][0].update(attributes={"a": {"float": 1}}),
            "ResourceSlice/slice.spec.devices[0].attributes[a].float",
        ),
    ],
)
def test_a_field_that_nobody_knows_is_reported_by_its_path(change: object, path: str) -> None:
    one = slice_of(device("x"))
    change(one)  # type: ignore[operator]  # each parameter is a function
    assert allocate([one], claim(request())).unsupported == (path,)


def test_unknown_fields_of_claims_and_classes_are_reported_too() -> None:
    classes = [{"metadata": {"name": "gpu"}, "spec": {"future": 1}}]
    outcome = allocate([ONE], claim(request(future=2)), classes=classes)
    assert outcome.unsupported == (
        "DeviceClass/gpu.spec.future",
        "ResourceClaim/ns/claim.spec.devices.requests[0].exactly.future",
    )


def test_one_claim_can_be_tried_on_many_nodes() -> None:
    pools = [slice_of(device("x"), nodeName=f"node-{number}", pool=f"node-{number}") for number in range(3)]
    nodes = [{"metadata": {"name": f"node-{number}"}} for number in range(4)]
    allocator = Allocator(rules(37), [CLASS], pools)
    assert [each.fits for each in allocator.allocate_each(nodes, [claim(request())])] == [True, True, True, False]


def test_pods_can_be_placed_one_after_the_other() -> None:
    wish = claim(request(count=2))
    allocator = Allocator(rules(37), [CLASS], [slice_of(*[device(f"gpu-{number}") for number in range(5)])])
    placed: list[dict[str, object]] = []
    for _ in range(3):
        outcome = allocator.holding(placed).allocate(NODE, [wish])
        if outcome.allocations is not None:
            placed.append(wish | {"status": {"allocation": outcome.allocations[0]}})
    assert len(placed) == 2
    assert allocator.allocate(NODE, [wish]).fits


@pytest.mark.parametrize(
    ("release", "features", "variant"),
    [
        (34, None, "experimental"),
        (34, Features(), "stable"),
        (34, Features(admin_access=True, prioritized_list=True), "incubating"),
        (36, None, "incubating"),
        (36, Features(partitionable_devices=True), "stable"),
        (36, Features(list_type_attributes=True), "experimental"),
        (37, None, "incubating"),
        (37, Features(device_status=True), "stable"),
        (37, Features(derived_attributes=True), "experimental"),
    ],
)
def test_the_gates_choose_the_variant(release: int, features: Features | None, variant: str) -> None:
    assert rules(release, features).variant == variant


@pytest.mark.parametrize(
    ("release", "features"),
    [(35, None), (33, None), (34, Features(list_type_attributes=True)), (36, Features(derived_attributes=True))],
)
def test_what_is_not_ported_is_refused_by_name(release: int, features: Features | None) -> None:
    with pytest.raises(UnknownReleaseError, match=r"1\.3\d"):
        rules(release, features)


def test_gates_are_named_as_kubernetes_names_them() -> None:
    assert not scheduler_features(37, {"DRAPartitionableDevices": False}).partitionable_devices
    assert scheduler_features(37, {"DRADeviceBindingConditions": False}).device_binding_and_status is False
    assert scheduler_features(34, {"DRADeviceBindingConditions": True}).device_binding
    with pytest.raises(UnknownGateError, match="has no gate DRADerivedAttributes"):
        scheduler_features(34, {"DRADerivedAttributes": True})


def test_every_release_has_defaults() -> None:
    assert all(default_features(release).admin_access for release in RELEASES)
