"""What claims have of GPUs, as the journal tells it: shares, partitions made right again, and what cannot be."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import pytest

from driver.bridge import consumers_of
from driver.health.verdicts import Status, Verdict
from driver.journal import JournalState, replay
from driver.journal.scribe import claim_entries
from driver.journal.telling import Query, line
from driver.journal.writer import Draft
from driver.model import Placement, Problem
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Origin, Phase
from driver.prepare.partition import PartitionRecord
from driver.prepare.records import SHARE
from tests.unit.journal.journal_desk import WAIT, Desk

REF = ClaimRef("ns", "c", "uid-1")


def shared(*shares: str, phase: Phase = Phase.PREPARED) -> ClaimRecord:
    devices = tuple(
        DeviceRecord("r", "pool", "gpu-0", share, False, "0000:01:00.0", "GPU-1", f"cdi-{share}").with_data(
            SHARE, {"shares": 1, "of": 4, "memory": 1 << 30, "consumed": {"memory": "1Gi"}}
        )
        for share in shares
    )
    return ClaimRecord(REF, phase, devices)


def partitioned(origin: Origin) -> ClaimRecord:
    part = PartitionRecord(19, "1g.10gb", Placement(0, 1), "GPU-1", origin)
    device = DeviceRecord("r", "pool", "gpu-0-mig-1g-10gb-19-0", None, False, "0000:01:00.0", "", "cdi")
    return ClaimRecord(REF, Phase.PREPARED, (device.with_partition(part, "MIG-1"),))


@pytest.fixture
def desk(folder: Any) -> Desk:
    return Desk(folder)


def test_a_share_is_granted_with_its_claim_and_released_with_it_once_each(desk: Desk) -> None:
    desk.hold(shared("s1", phase=Phase.PREPARING))
    desk.hold(shared("s1", "s2"))
    desk.hold(shared("s1", "s2", phase=Phase.UNPREPARING))
    desk.hold()
    what = {"shares": 1, "of": 4, "memory": 1 << 30}
    assert desk.told("share.grant", "share.release") == [
        ("share.grant", "gpu-0", {"share": "s1", **what}),
        ("share.grant", "gpu-0", {"share": "s2", **what}),
        ("share.release", "gpu-0", {"share": "s1"}),
        ("share.release", "gpu-0", {"share": "s2"}),
    ]
    assert all(record.claim is not None for record in desk.folder.records("share.grant", "share.release"))


def test_the_state_holds_the_shares_as_long_as_the_claim_has_them(desk: Desk) -> None:
    for records in ((shared("s1"),), (shared("s2"),), ()):
        desk.hold(*records)
        assert desk.journal.settled(WAIT)
        assert replay(desk.folder.records()).claims == claim_entries(records)
    assert [told[0] for told in desk.told("share.grant", "share.release")] == [
        "share.grant", "share.grant", "share.release", "share.release",
    ]  # fmt: skip


def test_a_claim_with_whole_gpus_has_no_shares(desk: Desk) -> None:
    whole = msgspec.structs.replace(shared("s1").devices[0], share_id=None)
    desk.hold(ClaimRecord(REF, Phase.PREPARED, (whole,)))
    assert desk.told("share.grant") == []
    assert "shares" not in claim_entries(desk.records)["uid-1"]


@pytest.mark.parametrize(("origin", "told"), [(Origin.MADE, 1), (Origin.MAKING, 1), (Origin.FOUND, 0)])
def test_a_partition_of_ours_that_was_made_right_again_is_told_and_no_one_else_s(
    desk: Desk, origin: Origin, told: int
) -> None:
    desk.scribe.recovered({"remade": ["uid-1"]}, {"uid-1": partitioned(origin)})
    assert (
        desk.told("mig.reconcile")
        == [("mig.reconcile", "gpu-0-mig-1g-10gb-19-0", {"outcome": "remade", "profile": "1g.10gb"})][:told]
    )
    assert desk.told("claim.recover") == [("claim.recover", None, {"outcome": "remade"})]


@pytest.mark.bug("B75")
def test_a_claim_that_cannot_be_verified_is_told_by_its_name_and_what_is_about_no_claim_without_one(desk: Desk) -> None:
    record = shared("s1")
    problems = [Problem(f"claim {REF}", "its GPU is gone"), Problem("node", "no library")]
    desk.scribe.recovered({}, {"uid-1": record}, problems)
    assert desk.journal.settled(WAIT)
    told = [(str(one.claim) if one.claim else None, dict(one.data)) for one in desk.folder.records("claim.recover")]
    assert told == [
        ("ns/c", {"outcome": "problem", "error": "its GPU is gone"}),
        (None, {"outcome": "problem", "subject": "node", "error": "no library"}),
    ]


def test_a_verdict_names_the_claims_that_are_hit_by_it_and_is_found_by_their_names(desk: Desk) -> None:
    desk.hold(shared("s1"))
    for verdict in (
        Verdict("gpu-0", Status.HEALTHY),
        Verdict("gpu-0", Status.UNHEALTHY, 1.0, 4, "xid", 79, "off the bus"),
        Verdict("gpu-0", Status.HEALTHY),
    ):
        desk.scribe.verdicts({"gpu-0": verdict, "gpu-1": verdict})
    told = [data.get("claims") for _, device, data in desk.told("device.health") if device == "gpu-0"]
    assert told == [None, ["ns/c"], ["ns/c"]]
    records = desk.folder.records("device.health")
    for wanted in ("ns/c", "c", "ns/*"):
        found = [one for one in records if Query(claims=(wanted,)).wants(one)]
        assert {(one.device, one.data["after"]) for one in found} == {("gpu-0", "unhealthy"), ("gpu-0", "healthy")}
    assert line(found[0]).endswith("off the bus (claims ns/c)")
    assert not any(Query(claims=("ns/d",)).wants(one) for one in records)


def test_the_end_of_a_registered_agent_is_an_unregistration_too_and_that_of_another_is_not(desk: Desk) -> None:
    desk.scribe.ended()
    desk.scribe.registered(ok=True, error="")
    desk.scribe.ended()
    assert [kind for kind, _, _ in desk.told("plugin.register", "plugin.unregister", "agent.stop")] == [
        "agent.stop", "plugin.register", "plugin.unregister", "agent.stop",
    ]  # fmt: skip
    assert replay(desk.folder.records()).agent == {"running": False, "registered": False}


def test_the_begin_of_a_prepare_names_the_pods_that_have_the_claim(desk: Desk) -> None:
    reserved = [{"resource": "pods", "name": "train-0", "uid": "p"}, {"resource": "podgroups", "name": "train"}]
    consumers = consumers_of({"status": {"reservedFor": reserved}})
    desk.scribe.began(REF, "prepare", consumers)
    assert desk.told("claim.prepare") == [
        ("claim.prepare", None, {"step": "began", "consumers": ["pods/train-0", "podgroups/train"]})
    ]
    (record,) = desk.folder.records("claim.prepare")
    assert line(record).endswith("began for pods/train-0 podgroups/train")


@pytest.mark.parametrize(
    "document", [{}, {"status": None}, {"status": {"reservedFor": {}}}, {"status": {"reservedFor": ["x"]}}]
)
def test_a_claim_without_readable_reservations_has_no_consumers(document: dict[str, Any]) -> None:
    assert consumers_of(document) == []


def test_a_claim_is_told_as_it_was_when_it_was_looked_at_however_late_that_is_written(desk: Desk) -> None:
    hold, held = threading.Event(), threading.Event()

    def block(_state: JournalState) -> list[Draft]:
        held.set()
        hold.wait(WAIT)
        return []

    desk.journal.compare(block)
    assert held.wait(WAIT)
    for phase in (Phase.PREPARING, Phase.PREPARED):
        desk.records = (shared("s1", phase=phase),)
        desk.scribe.claims()
    desk.scribe.began(REF, "unprepare")
    desk.records = ()
    desk.scribe.claims()
    hold.set()
    told = [data.get("step", data.get("phase")) for _, _, data in desk.told("claim.prepare", "claim.unprepare")]
    assert told == ["Preparing", "Prepared", "began", None]
