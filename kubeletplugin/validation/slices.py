"""Rules of ResourceSlice (resource.k8s.io/v1) for create and update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kubeletplugin.api import JSON
from kubeletplugin.validation.fields import (
    Errors,
    FieldError,
    Kind,
    check_all,
    check_list,
    check_map,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from kubeletplugin.validation.metadata import immutable
from kubeletplugin.validation.names import (
    check_driver_name,
    check_pool_name,
    check_qualified_name,
    dns_label,
    dns_subdomain,
    is_semver,
    label_key,
    label_value,
)
from kubeletplugin.validation.policies import check_capacity

MAX_DEVICES = 128
MAX_DEVICES_ADVANCED = 64
"""As soon as one device of the slice has taints, consumes counters or has an attribute of a list type."""
MAX_COUNTER_SETS = 8
MAX_COUNTERS = 32
MAX_CONSUMED_SETS = 2
MAX_ATTRIBUTES_AND_CAPACITIES = 32
MAX_ATTRIBUTE_VALUES = 48
MAX_STRING = 64
MAX_TAINTS = 16
MAX_CONDITIONS = 4
EFFECTS = ("NoExecute", "NoSchedule", "None")

_VALUES = ("int", "bool", "string", "version", "ints", "bools", "strings", "versions")
_LISTS = ("bools", "ints", "strings", "versions")
_NODES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_DEVICE_NODES = ("nodeName", "nodeSelector", "allNodes")
_ONE_NODE_FIELD = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONE_DEVICE_NODE_FIELD = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true "
    "in the ResourceSlice spec"
)


def validate_slice(spec: JSON, old: JSON | None = None) -> Errors:
    """Faults of ``spec``; with ``old`` (the stored spec) those of an update.

    Args:
        spec: of the right types throughout (the server answers 400 before it gets here otherwise).
        old: fields that may not change are compared with it, and unchanged capacities and taints are let pass.
    """
    errors = check_driver_name("spec.driver", spec.get("driver", ""))
    errors += _check_pool("spec.pool", spec.get("pool") or {})
    if old is not None:
        errors += immutable("spec.pool.name", spec.get("pool", {}).get("name"), old.get("pool", {}).get("name"))
        errors += immutable("spec.driver", spec.get("driver"), old.get("driver"))
        errors += immutable("spec.nodeName", spec.get("nodeName"), old.get("nodeName"))
    errors += _check_nodes(spec)
    if spec.get("sharedCounters") is not None and spec.get("devices") is not None:
        errors.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    errors += _check_devices(spec, old)
    errors += check_list(
        "spec.sharedCounters",
        spec.get("sharedCounters") or [],
        MAX_COUNTER_SETS,
        _check_counter_set,
        key=lambda entry: entry.get("name"),
        shown=lambda entry: entry,
    )
    errors += _check_skipped(spec.get("skipNodeOperations") or [])
    return errors


def _check_pool(field: str, pool: JSON) -> Errors:
    errors = check_pool_name(f"{field}.name", pool.get("name", ""))
    count, generation = pool.get("resourceSliceCount", 0), pool.get("generation", 0)
    if count <= 0:
        errors.append(invalid(f"{field}.resourceSliceCount", count, "must be greater than zero"))
    if generation < 0:
        errors.append(invalid(f"{field}.generation", generation, "must be greater than or equal to zero"))
    return errors


def _check_nodes(spec: JSON) -> Errors:
    errors, chosen = _chosen("spec", spec, _NODES, "must be either unset or set to a non-empty string")
    selector = spec.get("nodeSelector")
    if selector is not None:
        errors += _check_selector("spec.nodeSelector", selector)
        terms = selector.get("nodeSelectorTerms") or []
        if len(terms) != 1:
            path = "spec.nodeSelector.nodeSelectorTerms"
            errors.append(invalid(path, terms, "must have exactly one node selector term"))
    if not chosen:
        errors.append(required("spec", _ONE_NODE_FIELD))
    elif len(chosen) > 1:
        shown = "{" + ", ".join(chosen) + "}"
        errors.append(invalid("spec", shown, f"{_ONE_NODE_FIELD}, but multiple fields are set"))
    return errors


def _chosen(path: str, holder: JSON, names: tuple[str, ...], empty_name: str) -> tuple[Errors, list[str]]:
    """Which of the fields that select nodes are set, and the faults of their values."""
    errors: Errors = []
    chosen: list[str] = []
    for name in names:
        value = holder.get(name)
        field = f"{path}.{name}"
        if value is None:
            continue
        if value is False:
            errors.append(invalid(field, value, "must be either unset or set to true"))
        elif value == "":
            errors.append(invalid(field, value, empty_name))
        else:
            chosen.append(f"`{name}`")
            if isinstance(value, str):
                errors += check_all(field, value, dns_subdomain(value))
    return errors, chosen


def _check_selector(field: str, selector: JSON) -> Errors:
    if not selector.get("nodeSelectorTerms"):
        return [required(f"{field}.nodeSelectorTerms", "must have at least one node selector term")]
    return []


def _check_devices(spec: JSON, old: JSON | None) -> Errors:
    devices = spec.get("devices") or []
    before = {device.get("name"): device for device in (old or {}).get("devices") or ()}
    limit = MAX_DEVICES_ADVANCED if any(_is_advanced(device) for device in devices) else MAX_DEVICES
    per_device = spec.get("perDeviceNodeSelection") is True

    def check(path: str, device: JSON) -> Errors:
        return _check_device(path, device, before.get(device.get("name")), per_device=per_device)

    return check_list("spec.devices", devices, limit, check, key=lambda device: device.get("name", ""))


def _is_advanced(device: JSON) -> bool:
    if device.get("taints") or device.get("consumesCounters"):
        return True
    return any(name in attribute for attribute in (device.get("attributes") or {}).values() for name in _LISTS)


def _check_device(path: str, device: JSON, old: JSON | None, *, per_device: bool) -> Errors:
    name = device.get("name", "")
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    errors = check_all(f"{path}.name", name, dns_label(name))
    total = len(attributes) + len(capacity)
    if total > MAX_ATTRIBUTES_AND_CAPACITIES:
        text = f"the total number of attributes and capacities must not exceed {MAX_ATTRIBUTES_AND_CAPACITIES}"
        errors.append(invalid(path, total, text))
    values = sum(_count_values(attribute) for attribute in attributes.values())
    if values > MAX_ATTRIBUTE_VALUES:
        text = f"the total number of attribute values must not exceed {MAX_ATTRIBUTE_VALUES}"
        errors.append(invalid(path, values, text))
    errors += check_map(f"{path}.attributes", attributes, None, check_qualified_name, _check_attribute)
    if old is None or (old.get("capacity") or {}) != capacity:
        shared = device.get("allowMultipleAllocations") is True
        errors += check_map(
            f"{path}.capacity",
            capacity,
            None,
            check_qualified_name,
            lambda field, entry: check_capacity(field, entry, shared=shared),
        )
    taints = device.get("taints") or []
    if old is None or (old.get("taints") or []) != taints:
        errors += check_list(f"{path}.taints", taints, MAX_TAINTS, _check_taint)
    errors += check_list(
        f"{path}.consumesCounters",
        device.get("consumesCounters") or [],
        MAX_CONSUMED_SETS,
        _check_consumption,
        key=lambda entry: entry.get("counterSet"),
        shown=lambda entry: entry,
    )
    errors += _check_device_nodes(path, device, per_device=per_device)
    return errors + _check_conditions(path, device)


def _count_values(attribute: JSON) -> int:
    return sum(len(attribute.get(name) or ()) for name in _LISTS) or 1


def _check_attribute(field: str, attribute: JSON) -> Errors:
    chosen = [name for name in _VALUES if attribute.get(name) is not None]
    errors: Errors = []
    for path, kind, value in _texts(field, attribute):
        if kind.startswith("version") and not is_semver(value):
            errors.append(invalid(path, value, "must be a string compatible with semver.org spec 2.0.0"))
        if len(value.encode("utf-8", "surrogatepass")) > MAX_STRING:
            errors.append(too_long(path, MAX_STRING))
    errors += [
        invalid(f"{field}.{name}", [], "must not be empty if specified") for name in _LISTS if attribute.get(name) == []
    ]
    choice = ", ".join(f"`{name}`" for name in _VALUES)
    if not chosen:
        errors.append(invalid(field, "", f"must specify one of: {choice}"))
    elif len(chosen) > 1:
        errors.append(invalid(field, "{" + ", ".join(chosen) + "}", f"must specify exactly one of: {choice}"))
    return errors


def _texts(field: str, attribute: JSON) -> Iterator[tuple[str, str, str]]:
    """Path, kind and text of every string or version in an attribute."""
    for name in ("string", "version"):
        if attribute.get(name) is not None:
            yield f"{field}.{name}", name, attribute[name]
    for name in ("strings", "versions"):
        for index, value in enumerate(attribute.get(name) or ()):
            yield f"{field}.{name}[{index}]", name, value


def _check_counter_set(field: str, counter_set: JSON) -> Errors:
    return _check_counters(field, counter_set, "name")


def _check_consumption(field: str, consumption: JSON) -> Errors:
    return _check_counters(field, consumption, "counterSet")


def _check_counters(field: str, holder: JSON, name_field: str) -> Errors:
    name, counters = holder.get(name_field, ""), holder.get("counters") or {}
    path = f"{field}.{name_field}"
    errors = check_all(path, name, dns_label(name)) if name else [required(path)]
    if not counters:
        return [*errors, required(f"{field}.counters")]

    def check_key(where: str, key: str) -> Errors:
        return check_all(where, key, dns_label(key))

    return errors + check_map(f"{field}.counters", counters, MAX_COUNTERS, check_key, lambda _field, _counter: [])


def _check_taint(field: str, taint: JSON) -> Errors:
    key, value, effect = taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")
    errors = check_all(f"{field}.key", key, label_key(key))
    errors += check_all(f"{field}.value", value, label_value(value))
    if not effect:
        errors.append(required(f"{field}.effect"))
    elif effect not in EFFECTS:
        errors.append(not_supported(f"{field}.effect", effect, EFFECTS))
    return errors


def _check_device_nodes(path: str, device: JSON, *, per_device: bool) -> Errors:
    if not per_device:
        if any(device.get(name) is not None for name in _DEVICE_NODES):
            text = (
                "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true "
                "in the ResourceSlice spec"
            )
            return [invalid(path, None, text)]
        return []
    errors, chosen = _chosen(path, device, _DEVICE_NODES, "must not be empty")
    if device.get("nodeSelector") is not None:
        errors += _check_selector(f"{path}.nodeSelector", device["nodeSelector"])
    if not chosen:
        errors.append(required(path, _ONE_DEVICE_NODE_FIELD))
    elif len(chosen) > 1:
        errors.append(invalid(path, "{" + ", ".join(chosen) + "}", _ONE_DEVICE_NODE_FIELD))
    return errors


def _check_conditions(path: str, device: JSON) -> Errors:
    binding: list[str] = device.get("bindingConditions") or []
    failing: list[str] = device.get("bindingFailureConditions") or []
    errors: Errors = []
    for name, conditions, others in (
        ("bindingConditions", binding, []),
        ("bindingFailureConditions", failing, binding),
    ):
        field = f"{path}.{name}"
        if len(conditions) > MAX_CONDITIONS:
            errors.append(too_many(field, len(conditions), MAX_CONDITIONS))
            continue
        for index, condition in enumerate(conditions):
            errors += check_all(f"{field}[{index}]", condition, label_key(condition))
            if condition in conditions[:index]:
                errors.append(FieldError(Kind.DUPLICATE, f"{field}[{index}]", condition))
            if condition in others:
                text = "bindingFailureConditions must not overlap with bindingConditions"
                errors.append(invalid(f"{field}[{index}]", condition, text))
    missing: Any = None
    if failing and not binding:
        text = "bindingConditions are required to use bindingFailureConditions"
        errors.append(invalid(f"{path}.bindingConditions", missing, text))
    if binding and not failing:
        text = "bindingFailureConditions are required to use bindingConditions"
        errors.append(invalid(f"{path}.bindingFailureConditions", missing, text))
    return errors


def _check_skipped(operations: list[str]) -> Errors:
    if "NodePrepareResources" in operations and not {"NodeUnprepareResources", "*"} & set(operations):
        text = "NodePrepareResources cannot be skipped unless NodeUnprepareResources is also skipped"
        return [invalid("spec.skipNodeOperations", operations, text)]
    return []
