"""The table of attributes keeps the API's rules and NVIDIA's names, and the page shows it as it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from driver.inventory import path_between
from driver.model import Fabric, Gpu, MemoryKind, NodeInventory, NvLinkGroup, PciAddress
from driver.publish import ATTRIBUTES, AttributeKind, AttributeType, Missing, build_pool
from driver.publish.docs import page
from driver.publish.migattributes import MIG_ATTRIBUTES
from native.pcipath import PathClass

NVIDIAS = {
    "type": "string",
    "uuid": "string",
    "productName": "string",
    "brand": "string",
    "architecture": "string",
    "cudaComputeCapability": "version",
    "driverVersion": "version",
    "cudaDriverVersion": "version",
    "addressingMode": "string",
    "resource.kubernetes.io/pciBusID": "string",
    "resource.kubernetes.io/pcieRoot": "string",
    "resource.kubernetes.io/numaNode": "int",
}

Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]


def published(node: NodeInventory) -> list[dict[str, object]]:
    pool = build_pool(node, node_name="node-a", driver_name="gpu.nvidia.com")
    return [{key: next(iter(value.values())) for key, value in device["attributes"].items()} for device in pool.devices]


@pytest.mark.bug("B07")
def test_every_id_is_an_identifier_that_the_api_takes() -> None:
    for row in ATTRIBUTES:
        domain, _, name = row.id.rpartition("/")
        assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name), row.id
        assert domain in {"", "resource.kubernetes.io"}


def test_ids_are_unique_and_all_of_them_fit_on_a_device() -> None:
    assert len({row.id for row in ATTRIBUTES}) == len(ATTRIBUTES)
    assert len(ATTRIBUTES) <= 32


def test_nvidias_attributes_are_there_with_their_types() -> None:
    types = {row.id: row.type.value for row in ATTRIBUTES}

    assert {key: types.get(key) for key in NVIDIAS} == NVIDIAS
    assert types["memory"] == "capacity"


def test_every_value_has_the_type_that_the_table_says(gpu: Make, node: Node) -> None:
    pair = node(gpu(), gpu(1, shares=2))  # with a GPU in shares there is a value for every row
    (device, _) = build_pool(pair, node_name="node-a", driver_name="gpu.nvidia.com").devices
    python_types = {"string": str, "version": str, "int": int, "bool": bool}

    for row in ATTRIBUTES:
        if row.type is not AttributeType.CAPACITY:
            ((kind, value),) = device["attributes"][row.id].items()
            assert kind == row.type.value
            assert type(value) is python_types[kind]
    assert device["capacity"] == {"memory": {"value": "81559Mi"}, "shares": {"value": "1"}}


def test_an_h100_is_published_as_users_of_nvidias_driver_know_it(gpu: Make, node: Node) -> None:
    (device,) = published(node(gpu(11)))

    assert device == {
        "type": "gpu",
        "uuid": "GPU-00000000-0000-0000-0000-000000000011",
        "index": 11,
        "productName": "NVIDIA H100 80GB HBM3",
        "brand": "Nvidia",
        "architecture": "Hopper",
        "cudaComputeCapability": "9.0.0",
        "driverVersion": "580.105.8",
        "driverVersionString": "580.105.08",
        "cudaDriverVersion": "13.0.0",
        "addressingMode": "HMM",
        "resource.kubernetes.io/pciBusID": "0000:1b:00.0",
        "resource.kubernetes.io/pcieRoot": "pci0000:1b",
        "resource.kubernetes.io/numaNode": 2,
        "pcieSwitch": "0000:1b:1d.0",
        "nvlinkGroup": "0000:1b:00.0",
        "nvlinkCount": 18,
        "fabricClique": "none.0000:1b:00.0",
        "eccEnabled": True,
        "migEnabled": False,
        "memoryKind": "dedicated",
    }


@pytest.mark.bug("B124")
def test_only_launch_equality_and_fabric_values_differ_between_equal_nodes(gpu: Make, node: Node) -> None:
    here, there = published(node(gpu(0), gpu(1))), published(node(gpu(8, index=0), gpu(9, index=1)))
    kinds = {row.id: row.kind for row in ATTRIBUTES}

    for a, b in zip(here, there, strict=True):
        assert a.keys() == b.keys()
        differing = {kinds[key] for key in a if a[key] != b[key]}
        assert differing <= {AttributeKind.LAUNCH, AttributeKind.EQUALITY, AttributeKind.FABRIC}


@pytest.mark.parametrize(
    ("path", "switch"),
    [
        ((), "0000:10:00.0"),
        ((PciAddress(0, 1, 1, 0),), "0000:01:01.0"),
        ((PciAddress(0, 1, 1, 0), PciAddress(0, 2, 0, 0)), "0000:01:01.0"),
        ((PciAddress(0, 1, 1, 0), PciAddress(0, 2, 0, 0), PciAddress(0, 3, 4, 0)), "0000:02:00.0"),
    ],
)
def test_the_switch_is_the_port_above_the_gpus_own(
    gpu: Make, node: Node, path: tuple[PciAddress, ...], switch: str
) -> None:
    assert published(node(gpu(switch_path=path)))[0]["pcieSwitch"] == switch


def test_gpus_without_nvlink_or_fabric_never_look_like_partners(gpu: Make, node: Node) -> None:
    devices = published(node(*(gpu(n, nvlinks=(), nvlink_group=None) for n in range(4)), nvlink_groups=()))

    for key in ("nvlinkGroup", "fabricClique", "pcieSwitch"):
        assert len({device[key] for device in devices}) == 4
    assert [device["nvlinkCount"] for device in devices] == [0, 0, 0, 0]


def test_partners_share_the_name_of_their_group(gpu: Make, node: Node) -> None:
    gpus = [gpu(n, nvlink_group=n // 2) for n in range(4)]
    groups = tuple(NvLinkGroup(n, (gpus[2 * n].address, gpus[2 * n + 1].address)) for n in range(2))

    devices = published(node(*gpus, nvlink_groups=groups))

    assert [device["nvlinkGroup"] for device in devices] == ["0000:10:00.0"] * 2 + ["0000:12:00.0"] * 2


def test_a_fabric_is_named_by_cluster_and_clique(gpu: Make, node: Node) -> None:
    fabric = Fabric("2e9eb4a5-9d5e-4d2f-8d9a-6b6c2a3d1f00", 32766)

    assert published(node(gpu(fabric=fabric)))[0]["fabricClique"] == "2e9eb4a5-9d5e-4d2f-8d9a-6b6c2a3d1f00.32766"


@pytest.mark.bug("B01")
def test_unified_memory_is_marked_as_such(gpu: Make, node: Node) -> None:
    spark = gpu(memory_kind=MemoryKind.UNIFIED, memory_bytes=128 * 2**30, mig=None, ecc=None)
    pool = build_pool(node(spark), node_name="node-a", driver_name="gpu.nvidia.com")

    assert pool.devices[0]["attributes"]["memoryKind"] == {"string": "unified"}
    assert pool.devices[0]["capacity"] == {"memory": {"value": "128Gi"}}


@pytest.mark.bug("B27")
def test_what_a_driver_does_not_tell_is_said_to_be_unknown(gpu: Make, node: Node) -> None:
    bare = Gpu(PciAddress(0, 0x10, 0, 0), gpu().state, uuid="GPU-1")
    (device,) = published(node(bare, driver_version=None, cuda_driver_version=None))

    assert {key: device[key] for key in ("productName", "brand", "architecture", "addressingMode")} == {
        "productName": "Unknown",
        "brand": "Unknown",
        "architecture": "Unknown",
        "addressingMode": "Unknown",
    }
    assert device["cudaComputeCapability"] == "0.0.0"
    assert (device["eccEnabled"], device["migEnabled"], device["nvlinkCount"]) == (False, False, 0)
    assert "driverVersion" not in device
    assert "resource.kubernetes.io/numaNode" not in device


def test_equality_is_never_claimed_by_a_shared_word_for_unknown() -> None:
    shared = [row.id for row in ATTRIBUTES if row.kind is AttributeKind.EQUALITY and row.missing is Missing.EXPLICIT]

    assert set(shared) == {"pcieSwitch", "nvlinkGroup"}  # whose explicit value is the GPU's own address


def test_every_row_explains_itself() -> None:
    for row in ATTRIBUTES:
        assert row.doc.endswith("."), row.id
        assert row.derivation, row.id


def test_the_page_is_made_from_the_table_as_it_is() -> None:
    path = Path(__file__).parents[3] / "docs/attributes.md"

    assert path.read_text() == page(), "run: python -m driver.publish.docs > docs/attributes.md"


def test_the_page_names_every_attribute_once() -> None:
    rows = re.findall(r"^\| `([^`]+)` \|", page(), re.MULTILINE)

    assert sorted(rows) == sorted([row.id for row in ATTRIBUTES] + [row.id for row in MIG_ATTRIBUTES])


_PORT = st.integers(0, 1)
_POSITIONS = st.lists(
    st.tuples(_PORT, _PORT, st.lists(_PORT, min_size=1, max_size=2).map(tuple)), min_size=2, max_size=6, unique=True
)
"""Root complex, root port, and the downstream port taken in each switch on the way to a GPU."""


def bridges(position: tuple[int, int, tuple[int, ...]], buses: dict[object, int]) -> tuple[PciAddress, ...]:
    """The chain of bridges to a position; the same bridge has the same address in every chain."""
    root, port, ports = position
    chain = [PciAddress(0, 0x40 * root, port + 1, 0)]
    for depth, downstream in enumerate(ports):
        above = (root, port, ports[:depth])
        chain.append(PciAddress(1, buses.setdefault(above, len(buses)), 0, 0))
        chain.append(PciAddress(2, buses[above], downstream, 0))
    return tuple(PciAddress(0, bridge.domain * 0x50 + bridge.bus, bridge.device, 0) for bridge in chain)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixtures are pure makers
@given(_POSITIONS)
def test_gpus_share_a_switch_exactly_where_nvidia_smi_would_say_pix(
    gpu: Make, node: Node, positions: list[tuple[int, int, tuple[int, ...]]]
) -> None:
    taken = [(root, port, *ports) for root, port, ports in positions]
    assume(not any(one != other and other[: len(one)] == one for one in taken for other in taken))
    buses: dict[object, int] = {}
    gpus = [
        gpu(number, pcie_root=f"pci0000:{0x40 * position[0]:02x}", switch_path=bridges(position, buses))
        for number, position in enumerate(positions)
    ]

    switches = [device["pcieSwitch"] for device in published(node(*gpus))]

    for a, b in combinations(range(len(gpus)), 2):
        assert (switches[a] == switches[b]) == (path_between(gpus[a], gpus[b]) is PathClass.PIX)
