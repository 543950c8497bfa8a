"""Checks an allocation against the documents alone; it shares no code with the search.

It says what is wrong with the devices that were chosen, not whether others would have been right too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ..cel import compile_derived, compile_selector, device_value
from ..cel.values import Semver
from ..quantity import read
from .features import Rules

Document = Mapping[str, Any]
_EFFECTS: Final = ("NoSchedule", "NoExecute")
_VALUES: Final = ("string", "int", "bool", "version")
_KINDS: Final = {str: "string", int: "int", bool: "bool", Semver: "version"}


def problems(
    rules: Rules,
    node: Document,
    slices: Sequence[Document],
    classes: Iterable[Document],
    held: Iterable[Document],
    claims: Sequence[Document],
    allocations: Sequence[Document],
) -> list[str]:
    """What is wrong with these allocations of these claims, in words; empty if nothing is.

    ``held`` are the claims that have their devices already. Rules about counters are those since 1.36.
    """
    world = _World(rules, node, slices, classes)
    taken = [each for claim in held for each in _results(claim.get("status", {}).get("allocation") or {})]
    found: list[str] = []
    new: list[Document] = []
    for claim, allocation in zip(claims, allocations, strict=True):
        results = list(_results(allocation))
        new += results
        found += _claim(world, claim, results, rules.features.device_taints)
    if any(_id(each) in world.ambiguous for each in new):
        return []  # two slices call a device by one name, each for a node of its own: names alone do not tell which
    found += _exclusive(world, taken, new, rules.consumable)
    if rules.release >= 36:
        found += _counters(world, taken, new)
    if rules.consumable:
        found += _capacity(world, taken, new)
    return found


class _World:
    def __init__(self, rules: Rules, node: Document, slices: Sequence[Document], classes: Iterable[Document]) -> None:
        self.release, self.lists = rules.release, rules.selectors_see_lists
        self.sharing = rules.selectors_see_sharing
        self.node: str = node["metadata"]["name"]
        self.classes = {each["metadata"]["name"]: each for each in classes}
        here = [each for each in slices if _there(self.node, each)]
        newest: dict[tuple[str, str], int] = {}
        for each in here:
            newest[_pool(each)] = max(newest.get(_pool(each), 0), each["spec"]["pool"].get("generation", 0))
        self.slices = [
            each for each in slices if each["spec"]["pool"].get("generation", 0) == newest.get(_pool(each), -1)
        ]
        self.devices: dict[tuple[str, str, str], tuple[Document, Document]] = {}
        self.ambiguous: set[tuple[str, str, str]] = set()
        for each in sorted(self.slices, key=lambda each: _there(self.node, each)):
            for device in each["spec"].get("devices") or ():
                identity = (*_pool(each), device["name"])
                if identity in self.devices:
                    self.ambiguous.add(identity)
                self.devices[identity] = each, device

    def complete(self, slice_: Document) -> bool:
        same = [each for each in self.slices if _pool(each) == _pool(slice_)]
        here = [each for each in same if _there(self.node, each)]
        counting = [each for each in same if each["spec"].get("sharedCounters") and not _there(self.node, each)]
        return slice_["spec"]["pool"].get("resourceSliceCount") in (len(same), len(here), len(here) + len(counting))

    def value(self, slice_: Document, device: Document) -> dict[str, object]:
        return device_value(
            slice_["spec"]["driver"],
            device.get("attributes") or {},
            {name: read(each["value"]) for name, each in (device.get("capacity") or {}).items()},
            shareable=bool(device.get("allowMultipleAllocations")) and self.sharing,
            lists=self.lists or self.release >= 37,
        )


def _there(node: str, slice_: Document) -> bool:
    """Whether the slice may be for the node; node selectors are left to the allocator."""
    return slice_["spec"].get("nodeName") in (None, node)


def _pool(slice_: Document) -> tuple[str, str]:
    return slice_["spec"]["driver"], slice_["spec"]["pool"]["name"]


def _results(allocation: Document) -> Iterator[Document]:
    yield from (allocation.get("devices") or {}).get("results") or ()


def _id(result: Document) -> tuple[str, str, str]:
    return result["driver"], result["pool"], result["device"]


def _claim(world: _World, claim: Document, results: list[Document], taints: bool) -> Iterator[str]:
    devices = claim["spec"]["devices"]
    for request in devices.get("requests") or ():
        mine = [each for each in results if each["request"].split("/")[0] == request["name"]]
        wish = request.get("exactly")
        if wish is None:
            names = {each["request"] for each in mine}
            if len(names) != 1:
                yield f"request {request['name']}: {len(names)} alternatives have devices, not one"
                continue
            name = names.pop().partition("/")[2]
            wish = next(each for each in request["firstAvailable"] if each["name"] == name)
        if wish.get("allocationMode") == "ExactCount" and len(mine) != wish["count"]:
            yield f"request {request['name']}: {len(mine)} devices, not {wish['count']}"
        for each in mine:
            yield from _device(world, wish, each, taints)
    yield from _constraints(world, claim, results)


def _device(world: _World, wish: Document, result: Document, taints: bool) -> Iterator[str]:
    found = world.devices.get(_id(result))
    label = "/".join(_id(result))
    if found is None:
        yield f"{label}: no such device in the newest generation"
        return
    slice_, device = found
    if not _belongs(world, slice_, device):
        yield f"{label}: not there for node {world.node}"
    if world.release >= 36 and not world.complete(slice_):
        yield f"{label}: its pool is not complete"
    value = world.value(slice_, device)
    for owner in (world.classes[wish["deviceClassName"]].get("spec", {}), wish):
        for selector in owner.get("selectors") or ():
            expression = selector["cel"]["expression"]
            if not compile_selector(expression, world.release, world.lists).matches(value):
                yield f"{label}: {expression} is false"
    for taint in device.get("taints") or () if taints else ():
        tolerated = any(_tolerates(each, taint) for each in wish.get("tolerations") or ())
        if taint["effect"] in _EFFECTS and not tolerated:
            yield f"{label}: taint {taint['key']} is not tolerated"


def _belongs(world: _World, slice_: Document, device: Document) -> bool:
    spec = device if slice_["spec"].get("perDeviceNodeSelection") else slice_["spec"]
    if spec.get("nodeName"):
        return bool(spec["nodeName"] == world.node)
    return bool(spec.get("allNodes") or spec.get("nodeSelector"))


def _tolerates(toleration: Document, taint: Document) -> bool:
    if toleration.get("effect", "") not in ("", taint["effect"]) or toleration.get("key", "") not in ("", taint["key"]):
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")


def _constraints(world: _World, claim: Document, results: list[Document]) -> Iterator[str]:
    for constraint in claim["spec"]["devices"].get("constraints") or ():
        names = constraint.get("requests") or ()
        mine = [each for each in results if not names or _named(each["request"], names)]
        attribute = constraint.get("matchAttribute") or constraint.get("distinctAttribute") or ""
        values = [_attribute(world, each, attribute, _derived(claim, each, attribute)) for each in mine]
        if constraint.get("matchAttribute"):
            common = set.intersection(*values) if values else {""}
            if not common or (values and not all(values)):
                yield f"devices have no value of {attribute} in common"
        elif world.release >= 37:
            counts = Counter(value for each in values for value in each)
            if any(count > 1 for count in counts.values()):
                yield f"devices share a value of {attribute}"


def _named(request: str, names: Iterable[str]) -> bool:
    return request in names or request.partition("/")[0] in names


def _derived(claim: Document, result: Document, attribute: str) -> str:
    """The expression of a derived attribute of the result's request, if it has one of this name."""
    name, _, alternative = result["request"].partition("/")
    for request in claim["spec"]["devices"]["requests"]:
        for wish in (request.get("exactly") or {}, *(request.get("firstAvailable") or ())):
            if request["name"] == name and (not alternative or wish.get("name") == alternative):
                for each in wish.get("derivedAttributes") or ():
                    if each["name"] == attribute:
                        return str(each["expression"])
    return ""


def _attribute(world: _World, result: Document, name: str, derived: str) -> set[object]:
    if _id(result) not in world.devices:
        return set()
    slice_, device = world.devices[_id(result)]
    if derived and world.release >= 37:
        value, _ = compile_derived(derived, world.release).run(world.value(slice_, device))
        return {(_KINDS[type(each)], str(each)) for each in (value if isinstance(value, list) else [value])}
    attributes = device.get("attributes") or {}
    domain, _, local = name.partition("/")
    found = attributes.get(name) or (attributes.get(local) if slice_["spec"]["driver"] == domain else None) or {}
    for kind in _VALUES:
        if found.get(f"{kind}s"):
            return {(kind, str(value)) for value in found[f"{kind}s"]}
        if found.get(kind) is not None:
            return {(kind, str(found[kind]))}
    return set()


def _exclusive(world: _World, taken: list[Document], new: list[Document], sharing: bool) -> Iterator[str]:
    owners = Counter(
        _id(each) for each in taken if not each.get("adminAccess") and not (sharing and each.get("shareID"))
    )
    for each in new:
        if each.get("adminAccess"):
            continue
        if each.get("shareID"):
            if owners[_id(each)]:
                yield f"{'/'.join(_id(each))}: a share of a device that somebody has whole"
            continue
        owners[_id(each)] += 1
        if owners[_id(each)] > 1:
            yield f"{'/'.join(_id(each))}: given to more than one request"


def _counters(world: _World, taken: list[Document], new: list[Document]) -> Iterator[str]:
    """Sums the counters of every pool that a new device draws on; a device in use draws once, however many shares."""
    before = {_id(each) for each in taken if not each.get("adminAccess")}
    drawing = {_id(each) for each in new if not each.get("adminAccess")} - before
    touched = {(driver, pool) for driver, pool, _ in drawing}
    left: Counter[tuple[str, str, str, str]] = Counter()
    for each in world.slices:
        for sets in each["spec"].get("sharedCounters") or () if _pool(each) in touched else ():
            for name, counter in sets["counters"].items():
                left[(*_pool(each), sets["name"], name)] += read(counter["value"]).nanos
    for identity in drawing | before:
        for key, nanos in _drawn(world, identity) if identity[:2] in touched else ():
            left[key] -= nanos
    for key in sorted({key for identity in drawing for key, _ in _drawn(world, identity)}):
        if left[key] < 0:
            yield f"counter {'/'.join(key)} is overdrawn"


def _drawn(world: _World, identity: tuple[str, str, str]) -> Iterator[tuple[tuple[str, str, str, str], int]]:
    _, device = world.devices.get(identity, ({}, {}))
    for consumption in device.get("consumesCounters") or ():
        for name, counter in consumption["counters"].items():
            yield (*identity[:2], consumption["counterSet"], name), read(counter["value"]).nanos


def _capacity(world: _World, taken: list[Document], new: list[Document]) -> Iterator[str]:
    used: Counter[tuple[str, str, str, str]] = Counter()
    for each in [*taken, *new]:
        for name, amount in (each.get("consumedCapacity") or {}).items():
            used[(*_id(each), name)] += read(amount).nanos
    for each in new:
        _, device = world.devices.get(_id(each), ({}, {}))
        for name in each.get("consumedCapacity") or {}:
            whole = (device.get("capacity") or {}).get(name, {"value": "0"})
            if used[(*_id(each), name)] > read(whole["value"]).nanos:
                yield f"capacity {name} of {'/'.join(_id(each))} is used up"
