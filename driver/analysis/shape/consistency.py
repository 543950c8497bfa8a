"""Whether the parts of a NodeShape's document fit together: what its types alone do not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from driver.analysis.shape.kinds import qualified

JSON: TypeAlias = dict[str, Any]
Wrong: TypeAlias = tuple[str, str]
"""(path, what is wrong)."""


def devices_of(pool: JSON) -> list[JSON]:
    """The devices of a shape's pool, in order."""
    return [device for part in pool["slices"] for device in part.get("devices") or ()]


def device_ids(described: Sequence[tuple[str, Sequence[str]]]) -> list[list[str]]:
    """Of each (driver, device names) of a pool the ids of its devices: with the pool's number from a second pool on."""
    seen: dict[str, int] = {}
    result = []
    for driver, names in described:
        number = seen.get(driver, 0)
        seen[driver] = number + 1
        result.append([f"{driver}/{name}" + (f"@{number}" if number else "") for name in names])
    return result


def inconsistency(document: JSON) -> Wrong | None:
    """The first thing that does not fit, in a document whose fields have their types; None where all does.

    Attributes have one value each, groups are of devices that are there, each device is in one group of an attribute,
    and what a node assigns is grouped, so that values can be made up for it.
    """
    return next(_inconsistencies(document), None)


def _inconsistencies(document: JSON) -> Iterator[Wrong]:
    pools = document["pools"]
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in pools])
    grouped: dict[str, set[str]] = {}
    known = {name for names in ids for name in names}
    for index, entry in enumerate(document["equalGroups"]):
        path = f"equalGroups[{index}]"
        if entry["attribute"] in grouped:
            yield f"{path}.attribute", f"{entry['attribute']} is there twice"
        members = grouped.setdefault(entry["attribute"], set())
        for number, group in enumerate(entry["groups"]):
            where = f"{path}.groups[{number}]"
            if not group:
                yield where, "is empty"
            for name in group:
                if name not in known:
                    yield where, f"there is no device {name}"
                if name in members:
                    yield where, f"{name} is in a group already"
                members.add(name)
    for index, (pool, names) in enumerate(zip(pools, ids, strict=True)):
        yield from _of_devices(f"pools[{index}]", pool, iter(names), grouped)


def _of_devices(path: str, pool: JSON, names: Iterator[str], grouped: dict[str, set[str]]) -> Iterator[Wrong]:
    for number, part in enumerate(pool["slices"]):
        for position, device in enumerate(part.get("devices") or ()):
            where, name = f"{path}.slices[{number}].devices[{position}]", next(names)
            for attribute, value in (device.get("attributes") or {}).items():
                if sum(given is not None for given in (value or {}).values()) != 1:
                    yield f"{where}.attributes[{attribute}]", "must have one value"
            for attribute in device.get("assigned") or ():
                if name not in grouped.get(qualified(attribute, pool["driver"]), ()):
                    yield f"{where}.assigned[{attribute}]", "is in no group of equalGroups"
