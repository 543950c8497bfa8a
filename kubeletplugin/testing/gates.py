"""What kube-apiserver does to a ResourceSlice before it validates it: fields of disabled feature gates fall away.

A field that the stored object uses already is kept (registry/resource/resourceslice/strategy.go, dropDisabledFields).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kubeletplugin.api import JSON

DEFAULT_GATES = frozenset(
    {"DRADeviceTaints", "DRAPartitionableDevices", "DRADeviceBindingConditions", "DRAConsumableCapacity"}
)
"""On in Kubernetes 1.36 and 1.37."""

_LISTS = ("ints", "bools", "strings", "versions")

_DEVICE_FIELDS: dict[str, tuple[str, ...]] = {
    "DRADeviceTaints": ("taints",),
    "DRAPartitionableDevices": ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
    "DRADeviceBindingConditions": ("bindsToNode", "bindingConditions", "bindingFailureConditions"),
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRANodeAllocatableResources": ("nodeAllocatableResources",),
}
_SPEC_FIELDS: dict[str, tuple[str, ...]] = {
    "DRAPartitionableDevices": ("sharedCounters", "perDeviceNodeSelection"),
    "DRAPartitionableDevicesType": ("partitionTypeAttribute",),
    "DRAOptionalNodeOperations": ("skipNodeOperations",),
}
_NESTED: dict[str, Callable[[JSON], Iterable[tuple[JSON, str]]]] = {
    "DRAConsumableCapacity": lambda device: (
        (capacity, "requestPolicy") for capacity in (device.get("capacity") or {}).values()
    ),
    "DRADeviceCompatibilityGroups": lambda device: (
        (consumption, "compatibilityGroups") for consumption in device.get("consumesCounters") or ()
    ),
    "DRAListTypeAttributes": lambda device: (
        (attribute, name) for attribute in (device.get("attributes") or {}).values() for name in _LISTS
    ),
}
GATES = frozenset(_DEVICE_FIELDS) | frozenset(_SPEC_FIELDS) | frozenset(_NESTED)


def drop_disabled_fields(spec: JSON, old: JSON | None, enabled: Iterable[str]) -> None:
    """Remove from ``spec`` (in place) what is governed by gates that are off and that ``old`` does not use."""
    for gate in GATES - frozenset(enabled):
        if old is None or not any(name in holder and holder[name] for holder, name in _fields(old, gate)):
            for holder, name in _fields(spec, gate):
                holder.pop(name, None)


def _fields(spec: JSON, gate: str) -> list[tuple[dict[str, Any], str]]:
    """Where the fields of ``gate`` stand, or would."""
    places = [(spec, name) for name in _SPEC_FIELDS.get(gate, ())]
    for device in spec.get("devices") or ():
        places += [(device, name) for name in _DEVICE_FIELDS.get(gate, ())]
        places += _NESTED[gate](device) if gate in _NESTED else ()
    return places
