"""What differs between a slice as wanted and as stored: by meaning, not by spelling.

An absent field equals an empty one, quantities compare as numbers, and ``timeAdded`` of a taint is the server's to set.
Everything else must be the same, fields that this library has never heard of included. Source of the rules:
apiequality.Semantic and DevicesDeepEqual of k8s.io/dynamic-resource-allocation/resourceslice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from kubeletplugin.api import JSON, Slice
from kubeletplugin.quantity import QuantityError, parse_quantity

Path: TypeAlias = tuple[str | int, ...]

ANY = "*"
_POLICY = ("requestPolicy",)
_RANGE = (*_POLICY, "validRange")
_CAPACITY = ("devices", ANY, "capacity", ANY)
_ALLOCATABLE = ("devices", ANY, "nodeAllocatableResources", ANY)
_QUANTITIES: frozenset[tuple[str, ...]] = frozenset(
    [
        ("sharedCounters", ANY, "counters", ANY, "value"),
        ("devices", ANY, "consumesCounters", ANY, "counters", ANY, "value"),
        (*_CAPACITY, "value"),
        (*_CAPACITY, *_POLICY, "default"),
        (*_CAPACITY, *_POLICY, "validValues", ANY),
        (*_CAPACITY, *_RANGE, "min"),
        (*_CAPACITY, *_RANGE, "max"),
        (*_CAPACITY, *_RANGE, "step"),
        (*_ALLOCATABLE, "mapping", "capacityMultiplier"),
        (*_ALLOCATABLE, "mapping", "deviceMultiplier"),
        (*_ALLOCATABLE, "overhead", "perPod"),
        (*_ALLOCATABLE, "overhead", "perContainer"),
    ]
)
_TAINT = ("devices", ANY, "taints", ANY)
_KEYED_BY_DRIVER = frozenset({"attributes", "capacity", "counters", "nodeAllocatableResources"})
"""Maps whose keys are data: they stand as ``*`` in patterns."""

_TEXT_ONLY = frozenset({"string", "version", "capacity", "counters", "consumesCounters"})
"""Fields with nothing below them but text: no number that equals a boolean."""

_GATES: tuple[tuple[str, str], ...] = (
    ("taints", "DRADeviceTaints"),
    ("sharedCounters", "DRAPartitionableDevices"),
    ("consumesCounters", "DRAPartitionableDevices"),
    ("perDeviceNodeSelection", "DRAPartitionableDevices"),
    ("bindsToNode", "DRADeviceBindingConditions"),
    ("bindingConditions", "DRADeviceBindingConditions"),
    ("bindingFailureConditions", "DRADeviceBindingConditions"),
    ("allowMultipleAllocations", "DRAConsumableCapacity"),
    ("requestPolicy", "DRAConsumableCapacity"),
    ("partitionTypeAttribute", "DRAPartitionableDevicesType"),
    ("skipNodeOperations", "DRAOptionalNodeOperations"),
    ("nodeAllocatableResources", "DRANodeAllocatableResources"),
    ("ints", "DRAListTypeAttributes"),
    ("bools", "DRAListTypeAttributes"),
    ("strings", "DRAListTypeAttributes"),
    ("versions", "DRAListTypeAttributes"),
)


def differences(wanted: Any, stored: Any) -> list[Path]:
    """Paths below ``spec`` at which two specs (or parts of one, from the top) mean different things."""
    return list(_walk((), wanted, stored))


def _walk(path: Path, wanted: Any, stored: Any) -> Iterator[Path]:
    if _empty(wanted) and _empty(stored):
        return
    # As a rule the server spells a thing as it was sent; with text alone in it, Python finds it equal at one go.
    field = path[-1] if path else None
    if field in _TEXT_ONLY and wanted == stored:
        return
    if field == "attributes" and wanted == stored and _same_types(wanted, stored):
        return
    if isinstance(wanted, dict) and isinstance(stored, dict):
        for key in sorted(wanted.keys() | stored.keys()):
            yield from _walk((*path, key), wanted.get(key), stored.get(key))
    elif _is_list(wanted) and _is_list(stored):
        yield from _walk_lists(path, wanted, stored)
    elif not _same_value(path, wanted, stored):
        yield path


def _same_types(wanted: JSON, stored: JSON) -> bool:
    """Of two equal maps of attributes, whether numbers and booleans are told apart; lists are looked at one by one."""
    return all(
        type(value) is type(other) and type(value) is not list
        for key, attribute in wanted.items()
        for value, other in zip(attribute.values(), stored[key].values(), strict=True)
    )


def _walk_lists(path: Path, wanted: Sequence[Any], stored: Sequence[Any]) -> Iterator[Path]:
    if len(wanted) != len(stored):
        yield path
        return
    for index, (left, right) in enumerate(zip(wanted, stored, strict=True)):
        yield from _walk((*path, index), left, right)


def _empty(value: Any) -> bool:
    return value is None or (isinstance(value, (dict, list, tuple)) and not value)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _same_value(path: Path, wanted: Any, stored: Any) -> bool:
    if type(wanted) is type(stored) and wanted == stored:
        return True
    pattern = _pattern(path)
    if pattern in _QUANTITIES:
        return _same_quantity(wanted, stored)
    if pattern == (*_TAINT, "timeAdded"):
        return wanted is None or _same_time(wanted, stored)
    # The server leaves an empty taint value out.
    return pattern == (*_TAINT, "value") and (wanted or "") == (stored or "")


def _same_quantity(wanted: Any, stored: Any) -> bool:
    try:
        return parse_quantity(wanted) == parse_quantity(stored)
    except QuantityError:
        return False


def _same_time(wanted: Any, stored: Any) -> bool:
    """The server keeps whole seconds."""
    try:
        return abs(datetime.fromisoformat(wanted) - datetime.fromisoformat(stored)) <= timedelta(seconds=1)
    except (TypeError, ValueError):
        return False


def _pattern(path: Path) -> tuple[str, ...]:
    """``path`` with list positions and the keys of maps replaced by ``*``."""
    pattern: list[str] = []
    for step in path:
        keyed = pattern and pattern[-1] in _KEYED_BY_DRIVER
        pattern.append(ANY if keyed or isinstance(step, int) else step)
    return tuple(pattern)


def without_positions(paths: Iterable[Path]) -> tuple[str, ...]:
    """The paths as a person reads them, each kind once: ``devices[*].taints``."""
    return tuple(sorted({re.sub(r"\.?\*", "[*]", ".".join(_pattern(path))) for path in paths}))


def feature_gates(paths: Iterable[Path]) -> tuple[str, ...]:
    """The feature gates that govern the fields at ``paths``, as far as they are known."""
    gates = set()
    for path in paths:
        # Only field names: a device attribute may be called "taints" as well.
        names = set(_pattern(path))
        if "compatibilityGroups" in names:
            gates.add("DRADeviceCompatibilityGroups")
            continue
        gates.update(gate for field, gate in _GATES if field in names)
    return tuple(sorted(gates))


def gates_of(content: Slice) -> frozenset[str]:
    """The feature gates that govern fields which the content uses, as far as they are known."""
    whole = {"devices": content.devices, "sharedCounters": content.shared_counters}
    names = {
        "perDeviceNodeSelection": content.per_device_node_selection,
        "skipNodeOperations": content.skip_node_operations,
        "partitionTypeAttribute": content.partition_type_attribute,
    }
    used = [path for part, value in whole.items() for path in _used((part,), value)]
    return frozenset(feature_gates([*used, *((name,) for name, value in names.items() if value)]))


def _used(path: Path, value: Any) -> Iterator[Path]:
    """The paths of everything that is not empty."""
    if _empty(value):
        return
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _used((*path, key), part)
    elif _is_list(value):
        for index, part in enumerate(value):
            yield from _used((*path, index), part)


def keep_time_added(wanted: Sequence[JSON], stored: Sequence[JSON]) -> list[JSON]:
    """``wanted`` devices, with ``timeAdded`` of taints that are already stored with the same key, value and effect.

    Without this a taint would look as if it were new with each update, and tolerations with a time would start again.
    """
    known = {
        (device.get("name"), *_taint_key(taint)): taint["timeAdded"]
        for device in stored
        for taint in device.get("taints") or ()
        if taint.get("timeAdded")
    }
    if not known:
        return list(wanted)
    return [_with_times(device, known) for device in wanted]


def _taint_key(taint: JSON) -> tuple[Any, Any, Any]:
    return taint.get("key"), taint.get("value") or "", taint.get("effect")


def _with_times(device: JSON, known: dict[tuple[Any, ...], str]) -> JSON:
    taints = device.get("taints")
    if not taints:
        return device
    dated = []
    for taint in taints:
        time = known.get((device.get("name"), *_taint_key(taint)))
        dated.append({**taint, "timeAdded": time} if time and not taint.get("timeAdded") else taint)
    return {**device, "taints": dated}
