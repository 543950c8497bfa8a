"""The resource pools of a node: newest generation, complete or not, valid or not, and their counters."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from .features import Rules
from .model import CounterID, Device, DeviceID, PoolID, Slice
from .nodes import Node, node_matches


class Pool:
    """One pool as one node sees it."""

    __slots__ = ("counters", "elsewhere", "id", "incomplete", "invalid", "slices")

    def __init__(self, pool_id: PoolID) -> None:
        self.id = pool_id
        self.incomplete = False
        self.invalid = ""
        """Why the pool is invalid; empty for a valid one."""
        self.slices: list[Slice] = []
        """Slices with devices for this node, in the order of the search."""
        self.elsewhere: list[Slice] = []
        """Slices with devices of other nodes: they use counters too."""
        self.counters: dict[CounterID, int] = {}

    @property
    def usable(self) -> bool:
        """Whether devices may be taken from it."""
        return not self.incomplete and not self.invalid

    @property
    def label(self) -> str:
        """``driver/pool``."""
        return f"{self.id[0]}/{self.id[1]}"

    def available(self, taken: AbstractSet[DeviceID]) -> dict[CounterID, int]:
        """What the allocated devices leave of the counters; negative where they use too much."""
        left = dict(self.counters)
        for each in (*self.slices, *self.elsewhere):
            for device in each.devices:
                if device.consumes and device.id in taken:
                    _subtract(left, device)
        return left


def _subtract(left: dict[CounterID, int], device: Device) -> None:
    for consumption in device.consumes:
        for counter, nanos in consumption.counters:
            if counter in left:
                left[counter] -= nanos


class Inventory:
    """All slices, indexed so that the pools of a node are found without looking at the slices of the others."""

    def __init__(self, slices: Sequence[Slice], rules: Rules) -> None:
        self._rules = rules
        self._local: dict[str, list[Slice]] = {}
        self._shared: list[Slice] = []
        self._everywhere: dict[PoolID, list[Slice]] = {}
        self._by_pool: dict[PoolID, list[Slice]] = {}
        self._elsewhere: list[Pool] | None = None
        for each in slices:
            self._by_pool.setdefault(each.pool_id, []).append(each)
            if not each.node_name:
                self._shared.append(each)
            elif rules.counter_slices_everywhere and each.counter_sets:
                self._everywhere.setdefault(each.pool_id, []).append(each)
            else:
                self._local.setdefault(each.node_name, []).append(each)

    def pools(self, where: Node) -> list[Pool]:
        """The pools with something for this node, in the order of the search.

        Raises:
            SelectorError: a slice or device with a node selector that is not valid.
        """
        local = self._local.get(where.name, [])
        touched = {each.pool_id for each in (*local, *self._shared)}
        shared = [*self._shared, *(each for pool in touched for each in self._everywhere.get(pool, ()))]
        shared.sort(key=lambda each: each.position)
        candidates = [*local, *shared]
        if not self._rules.sorts:
            candidates.sort(key=lambda each: each.position)
        pools = self._gathered([each for each in candidates if not self._hidden(each) and self._relevant(each, where)])
        pools += [pool for pool in self._counters_elsewhere() if pool.id not in touched]
        pools.sort(key=lambda pool: pool.id if self._rules.sorts else (pool.label, ""))
        pools.sort(key=self._binds)
        return pools

    def _gathered(self, relevant: list[Slice]) -> list[Pool]:
        late: list[Slice] = []
        found: dict[PoolID, list[Slice]] = {}
        for each in relevant:
            if self._after_the_others(each):
                late.append(each)
            else:
                _join(found, each)
        for each in late:
            _join(found, each)
        return [pool for pool_id, members in found.items() if (pool := self._pool(pool_id, members)) is not None]

    def _counters_elsewhere(self) -> list[Pool]:
        """The pools of other nodes that a node sees only by their counters, and that are unfinished or invalid.

        They have no devices to give, so the sound ones change nothing; the others change what ``All`` and a failed
        search say. They are the same for every node and are looked at once.
        """
        if self._elsewhere is None:
            counting = [each for members in self._everywhere.values() for each in members if not self._hidden(each)]
            self._elsewhere = [pool for pool in self._gathered(counting) if not pool.usable]
        return self._elsewhere

    def _hidden(self, each: Slice) -> bool:
        features = self._rules.features
        if not features.partitionable_devices and (
            each.has_per_device or (bool(each.counter_sets) and self._rules.pools_span_slices)
        ):
            return True
        return self._rules.release >= 37 and not features.compatibility_groups and each.uses_groups()

    def _relevant(self, each: Slice, where: Node) -> bool:
        if self._rules.counter_slices_everywhere and each.counter_sets:
            return True
        if each.node_name or each.all_nodes or each.node_selector is not None:
            return node_matches(where, each.node_name, each.all_nodes, each.node_selector)
        if each.per_device:
            return any(
                node_matches(where, device.node_name, device.all_nodes, device.node_selector) for device in each.devices
            )
        return False

    def _after_the_others(self, each: Slice) -> bool:
        """In 1.34 slices with binding conditions join their pool last."""
        late = self._rules.release == 34 and self._rules.variant == "experimental"
        return late and any(device.binding is not None for device in each.devices)

    def _binds(self, pool: Pool) -> bool:
        if self._rules.variant == "stable" or (self._rules.release == 34 and self._rules.variant == "incubating"):
            return False
        return any(device.binding is not None for each in pool.slices for device in each.devices)

    def _pool(self, pool_id: PoolID, members: list[Slice]) -> Pool | None:
        if not self._rules.pools_span_slices:
            return _pool_of_its_slices(pool_id, members)
        count, generation = members[0].count, members[0].generation
        everything: list[Slice] | None = None
        if len(members) != count:
            others = self._by_pool[pool_id]
            if any(each.generation > generation for each in others):
                return None
            everything = [each for each in others if each.generation == generation]
            if self._rules.release >= 37 and not self._rules.features.compatibility_groups:
                everything = [each for each in everything if not each.uses_groups()]
            if len(everything) != count:
                pool = Pool(pool_id)
                pool.incomplete = True
                return pool
        return self._built(pool_id, members, everything or [])

    def _built(self, pool_id: PoolID, members: list[Slice], everything: list[Slice]) -> Pool:
        pool = Pool(pool_id)
        ordered = sorted(members, key=lambda each: each.name) if self._rules.sorts else members
        partitionable = self._rules.features.partitionable_devices
        counting = [each for each in ordered if partitionable and each.counter_sets]
        devices = [each for each in ordered if not (partitionable and each.counter_sets)]
        elsewhere: list[Slice] = []
        # Before 1.37, and in stable, counters are looked for only among the slices that belong to the node.
        late_counters = self._rules.release >= 37 and self._rules.variant != "stable"
        if len(members) < len(everything):
            here = {each.name for each in members}
            for each in everything:
                if each.name in here:
                    continue
                if late_counters and partitionable and each.counter_sets:
                    counting.append(each)
                else:
                    elsewhere.append(each)
        pool.invalid = _duplicate_device(devices)
        if pool.invalid:
            return pool
        pool.slices = devices
        if not partitionable:
            return pool
        pool.invalid = _count(pool, counting) or _dangling(pool, [*ordered, *elsewhere])
        if pool.invalid:
            pool.slices = []
            return pool
        pool.elsewhere = elsewhere
        return pool


def _join(found: dict[PoolID, list[Slice]], each: Slice) -> None:
    members = found.get(each.pool_id)
    if members is None or each.generation > members[0].generation:
        found[each.pool_id] = [each]
    elif each.generation == members[0].generation:
        members.append(each)


def _pool_of_its_slices(pool_id: PoolID, members: list[Slice]) -> Pool:
    pool = Pool(pool_id)
    pool.slices = members
    pool.incomplete = len(members) != members[0].count
    pool.invalid = _duplicate_device(members)
    return pool


def _duplicate_device(slices: list[Slice]) -> str:
    seen: set[str] = set()
    for each in slices:
        for device in each.devices:
            if device.name in seen:
                return f"duplicate device name {device.name}"
            seen.add(device.name)
    return ""


def _count(pool: Pool, counting: list[Slice]) -> str:
    seen: set[str] = set()
    for each in counting:
        for name, counters in each.counter_sets:
            if name in seen:
                return f"duplicate counter set name {name}"
            seen.add(name)
            pool.counters |= {(name, counter): nanos for counter, nanos in counters.items()}
    return ""


def _dangling(pool: Pool, slices: list[Slice]) -> str:
    sets = {name for name, _ in pool.counters}
    for each in slices:
        for device in each.devices:
            for consumption in device.consumes:
                if consumption.counter_set not in sets:
                    return f"counter set {consumption.counter_set} not found"
                for counter, _ in consumption.counters:
                    if counter not in pool.counters:
                        return f"counter {counter[1]} not found in counter set {counter[0]}"
    return ""
