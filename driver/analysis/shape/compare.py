"""What tells two shapes apart, said as a person would: counts first, then the first device that differs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from driver.analysis.shape.consistency import device_ids, devices_of
from driver.analysis.shape.export import Shape, normal_form
from driver.analysis.shape.kinds import FABRIC, AttributeKinds, qualified

JSON: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that differs."""

    path: str
    """``gpu.nvidia.com devices``, ``gpu.nvidia.com device 3 gpu.nvidia.com/productName``."""
    left: str
    right: str
    software: bool = False
    """It is of the node's image, not of its kind."""

    def __str__(self) -> str:
        return f"{self.path}: {self.left} against {self.right}"


def differences(left: Shape, right: Shape, kinds: AttributeKinds | None = None) -> tuple[Difference, ...]:
    """All differences that matter to a scheduler; of values that are a node's own, only which devices share them.

    Args:
        left: one shape.
        right: the other.
        kinds: what attributes are worth; those that nobody has described are judged by their names.
    """
    table = kinds or AttributeKinds()
    found: list[Difference] = []
    for driver in dict.fromkeys(left.drivers + right.drivers):
        found += _of_driver(left, right, driver, table)
    if all(entry.software for entry in found):
        found += _groups(left, right)
    return tuple(found)


def _of_driver(left: Shape, right: Shape, driver: str, kinds: AttributeKinds) -> Iterator[Difference]:
    sides = [[pool for pool in shape.pools if pool["driver"] == driver] for shape in (left, right)]
    if not all(sides):
        words = ["published" if side else "not published" for side in sides]
        yield Difference(driver, words[0], words[1])
        return
    if len(sides[0]) != len(sides[1]):
        yield Difference(f"{driver} pools", str(len(sides[0])), str(len(sides[1])))
        return
    for one, other in zip(*sides, strict=True):
        yield from _of_pool(one, other, kinds)


def _of_pool(left: JSON, right: JSON, kinds: AttributeKinds) -> Iterator[Difference]:
    driver = left["driver"]
    forms = [normal_form(pool, kinds) for pool in (left, right)]
    counts = [len(devices_of(pool)) for pool in (left, right)]
    if counts[0] != counts[1]:
        yield Difference(f"{driver} devices", str(counts[0]), str(counts[1]))
    if forms[0][0]["counters"] != forms[1][0]["counters"]:
        sets = [[part.get("sharedCounters") for part in pool["slices"]] for pool in (left, right)]
        yield Difference(f"{driver} counters", _shown(sets[0]), _shown(sets[1]))
    told: set[str] = set()
    pairs = zip(devices_of(left), devices_of(right), forms[0][0]["devices"], forms[1][0]["devices"], strict=False)
    for index, (one, other, one_form, other_form) in enumerate(pairs):
        versions = [software[index] for _, software in forms]
        names = [*_names(one_form, other_form), *((name, True) for name in _changed(*versions))]
        for name, software in names:
            if name not in told:  # the same difference on seven more GPUs says nothing new
                told.add(name)
                before, after = (_shown(_value(device, name, driver)) for device in (one, other))
                yield Difference(f"{driver} device {index} {name}", before, after, software)


def _names(left: JSON, right: JSON) -> Iterator[tuple[str, bool]]:
    """What differs between two devices in their normal form: attributes and fields."""
    yield from ((name, False) for name in _changed(left["attributes"], right["attributes"]))
    if left["capacity"] != right["capacity"]:
        yield "capacity", False
    if left["counters"] != right["counters"]:
        yield "consumesCounters", False
    yield from ((name, False) for name in _changed(left["flags"], right["flags"]))


def _changed(left: JSON, right: JSON) -> list[str]:
    return [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]


def _value(device: JSON, name: str, driver: str) -> Any:
    """What the device has under this name, for people."""
    if "/" not in name:
        return device.get(name)
    for own, value in (device.get("attributes") or {}).items():
        if qualified(own, driver) == name:
            return value
    assigned = {qualified(own, driver): f"assigned {kind}" for own, kind in (device.get("assigned") or {}).items()}
    return assigned.get(name)


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, dict) and len(value) == 1 and not isinstance(next(iter(value.values())), dict):
        return str(next(iter(value.values())))
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _groups(left: Shape, right: Shape) -> Iterator[Difference]:
    sides = [_partitions(shape) for shape in (left, right)]
    for attribute in sorted(sides[0].keys() & sides[1].keys()):
        one, other = sides[0][attribute], sides[1][attribute]
        if one != other:
            yield Difference(f"equalGroups {attribute}", _shown(one), _shown(other))


def _partitions(shape: Shape) -> dict[str, list[list[int]]]:
    """Attribute -> the numbers of the devices that share a value."""
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in shape.pools])
    number = {name: index for index, name in enumerate(name for names in ids for name in names)}
    return {
        entry["attribute"]: sorted(sorted(number[name] for name in group) for group in entry["groups"])
        for entry in shape.equal_groups
        if entry["kind"] != FABRIC
    }
