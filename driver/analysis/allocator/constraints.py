"""``matchAttribute`` and ``distinctAttribute`` while a search adds and removes devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from .claims import Constraint, Request
from .features import Rules
from .model import Device

_SCALARS: Final = ("string", "int", "bool", "version")
_KINDS: Final = (("ints", "int"), ("bools", "bool"), ("strings", "string"), ("versions", "version"))

Attribute = Mapping[str, Any]
Values = tuple[str, frozenset[object]]
"""A kind and the values of that kind."""
Lookup = Callable[[Request, Device, str], "Attribute | None"]


class Tracker(Protocol):
    """One constraint of one claim during one search."""

    def add(self, request: Request, device: Device) -> bool:
        """Whether the device may join; if so it has."""

    def remove(self, request: Request) -> None:
        """The device that joined last leaves."""


def published(_: Request, device: Device, name: str) -> Attribute | None:
    """An attribute by its full name: as published under it, or under the bare name in the driver's own domain."""
    found = device.attributes.get(name)
    if found is not None:
        return found
    domain, slash, local = name.partition("/")
    return device.attributes.get(local) if slash and domain == device.slice.driver else None


def tracker(constraint: Constraint, rules: Rules, lookup: Lookup) -> Tracker | None:
    """The tracker for a constraint, or None where this variant does not know its type."""
    if constraint.kind == "match":
        return _MatchLists(constraint, rules, lookup) if rules.lists else _Match(constraint, lookup)
    if constraint.kind == "distinct" and rules.distinct:
        return _Distinct(constraint, rules, lookup)
    return None


def _scalar(attribute: Attribute) -> tuple[str, object] | None:
    for kind in _SCALARS:
        value = attribute.get(kind)
        if value is not None:
            return kind, value
    return None


def _values(attribute: Attribute) -> Values | None:
    for name, kind in _KINDS:
        if attribute.get(name):
            return kind, frozenset(attribute[name])
    scalar = next(((kind, attribute[kind]) for _, kind in _KINDS if attribute.get(kind) is not None), None)
    return (scalar[0], frozenset((scalar[1],))) if scalar else None


def _common(one: Values, other: Values) -> Values | None:
    if one[0] != other[0]:
        return None
    both = one[1] & other[1]
    return (one[0], both) if both else None


class _Match:
    """All devices have the attribute with the value of the first."""

    def __init__(self, constraint: Constraint, lookup: Lookup) -> None:
        self._constraint, self._lookup = constraint, lookup
        self._first: Attribute = {}
        self._count = 0

    def add(self, request: Request, device: Device) -> bool:
        if not self._constraint.concerns(request):
            return True
        attribute = self._lookup(request, device, self._constraint.attribute)
        if attribute is None:
            return False
        if self._count == 0:
            self._first = attribute
        else:
            scalar = _scalar(attribute)
            if scalar is None or self._first.get(scalar[0]) != scalar[1]:
                return False
        self._count += 1
        return True

    def remove(self, request: Request) -> None:
        if self._constraint.concerns(request):
            self._count -= 1


class _MatchLists:
    """All devices have a value in common; a scalar is a list of one."""

    def __init__(self, constraint: Constraint, rules: Rules, lookup: Lookup) -> None:
        self._constraint, self._lookup = constraint, lookup
        self._stays = rules.narrows_for_good
        self._common: list[Values] = []

    def add(self, request: Request, device: Device) -> bool:
        if not self._constraint.concerns(request):
            return True
        attribute = self._lookup(request, device, self._constraint.attribute)
        values = _values(attribute) if attribute is not None else None
        if values is not None and self._common:
            values = _common(self._common[-1], values)
        if values is None:
            return False
        self._common.append(values)
        return True

    def remove(self, request: Request) -> None:
        if not self._constraint.concerns(request):
            return
        narrowed = self._common.pop()
        if self._stays and self._common:
            self._common[-1] = narrowed


class _Distinct:
    """No two devices have a value of the attribute in common."""

    def __init__(self, constraint: Constraint, rules: Rules, lookup: Lookup) -> None:
        self._constraint, self._rules, self._lookup = constraint, rules, lookup
        self._kept: list[tuple[str, Device, Attribute]] = []
        self._count = 0

    def add(self, request: Request, device: Device) -> bool:
        if not self._constraint.concerns(request):
            return True
        attribute = self._lookup(request, device, self._constraint.attribute)
        if attribute is None:
            return False
        unchecked = self._rules.distinct_by_request and self._count == 0
        if not unchecked and not self._new(device, attribute):
            return False
        self._count += 1
        name = request.parent or request.name
        if self._rules.distinct_by_request:
            self._kept = [each for each in self._kept if each[0] != name]
        self._kept.append((name, device, attribute))
        return True

    def _new(self, device: Device, attribute: Attribute) -> bool:
        if self._rules.lists:
            values = _values(attribute)
            others = [_values(each) for _, _, each in self._kept]
            return values is not None and not any(each is not None and _common(values, each) for each in others)
        scalar = _scalar(attribute)
        if scalar is None:
            return not self._kept
        if self._rules.distinct_by_identity:
            return all(other is not device for _, other, _ in self._kept)
        return all(each.get(scalar[0]) != scalar[1] for _, _, each in self._kept)

    def remove(self, request: Request) -> None:
        if not self._constraint.concerns(request):
            return
        self._count -= 1
        if self._rules.distinct_by_request:
            name = request.parent or request.name
            self._kept = [each for each in self._kept if each[0] != name]
        else:
            self._kept.pop()
