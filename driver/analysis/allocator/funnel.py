"""How many devices of a node are left after each condition of a request, before any search: where a claim loses them.

The stages do not depend on what else is asked for, so the counts are exact and cheap. The conditions stand in the order
in which a person asks them; a device that fails one is not asked the next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from .capacity import CapacityError, fits
from .claims import Allocated, Claim, Request
from .constraints import published
from .counters import Counters
from .features import Rules
from .model import Device
from .nodes import Node
from .pools import Pool
from .selection import Selection, SelectionError, UnknownError
from .taints import repels


@dataclass(frozen=True, slots=True)
class Group:
    """The most devices that agree on a value: of ``matchAttribute`` ``attribute``, ``count`` devices have ``value``."""

    attribute: str
    value: object
    count: int


@dataclass(frozen=True, slots=True)
class Funnel:
    """One request (or alternative) on one node: each count is of the devices that also passed everything before it."""

    claim: str
    request: str
    wanted: int
    """How many it asks for; 0 for ``All``."""
    devices: int = 0
    """In complete and valid pools, for this node."""
    in_class: int = 0
    """Selected by the class."""
    selected: int = 0
    """Selected by the request too."""
    free: int = 0
    """Held by nobody (with admin access: all of them)."""
    tolerated: int = 0
    """Without a taint that the request does not tolerate."""
    counters: int = 0
    """With enough left of every counter, taken alone."""
    capacity: int = 0
    """With enough left of every capacity, taken alone."""
    groups: tuple[Group, ...] = ()
    rejected: tuple[tuple[str, int], ...] = ()
    """Selector -> how many devices it was false for."""
    errors: tuple[str, ...] = ()
    """What selectors failed with; the scheduler gives up on the first."""


class Counting:
    """Counts for the requests of some claims on one node."""

    def __init__(
        self, rules: Rules, where: Node, pools: list[Pool], allocated: Allocated, selection: Selection
    ) -> None:
        self._rules, self._where, self._pools = rules, where, pools
        self._allocated, self._selection = allocated, selection

    def count(self, claim: Claim, request: Request, class_selectors: tuple[str | None, ...]) -> Funnel:
        """The funnel of one request."""
        rejected: Counter[str] = Counter()
        errors: dict[str, None] = {}
        usable = [
            (pool, device)
            for pool in self._pools
            if pool.usable or not self._rules.pools_span_slices
            for each in pool.slices
            for device in each.devices
            if self._selection.there(device, self._where)
        ]

        def pass_selectors(
            found: list[tuple[Pool, Device]], expressions: tuple[str | None, ...], label: str
        ) -> list[tuple[Pool, Device]]:
            return [each for each in found if self._passes(each[1], expressions, label, rejected, errors)]

        in_class = pass_selectors(usable, class_selectors, f"class {request.class_name}")
        selected = pass_selectors(in_class, request.selectors, f"request {request.full_name}")
        free = [each for each in selected if request.admin or each[1].id not in self._allocated.devices]
        tolerated = [each for each in free if not repels(each[1], request, self._rules)]
        counted = [each for each in tolerated if self._has_counters(*each)]
        held = [each for each in counted if self._has_capacity(request, each[1], errors)]
        return Funnel(
            claim.key,
            request.full_name,
            0 if request.mode == "All" else request.count,
            len(usable),
            len(in_class),
            len(selected),
            len(free),
            len(tolerated),
            len(counted),
            len(held),
            tuple(self._groups(claim, request, [device for _, device in held])),
            tuple(rejected.items()),
            tuple(errors),
        )

    def _passes(
        self,
        device: Device,
        expressions: tuple[str | None, ...],
        label: str,
        rejected: Counter[str],
        errors: dict[str, None],
    ) -> bool:
        if device.binding and not self._rules.binding:
            rejected["binding conditions, which are switched off"] += 1
            return False
        for expression in expressions:
            try:
                if self._selection.matches(expression or "", device, label):
                    continue
                rejected[expression or ""] += 1
            except (SelectionError, UnknownError) as error:
                errors[str(error)] = None
            return False
        return True

    def _has_counters(self, pool: Pool, device: Device) -> bool:
        if not device.consumes:
            return True
        if not self._rules.features.partitionable_devices:
            return False
        if device.shareable and self._rules.shares_charge_once and device.id in self._allocated.everything:
            return True
        return Counters(self._rules, self._allocated).take(pool, device)

    def _has_capacity(self, request: Request, device: Device, errors: dict[str, None]) -> bool:
        if not self._rules.consumable:
            return True
        used = self._allocated.capacity.get(device.id, {})
        try:
            return fits(request.capacities, device.capacity, used, {}, self._rules)
        except CapacityError as error:
            errors[str(error)] = None
            return False

    def _groups(self, claim: Claim, request: Request, devices: list[Device]) -> list[Group]:
        found = []
        for constraint in claim.constraints:
            if constraint.kind != "match" or not constraint.concerns(request):
                continue
            values: Counter[object] = Counter()
            for device in devices:
                attribute = published(request, device, constraint.attribute) or {}
                for value in attribute.values():
                    values.update(value if isinstance(value, list) else [value])
            if values:
                value, count = values.most_common(1)[0]
                found.append(Group(constraint.attribute, value, count))
            else:
                found.append(Group(constraint.attribute, None, 0))
        return found
