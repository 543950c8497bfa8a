"""Recovery: after crashes, reboots, driver changes and damage, every record is right again, undone, or withheld."""

from __future__ import annotations

import json
from typing import Any

import pytest

from driver.model import GpuState
from driver.prepare import ClaimError, Phase, Preparer, Reason
from tests.unit.prepare.prepare_node import FakeNode, claim, config, device, gpu, gpu_config, ref, result


class Crash(BaseException):
    """The process ends here: nothing of it runs any more."""


def crash_at(node: FakeNode, wanted: str) -> None:
    def stop(point: str) -> None:
        if point == wanted:
            raise Crash(point)

    node.faults = stop


def prepared(node: FakeNode, *uids: str) -> Preparer:
    preparer = node.start()
    answers = preparer.prepare({uid: claim(uid, result(index)) for index, uid in enumerate(uids)})
    assert not [answer for answer in answers.values() if isinstance(answer, ClaimError)]
    return preparer


def test_when_all_is_well_nothing_is_done(node: FakeNode) -> None:
    prepared(node, "u1")
    before = node.spec_path("u1").stat().st_ino
    preparer = node.start()
    recovery = preparer.recover()
    assert (recovery.undone, recovery.remade, recovery.waiting, recovery.orphans, recovery.problems) == (
        [],
        [],
        [],
        [],
        [],
    )
    assert node.spec_path("u1").stat().st_ino == before


@pytest.mark.bug("B62")
@pytest.mark.parametrize("point", ["p1", "p2", "p3"])
def test_an_interrupted_prepare_is_undone_at_the_next_start(node: FakeNode, point: str) -> None:
    crash_at(node, point)
    with pytest.raises(Crash):
        node.start().prepare({"u1": claim("u1", result(0))})
    node.faults = lambda point: None
    preparer = node.start()
    assert preparer.recover().undone == ["u1"]
    assert preparer.prepared() == ()
    assert node.specs() == []


@pytest.mark.bug("B62")
@pytest.mark.parametrize("point", ["u1", "u2", "u3"])
def test_an_interrupted_unprepare_is_finished_at_the_next_start(node: FakeNode, point: str) -> None:
    preparer = prepared(node, "u1")
    crash_at(node, point)
    with pytest.raises(Crash):
        preparer.unprepare([ref("u1")])
    node.faults = lambda point: None
    preparer = node.start()
    assert preparer.recover().undone == ["u1"]
    assert preparer.prepared() == ()
    assert node.specs() == []


def test_unfinished_claims_hold_their_hardware_until_they_are_recovered(node: FakeNode) -> None:
    crash_at(node, "p1")
    with pytest.raises(Crash):
        node.start().prepare({"u1": claim("u1", result(0))})
    node.faults = lambda point: None
    preparer = node.start()
    answer = preparer.prepare({"u2": claim("u2", result(0))})["u2"]
    assert isinstance(answer, ClaimError)
    assert answer.reason is Reason.DEVICE_IN_USE
    assert "claim-u1" in str(answer)
    preparer.recover()
    assert not isinstance(preparer.prepare({"u2": claim("u2", result(0))})["u2"], ClaimError)


@pytest.mark.bug("B72")
def test_after_a_reboot_files_are_made_again_before_anybody_asks(node: FakeNode) -> None:
    prepared(node, "u1", "u2")
    content = node.spec_path("u1").read_bytes()
    node.reboot()
    preparer = node.start()
    assert preparer.recover().remade == ["u1", "u2"]
    assert node.spec_path("u1").read_bytes() == content
    assert {record.boot_id for record in preparer.prepared()} == {node.boot}


@pytest.mark.bug("B72")
def test_after_a_reboot_a_prepare_that_comes_first_makes_the_file_again(node: FakeNode) -> None:
    prepared(node, "u1")
    node.reboot()
    preparer = node.start()
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert node.specs() == ["u1"]
    assert preparer.recover().remade == []


@pytest.mark.bug("B72")
@pytest.mark.bug("B58")
def test_after_a_reboot_without_nvml_claims_wait_and_can_be_unprepared(node: FakeNode) -> None:
    prepared(node, "u1", "u2")
    node.reboot()
    node.ready = False
    preparer = node.start()
    assert preparer.recover().waiting == ["u1", "u2"]
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    node.ready = True
    recovery = preparer.recover()
    assert (recovery.remade, recovery.waiting) == (["u2"], [])


@pytest.mark.bug("B72")
@pytest.mark.bug("B75")
def test_a_gpu_that_is_missing_after_a_reboot_is_a_problem_of_its_claim_alone(node: FakeNode) -> None:
    prepared(node, "u1", "u2", "u3")
    node.reboot()
    node.drop_gpu(1)
    preparer = node.start()
    recovery = preparer.recover()
    assert recovery.remade == ["u1", "u3"]
    assert recovery.waiting == ["u2"]
    (problem,) = recovery.problems
    assert "ns/claim-u2" in problem.subject
    assert device(1) in problem.message
    answer = preparer.prepare({"u2": claim("u2", result(1))})["u2"]
    assert isinstance(answer, ClaimError)
    assert not answer.permanent
    assert preparer.unprepare([ref("u2")]) == {"u2": None}


@pytest.mark.bug("B72")
def test_another_board_at_the_address_is_not_given_to_the_old_claim(node: FakeNode) -> None:
    prepared(node, "u1")
    node.change_gpu(0, uuid="GPU-ffffffff-0000-4000-8000-000000000000")
    preparer = node.start()
    recovery = preparer.recover()
    assert "replaced" in recovery.problems[0].message
    assert node.specs() == []
    assert preparer.unprepare([ref("u1")]) == {"u1": None}


def test_a_gpu_that_is_lost_in_the_same_boot_keeps_the_file_of_its_running_pod(node: FakeNode) -> None:
    prepared(node, "u1")
    node.change_gpu(0, state=GpuState.LOST, uuid=None, reason="GPU_IS_LOST")
    recovery = node.start().recover()
    assert recovery.waiting == ["u1"]
    assert node.specs() == ["u1"]


@pytest.mark.bug("B76")
@pytest.mark.bug("B78")
def test_a_changed_driver_or_minor_number_makes_the_file_again(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    node.driver_version = "590.44.01"
    node.change_gpu(0, minor=5)
    assert preparer.recover().remade == ["u1"]
    text = node.spec_path("u1").read_text()
    assert "libcuda.so.590.44.01" in text
    assert "/dev/nvidia5" in text
    assert "/dev/nvidia0" not in text
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert preparer.recover().remade == []


@pytest.mark.bug("B73")
def test_files_that_were_wiped_in_the_same_boot_are_made_again(node: FakeNode) -> None:
    preparer = prepared(node, "u1", "u2")
    node.spec_path("u1").unlink()
    node.spec_path("u2").write_text("{")
    assert preparer.recover().remade == ["u1", "u2"]
    json.loads(node.spec_path("u2").read_text())


@pytest.mark.bug("B73")
@pytest.mark.bug("B81")
def test_a_file_that_runtimes_cannot_read_or_others_can_write_is_made_again(node: FakeNode) -> None:
    preparer = prepared(node, "u1", "u2")
    node.spec_path("u1").chmod(0o600)
    node.spec_path("u2").chmod(0o666)
    assert preparer.recover().remade == ["u1", "u2"]
    assert {node.spec_path(uid).stat().st_mode & 0o7777 for uid in ("u1", "u2")} == {0o644}
    assert preparer.recover().remade == []


@pytest.mark.bug("B57")
def test_an_unprepare_leaves_no_part_of_a_file_either(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    part = node.spec_path("u1").with_name(f".{node.spec_path('u1').name}.tmp")
    part.write_text("{")
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert list(node.cdi_dir.iterdir()) == []


@pytest.mark.bug("B71")
def test_a_record_of_an_unknown_boot_is_verified(node: FakeNode) -> None:
    node.boot = None
    prepared(node, "u1")
    node.boot = "boot-2"
    node.ready = False
    preparer = node.start()
    assert preparer.recover().waiting == ["u1"]
    node.ready = True
    assert preparer.recover().waiting == []
    assert preparer.prepared()[0].boot_id == "boot-2"


@pytest.mark.bug("B83")
def test_files_of_unknown_claims_go_and_those_of_others_stay(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    node.spec_path("dead").write_text("{}")
    (node.cdi_dir / ".gpu.nvidia.com-claim_dead2.json.tmp").write_text("{")
    (node.cdi_dir / "nvidia.yaml").write_text("theirs")
    (node.cdi_dir / "k8s.gpu.nvidia.com-claim_dead.json").write_text("theirs")
    assert preparer.recover().orphans == ["dead", "dead2"]
    assert sorted(path.name for path in node.cdi_dir.iterdir()) == [
        "gpu.nvidia.com-claim_u1.json",
        "k8s.gpu.nvidia.com-claim_dead.json",
        "nvidia.yaml",
    ]


def flip_checkpoint(node: FakeNode) -> None:
    """Spoil the newest line."""
    path = node.state_dir / "checkpoint.json"
    lines = path.read_bytes().split(b"\n")
    newest = max((line for line in lines if line.strip()), key=lambda line: int(json.loads(line)["data"]["sequence"]))
    path.write_bytes(path.read_bytes().replace(newest, newest[:-2] + b"]}"))


@pytest.mark.bug("B68")
def test_after_damage_claims_whose_file_bears_them_out_are_served_as_before(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    preparer.prepare({"u2": claim("u2", result(1))})
    flip_checkpoint(node)
    preparer = node.start()
    before = {uid: node.spec_path(uid).stat().st_ino for uid in ("u1", "u2")}
    recovery = preparer.recover()
    assert "kept as checkpoint.json.damaged-1" in recovery.problems[0].message
    # u2 was being prepared in the copy of before the last change: it may be in use by now, and its file bears that out
    assert recovery.undone == []
    assert {uid: node.spec_path(uid).stat().st_ino for uid in ("u1", "u2")} == before
    assert [record.trusted for record in preparer.prepared()] == [True, True]
    answers = preparer.prepare({"u1": claim("u1", result(0)), "u2": claim("u2", result(1))})
    assert not [answer for answer in answers.values() if isinstance(answer, ClaimError)]
    assert {record.ref.uid for record in preparer.prepared() if record.trusted} == {"u1", "u2"}


@pytest.mark.bug("B68")
def test_with_both_copies_lost_the_cdi_folder_tells_what_to_withhold(node: FakeNode) -> None:
    prepared(node, "u1", "u2")
    for path in node.state_dir.glob("checkpoint.json*"):
        path.unlink()
    preparer = node.start()
    recovery = preparer.recover()
    assert len(recovery.problems) == 2
    assert recovery.orphans == []
    assert node.specs() == ["u1", "u2"]
    answer = preparer.prepare({"new": claim("new", result(0))})["new"]
    assert isinstance(answer, ClaimError)
    assert "ns/claim-u1 (uid u1)" in str(answer)
    assert not isinstance(preparer.prepare({"new": claim("new", result(5))})["new"], ClaimError)
    # the owner gets its GPU back, and an owner that is gone gives it up
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert next(record for record in preparer.prepared() if record.ref.uid == "u1").trusted
    assert preparer.unprepare([ref("u2")]) == {"u2": None}
    assert not isinstance(preparer.prepare({"new2": claim("new2", result(1))})["new2"], ClaimError)


@pytest.mark.bug("B68")
def test_admin_access_is_not_withheld_after_the_loss(node: FakeNode) -> None:
    node.start().prepare({"admin": claim("admin", result(0, adminAccess=True))})
    for path in node.state_dir.glob("checkpoint.json*"):
        path.unlink()
    preparer = node.start()
    preparer.recover()
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)


@pytest.mark.bug("B68")
def test_an_unprepare_whose_last_change_was_lost_is_finished_and_not_taken_back(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    preparer.unprepare([ref("u1")])
    flip_checkpoint(node)
    preparer = node.start()
    recovery = preparer.recover()
    assert recovery.undone == ["u1"]
    assert node.specs() == []
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)


@pytest.mark.bug("B68")
def test_after_damage_and_a_reboot_nothing_is_made_up(node: FakeNode) -> None:
    prepared(node, "u1", "u2")
    (node.state_dir / "checkpoint.json").write_bytes(b"\0" * 500)
    node.reboot()
    preparer = node.start()
    assert preparer.recover().remade == []
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)


@pytest.mark.bug("B75")
def test_one_unreadable_record_is_withheld_and_the_others_are_served(node: FakeNode) -> None:
    preparer = prepared(node, "u1", "u2", "u3")
    rewrite(node, lambda claims: claims["u2"]["devices"][0].pop("cdiDevice"))
    preparer = node.start()
    recovery = preparer.recover()
    assert any("claim-u2" in problem.message for problem in recovery.problems)
    answers = preparer.prepare(
        {"u1": claim("u1", result(0)), "u3": claim("u3", result(2)), "new": claim("new", result(1))}
    )
    assert isinstance(answers["new"], ClaimError)
    assert "claim-u2" in str(answers["new"])
    assert not isinstance(answers["u1"], ClaimError)
    assert not isinstance(answers["u3"], ClaimError)
    assert not isinstance(preparer.prepare({"u2": claim("u2", result(1))})["u2"], ClaimError)


def rewrite(node: FakeNode, change: Any) -> None:
    """Change the stored claims as another version might have written them: soundly sealed."""
    from tests.unit.prepare.checkpoint_lines import newest, sealed

    path = node.state_dir / "checkpoint.json"
    data = newest(node.state_dir)
    change(data["claims"])
    path.write_bytes(sealed(json.dumps(data).encode()))


def test_a_partition_that_a_later_version_recorded_withholds_its_whole_gpu(node: FakeNode) -> None:
    prepared(node, "u1")
    name = f"{device(0)}-mig-1g-10gb-19-0"
    rewrite(node, lambda claims: claims["u1"]["devices"][0].update(device=name, type="mig", uuid="MIG-1234"))
    preparer = node.start()
    assert preparer.recover().waiting == ["u1"]
    answer = preparer.prepare({"u2": claim("u2", result(0))})["u2"]
    assert isinstance(answer, ClaimError)
    assert answer.reason is Reason.DEVICE_IN_USE
    assert preparer.prepared()[0].devices[0].extra == {"type": "mig"}


@pytest.mark.bug("B59")
def test_a_new_instance_waits_for_what_the_old_one_is_doing(node: FakeNode) -> None:
    old = node.start()
    new = node.start(patience=0.05)
    seen: list[object] = []

    def look(point: str) -> None:
        if point == "p2":
            answer = new.prepare({"u2": claim("u2", result(1))})["u2"]
            seen.extend([answer, new.recover().problems])

    node.faults = look
    old.prepare({"u1": claim("u1", result(0))})
    answer, problems = seen
    assert isinstance(answer, ClaimError)
    assert answer.reason is Reason.BUSY
    assert isinstance(problems, list)
    assert "another instance" in problems[0].message
    node.faults = lambda point: None
    assert new.recover().undone == []
    assert [record.ref.uid for record in new.prepared()] == ["u1"]
    assert new.unprepare([ref("u1")]) == {"u1": None}
    assert isinstance(old.prepare({"u3": claim("u3", result(0))})["u3"], tuple)


def test_the_phase_is_never_left_while_a_prepared_claim_is_made_right_again(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    node.spec_path("u1").unlink()
    phases: list[Phase] = []
    node.faults = lambda point: phases.extend(record.phase for record in preparer.prepared())
    preparer.prepare({"u1": claim("u1", result(0), configs=[config(gpu_config())])})
    assert set(phases) == {Phase.PREPARED}
    assert str(gpu(0).uuid) in node.spec_path("u1").read_text()


@pytest.mark.bug("B68")
def test_a_claim_in_doubt_without_its_file_is_withheld_and_not_made_again(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    preparer.prepare({"u2": claim("u2", result(1))})
    node.spec_path("u1").unlink()
    flip_checkpoint(node)
    preparer = node.start()
    assert preparer.recover().remade == []
    assert node.specs() == ["u2"]
    answer = preparer.prepare({"new": claim("new", result(0))})["new"]
    assert isinstance(answer, ClaimError)
    assert "claim-u1" in str(answer)
    assert not isinstance(preparer.prepare({"u1": claim("u1", result(0))})["u1"], ClaimError)
    assert node.specs() == ["u1", "u2"]


@pytest.mark.bug("B72")
def test_a_cdi_folder_that_outlives_the_reboot_is_not_believed(node: FakeNode) -> None:
    prepared(node, "u1")
    node.boot = "boot-2"
    node.change_gpu(0, uuid="GPU-ffffffff-0000-4000-8000-000000000000")
    preparer = node.start()
    answer = preparer.prepare({"u1": claim("u1", result(0))})["u1"]
    assert isinstance(answer, ClaimError)
    assert "replaced" in str(answer)
    preparer.recover()
    assert node.specs() == []


@pytest.mark.bug("B73")
def test_a_claim_that_may_be_in_use_keeps_its_record_when_making_its_file_again_fails(node: FakeNode) -> None:
    preparer = prepared(node, "u1")
    node.spec_path("u1").unlink()
    node.cdi_dir.rmdir()
    node.cdi_dir.write_text("in the way")
    answer = preparer.prepare({"u1": claim("u1", result(0))})["u1"]
    assert isinstance(answer, ClaimError)
    other = preparer.prepare({"u2": claim("u2", result(0))})["u2"]
    assert isinstance(other, ClaimError)
    assert other.reason is Reason.DEVICE_IN_USE
    node.cdi_dir.unlink()
    assert preparer.recover().remade == ["u1"]


@pytest.mark.bug("B77")
@pytest.mark.bug("B82")
def test_what_would_keep_claims_from_being_prepared_is_said_at_start(node: FakeNode) -> None:
    node.edits.error = ClaimError("no libraries of the driver", Reason.DRIVER_NOT_READY)
    (problem,) = node.start().recover().problems
    assert problem.message == "no claim can be prepared now: no libraries of the driver"
    node.edits.error = None
    del node.nodes.nodes["/dev/nvidia-uvm"]
    (problem,) = node.start().recover().problems
    assert "/dev/nvidia-uvm" in problem.message
    node.gpus = ()
    assert node.start().recover().problems == []
