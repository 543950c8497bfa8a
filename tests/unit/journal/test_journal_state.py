"""What records add up to."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from driver.journal.records import ClaimId, Kind, Record
from driver.journal.state import JournalState, apply, replay

CLAIM = ClaimId("ns", "c", "uid-1")


def rec(kind: str, *, device: str | None = None, claim: ClaimId | None = None, **data: Any) -> Record:
    return Record(1, "2026-01-01T00:00:00.000000Z", 0, "boot", kind, device, claim, data)


LIFE = (
    rec(Kind.AGENT_START, version="1.0"),
    rec(Kind.REGISTER, ok=True),
    rec(Kind.DRIVER, available=True, version="580.1"),
    rec(Kind.DEVICE, device="gpu-0", before=None, after="ready"),
    rec(Kind.PREPARE, claim=CLAIM, phase="Preparing", devices=["gpu-0"]),
    rec(Kind.PREPARE, claim=CLAIM, phase="Prepared"),
    rec(Kind.HEALTH, device="gpu-0", before="healthy", after="unhealthy", cause="xid-79"),
    rec(Kind.TAINT, device="gpu-0", key="gpu.nvidia.com/xid", before=None, after="79:NoSchedule"),
)


def test_a_life_adds_up() -> None:
    state = replay(LIFE)
    assert state.claims == {"uid-1": {"namespace": "ns", "name": "c", "phase": "Prepared", "devices": ["gpu-0"]}}
    assert state.devices == {"gpu-0": {"state": "ready", "health": "unhealthy", "cause": "xid-79"}}
    assert state.taints == {"gpu-0": {"gpu.nvidia.com/xid": "79:NoSchedule"}}
    assert state.driver == {"available": True, "version": "580.1"}
    assert state.agent == {"running": True, "registered": True, "version": "1.0"}


def test_what_ends_is_gone() -> None:
    ends = (
        rec(Kind.UNPREPARE, claim=CLAIM, phase="Unpreparing"),
        rec(Kind.UNPREPARE, claim=CLAIM),
        rec(Kind.TAINT, device="gpu-0", key="gpu.nvidia.com/xid", before="79:NoSchedule", after=None),
        rec(Kind.HEALTH, device="gpu-0", before="unhealthy", after="healthy"),
        rec(Kind.DEVICE, device="gpu-0", before="ready", after=None),
        rec(Kind.HEALTH, device="gpu-0", before="healthy", after=None),
        rec(Kind.AGENT_STOP),
    )
    state = replay((*LIFE, *ends))
    assert (state.claims, state.devices, state.taints) == ({}, {}, {})
    assert state.agent["running"] is False


def test_a_failed_attempt_changes_no_claim() -> None:
    state = replay((*LIFE, rec(Kind.ERROR, claim=CLAIM, operation="prepare", error="no")))
    assert state.claims["uid-1"]["phase"] == "Prepared"


def test_a_state_record_stands_for_all_before_it() -> None:
    snapshot = rec(Kind.STATE, **replay(LIFE).as_data())
    assert replay((rec(Kind.DEVICE, device="other", after="ready"), snapshot)) == replay(LIFE)


def test_every_record_may_come_twice() -> None:
    twice = [record for record in LIFE for _ in range(2)]
    assert replay(twice) == replay(LIFE)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(("phase", "after", "key", "devices",
        "claims", "x")), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(
    st.lists(
        st.builds(
            rec,
            st.sampled_from([kind.value for kind in Kind] + ["later.kind"]),
            device=st.none() | st.sampled_from(("gpu-0", "gpu-1")),
            claim=st.none() | st.just(CLAIM),
        ),
        max_size=8,
    ),
    st.dictionaries(st.sampled_from(("phase", "after", "key", "devices", "claims", "x", "available")), JSON),
)
def test_records_of_any_shape_can_be_added_up(records: list[Record], data: dict[str, Any]) -> None:
    state = JournalState()
    for record in records:
        apply(state, Record(1, record.wall, 0, "b", record.kind, record.device, record.claim, data))
    assert state.copy() == state
