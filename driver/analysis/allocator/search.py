"""The search itself: request after request, device after device, with everything that a choice changes undone again."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..quantity import Quantity
from .capacity import CapacityError, consumed, fits
from .claims import RESULTS_MAX, Allocated, Claim, Request
from .constraints import Attribute, Lookup, Tracker, published
from .counters import Counters, Joined
from .features import Rules
from .model import Device, DeviceID
from .nodes import Node, SelectorError
from .pools import Pool
from .selection import Selection, SelectionError
from .taints import repels


class AttemptError(Exception):
    """The attempt ends: upstream gives up for all nodes, or for this one where ``kind`` is ``node``."""

    def __init__(self, message: str, kind: str = "fatal") -> None:
        self.kind = kind
        super().__init__(message)


class ClaimFullError(Exception):
    """A request asks for more devices than the claim has room for; an alternative may ask for fewer."""


@dataclass(slots=True)
class Chosen:
    """One device of the result."""

    request: Request
    device: Device
    share: bool
    capacity: dict[str, Quantity]


@dataclass(slots=True)
class Wish:
    """One request or alternative, checked: the number of devices, and for ``All`` which."""

    request: Request
    count: int
    everything: list[tuple[Pool, Device]] | None = None


@dataclass(slots=True)
class Undo:
    """What choosing a device changed."""

    request: Request
    device: Device
    claim: int
    constraints: int = 0
    counters: bool = False
    marked: bool = False
    capacity: dict[str, Quantity] | None = None
    capacity_before: bool = False
    groups: list[Joined] = field(default_factory=list)


class Search:
    """One attempt on one node."""

    def __init__(
        self,
        rules: Rules,
        where: Node,
        pools: list[Pool],
        claims: list[Claim],
        wishes: list[list[list[Wish]]],
        trackers: list[list[Tracker]],
        allocated: Allocated,
        selection: Selection,
        limit: int,
    ) -> None:
        self._rules, self._where, self._pools, self._claims = rules, where, pools, claims
        self._wishes, self._trackers, self._allocated, self._selection = wishes, trackers, allocated, selection
        self._limit = limit
        self.results: list[list[Chosen]] = [[] for _ in claims]
        self.selected: dict[tuple[int, int], int] = {}
        """Claim and request -> the alternative that was taken, where there are any."""
        self.calls = 0
        self._allocating: dict[DeviceID, set[int]] = {}
        self._capacity: dict[DeviceID, dict[str, int]] = {}
        self._counters = Counters(rules, allocated)

    def run(self) -> bool:
        """Whether everything could be allocated; ``results`` then holds the devices.

        Raises:
            AttemptError: the attempt ends without an answer for this node.
        """
        try:
            return self._claim(0)
        except RecursionError as error:
            raise AttemptError("the claims ask for more devices than this port can follow", "unknown") from error
        except ClaimFullError as error:
            raise AttemptError("allocation max size exceeded") from error
        except SelectionError as error:
            raise AttemptError(str(error)) from error
        except SelectorError as error:
            raise AttemptError(f"failed to parse node selector: {error}") from error

    def _count(self) -> None:
        self.calls += 1
        if self.calls > self._limit:
            raise AttemptError(f"filter operation aborted: no answer after {self._limit} steps", "timeout")

    def _claim(self, claim: int) -> bool:
        self._count()
        if claim >= len(self._claims):
            return True
        return self._request(claim, 0, counted=True)

    def _request(self, claim: int, request: int, *, counted: bool = False) -> bool:
        """Try the request with this number; past the last one go on with the next claim."""
        if not counted:
            self._count()
        if request >= len(self._claims[claim].requests):
            try:
                return self._claim(claim + 1)
            except ClaimFullError:
                return False
        if not self._claims[claim].requests[request][1]:
            return self._device(claim, request, 0, 0, (0, 0, 0), counted=True)
        return self._alternatives(claim, request)

    def _alternatives(self, claim: int, request: int) -> bool:
        exceeded = True
        for alternative in range(len(self._wishes[claim][request])):
            try:
                if self._device(claim, request, alternative, 0, (0, 0, 0)):
                    self.selected[claim, request] = alternative
                    return True
            except ClaimFullError:
                continue
            exceeded = False
        if exceeded:
            raise ClaimFullError
        return False

    def _device(
        self,
        claim: int,
        request: int,
        alternative: int,
        index: int,
        start: tuple[int, int, int],
        *,
        counted: bool = False,
    ) -> bool:
        if not counted:
            self._count()
        wish = self._wishes[claim][request][alternative]
        if wish.everything is not None and not wish.everything:
            return False
        if index >= wish.count:
            return self._request(claim, request + 1)
        if wish.count - index > RESULTS_MAX - len(self.results[claim]):
            if self._rules.release == 34 and self._rules.variant == "stable":
                return False
            raise ClaimFullError
        if wish.everything is not None:
            return self._next_of_all(claim, request, alternative, index, wish)
        return self._any_device(claim, request, alternative, index, start, wish)

    def _next_of_all(self, claim: int, request: int, alternative: int, index: int, wish: Wish) -> bool:
        assert wish.everything is not None
        pool, device = wish.everything[index]
        undo = self._choose(claim, wish.request, pool, device, index, must=True)
        if undo is None:
            return False
        # In 1.34 the number of the alternative is lost here, and the first one goes on.
        following = 0 if self._rules.release == 34 else alternative
        return self._onward(pool, undo, claim, request, following, index + 1, (0, 0, 0))

    def _onward(
        self,
        pool: Pool,
        undo: Undo,
        claim: int,
        request: int,
        alternative: int,
        index: int,
        start: tuple[int, int, int],
    ) -> bool:
        """Go on with the device just chosen; unless that ends well, it is given back."""
        try:
            if self._device(claim, request, alternative, index, start):
                return True
        except (ClaimFullError, AttemptError):
            self._restore(pool, undo)
            raise
        self._restore(pool, undo)
        return False

    def _any_device(
        self, claim: int, request: int, alternative: int, index: int, start: tuple[int, int, int], wish: Wish
    ) -> bool:
        key = (claim, request, alternative)
        first_pool, first_slice, first_device = start
        for pool_index in range(first_pool, len(self._pools)):
            pool = self._pools[pool_index]
            if self._skip(pool):
                continue
            slices = pool.slices
            for slice_index in range(first_slice if pool_index == first_pool else 0, len(slices)):
                devices = slices[slice_index].devices
                same = pool_index == first_pool and slice_index == first_slice
                for device_index in range(first_device if same else 0, len(devices)):
                    device = devices[device_index]
                    if not self._candidate(claim, key, wish.request, device):
                        continue
                    undo = self._choose(claim, wish.request, pool, device, index, must=False)
                    if undo is None:
                        continue
                    following = (pool_index, slice_index, device_index + 1) if self._rules.combinations else (0, 0, 0)
                    if self._onward(pool, undo, claim, request, alternative, index + 1, following):
                        return True
        return False

    def _skip(self, pool: Pool) -> bool:
        if self._rules.pools_span_slices:
            return not pool.usable
        if pool.invalid:
            raise AttemptError(f"pool {pool.id[1]} is invalid: {pool.invalid}")
        return False

    def _candidate(self, claim: int, key: tuple[int, int, int], request: Request, device: Device) -> bool:
        if request.admin:
            if claim in self._allocating.get(device.id, ()):
                return False
        elif self._in_use(device.id):
            return False
        if not self._selection.selectable(key, request, device, self._where):
            return False
        return not self._rules.consumable or self._fits(claim, request, device)

    def _label(self, claim: int, request: Request) -> str:
        return f"claim {self._claims[claim].key}, request {request.name}"

    def _in_use(self, device: DeviceID) -> bool:
        return device in self._allocated.devices or bool(self._allocating.get(device))

    def _fits(self, claim: int, request: Request, device: Device) -> bool:
        used = self._allocated.capacity.get(device.id, {})
        try:
            return fits(request.capacities, device.capacity, used, self._capacity.get(device.id, {}), self._rules)
        except CapacityError as error:
            place = "/".join(device.id)
            text = f"{self._label(claim, request)}: checking capacity for device {place}: {error}"
            raise AttemptError(text) from error

    def _choose(
        self, claim: int, request: Request, pool: Pool, device: Device, index: int, *, must: bool
    ) -> Undo | None:
        """Take the device if it may be taken, and say how to undo that."""
        share = self._rules.consumable and device.shareable
        if request.admin and not share and claim in self._allocating.get(device.id, ()):
            return None
        if not request.admin and self._in_use(device.id):
            return None
        if self._lacks_node_feature(device) or (device.consumes and not self._rules.features.partitionable_devices):
            return None
        undo = Undo(request, device, claim)
        if not self._take_counters(pool, device, share, undo):
            self._reject(pool, undo)
            return None
        if repels(device, request, self._rules):
            self._reject(pool, undo)
            return None
        if not self._satisfy(claim, request, pool, device, undo, must):
            return None
        return self._record(claim, request, pool, device, index, share, undo)

    def _lacks_node_feature(self, device: Device) -> bool:
        if self._rules.release < 37 or self._rules.variant != "experimental" or not device.slice.skip_operations:
            return False
        enabled = self._rules.features.optional_node_operations
        return not enabled or "DRAOptionalNodeOperations" not in self._where.declared

    def _satisfy(self, claim: int, request: Request, pool: Pool, device: Device, undo: Undo, must: bool) -> bool:
        for each in self._trackers[claim]:
            if not each.add(request, device):
                self._reject(pool, undo)
                if must:
                    raise AttemptError(
                        f"{self._label(claim, request)}: cannot add device "
                        f"{'/'.join(device.id)} because a claim constraint would not be satisfied"
                    )
                return False
            undo.constraints += 1
        return True

    def _record(
        self, claim: int, request: Request, pool: Pool, device: Device, index: int, share: bool, undo: Undo
    ) -> Undo | None:
        if not share:
            self._allocating.setdefault(device.id, set()).add(claim)
            undo.marked = True
        capacity: dict[str, Quantity] = {}
        if self._rules.consumable:
            if not self._fits(claim, request, self._looked_at(device, index)):
                if not self._rules.leaks:
                    self._restore(pool, undo, chosen=False)
                return None
            if share:
                capacity = self._capacity_of(claim, request, device)
                self._use_capacity(device, capacity, undo)
        self.results[claim].append(Chosen(request, device, share, capacity))
        return undo

    def _looked_at(self, device: Device, index: int) -> Device:
        """In 1.34 the second look at capacity is at the device with the number of the result, not at the chosen one."""
        if self._rules.release != 34:
            return device
        devices = device.slice.devices
        if index >= len(devices):
            raise AttemptError(f"runtime error: index out of range [{index}] with length {len(devices)}", "panic")
        return devices[index]

    def _capacity_of(self, claim: int, request: Request, device: Device) -> dict[str, Quantity]:
        try:
            return consumed(request.capacities, device.capacity, self._rules)
        except CapacityError as error:
            raise AttemptError(f"{self._label(claim, request)}: computing consumed capacity: {error}") from error

    def _use_capacity(self, device: Device, capacity: dict[str, Quantity], undo: Undo) -> None:
        undo.capacity_before = device.id in self._capacity
        undo.capacity = capacity
        used = self._capacity.setdefault(device.id, {})
        for name, amount in capacity.items():
            used[name] = used.get(name, 0) + amount.nanos

    def _reject(self, pool: Pool, undo: Undo) -> None:
        """Undo what was done for a device that is refused; in 1.34 its counters stay taken."""
        if self._rules.leaks:
            undo.counters = False
        self._restore(pool, undo, chosen=False)

    def _restore(self, pool: Pool, undo: Undo, *, chosen: bool = True) -> None:
        device = undo.device
        if chosen:
            self.results[undo.claim].pop()
        if undo.capacity is not None:
            self._release_capacity(device, undo)
        if undo.marked:
            self._allocating[device.id].discard(undo.claim)
        for each in reversed(self._trackers[undo.claim][: undo.constraints]):
            each.remove(undo.request)
        if undo.groups:
            self._counters.leave(pool, undo.groups)
        if undo.counters and not (self._rules.leaks and undo.capacity is not None):
            self._counters.give(pool, device)

    def _release_capacity(self, device: Device, undo: Undo) -> None:
        assert undo.capacity is not None
        used = self._capacity.get(device.id)
        if used is None or (self._rules.leaks and not undo.capacity):
            return
        for name, amount in undo.capacity.items():
            if name in used:
                used[name] -= amount.nanos
        if not any(used.values()):
            keep = undo.capacity_before and not self._rules.leaks
            self._capacity.pop(device.id)
            if keep:
                self._capacity[device.id] = {}

    def _take_counters(self, pool: Pool, device: Device, share: bool, undo: Undo) -> bool:
        if not device.consumes:
            return True
        if share and self._rules.shares_charge_once and self._capacity_in_use(device.id):
            return True
        groups = self._counters.join(pool, device)
        if groups is None:
            return False
        undo.groups = groups
        undo.counters = self._counters.take(pool, device)
        return undo.counters

    def _capacity_in_use(self, device: DeviceID) -> bool:
        if device in self._allocated.capacity or device in self._capacity:
            return True
        return self._rules.release >= 37 and device in self._allocated.shared


def lookup_in(selection: Selection) -> Lookup:
    """The attribute lookup of the constraints: derived attributes first, published ones otherwise."""

    def lookup(request: Request, device: Device, name: str) -> Attribute | None:
        expression = request.derived.get(name)
        return published(request, device, name) if expression is None else selection.derived(expression, name, device)

    return lookup


__all__ = ["AttemptError", "Chosen", "Search", "Wish", "lookup_in"]
