"""A shape in other programs' forms, and what is said of what got lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driver.analysis.autoscaler import bound_devices
from driver.analysis.shape import (
    NODE,
    AttributeKinds,
    cluster_api,
    config_map,
    export,
    instantiate,
    kwok,
    plain_slices,
    read,
)
from driver.analysis.shape import karpenter as to_karpenter
from tests.support import dradocs as dra

JSON = dict[str, Any]
NUMA, ROOT = "resource.kubernetes.io/numaNode", "resource.kubernetes.io/pcieRoot"
KINDS = AttributeKinds({f"{dra.DRIVER}/uuid": "launch", f"{dra.DRIVER}/model": "type"})


def gpu(number: int) -> JSON:
    attributes = {
        "type": "gpu",
        "model": "H200",
        "uuid": f"GPU-{number}",
        NUMA: number // 2,
        ROOT: f"pci0000:{number // 3:02x}",
    }
    return dra.device(f"gpu-{number}", attributes, capacity={"memory": {"value": "141Gi"}})


SHAPE = export([dra.resource_slice(*(gpu(number) for number in range(4)))], KINDS, labels={"type": "p5"})
NICS = dra.resource_slice(dra.device("mlx5-0", {ROOT: "pci0000:00"}), driver="nic.example.com", pool="nics")
DIVIDED = export(
    [
        dra.resource_slice(sharedCounters=[dra.counter_set("c", m="8")], count=2, name="00000-a"),
        dra.resource_slice(
            dra.device("mig-0", {"type": "mig"}, consumesCounters=dra.uses("c", m="1")),
            dra.device("gpu-0", {"type": "gpu"}, consumesCounters=dra.uses("c", m="8")),
            count=2,
            name="00001-a",
        ),
    ],
    KINDS,
)


def test_plain_slices_leave_the_name_of_the_node_open() -> None:
    emitted = plain_slices(SHAPE)

    text = json.dumps(emitted.content)
    assert emitted.warnings == ()
    assert json.loads(text.replace(NODE, "new"))[0]["spec"]["pool"]["name"] == f"new/{dra.DRIVER}"
    made = instantiate(SHAPE, "new")[0]["spec"]
    opened = json.loads(text.replace(NODE, "new"))[0]["spec"]
    assert {**opened, "devices": None} == {**made, "devices": None}


class TestClusterApi:
    def test_the_two_annotations(self) -> None:
        emitted = cluster_api(SHAPE)

        assert emitted.content["metadata"]["annotations"] == {
            "capacity.cluster-autoscaler.kubernetes.io/dra-driver": dra.DRIVER,
            "capacity.cluster-autoscaler.kubernetes.io/gpu-count": "4",
        }
        assert "all attributes but type, and all capacities, are lost" in emitted.warnings[-1]

    def test_classes_that_fail_on_so_thin_a_device_are_named(self) -> None:
        def failure(name: str, device: JSON) -> str | None:
            assert device["attributes"] == {"type": {"string": "gpu"}}
            return "no such key: model" if name == "h200" else None

        emitted = cluster_api(SHAPE, classes=["gpu", "h200"], failure=failure)

        assert emitted.warnings[0] == (
            "DeviceClass h200 fails on such a node (no such key: model): the group is never chosen for it"
        )

    def test_partitions_and_other_drivers_have_no_place(self) -> None:
        several = export([dra.resource_slice(*(gpu(number) for number in range(2))), NICS], KINDS)

        assert cluster_api(DIVIDED).content["metadata"]["annotations"].popitem()[1] == "1"
        assert "1 partitions and other devices of gpu.nvidia.com" in cluster_api(DIVIDED).warnings[0]
        assert cluster_api(several).warnings[0] == "driver nic.example.com has no place in the annotations"


class TestKarpenter:
    def test_templates_hold_what_is_known_and_bindings_what_is_shared(self) -> None:
        emitted = to_karpenter(SHAPE)

        (template,) = emitted.content["resourceSliceTemplates"]
        assert template["driver"] == dra.DRIVER
        first = template["devices"][0]
        assert set(first["attributes"]) == {"type", "model", NUMA}
        assert first["capacity"] == {"memory": {"value": "141Gi"}}
        (binding,) = emitted.content["attributeBindings"]
        assert binding["attribute"] == ROOT
        assert [device["device"] for device in binding["devices"]] == ["gpu-0", "gpu-1", "gpu-2"]
        (warning,) = emitted.warnings
        assert warning.startswith(f"1 devices share {ROOT} with none: a binding needs two")

    def test_bindings_bind_what_shares_a_value_on_a_real_node_and_nothing_else(self) -> None:
        bindings = to_karpenter(SHAPE).content["attributeBindings"]
        given = [(b["attribute"], [(d["driver"], d["pool"], d["device"]) for d in b["devices"]]) for b in bindings]

        bound = bound_devices(given)[ROOT]

        assert {device[2]: {other[2] for other in others} for device, others in bound.items()} == {
            "gpu-0": {"gpu-1", "gpu-2"},
            "gpu-1": {"gpu-0", "gpu-2"},
            "gpu-2": {"gpu-0", "gpu-1"},
        }

    def test_counters_and_devices_come_in_templates_of_their_own(self) -> None:
        templates = to_karpenter(DIVIDED).content["resourceSliceTemplates"]

        assert ["sharedCounters" in template for template in templates] == [True, False]
        assert ["devices" in template for template in templates] == [False, True]


class TestKwok:
    def test_one_configuration_for_each_driver(self) -> None:
        shape = export([dra.resource_slice(gpu(0)), NICS], KINDS, labels={"node.kubernetes.io/instance-type": "p5"})

        emitted = kwok(shape)

        assert [config["spec"]["driver"] for config in emitted.content] == [dra.DRIVER, "nic.example.com"]
        pool = emitted.content[0]["spec"]["pools"][0]
        (term,) = pool["nodeSelectorTerms"]
        assert term["matchExpressions"] == [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["p5"]}
        ]
        (device,) = pool["resourceSlices"][0]["devices"]
        assert device["attributes"]["uuid"] == {"string": "imaginary"}
        assert "assigned" not in device
        assert emitted.warnings == ("attributes that are new on each node are the same on all nodes there",)

    def test_what_is_lost_is_said(self) -> None:
        emitted = kwok(DIVIDED)

        assert "no label tells which nodes are meant" in emitted.warnings[0]
        assert "counters of gpu.nvidia.com have no place there" in emitted.warnings[1]
        (config,) = emitted.content
        devices = config["spec"]["pools"][0]["resourceSlices"][0]["devices"]
        assert all("consumesCounters" not in device for device in devices)


def test_equal_nodes_write_the_same_config_map() -> None:
    one = config_map(SHAPE, namespace="gpudra-system")

    assert one["metadata"]["name"] == f"gpudra-shape-{SHAPE.software_hash.removeprefix('sha256:')[:16]}"
    assert len(one["metadata"]["labels"]["gpudra.dev/shape"]) <= 63
    assert read(json.loads(one["data"]["shape.json"]), KINDS) == SHAPE
    assert len(json.dumps(one)) < 1_000_000


@pytest.mark.parametrize(
    ("name", "driver", "kind"),
    [
        ("resource.kubernetes.io/pcieRoot", "any.example.com", "equality"),
        ("uuid", "gpu.nvidia.com", "launch"),
        ("macAddress", "nic.example.com", "launch"),
        ("rackId", "nic.example.com", "fabric"),
        ("numaNodeID", "nic.example.com", "equality"),
        ("firmwareVersion", "nic.example.com", "software"),
        ("linkState", "nic.example.com", "runtime"),
        ("speed", "nic.example.com", "type"),
    ],
)
def test_the_kind_of_an_attribute_that_nobody_described_is_told_by_its_name(name: str, driver: str, kind: str) -> None:
    kinds = AttributeKinds()

    assert kinds.kind(name, driver) == kind
    assert kinds.guessed(name, driver) is (driver == "nic.example.com")
