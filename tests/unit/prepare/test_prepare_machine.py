"""Any sequence of calls, crashes, restarts and reboots on a fake node, against a model that is a dictionary."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driver.prepare import ClaimError, Reason
from tests.support.cdispecs import given
from tests.unit.prepare.prepare_calls import spec_of
from tests.unit.prepare.prepare_node import FakeNode, claim, device, gpu, ref, result

UIDS = st.sampled_from(["a", "b", "c"])
GPUS = st.integers(0, 2)


class Crash(BaseException):
    """The process ends here."""


class PrepareMachine(RuleBasedStateMachine):
    """The model: which claim holds which GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="prepare-machine-"))
        self.node = FakeNode(self.base)
        self.preparer = self.node.start()
        self.held: dict[str, int] = {}
        self.verified: set[str] = set()
        """Claims whose file is as it should be, in this boot."""

    def teardown(self) -> None:
        shutil.rmtree(self.base)

    def owner(self, index: int, uid: str) -> str | None:
        return next((other for other, gpu_index in self.held.items() if gpu_index == index and other != uid), None)

    def attempt(self, uid: str, index: int) -> object:
        return self.preparer.prepare({uid: claim(uid, result(index))})[uid]

    @rule(uid=UIDS, index=GPUS)
    def prepare(self, uid: str, index: int) -> None:
        answer = self.attempt(uid, index)
        if self.held.get(uid) == index and uid in self.verified:
            assert not isinstance(answer, ClaimError)
        elif not self.node.ready:
            assert isinstance(answer, ClaimError)
            assert answer.reason is Reason.DRIVER_NOT_READY
        elif (other := self.owner(index, uid)) is not None:
            assert isinstance(answer, ClaimError)
            assert answer.reason is Reason.DEVICE_IN_USE
            assert f"claim-{other}" in str(answer)
        else:
            assert not isinstance(answer, ClaimError)
            assert [item.device for item in answer] == [device(index)]  # type: ignore[attr-defined]
            self.held[uid] = index
            self.verified.add(uid)

    @rule(uid=UIDS)
    def unprepare(self, uid: str) -> None:
        assert self.preparer.unprepare([ref(uid)]) == {uid: None}
        self.forget(uid)

    def forget(self, uid: str) -> None:
        self.held.pop(uid, None)
        self.verified.discard(uid)

    @rule(uid=UIDS, index=GPUS, point=st.sampled_from(["p1", "p2", "p3", "p4", "p5"]))
    def crash_in_prepare(self, uid: str, index: int, point: str) -> None:
        free = self.node.ready and self.owner(index, uid) is None
        same = self.held.get(uid) == index
        if self.dies_at(point, lambda: self.attempt(uid, index)) and free:
            if point in ("p4", "p5"):
                self.held[uid] = index
            elif not same:
                self.forget(uid)
        self.restart()

    @rule(uid=UIDS, point=st.sampled_from(["u1", "u2", "u3", "u4"]))
    def crash_in_unprepare(self, uid: str, point: str) -> None:
        if self.dies_at(point, lambda: self.preparer.unprepare([ref(uid)])):
            self.forget(uid)
        elif uid in self.held:
            pytest.fail(f"unprepare of a prepared claim did not come past {point}")
        self.restart()

    def dies_at(self, wanted: str, call: object) -> bool:
        def stop(point: str) -> None:
            if point == wanted:
                raise Crash

        assert callable(call)
        self.node.faults = stop
        try:
            call()
        except Crash:
            return True
        finally:
            self.node.faults = lambda point: None
        return False

    @rule()
    def restart(self) -> None:
        self.preparer = self.node.start()
        self.recover()

    @rule()
    def recover(self) -> None:
        assert self.preparer.recover().problems == []
        if self.node.ready:
            self.verified = set(self.held)

    @rule()
    def reboot(self) -> None:
        self.node.cdi_dir.mkdir(exist_ok=True)
        self.node.reboot()
        self.verified.clear()
        self.restart()

    @rule()
    def wipe_the_cdi_folder(self) -> None:
        shutil.rmtree(self.node.cdi_dir, ignore_errors=True)
        self.verified.clear()

    @precondition(lambda self: self.node.ready)
    @rule()
    def lose_nvml(self) -> None:
        self.node.ready = False

    @precondition(lambda self: not self.node.ready)
    @rule()
    def regain_nvml(self) -> None:
        self.node.ready = True
        self.recover()

    @rule(minor=st.integers(0, 7), index=GPUS)
    def a_minor_number_changes(self, minor: int, index: int) -> None:
        self.node.change_gpu(index, minor=minor)
        self.recover()

    @invariant()
    def records_are_those_of_the_model(self) -> None:
        if not self.preparer.prepared() and not self.held:
            return
        self.preparer.unprepare([ref("nobody")])  # makes sure that the state is loaded
        records = {record.ref.uid: [item.device for item in record.devices] for record in self.preparer.prepared()}
        assert records == {uid: [device(index)] for uid, index in self.held.items()}
        assert all(record.trusted for record in self.preparer.prepared())

    @invariant()
    def files_are_whole_and_of_the_claims_own_gpu(self) -> None:
        files = set(self.node.specs())
        assert self.verified <= files <= set(self.held)
        for uid in files:
            (entry,) = given(spec_of(self.node, uid))
            assert entry["containerEdits"]["env"][0].endswith(f"={gpu(self.held[uid]).uuid}")


PrepareMachine.TestCase.settings = settings(
    max_examples=30, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_any_sequence_of_calls_crashes_and_reboots = pytest.mark.bug("B62")(PrepareMachine.TestCase)
