"""The documents of a node's pool: valid, uniform, stable, and telling what they leave out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driver.model import Gpu, GpuState, MigMode, NodeInventory, PciAddress
from driver.publish import ATTRIBUTES, PoolDocument, build_pool, pool_name, slice_objects
from driver.publish.pool import chunks, uniform_keys
from kubeletplugin.validation import validate_slice

Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]
DRIVER = "gpu.nvidia.com"
SUBDOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"


def build(node: NodeInventory, **more: Any) -> PoolDocument:
    return build_pool(node, node_name="node-a", driver_name=DRIVER, **more)


def keys(pool: PoolDocument) -> list[set[str]]:
    return [{*device["attributes"], *device.get("capacity", {})} for device in pool.devices]


def test_a_node_of_eight_is_one_slice_of_eight_in_the_order_of_addresses(gpu: Make, node: Node) -> None:
    pool = build(node(*(gpu(n) for n in range(8))))

    assert pool.name == "node-a/gpu.nvidia.com"
    assert [len(devices) for devices in pool.slices] == [8]
    assert [device["name"] for device in pool.devices] == [f"gpu-0000-{0x10 + n:02x}-00-0" for n in range(8)]
    assert pool.withheld == ()


def test_a_node_without_gpus_has_one_empty_slice(node: Node) -> None:
    assert build(node()).slices == ((),)


def test_equal_inventories_give_equal_documents(gpu: Make, node: Node) -> None:
    first, second = (build(node(*(gpu(n) for n in range(8)))) for _ in range(2))

    assert json.dumps(first.slices) == json.dumps(second.slices)


@pytest.mark.bug("B13")
@pytest.mark.bug("B24")
@pytest.mark.parametrize("state", [state for state in GpuState if state is not GpuState.READY])
def test_a_gpu_that_is_not_ready_is_withheld_with_its_reason_and_the_others_stay(
    gpu: Make, node: Node, state: GpuState
) -> None:
    bad = gpu(3, state=state, reason="the call, its code and a remedy", uuid=None, memory_bytes=None, brand=None)
    whole = build(node(*(gpu(n) for n in range(8))))
    pool = build(node(*(bad if n == 3 else gpu(n) for n in range(8))))

    assert [(one.device, one.reason) for one in pool.withheld] == [(bad.name, "the call, its code and a remedy")]
    assert list(pool.devices) == [device for device in whole.devices if device["name"] != bad.name]


def test_a_gpu_in_mig_mode_is_not_offered_as_a_whole(gpu: Make, node: Node) -> None:
    pool = build(node(gpu(0), gpu(1, mig=MigMode(True, True))))

    assert [device["name"] for device in pool.devices] == ["gpu-0000-10-00-0"]
    assert "nvidia-smi -i 0000:11:00.0 -mig 0" in pool.withheld[0].reason


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("numa_node", "resource.kubernetes.io/numaNode"),
        ("pcie_root", "resource.kubernetes.io/pcieRoot"),
    ],
)
@pytest.mark.bug("B22")
def test_a_place_that_one_gpu_does_not_know_is_published_of_none(gpu: Make, node: Node, field: str, key: str) -> None:
    pool = build(node(gpu(0), gpu(1, **{field: None}), gpu(2)))

    assert len(pool.devices) == 3
    assert all(key not in own for own in keys(pool))
    assert len({frozenset(own) for own in keys(pool)}) == 1


@pytest.mark.bug("B20")
def test_a_wide_domain_drops_the_bus_id_of_the_whole_node_and_keeps_the_name_valid(gpu: Make, node: Node) -> None:
    pool = build(node(gpu(0), gpu(1, address=PciAddress(0x10000, 1, 0, 0))))

    assert pool.devices[1]["name"] == "gpu-10000-01-00-0"
    assert all("resource.kubernetes.io/pciBusID" not in own for own in keys(pool))


@pytest.mark.bug("B27")
def test_a_gpu_that_alone_does_not_tell_its_memory_is_withheld_so_that_the_others_keep_theirs(
    gpu: Make, node: Node
) -> None:
    pool = build(node(gpu(0), gpu(1, memory_bytes=None), gpu(2)))

    assert [device["name"] for device in pool.devices] == ["gpu-0000-10-00-0", "gpu-0000-12-00-0"]
    assert all("memory" in own for own in keys(pool))
    assert "its memory is unknown while other GPUs of the node tell theirs" in pool.withheld[0].reason


@pytest.mark.bug("B01")
@pytest.mark.parametrize("unknown", [None, 0])
def test_where_no_gpu_tells_its_memory_all_are_published_without_a_capacity(
    gpu: Make, node: Node, unknown: int | None
) -> None:
    pool = build(node(gpu(0, memory_bytes=unknown), gpu(1, memory_bytes=unknown)))

    assert len(pool.devices) == 2
    assert all("capacity" not in device for device in pool.devices)


@pytest.mark.bug("B04")
@pytest.mark.parametrize("name", ["", "   ", "\ufffd\ufffd", "NVIDIA GeForce RTX™ 5090 – 測試 ", "x" * 90])
def test_a_strange_name_of_one_gpu_costs_no_key_of_any(gpu: Make, node: Node, name: str) -> None:
    pool = build(node(gpu(0), gpu(1, product_name=name)))

    value = pool.devices[1]["attributes"]["productName"]["string"]
    assert 0 < len(value.encode()) <= 64
    assert pool.devices[0]["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}


@pytest.mark.bug("B05")
@pytest.mark.parametrize("version", ["580.159.04", "535.54", "", "550.90.07-grid", "12.4.131.1", None, "odd"])
def test_any_driver_version_gives_a_valid_slice_with_the_raw_text_beside_it(
    gpu: Make, node: Node, version: str | None
) -> None:
    (device,) = build(node(gpu(), driver_version=version)).devices

    semantic = device["attributes"].get("driverVersion", {"version": "0.0.0"})["version"]
    assert re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?", semantic)
    assert device["attributes"]["driverVersionString"] == {"string": version or "Unknown"}


@pytest.mark.bug("B29")
@pytest.mark.bug("B30")
@pytest.mark.parametrize(("count", "sizes"), [(64, [64]), (65, [64, 1]), (128, [64, 64]), (133, [64, 64, 5])])
def test_no_slice_holds_more_devices_than_a_first_taint_allows(
    gpu: Make, node: Node, count: int, sizes: list[int]
) -> None:
    gpus = [gpu(0, address=PciAddress(0, n, 0, 0)) for n in range(count)]
    taint = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    pool = build(node(*gpus), taints={gpus[0].name: [taint]})

    assert [len(devices) for devices in pool.slices] == sizes
    assert [device["name"] for device in pool.devices] == [one.name for one in gpus]
    assert pool.devices[0]["taints"] == [taint]
    assert all("taints" not in device for device in pool.devices[1:])


def test_taints_of_devices_that_are_not_there_are_ignored_and_too_many_are_refused(gpu: Make, node: Node) -> None:
    taint = {"key": "gpu.nvidia.com/xid", "effect": "NoSchedule"}

    assert "taints" not in build(node(gpu()), taints={"gpu-9": [taint]}).devices[0]
    with pytest.raises(ValueError, match="device gpu-0000-10-00-0 has 17 taints, the API takes 16"):
        build(node(gpu()), taints={gpu().name: [taint] * 17})


@pytest.mark.bug("B122")
def test_the_objects_are_whole_slices_of_one_complete_pool(gpu: Make, node: Node) -> None:
    pool = build(node(*(gpu(0, address=PciAddress(0, n, 0, 0)) for n in range(70))))

    first, second = slice_objects(pool, node_name="node-a", driver_name=DRIVER)

    assert (first["apiVersion"], first["kind"]) == ("resource.k8s.io/v1", "ResourceSlice")
    assert first["metadata"] == {"generateName": "00000-gpu.nvidia.com-node-a-"}
    assert second["metadata"] == {"generateName": "00001-gpu.nvidia.com-node-a-"}
    assert first["spec"]["pool"] == {"name": pool.name, "generation": 1, "resourceSliceCount": 2}
    assert (first["spec"]["nodeName"], first["spec"]["driver"]) == ("node-a", DRIVER)
    assert [len(one["spec"]["devices"]) for one in (first, second)] == [64, 6]


def test_the_object_of_an_empty_pool_has_no_devices_field(node: Node) -> None:
    (empty,) = slice_objects(build(node()), node_name="node-a", driver_name=DRIVER)

    assert "devices" not in empty["spec"]
    assert empty["spec"]["pool"]["resourceSliceCount"] == 1


@pytest.mark.parametrize(
    ("node_name", "driver", "part"),
    [
        ("Node-A", DRIVER, "node name"),
        ("", DRIVER, "node name"),
        ("a/b", DRIVER, "node name"),
        ("n" * 254, DRIVER, "node name"),
        ("node-a", "", "driver name"),
        ("node-a", "gpu_nvidia", "driver name"),
        ("node-a", "d" * 64, "driver name"),
    ],
)
def test_a_name_that_the_api_would_refuse_is_refused_first(node_name: str, driver: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        pool_name(node_name, driver)


_LABEL = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z", fullmatch=True)
_NODE_NAMES = st.lists(_LABEL, min_size=1, max_size=8).map(".".join).filter(lambda name: len(name) <= 253)


@given(_NODE_NAMES, st.sampled_from([DRIVER, "GPU.example.com", "d" * 63]))
def test_a_pool_name_is_two_subdomains_and_fits(node_name: str, driver: str) -> None:
    name = pool_name(node_name, driver)

    assert len(name) <= 253
    assert re.fullmatch(f"{SUBDOMAIN}/{SUBDOMAIN}", name)
    assert name.endswith(f"/{driver.lower()}")
    if len(node_name) + len(driver) < 253:
        assert name.startswith(node_name + "/")


@given(st.integers(200, 253), st.sampled_from("abc"), st.sampled_from("xyz"))
def test_long_node_names_that_differ_at_the_end_only_have_pools_of_their_own(length: int, one: str, other: str) -> None:
    stem = "n" * (length - 1)

    assert pool_name(stem + one, DRIVER) != pool_name(stem + other, DRIVER)


@given(st.lists(st.integers(), max_size=300), st.integers(1, 70))
def test_chunks_keep_every_device_once_in_order_and_are_as_few_as_can_be(items: list[int], size: int) -> None:
    devices = [{"name": str(item)} for item in items]
    parts = chunks(devices, size)

    assert [device for part in parts for device in part] == devices
    assert all(len(part) <= size for part in parts)
    assert len(parts) == max(1, -(-len(items) // size))


_ROWS = st.lists(
    st.dictionaries(st.sampled_from("abcd"), st.sampled_from([1, 0, False, "x", "", " ", None])), max_size=5
)


@given(_ROWS)
def test_the_shared_keys_are_those_for_which_every_row_has_a_value(rows: list[dict[str, Any]]) -> None:
    found = uniform_keys(rows)

    for key in "abcd":
        has_all = bool(rows) and all(row.get(key) is not None and str(row[key]).strip() for row in rows)
        assert (key in found) == has_all


_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "product_name": st.none() | st.text(max_size=80),
        "brand": st.none() | st.just("Nvidia"),
        "cuda_compute_capability": st.none() | st.just((10, 0)),
        "memory_bytes": st.none() | st.integers(0, 2**40),
        "numa_node": st.none() | st.integers(0, 7),
        "pcie_root": st.none() | st.just("pci0000:00"),
        "switch_path": st.just(()),
        "nvlinks": st.just(()),
        "nvlink_group": st.none(),
        "state": st.sampled_from(GpuState),
        "ecc": st.none(),
        "mig": st.none(),
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixtures are pure makers
@given(st.lists(_CHANGES, max_size=6), st.none() | st.text(max_size=70))
def test_every_pool_keeps_the_rules_of_the_api(
    gpu: Make, node: Node, changes: list[dict[str, Any]], version: str | None
) -> None:
    pool = build(node(*(gpu(n, **change) for n, change in enumerate(changes)), driver_version=version))

    types = {row.id: row.type.value for row in ATTRIBUTES}
    assert len(pool.devices) + len(pool.withheld) == len(changes)
    assert len({frozenset(own) for own in keys(pool)}) <= 1
    for device in pool.devices:
        assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", device["name"])
        assert len(device["attributes"]) + len(device.get("capacity", {})) <= 32
        for key, value in device["attributes"].items():
            ((kind, content),) = value.items()
            assert kind == types[key]
            if isinstance(content, str):
                assert 0 < len(content.encode()) <= 64
    json.dumps(pool.slices, allow_nan=False)
    objects = slice_objects(pool, node_name="node-a", driver_name=DRIVER)
    assert [fault for one in objects for fault in validate_slice(one["spec"])] == []
