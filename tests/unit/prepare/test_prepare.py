"""Prepare and Unprepare of a claim: what the kubelet is told, what containers get, and what stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver.model import GpuState, MigMode
from driver.prepare import ClaimError, Phase, PreparedDevice, Reason
from driver.prepare.claims import ClaimRef
from tests.support.cdispecs import given
from tests.unit.prepare.prepare_calls import prepare_one, refusal, spec_of
from tests.unit.prepare.prepare_node import (
    DRIVER,
    POOL,
    FakeNode,
    FakeStatus,
    claim,
    config,
    device,
    gpu,
    gpu_config,
    ref,
    result,
)

SHARE = "3f0e6a0e-0f3a-4b6d-9a6e-0d6f1f0c2a11"


def paths(edits: dict[str, Any]) -> list[str]:
    return [item["path"] for item in edits["deviceNodes"]]


def files(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything in a folder, with inodes and times: what has not changed was not written."""
    found = {}
    for path in folder.iterdir():
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns, path.read_bytes())
    return found


def test_a_claim_of_one_gpu_gets_its_device_and_a_spec_file(node: FakeNode) -> None:
    (prepared,) = prepare_one(node.start(), claim("u1", result(3)))
    assert prepared == PreparedDevice(("gpu",), POOL, device(3), (f"{DRIVER}/claim=u1_gpu_{device(3)}",))
    spec = spec_of(node, "u1")
    assert spec["kind"] == f"{DRIVER}/claim"
    (entry,) = given(spec)
    assert entry["name"] == f"u1_gpu_{device(3)}"
    assert paths(entry["containerEdits"]) == ["/dev/nvidia3", "/dev/dri/card3"]
    assert paths(spec["containerEdits"]) == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    assert spec["containerEdits"]["mounts"][0]["containerPath"] == "/usr/lib/libcuda.so.1"


@pytest.mark.bug("B85")
def test_containers_are_hidden_from_the_older_runtime_hook_and_told_their_uuids(node: FakeNode) -> None:
    prepare_one(node.start(), claim("a-1", result(0), result(1, "x", adminAccess=True)))
    spec = spec_of(node, "a-1")
    assert spec["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void", "GPUDRA_CLAIM_A_1=ns/claim-a-1"]
    assert [entry["containerEdits"]["env"] for entry in given(spec)] == [
        [f"GPUDRA_DEVICE_GPU_0000_1B_00_0={gpu(0).uuid}"],
        [f"GPUDRA_ADMIN_DEVICE_GPU_0000_1C_00_0={gpu(1).uuid}"],
    ]


def test_the_record_is_in_the_file_and_in_no_container(node: FakeNode) -> None:
    (answer,) = prepare_one(node.start(), claim("a-1", result(0)))
    spec = spec_of(node, "a-1")
    record = spec["devices"][-1]
    (text,) = record["containerEdits"]["env"]
    assert text.startswith('GPUDRA_RECORD={"namespace":"ns","name":"claim-a-1","phase":"Prepared"')
    assert f"{spec['kind']}={record['name']}" not in answer.cdi_device_ids
    assert "GPUDRA_RECORD" not in json.dumps([spec["containerEdits"], *given(spec)])


@pytest.mark.bug("B84")
def test_each_request_gets_its_own_devices_and_none_of_anothers(node: FakeNode) -> None:
    answers = prepare_one(node.start(), claim("u1", result(0, "a"), result(1, "a"), result(2, "b/sub")))
    assert [(item.requests, item.device) for item in answers] == [
        (("a",), device(0)),
        (("a",), device(1)),
        (("b/sub",), device(2)),
    ]
    ids = [item.cdi_device_ids[0] for item in answers]
    assert len(set(ids)) == 3
    by_id = {f"{DRIVER}/claim={entry['name']}": entry for entry in spec_of(node, "u1")["devices"]}
    for index, cdi_id in enumerate(ids):
        assert paths(by_id[cdi_id]["containerEdits"]) == [f"/dev/nvidia{index}", f"/dev/dri/card{index}"]
    assert not any(path.startswith("/dev/nvidia0") for path in paths(spec_of(node, "u1")["containerEdits"]))


@pytest.mark.bug("B84")
def test_two_shares_of_one_device_in_a_claim_have_names_of_their_own(node: FakeNode) -> None:
    other = SHARE.replace("3", "4")
    answers = prepare_one(node.start(), claim("u1", result(0, "a", shareID=SHARE), result(0, "b", shareID=other)))
    assert [item.share_id for item in answers] == [SHARE, other]
    assert len({item.cdi_device_ids for item in answers}) == 2


@pytest.mark.bug("B46")
def test_a_repeated_prepare_gets_the_same_answer_without_any_side_effect(node: FakeNode) -> None:
    preparer = node.start()
    first = prepare_one(preparer, claim("u1", result(0)))
    before, snapshots = (files(node.state_dir), files(node.cdi_dir)), node.snapshots
    node.ready = False
    assert prepare_one(preparer, claim("u1", result(0))) == first
    assert (files(node.state_dir), files(node.cdi_dir)) == before
    assert node.snapshots == snapshots
    assert preparer.prepared()[0].phase is Phase.PREPARED


@pytest.mark.bug("B46")
def test_a_repeated_prepare_after_a_restart_gets_the_same_answer_and_unprepare_frees_all(node: FakeNode) -> None:
    first = prepare_one(node.start(), claim("u1", result(0)))
    preparer = node.start()
    assert prepare_one(preparer, claim("u1", result(0))) == first
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.specs() == []
    assert preparer.prepared() == ()


@pytest.mark.bug("B73")
@pytest.mark.parametrize("damage", ["removed", "truncated", "changed"])
def test_a_repeated_prepare_makes_a_lost_file_again(node: FakeNode, damage: str) -> None:
    preparer = node.start()
    first = prepare_one(preparer, claim("u1", result(0)))
    content = node.spec_path("u1").read_bytes()
    if damage == "removed":
        node.spec_path("u1").unlink()
    else:
        node.spec_path("u1").write_bytes(b"" if damage == "truncated" else content.replace(b"nvidia0", b"nvidia1"))
    assert prepare_one(preparer, claim("u1", result(0))) == first
    assert node.spec_path("u1").read_bytes() == content


@pytest.mark.bug("B53")
def test_a_permanent_error_costs_neither_a_write_nor_a_look_at_the_node(node: FakeNode) -> None:
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0), configs=[config(gpu_config(sharing={"strategy": "MPS"}))]))
    assert error.permanent
    assert not node.state_dir.exists()
    assert node.snapshots == 0


def test_a_device_name_that_this_driver_never_gives_is_a_permanent_error(node: FakeNode) -> None:
    error = refusal(node.start(), claim("u1", result(0) | {"device": "gpu-99"}))
    assert error.permanent
    assert error.reason is Reason.DEVICE_NOT_FOUND
    assert "gpu-99" in str(error)


@pytest.mark.bug("B67")
def test_a_device_that_the_node_lacks_is_named_with_those_it_has(node: FakeNode) -> None:
    node.drop_gpu(0)
    error = refusal(node.start(), claim("u1", result(0)))
    assert not error.permanent
    assert device(0) in str(error)
    assert device(1) in str(error)


@pytest.mark.bug("B58")
def test_without_a_snapshot_prepare_may_be_tried_again_and_unprepare_works(node: FakeNode) -> None:
    prepare_one(node.start(), claim("u1", result(0)))
    node.ready = False
    preparer = node.start()
    error = refusal(preparer, claim("u2", result(1)))
    assert error.reason is Reason.DRIVER_NOT_READY
    assert not error.permanent
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.specs() == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"state": GpuState.LOST, "reason": "nvmlDeviceGetName: GPU_IS_LOST (15)"}, "GPU_IS_LOST"),
        ({"state": GpuState.WEDGED, "reason": "no answer"}, "no answer"),
        ({"uuid": None}, "no UUID"),
        ({"mig": MigMode(current=True, pending=True)}, "-mig 0"),
    ],
)
def test_a_gpu_that_cannot_be_used_now_is_a_retryable_error(node: FakeNode, change: dict[str, Any], words: str) -> None:
    node.change_gpu(0, **change)
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0)))
    assert error.reason is Reason.DEVICE_NOT_READY
    assert not error.permanent
    assert words in str(error)
    prepare_one(preparer, claim("u2", result(1)))


@pytest.mark.bug("B77")
def test_a_missing_device_node_leaves_nothing_behind_and_prepare_works_once_it_is_there(node: FakeNode) -> None:
    del node.nodes.nodes["/dev/nvidia0"]
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0)))
    assert "/dev/nvidia0" in str(error)
    assert not error.permanent
    assert node.specs() == []
    assert preparer.prepared() == ()
    node.nodes.nodes["/dev/nvidia0"] = FakeStatus()
    prepare_one(preparer, claim("u1", result(0)))


@pytest.mark.bug("B55")
def test_a_claim_that_was_made_again_under_the_same_name_is_another_claim(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0), name="c"))
    answer = preparer.prepare({"u1": claim("u2", result(1), name="c")})["u1"]
    assert isinstance(answer, ClaimError)
    assert not answer.permanent
    (second,) = prepare_one(preparer, claim("u2", result(1), name="c"))
    assert second.device == device(1)
    assert [record.ref.uid for record in preparer.prepared()] == ["u1", "u2"]


def test_a_claim_that_was_allocated_anew_gets_its_new_devices_and_gives_up_the_old(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0)))
    (prepared,) = prepare_one(preparer, claim("u1", result(1)))
    assert prepared.device == device(1)
    assert [item.device for item in preparer.prepared()[0].devices] == [device(1)]
    prepare_one(preparer, claim("u2", result(0)))


def test_a_board_that_was_replaced_is_not_handed_out_in_place_of_the_prepared_one(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0)))
    node.change_gpu(0, uuid="GPU-ffffffff-0000-4000-8000-000000000000")
    node.spec_path("u1").unlink()
    error = refusal(preparer, claim("u1", result(0)))
    assert error.reason is Reason.DEVICE_NOT_READY
    assert "replaced" in str(error)
    preparer.unprepare([ref("u1")])
    prepare_one(preparer, claim("u1", result(0)))


@pytest.mark.bug("B57")
@pytest.mark.bug("B51")
def test_unprepare_of_an_unknown_claim_succeeds_and_removes_a_stray_file(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0)))
    node.spec_path("stray").write_text("{}")
    before = files(node.state_dir)
    assert preparer.unprepare([ref("stray"), ref("never"), ref("never")]) == {"stray": None, "never": None}
    assert node.specs() == ["u1"]
    assert files(node.state_dir) == before
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


@pytest.mark.bug("B131")
def test_what_is_no_uid_reaches_no_path(node: FakeNode) -> None:
    victim = node.base / "x.json"
    victim.write_text("mine")
    preparer = node.start()
    assert preparer.unprepare([ClaimRef("ns", "c", "../x")]) == {"../x": None}
    answer = preparer.prepare({"../x": claim("../x", result(0))})["../x"]
    assert isinstance(answer, ClaimError)
    assert victim.read_text() == "mine"
    assert not node.cdi_dir.exists()


@pytest.mark.bug("B56")
def test_prepare_after_unprepare_is_a_full_new_prepare(node: FakeNode) -> None:
    preparer = node.start()
    for _ in range(3):
        prepare_one(preparer, claim("u1", result(0)))
        assert node.specs() == ["u1"]
        preparer.unprepare([ref("u1")])
        assert node.specs() == []
        assert preparer.prepared() == ()


def test_the_record_names_the_claim_so_that_it_can_be_looked_up_later(node: FakeNode) -> None:
    prepare_one(node.start(), claim("u1", result(0), name="train"))
    preparer = node.start()
    preparer.recover()
    (record,) = preparer.prepared()
    assert record.ref == ClaimRef("ns", "train", "u1")


def test_common_edits_that_are_not_ready_are_a_retryable_error_without_a_trace(node: FakeNode) -> None:
    node.edits.error = ClaimError("no libraries", Reason.DRIVER_NOT_READY)
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0)))
    assert error.reason is Reason.DRIVER_NOT_READY
    assert preparer.prepared() == ()
    node.edits.error = None
    prepare_one(preparer, claim("u1", result(0)))


def test_a_file_that_somebody_else_takes_away_at_once_is_noticed_and_the_claim_undone(node: FakeNode) -> None:
    node.faults = lambda point: node.spec_path("u1").unlink() if point == "p3" else None
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0)))
    assert error.reason is Reason.WRITE_FAILED
    assert not error.permanent
    assert "its CDI file is not as it was left" in str(error)
    assert preparer.prepared() == ()


def test_a_gpu_that_changes_while_it_is_prepared_is_noticed(node: FakeNode) -> None:
    preparer = node.start()
    node.faults = lambda point: node.change_gpu(0, uuid="GPU-other") if point == "p1" else None
    # the work goes by the snapshot that the whole operation was decided on
    prepare_one(preparer, claim("u1", result(0)))
    node.faults = lambda point: None
    assert any("replaced" in problem.message for problem in preparer.recover().problems)


def test_what_can_be_neither_made_nor_undone_stays_held_until_it_is_recovered(node: FakeNode) -> None:
    def break_the_folder(point: str) -> None:
        if point == "p1":
            node.spec_path("u1").mkdir(parents=True)
            (node.spec_path("u1") / "inside").write_text("in the way")

    node.faults = break_the_folder
    preparer = node.start()
    error = refusal(preparer, claim("u1", result(0)))
    assert error.reason is Reason.WRITE_FAILED
    node.faults = lambda point: None
    assert [record.phase for record in preparer.prepared()] == [Phase.PREPARING]
    assert refusal(preparer, claim("u2", result(0))).reason is Reason.DEVICE_IN_USE
    assert len(preparer.recover().problems) == 1
    (node.spec_path("u1") / "inside").unlink()
    node.spec_path("u1").rmdir()
    assert preparer.recover().undone == ["u1"]
    prepare_one(preparer, claim("u2", result(0)))
