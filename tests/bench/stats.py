"""Percentiles and spreads of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


def percentile(values: Sequence[float], rank: float) -> float:
    """The nearest-rank percentile: the smallest value that at least ``rank`` percent of all do not exceed.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values, no percentile")
    position = -(-len(values) * rank // 100)
    return sorted(values)[max(0, min(len(values), int(position)) - 1)]


def latencies(name: str, seconds: Sequence[float]) -> dict[str, float]:
    """``<name>_p50_ms``, ``_p95_ms`` and ``_p99_ms`` of durations in seconds."""
    return {f"{name}_p{rank}_ms": percentile(seconds, rank) * 1e3 for rank in (50, 95, 99)}


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of one metric over the rounds, and its extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ``statistics.StatisticsError`` where there are no values."""
        return cls(statistics.median(values), min(values), max(values))


def spreads(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """Metric -> its spread over those rounds that have it."""
    names = dict.fromkeys(name for found in rounds for name in found)
    return {name: Spread.of([found[name] for found in rounds if name in found]) for name in names}
