"""Several claims at once: overlap of their GPUs, claims in one call, calls at the same moment."""

from __future__ import annotations

import threading

import pytest

from driver.prepare import ClaimError, Phase, Reason
from tests.unit.prepare.prepare_calls import prepare_one, refusal
from tests.unit.prepare.prepare_node import (
    FakeNode,
    claim,
    config,
    device,
    gpu,
    gpu_config,
    ref,
    result,
)


@pytest.mark.bug("B60")
def test_one_bad_claim_in_a_call_does_not_spoil_the_others(node: FakeNode) -> None:
    preparer = node.start()
    answers = preparer.prepare(
        {
            "good": claim("good", result(0)),
            "missing": claim("missing", result(0) | {"device": "gpu-0000-ff-00-0"}),
            "bad": claim("bad", result(1), configs=[config(gpu_config(sharin={}))]),
            "hostile": 5,
            "foreign": claim("foreign", {"driver": "nic.example.com"}),
            "good2": claim("good2", result(2)),
        }
    )
    outcome = {uid: answer.reason if isinstance(answer, ClaimError) else len(answer) for uid, answer in answers.items()}
    assert outcome == {
        "good": 1,
        "missing": Reason.DEVICE_NOT_FOUND,
        "bad": Reason.INVALID_CONFIG,
        "hostile": Reason.INVALID_CLAIM,
        "foreign": 0,
        "good2": 1,
    }
    assert node.specs() == ["good", "good2"]


@pytest.mark.bug("B60")
def test_an_empty_call_does_nothing(node: FakeNode) -> None:
    preparer = node.start()
    assert preparer.prepare({}) == {}
    assert preparer.unprepare([]) == {}
    assert not node.state_dir.exists()


def test_a_gpu_of_another_live_claim_is_refused_with_the_name_of_that_claim(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0), name="train"))
    error = refusal(preparer, claim("u2", result(0), result(1)))
    assert error.reason is Reason.DEVICE_IN_USE
    assert not error.permanent
    assert "ns/train (uid u1)" in str(error)
    assert device(0) in str(error)
    assert node.specs() == ["u1"]
    preparer.unprepare([ref("u1")])
    prepare_one(preparer, claim("u2", result(0), result(1)))


def test_two_claims_for_one_gpu_in_one_call_do_not_both_get_it(node: FakeNode) -> None:
    answers = node.start().prepare({"u1": claim("u1", result(0)), "u2": claim("u2", result(0))})
    assert not isinstance(answers["u1"], ClaimError)
    assert isinstance(answers["u2"], ClaimError)
    assert "claim-u1" in str(answers["u2"])


def test_overlap_is_judged_by_hardware_and_not_by_name(node: FakeNode) -> None:
    preparer = node.start()
    prepare_one(preparer, claim("u1", result(0)))
    # the board was moved to the slot of GPU 1: another name and address, the same hardware
    node.drop_gpu(0)
    node.change_gpu(1, uuid=gpu(0).uuid)
    error = refusal(preparer, claim("u2", result(1)))
    assert error.reason is Reason.DEVICE_IN_USE
    assert "claim-u1" in str(error)


def test_admin_access_neither_disturbs_the_owner_nor_is_disturbed(node: FakeNode) -> None:
    preparer = node.start()
    owner = prepare_one(preparer, claim("owner", result(0)))
    spec = node.spec_path("owner").read_bytes()
    prepare_one(preparer, claim("admin", result(0, adminAccess=True)))
    prepare_one(preparer, claim("admin2", result(0, adminAccess=True)))
    assert preparer.unprepare([ref("admin")]) == {"admin": None}
    assert node.spec_path("owner").read_bytes() == spec
    assert prepare_one(preparer, claim("owner", result(0))) == owner
    preparer.unprepare([ref("owner")])
    prepare_one(preparer, claim("next", result(0)))


@pytest.mark.bug("B56")
@pytest.mark.bug("B74")
def test_a_storm_of_calls_about_few_claims_and_gpus_ends_in_a_state_that_agrees_with_itself(node: FakeNode) -> None:
    preparer = node.start(patience=60)
    failures: list[object] = []

    def storm(worker: int) -> None:
        for turn in range(12):
            uid = f"u{(worker + turn) % 3}"
            answer: object = preparer.prepare({uid: claim(uid, result((worker + turn) % 3))})[uid]
            if isinstance(answer, ClaimError) and answer.reason is not Reason.DEVICE_IN_USE:
                failures.append(answer)
            if turn % 2:
                failures.extend(error for error in preparer.unprepare([ref(uid)]).values() if error)
            if turn == 6:
                failures.extend(preparer.recover().problems)

    threads = [threading.Thread(target=storm, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    records = preparer.prepared()
    assert node.specs() == sorted(record.ref.uid for record in records)
    held = [item for record in records for item in record.hardware]
    assert len(held) == len(set(held))
    assert sorted(record.ref.uid for record in node.start().prepared()) == []
    fresh = node.start()
    fresh.recover()
    assert fresh.prepared() == records


@pytest.mark.bug("B59")
def test_a_claim_in_work_makes_a_call_about_it_busy_and_leaves_other_claims_alone(node: FakeNode) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def stop(point: str) -> None:
        if point == "p2" and not inside.is_set():
            inside.set()
            assert go_on.wait(30)

    node.faults = stop
    preparer = node.start(patience=0.05)
    slow = threading.Thread(target=preparer.prepare, args=({"u1": claim("u1", result(0))},))
    slow.start()
    assert inside.wait(30)
    try:
        answers = preparer.prepare(
            {"u1": claim("u1", result(0)), "u2": claim("u2", result(0)), "u3": claim("u3", result(1))}
        )
        assert isinstance(answers["u1"], ClaimError)
        assert answers["u1"].reason is Reason.BUSY
        assert isinstance(answers["u2"], ClaimError)
        assert answers["u2"].reason is Reason.BUSY
        assert not isinstance(answers["u3"], ClaimError)
        error = preparer.unprepare([ref("u1")])["u1"]
        assert error is not None
        assert error.reason is Reason.BUSY
    finally:
        go_on.set()
        slow.join(30)
    assert node.specs() == ["u1", "u3"]


@pytest.mark.bug("B47")
def test_an_unprepare_that_comes_while_prepare_is_at_work_waits_and_frees_everything(node: FakeNode) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def stop(point: str) -> None:
        if point == "p2":
            inside.set()
            assert go_on.wait(30)

    node.faults = stop
    preparer = node.start(patience=30)
    answers: list[object] = []
    prepare = threading.Thread(target=lambda: answers.append(preparer.prepare({"u1": claim("u1", result(0))})["u1"]))
    unprepare = threading.Thread(target=lambda: answers.append(preparer.unprepare([ref("u1")])["u1"]))
    prepare.start()
    assert inside.wait(30)
    unprepare.start()
    go_on.set()
    prepare.join(30)
    unprepare.join(30)
    assert isinstance(answers[0], tuple)
    assert answers[1] is None
    assert node.specs() == []
    assert preparer.prepared() == ()


@pytest.mark.bug("B60")
def test_one_claim_that_cannot_be_undone_does_not_keep_the_others(node: FakeNode) -> None:
    preparer = node.start()
    preparer.prepare({uid: claim(uid, result(index)) for index, uid in enumerate(["u0", "u1", "u2"])})
    node.spec_path("u1").unlink()
    node.spec_path("u1").mkdir()
    answers = preparer.unprepare([ref("u0"), ref("u1"), ref("u2")])
    assert answers["u0"] is None
    assert answers["u2"] is None
    assert answers["u1"] is not None
    assert str(node.spec_path("u1")) in str(answers["u1"])
    assert [(record.ref.uid, record.phase) for record in preparer.prepared()] == [("u1", Phase.UNPREPARING)]
    node.spec_path("u1").rmdir()
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
