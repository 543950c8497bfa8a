"""The pool of a node with MIG: which devices are in it, in which order, in which slices, with which counters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from driver.model import Gpu, GpuState, MigMode, MigPartition, MigProfile, MigSupport, NodeInventory, Placement
from driver.names import DeviceName
from driver.publish import DeviceOrder, PoolDocument, build_pool, slice_objects

Make = Callable[..., Gpu]
Node = Callable[..., NodeInventory]

SMALL = MigProfile(19, "1g.10gb", tuple(Placement(n, 1) for n in range(7)), 7, 10 << 30, 16, 1, 1, 0, 1, 0, 1)
MEDIA = MigProfile(20, "1g.10gb+me", tuple(Placement(n, 1) for n in range(7)), 1, 10 << 30, 16, 1, 1, 0, 1, 1, 1)
HALF = MigProfile(9, "3g.40gb", (Placement(0, 4), Placement(4, 4)), 2, 40 << 30, 60, 3, 3, 0, 3, 0, 3)
WHOLE = MigProfile(0, "7g.80gb", (Placement(0, 8),), 1, 80 << 30, 132, 8, 7, 0, 7, 1, 7)
PROFILES = (WHOLE, HALF, SMALL, MEDIA)
COUNT = 1 + 2 + 7 + 7


def standing(profile: MigProfile, start: int, /, **changes: Any) -> MigPartition:
    """A partition as the inventory has it."""
    size = profile.placements[0].size
    values: dict[str, Any] = {
        "uuid": f"MIG-{profile.profile_id}-{start}",
        "gpu_instance": start + 1,
        "compute_instance": 0,
        "profile_id": profile.profile_id,
        "profile": profile.name,
        "placement": Placement(start, size),
        "memory_bytes": profile.memory_bytes,
        "multiprocessors": profile.multiprocessors,
        "copy_engines": profile.copy_engines,
        "decoders": profile.decoders,
        "encoders": profile.encoders,
        "jpeg_engines": profile.jpeg_engines,
        "ofa_engines": profile.ofa_engines,
    }
    return MigPartition(**(values | changes))


def pool_of(inventory: NodeInventory, **options: Any) -> PoolDocument:
    return build_pool(inventory, node_name="node-a", driver_name="gpu.nvidia.com", **options)


def dynamic(inventory: NodeInventory, **options: Any) -> PoolDocument:
    return pool_of(inventory, mig=MigSupport.DYNAMIC, counters=True, **options)


def names(pool: PoolDocument) -> list[str]:
    return [device["name"] for device in pool.devices]


@pytest.fixture
def divided(gpu: Make) -> Make:
    """The n-th H100, whose profiles are known."""

    def make(number: int = 0, *partitions: MigPartition, **changes: Any) -> Gpu:
        mode = MigMode(bool(partitions), bool(partitions))
        values: dict[str, Any] = {"mig_profiles": PROFILES, "partitions": partitions, "mig": mode}
        return gpu(number, **(values | changes))

    return make


# partitions that somebody else made


def test_a_gpu_in_mig_mode_is_offered_by_its_partitions_alone(node: Node, divided: Make, gpu: Make) -> None:
    pool = pool_of(node(divided(0, standing(HALF, 4), standing(SMALL, 0)), gpu(1)))
    assert names(pool) == [
        "gpu-0000-10-00-0-mig-3g-40gb-9-4",
        "gpu-0000-10-00-0-mig-1g-10gb-19-0",
        "gpu-0000-11-00-0",
    ]
    assert pool.counters == ()
    half = pool.devices[0]
    assert {key: half["attributes"][key] for key in ("type", "uuid", "parentUUID", "profile", "placementStart")} == {
        "type": {"string": "mig"},
        "uuid": {"string": "MIG-9-4"},
        "parentUUID": {"string": "GPU-00000000-0000-0000-0000-000000000000"},
        "profile": {"string": "3g.40gb"},
        "placementStart": {"int": 4},
    }
    assert half["attributes"]["productName"] == {"string": "NVIDIA H100 80GB HBM3"}
    assert half["capacity"] == {
        "memory": {"value": "40Gi"},
        "multiprocessors": {"value": "60"},
        "copyEngines": {"value": "3"},
        "decoders": {"value": "3"},
        "encoders": {"value": "0"},
        "jpegEngines": {"value": "3"},
        "ofaEngines": {"value": "0"},
    }
    assert "consumesCounters" not in half


def test_mig_mode_without_a_partition_offers_nothing_and_says_what_would(node: Node, divided: Make) -> None:
    pool = pool_of(node(divided(0, mig=MigMode(True, True))))
    assert names(pool) == []
    (withheld,) = pool.withheld
    assert "nvidia-smi mig -cgi" in withheld.reason
    assert "-mig 0" in withheld.reason


def test_with_mig_support_off_a_gpu_in_mig_mode_is_withheld(node: Node, divided: Make) -> None:
    pool = pool_of(node(divided(0, standing(HALF, 0)), divided(1)), mig=MigSupport.OFF)
    assert names(pool) == ["gpu-0000-11-00-0"]
    assert "--mig static" in pool.withheld[0].reason


def test_what_is_not_usable_is_not_offered(node: Node, divided: Make) -> None:
    empty = standing(SMALL, 6, uuid=None, compute_instance=None)
    assert names(pool_of(node(divided(0, standing(HALF, 0), empty)))) == ["gpu-0000-10-00-0-mig-3g-40gb-9-0"]


def test_parts_of_a_partition_have_names_of_their_own(node: Node, divided: Make) -> None:
    parts = [
        standing(HALF, 0, profile="1c.3g.40gb", compute_instance=ci, compute=Placement(ci, 1), uuid=f"MIG-{ci}")
        for ci in range(3)
    ]
    pool = pool_of(node(divided(0, *parts)))
    assert names(pool) == [f"gpu-0000-10-00-0-mig-1c-3g-40gb-9-0-c{ci}" for ci in range(3)]
    assert all(DeviceName.parse(name) is not None for name in names(pool))


@pytest.mark.bug("B93")
def test_names_are_labels_whatever_the_profile_is_called_and_the_attribute_keeps_its_text(
    node: Node, divided: Make
) -> None:
    pool = pool_of(node(divided(0, standing(MEDIA, 0), standing(SMALL, 1, profile_id=65, profile="1g.24gb+me.all"))))
    assert names(pool) == ["gpu-0000-10-00-0-mig-1g-10gb-me-20-0", "gpu-0000-10-00-0-mig-1g-24gb-me-all-65-1"]
    assert [device["attributes"]["profile"]["string"] for device in pool.devices] == ["1g.10gb+me", "1g.24gb+me.all"]


# partitions that are made for claims


def test_every_partition_and_the_whole_gpu_consume_counters_of_its_set(node: Node, divided: Make) -> None:
    pool = dynamic(node(divided(0)))
    assert len(names(pool)) == len(set(names(pool))) == COUNT + 1
    ((counter_set,),) = pool.counters
    for device in pool.devices:
        (consumed,) = device["consumesCounters"]
        assert consumed["counterSet"] == counter_set["name"] == "gpu-0000-10-00-0-counter-set"
        assert set(consumed["counters"]) <= set(counter_set["counters"])
    whole = pool.devices[-1]
    assert whole["name"] == "gpu-0000-10-00-0"
    assert whole["consumesCounters"][0]["counters"] == counter_set["counters"], "beside it nothing fits"


def test_partitions_come_before_the_gpu_and_those_that_block_least_first(node: Node, divided: Make) -> None:
    order = names(dynamic(node(divided(0))))
    assert order[0] == "gpu-0000-10-00-0-mig-1g-10gb-19-6"
    assert order[-1] == "gpu-0000-10-00-0"
    assert order[-2] == "gpu-0000-10-00-0-mig-7g-80gb-0-0"


@pytest.mark.bug("B35")
def test_without_counters_nothing_is_published_that_only_counters_keep_apart(node: Node, divided: Make) -> None:
    pool = pool_of(node(divided(0)), mig=MigSupport.DYNAMIC, counters=False)
    assert names(pool) == ["gpu-0000-10-00-0"]
    assert pool.counters == ()
    assert "consumesCounters" not in pool.devices[0]


def test_partitions_of_claims_change_nothing_of_what_is_published(node: Node, divided: Make) -> None:
    """The scheduler counts what is allocated: a claim that comes or goes costs no write."""
    mine = standing(SMALL, 6, managed=True)
    assert dynamic(node(divided(0, mine))).slices == dynamic(node(divided(0))).slices


def test_a_gpu_that_somebody_else_has_divided_is_left_as_they_made_it(node: Node, divided: Make) -> None:
    theirs = standing(HALF, 0)
    pool = dynamic(node(divided(0, theirs, standing(SMALL, 6, managed=True)), divided(1)))
    first = [name for name in names(pool) if name.startswith("gpu-0000-10")]
    assert first == ["gpu-0000-10-00-0-mig-3g-40gb-9-0", "gpu-0000-10-00-0-mig-1g-10gb-19-6"]
    assert len(names(pool)) == 2 + COUNT + 1
    assert pool.devices[0]["consumesCounters"][0]["counters"] == {
        f"memory-slice-{number}": {"value": "1"} for number in range(4)
    }


def test_in_a_pool_with_counters_every_device_consumes_some(node: Node, divided: Make, gpu: Make) -> None:
    """A pool of both kinds makes Cluster Autoscaler count a node as idle whose other GPUs are all in use."""
    pool = dynamic(node(divided(0), gpu(1, mig=None)))
    assert all(device["consumesCounters"] for device in pool.devices)
    assert pool.counters[0][1] == {"name": "gpu-0000-11-00-0-counter-set", "counters": {"gpus": {"value": "1"}}}
    assert pool.devices[-1]["consumesCounters"][0]["counters"] == {"gpus": {"value": "1"}}


@pytest.mark.parametrize("enabled", [True, False])
def test_a_board_that_needs_a_reset_is_offered_in_the_mode_it_is_in(node: Node, divided: Make, enabled: bool) -> None:
    pool = dynamic(node(divided(0, architecture="Ampere", mig=MigMode(enabled, enabled))))
    whole = [name for name in names(pool) if name == "gpu-0000-10-00-0"]
    assert len(whole) == (0 if enabled else 1)
    assert len(names(pool)) == (COUNT if enabled else 1)


def test_a_virtual_gpu_is_not_divided(node: Node, divided: Make) -> None:
    assert names(dynamic(node(divided(0, virtualization_mode="VGPU")))) == ["gpu-0000-10-00-0"]


def test_the_mode_of_a_gpu_that_is_divided_on_demand_does_not_show(node: Node, divided: Make) -> None:
    on = dynamic(node(divided(0, mig=MigMode(True, True))))
    assert on.slices == dynamic(node(divided(0))).slices
    assert on.devices[-1]["attributes"]["migEnabled"] == {"bool": False}


def test_all_mig_devices_have_the_same_keys(node: Node, divided: Make) -> None:
    pool = dynamic(node(divided(0, standing(HALF, 0)), divided(1)))
    parts = [device for device in pool.devices if device["attributes"]["type"] == {"string": "mig"}]
    assert len({frozenset(device["attributes"]) for device in parts}) == 1
    assert len({frozenset(device["capacity"]) for device in parts}) == 1
    assert "uuid" not in parts[0]["attributes"], "those to be made have none yet"
    assert max(len(device["attributes"]) + len(device["capacity"]) for device in pool.devices) <= 32


@pytest.mark.bug("B107")
def test_a_taint_of_a_gpu_is_one_of_its_partitions_too(node: Node, divided: Make) -> None:
    lost = {"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}
    own = {"key": "gpu.nvidia.com/xid", "value": "31", "effect": "NoSchedule"}
    taints = {"gpu-0000-10-00-0": [lost], "gpu-0000-11-00-0-mig-1g-10gb-19-6": [own]}
    pool = dynamic(node(divided(0), divided(1)), taints=taints)
    tainted = {device["name"]: device.get("taints", []) for device in pool.devices}
    assert all(found == [lost] for name, found in tainted.items() if name.startswith("gpu-0000-10"))
    assert [name for name, found in tainted.items() if found == [own]] == ["gpu-0000-11-00-0-mig-1g-10gb-19-6"]


def test_a_gpu_that_is_not_ready_is_not_offered_in_parts_either(node: Node, divided: Make) -> None:
    pool = dynamic(node(divided(0, state=GpuState.LOST, reason="it is lost"), divided(1)))
    assert not [name for name in names(pool) if name.startswith("gpu-0000-10")]
    assert len(pool.counters[0]) == 1


# slices


@pytest.mark.bug("B30")
@pytest.mark.bug("B31")
def test_counter_sets_have_slices_of_their_own_and_a_gpu_lies_in_one_slice(node: Node, divided: Make) -> None:
    pool = dynamic(node(*(divided(number) for number in range(16))))
    assert [len(sets) for sets in pool.counters] == [8, 8]
    assert len(pool.devices) == 16 * (COUNT + 1)
    assert max(len(devices) for devices in pool.slices) <= 64
    where: dict[str, set[int]] = {}
    for position, devices in enumerate(pool.slices):
        for device in devices:
            where.setdefault(device["name"][:16], set()).add(position)
    assert all(len(slices) == 1 for slices in where.values())
    objects = slice_objects(pool, node_name="node-a", driver_name="gpu.nvidia.com")
    assert [sorted(set(item["spec"]) & {"devices", "sharedCounters"}) for item in objects] == [
        *[["sharedCounters"]] * 2,
        *[["devices"]] * len(pool.slices),
    ]
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in objects} == {len(objects)}


def test_packing_fills_one_gpu_after_the_other(node: Node, divided: Make) -> None:
    small = [name for name in names(dynamic(node(divided(0), divided(1)))) if "-1g-10gb-19-" in name]
    assert [name[:16] for name in small] == ["gpu-0000-10-00-0"] * 7 + ["gpu-0000-11-00-0"] * 7


def test_spreading_goes_round_the_gpus(node: Node, divided: Make) -> None:
    pool = dynamic(node(divided(0), divided(1)), order=DeviceOrder.SPREAD)
    small = [name for name in names(pool) if "-1g-10gb-19-" in name]
    assert small[:2] == ["gpu-0000-10-00-0-mig-1g-10gb-19-6", "gpu-0000-11-00-0-mig-1g-10gb-19-6"]
    assert names(pool)[-2:] == ["gpu-0000-10-00-0", "gpu-0000-11-00-0"]
    assert sorted(names(pool)) == sorted(names(dynamic(node(divided(0), divided(1)))))
