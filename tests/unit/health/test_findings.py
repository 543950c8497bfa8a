"""What readings and events say is wrong."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.health import findings
from driver.health.findings import of_event, of_gpu, of_health, of_registration, risen
from driver.health.xids import XIDS, Severity, describe
from driver.model import GpuState, MigMode, NvLinkLink
from native.nvml.eventtypes import HEALTH_EVENTS, EventType, NvmlEvent
from native.nvml.healthtypes import GpuHealth, RemappedRows, RetiredPages

ADDRESS = "0000:1b:00.0"


def xid(code: int) -> findings.Finding:
    found = of_event(NvmlEvent(ADDRESS, EventType.XID_CRITICAL_ERROR, code, None, None))
    assert found is not None
    return found


@pytest.mark.bug("B104")
@pytest.mark.parametrize("code", [13, 31, 43, 45, 68, 109])
def test_an_xid_of_an_application_keeps_nobody_from_the_gpu(code: int) -> None:
    assert xid(code).severity is Severity.APPLICATION


@pytest.mark.bug("B104")
@pytest.mark.parametrize(
    ("code", "severity"),
    [
        (48, Severity.FATAL),
        (63, Severity.DEGRADED),
        (64, Severity.FATAL),
        (74, Severity.DEVICE),
        (79, Severity.FATAL),
        (92, Severity.DEGRADED),
        (94, Severity.APPLICATION),
        (95, Severity.FATAL),
        (119, Severity.FATAL),
        (120, Severity.FATAL),
        (140, Severity.FATAL),
        (143, Severity.FATAL),
        (0, Severity.DEVICE),
        (2**64 - 1, Severity.DEVICE),
    ],
)
def test_each_xid_has_a_severity_also_an_unknown_one(code: int, severity: Severity) -> None:
    assert xid(code).severity is severity


def test_every_row_says_what_it_is_and_what_to_do() -> None:
    for code, row in XIDS.items():
        assert row.code == code
        assert row.name
        assert row.action
        assert str(code) in xid(code).message
        assert row.action in xid(code).message


@given(st.integers(0, 2**64 - 1))
def test_describing_never_fails(code: int) -> None:
    assert describe(code).code == code


def test_every_kind_of_event_that_is_watched_is_understood_or_read_by_the_probe() -> None:
    by_the_probe = {EventType.DRAM_RETIREMENT_EVENT, EventType.GPU_RECOVERY_ACTION}
    for kind in EventType:
        if kind & HEALTH_EVENTS:
            found = of_event(NvmlEvent(ADDRESS, kind, 0, None, None))
            assert (found is None) == (kind in by_the_probe), kind


@pytest.mark.parametrize(
    ("state", "cause"),
    [(GpuState.LOST, "lost"), (GpuState.WEDGED, "hang"), (GpuState.UNREADABLE, "unreadable")],
)
def test_a_gpu_that_cannot_be_read_says_how(bench: Any, state: GpuState, cause: str) -> None:
    (found,) = of_gpu(replace(bench.gpu(), state=state, reason="because"), None)
    assert (found.cause, found.message, found.event) == (cause, "because", False)


def test_a_link_that_was_up_and_is_down_is_a_fault_and_one_that_never_was_is_none(bench: Any) -> None:
    best = bench.gpu()
    down = (NvLinkLink(0, True, "4.0", None, "switch"), NvLinkLink(1, False, None, None, "unknown"))
    (found,) = of_gpu(replace(best, nvlinks=down), best)
    assert (found.cause, found.severity) == ("nvlink-down", Severity.DEVICE)
    assert "NVLink 1 " in found.message
    assert of_gpu(replace(best, nvlinks=down), replace(best, nvlinks=down)) == ()


def test_links_that_are_down_because_mig_mode_was_switched_on_are_no_fault(bench: Any) -> None:
    best = bench.gpu()
    divided = replace(best, nvlinks=(), mig=MigMode(current=True, pending=True))
    assert of_gpu(divided, best) == ()
    (found,) = of_gpu(replace(divided, mig=MigMode(current=False, pending=True)), best)
    assert found.cause == "nvlink-down"


@pytest.mark.parametrize("unread", [("nvlinks",), ("mig", "partitions")])
def test_links_that_nvml_does_not_tell_are_not_down(bench: Any, unread: tuple[str, ...]) -> None:
    best = bench.gpu()
    assert of_gpu(replace(best, nvlinks=(), mig=None, unread=unread), best) == ()
    assert of_gpu(replace(best, nvlinks=(), unread=("serial",)), best) != ()


@pytest.mark.parametrize("field", [{"pcie_link_width": 8}, {"pcie_link_generation": 3}])
def test_a_slower_pcie_link_is_a_degradation(bench: Any, field: dict[str, int]) -> None:
    (found,) = of_gpu(replace(bench.gpu(), **field), bench.gpu())
    assert (found.cause, found.severity) == ("pcie-degraded", Severity.DEGRADED)
    unknown = dict.fromkeys(field)
    assert of_gpu(replace(bench.gpu(), **unknown), bench.gpu()) == ()


@pytest.mark.parametrize(
    ("reading", "cause", "severity"),
    [
        ({"remapped_rows": RemappedRows(1, 1, True, False)}, "row-remap-pending", Severity.DEGRADED),
        ({"remapped_rows": RemappedRows(1, 1, True, True)}, "row-remap-failure", Severity.FATAL),
        ({"retired_pages": RetiredPages(1, 0, True)}, "page-retirement-pending", Severity.DEGRADED),
        ({"retired_pages": RetiredPages(60, 0, False)}, "pages-retired", Severity.DEVICE),
        ({"retired_pages": RetiredPages(30, 30, False)}, "pages-retired", Severity.DEVICE),
        ({"repair_pending": (True, False)}, "repair-pending", Severity.DEGRADED),
        ({"ecc_uncorrected_volatile": 1}, "ecc", Severity.DEVICE),
        ({"ecc_uncorrected_volatile": 1, "recovery_action": 0}, "ecc", Severity.DEGRADED),
        ({"recovery_action": 1}, "recovery-action", Severity.FATAL),
        ({"recovery_action": 2}, "recovery-action", Severity.FATAL),
        ({"recovery_action": 4}, "recovery-action", Severity.DEVICE),
        ({"recovery_action": 99}, "recovery-action", Severity.DEVICE),
        ({"clocks_event_reasons": 0x40, "temperature": 95}, "thermal-slowdown", Severity.DEGRADED),
        ({"clocks_event_reasons": 0x80}, "power-brake", Severity.DEGRADED),
        ({"codes": {"handle": 15}}, "lost", Severity.FATAL),
        ({"codes": {"handle": 6}}, "lost", Severity.FATAL),
        ({"codes": {"handle": 10}}, "hang", Severity.FATAL),
        ({"codes": {"handle": 999}}, "unreadable", Severity.DEVICE),
    ],
)
def test_each_reading_has_its_cause(reading: dict[str, Any], cause: str, severity: Severity) -> None:
    (found,) = of_health(GpuHealth(ADDRESS, **reading))
    assert (found.cause, found.severity) == (cause, severity)
    assert found.cause in findings.CAUSES


def test_behind_an_uncorrectable_error_a_page_that_waits_keeps_new_work_away() -> None:
    pages = RetiredPages(0, 1, pending=True)
    for action, ecc in ((None, Severity.DEVICE), (0, Severity.DEGRADED)):
        found = of_health(GpuHealth(ADDRESS, retired_pages=pages, ecc_uncorrected_volatile=1, recovery_action=action))
        severities = {one.cause: one.severity for one in found}
        assert severities == {"page-retirement-pending": Severity.DEVICE, "ecc": ecc}


@pytest.mark.parametrize(
    "told", [None, RetiredPages(0, 0, False), RetiredPages(59, 0, False), RetiredPages(29, 30, False)]
)
def test_pages_that_are_out_of_use_harm_nobody_until_there_are_sixty(told: RetiredPages | None) -> None:
    assert of_health(GpuHealth(ADDRESS, retired_pages=told)) == ()


@given(st.integers(0, 200), st.integers(0, 200), st.booleans(), st.integers(0, 3))
def test_retired_pages_are_judged_by_their_sum_and_what_waits_by_itself(
    single: int, double: int, pending: bool, errors: int
) -> None:
    pages = RetiredPages(single, double, pending)
    found = of_health(GpuHealth(ADDRESS, retired_pages=pages, ecc_uncorrected_volatile=errors))
    causes = {one.cause for one in found}
    assert ("pages-retired" in causes) is (single + double >= 60)
    assert ("page-retirement-pending" in causes) is pending
    assert max((one.severity for one in found), default=0) < Severity.FATAL


def test_what_a_board_remembers_is_told_by_a_field_of_the_reading() -> None:
    assert set(findings.REMEMBERED) <= set(findings.CAUSES)
    assert set(findings.REMEMBERED.values()) <= set(GpuHealth.__struct_fields__)


def test_a_sound_gpu_and_one_that_tells_nothing_have_no_finding(bench: Any) -> None:
    assert of_gpu(bench.gpu(), bench.gpu()) == ()
    assert of_health(GpuHealth(ADDRESS)) == ()
    assert of_health(GpuHealth(ADDRESS, recovery_action=0, ecc_uncorrected_volatile=0, clocks_event_reasons=1)) == ()


@pytest.mark.bug("B109")
def test_a_gpu_that_does_not_support_events_is_no_sick_one() -> None:
    assert of_registration(3) == ()
    assert of_registration(13) == ()
    (found,) = of_registration(999)
    assert found.severity is Severity.DEGRADED


ROWS = RemappedRows(correctable=1, uncorrectable=0, pending=False, failure=False)
BEFORE: dict[str, Any] = {
    "ecc_corrected_aggregate": 10,
    "ecc_uncorrected_aggregate": 2,
    "ecc_corrected_volatile": 4,
    "ecc_uncorrected_volatile": 1,
    "remapped_rows": ROWS,
    "retired_pages": RetiredPages(single_bit=4, double_bit=1, pending=False),
    "repair_pending": (False, False),
    "recovery_action": 0,
}


@pytest.mark.parametrize(
    ("now", "said"),
    [
        ({}, ""),
        ({"ecc_uncorrected_aggregate": 3}, "1 uncorrected ECC errors"),
        ({"ecc_corrected_aggregate": 25, "ecc_uncorrected_aggregate": 4}, "2 uncorrected ECC errors, 15 corrected"),
        ({"ecc_uncorrected_volatile": 0, "ecc_corrected_volatile": 0}, ""),
        ({"ecc_uncorrected_aggregate": None, "ecc_uncorrected_volatile": 3}, "2 uncorrected ECC errors"),
        ({"remapped_rows": RemappedRows(1, 2, True, False)}, "2 memory rows remapped, a memory row waits"),
        ({"remapped_rows": RemappedRows(1, 0, False, True)}, "a memory row could not be remapped"),
        ({"retired_pages": RetiredPages(5, 2, True)}, "2 memory pages retired, a memory page waits to be retired"),
        ({"retired_pages": RetiredPages(4, 1, True)}, "a memory page waits to be retired"),
        ({"remapped_rows": None, "retired_pages": None, "repair_pending": None, "recovery_action": None}, ""),
        ({"repair_pending": (True, False)}, "a repair waits for a reset"),
        ({"recovery_action": 4}, "the driver asks for recovery action 4"),
        ({"codes": {"handle": 15}}, "it does not answer (GPU_IS_LOST"),
    ],
)
def test_what_has_happened_to_a_gpu_shows_in_what_stays_of_it(now: dict[str, Any], said: str) -> None:
    found = risen(GpuHealth("a", **BEFORE), GpuHealth("a", **(BEFORE | now)))
    assert found.startswith(said)
    assert bool(found) is bool(said)
    assert risen(GpuHealth("a"), GpuHealth("a", **BEFORE)) == "", "what was not told before has not risen"
