"""Any sequence of claims, crashes, restarts, reboots and an administrator's doings on one GPU, against a dictionary."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from driver.prepare import ClaimError, MigStep
from native.mock import MockNode
from tests.support.mignodes import MigNode

PLACES = {"1g.18gb": (1, 6), "1g.35gb": (2, 4), "3g.71gb": (4, 0), "4g.71gb": (4, 0)}
"""Profile -> (memory slices, start)."""
THEIRS = ("1g.18gb", 3)
"""What the administrator makes, in the first GPU's slice 3."""
UIDS = st.sampled_from(["a", "b", "c"])
WISHES = st.sampled_from([*PLACES, "whole"])
PREPARE = ["p1", "p2", *MigStep.do_points, "p3", "p4", "p5"]
UNPREPARE = ["u1", "u3", *MigStep.undo_points, "u2", "u4"]


class Crash(BaseException):
    """The process ends here."""


def slices(wish: str) -> set[int]:
    if wish == "whole":
        return set(range(8))
    size, start = PLACES[wish]
    return set(range(start, start + size))


class MigMachine(RuleBasedStateMachine):
    """The model: which claim holds what of the first GPU, and whether the administrator's partition stands."""

    def __init__(self) -> None:
        super().__init__()
        os.environ["GPUDRA_MOCK_QUIET"] = "1"
        self.base = Path(tempfile.mkdtemp(prefix="mig-machine-"))
        self.node = MigNode(MockNode.create(self.base / "node", "h200"), self.base)
        self.node.read()
        self.held: dict[str, str] = {}
        self.theirs = False

    def teardown(self) -> None:
        try:
            self.end()
        finally:
            shutil.rmtree(self.base)

    def end(self) -> None:
        """In the end everything can be undone, and then the whole GPU is to be had."""
        self.restart()
        if self.theirs:
            self.administrator_destroys()
        for uid in ("a", "b", "c"):
            assert self.node.unprepare(uid) is None
        assert self.node.instances() == []
        self.node.prepared("z", self.node.gpu().name)
        assert self.node.unprepare("z") is None
        self.node.nothing_left()

    def device(self, wish: str) -> str:
        return self.node.gpu().name if wish == "whole" else self.node.name(wish, PLACES[wish][1])

    def free_for(self, uid: str, wish: str) -> bool:
        wanted = slices(wish)
        others = [other for holder, other in self.held.items() if holder != uid]
        in_the_way = self.theirs and 3 in wanted
        # Decoders and so on suffice for any of these together: only slices decide.
        return not in_the_way and all(not wanted & slices(other) for other in others)

    @rule(uid=UIDS, wish=WISHES)
    def prepare(self, uid: str, wish: str) -> None:
        conflict = any(slices(wish) & slices(other) for holder, other in self.held.items() if holder != uid)
        answer = self.node.prepare(uid, self.device(wish))
        if self.held.get(uid) == wish or self.free_for(uid, wish):
            assert not isinstance(answer, ClaimError), answer
            self.held[uid] = wish
            return
        assert isinstance(answer, ClaimError)
        if not conflict:
            self.held.pop(uid, None)  # its former allocation was taken back before the administrator's was met

    @rule(uid=UIDS)
    def unprepare(self, uid: str) -> None:
        assert self.node.unprepare(uid) is None
        self.held.pop(uid, None)

    @rule(uid=UIDS, wish=WISHES, point=st.sampled_from(PREPARE))
    def crash_in_prepare(self, uid: str, wish: str, point: str) -> None:
        same = self.held.get(uid) == wish
        if same or not self.free_for(uid, wish):
            return
        died = self.dies_at(point, lambda: self.node.prepare(uid, self.device(wish)))
        self.held.pop(uid, None)
        if not died or point in ("p4", "p5"):  # not every path has every point: then it went through
            self.held[uid] = wish
        self.restart()

    @rule(uid=UIDS, point=st.sampled_from(UNPREPARE))
    def crash_in_unprepare(self, uid: str, point: str) -> None:
        self.dies_at(point, lambda: self.node.unprepare(uid))  # or goes through: not every path has every point
        self.held.pop(uid, None)
        self.restart()

    def dies_at(self, wanted: str, call: Callable[[], object]) -> bool:
        def stop(point: str) -> None:
            if point == wanted:
                raise Crash

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
        self.node.start()
        assert self.node.unprepare("nobody") is None  # the agent knows its records before it looks at the node
        self.node.read()
        assert self.node.preparer.recover().problems == []

    @rule()
    def rescan(self) -> None:
        self.node.read()
        assert self.node.preparer.recover().problems == []

    @rule()
    def reboot(self) -> None:
        (self.base / "cdi").mkdir(exist_ok=True)
        self.node.reboot()
        self.theirs = False
        self.restart()

    @precondition(lambda self: not self.theirs and all(3 not in slices(wish) for wish in self.held.values()))
    @rule()
    def administrator_makes(self) -> None:
        address = self.node.node.profile.gpus[0].address
        self.node.node.nvidia_smi("-i", address, "-mig", "1")
        self.node.node.nvidia_smi("mig", "-i", address, "-cgi", f"{THEIRS[0]}:{THEIRS[1]}", "-C")
        self.theirs = True

    @precondition(lambda self: self.theirs)
    @rule()
    def administrator_destroys(self) -> None:
        address = self.node.node.profile.gpus[0].address
        (found,) = [one for one in self.node.node.instances(address) if one.start == THEIRS[1] and one.size == 1]
        self.node.node.nvidia_smi("mig", "-i", address, "-dci", "-gi", str(found.id))
        self.node.node.nvidia_smi("mig", "-i", address, "-dgi", "-gi", str(found.id))
        self.theirs = False
        self.node.read()

    @invariant()
    def what_stands_is_what_claims_hold_and_what_the_administrator_made(self) -> None:
        expected = [(wish, PLACES[wish][1]) for wish in self.held.values() if wish != "whole"]
        expected += [THEIRS] if self.theirs else []
        assert sorted(self.node.instances()) == sorted(expected)

    @invariant()
    def files_and_records_are_those_of_the_claims(self) -> None:
        files = {path.name for path in (self.base / "cdi").glob("*")}
        assert files == {self.node.spec(uid).name for uid in self.held}
        self.node.unprepare("nobody")  # makes sure that the state is loaded
        records = {record.ref.uid: record for record in self.node.preparer.prepared()}
        assert set(records) == set(self.held)
        assert all(record.trusted for record in records.values())


MigMachine.TestCase.settings = settings(
    max_examples=12, stateful_step_count=16, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
test_any_sequence_on_one_gpu = pytest.mark.bug("B62")(pytest.mark.bug("B88")(MigMachine.TestCase))
