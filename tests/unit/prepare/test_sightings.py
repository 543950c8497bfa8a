"""What readings of the node show of a GPU's losses, and what the kernel's links do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.model import GpuState, NodeInventory
from driver.prepare.sharing.sightings import Sightings, driver_link
from tests.unit.prepare.prepare_node import gpu

ADDRESS = str(gpu(0).address)
STATES = st.sampled_from([*GpuState, None])


def reading(state: GpuState | None, version: str | None = "580.1", *, gpus_known: bool = True) -> NodeInventory:
    """A node of two GPUs; of the first None says that it is gone."""
    first = () if state is None else (gpu(0, state=state),)
    return NodeInventory(version, (13, 0), "13", (*first, gpu(1)), gpus_known=gpus_known)


@given(st.lists(STATES, max_size=12), st.integers(1, 3))
def test_losses_are_counted_once_however_often_a_reading_is_seen(states: Sequence[GpuState | None], times: int) -> None:
    sightings = Sightings()
    sightings.look(reading(GpuState.READY))
    expected, last = 0, GpuState.READY
    for state in states:
        for _ in range(times):
            sightings.look(reading(state))
        now = GpuState.LOST if state is None else state
        expected += now is GpuState.LOST and last is not GpuState.LOST
        last = now
    assert sightings.of(ADDRESS).losses == expected
    assert sightings.of(str(gpu(1).address)) == Sightings().of(ADDRESS), "the other GPU was there all the time"


@given(st.lists(STATES, min_size=1, max_size=6))
def test_a_gpu_is_as_it_was_exactly_where_every_reading_found_it_ready(states: Sequence[GpuState | None]) -> None:
    sightings = Sightings()
    sightings.look(reading(GpuState.READY))
    before = sightings.of(ADDRESS)
    for state in states:
        sightings.look(reading(state))
    assert (sightings.of(ADDRESS) == before) == all(state is GpuState.READY for state in states)


def test_a_gpu_that_was_never_seen_and_one_that_a_reading_may_lack_are_not_lost() -> None:
    sightings = Sightings()
    sightings.look(reading(None))
    sightings.look(reading(GpuState.READY))
    sightings.look(reading(None, gpus_known=False))
    assert sightings.of(ADDRESS).losses == 0


def test_another_version_of_the_driver_takes_every_gpu_and_one_that_is_not_told_none() -> None:
    sightings = Sightings()
    for version in ("580.1", None, "580.1"):
        sightings.look(reading(GpuState.READY, version))
    assert sightings.of(ADDRESS).losses == 0
    sightings.look(reading(GpuState.READY, "590.2"))
    assert [sightings.of(str(gpu(index).address)).losses for index in (0, 1)] == [1, 1]


def test_a_session_that_begins_anew_makes_what_is_remembered_doubtful_and_loses_nothing() -> None:
    sightings = Sightings()
    before = sightings.of(ADDRESS)
    assert sightings.rest(1.0)
    sightings.go_on()
    after = sightings.of(ADDRESS)
    assert after.losses == before.losses
    assert after != before


@pytest.mark.parametrize("away", [True, False])
def test_a_driver_that_is_bound_anew_is_seen_whether_or_not_somebody_looked_meanwhile(
    tmp_path: Path, away: bool
) -> None:
    device = tmp_path / "bus/pci/devices" / ADDRESS
    device.mkdir(parents=True)
    link = device / "driver"
    link.symlink_to("../../drivers/nvidia")
    sightings = Sightings(driver_link(tmp_path))
    before = sightings.of(ADDRESS)
    assert sightings.of(ADDRESS) == before
    fresh = device / "fresh"
    fresh.symlink_to("../../drivers/nvidia")  # while the other one stands, so that their numbers differ
    link.unlink()
    if away:
        assert sightings.of(ADDRESS) == before, "no driver is bound: another one will show it"
    fresh.rename(link)
    assert sightings.of(ADDRESS).losses == before.losses + 1
    assert sightings.of(ADDRESS).losses == before.losses + 1


def test_a_machine_without_the_tree_says_nothing(tmp_path: Path) -> None:
    sightings = Sightings(driver_link(tmp_path))
    assert sightings.of(ADDRESS) == sightings.of(ADDRESS) == Sightings().of(ADDRESS)
