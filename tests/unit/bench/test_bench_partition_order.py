"""The simulation of the order of devices, beside a first fit over the same slices that knows no allocator."""

from __future__ import annotations

import heapq
import itertools

import pytest

from tests.bench import partition_order
from tests.support.countered import Counted

CLAIMS = 400
ALIKE = partition_order.MIXES["all profiles alike"]


def first_fit(board: str, ascending: bool) -> list[str | None]:
    """The device of each claim by counting counters."""
    documents = partition_order.slices(board, ascending=ascending)
    counted = Counted.of_slices(documents)
    found: list[str | None] = []
    ends: list[tuple[float, str]] = []
    coming = partition_order.arrivals(partition_order.profiles(documents), ALIKE, 0.8)
    for arrival in itertools.islice(coming, CLAIMS):
        while ends and ends[0][0] <= arrival.time:
            counted.give_back(heapq.heappop(ends)[1])
        device = counted.first(profile=arrival.profile)
        found.append(device)
        if device is not None:
            counted.take(device)
            heapq.heappush(ends, (arrival.time + arrival.lifetime, device))
    return found


@pytest.mark.parametrize("ascending", [False, True], ids=["ours", "by-name"])
@pytest.mark.parametrize("board", ["A100-SXM4-40GB", "H200-141GB"])
def test_the_allocator_places_as_a_plain_first_fit(board: str, ascending: bool) -> None:
    documents = partition_order.slices(board, ascending=ascending)
    coming = partition_order.arrivals(partition_order.profiles(documents), ALIKE, 0.8)
    placed = list(partition_order.placed(documents, coming, CLAIMS))
    assert placed == first_fit(board, ascending)
    assert None in placed


def test_the_order_of_the_pool_loses_fewer_claims() -> None:
    ours, theirs = (first_fit(partition_order.BOARD, ascending).count(None) for ascending in (False, True))
    assert ours < theirs


def test_only_plain_profiles_are_asked_for_the_smallest_first() -> None:
    assert list(partition_order.profiles(partition_order.slices("H200-141GB"))) == [
        "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb",
    ]  # fmt: skip
