"""From slices to a NodeShape: what is the same on every node of the kind is kept, the rest is named or dropped.

The document (``gpudra.dev/v1alpha1``)::

    identity: {hash, softwareHash, labels}
    pools: [{driver, nameTemplate, slices: [{devices: [...]} | {sharedCounters: [...]}]}]
    equalGroups: [{attribute, kind, groups: [[<driver>/<device>, ...], ...]}]
    dropped: [{path, why}]

A device keeps attributes of kind type and software, and as examples those of kind equality and runtime. Attributes
that are new on each node are named with the type of their value in ``assigned``; which devices share a value of one is
in ``equalGroups``. ``hash`` is over everything that a scheduler can tell two nodes of the kind apart by, in the order
in which devices are tried, without names and values that are a node's own; ``softwareHash`` has versions and modes too.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from driver.analysis import quantity
from driver.analysis.autoscaler import PoolView, pools
from driver.analysis.document_fault import fault
from driver.analysis.shape.consistency import device_ids, devices_of, inconsistency
from driver.analysis.shape.kinds import EQUALITY, FABRIC, LAUNCH, RUNTIME, SOFTWARE, AttributeKinds, qualified

JSON: TypeAlias = dict[str, Any]

API_VERSION: Final = "gpudra.dev/v1alpha1"
KIND: Final = "NodeShape"
NODE: Final = "$(NODE)"
"""Stands where the name of the node will be."""
_ASSIGNED: Final = frozenset({LAUNCH, FABRIC})
_GROUPED: Final = frozenset({EQUALITY, LAUNCH, FABRIC})
_OPEN: Final = frozenset({EQUALITY, RUNTIME, SOFTWARE})
"""Of these only the type of the value is part of the hash."""
_KEPT: Final = ("allowMultipleAllocations", "bindsToNode", "bindingConditions", "bindingFailureConditions")


class ShapeError(ValueError):
    """No shape can be made of it, or a document is none; the message says which part and why."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Something of the sample that is not part of the shape."""

    path: str
    why: str


@dataclass(frozen=True, slots=True)
class Shape:
    """A NodeShape."""

    pools: tuple[JSON, ...]
    equal_groups: tuple[JSON, ...]
    labels: Mapping[str, str]
    hash: str
    """``sha256:`` and 64 hexadecimal digits."""
    software_hash: str
    dropped: tuple[Dropped, ...] = ()

    @property
    def document(self) -> JSON:
        """As it is written down."""
        identity: JSON = {"hash": self.hash, "softwareHash": self.software_hash}
        if self.labels:
            identity["labels"] = dict(self.labels)
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "identity": identity,
            "pools": list(self.pools),
            "equalGroups": list(self.equal_groups),
            "dropped": [{"path": entry.path, "why": entry.why} for entry in self.dropped],
        }

    @property
    def devices(self) -> tuple[tuple[JSON, JSON], ...]:
        """(pool, device) of all, in order."""
        return tuple((pool, device) for pool in self.pools for device in devices_of(pool))

    @property
    def drivers(self) -> tuple[str, ...]:
        """Their names, each once."""
        return tuple(dict.fromkeys(pool["driver"] for pool in self.pools))


def export(
    slices: Iterable[JSON],
    kinds: AttributeKinds,
    *,
    node_name: str | None = None,
    labels: Mapping[str, str] | None = None,
    strict: bool = False,
) -> Shape:
    """Make the shape of one node.

    Args:
        slices: ResourceSlices (v1) of any number of drivers.
        kinds: what attributes are worth elsewhere.
        node_name: only slices of this node count; None where all given slices are of one node.
        labels: of the Node, that tell its kind (instance type).
        strict: a pool that is not complete is an error; otherwise it is left out, and named in ``dropped``.

    Raises:
        ShapeError: slices of several nodes, or ``strict`` and an incomplete pool.
    """
    dropped: list[Dropped] = []
    local = _node_local(slices, node_name, dropped)
    node = node_name or (local[0]["spec"]["nodeName"] if local else "")
    views = []
    for view in sorted(pools(local).values(), key=lambda view: (view.driver, _name_template(view.name, node))):
        if view.complete:
            views.append(view)
            continue
        text = f"pool {view.name} of driver {view.driver} has {len(view.slices)} of {view.expected} slices"
        if strict:
            raise ShapeError(f"{text}: take the shape when the driver has published all of them")
        dropped.append(Dropped(f"{view.driver}/{view.name}", f"{text}: not complete"))
    described = tuple(_pool(view, node, kinds, dropped) for view in views)
    return assembled(described, _equal_groups(views, kinds), labels or {}, kinds, tuple(dropped))


def assembled(
    described: tuple[JSON, ...],
    groups: tuple[JSON, ...],
    labels: Mapping[str, str],
    kinds: AttributeKinds,
    dropped: tuple[Dropped, ...] = (),
) -> Shape:
    """A shape of its parts, with its hashes."""
    return Shape(described, groups, dict(labels), *_hashes(described, groups, kinds), dropped)


def read(document: JSON, kinds: AttributeKinds) -> Shape:
    """A shape from its document; the hashes are reckoned again.

    Raises:
        ShapeError: not a NodeShape of a version that is known, or damaged.
    """
    if document.get("apiVersion") != API_VERSION or document.get("kind") != KIND:
        given = f"{document.get('apiVersion')} {document.get('kind')}"
        raise ShapeError(f"{given} is no {API_VERSION} {KIND}; write one with gpudra shape export")
    wrong = fault(KIND, document) or inconsistency(document)
    if wrong is not None:
        path, text = wrong
        raise ShapeError(f"the {KIND} is damaged: {path}: {text}; write it again with gpudra shape export")
    entries = tuple(Dropped(entry["path"], entry["why"]) for entry in document.get("dropped") or ())
    labels = document["identity"].get("labels") or {}
    return assembled(tuple(document["pools"]), tuple(document["equalGroups"]), labels, kinds, entries)


def _node_local(slices: Iterable[JSON], node_name: str | None, dropped: list[Dropped]) -> list[JSON]:
    local, nodes = [], set()
    for body in slices:
        spec = body["spec"]
        node = spec.get("nodeName")
        if not node:
            path = f"{spec['driver']}/{spec['pool']['name']}"
            dropped.append(Dropped(path, "not bound to one node: no autoscaler adds it with a node"))
        elif node_name is None or node == node_name:
            local.append(body)
            nodes.add(node)
    if len(nodes) > 1:
        first, more = sorted(nodes)[:3], f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        raise ShapeError(
            f"these are slices of {len(nodes)} nodes ({', '.join(first)}{more}): name the one that is meant"
        )
    return local


def _name_template(name: str, node: str) -> str:
    """The pool's name with the node's name left open; a name without it gets it, as pools are a node's own."""
    if not node:
        return f"{name}-{NODE}"
    segments = [NODE if segment == node else segment for segment in name.split("/")]
    if NODE in segments:
        return "/".join(segments)
    template, count = re.subn(rf"(?<![a-z0-9]){re.escape(node)}(?![a-z0-9])", lambda _match: NODE, name, count=1)
    return template if count else f"{name}-{NODE}"


def _pool(view: PoolView, node: str, kinds: AttributeKinds, dropped: list[Dropped]) -> JSON:
    parts: list[JSON] = []
    for body in view.slices:
        spec, part = body["spec"], {}
        if spec.get("sharedCounters") is not None:
            part["sharedCounters"] = spec["sharedCounters"]
        if spec.get("devices") is not None or spec.get("sharedCounters") is None:
            part["devices"] = [_device(device, view, kinds, dropped) for device in spec.get("devices") or ()]
        if spec.get("partitionTypeAttribute"):
            part["partitionTypeAttribute"] = spec["partitionTypeAttribute"]
        parts.append(part)
    return {"driver": view.driver, "nameTemplate": _name_template(view.name, node), "slices": parts}


def _device(device: JSON, view: PoolView, kinds: AttributeKinds, dropped: list[Dropped]) -> JSON:
    kept: JSON = {"name": device["name"]}
    attributes, assigned = {}, {}
    for name, value in sorted((device.get("attributes") or {}).items()):
        if kinds.kind(name, view.driver) in _ASSIGNED:
            assigned[name] = _type_of(value)
        else:
            attributes[name] = value
    if attributes:
        kept["attributes"] = attributes
    if assigned:
        kept["assigned"] = assigned
    if device.get("capacity"):
        kept["capacity"] = device["capacity"]
    if device.get("consumesCounters"):
        kept["consumesCounters"] = device["consumesCounters"]
    kept.update({field: device[field] for field in _KEPT if device.get(field)})
    if device.get("taints"):
        keys = ", ".join(taint["key"] for taint in device["taints"])
        dropped.append(Dropped(f"{view.driver}/{device['name']}.taints", f"the state of one node at one time: {keys}"))
    return kept


def _type_of(value: JSON) -> str:
    return next((field for field, given in value.items() if given is not None), "string")


def _equal_groups(views: Sequence[PoolView], kinds: AttributeKinds) -> tuple[JSON, ...]:
    """Which devices share a value, over all drivers; devices that share with none are groups of one."""
    ids = device_ids([(view.driver, [device["name"] for device in view.devices]) for view in views])
    groups: dict[str, dict[Hashable, list[str]]] = {}
    kind_of: dict[str, str] = {}
    for view, names in zip(views, ids, strict=True):
        for device, name in zip(view.devices, names, strict=True):
            for attribute, value in (device.get("attributes") or {}).items():
                kind = kinds.kind(attribute, view.driver)
                if kind in _GROUPED:
                    full = qualified(attribute, view.driver)
                    kind_of[full] = kind
                    groups.setdefault(full, {}).setdefault(_identity(value), []).append(name)
    return tuple(
        {"attribute": full, "kind": kind_of[full], "groups": list(groups[full].values())} for full in sorted(groups)
    )


def _identity(value: JSON) -> Hashable:
    """Equal for equal values of one type."""
    if len(value) == 1:
        kind, given = next(iter(value.items()))
        return kind, tuple(given) if isinstance(given, list) else given
    return json.dumps(value, sort_keys=True)


def _hashes(described: Sequence[JSON], groups: Sequence[JSON], kinds: AttributeKinds) -> tuple[str, str]:
    """(of the kind of node, of that and its software)."""
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in described])
    number = {name: index for index, name in enumerate(name for names in ids for name in names)}
    forms = [normal_form(pool, kinds) for pool in described]
    told = {
        "pools": [form for form, _ in forms],
        "groups": [
            [entry["attribute"], sorted(sorted(number[name] for name in group) for group in entry["groups"])]
            for entry in groups
            if entry["kind"] != FABRIC
        ],
    }
    digest = _digest(told)
    return digest, _digest([digest, [software for _, software in forms]])


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def normal_form(pool: JSON, kinds: AttributeKinds) -> tuple[JSON, list[JSON]]:
    """What counts of a pool of a shape, equal for equal hardware, and of each device the values of software."""
    sets = [entry for part in pool["slices"] for entry in part.get("sharedCounters") or ()]
    number = {entry["name"]: index for index, entry in enumerate(sets)}
    software: list[JSON] = []

    def use(entry: JSON) -> list[Any]:
        return [number.get(entry["counterSet"], -1), _amounts(entry["counters"])]

    form = {
        "driver": pool["driver"],
        "counters": [_amounts(entry["counters"]) for entry in sets],
        "devices": [_normal_device(device, pool["driver"], kinds, use, software) for device in devices_of(pool)],
    }
    return form, software


def _normal_device(
    device: JSON, driver: str, kinds: AttributeKinds, use: Callable[[JSON], list[Any]], software: list[JSON]
) -> JSON:
    attributes: JSON = {qualified(name, driver): kind for name, kind in (device.get("assigned") or {}).items()}
    versions: JSON = {}
    for name, value in (device.get("attributes") or {}).items():
        kind, full = kinds.kind(name, driver), qualified(name, driver)
        attributes[full] = _type_of(value) if kind in _OPEN else value
        if kind == SOFTWARE:
            versions[full] = value
    software.append(versions)
    return {
        "attributes": attributes,
        "capacity": {
            qualified(name, driver): [quantity.read(entry["value"]).nanos, entry.get("requestPolicy")]
            for name, entry in (device.get("capacity") or {}).items()
        },
        "counters": [use(entry) for entry in device.get("consumesCounters") or ()],
        "flags": {field: device[field] for field in _KEPT if device.get(field)},
    }


def _amounts(counters: Mapping[str, JSON]) -> JSON:
    return {name: quantity.read(counter["value"]).nanos for name, counter in counters.items()}
