"""Slices and devices as the search needs them, read once from their documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..cel import device_value
from ..quantity import Quantity
from .fields import Document, Reader, document
from .nodes import NodeSelector, selector

_SPEC: Final = frozenset(
    [
        "driver",
        "pool",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "devices",
        "perDeviceNodeSelection",
        "sharedCounters",
        "skipNodeOperations",
        "partitionTypeAttribute",
    ]
)
_DEVICE: Final = frozenset(
    [
        "name",
        "attributes",
        "capacity",
        "consumesCounters",
        "nodeName",
        "nodeSelector",
        "allNodes",
        "taints",
        "bindsToNode",
        "bindingConditions",
        "bindingFailureConditions",
        "allowMultipleAllocations",
        "nodeAllocatableResourceMappings",
        "nodeAllocatableResources",
    ]
)
_POOL: Final = frozenset(("name", "generation", "resourceSliceCount"))
_ATTRIBUTE: Final = frozenset(("int", "bool", "string", "version", "ints", "bools", "strings", "versions"))
_CAPACITY: Final = frozenset(("value", "requestPolicy"))
_POLICY: Final = frozenset(("default", "validValues", "validRange"))
_RANGE: Final = frozenset(("min", "max", "step"))
_COUNTER: Final = frozenset(("value",))
_CONSUMPTION: Final = frozenset(("counterSet", "counters", "compatibilityGroups"))
_TAINT: Final = frozenset(("key", "value", "effect", "timeAdded"))

DeviceID = tuple[str, str, str]
"""Driver, pool and device."""
PoolID = tuple[str, str]
"""Driver and pool."""
CounterID = tuple[str, str]
"""Counter set and counter."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests for a shareable capacity are rounded."""

    default: Quantity | None
    values: tuple[Quantity, ...] | None
    has_range: bool
    minimum: Quantity | None
    maximum: Quantity | None
    step: Quantity | None


@dataclass(frozen=True, slots=True)
class Capacity:
    """One capacity of a device."""

    value: Quantity
    policy: Policy | None


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint, from the slice or from a DeviceTaintRule."""

    key: str
    value: str
    effect: str


@dataclass(frozen=True, slots=True)
class Consumption:
    """What a device takes from one counter set, in billionths."""

    counter_set: str
    counters: tuple[tuple[CounterID, int], ...]
    groups: frozenset[str]


class Device:
    """One device of a slice."""

    __slots__ = (
        "_value",
        "all_nodes",
        "attributes",
        "binding",
        "binding_failures",
        "binds",
        "capacity",
        "consumes",
        "id",
        "index",
        "matches",
        "name",
        "node_name",
        "node_selector",
        "shareable",
        "slice",
        "taints",
    )

    def __init__(self, reader: Reader, owner: Slice, index: int) -> None:
        reader.known(_DEVICE)
        self.name = reader.text("name")
        self.slice = owner
        self.index = index
        self.id: DeviceID = (owner.driver, owner.pool, self.name)
        self.attributes = _attributes(reader)
        self.capacity = {name: _capacity(inner) for name, inner in reader.items("capacity")}
        has = reader.raw.keys()
        self.consumes = tuple(map(_consumption, reader.each("consumesCounters"))) if "consumesCounters" in has else ()
        self.node_name = reader.text("nodeName")
        self.node_selector = selector(reader.sub("nodeSelector"))
        self.all_nodes = bool(reader.flag("allNodes"))
        self.taints = tuple(map(taint, reader.each("taints"))) if "taints" in has else ()
        self.binds = bool(reader.flag("bindsToNode"))
        self.binding = reader.texts("bindingConditions")
        self.binding_failures = reader.texts("bindingFailureConditions")
        self.shareable = bool(reader.flag("allowMultipleAllocations"))
        self.matches: dict[str, bool] = {}
        self._value: dict[str, object] | None = None

    def value(self, *, lists: bool, sharing: bool) -> dict[str, object]:
        """The device as selectors see it.

        Raises:
            EvaluationError: an attribute without a value that the release knows.
        """
        if self._value is None:
            amounts = {name: each.value for name, each in self.capacity.items()}
            shareable = self.shareable and sharing
            self._value = device_value(self.slice.driver, self.attributes, amounts, shareable=shareable, lists=lists)
        return self._value


class Slice:
    """One ResourceSlice; its devices are read when they are first asked for."""

    __slots__ = (
        "_devices",
        "_reader",
        "all_nodes",
        "count",
        "counter_sets",
        "driver",
        "generation",
        "has_per_device",
        "name",
        "node_name",
        "node_selector",
        "per_device",
        "pool",
        "position",
        "rules",
        "skip_operations",
    )

    def __init__(self, value: Document, position: int, unsupported: list[str]) -> None:
        self.name, _, whole = document(value, "ResourceSlice", unsupported)
        self.position = position
        spec = whole.need("spec")
        spec.known(_SPEC)
        pool = spec.need("pool")
        pool.known(_POOL)
        self.driver = spec.text("driver")
        self.pool = pool.text("name")
        self.generation = pool.number("generation")
        self.count = pool.number("resourceSliceCount")
        self.node_name = spec.text("nodeName")
        self.node_selector = selector(spec.sub("nodeSelector"))
        self.all_nodes = bool(spec.flag("allNodes"))
        self.has_per_device = spec.has("perDeviceNodeSelection")
        self.per_device = bool(spec.flag("perDeviceNodeSelection"))
        self.counter_sets = [_counter_set(each) for each in spec.each("sharedCounters")]
        self.skip_operations = spec.texts("skipNodeOperations") or ()
        self.rules: list[tuple[str | None, Taint]] = []
        self._reader = spec
        self._devices: list[Device] | None = None

    @property
    def pool_id(self) -> PoolID:
        """Driver and pool."""
        return self.driver, self.pool

    @property
    def devices(self) -> list[Device]:
        """The devices, with the taints of the rules that select them.

        Raises:
            DocumentError: a device that cannot be read.
        """
        if self._devices is None:
            self._devices = [Device(each, self, index) for index, each in enumerate(self._reader.each("devices"))]
            for wanted, extra in self.rules:
                for device in self._devices:
                    if wanted is None or wanted == device.name:
                        device.taints = (*device.taints, extra)
        return self._devices

    def uses_groups(self) -> bool:
        """Whether a device declares compatibility groups."""
        return any(each.groups for device in self.devices for each in device.consumes)


def _attributes(reader: Reader) -> Mapping[str, Mapping[str, Any]]:
    whole = reader.raw.get("attributes")
    if whole is None:
        return {}
    if type(whole) is dict and all(type(each) is dict and each.keys() <= _ATTRIBUTE for each in whole.values()):
        return whole  # the usual case, without a reader for each of many thousand attributes
    found = {}
    for name, inner in reader.items("attributes"):
        inner.known(_ATTRIBUTE)
        found[name] = inner.raw
    return found


def taint(reader: Reader) -> Taint:
    """A taint."""
    reader.known(_TAINT)
    return Taint(reader.text("key"), reader.text("value"), reader.text("effect"))


def _counter_set(reader: Reader) -> tuple[str, dict[str, int]]:
    reader.known(frozenset(("name", "counters")))
    return reader.text("name"), {name: _counter(each) for name, each in reader.items("counters")}


def _counter(reader: Reader) -> int:
    reader.known(_COUNTER)
    value = reader.quantity("value")
    return value.nanos if value else 0


def _consumption(reader: Reader) -> Consumption:
    reader.known(_CONSUMPTION)
    name = reader.text("counterSet")
    counters = tuple(((name, counter), _counter(each)) for counter, each in reader.items("counters"))
    return Consumption(name, counters, frozenset(reader.texts("compatibilityGroups") or ()))


def _capacity(reader: Reader) -> Capacity:
    reader.known(_CAPACITY)
    policy = reader.sub("requestPolicy")
    return Capacity(reader.quantity("value") or Quantity(0), _policy(policy) if policy else None)


def _policy(reader: Reader) -> Policy:
    reader.known(_POLICY)
    bounds = reader.sub("validRange")
    if bounds is not None:
        bounds.known(_RANGE)
    values: tuple[Quantity, ...] | None = None
    if reader.has("validValues"):
        listed = Reader({str(i): v for i, v in enumerate(reader.raw["validValues"])}, reader.path, reader.unsupported)
        values = tuple(found for name in listed.raw if (found := listed.quantity(name)) is not None)
    return Policy(
        reader.quantity("default"),
        values,
        bounds is not None,
        bounds.quantity("min") if bounds else None,
        bounds.quantity("max") if bounds else None,
        bounds.quantity("step") if bounds else None,
    )


__all__ = [
    "Capacity",
    "Consumption",
    "CounterID",
    "Device",
    "DeviceID",
    "NodeSelector",
    "Policy",
    "PoolID",
    "Slice",
    "Taint",
    "taint",
]
