"""Karpenter's view: which slices it reads, which pools it makes of them, which claims it refuses, what binds devices.

Ported from sigs.k8s.io/karpenter v1.15.0, with the file named at each function. Karpenter looks at claims at all only
with ``--ignore-dra-requests=false`` (pkg/operator/options/options.go; the default is true).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from driver.analysis.autoscaler.pools import PoolKey, PoolView, pools

JSON: TypeAlias = dict[str, Any]
DeviceId: TypeAlias = tuple[str, str, str]
"""(driver, pool, device)."""


@dataclass(frozen=True, slots=True)
class KarpenterPool:
    """A pool as its allocator takes it."""

    driver: str
    name: str
    devices: tuple[str, ...]
    """Names of the devices that can be allocated on the node; none of an invalid pool."""
    incomplete: bool
    invalid: bool


def owned_by_node(body: JSON) -> bool:
    """Whether a slice counts as its node's: by an owner reference of kind Node, whatever ``spec.nodeName`` says.

    Source: pkg/controllers/provisioning/dra.go, gatherResourceSlices. Slices of a node that is not initialized are left
    aside, as its instance type's templates count until then; without the owner both count.
    """
    return any(owner.get("kind") == "Node" for owner in body.get("metadata", {}).get("ownerReferences") or ())


def initialized(slices: Iterable[JSON], requested_drivers: Iterable[str]) -> tuple[str, ...]:
    """The drivers for which a new node still waits (DRADriverPoolsNotPublished): those without a complete pool.

    Source: pkg/controllers/nodeclaim/lifecycle/initialization.go; a slice is the node's by its ``spec.nodeName`` or its
    owner there.
    """
    complete = {view.driver for view in pools(slices).values() if view.complete}
    return tuple(driver for driver in requested_drivers if driver not in complete)


def gather_pools(slices: Iterable[JSON], node_name: str) -> dict[PoolKey, KarpenterPool]:
    """The pools that an existing node can use.

    Source: pkg/scheduling/dynamicresources/pool.go, GatherPools. Slices with a node selector are left aside here.
    """
    found = {}
    for key, view in pools(slices).items():
        matching = [body for body in view.slices if _matches(body["spec"], node_name)]
        pool = _pool(view, [body for body in matching if body["spec"].get("sharedCounters") is None])
        counters_elsewhere = any(
            device.get("consumesCounters")
            for body in view.slices
            if not _matches(body["spec"], node_name)
            for device in body["spec"].get("devices") or ()
        )
        if pool.invalid or counters_elsewhere or any(not body["spec"].get("sharedCounters") for body in matching):
            found[key] = pool
    return found


def _matches(spec: JSON, node_name: str) -> bool:
    if spec.get("allNodes") or spec.get("sharedCounters") is not None:
        return True
    return bool(spec.get("nodeName")) and spec["nodeName"] == node_name


def _pool(view: PoolView, offering: Sequence[JSON]) -> KarpenterPool:
    devices = [device for body in offering for device in body["spec"].get("devices") or ()]
    names = [device["name"] for device in devices]
    sets: dict[str, Mapping[str, JSON]] = {}
    invalid = len(set(names)) != len(names)
    for entry in view.counter_sets:
        invalid = invalid or entry["name"] in sets
        sets[entry["name"]] = entry["counters"]
    # Slices with counters are not looked into for devices.
    drawing = [body for body in view.slices if body["spec"].get("sharedCounters") is None]
    for body in drawing:
        for device in body["spec"].get("devices") or ():
            for use in device.get("consumesCounters") or ():
                known = sets.get(use["counterSet"])
                invalid = invalid or known is None or any(name not in known for name in use["counters"])
    return KarpenterPool(view.driver, view.name, () if invalid else tuple(names), not view.complete, invalid)


def refusals(spec: JSON) -> tuple[tuple[str, str], ...]:
    """What in a claim's ``spec`` Karpenter refuses or reads past: (path, what it does).

    Source: pkg/scheduling/dynamicresources/request.go, ValidateClaimRequest and buildRequestData.
    """
    devices = spec.get("devices") or {}
    found = []
    for index, constraint in enumerate(devices.get("constraints") or ()):
        if constraint.get("distinctAttribute"):
            path = f"spec.devices.constraints[{index}].distinctAttribute"
            found.append((path, "Karpenter refuses the claim (DistinctAttribute constraints not done yet)"))
    for index, request in enumerate(devices.get("requests") or ()):
        exactly = request.get("exactly") or {}
        if exactly.get("adminAccess"):
            path = f"spec.devices.requests[{index}].exactly.adminAccess"
            found.append((path, "Karpenter takes it for an ordinary request and sets the device apart"))
        alternatives = request.get("firstAvailable") or ()
        holders = [(f"requests[{index}].exactly", exactly)] if exactly else []
        holders += [(f"requests[{index}].firstAvailable[{n}]", sub) for n, sub in enumerate(alternatives)]
        found += [
            (f"spec.devices.{path}.tolerations", "Karpenter knows no device taints, so tolerations mean nothing to it")
            for path, holder in holders
            if holder.get("tolerations")
        ]
    return tuple(found)


def bound_devices(bindings: Iterable[tuple[str, Sequence[DeviceId]]]) -> dict[str, dict[DeviceId, frozenset[DeviceId]]]:
    """Which devices share a value: attribute -> device -> the others bound to it, through others too.

    Source: pkg/scheduling/dynamicresources/attributebindings.go, BuildAttributeBindings, for one instance type.

    Args:
        bindings: (attribute, devices); those of fewer than two devices are left aside.
    """
    direct: dict[str, dict[DeviceId, set[DeviceId]]] = {}
    for attribute, devices in bindings:
        if len(devices) < 2:
            continue
        edges = direct.setdefault(attribute, {})
        for index, device in enumerate(devices):
            others = {other for number, other in enumerate(devices) if number != index}
            edges.setdefault(device, set()).update(others)
    return {attribute: {device: _reachable(edges, device) for device in edges} for attribute, edges in direct.items()}


def _reachable(edges: Mapping[DeviceId, set[DeviceId]], start: DeviceId) -> frozenset[DeviceId]:
    visited: set[DeviceId] = set()
    queue = deque([start])
    while queue:
        device = queue.popleft()
        if device not in visited:
            visited.add(device)
            queue.extend(edges.get(device, ()))
    return frozenset(visited - {start})


def duplicate_names(view: PoolView) -> tuple[str, ...]:
    """Device names that a pool has more than once: such a pool is invalid for Karpenter and for the scheduler."""
    counts = Counter(device["name"] for device in view.devices)
    return tuple(name for name, count in counts.items() if count > 1)
