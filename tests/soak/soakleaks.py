"""What an agent holds, measured now and then over its life, and whether that grows without an end.

A pool or a cache grows until it is full, at the beginning of a life; a leak grows at the end of it as at its beginning.
So the first half of a life says nothing, and what has grown in its second half must have grown in both halves of that.
Each figure is taken at the same moment of a node's life (no claims, nothing wrong), which leaves little beside the
trend, and the trend is the median of the slopes between all pairs of samples (Theil and Sen), which a few that are far
off do not move. What swings between two states has a trend by chance now and then: so each of the last samples must be
above each of the first, too.

The memory is that of the heap in use, not the process's resident size: what malloc keeps for later, in an arena for
each of many threads, is megabytes that come and go.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

MIN_EVENTS = 800
"""Events of a life below which nothing is said: in the second half of fewer the caches are not full yet."""
MIN_SAMPLES = 8
"""Of the second half."""
LEAKS = {"heap_kib": 0.5, "descriptors": 0.01, "threads": 0.01}
"""How much more a life may hold with each event: half a KiB, and one descriptor or thread in a hundred events."""


@dataclass(frozen=True)
class Figures:
    """What a process holds."""

    descriptors: int
    threads: int
    rss_mib: float
    heap_kib: float | None = None
    """In use; None where it was not asked for."""

    def __str__(self) -> str:
        heap = f" ({self.heap_kib:.0f} KiB in use)" if self.heap_kib is not None else ""
        return f"{self.descriptors} descriptors, {self.threads} threads, {self.rss_mib:.1f} MiB{heap}"


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    event: int
    """How many the agent had lived through."""
    figures: Figures


def leaks(samples: Sequence[Sample]) -> list[str]:
    """What grows without an end in a life, in words; too short a life says nothing."""
    if not samples or samples[-1].event < MIN_EVENTS:
        return []
    second = [one for one in samples if one.event >= samples[-1].event / 2]
    if len(second) < MIN_SAMPLES:
        return []
    return [told for name, limit in LEAKS.items() if (told := _leak(name, limit, second)) is not None]


def _leak(name: str, limit: float, samples: Sequence[Sample]) -> str | None:
    points = [(one.event, value) for one in samples if (value := getattr(one.figures, name)) is not None]
    half = len(points) // 2
    if half < MIN_SAMPLES // 2:
        return None
    slopes = [slope(points), slope(points[: half + 1]), slope(points[half:])]
    third = max(1, len(points) // 3)
    apart = min(value for _at, value in points[-third:]) > max(value for _at, value in points[:third])
    if min(slopes) < limit or not apart:
        return None
    each = " and ".join(f"{one:.2f}" for one in slopes[1:])
    first, last = points[0], points[-1]
    return (
        f"{name} grows without an end: {first[1]:.0f} after {first[0]} events and {last[1]:.0f} after {last[0]}, "
        f"which is {slopes[0]:.2f} with each event ({each} in the halves); more than {limit} is a leak"
    )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between all pairs of points that differ in x; 0 without any."""
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.combinations(points, 2) if a[0] != b[0]]
    return statistics.median(slopes) if slopes else 0.0


def largest(found: Sequence[Figures]) -> Figures:
    """The largest of each."""

    def most(value: Callable[[Figures], float]) -> float:
        return max(map(value, found))

    return Figures(
        int(most(lambda one: one.descriptors)),
        int(most(lambda one: one.threads)),
        most(lambda one: one.rss_mib),
        max((one.heap_kib for one in found if one.heap_kib is not None), default=None),
    )
