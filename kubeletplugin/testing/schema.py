"""How the API server reads JSON: types are checked, unknown fields fall away, quantities and times become canonical."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from kubeletplugin.quantity import QuantityError, parse_quantity

_QUANTITY_SYNTAX = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_INT64 = range(-(2**63), 2**63)


class DecodeError(ValueError):
    """The document is not of the kind's types; the server answers 400."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """``kind`` is the Go type, ``default`` what stands where the field is absent (None: nothing)."""

    kind: str
    default: Any = None
    keep_empty: bool = True
    """False: an empty text is not stored."""


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list."""

    item: Type
    kind: str


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with data as keys."""

    item: Type
    kind: str


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields; all others are dropped."""

    kind: str
    fields: Mapping[str, Type] = field(default_factory=dict)
    always: bool = False
    """There even where the document leaves it out."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Not looked at."""


Type: TypeAlias = Scalar | ListOf | MapOf | Struct | Anything

STRING = Scalar("string")
TEXT = Scalar("string", default="")
OPTIONAL_TEXT = Scalar("string", keep_empty=False)
INT = Scalar("int64")
NUMBER = Scalar("int64", default=0)
BOOL = Scalar("bool")
QUANTITY = Scalar("quantity", default="0")
OPTIONAL_QUANTITY = Scalar("quantity")
TIME = Scalar("time")


def strings(kind: str = "[]string") -> ListOf:
    """A list of texts."""
    return ListOf(STRING, kind)


_ATTRIBUTE = Struct(
    "DeviceAttribute",
    {
        "int": INT,
        "bool": BOOL,
        "string": STRING,
        "version": STRING,
        "ints": ListOf(INT, "[]int64"),
        "bools": ListOf(BOOL, "[]bool"),
        "strings": strings(),
        "versions": strings(),
    },
)
_POLICY = Struct(
    "CapacityRequestPolicy",
    {
        "default": OPTIONAL_QUANTITY,
        "validValues": ListOf(OPTIONAL_QUANTITY, "[]resource.Quantity"),
        "validRange": Struct(
            "CapacityRequestPolicyRange",
            {"min": OPTIONAL_QUANTITY, "max": OPTIONAL_QUANTITY, "step": OPTIONAL_QUANTITY},
        ),
    },
)
_COUNTERS = MapOf(Struct("Counter", {"value": QUANTITY}), "map[string]v1.Counter")
_TAINT = Struct("DeviceTaint", {"key": TEXT, "value": OPTIONAL_TEXT, "effect": TEXT, "timeAdded": TIME})
_SELECTOR = Struct("NodeSelector", {"nodeSelectorTerms": ListOf(Anything(), "[]v1.NodeSelectorTerm")})
_DEVICE = Struct(
    "Device",
    {
        "name": TEXT,
        "attributes": MapOf(_ATTRIBUTE, "map[v1.QualifiedName]v1.DeviceAttribute"),
        "capacity": MapOf(
            Struct("DeviceCapacity", {"value": QUANTITY, "requestPolicy": _POLICY}),
            "map[v1.QualifiedName]v1.DeviceCapacity",
        ),
        "consumesCounters": ListOf(
            Struct(
                "DeviceCounterConsumption",
                {"counterSet": TEXT, "counters": _COUNTERS, "compatibilityGroups": strings()},
            ),
            "[]v1.DeviceCounterConsumption",
        ),
        "nodeName": STRING,
        "nodeSelector": _SELECTOR,
        "allNodes": BOOL,
        "taints": ListOf(_TAINT, "[]v1.DeviceTaint"),
        "bindsToNode": BOOL,
        "bindingConditions": strings(),
        "bindingFailureConditions": strings(),
        "allowMultipleAllocations": BOOL,
        "nodeAllocatableResources": MapOf(Anything(), "map[v1.ResourceName]v1.NodeAllocatableResource"),
    },
)
SLICE_SPEC = Struct(
    "ResourceSliceSpec",
    {
        "driver": TEXT,
        "pool": Struct("ResourcePool", {"name": TEXT, "generation": NUMBER, "resourceSliceCount": NUMBER}, always=True),
        "nodeName": STRING,
        "nodeSelector": _SELECTOR,
        "allNodes": BOOL,
        "devices": ListOf(_DEVICE, "[]v1.Device"),
        "perDeviceNodeSelection": BOOL,
        "sharedCounters": ListOf(Struct("CounterSet", {"name": TEXT, "counters": _COUNTERS}), "[]v1.CounterSet"),
        "partitionTypeAttribute": STRING,
        "skipNodeOperations": strings("[]v1.SkipNodeOperation"),
    },
    always=True,
)


def decode(kind: Type, value: Any, path: str = "spec", owner: str = "") -> Any:
    """``value`` as the server understands it; nulls and unknown fields are gone, empty lists and maps are still there.

    Raises:
        DecodeError: something has the wrong type, worded as the Go decoder does.
    """
    if isinstance(kind, Anything):
        return value
    if isinstance(kind, Scalar):
        return _scalar(kind, value, path, owner)
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            raise _wrong(value, path, owner, kind.kind)
        return [decode(kind.item, entry, path, owner) for entry in value if entry is not None]
    if not isinstance(value, dict):
        raise _wrong(value, path, owner, kind.kind if isinstance(kind, MapOf) else f"v1.{kind.kind}")
    if isinstance(kind, MapOf):
        return {key: decode(kind.item, entry, path, owner) for key, entry in value.items()}
    return _struct(kind, value, path)


def _struct(kind: Struct, value: dict[str, Any], path: str) -> dict[str, Any]:
    result = {}
    for name, field_kind in kind.fields.items():
        entry = value.get(name)
        if entry is None:
            if isinstance(field_kind, Struct) and field_kind.always:
                result[name] = decode(field_kind, {}, f"{path}.{name}", kind.kind)
            elif isinstance(field_kind, Scalar) and field_kind.default is not None:
                result[name] = field_kind.default
            continue
        decoded = decode(field_kind, entry, f"{path}.{name}", kind.kind)
        if decoded is not None:
            result[name] = decoded
    return result


def _scalar(kind: Scalar, value: Any, path: str, owner: str) -> Any:
    if kind.kind == "quantity":
        return _quantity(value)
    if kind.kind == "time":
        return _time(value)
    expected = {"string": str, "bool": bool, "int64": int}[kind.kind]
    if not isinstance(value, expected) or (kind.kind == "int64" and (isinstance(value, bool) or value not in _INT64)):
        raise _wrong(value, path, owner, kind.kind)
    return None if value == "" and not kind.keep_empty else value


def _quantity(value: Any) -> str:
    try:
        return str(parse_quantity(value))
    except QuantityError as error:
        raise DecodeError(_QUANTITY_SYNTAX) from error


def _time(value: Any) -> str:
    text = f'parsing time "{value}" as "2006-01-02T15:04:05Z07:00": cannot parse "{value}" as "2006"'
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError) as error:
        raise DecodeError(text) from error
    if moment.tzinfo is None:
        raise DecodeError(text)
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _wrong(value: Any, path: str, owner: str, wanted: str) -> DecodeError:
    found = {str: "string", bool: "bool", list: "array", dict: "object"}.get(type(value)) or f"number {value}"
    if isinstance(value, (int, float)) and not isinstance(value, bool) and wanted != "int64":
        found = "number"
    return DecodeError(f"json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}")


def without_empty(value: Any) -> Any:
    """As it is stored: lists and maps that are empty are left out, at every depth."""
    if isinstance(value, dict):
        kept = {key: without_empty(entry) for key, entry in value.items()}
        return {key: entry for key, entry in kept.items() if not (isinstance(entry, (list, dict)) and not entry)}
    if isinstance(value, list):
        return [without_empty(entry) for entry in value]
    return value
