"""A claim waits for what passes by itself, no longer than it may, and in nobody's way."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from driver.prepare import ClaimError, ClaimRef, PatientPreparer, Preparer, Reason
from driver.prepare.state import Answers
from tests.unit.prepare.prepare_node import FakeNode, claim, ref, result

LONG = 60.0
"""Seconds that no test waits in full: each ends by what it waits for."""


class Attempts:
    """A preparer whose attempts can be counted and awaited."""

    def __init__(self, inner: Preparer) -> None:
        self.inner = inner
        self.count = 0
        self.away = False
        """Whether NVML is not there for Unprepare."""
        self.tried = threading.Semaphore(0)

    def prepare(self, claims: dict[str, object]) -> Answers:
        try:
            return self.inner.prepare(claims)
        finally:
            self.count += 1
            self.tried.release()

    def unprepare(self, refs: Sequence[ClaimRef]) -> dict[str, ClaimError | None]:
        try:
            if self.away:
                return dict.fromkeys((one.uid for one in refs), ClaimError("no NVML", Reason.DRIVER_NOT_READY))
            return self.inner.unprepare(refs)
        finally:
            self.count += 1
            self.tried.release()

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    def wait(self) -> None:
        assert self.tried.acquire(timeout=10), "no attempt was made"


@pytest.fixture(autouse=True)
def told_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks without being told, so that an attempt too many or too few is seen."""
    monkeypatch.setattr("driver.prepare.waiting.RECHECK_SECONDS", LONG)


@pytest.fixture
def attempts(node: FakeNode) -> Attempts:
    return Attempts(node.start())


@pytest.fixture
def patient(attempts: Attempts) -> PatientPreparer:
    return PatientPreparer(attempts, LONG)  # type: ignore[arg-type]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def reason(answers: Answers, uid: str) -> Reason:
    answer = answers[uid]
    assert isinstance(answer, ClaimError), answer
    return answer.reason


def devices(answers: Answers, uid: str) -> list[str]:
    answer = answers[uid]
    assert not isinstance(answer, ClaimError), answer
    return [device.device for device in answer]


def start(pool: ThreadPoolExecutor, patient: PatientPreparer, attempts: Attempts, uid: str) -> Future[Answers]:
    """A Prepare in a thread of its own, after its first attempt."""
    future = pool.submit(patient.prepare, {uid: claim(uid, result(0))})
    attempts.wait()
    return future


def test_a_claim_gets_the_gpu_as_soon_as_its_former_claim_is_undone(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    patient.prepare({"u1": claim("u1", result(0))})
    attempts.wait()
    waiting = start(pool, patient, attempts, "u2")
    assert patient.unprepare([ref("u1")]) == {"u1": None}
    assert len(devices(waiting.result(10), "u2")) == 1


def test_a_claim_waits_for_the_first_reading_of_the_node(
    node: FakeNode, patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    node.ready = False
    waiting = start(pool, patient, attempts, "u1")
    node.ready = True
    patient.changed()
    assert len(devices(waiting.result(10), "u1")) == 1


def test_a_change_between_the_attempt_and_the_wait_is_not_missed(node: FakeNode) -> None:
    node.ready = False
    inner = node.start()
    calls = []

    class Late:
        """The reading ends while the first attempt is being answered."""

        def prepare(self, claims: dict[str, object]) -> Answers:
            answers = inner.prepare(claims)
            if not calls:
                node.ready = True
                patient.changed()
            calls.append(claims)
            return answers

    patient = PatientPreparer(Late(), LONG)  # type: ignore[arg-type]
    assert len(devices(patient.prepare({"u1": claim("u1", result(0))}), "u1")) == 1
    assert len(calls) == 2


def test_another_process_that_frees_the_gpu_is_noticed(
    attempts: Attempts, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.prepare.waiting.RECHECK_SECONDS", 0.05)
    patient = PatientPreparer(attempts, LONG)  # type: ignore[arg-type]
    patient.prepare({"u1": claim("u1", result(0))})
    attempts.wait()
    waiting = start(pool, patient, attempts, "u2")
    attempts.inner.unprepare([ref("u1")])
    assert len(devices(waiting.result(10), "u2")) == 1


def test_when_the_patience_is_over_the_last_error_is_the_answer(attempts: Attempts) -> None:
    patient = PatientPreparer(attempts, 0.1)  # type: ignore[arg-type]
    patient.prepare({"u1": claim("u1", result(0))})
    assert reason(patient.prepare({"u2": claim("u2", result(0))}), "u2") is Reason.DEVICE_IN_USE
    assert attempts.count == 3, "one attempt at once, one at the end"


def test_without_patience_there_is_one_attempt(attempts: Attempts) -> None:
    patient = PatientPreparer(attempts, 0)  # type: ignore[arg-type]
    patient.prepare({"u1": claim("u1", result(0))})
    assert reason(patient.prepare({"u2": claim("u2", result(0))}), "u2") is Reason.DEVICE_IN_USE
    assert attempts.count == 2


def test_what_does_not_pass_is_answered_at_once(patient: PatientPreparer, attempts: Attempts) -> None:
    answers = patient.prepare({"u1": claim("u1", result(99))})
    assert reason(answers, "u1") is Reason.DEVICE_NOT_FOUND
    assert attempts.count == 1


def test_only_the_waiting_claims_of_a_call_are_tried_again(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    patient.prepare({"u1": claim("u1", result(0))})
    attempts.wait()
    both = {"u2": claim("u2", result(0)), "u3": claim("u3", result(1))}
    waiting = pool.submit(patient.prepare, both)
    attempts.wait()
    assert [record.ref.uid for record in patient.prepared()] == ["u1", "u3"], "the other claim of the call is done"
    patient.unprepare([ref("u1")])
    answers = waiting.result(10)
    assert devices(answers, "u2") != devices(answers, "u3")


def test_the_end_of_the_agent_ends_the_wait(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    patient.prepare({"u1": claim("u1", result(0))})
    attempts.wait()
    waiting = start(pool, patient, attempts, "u2")
    patient.close()
    assert reason(waiting.result(10), "u2") is Reason.DEVICE_IN_USE
    assert reason(patient.prepare({"u2": claim("u2", result(0))}), "u2") is Reason.DEVICE_IN_USE


def test_the_end_of_a_claim_waits_for_nvml_that_is_away_for_a_moment(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    """As while this very agent hands another GPU over to a virtual machine."""
    uid = "u1"
    devices(patient.prepare({uid: claim(uid, result(0))}), uid)
    attempts.wait()
    attempts.away = True
    ending = pool.submit(patient.unprepare, [ref(uid)])
    attempts.wait()
    assert not ending.done()
    attempts.away = False
    patient.changed()
    assert ending.result(10) == {uid: None}
    assert attempts.count == 3
    assert patient.prepared() == ()


def test_an_end_that_waits_holds_up_no_other(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    attempts.away = True
    ending = pool.submit(patient.unprepare, [ref("u1")])
    attempts.wait()
    beginning = pool.submit(patient.prepare, {"u2": claim("u2", result(0))})
    assert devices(beginning.result(10), "u2")
    attempts.away = False
    patient.changed()
    assert ending.result(10) == {"u1": None}


def test_the_end_of_a_claim_does_not_wait_without_patience(attempts: Attempts) -> None:
    attempts.away = True
    impatient = PatientPreparer(attempts, 0.0)  # type: ignore[arg-type]
    uid = "u1"
    answer = impatient.unprepare([ref(uid)])[uid]
    assert answer is not None
    assert answer.reason is Reason.DRIVER_NOT_READY
    assert attempts.count == 1


def test_two_ends_that_wait_do_not_wake_each_other(
    patient: PatientPreparer, attempts: Attempts, pool: ThreadPoolExecutor
) -> None:
    attempts.away = True
    ending = [pool.submit(patient.unprepare, [ref(uid)]) for uid in ("u1", "u2")]
    attempts.wait()
    attempts.wait()
    devices(patient.prepare({"u3": claim("u3", result(0))}), "u3")  # time enough for a wrong attempt
    assert attempts.count == 3
    attempts.away = False
    patient.changed()
    assert [one.result(10) for one in ending] == [{"u1": None}, {"u2": None}]
