"""What tells two shapes apart, said as a person would: counts first, then the first device that differs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from driver.analysis.shape.export import Shape, device_ids, devices_of
from driver.analysis.shape.kinds import EQUALITY, FABRIC, RUNTIME, SOFTWARE, AttributeKinds, qualified

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
    if not found:
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
    counts = [len(devices_of(pool)) for pool in (left, right)]
    if counts[0] != counts[1]:
        yield Difference(f"{driver} devices", str(counts[0]), str(counts[1]))
    sets = [_canonical([part.get("sharedCounters") for part in pool["slices"]]) for pool in (left, right)]
    if sets[0] != sets[1]:
        yield Difference(f"{driver} counters", sets[0], sets[1])
    told: Counter[str] = Counter()
    for index, (one, other) in enumerate(zip(devices_of(left), devices_of(right), strict=False)):
        for field, values, software in _fields(one, other, driver, kinds):
            told[field] += 1
            if told[field] == 1:  # the same difference on seven more GPUs says nothing new
                yield Difference(f"{driver} device {index} {field}", *values, software)


def _fields(left: JSON, right: JSON, driver: str, kinds: AttributeKinds) -> Iterator[tuple[str, tuple[str, str], bool]]:
    sides = [_attributes(device, driver) for device in (left, right)]
    for name in sorted(sides[0].keys() | sides[1].keys()):
        kind = kinds.kind(name, driver)
        values = [side.get(name) for side in sides]
        if None not in values and kind in (EQUALITY, RUNTIME):
            values = [_types(value) for value in values]
        if values[0] != values[1]:
            yield name, (_shown(values[0]), _shown(values[1])), kind == SOFTWARE and None not in values
    for field in ("capacity", "consumesCounters", "allowMultipleAllocations", "bindingConditions"):
        texts = [_canonical(device.get(field)) for device in (left, right)]
        if texts[0] != texts[1]:
            yield field, (texts[0], texts[1]), False


def _attributes(device: JSON, driver: str) -> JSON:
    own = {qualified(name, driver): value for name, value in (device.get("attributes") or {}).items()}
    return own | {
        qualified(name, driver): {kind: "(assigned)"} for name, kind in (device.get("assigned") or {}).items()
    }


def _types(value: Any) -> Any:
    return sorted(value) if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if value is None:
        return "absent"
    if isinstance(value, dict) and len(value) == 1:
        return str(next(iter(value.values())))
    return _canonical(value)


def _canonical(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, sort_keys=True, separators=(",", ":"))


def _groups(left: Shape, right: Shape) -> Iterator[Difference]:
    sides = [_partitions(shape) for shape in (left, right)]
    for attribute in sorted(sides[0].keys() & sides[1].keys()):
        one, other = sides[0][attribute], sides[1][attribute]
        if one != other:
            yield Difference(f"equalGroups {attribute}", _canonical(one), _canonical(other))


def _partitions(shape: Shape) -> dict[str, list[list[int]]]:
    """Attribute -> the numbers of the devices that share a value."""
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in shape.pools])
    number = {name: index for index, name in enumerate(name for names in ids for name in names)}
    return {
        entry["attribute"]: sorted(sorted(number[name] for name in group) for group in entry["groups"])
        for entry in shape.equal_groups
        if entry["kind"] != FABRIC
    }
