"""Counters of divided boards: what they are sized from, what partitions take, and who is in whose way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import pytest

from driver.model import Gpu, MigProfile, Placement
from driver.publish.counters import Profiles, consumption, counter_set, parts, set_name, totals
from kubeletplugin.quantity import parse_quantity
from native.mock.migtables import MigBoard, boards

Make = Callable[..., Gpu]


def profiles_of(board: MigBoard) -> Profiles:
    """A board of the mock in the model's words."""
    return tuple(
        MigProfile(
            profile_id=one.id,
            name=one.name,
            placements=tuple(Placement(start, one.size) for start in one.starts),
            instance_count=one.instances,
            memory_bytes=one.memory_mib << 20,
            multiprocessors=one.multiprocessors,
            copy_engines=one.copy,
            decoders=one.decoder,
            encoders=one.encoder,
            jpeg_engines=one.jpeg,
            ofa_engines=one.ofa,
            compute_slices=one.slices,
        )
        for one in sorted(board.profiles, key=lambda one: one.id)
    )


BOARDS = {name: profiles_of(board) for name, board in boards().items()}


def number(value: dict[str, str]) -> int:
    return int(parse_quantity(value["value"]).value)


@pytest.mark.parametrize("board", BOARDS)
def test_slices_are_counted_from_the_union_of_placements(board: str) -> None:
    slices = [name for name in totals(BOARDS[board]) if name.startswith("memory-slice-")]
    assert len(slices) == boards()[board].memory_slices


@pytest.mark.parametrize("board", BOARDS)
def test_a_board_has_as_many_engines_as_its_largest_profile_takes(board: str) -> None:
    pools = totals(BOARDS[board])
    for engine in ("copy-engines", "decoders", "encoders", "jpeg-engines", "ofa-engines"):
        field = engine.replace("-", "_")
        most = max(getattr(profile, field) for profile in BOARDS[board])
        assert number(pools.get(engine, {"value": "0"})) == most
        assert (engine in pools) == (most > 0)


@pytest.mark.parametrize("board", BOARDS)
def test_the_names_and_sizes_are_within_what_the_api_takes(board: str) -> None:
    pools = totals(BOARDS[board])
    assert len(pools) <= 32
    for part in parts(BOARDS[board]):
        assert set(part.consumes) <= set(pools)
        assert all(0 < number(part.consumes[name]) <= number(pools[name]) for name in part.consumes)


@pytest.mark.parametrize("board", BOARDS)
def test_every_placement_of_every_profile_is_a_part_once(board: str) -> None:
    wanted = {(profile.profile_id, place) for profile in BOARDS[board] for place in profile.placements}
    made = [(part.profile.profile_id, part.placement) for part in parts(BOARDS[board])]
    assert len(made) == len(wanted)
    assert set(made) == wanted


@pytest.mark.parametrize("board", BOARDS)
def test_parts_that_block_the_fewest_others_come_first(board: str) -> None:
    order = [part.blocks for part in parts(BOARDS[board])]
    assert order == sorted(order)


@pytest.mark.parametrize("board", BOARDS)
def test_a_part_blocks_those_beside_which_its_counters_do_not_suffice(board: str) -> None:
    """Of two partitions alone; memory and multiprocessors never forbid what slices and engines allow."""
    pools = totals(BOARDS[board])
    every = parts(BOARDS[board])
    blocked = dict.fromkeys(range(len(every)), 0)
    for one, other in combinations(range(len(every)), 2):
        a, b = every[one].consumes, every[other].consumes
        if any(number(a[name]) + number(b.get(name, {"value": "0"})) > number(pools[name]) for name in a):
            blocked[one] += 1
            blocked[other] += 1
    assert [blocked[position] for position in range(len(every))] == [part.blocks for part in every]


def test_on_an_a100_the_order_is_descending_within_a_profile() -> None:
    """``1g`` at slice 6 kills 7g and one 3g; at slice 0 it kills 4g as well."""
    order = [part for part in parts(BOARDS["A100-SXM4-40GB"]) if part.profile.name == "1g.5gb"]
    assert [part.placement.start for part in order] == [6, 5, 4, 3, 2, 1, 0]


def test_a_part_takes_nothing_of_what_it_has_nothing_of() -> None:
    (small,) = [profile for profile in BOARDS["A100-SXM4-40GB"] if profile.name == "1g.5gb"]
    assert consumption(small, Placement(6, 1)) == {
        "multiprocessors": {"value": "14"},
        "copy-engines": {"value": "1"},
        "memory": {"value": "4864Mi"},
        "memory-slice-6": {"value": "1"},
    }


def test_a_gpu_that_is_not_divided_has_one_counter(gpu: Make) -> None:
    whole = gpu(0)
    assert counter_set(whole, divided=False) == {"name": set_name(whole), "counters": {"gpus": {"value": "1"}}}
