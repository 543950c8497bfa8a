"""Records that only CDI files tell: taken as they are, doubted where hardware does not bear them out, never guessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.model import GpuState
from driver.prepare import ClaimError, Phase, Preparer, Reason, files
from driver.prepare.claimspec import adopt
from driver.prepare.records import ClaimRecord
from driver.prepare.specfolder import Leftover
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_calls import refusal, spec_of
from tests.unit.prepare.prepare_node import claim, device, gpu, ref, result
from tests.unit.prepare.sharing_node import SharingNode, mps, share, slicing, uuid


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


DOCUMENTS = {
    "u1": claim("u1", share(0, 0, shares="1", memory="10Gi"), configs=[mps(defaultActiveThreadPercentage=50)]),
    "u2": claim("u2", share(0, 1, shares="2", memory="20Gi"), configs=[mps(defaultActiveThreadPercentage=50)]),
    "u3": claim("u3", result(1, "a/b"), result(2, "c"), configs=[slicing("Long")]),
    "u4": claim("u4", result(3), result(3, "look", adminAccess=True)),
}


def lose(node: SharingNode) -> None:
    for path in node.state_dir.glob("checkpoint.json*"):
        path.unlink()


def prepared(node: SharingNode) -> dict[str, ClaimRecord]:
    preparer = node.start()
    for document in DOCUMENTS.values():
        prepare(preparer, document)
    return known(preparer)


def known(preparer: Preparer) -> dict[str, ClaimRecord]:
    return {record.ref.uid: record for record in preparer.prepared()}


@pytest.mark.bug("B68")
def test_every_record_is_as_it_was(node: SharingNode) -> None:
    before = prepared(node)
    lose(node)
    later = node.start()
    assert len(later.recover().problems) == len(DOCUMENTS)
    assert known(later) == before
    assert later.recover().problems == []
    assert node.daemons.starts == 1


@pytest.mark.bug("B68")
def test_before_the_node_is_read_they_are_in_doubt_and_withhold_what_is_theirs_alone(node: SharingNode) -> None:
    prepared(node)
    lose(node)
    node.ready = False
    later = node.start()
    assert sorted(later.recover().waiting) == sorted(DOCUMENTS)
    assert all(record.doubt and not record.held for record in later.prepared())
    node.ready = True
    prepare(later, claim("u5", share(0, 2, shares="1"), configs=[mps(defaultActiveThreadPercentage=50)]))
    error = refusal(later, claim("u6", result(0)))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "ns/claim-u1 (uid u1)" in str(error)
    assert "its CDI file tells what it has" in str(error)
    assert "MPS (50 % of the threads" in str(refusal(later, claim("u7", share(0, 3, shares="1"))))


def test_a_daemon_of_a_claim_that_only_its_file_knows_is_not_taken_for_an_orphan(node: SharingNode) -> None:
    from driver.prepare.sharing.mpsrecord import daemon_ids

    prepared(node)
    lose(node)
    node.ready = False
    later = node.start()
    later.recover()
    assert {one for record in later.prepared() for one in daemon_ids(record)} == node.daemons.running.keys()


@pytest.mark.bug("B68")
@pytest.mark.parametrize("state", [GpuState.LOST, GpuState.WEDGED])
def test_hardware_that_does_not_answer_leaves_the_doubt_and_everything_as_it_is(
    node: SharingNode, state: GpuState
) -> None:
    before = prepared(node)
    lose(node)
    node.change_gpu(1, state=state)
    later = node.start()
    report = later.recover()
    assert report.waiting == ["u3"]
    assert known(later)["u3"].doubt
    assert node.specs() == sorted(DOCUMENTS)
    assert node.smi.slices[uuid(2)] == 3
    node.change_gpu(1, state=GpuState.READY)
    assert later.recover().waiting == []
    assert known(later) == before


@pytest.mark.bug("B68")
def test_another_board_in_its_place_takes_the_file_away(node: SharingNode) -> None:
    prepared(node)
    lose(node)
    node.change_gpu(3, uuid="GPU-ffffffff-0000-4000-8000-000000000000")
    later = node.start()
    later.recover()
    assert node.specs() == ["u1", "u2", "u3"]
    assert later.unprepare([ref("u4")]) == {"u4": None}


@pytest.mark.bug("B68")
def test_a_change_that_was_lost_is_made_up_for_from_the_file(node: SharingNode) -> None:
    """The newest line is damaged; in the one before the claim was still being prepared, with nothing of what came."""
    preparer = node.start()
    prepare(preparer, DOCUMENTS["u1"])
    intent = (node.state_dir / "checkpoint.json").read_bytes()
    prepare(preparer, DOCUMENTS["u3"])
    before = known(preparer)
    raw = bytearray(intent)
    newest = raw.rindex(b'"phase":"Prepared"')
    raw[newest + 10] ^= 1
    (node.state_dir / "checkpoint.json").write_bytes(raw)
    later = node.start()
    later.recover()
    assert known(later) == before


def test_an_unprepare_that_was_under_way_is_finished_and_not_made_prepared_again(node: SharingNode) -> None:
    preparer = node.start()
    prepare(preparer, DOCUMENTS["u3"])
    prepare(preparer, DOCUMENTS["u4"])

    class Killed(BaseException):
        pass

    def end(point: str) -> None:
        if point == "u1":
            raise Killed

    node.faults = end
    with pytest.raises(Killed):
        preparer.unprepare([ref("u3")])
    node.faults = lambda _point: None
    prepare(node.start(), claim("u8", result(7)))
    path = node.state_dir / "checkpoint.json"
    lines = path.read_bytes()
    size = len(lines) // 4
    slots = [lines[number * size :][:size] for number in range(4)]
    newest = max(range(4), key=lambda number: _sequence(slots[number]))
    spoilt = bytearray(lines)
    spoilt[newest * size + 220] ^= 1
    path.write_bytes(spoilt)
    later = node.start()
    assert "u3" in later.recover().undone
    assert sorted(known(later)) == ["u4", "u8"]
    assert node.smi.slices[uuid(1)] == 0


def _sequence(line: bytes) -> int:
    return int(line.partition(b'"sequence":')[2].partition(b",")[0] or -1)


# what a file tells


def told(node: SharingNode, change: Callable[[dict[str, Any]], object] = lambda _spec: None) -> ClaimRecord:
    spec = spec_of(node, "u3")
    change(spec)
    return adopt(Leftover("u3", json.dumps(spec)))


def damaged(spec: dict[str, Any], old: str, new: str) -> None:
    env = spec["devices"][-1]["containerEdits"]["env"]
    assert old in env[0]
    env[0] = env[0].replace(old, new)


NOT_BELIEVED: dict[str, Callable[[dict[str, Any]], object]] = {
    "no record": lambda spec: spec["devices"].pop(),
    "another claim's": lambda spec: spec["devices"][-1].update(name="u4_record"),
    "another variable": lambda spec: damaged(spec, "GPUDRA_RECORD=", "GPUDRA_CLAIM="),
    "two variables": lambda spec: spec["devices"][-1]["containerEdits"]["env"].append("A=b"),
    "no variable": lambda spec: spec["devices"][-1]["containerEdits"]["env"].clear(),
    "no JSON": lambda spec: damaged(spec, "{", "["),
    "no devices": lambda spec: damaged(spec, '"devices"', '"device"'),
    "a field of another kind": lambda spec: damaged(spec, '"request":"a/b"', '"request":1'),
    "a device that is not in the file": lambda spec: spec["devices"].pop(-2),
    "a device twice": lambda spec: spec["devices"].insert(0, {**spec["devices"][0], "name": "u3_x_y"}),
    "no edits": lambda spec: spec["devices"][-1].pop("containerEdits"),
    "a list of devices of another kind": lambda spec: spec["devices"].append(1),
}


@pytest.mark.bug("B68")
@pytest.mark.parametrize("change", NOT_BELIEVED.values(), ids=NOT_BELIEVED)
def test_a_file_that_does_not_tell_its_own_record_withholds_the_gpus_that_it_names(
    node: SharingNode, change: Callable[[dict[str, Any]], object]
) -> None:
    prepared(node)
    found = told(node, change)
    assert found.devices == ()
    assert found.spec_digest is None
    assert found.doubt
    assert uuid(1) in found.held


def test_a_file_tells_the_record_whatever_phase_it_was_written_in(node: SharingNode) -> None:
    before = prepared(node)["u3"]
    found = told(node)
    assert found.phase is Phase.PREPARED
    assert found.devices == before.devices
    assert (found.boot_id, found.held) == (None, frozenset())


@pytest.mark.bug("B68")
def test_a_gpu_that_a_virtual_machine_has_is_withheld_after_the_loss_too(node: SharingNode) -> None:
    """By a file of an earlier version, which tells no record."""
    name = f"{device(0)}-vfio".replace("-", "_").upper()
    text = json.dumps({"env": ["GPUDRA_CLAIM_U9=ns/claim-u9", f"GPUDRA_DEVICE_{name}=VFIO-{gpu(0).address}"]})
    node.cdi_dir.mkdir()
    node.spec_path("u9").write_text(text)
    error = refusal(node.start(), claim("u1", result(0)))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "ns/claim-u9" in str(error)


# a checkpoint that goes while the driver runs


@pytest.mark.bug("B68")
def test_a_checkpoint_that_is_removed_under_a_running_driver_is_written_again(node: SharingNode) -> None:
    before = prepared(node)
    preparer = node.start()
    preparer.recover()
    lose(node)
    (problem,) = preparer.recover().problems
    assert "removed while the driver runs" in problem.message
    assert known(node.start()) == {}  # nothing is loaded before something is asked
    later = node.start()
    assert later.recover().problems == []
    assert known(later) == before


def test_what_cannot_be_written_again_is_told_and_written_with_the_next_change(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = prepared(node)
    preparer = node.start()
    preparer.recover()
    lose(node)

    def full(path: Path, data: bytes, mode: int, *, sync: bool = True) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        problems = preparer.recover().problems
    assert [True for one in problems if "No space left on device" in one.message]
    answer = preparer.unprepare([ref("u4")])["u4"]
    assert not isinstance(answer, ClaimError)
    later = node.start()
    later.recover()
    assert known(later).keys() == before.keys() - {"u4"}
