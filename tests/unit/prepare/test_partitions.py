"""Partitions in records: what overlaps what, what old and new files say, what names mean; without any hardware."""

from __future__ import annotations

import json
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.model import MigMode, MigPartition, Placement
from driver.prepare import ClaimError, ClaimRecord, ClaimRef, DeviceRecord, Phase, Reason
from driver.prepare.claims import is_claim_uid
from driver.prepare.partition import PARTITION, Origin, PartitionRecord
from driver.prepare.records import record_from_json, record_to_json
from driver.prepare.remnant import aside, is_remnant, remnant
from driver.prepare.resolve import conflict
from tests.unit.prepare.prepare_node import POOL, FakeNode, claim, device, gpu, ref, result

ADDRESS = "0000:1b:00.0"
GPU = "GPU-00000000-0000-4000-8000-000000000000"


def whole(address: str = ADDRESS, uuid: str = GPU, **changes: Any) -> DeviceRecord:
    values: dict[str, Any] = {"request": "r", "pool": POOL, "device": "gpu", "share_id": None, "admin_access": False}
    return DeviceRecord(**(values | {"address": address, "uuid": uuid, "cdi_device": "cdi"} | changes))


def part(start: int, size: int, compute: Placement | None = None, uuid: str = "", **changes: Any) -> DeviceRecord:
    parent = f"GPU-at-{changes['address']}" if "address" in changes else GPU
    partition = PartitionRecord(9, "3g.40gb", Placement(start, size), parent, Origin.PLANNED, compute)
    return whole(uuid="", device=f"part-{start}", **changes).with_partition(partition, uuid)


def of(uid: str, *devices: DeviceRecord, **changes: Any) -> ClaimRecord:
    return ClaimRecord(ClaimRef("ns", f"claim-{uid}", uid), Phase.PREPARED, devices, **changes)


def overlap(one: DeviceRecord, other: DeviceRecord) -> bool:
    found = conflict(of("one", one), [of("other", other)]) is not None
    assert found == (conflict(of("one", other), [of("other", one)]) is not None), "it is symmetric"
    return found


# overlap


def test_a_partition_overlaps_its_gpu_and_no_other_gpu() -> None:
    assert overlap(part(4, 4), whole())
    assert not overlap(part(4, 4), whole("0000:1c:00.0", "GPU-1"))


@given(st.integers(0, 11), st.integers(1, 8), st.integers(0, 11), st.integers(1, 8))
def test_partitions_overlap_where_their_slices_do(a: int, a_size: int, b: int, b_size: int) -> None:
    common = set(range(a, a + a_size)) & set(range(b, b + b_size))
    assert overlap(part(a, a_size), part(b, b_size)) == bool(common)


def test_parts_of_one_partition_overlap_by_their_compute_slices() -> None:
    one, two, three = (part(4, 4, Placement(start, size)) for start, size in ((0, 1), (1, 2), (2, 1)))
    assert not overlap(one, two)
    assert overlap(two, three)
    assert overlap(one, part(4, 4))
    assert overlap(one, part(6, 1))
    assert not overlap(one, part(0, 4))
    assert overlap(one, whole())


def test_partitions_of_the_same_place_on_two_gpus_do_not_overlap() -> None:
    assert not overlap(part(0, 4), part(0, 4, address="0000:1c:00.0"))


def test_admin_access_is_in_nobodys_way() -> None:
    assert not overlap(part(4, 4, admin_access=True), whole())
    assert not overlap(whole(admin_access=True), part(4, 4))


def test_a_record_that_cannot_be_read_withholds_the_whole_gpu_that_it_mentions() -> None:
    stored = record_to_json(of("bad", part(4, 4, uuid="MIG-1")))
    stored["phase"] = "Dancing"
    bad = record_from_json("bad", stored)
    assert bad.doubt
    assert conflict(of("u1", part(0, 4)), [bad]) is not None
    assert conflict(of("u1", whole()), [bad]) is not None
    assert conflict(of("u1", part(0, 4, address="0000:1c:00.0")), [bad]) is None


def test_the_message_names_the_other_claim_and_what_of_it_is_in_the_way() -> None:
    error = conflict(of("u1", whole()), [of("u2", part(4, 4))])
    assert isinstance(error, ClaimError)
    assert error.reason is Reason.DEVICE_IN_USE
    assert "claim ns/claim-u2" in str(error)
    assert "its part-4 overlaps it" in str(error)


# records


@given(
    st.integers(0, 99),
    st.integers(0, 11),
    st.integers(1, 12),
    st.sampled_from(list(Origin)),
    st.none() | st.builds(Placement, st.integers(0, 6), st.integers(1, 7)),
    st.none() | st.integers(0, 14),
    st.none() | st.integers(0, 7),
    st.booleans(),
)
def test_a_partition_comes_back_from_the_file_as_it_was(
    profile_id: int,
    start: int,
    size: int,
    origin: Origin,
    compute: Placement | None,
    gpu_instance: int | None,
    compute_instance: int | None,
    switches: bool,
) -> None:
    partition = PartitionRecord(
        profile_id, "1g", Placement(start, size), GPU, origin, compute, gpu_instance, compute_instance, switches
    )
    record = of("u1", whole().with_partition(partition, "MIG-1"))
    stored = json.loads(json.dumps(record_to_json(record)))
    assert record_from_json("u1", stored) == record
    assert record_from_json("u1", stored).devices[0].partition == partition


def test_what_is_left_of_a_claim_is_its_partition_alone_and_comes_back_from_the_file() -> None:
    lost = part(4, 4, uuid="MIG-1").with_data("sharing", {"interval": "Long"})
    prepared = of("u1", lost, whole("0000:1c:00.0", "GPU-1"), boot_id="boot", data={"mps": {"pid": 7}})
    rest = remnant(prepared, [lost])
    assert is_remnant(rest)
    assert record_from_json("u1", json.loads(json.dumps(record_to_json(rest)))) == rest == remnant(rest, rest.devices)
    assert (rest.phase, rest.boot_id, rest.hardware) == (Phase.UNPREPARING, "boot", lost.hardware)
    assert [device.data.keys() for device in rest.devices] == [{PARTITION}]
    assert aside(rest, ()).ref == ClaimRef("ns", "claim-u1", "u1-lost-1")
    assert aside(rest, ["u1-lost-1"]).ref.uid == "u1-lost-2"
    assert is_claim_uid(aside(remnant(of("u" * 63, lost), [lost]), ()).ref.uid)


def test_data_of_other_steps_is_kept_and_absent_data_is_not_written() -> None:
    plain = record_to_json(of("u1", whole()))
    assert "data" not in plain
    assert "data" not in plain["devices"][0]  # type: ignore[index]
    record = of("u1", whole().with_data("sharing", {"interval": "Long"}), data={"mps": {"pid": 7}})
    assert record_from_json("u1", json.loads(json.dumps(record_to_json(record)))) == record


@pytest.mark.parametrize(
    "change",
    [
        {"origin": "elsewhere"},
        {"start": -1},
        {"size": 0},
        {"size": 10**9},
        {"profileID": "x"},
        {"parentUUID": None},
        {"computeStart": 1, "computeSize": None},
        {"switchesMode": "yes"},
    ],
)
def test_a_partition_that_makes_no_sense_puts_its_record_in_doubt(change: dict[str, Any]) -> None:
    stored = json.loads(json.dumps(record_to_json(of("u1", part(4, 4)))))
    stored["devices"][0]["data"][PARTITION].update(change)
    read = record_from_json("u1", stored)
    assert read.doubt
    assert ADDRESS in read.held


@pytest.mark.bug("B69")
def test_files_from_before_partitions_are_read(node: FakeNode) -> None:
    preparer = node.start()
    preparer.prepare({"u1": claim("u1", result(0))})
    (record,) = preparer.prepared()
    assert record_to_json(record)["devices"] == [
        {
            "request": "gpu",
            "pool": POOL,
            "device": device(0),
            "address": str(gpu(0).address),
            "uuid": gpu(0).uuid,
            "cdiDevice": record.devices[0].cdi_device,
        }
    ]


def test_what_is_being_made_again_is_not_answered_from() -> None:
    made = PartitionRecord(9, "3g", Placement(0, 4), GPU, Origin.MADE, None, 1, 0)
    assert of("u1", whole().with_partition(made, "MIG-1")).trusted
    making = msgspec.structs.replace(made, origin=Origin.MAKING, gpu_instance=None, compute_instance=None)
    assert not of("u1", whole().with_partition(making, "")).trusted


# what a name means on a node


def divided(node: FakeNode) -> str:
    """The first GPU in MIG mode with one partition; gives the partition's name."""
    partition = MigPartition("MIG-1", 1, 0, 9, "3g.40gb", Placement(4, 4))
    node.gpus = (replace(gpu(0), mig=MigMode(True, True), partitions=(partition,)), *node.gpus[1:])
    return f"{gpu(0).name}-mig-3g-40gb-9-4"


def refused(node: FakeNode, name: str, **changes: Any) -> ClaimError:
    answer = node.start().prepare({"u1": claim("u1", result(0, device=name, **changes))})["u1"]
    assert isinstance(answer, ClaimError)
    return answer


def test_a_gpu_whose_mode_nvml_does_not_tell_is_not_given_as_a_whole_before_it_does(node: FakeNode) -> None:
    whole = node.gpus[0]
    node.gpus = (replace(whole, mig=None, unread=("mig", "partitions"), partitions_known=False), *node.gpus[1:])
    error = refused(node, whole.name)
    assert (error.reason, error.permanent) == (Reason.DEVICE_NOT_READY, False)
    assert "does not tell the MIG mode" in str(error)
    assert node.specs() == []
    watched = node.start().prepare({"u2": claim("u2", result(0, device=whole.name, adminAccess=True))})["u2"]
    assert not isinstance(watched, ClaimError), "who only looks at it sees it in any mode"
    node.gpus = (whole, *node.gpus[1:])
    given = node.start().prepare({"u1": claim("u1", result(0, device=whole.name))})["u1"]
    assert not isinstance(given, ClaimError)
    node.gpus = (replace(whole, mig=None, unread=("mig", "partitions"), partitions_known=False), *node.gpus[1:])
    assert node.start().prepare({"u1": claim("u1", result(0, device=whole.name))})["u1"] == given, "it was known then"


@pytest.mark.bug("B79")
def test_without_the_kernels_word_a_partition_is_not_handed_out(node: FakeNode) -> None:
    error = refused(node, divided(node))
    assert error.reason is Reason.DEVICE_NOT_READY
    assert "/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access" in str(error)
    assert node.specs() == []


@pytest.mark.parametrize("name", ["gpu-0000-1b-00-0-mig-3g-40gb-9-0", "gpu-0000-1b-00-0-mig-1g-10gb-19-4"])
def test_a_partition_that_does_not_stand_is_a_permanent_error(node: FakeNode, name: str) -> None:
    divided(node)
    error = refused(node, name)
    assert error.permanent
    assert error.reason is Reason.DEVICE_NOT_FOUND
    assert "it has: gpu-0000-1b-00-0-mig-3g-40gb-9-4" in str(error)


def test_a_partition_of_a_gpu_that_is_not_there_says_so(node: FakeNode) -> None:
    error = refused(node, "gpu-0000-ff-00-0-mig-3g-40gb-9-4")
    assert "this node has no device gpu-0000-ff-00-0" in str(error)


def test_a_partition_of_a_lost_claim_file_withholds_its_gpu(node: FakeNode) -> None:
    """The checkpoint is gone and only the CDI file of a claim with a partition is left."""
    name = divided(node).upper().replace("-", "_")
    node.cdi_dir.mkdir()
    node.spec_path("u9").write_text(json.dumps({"env": ["GPUDRA_CLAIM_U9=ns/claim-u9", f"GPUDRA_DEVICE_{name}=MIG-1"]}))
    error = refused(node, divided(node))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "claim ns/claim-u9" in str(error)
    preparer = node.start()
    assert preparer.unprepare([ref("u9")]) == {"u9": None}


def test_no_two_devices_of_a_node_have_hardware_in_common_that_do_not_overlap() -> None:
    """Parts, siblings and wholes of two GPUs: a name of hardware stands for one thing."""
    devices = [part(0, 4), part(4, 2), part(6, 1), part(0, 4, address="0000:1c:00.0"), whole("0000:1d:00.0", "GPU-2")]
    for one, other in combinations(devices, 2):
        assert not one.hardware & other.hardware
        assert not overlap(one, other)
