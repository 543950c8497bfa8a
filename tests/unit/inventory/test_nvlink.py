"""Which GPUs of a node reach each other over NVLink, and what fabric they have joined."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.inventory import build_inventory
from driver.inventory.nvlink import fabric_of, groups_of
from driver.model import Fabric, NodeInventory, NvLinkLink, PciAddress
from native.nvml.errors import NvmlReturn
from native.nvml.types import FabricInfo, NvLink
from native.sysfs import PciDevice
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu, switch_links

CLUSTER = "2e9eb4a5-9d5e-4d2f-8d9a-6b6c2a3d1f00"
NO_CLUSTER = "00000000-0000-0000-0000-000000000000"


def node(*links: tuple[NvLink, ...] | None, others: tuple[PciDevice, ...] = (), **changes: Any) -> NodeInventory:
    readings = (nvml_gpu(address(n), nvlinks=own, **changes) for n, own in enumerate(links))
    return build_inventory(
        nvml(*readings), host(*(pci_gpu(address(n)) for n in range(len(links))), *others), mock=False
    )


def groups(inventory: NodeInventory) -> list[list[str]]:
    return [[str(member) for member in group.members] for group in inventory.nvlink_groups]


def link_to(number: int, *, active: bool = True, kind: int | None = 0) -> tuple[NvLink, ...]:
    return (NvLink(0, active, 6, address(number), kind),)


def test_all_gpus_with_links_to_switches_are_one_group() -> None:
    inventory = node(*[switch_links(18)] * 8)

    assert groups(inventory) == [[address(n) for n in range(8)]]
    assert [gpu.nvlink_group for gpu in inventory.gpus] == [0] * 8
    assert [gpu.nvlink_count for gpu in inventory.gpus] == [18] * 8
    assert inventory.gpus[0].nvlinks[0].version == "4.0"
    assert inventory.gpus[0].nvlinks[0].remote_kind == "switch"


def test_a_gpu_whose_links_are_down_is_in_no_group() -> None:
    down = tuple(NvLink(index, False, None, None, None) for index in range(18))
    inventory = node(switch_links(18), switch_links(18), down, switch_links(18))

    assert groups(inventory) == [[address(0), address(1), address(3)]]
    assert (inventory.gpus[2].nvlink_group, inventory.gpus[2].nvlink_count) == (None, 0)


def test_bridged_pairs_are_groups_of_two_numbered_by_their_lowest_address() -> None:
    inventory = node(link_to(3), link_to(2), link_to(1), link_to(0), None)

    assert groups(inventory) == [[address(0), address(3)], [address(1), address(2)]]
    assert [gpu.nvlink_group for gpu in inventory.gpus] == [0, 1, 1, 0, None]


def test_a_ring_of_peers_is_one_group() -> None:
    assert groups(node(link_to(1), link_to(2), link_to(3), link_to(0))) == [[address(n) for n in range(4)]]


def test_the_bus_tells_the_far_end_where_nvml_does_not_know_its_kind() -> None:
    chip = pci_gpu("0000:c0:00.0", class_code=0x068000)
    to_chip = (NvLink(0, True, 6, "0000:c0:00.0", None),)

    inventory = node(link_to(1, kind=255), link_to(0, kind=None), to_chip, to_chip, others=(chip,))

    assert groups(inventory) == [[address(0), address(1)], [address(2), address(3)]]


def test_links_to_unknown_ends_and_to_processors_join_nobody() -> None:
    npu = (NvLink(0, True, 2, "0004:04:00.0", 1),)
    unknown = (NvLink(0, True, 6, None, None),)

    inventory = node(npu, npu, unknown, unknown)

    assert groups(inventory) == []
    assert [gpu.nvlink_count for gpu in inventory.gpus] == [1, 1, 1, 1]
    assert [gpu.nvlinks[0].remote_kind for gpu in inventory.gpus] == ["npu", "npu", "unknown", "unknown"]


def test_a_lost_gpu_is_in_no_group_and_its_peer_stays_alone() -> None:
    readings = (
        nvml_gpu(address(0), nvlinks=link_to(1)),
        nvml_gpu(address(1), codes={"handle": NvmlReturn.GPU_IS_LOST}),
    )
    inventory = build_inventory(nvml(*readings), host(*(pci_gpu(address(n)) for n in range(2))), mock=False)

    assert groups(inventory) == []
    assert inventory.gpus[0].nvlink_group is None


def test_a_single_gpu_with_links_to_a_switch_is_a_group_of_one() -> None:
    assert groups(node(switch_links(18, 7))) == [[address(0)]]


def test_gpus_of_different_cliques_do_not_reach_each_other_through_switches() -> None:
    readings = (
        nvml_gpu(address(n), nvlinks=switch_links(18, 7), fabric=FabricInfo(3, 0, CLUSTER, n // 2, 0)) for n in range(4)
    )
    inventory = build_inventory(nvml(*readings), host(*(pci_gpu(address(n)) for n in range(4))), mock=False)

    assert groups(inventory) == [[address(0), address(1)], [address(2), address(3)]]


@pytest.mark.parametrize(
    ("info", "expected"),
    [
        (FabricInfo(3, 0, CLUSTER, 32766, 0), Fabric(CLUSTER, 32766)),
        (FabricInfo(3, 0, CLUSTER.upper(), 2, 0), Fabric(CLUSTER, 2)),
        (FabricInfo(3, 0, NO_CLUSTER, 0, 0), None),
        (FabricInfo(2, 0, CLUSTER, 2, 0), None),
        (FabricInfo(0, 0, CLUSTER, 2, 0), None),
        (FabricInfo(3, 999, CLUSTER, 2, 0), None),
        (FabricInfo(3, 0, "", 2, 0), None),
        (None, None),
    ],
)
def test_a_gpu_has_a_fabric_only_once_it_has_joined_one(info: FabricInfo | None, expected: Fabric | None) -> None:
    assert fabric_of(info) == expected


def test_a_failed_registration_is_reported() -> None:
    inventory = node(switch_links(18, 7), fabric=FabricInfo(3, 999, CLUSTER, 2, 0))

    assert inventory.gpus[0].fabric is None
    assert "joining the NVLink fabric failed: UNKNOWN (999)" in inventory.problems[0].message


_ADDRESSES = [PciAddress(0, 0x10 * (n + 1), 0, 0) for n in range(5)]
_LINKS = st.builds(
    NvLinkLink,
    st.integers(0, 17),
    st.booleans(),
    st.just("4.0"),
    st.sampled_from([*_ADDRESSES, PciAddress(0, 0xC0, 0, 0), None]),
    st.sampled_from(["gpu", "switch", "unknown"]),
)


@given(st.dictionaries(st.sampled_from(_ADDRESSES), st.lists(_LINKS, max_size=3), max_size=5))
def test_groups_are_disjoint_sorted_and_hold_both_ends_of_every_active_link(
    links: dict[PciAddress, list[NvLinkLink]],
) -> None:
    found = groups_of(links, {})

    members = [member for group in found for member in group.members]
    assert len(members) == len(set(members))
    assert [group.index for group in found] == list(range(len(found)))
    assert [group.members[0] for group in found] == sorted(group.members[0] for group in found)
    group_of = {member: group.index for group in found for member in group.members}
    for at, own in links.items():
        for link in own:
            if link.active and link.remote_kind != "switch" and link.remote in links:
                assert group_of[at] == group_of[link.remote]
    assert groups_of(dict(reversed(links.items())), {}) == found
