"""What the partitions of a GPU share out, as counters; and which partitions are in each other's way.

Every memory slice is a counter of its own, because two partitions must not lie on one slice; the engines are pools, as
large as the largest profile takes (NVML states no pools). Names are those of NVIDIA's driver. The API takes 32 counters
a set and two sets a device (resource.k8s.io/v1).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, TypeAlias

import msgspec

from driver.model import ENGINES, Gpu, MigPartition, MigProfile, Placement
from driver.publish.values import quantity

JSON: TypeAlias = dict[str, Any]
Profiles: TypeAlias = tuple[MigProfile, ...]

MAX_SETS_PER_SLICE: Final = 8
WHOLE: Final = "gpus"
"""The one counter of a GPU that is not divided."""
_MEMORY: Final = "memory"


class Part(msgspec.Struct, frozen=True):
    """A partition that can be made."""

    profile: MigProfile
    placement: Placement
    blocks: int
    """How many other partitions cannot be made while it stands."""
    consumes: JSON
    """Counter name -> ``{"value": quantity}``."""


def set_name(gpu: Gpu) -> str:
    """The name of a GPU's counter set."""
    return f"{gpu.name}-counter-set"


def counter_set(gpu: Gpu, *, divided: bool) -> JSON:
    """The counter set of a GPU: all that can be divided, or one whole."""
    counters = totals(gpu.mig_profiles) if divided else {WHOLE: _value(1)}
    return {"name": set_name(gpu), "counters": counters}


@lru_cache(maxsize=64)
def totals(profiles: Profiles) -> JSON:
    """Counter name -> ``{"value": quantity}`` of a whole board; nothing of what it has nothing of.

    Slices are sized from the union of all placements (8 on most boards, 4 and 12 on others). Memory and
    multiprocessors go with the slices; their pools are what the largest profile has, or several of a smaller one
    together, so that they never refuse what the slices allow.
    """
    slices = max(placement.end for profile in profiles for placement in profile.placements)
    amounts = {_counter(engine): max(getattr(profile, engine) for profile in profiles) for engine in ENGINES[1:]}
    for name, field in ((_counter(ENGINES[0]), ENGINES[0]), (_MEMORY, "memory_bytes")):
        amounts[name] = max(getattr(one, field) * max(one.instance_count, 1) for one in profiles)
    counters = {name: _value(amount) for name, amount in amounts.items() if amount}
    counters.update({f"memory-slice-{number}": _value(1) for number in range(slices)})
    return counters


@lru_cache(maxsize=64)
def parts(profiles: Profiles) -> tuple[Part, ...]:
    """Every partition that a board can be divided into, those that block the fewest others first.

    The scheduler takes the first device that fits, so this order decides how long room for the large ones is left.
    """
    every = [(profile, placement) for profile in profiles for placement in profile.placements]
    pools = {engine: max(getattr(profile, engine) for profile in profiles) for engine in ENGINES[1:]}
    made = [
        Part(
            profile,
            placement,
            sum(other != (profile, placement) and _collide((profile, placement), other, pools) for other in every),
            consumption(profile, placement),
        )
        for profile, placement in every
    ]
    made.sort(key=lambda part: (part.blocks, -part.placement.start, part.profile.profile_id))
    return tuple(made)


def consumption(profile: MigProfile, placement: Placement) -> JSON:
    """What a partition takes: counter name -> ``{"value": quantity}``; nothing of what it takes nothing of."""
    amounts = {_counter(engine): getattr(profile, engine) for engine in ENGINES}
    amounts[_MEMORY] = profile.memory_bytes
    counters = {name: _value(amount) for name, amount in amounts.items() if amount}
    counters.update(_slices(placement))
    return counters


def fixed_consumption(partition: MigPartition) -> JSON:
    """What a partition takes that stands already: its own slices, or its multiprocessors where it shares these with
    other compute instances. More need not be counted on a GPU of which nothing else is offered."""
    if partition.compute is None:
        return _slices(partition.placement)
    return {_counter(ENGINES[0]): _value(partition.multiprocessors or 1)}


def _collide(one: tuple[MigProfile, Placement], other: tuple[MigProfile, Placement], pools: Mapping[str, int]) -> bool:
    if one[1].overlaps(other[1]):
        return True
    return any(getattr(one[0], engine) + getattr(other[0], engine) > pool for engine, pool in pools.items())


def _slices(placement: Placement) -> JSON:
    return {f"memory-slice-{number}": _value(1) for number in range(placement.start, placement.end)}


def _counter(field: str) -> str:
    return field.replace("_", "-")


@lru_cache(maxsize=256)
def _value(amount: int) -> JSON:
    return {"value": quantity(amount)}
