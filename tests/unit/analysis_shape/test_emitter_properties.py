"""Of any node: what a form of its shape holds is the node's, nothing of it twice, and nothing that is its own alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings

from driver.analysis.autoscaler import bound_devices
from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.shape import (
    NODE,
    Shape,
    cluster_api,
    config_map,
    export,
    instantiate,
    karpenter,
    kwok,
    plain_slices,
    qualified,
    read,
)
from driver.analysis.shape.kinds import FABRIC, LAUNCH
from tests.support.nodeslices import KINDS, nodes

JSON = dict[str, Any]
FEW = settings(max_examples=30)
"""A node takes a moment to draw."""


def devices(shape: Shape) -> Iterator[tuple[str, JSON]]:
    """(driver, device) of all."""
    return ((pool["driver"], device) for pool, device in shape.devices)


def own_values(slices: list[JSON]) -> dict[str, set[str]]:
    """Qualified attribute -> the texts that only this node has there."""
    found: dict[str, set[str]] = {}
    for body in slices:
        driver = body["spec"]["driver"]
        for device in body["spec"].get("devices") or ():
            for name, value in (device.get("attributes") or {}).items():
                if KINDS.kind(name, driver) in (LAUNCH, FABRIC):
                    found.setdefault(qualified(name, driver), set()).add(json.dumps(value))
    return found


@FEW
@given(nodes())
def test_plain_slices_are_those_of_any_node_of_that_name(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True)

    text = json.dumps(plain_slices(shape).content)

    named = json.loads(text.replace(NODE, "node-q"))
    assert collect([Value(body) for body in named], "plain").problems == ()
    assert {**export(named, KINDS, strict=True).document, "dropped": []} == {**shape.document, "dropped": []}


@FEW
@given(nodes())
def test_karpenters_templates_hold_each_device_once_and_counters_apart(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True)

    templates = karpenter(shape).content["resourceSliceTemplates"]

    assert all(("devices" in each) != ("sharedCounters" in each) for each in templates)
    given_devices = [(each["driver"], device) for each in templates for device in each.get("devices", ())]
    assert Counter((driver, device["name"]) for driver, device in given_devices) == Counter(
        (driver, device["name"]) for driver, device in devices(shape)
    )
    sets = [entry for each in templates for entry in each.get("sharedCounters", ())]
    assert len(sets) == sum(len(part.get("sharedCounters") or ()) for pool in shape.pools for part in pool["slices"])
    known = {"name", "attributes", "capacity", "allowMultipleAllocations", "consumesCounters"}
    assert all(set(device) <= known for _, device in given_devices)


@FEW
@given(nodes())
def test_karpenter_is_told_no_value_that_is_a_nodes_own(slices: list[JSON]) -> None:
    templates = karpenter(export(slices, KINDS, strict=True)).content["resourceSliceTemplates"]

    for each in templates:
        for device in each.get("devices", ()):
            for name in device.get("attributes", ()):
                assert KINDS.kind(name, each["driver"]) not in (LAUNCH, FABRIC)


@FEW
@given(nodes())
def test_what_karpenter_binds_is_what_shares_a_value_on_the_node(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True)
    emitted = karpenter(shape).content
    bindings = [
        (entry["attribute"], [(d["driver"], d["pool"], d["device"]) for d in entry["devices"]])
        for entry in emitted["attributeBindings"]
    ]
    there = {
        (each["driver"], each["pool"]["name"], device["name"])
        for each in emitted["resourceSliceTemplates"]
        for device in each.get("devices", ())
    }

    bound = bound_devices(bindings)

    sizes = {entry["attribute"]: Counter(map(len, entry["groups"])) for entry in shape.equal_groups}
    for attribute, partners in bound.items():
        assert partners.keys() <= there
        found = {frozenset({device, *others}) for device, others in partners.items()}
        shared = {size: count for size, count in sizes[attribute].items() if size > 1}
        assert Counter(map(len, found)) == shared


@FEW
@given(nodes())
def test_kwok_plays_the_same_devices_without_counters(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True, labels={"type": "p5"})

    configs = kwok(shape).content

    played = Counter(
        (config["spec"]["driver"], device["name"])
        for config in configs
        for pool in config["spec"]["pools"]
        for part in pool["resourceSlices"]
        for device in part["devices"]
    )
    assert played == Counter((driver, device["name"]) for driver, device in devices(shape))
    for config in configs:
        for pool in config["spec"]["pools"]:
            assert pool["nodeSelectorTerms"] == [
                {"matchExpressions": [{"key": "type", "operator": "In", "values": ["p5"]}]}
            ]
            bodies = [_slice_of(config["spec"]["driver"], part["devices"]) for part in pool["resourceSlices"]]
            assert collect([Value(body) for body in bodies], "kwok").problems == ()
            assert not any(
                "consumesCounters" in device for part in pool["resourceSlices"] for device in part["devices"]
            )


def _slice_of(driver: str, devices_: list[JSON]) -> JSON:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "n", "pool": pool, "devices": devices_}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec}


@FEW
@given(nodes(), nodes())
def test_config_maps_have_one_name_where_what_they_hold_counts_as_the_same(one: list[JSON], other: list[JSON]) -> None:
    shapes = [export(slices, KINDS, strict=True) for slices in (one, other)]

    maps = [config_map(shape, namespace="ns") for shape in shapes]

    same = shapes[0].software_hash == shapes[1].software_hash
    assert (maps[0]["metadata"]["name"] == maps[1]["metadata"]["name"]) is same
    for shape, body in zip(shapes, maps, strict=True):
        assert read(json.loads(body["data"]["shape.json"]), KINDS) == shape
        assert len(body["metadata"]["labels"]["gpudra.dev/shape"]) <= 63


@FEW
@given(nodes())
def test_the_annotations_count_whole_gpus_of_one_driver(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True)

    annotations = cluster_api(shape).content["metadata"]["annotations"]

    (driver, count) = annotations.values()
    of_driver = [device for name, device in devices(shape) if name == driver]
    assert 0 <= int(count) <= len(of_driver)
    if int(count) == 0:
        assert not of_driver or all("type" in (device.get("attributes") or {}) for device in of_driver)


@FEW
@given(nodes())
def test_values_that_are_made_up_are_of_no_real_node(slices: list[JSON]) -> None:
    shape = export(slices, KINDS, strict=True)
    real = own_values(slices)

    made = [own_values(list(instantiate(shape, name))) for name in ("new-0", "new-1")]

    assert made[0].keys() == made[1].keys() == real.keys()
    for attribute in real:
        texts = {text for text in real[attribute] if "string" in json.loads(text)}
        assert not texts & made[0][attribute]
