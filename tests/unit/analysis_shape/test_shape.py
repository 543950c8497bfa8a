"""A shape keeps what every node of the kind has, and lets go of what is one node's own."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.analysis.document_text import Value
from driver.analysis.documents import collect
from driver.analysis.shape import NODE, AttributeKinds, ShapeError, differences, export, instantiate, read
from driver.analysis.shape.kinds import LAUNCH
from kubeletplugin.validation import validate_slice
from tests.support import dradocs as dra
from tests.support.nodeslices import BUS, KINDS, NUMA, ROOT, attribute_names, nodes, values

JSON = dict[str, Any]


def gpu(number: int, **changes: Any) -> JSON:
    attributes = {
        "productName": "NVIDIA H200",
        "driverVersion": {"version": "580.105.8"},
        "uuid": f"GPU-{number}",
        "fabricClique": "cluster.7",
        "nvlinkCount": 18,
        BUS: f"0000:{number:02x}:00.0",
        ROOT: f"pci0000:{number // 2:02x}",
        NUMA: number // 4,
    }
    return dra.device(f"gpu-{number}", attributes | changes, capacity={"memory": {"value": "141Gi"}})


def node_slices(count: int = 8, node: str = "node-a", **changes: Any) -> list[JSON]:
    return [dra.resource_slice(*(gpu(number, **changes) for number in range(count)), node=node)]


def nic_slice(node: str = "node-a") -> JSON:
    nics = [dra.device(f"mlx5-{n}", {ROOT: f"pci0000:{n:02x}", "dra.net/mac": f"00:{n}"}) for n in range(4)]
    return dra.resource_slice(*nics, node=node, driver="nic.example.com", pool=node)


def test_what_a_shape_of_a_node_says() -> None:
    shape = export(node_slices(2), KINDS, labels={"node.kubernetes.io/instance-type": "p5e.48xlarge"}).document

    assert (shape["apiVersion"], shape["kind"]) == ("gpudra.dev/v1alpha1", "NodeShape")
    assert shape["identity"]["labels"] == {"node.kubernetes.io/instance-type": "p5e.48xlarge"}
    (pool,) = shape["pools"]
    assert (pool["driver"], pool["nameTemplate"]) == (dra.DRIVER, f"{NODE}/{dra.DRIVER}")
    first = pool["slices"][0]["devices"][0]
    assert first["assigned"] == {"uuid": "string", "fabricClique": "string", BUS: "string"}
    assert set(first["attributes"]) == {"productName", "driverVersion", "nvlinkCount", ROOT, NUMA}
    assert first["capacity"] == {"memory": {"value": "141Gi"}}
    groups = {entry["attribute"]: entry["groups"] for entry in shape["equalGroups"]}
    together = [[f"{dra.DRIVER}/gpu-0", f"{dra.DRIVER}/gpu-1"]]
    assert groups[NUMA] == groups[ROOT] == groups[f"{dra.DRIVER}/fabricClique"] == together
    assert groups[f"{dra.DRIVER}/uuid"] == [[f"{dra.DRIVER}/gpu-0"], [f"{dra.DRIVER}/gpu-1"]]


def test_drivers_of_a_node_share_groups() -> None:
    shape = export([*node_slices(), nic_slice()], KINDS)

    assert shape.drivers == (dra.DRIVER, "nic.example.com")
    roots = next(entry for entry in shape.equal_groups if entry["attribute"] == ROOT)
    assert roots["groups"][0] == [f"{dra.DRIVER}/gpu-0", f"{dra.DRIVER}/gpu-1", "nic.example.com/mlx5-0"]


@pytest.mark.bug("B124")
def test_equal_hardware_has_an_equal_hash_whatever_its_identities() -> None:
    permuted = node_slices(node="node-b", uuid=dra.typed("GPU-x"))
    for number, device in enumerate(permuted[0]["spec"]["devices"]):
        device["attributes"]["uuid"] = {"string": f"GPU-{7 - number}"}
        device["attributes"][BUS] = {"string": f"0000:{0x40 + number:02x}:00.0"}
        device["attributes"][ROOT] = {"string": f"pci0000:{0xA0 + number // 2:02x}"}
        device["attributes"]["fabricClique"] = {"string": "other.1"}
        device["attributes"]["nvlinkCount"] = {"int": 17}
        device["name"] = f"gpu-{number:04}"

    one, other = export(node_slices(), KINDS), export(permuted, KINDS)

    assert one.hash == other.hash
    assert one.software_hash == other.software_hash
    assert differences(one, other, KINDS) == ()


def test_another_version_of_the_driver_changes_the_hash_of_the_software_alone() -> None:
    one, other = export(node_slices(), KINDS), export(node_slices(driverVersion={"version": "590.1.0"}), KINDS)

    assert one.hash == other.hash
    assert one.software_hash != other.software_hash
    (found,) = differences(one, other, KINDS)
    assert found.software
    assert str(found) == "gpu.nvidia.com device 0 gpu.nvidia.com/driverVersion: 580.105.8 against 590.1.0"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s["devices"].pop(), "gpu.nvidia.com devices: 8 against 7"),
        (
            lambda s: s["devices"][3]["attributes"].update(productName={"string": "NVIDIA H100"}),
            "gpu.nvidia.com device 3 gpu.nvidia.com/productName: NVIDIA H200 against NVIDIA H100",
        ),
        (
            lambda s: s["devices"][0]["attributes"].pop("nvlinkCount"),
            "gpu.nvidia.com device 0 gpu.nvidia.com/nvlinkCount: 18 against absent",
        ),
        (
            lambda s: s["devices"][0]["capacity"]["memory"].update(value="140Gi"),
            'gpu.nvidia.com device 0 capacity: {"memory":{"value":"141Gi"}} against {"memory":{"value":"140Gi"}}',
        ),
        (
            lambda s: s["devices"][0]["attributes"].update({NUMA: {"int": 1}}),
            f"equalGroups {NUMA}: [[0,1,2,3],[4,5,6,7]] against [[0,4,5,6,7],[1,2,3]]",
        ),
        (lambda s: s.update(driver="other.example.com"), "gpu.nvidia.com: published against not published"),
    ],
)
def test_what_differs_is_said(change: Any, text: str) -> None:
    other = node_slices()
    change(other[0]["spec"])

    left, right = export(node_slices(), KINDS), export(other, KINDS)

    assert left.hash != right.hash
    assert str(differences(left, right, KINDS)[0]) == text


def test_the_same_amount_written_in_another_way_is_the_same_shape() -> None:
    other = node_slices()
    for device in other[0]["spec"]["devices"]:
        device["capacity"]["memory"]["value"] = f"{141 * 1024}Mi"

    left, right = export(node_slices(), KINDS), export(other, KINDS)
    assert left.hash == right.hash
    assert differences(left, right, KINDS) == ()


def test_counter_sets_of_other_names_are_the_same_shape() -> None:
    def divided(name: str) -> list[JSON]:
        part = dra.device("mig-0", {"productName": "x"}, consumesCounters=dra.uses(name, memory="1Gi"))
        counters = [dra.counter_set(name, memory="80Gi")]
        return [
            dra.resource_slice(sharedCounters=counters, count=2, name="00000-a"),
            dra.resource_slice(part, count=2, name="00001-a"),
        ]

    left, right = export(divided("gpu-0000-1b-00-0"), KINDS), export(divided("gpu-0000-ca-00-0"), KINDS)

    assert left.hash == right.hash
    assert differences(left, right, KINDS) == ()


def test_the_order_of_devices_is_part_of_the_shape() -> None:
    other = node_slices()
    mixed = other[0]["spec"]["devices"]
    mixed[3], mixed[4] = mixed[4], mixed[3]

    left, right = export(node_slices(), KINDS), export(other, KINDS)

    assert left.hash != right.hash


def test_taints_are_let_go_and_named() -> None:
    sick = node_slices()
    sick[0]["spec"]["devices"][6]["taints"] = [dra.taint()]

    shape = export(sick, KINDS)

    assert shape.hash == export(node_slices(), KINDS).hash
    assert [(entry.path, entry.why) for entry in shape.dropped] == [
        ("gpu.nvidia.com/gpu-6.taints", "the state of one node at one time: gpu.nvidia.com/xid")
    ]


def test_devices_that_no_new_node_brings_are_let_go_and_named() -> None:
    wide = dra.resource_slice(dra.device("channel-0"), node=None, pool="fabric", allNodes=True)

    shape = export([*node_slices(), wide], KINDS)

    assert shape.drivers == (dra.DRIVER,)
    assert shape.dropped[0].path == "gpu.nvidia.com/fabric"


def test_a_half_published_pool_makes_no_shape() -> None:
    half = [dra.resource_slice(gpu(0), count=2)]

    with pytest.raises(ShapeError, match="has 1 of 2 slices: take the shape when the driver has published all of them"):
        export(half, KINDS, strict=True)
    assert export(half, KINDS).pools == ()


def test_slices_of_several_nodes_need_the_name_of_one() -> None:
    both = node_slices(2) + node_slices(4, node="node-b")

    with pytest.raises(ShapeError, match=r"slices of 2 nodes \(node-a, node-b\): name the one that is meant"):
        export(both, KINDS)
    assert len(export(both, KINDS, node_name="node-b").devices) == 4


@pytest.mark.parametrize(
    ("node", "pool", "template"),
    [
        ("node-a", "node-a", NODE),
        ("node-a", "node-a/gpu.nvidia.com", f"{NODE}/gpu.nvidia.com"),
        ("gpu", "gpu/gpu.nvidia.com", f"{NODE}/gpu.nvidia.com"),
        ("node-a", "nvidia-node-a-0", f"nvidia-{NODE}-0"),
        ("node-1", "node-10", f"node-10-{NODE}"),
        ("node-a", "gpus", f"gpus-{NODE}"),
    ],
)
def test_the_name_of_the_node_is_left_open_in_that_of_the_pool(node: str, pool: str, template: str) -> None:
    shape = export([dra.resource_slice(gpu(0), node=node, pool=pool)], KINDS)

    assert shape.pools[0]["nameTemplate"] == template


class TestInstantiate:
    def test_a_new_node_gets_whole_slices_of_its_own(self) -> None:
        shape = export([*node_slices(), nic_slice()], KINDS)

        slices = instantiate(shape, "new-1", node_uid="uid-1")

        assert [body["spec"]["pool"]["name"] for body in slices] == ["new-1/gpu.nvidia.com", "new-1"]
        for body in slices:
            assert body["spec"]["nodeName"] == "new-1"
            assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
            assert validate_slice(body["spec"]) == []
        devices = slices[0]["spec"]["devices"]
        assert [device["name"] for device in devices] == [f"gpu-{n}" for n in range(8)]
        assert all("taints" not in device and "assigned" not in device for device in devices)

    def test_identities_are_new_on_each_node_and_equal_where_they_were(self) -> None:
        shape = export(node_slices(), KINDS)

        one, other = (instantiate(shape, name)[0]["spec"]["devices"] for name in ("new-1", "new-2"))

        uuids = [device["attributes"]["uuid"]["string"] for device in one + other]
        assert len(set(uuids)) == 16
        assert len({device["attributes"]["fabricClique"]["string"] for device in one}) == 1
        assert len({device["attributes"][BUS]["string"] for device in one}) == 8

    @pytest.mark.parametrize(
        "value", [{"string": "a"}, {"int": 5}, {"bool": True}, {"version": "1.2.3"}, {"ints": [1]}]
    )
    def test_an_identity_keeps_its_type(self, value: JSON) -> None:
        kinds = AttributeKinds({f"{dra.DRIVER}/id": LAUNCH})
        shape = export([dra.resource_slice(dra.device("d", {"id": value}))], kinds)

        (made,) = instantiate(shape, "new")[0]["spec"]["devices"]

        assert made["attributes"]["id"].keys() == value.keys()
        assert validate_slice(instantiate(shape, "new")[0]["spec"]) == []

    def test_a_very_long_name_still_gives_a_pool(self) -> None:
        name = "n" * 60 + "." + "m" * 60 + "." + "o" * 60 + "." + "p" * 60

        (body,) = instantiate(export(node_slices(1), KINDS), name)

        assert validate_slice(body["spec"]) == []
        assert len(body["metadata"]["name"]) <= 253


def test_a_shape_is_read_back_as_it_was_written() -> None:
    shape = export([*node_slices(), nic_slice()], KINDS, labels={"a": "b"})

    again = read(json.loads(json.dumps(shape.document)), KINDS)

    assert again == shape


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"apiVersion": "gpudra.dev/v2"}, "gpudra.dev/v2 NodeShape is no gpudra.dev/v1alpha1 NodeShape"),
        ({"kind": "Pod"}, "gpudra.dev/v1alpha1 Pod is no"),
        ({"pools": None}, "the NodeShape is damaged"),
        ({"pools": [{"driver": "d"}]}, "the NodeShape is damaged"),
    ],
)
def test_what_is_no_shape_is_refused(change: JSON, part: str) -> None:
    with pytest.raises(ShapeError, match=part):
        read({**export(node_slices(1), KINDS).document, **change}, KINDS)


@given(nodes())
def test_export_after_instantiate_is_a_fixed_point(slices: list[JSON]) -> None:
    before = copy.deepcopy(slices)
    shape = export(slices, KINDS, strict=True)

    made = instantiate(shape, "new-node")
    again = export(made, KINDS, strict=True)

    assert slices == before
    assert again.hash == shape.hash
    assert again.software_hash == shape.software_hash
    assert {**again.document, "dropped": []} == {**shape.document, "dropped": []}
    assert again.dropped == ()
    assert collect([Value(body) for body in made], "made").problems == ()


@given(nodes(), nodes())
def test_shapes_differ_where_their_hashes_do(one: list[JSON], other: list[JSON]) -> None:
    left, right = export(one, KINDS), export(other, KINDS)

    found = differences(left, right, KINDS)

    assert bool([entry for entry in found if not entry.software]) is (left.hash != right.hash)
    assert bool(found) is (left.software_hash != right.software_hash)


@given(nodes(), st.data())
def test_one_change_is_one_difference_or_none(slices: list[JSON], data: st.DataObject) -> None:
    changed = copy.deepcopy(slices)
    devices = [device for body in changed for device in body["spec"].get("devices") or ()]
    if devices:
        device = data.draw(st.sampled_from(devices))
        name, value = data.draw(attribute_names), data.draw(values)
        device["attributes"] = {**device["attributes"], name: value}
    left, right = export(slices, KINDS), export(changed, KINDS)

    found = differences(left, right, KINDS)

    assert bool([entry for entry in found if not entry.software]) is (left.hash != right.hash)
    assert bool(found) is (left.software_hash != right.software_hash)


@given(nodes(), st.randoms())
def test_the_order_in_which_slices_are_listed_does_not_matter_between_pools(slices: list[JSON], chance: Any) -> None:
    pools: dict[str, list[JSON]] = {}
    for body in slices:
        pools.setdefault(body["spec"]["driver"] + body["spec"]["pool"]["name"], []).append(body)
    shuffled = list(pools.values())
    chance.shuffle(shuffled)

    assert export([body for pool in shuffled for body in pool], KINDS).hash == export(slices, KINDS).hash
