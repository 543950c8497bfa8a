"""Every way in which a claim's record changes is in the table of docs/claims.md, and the journal tells it as said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driver.bridge import ClaimHandler
from driver.journal import Journal, replay
from driver.journal.scribe import Scribe, claim_entries
from driver.later import Later
from driver.metrics import Deferred
from driver.prepare import ClaimRecord, PatientPreparer, Phase, Preparer
from hack.claims_page import AGAIN, AT_START, NONE, SWEPT, TRANSITIONS, plan
from kubeletplugin import api
from tests.unit.prepare.prepare_node import FakeNode, claim, result

WAIT = 20.0
REF = api.ClaimRef("ns", "claim-u1", "u1")


class Died(BaseException):
    """The process ends here."""


class Agent:
    """What prepares claims and writes the journal, in one process that can end and begin again."""

    def __init__(self, folder: Path, journal: Callable[..., Journal]) -> None:
        self.node = FakeNode(folder)
        self.make_journal = journal
        self.begin()
        self.scribe.claims()

    def begin(self) -> None:
        self.preparer: Preparer = self.node.start()
        self.journal = self.make_journal()
        self.scribe = Scribe(self.journal, self.preparer.prepared)
        later: Later[Scribe] = Later()
        later.attach(self.scribe)
        self.handler = ClaimHandler(PatientPreparer(self.preparer, 0.0), Deferred(), scribe=later)

    def prepare(self) -> None:
        self.handler.prepare([api.Claim(REF, claim("u1", result(0)))])

    def unprepare(self) -> None:
        self.handler.unprepare([REF])

    def die_at(self, point: str, act: Callable[[], None]) -> None:
        """Let the process end in the middle of ``act``; the next one recovers."""

        def end(passed: str) -> None:
            if passed == point:
                raise Died

        self.node.faults = end
        self.begin_again()
        with pytest.raises(Died):
            act()
        self.node.faults = lambda _point: None
        self.begin_again()
        self.recover()

    def begin_again(self) -> None:
        assert self.journal.settled(WAIT)
        self.journal.close()
        self.begin()

    def recover(self) -> None:
        report = self.preparer.recover()
        found = {"undone": report.undone, "remade": report.remade, "orphan": report.orphans}
        self.scribe.recovered(found, report.records, report.problems)
        self.scribe.claims()

    def close_folder(self, monkeypatch: pytest.MonkeyPatch, *, file: str) -> None:
        """Let the CDI folder refuse to write a file, or to remove one, or both."""
        error = PermissionError(13, "Permission denied")

        def refuse(*_arguments: object) -> None:
            raise error

        for name in file.split():
            monkeypatch.setattr(f"driver.prepare.specfolder.SpecFolder.{name}", refuse)

    def sweep(self) -> None:
        """What driver.lookout does once the reconciler has unprepared a claim."""
        record: ClaimRecord = self.preparer.prepared()[0]
        assert self.preparer.unprepare([record.ref]) == {"u1": None}
        self.scribe.swept(record.ref, "deleted", None)
        self.scribe.claims()


Act = Callable[[Agent, pytest.MonkeyPatch], None]


def fails(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    agent.close_folder(patch, file="write")
    agent.prepare()


def fails_and_stays(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    agent.close_folder(patch, file="write remove")
    agent.prepare()


def cannot_be_undone(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    agent.close_folder(patch, file="remove")
    agent.unprepare()


def loses_its_file(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    agent.node.spec_path("u1").unlink()
    agent.begin_again()
    agent.recover()


ACTS: dict[tuple[str, str], tuple[str, Act]] = {
    # (from, to) -> (phase that must be there before, what makes the transition)
    (NONE, Phase.PREPARING): (NONE, lambda agent, _patch: agent.prepare()),
    (Phase.PREPARING, Phase.PREPARED): (NONE, lambda agent, _patch: agent.prepare()),
    (Phase.PREPARING, NONE): (NONE, fails),
    (Phase.PREPARING, Phase.PREPARING): (NONE, fails_and_stays),
    (Phase.PREPARED, Phase.UNPREPARING): (Phase.PREPARED, lambda agent, _patch: agent.unprepare()),
    (Phase.UNPREPARING, NONE): (Phase.PREPARED, lambda agent, _patch: agent.unprepare()),
    (Phase.UNPREPARING, Phase.UNPREPARING): (Phase.PREPARED, cannot_be_undone),
    (Phase.PREPARING, AT_START): (NONE, lambda agent, _patch: agent.die_at("p3", agent.prepare)),
    (Phase.UNPREPARING, AT_START): (Phase.PREPARED, lambda agent, _patch: agent.die_at("u3", agent.unprepare)),
    (Phase.PREPARED, AGAIN): (Phase.PREPARED, loses_its_file),
    (Phase.PREPARED, SWEPT): (Phase.PREPARED, lambda agent, _patch: agent.sweep()),
}


def word(data: dict[str, Any]) -> str:
    """What of a record the table names."""
    if "step" in data:
        return f"step {data['step']}"
    if "phase" in data:
        return f"phase {data['phase']}"
    return str(data.get("outcome", ""))


def test_the_table_has_every_transition_once() -> None:
    assert [(one.before, one.after) for one in TRANSITIONS] == list(ACTS)


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row.before} to {row.after}")
def test_a_transition_is_journalled_as_the_table_says(
    row: Any, folder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(tmp_path / "node", folder.journal)
    first, act = ACTS[row.before, row.after]
    if first == Phase.PREPARED:
        agent.prepare()
    assert agent.journal.settled(WAIT)
    known = len(folder.records())
    act(agent, monkeypatch)
    assert agent.journal.settled(WAIT)
    records = [record for record in folder.records()[known:] if record.kind.startswith("claim.")]
    assert all(record.claim.uid == "u1" for record in records)
    told = [(record.kind, word(dict(record.data))) for record in records]
    at = 0
    for kind, words in row.journal:
        found = [index for index in range(at, len(told)) if told[index][0] == kind and words.startswith(told[index][1])]
        assert found, f"{kind} ({words}) is not among {told[at:]}"
        at = found[0] + 1
    assert replay(folder.records()).claims == claim_entries(agent.preparer.prepared())


def test_the_plan_of_the_page_has_every_step_that_there_is() -> None:
    names = [step.name for step in plan().steps]
    assert names[0] == "hardware"
    assert names[-1] == "spec"
    assert {"mig", "share", "mps", "timeSlice", "sharingRules", "vfio"} <= set(names)


@pytest.mark.parametrize("kubelet_first", [True, False])
def test_a_claim_that_is_made_again_after_a_reboot_is_told_whoever_comes_to_it_first(
    folder: Any, tmp_path: Path, *, kubelet_first: bool
) -> None:
    agent = Agent(tmp_path / "node", folder.journal)
    agent.prepare()
    agent.node.reboot()
    agent.node.ready = False
    agent.begin_again()
    agent.recover()  # before the first reading of the node, as at each start
    agent.node.ready = True
    known = len(folder.records())
    first, second = (agent.prepare, agent.recover) if kubelet_first else (agent.recover, agent.prepare)
    for act in (first, second, agent.prepare):  # a repeated Prepare is no news
        act()
    assert agent.journal.settled(WAIT)
    told = [(one.kind, one.claim.name, one.data) for one in folder.records()[known:] if one.kind.startswith("claim.")]
    assert told == [("claim.recover", "claim-u1", {"outcome": "remade"})]
