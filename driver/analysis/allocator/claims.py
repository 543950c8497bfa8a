"""Claims and classes as the search needs them, and what is allocated already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from ..quantity import Quantity
from .fields import Document, Reader, document
from .model import DeviceID, Taint

RESULTS_MAX: Final = 32
"""AllocationResultsMaxSize of resource.k8s.io: devices one claim can hold."""

_REQUEST: Final = frozenset(
    [
        "name",
        "deviceClassName",
        "selectors",
        "allocationMode",
        "count",
        "adminAccess",
        "tolerations",
        "capacity",
        "derivedAttributes",
    ]
)
_OUTER: Final = frozenset(("name", "exactly", "firstAvailable"))
_DEVICES: Final = frozenset(("requests", "constraints", "config"))
_CONSTRAINT: Final = frozenset(("requests", "matchAttribute", "distinctAttribute"))
_TOLERATION: Final = frozenset(("key", "operator", "value", "effect", "tolerationSeconds"))
_CLASS: Final = frozenset(("selectors", "config", "extendedResourceName"))


@dataclass(frozen=True, slots=True)
class Toleration:
    """One toleration of a request."""

    key: str
    operator: str
    value: str
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """As upstream's ``ToleratesTaint``: an empty key or effect means any."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        if self.operator in ("", "Equal"):
            return self.value == taint.value
        return self.operator == "Exists"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """Selectors and configuration of a class; a selector that is no CEL is None."""

    name: str
    selectors: tuple[str | None, ...]
    config: tuple[Mapping[str, Any], ...]


@dataclass(slots=True)
class Request:
    """A request, or one alternative of ``firstAvailable`` (then ``parent`` names the request)."""

    name: str
    parent: str
    class_name: str
    selectors: tuple[str | None, ...]
    mode: str
    count: int
    admin: bool
    has_admin: bool
    tolerations: tuple[Toleration, ...]
    toleration_documents: tuple[Mapping[str, Any], ...]
    capacities: dict[str, Quantity] | None
    has_capacity: bool
    derived: dict[str, str]

    @property
    def full_name(self) -> str:
        """``request`` or ``request/alternative``."""
        return f"{self.parent}/{self.name}" if self.parent else self.name


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint: ``kind`` is match, distinct, or empty for one of an unknown type."""

    kind: str
    attribute: str
    requests: frozenset[str]

    def concerns(self, request: Request) -> bool:
        """Whether devices of this request fall under it."""
        if not self.requests:
            return True
        return (request.parent or request.name) in self.requests or request.full_name in self.requests


@dataclass(slots=True)
class Claim:
    """One claim to allocate; each entry of ``requests`` holds the alternatives of a request, or it alone."""

    key: str
    name: str
    requests: list[tuple[str, bool, list[Request]]] = field(default_factory=list)
    constraints: list[Constraint] = field(default_factory=list)
    config: tuple[Mapping[str, Any], ...] = ()


def device_class(value: Document, unsupported: list[str]) -> DeviceClass:
    """Read a DeviceClass.

    Raises:
        DocumentError: it cannot be read.
    """
    name, _, whole = document(value, "DeviceClass", unsupported)
    spec = whole.sub("spec")
    if spec is None:
        return DeviceClass(name, (), ())
    spec.known(_CLASS)
    return DeviceClass(name, _selectors(spec), tuple(each.raw for each in spec.each("config")))


def claim(value: Document, unsupported: list[str]) -> Claim:
    """Read a ResourceClaim.

    Raises:
        DocumentError: it cannot be read.
    """
    name, namespace, whole = document(value, "ResourceClaim", unsupported)
    found = Claim(f"{namespace}/{name}" if namespace else name, name)
    spec = whole.sub("spec")
    devices = spec.sub("devices") if spec else None
    if devices is None:
        return found
    devices.known(_DEVICES)
    for each in devices.each("requests"):
        found.requests.append(_request(each))
    for each in devices.each("constraints"):
        each.known(_CONSTRAINT)
        names = frozenset(each.texts("requests") or ())
        kind = "match" if each.has("matchAttribute") else "distinct" if each.has("distinctAttribute") else ""
        found.constraints.append(Constraint(kind, each.text(f"{kind}Attribute") if kind else "", names))
    found.config = tuple(each.raw for each in devices.each("config"))
    return found


def _request(reader: Reader) -> tuple[str, bool, list[Request]]:
    reader.known(_OUTER)
    name = reader.text("name")
    alternatives = list(reader.each("firstAvailable"))
    if alternatives:
        return name, True, [_one(each, each.text("name"), name) for each in alternatives]
    return name, False, [_one(reader.need("exactly"), name, "")]


def _one(reader: Reader, name: str, parent: str) -> Request:
    reader.known(_REQUEST if parent else _REQUEST - {"name"})
    capacity = reader.sub("capacity")
    wanted: dict[str, Quantity] | None = None
    if capacity is not None:
        capacity.known(frozenset(("requests",)))
        asked = capacity.sub("requests")
        if asked is not None:
            wanted = {key: asked.quantity(key) or Quantity(0) for key in asked.raw}
    tolerations = list(reader.each("tolerations"))
    return Request(
        name=name,
        parent=parent,
        class_name=reader.text("deviceClassName"),
        selectors=_selectors(reader),
        mode=reader.text("allocationMode"),
        count=reader.number("count"),
        admin=bool(reader.flag("adminAccess")) and not parent,
        has_admin=reader.has("adminAccess") and not parent,
        tolerations=tuple(map(_toleration, tolerations)),
        toleration_documents=tuple(each.raw for each in tolerations),
        capacities=wanted,
        has_capacity=capacity is not None,
        derived={each.text("name"): each.text("expression") for each in reader.each("derivedAttributes")},
    )


def _toleration(reader: Reader) -> Toleration:
    reader.known(_TOLERATION)
    return Toleration(reader.text("key"), reader.text("operator"), reader.text("value"), reader.text("effect"))


def _selectors(reader: Reader) -> tuple[str | None, ...]:
    found: list[str | None] = []
    for each in reader.each("selectors"):
        each.known(frozenset(("cel",)))
        cel = each.sub("cel")
        found.append(cel.text("expression") if cel else None)
    return tuple(found)


@dataclass
class Allocated:
    """What claims hold: whole devices, shares of devices, and the capacity that the shares use, in billionths."""

    devices: set[DeviceID] = field(default_factory=set)
    shares: set[tuple[DeviceID, str]] = field(default_factory=set)
    capacity: dict[DeviceID, dict[str, int]] = field(default_factory=dict)

    @cached_property
    def shared(self) -> frozenset[DeviceID]:
        """The devices that somebody has a share of, when this is first asked for."""
        return frozenset(device for device, _ in self.shares)

    @cached_property
    def everything(self) -> frozenset[DeviceID]:
        """The devices that are in use in any way, when this is first asked for."""
        return frozenset(self.devices) | self.shared | self.capacity.keys()

    def consume(self, device: DeviceID, name: str, nanos: int) -> None:
        """Add to what is used of one capacity."""
        used = self.capacity.setdefault(device, {})
        used[name] = used.get(name, 0) + nanos


def allocated(claims: Iterable[Document], *, consumable: bool) -> Allocated:
    """What these claims hold, as the scheduler counts it: admin access does not count.

    Raises:
        DocumentError: an allocation that cannot be read.
    """
    found = Allocated()
    for value in claims:
        _, _, whole = document(value, "ResourceClaim", [])
        status = whole.sub("status")
        allocation = status.sub("allocation") if status else None
        devices = allocation.sub("devices") if allocation else None
        for result in devices.each("results") if devices else ():
            if result.flag("adminAccess"):
                continue
            device = result.text("driver"), result.text("pool"), result.text("device")
            if not (consumable and result.has("shareID")):
                found.devices.add(device)
                continue
            found.shares.add((device, result.text("shareID")))
            consumed = result.sub("consumedCapacity")
            if consumed is not None:
                found.capacity.setdefault(device, {})
                for name in consumed.raw:
                    found.consume(device, name, (consumed.quantity(name) or Quantity(0)).nanos)
    return found
