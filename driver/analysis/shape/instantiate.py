"""From a NodeShape to the slices of a node that is not there: for an autoscaler's template, a rehearsal, a test."""

from __future__ import annotations

import hashlib
from typing import Any, Final, TypeAlias

from driver.analysis.shape.consistency import device_ids, devices_of
from driver.analysis.shape.export import NODE, Shape
from driver.analysis.shape.kinds import qualified

JSON: TypeAlias = dict[str, Any]

BUS_ID: Final = "resource.kubernetes.io/pciBusID"
_NAME_LENGTH: Final = 253
_DIGEST: Final = 16


def instantiate(shape: Shape, node_name: str, *, node_uid: str | None = None) -> tuple[JSON, ...]:
    """The slices that a new node of this shape would publish, complete and in the order of the shape.

    Values that are new on each node are made up, differ from node to node, and are equal where the shape says so.

    Args:
        shape: which kind of node.
        node_name: of the imaginary node, or ``NODE`` to leave it open.
        node_uid: of its Node object, for the owner reference; None leaves the owner out.
    """
    made_up = _values(shape, node_name)
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in shape.pools])
    found: list[JSON] = []
    for pool, names in zip(shape.pools, ids, strict=True):
        remaining = iter(names)
        parts = pool["slices"]
        width = max(5, len(f"{len(parts) - 1:x}"))
        for index, part in enumerate(parts):
            spec: JSON = {
                "driver": pool["driver"],
                "nodeName": node_name,
                "pool": {
                    "name": _short(pool["nameTemplate"].replace(NODE, node_name)),
                    "generation": 1,
                    "resourceSliceCount": len(parts),
                },
            }
            if part.get("sharedCounters") is not None:
                spec["sharedCounters"] = part["sharedCounters"]
            if part.get("devices"):
                spec["devices"] = [
                    _device(device, pool["driver"], next(remaining), made_up) for device in part["devices"]
                ]
            if part.get("partitionTypeAttribute"):
                spec["partitionTypeAttribute"] = part["partitionTypeAttribute"]
            number = len(found) if _several_pools(shape, pool["driver"]) else index
            found.append(_slice(spec, f"{number:0{width}x}-{pool['driver']}-{node_name}", node_name, node_uid))
    return tuple(found)


def _several_pools(shape: Shape, driver: str) -> bool:
    return [pool["driver"] for pool in shape.pools].count(driver) > 1


def _slice(spec: JSON, name: str, node_name: str, node_uid: str | None) -> JSON:
    metadata: JSON = {"name": _short(name)}
    if node_uid is not None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": True}
        metadata["ownerReferences"] = [owner]
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _short(name: str) -> str:
    """At most 253 bytes: the middle of a longer name becomes a digest."""
    if len(name) <= _NAME_LENGTH:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST]
    head, tail = name[:110].rstrip("-./"), name[-110:].lstrip("-./")
    return f"{head}-{digest}-{tail}"


def _device(device: JSON, driver: str, identity: str, made_up: dict[tuple[str, str], JSON]) -> JSON:
    result = {field: value for field, value in device.items() if field != "assigned"}
    attributes = dict(device.get("attributes") or {})
    for name in device.get("assigned") or ():
        attributes[name] = made_up[qualified(name, driver), identity]
    if attributes:
        result["attributes"] = attributes
    return result


def _values(shape: Shape, node_name: str) -> dict[tuple[str, str], JSON]:
    """(attribute, device id) -> a value for each attribute that the node would assign."""
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in shape.pools])
    kinds = {
        (qualified(name, pool["driver"]), identity): kind
        for pool, names in zip(shape.pools, ids, strict=True)
        for device, identity in zip(devices_of(pool), names, strict=True)
        for name, kind in (device.get("assigned") or {}).items()
    }
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:12]
    values: dict[tuple[str, str], JSON] = {}
    for entry in shape.equal_groups:
        numbers: dict[str, int] = {}
        for group in entry["groups"]:
            kind = kinds.get((entry["attribute"], group[0]))
            if kind is not None:
                number = numbers[kind] = numbers.get(kind, -1) + 1
                value = _value(entry["attribute"], kind, digest, number)
                values |= {(entry["attribute"], name): value for name in group}
    return values


def _value(attribute: str, kind: str, digest: str, number: int) -> JSON:
    """The value of the group with this number; those of two groups differ."""
    if attribute == BUS_ID and kind == "string":
        return {kind: f"ffff:{number // 32 % 256:02x}:{number % 32:02x}.0"}
    text = f"imaginary-{digest}-{number}"
    plain: dict[str, Any] = {"string": text, "int": number, "bool": bool(number % 2), "version": f"0.0.{number}"}
    if kind in plain:
        return {kind: plain[kind]}
    return {kind: [plain[kind.removesuffix("s")]] * (number + 1 if kind == "bools" else 1)}
