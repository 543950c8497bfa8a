"""Slices by pool: the newest generation, and whether all of it is there. What both autoscalers begin with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

JSON: TypeAlias = dict[str, Any]
PoolKey: TypeAlias = tuple[str, str]
"""(driver, pool)."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """The newest generation of a pool, as far as it was given."""

    driver: str
    name: str
    generation: int
    slices: tuple[JSON, ...]
    expected: int
    """``resourceSliceCount`` of its first slice, as the autoscalers take it."""
    obsolete: tuple[JSON, ...] = ()
    """Slices of older generations."""

    @property
    def complete(self) -> bool:
        """Exactly as many slices as it says."""
        return len(self.slices) == self.expected

    @property
    def devices(self) -> tuple[JSON, ...]:
        """Of all slices, in their order."""
        return tuple(device for body in self.slices for device in body["spec"].get("devices") or ())

    @property
    def counter_sets(self) -> tuple[JSON, ...]:
        """Of all slices, in their order."""
        return tuple(entry for body in self.slices for entry in body["spec"].get("sharedCounters") or ())


def pools(slices: Iterable[JSON]) -> dict[PoolKey, PoolView]:
    """ResourceSlices (v1) by driver and pool; slices of one generation keep the order in which they were given."""
    groups: dict[PoolKey, list[JSON]] = {}
    for body in slices:
        groups.setdefault((body["spec"]["driver"], body["spec"]["pool"]["name"]), []).append(body)
    views = {}
    for (driver, name), members in groups.items():
        newest = max(_generation(body) for body in members)
        current = tuple(body for body in members if _generation(body) == newest)
        older = tuple(body for body in members if _generation(body) != newest)
        expected = current[0]["spec"]["pool"]["resourceSliceCount"]
        views[driver, name] = PoolView(driver, name, newest, current, expected, older)
    return views


def complete_pools(slices: Iterable[JSON]) -> Counter[str]:
    """Driver -> number of complete pools (Cluster Autoscaler's ``getCompleteResourcePools``, dra_processor.go)."""
    return Counter(view.driver for view in pools(slices).values() if view.complete)


def _generation(body: JSON) -> int:
    return int(body["spec"]["pool"].get("generation") or 0)
