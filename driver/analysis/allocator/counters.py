"""Shared counters and compatibility groups while a search takes and gives back devices that draw on them."""

from __future__ import annotations

from typing import Final

from .claims import Allocated
from .features import Rules
from .model import CounterID, Device
from .pools import Pool

Groups = frozenset[str]
Joined = tuple[str, Groups | None]
"""A counter set and the groups it had before a device joined."""

_ABSENT: Final = frozenset(("\0absent",))
_NOTHING: Final = frozenset(("\0nothing",))


class Counters:
    """What one attempt takes of the counters of the pools."""

    def __init__(self, rules: Rules, allocated: Allocated) -> None:
        self._rules = rules
        self._allocated = allocated
        self._available: dict[object, tuple[dict[CounterID, int], bool]] = {}
        self._consumed: dict[object, dict[CounterID, int]] = {}
        self._groups: dict[object, dict[str, Groups | None]] = {}

    def take(self, pool: Pool, device: Device) -> bool:
        """Take the device's counters if the pool has enough of all; whether they are taken."""
        key = self._key(pool, device)
        left, overdrawn = self._left(key, pool, device)
        taken = self._consumed.setdefault(key, {})
        enough = not overdrawn
        for consumption in device.consumes:
            for counter, nanos in consumption.counters:
                taken[counter] = taken.get(counter, 0) + nanos
                enough = enough and (counter not in left or left[counter] >= taken[counter])
        if not enough:
            self.give(pool, device)
        return enough

    def give(self, pool: Pool, device: Device) -> None:
        """Give the device's counters back."""
        taken = self._consumed[self._key(pool, device)]
        for consumption in device.consumes:
            for counter, nanos in consumption.counters:
                taken[counter] -= nanos

    def _key(self, pool: Pool, device: Device) -> object:
        if not self._rules.pools_span_slices:
            return device.slice.name
        return pool.id[1] if self._rules.counters_by_pool_name else pool.id

    def _left(self, key: object, pool: Pool, device: Device) -> tuple[dict[CounterID, int], bool]:
        """What the allocated devices leave, and whether they use more than there is: then nobody gets any more."""
        known = self._available.get(key)
        if known is None:
            if self._rules.pools_span_slices:
                left = pool.available(
                    self._allocated.devices if self._rules.variant == "stable" else self._allocated.everything
                )
            else:
                left = _of_its_slice(pool, device).available(self._allocated.devices)
            known = left, any(nanos < 0 for nanos in left.values())
            self._available[key] = known
        return known

    def join(self, pool: Pool, device: Device) -> list[Joined] | None:
        """Let the device join the groups of its counter sets; None if it may not, else what ``leave`` needs.

        Devices on one counter set must have a compatibility group in common, or none of them any.
        """
        before: list[Joined] = []
        if not self._rules.features.compatibility_groups:
            return before
        running = self._groups.setdefault(pool.id, {})
        for consumption in device.consumes:
            name, mine = consumption.counter_set, consumption.groups
            known = running[name] if name in running else self._groups_before(pool, name)
            if known is not None and (bool(known) != bool(mine) or (mine and not known & mine)):
                self.leave(pool, before)
                return None
            before.append((name, running.get(name, _ABSENT)))
            running[name] = mine if known is None else _folded(known, mine)
        return before

    def leave(self, pool: Pool, before: list[Joined]) -> None:
        """Undo ``join``."""
        running = self._groups[pool.id]
        for name, groups in reversed(before):
            if groups is _ABSENT:
                running.pop(name, None)
            else:
                running[name] = groups

    def _groups_before(self, pool: Pool, counter_set: str) -> Groups | None:
        known: Groups | None = None
        for each in (*pool.slices, *pool.elsewhere):
            for device in each.devices:
                for consumption in device.consumes if device.id in self._allocated.everything else ():
                    if consumption.counter_set == counter_set:
                        known = consumption.groups if known is None else _folded(known, consumption.groups)
        return known


def _of_its_slice(pool: Pool, device: Device) -> Pool:
    """The device's slice as a pool of its own, as 1.34 counts."""
    single = Pool(pool.id)
    single.slices = [device.slice]
    for name, counters in device.slice.counter_sets:
        single.counters |= {(name, counter): nanos for counter, nanos in counters.items()}
    return single


def _folded(known: Groups, mine: Groups) -> Groups:
    """The groups in common; devices without any leave them as they are, and nothing in common admits nobody."""
    return known if not known or not mine else (known & mine) or _NOTHING
