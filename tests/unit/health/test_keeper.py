"""Findings over time: what stands, and what has passed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.health.verdicts import Status, Target, verdicts
from driver.model import GpuState, NvLinkLink
from native.nvml.eventtypes import EventType
from native.nvml.healthtypes import GpuHealth, RemappedRows, RetiredPages

GPU = Target("gpu-0000-1b-00-0", "0000:1b:00.0")


def status(bench: Any) -> tuple[str, str]:
    verdict = verdicts(bench.keeper, [GPU])[GPU.device]
    return verdict.status.value, verdict.word


@pytest.mark.bug("B112")
def test_before_the_first_look_it_is_unknown_and_then_well(bench: Any) -> None:
    assert status(bench) == ("unknown", "driver-gone")
    bench.look()
    assert status(bench) == ("healthy", "")


def test_a_lost_gpu_is_ill_at_once_and_well_some_time_after_it_is_back(bench: Any) -> None:
    bench.look()
    bench.lost()
    assert status(bench) == ("unhealthy", "lost")
    bench.look(seconds=10)
    assert status(bench) == ("unhealthy", "lost"), "not before it has been well for a while"
    bench.well_for(60)
    assert status(bench) == ("healthy", "")


@pytest.mark.bug("B106")
def test_one_that_comes_and_goes_is_ill_without_a_break(bench: Any) -> None:
    bench.look()
    seen = set()
    for _ in range(150):
        bench.lost(seconds=1)
        seen.add(status(bench))
        bench.look(seconds=1)
        seen.add(status(bench))
    assert seen == {("unhealthy", "lost")}


@pytest.mark.bug("B106")
def test_a_benign_xid_never_lowers_a_fatal_one(bench: Any) -> None:
    bench.look()
    bench.xid(79)
    for code in (13, 31, 43):
        bench.xid(code)
    bench.look(seconds=10)
    assert status(bench) == ("unhealthy", "xid-79")


@pytest.mark.bug("B105")
def test_an_xid_of_the_device_passes_when_it_was_well_for_long_enough(bench: Any) -> None:
    bench.look()
    bench.xid(74)
    bench.well_for(50)
    assert status(bench) == ("unhealthy", "xid-74")
    bench.xid(74)
    bench.well_for(50)
    assert status(bench) == ("unhealthy", "xid-74"), "the last one counts"
    bench.well_for(20)
    assert status(bench) == ("healthy", "")


@pytest.mark.bug("B105")
def test_a_fatal_xid_stands_until_something_ends_it(bench: Any) -> None:
    bench.look()
    bench.xid(119)
    bench.well_for(3600)
    assert status(bench) == ("unhealthy", "xid-119"), "an old driver cannot say that all is well"
    bench.keeper.driver_gone("unloaded for the reset")
    assert status(bench) == ("unhealthy", "xid-119")
    bench.well_for(70)
    assert status(bench) == ("healthy", "")


@pytest.mark.bug("B105")
def test_a_fatal_xid_passes_where_the_driver_says_that_nothing_is_to_be_done(bench: Any) -> None:
    bench.look(recovery_action=0)
    bench.xid(119)
    bench.look(recovery_action=1, seconds=10)
    bench.well_for(300, recovery_action=1)
    assert status(bench)[0] == "unhealthy"
    bench.well_for(130, recovery_action=0)
    assert status(bench) == ("healthy", "")


@pytest.mark.bug("B105")
def test_a_gpu_that_was_lost_and_is_back_has_been_reset(bench: Any) -> None:
    bench.look()
    bench.xid(79)
    bench.lost(seconds=5)
    bench.well_for(130)
    assert status(bench) == ("healthy", "")


def test_a_new_fatal_xid_after_the_reset_stands_again(bench: Any) -> None:
    bench.look()
    bench.xid(119)
    bench.lost(seconds=5)
    bench.look(seconds=5)
    bench.xid(119)
    bench.well_for(3600)
    assert status(bench) == ("unhealthy", "xid-119")


def test_an_application_fault_is_noted_and_forgotten(bench: Any) -> None:
    bench.look()
    bench.xid(31)
    assert status(bench) == ("healthy", "xid-31")
    bench.well_for(70)
    assert status(bench) == ("healthy", "")


@pytest.mark.parametrize("reading", [{"clocks_event_reasons": 0x40}, {"clocks_event_reasons": 0x80}])
def test_a_moment_of_heat_or_of_the_brake_is_not_believed_at_once(bench: Any, reading: dict[str, int]) -> None:
    bench.look()
    bench.look(seconds=10, **reading)
    assert status(bench) == ("healthy", "")
    bench.look(seconds=10)
    bench.look(seconds=10, **reading)
    assert status(bench) == ("healthy", ""), "two moments apart are two moments"
    bench.look(seconds=10, **reading)
    assert status(bench)[1] in ("thermal-slowdown", "power-brake")
    assert status(bench)[0] == "healthy", "it works, only slower"


ROWS = RemappedRows(0, 0, pending=False, failure=False)
PAGES = RetiredPages(0, 0, pending=False)


@pytest.mark.parametrize(
    ("ill", "sound", "word"),
    [
        ({"remapped_rows": RemappedRows(0, 1, True, False)}, {"remapped_rows": ROWS}, "row-remap-pending"),
        ({"remapped_rows": RemappedRows(0, 1, True, True)}, {"remapped_rows": ROWS}, "row-remap-failure"),
        ({"retired_pages": RetiredPages(1, 0, True)}, {"retired_pages": PAGES}, "page-retirement-pending"),
        ({"retired_pages": RetiredPages(60, 4, False)}, {"retired_pages": PAGES}, "pages-retired"),
    ],
)
@pytest.mark.parametrize("action", [None, 0])
def test_what_the_board_remembers_passes_when_it_says_so_and_not_when_it_says_nothing(
    bench: Any, ill: dict[str, Any], sound: dict[str, Any], word: str, action: int | None
) -> None:
    bench.look(recovery_action=action, **ill)
    before = status(bench)
    assert before[1] == word
    bench.well_for(300, recovery_action=action, codes=dict.fromkeys(ill, 3))
    assert status(bench) == before, "a reading that is lacking is no change"
    bench.well_for(60, recovery_action=action, **sound)
    assert status(bench) == ("healthy", "")


def test_behind_a_reset_the_board_is_believed_anew(bench: Any) -> None:
    bench.look(retired_pages=RetiredPages(60, 0, False))
    assert status(bench) == ("unhealthy", "pages-retired")
    bench.lost(seconds=10)
    bench.well_for(60)
    assert status(bench) == ("healthy", ""), "another board may be there, or another driver, that tells of no pages"
    bench.look(seconds=10, retired_pages=RetiredPages(60, 0, False))
    bench.well_for(300)
    assert status(bench) == ("unhealthy", "pages-retired")


@pytest.mark.bug("B106")
def test_a_page_that_waits_now_and_then_is_one_spell(bench: Any) -> None:
    waits, none = RetiredPages(1, 0, True), RetiredPages(1, 0, False)
    bench.look(retired_pages=waits)
    (first,), _ = bench.keeper.standing(GPU.address)
    for _ in range(20):
        bench.look(seconds=10, retired_pages=none)
        bench.look(seconds=10, retired_pages=waits)
        (one,), _ = bench.keeper.standing(GPU.address)
        assert one.since == first.since
    bench.well_for(60, retired_pages=none)
    assert bench.keeper.standing(GPU.address) == ((), True)


def test_a_link_that_is_down_at_two_looks_makes_the_gpu_ill(bench: Any) -> None:
    bench.look()
    links = tuple(NvLinkLink(number, number == 0, "4.0", None, "switch") for number in range(2))
    down = replace(bench.gpu(), nvlinks=links)
    bench.look(down, 10)
    assert status(bench) == ("healthy", "")
    bench.look(down, 10)
    assert status(bench) == ("unhealthy", "nvlink-down")
    bench.well_for(70)
    assert status(bench) == ("healthy", "")


def test_without_a_driver_nothing_is_known_and_what_stood_stands(bench: Any) -> None:
    bench.look()
    bench.keeper.driver_gone("not loaded")
    verdict = verdicts(bench.keeper, [GPU])[GPU.device]
    assert (verdict.status, verdict.message) == (Status.UNKNOWN, "not loaded")
    bench.look()
    assert status(bench) == ("healthy", "")


def test_a_probe_that_answers_is_newer_than_a_snapshot_that_did_not(bench: Any) -> None:
    lost = replace(bench.gpu(), state=GpuState.LOST, reason="gone")
    bench.look()
    bench.keeper.look((lost,), {GPU.address: GpuHealth(GPU.address, uuid="GPU-1b")})
    assert status(bench) == ("healthy", "")


def test_poison_and_other_events_count(bench: Any) -> None:
    bench.look()
    bench.event(EventType.NON_FATAL_POISON_ERROR)
    assert status(bench) == ("healthy", "poison")
    bench.event(EventType.FATAL_POISON_ERROR)
    assert status(bench) == ("unhealthy", "poison")


@pytest.mark.bug("B104")
def test_what_the_operator_ignores_decides_nothing(bench_with: Any) -> None:
    for policy in (
        {"ignore_xids": frozenset({119})},
        {"ignore_causes": frozenset({"xid"})},
        {"ignore_devices": frozenset({"gpu-0000-1b-00-0"})},
        {"ignore_devices": frozenset({"0000:1b:00.0"})},
        {"ignore_devices": frozenset({"GPU-1b"})},
    ):
        bench = bench_with(**policy)
        bench.look()
        bench.xid(119)
        assert status(bench) == ("healthy", "xid-119"), policy


@pytest.mark.bug("B44")
def test_a_restart_of_the_agent_forgets_nothing(bench: Any) -> None:
    bench.look()
    bench.xid(119)
    bench.look(seconds=10)
    stored = bench.keeper.dump()
    bench.keeper = bench.make("11111111-1111-1111-1111-111111111111")
    bench.keeper.load(stored)
    assert status(bench) == ("unhealthy", "xid-119"), "before the first look already"
    bench.well_for(600)
    assert status(bench) == ("unhealthy", "xid-119")


def test_a_reboot_ends_what_happened_before_it(bench: Any) -> None:
    bench.look()
    bench.xid(119)
    stored = bench.keeper.dump()
    for boot in ("22222222-2222-2222-2222-222222222222", None):
        bench.keeper = bench.make(boot)
        bench.keeper.load(stored)
        bench.look()
        assert status(bench) == ("healthy", "")


def test_a_policy_that_was_changed_applies_to_what_is_stored(bench_with: Any) -> None:
    bench = bench_with(ignore_xids=frozenset({119}))
    bench.look()
    bench.xid(119)
    stored = bench.keeper.dump()
    again = bench_with()
    again.keeper.load(stored)
    again.look()
    assert status(again) == ("unhealthy", "xid-119")


@given(st.binary(max_size=200))
def test_a_stored_state_of_any_bytes_is_refused_or_taken(data: bytes) -> None:
    from driver.health.keeper import Keeper, Policy

    keeper = Keeper(Policy(), boot_id="b")
    with contextlib.suppress(ValueError):
        keeper.load(data)
    assert keeper.standing(GPU.address) == ((), False)


@pytest.mark.bug("B104")
def test_a_flood_of_different_xids_stays_bounded_and_keeps_the_worst(bench: Any) -> None:
    bench.look()
    bench.xid(79)
    for code in range(1000, 3000):
        bench.xid(code)
    standing, _ = bench.keeper.standing(GPU.address)
    assert len(standing) <= 64
    assert status(bench) == ("unhealthy", "xid-79")


STEPS = st.lists(
    st.sampled_from(("look", "lost", "gone", "xid13", "xid74", "xid79", "hot", "long", "restart")), max_size=25
)


@given(STEPS)
@settings(max_examples=80, deadline=None)
def test_whatever_happens_it_recovers_after_a_reset_and_a_time_without_trouble(steps: list[str]) -> None:
    from tests.unit.health.conftest import BOOT, Bench

    bench = Bench()
    for step in steps:
        if step == "look":
            bench.look(seconds=10)
        elif step == "lost":
            bench.lost(seconds=10)
        elif step == "gone":
            bench.keeper.driver_gone("gone")
        elif step.startswith("xid"):
            bench.xid(int(step[3:]))
            if step in ("xid74", "xid79"):
                assert status(bench)[0] == "unhealthy"
        elif step == "hot":
            bench.look(seconds=10, clocks_event_reasons=0x40)
        elif step == "long":
            bench.well_for(100)
        else:
            stored = bench.keeper.dump()
            bench.keeper = bench.make(BOOT)
            bench.keeper.load(stored)
    bench.lost(seconds=1)
    bench.well_for(140)
    assert status(bench) == ("healthy", "")
