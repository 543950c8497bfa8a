"""Claims of all kinds come and go, agents die and come back: the GPUs are always set for those who have them."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from driver.prepare import ClaimError, Reason
from driver.prepare.records import ClaimRecord
from driver.prepare.sharing import modestep
from driver.prepare.sharing.modes import LEVELS, interval_of
from driver.prepare.sharing.mpsrecord import daemon_ids
from native.commands import CommandError
from native.smi import ComputeMode
from tests.unit.prepare.prepare_node import claim, gpu, ref, result
from tests.unit.prepare.sharing_node import SharingNode, mps, share, slicing, uuid

GPUS = (0, 1)
CONFIGS: dict[str, list[dict[str, Any]]] = {
    "nothing": [],
    "default": [slicing()],
    "short": [slicing("Short")],
    "long": [slicing("Long")],
    "mps": [mps()],
    "mps 50": [mps(defaultActiveThreadPercentage=50)],
}
LOST = CommandError("GPU is lost", 15)
POINTS = ("p1", "s1", "s2", "p4", "u1", "v2", "v1", "u4")


class Killed(BaseException):
    """The process ends here."""


class Sharing(RuleBasedStateMachine):
    """Two GPUs, each of which is given out whole or in four shares."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.node = SharingNode(Path(self.folder.name))
        self.preparer = self.node.start()
        self.documents: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.pauses = modestep._PAUSES, modestep._SHORTEST_PAUSE
        modestep._PAUSES = modestep._SHORTEST_PAUSE = 0.0  # type: ignore[misc]  # nothing waits here

    def teardown(self) -> None:
        modestep._PAUSES, modestep._SHORTEST_PAUSE = self.pauses  # type: ignore[misc]  # as they were
        self.folder.cleanup()

    @property
    def away(self) -> bool:
        """Whether nvidia-smi finds no GPU now."""
        return bool(self.node.smi.faults)

    @rule(index=st.sampled_from(GPUS), number=st.integers(0, 3) | st.none(), kind=st.sampled_from(sorted(CONFIGS)))
    def prepare(self, index: int, number: int | None, kind: str) -> None:
        self.made += 1
        uid = f"u{self.made}"
        given = result(index) if number is None else share(index, number, shares="1")
        document = claim(uid, given, configs=CONFIGS[kind])
        answer = self.preparer.prepare({uid: document})[uid]
        if isinstance(answer, ClaimError):
            if not self.away:
                assert answer.reason is Reason.DEVICE_IN_USE, answer
                assert "ns/claim-u" in str(answer)
        else:
            self.documents[uid] = document

    @rule(data=st.data())
    def prepare_again(self, data: st.DataObject) -> None:
        if self.documents:
            uid = data.draw(st.sampled_from(sorted(self.documents)))
            assert self.away or not isinstance(self.preparer.prepare({uid: self.documents[uid]})[uid], ClaimError)

    @rule(data=st.data())
    def unprepare(self, data: st.DataObject) -> None:
        if self.documents:
            uid = data.draw(st.sampled_from(sorted(self.documents)))
            assert self.preparer.unprepare([ref(uid)]) == {uid: None}
            del self.documents[uid]

    @rule(daemons_die=st.booleans())
    def restart(self, daemons_die: bool) -> None:
        if daemons_die:
            self.node.daemons.running.clear()
        self.preparer = self.node.start()
        self.preparer.recover()

    @rule()
    def gpus_are_lost(self) -> None:
        self.node.smi.faults.update(dict.fromkeys(("read", "mode", "slice"), LOST))

    @rule()
    def gpus_answer_again(self) -> None:
        """As they were: nothing has reset them."""
        self.node.smi.faults.clear()
        self.preparer.recover()

    @rule()
    def the_checkpoint_is_lost(self) -> None:
        if not self.away:
            (self.node.state_dir / "checkpoint.json").unlink(missing_ok=True)
            self.preparer = self.node.start()
            self.preparer.recover()

    @rule()
    def reboot(self) -> None:
        if self.node.cdi_dir.exists():
            self.node.reboot()
        self.node.daemons.running.clear()
        self.node.smi.slices.clear()
        self.node.smi.modes.clear()
        self.preparer = self.node.start()
        self.preparer.recover()

    @rule(point=st.sampled_from(POINTS), index=st.sampled_from(GPUS), kind=st.sampled_from(sorted(CONFIGS)))
    def die_with_a_claim(self, point: str, index: int, kind: str) -> None:
        """A claim is prepared and unprepared, and the agent ends somewhere on the way."""
        self.made += 1
        uid = f"u{self.made}"

        def pass_point(passed: str) -> None:
            if passed == point:
                raise Killed

        self.node.faults = pass_point
        with suppress(Killed):  # where the point is not on this claim's way, it is prepared and freed to the end
            self.preparer.prepare({uid: claim(uid, share(index, 0), configs=CONFIGS[kind])})
            self.preparer.unprepare([ref(uid)])
        self.node.faults = lambda _point: None
        self.preparer = self.node.start()
        self.preparer.recover()
        assert self.preparer.unprepare([ref(uid)]) == {uid: None}

    @invariant()
    def the_records_are_those_of_the_claims(self) -> None:
        assert {record.ref.uid for record in self.preparer.prepared()} == self.documents.keys()

    @invariant()
    def every_gpu_is_set_for_those_who_have_it(self) -> None:
        records = self.preparer.prepared()
        if self.away or any(record.doubt for record in records):
            return
        for index in GPUS:
            users = [record for record in records if record.devices[0].uuid == uuid(index)]
            levels = {LEVELS[interval] for record in users if (interval := interval_of(record.devices[0]))}
            assert self.node.smi.slices.get(uuid(index), 0) == max(levels, default=0)
            assert len(levels) <= 1
            exclusive = any(daemon_ids(record) for record in users)
            wanted = ComputeMode.EXCLUSIVE_PROCESS if exclusive else ComputeMode.DEFAULT
            assert self.node.smi.modes.get(uuid(index), ComputeMode.DEFAULT) is wanted

    @invariant()
    def the_daemons_are_those_of_the_claims(self) -> None:
        wanted = {daemon for record in self.preparer.prepared() for daemon in daemon_ids(record)}
        assert self.node.daemons.running.keys() <= wanted
        assert self.away or self.node.daemons.running.keys() == wanted, "one that ended starts when its GPU answers"

    @invariant()
    def nobody_shares_with_one_who_has_the_whole(self) -> None:
        for index in GPUS:
            users = [r for r in self.preparer.prepared() if r.devices[0].address == str(gpu(index).address)]
            assert len(users) <= 1 or all(_is_share(record) for record in users)


def _is_share(record: ClaimRecord) -> bool:
    return record.devices[0].share_id is not None


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
