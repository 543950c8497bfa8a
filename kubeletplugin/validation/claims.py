"""Structural rules of ResourceClaim and its status: what stand-ins of the scheduler and the driver can get wrong.

CEL expressions are not looked at; the scheduler's own server does that.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from kubeletplugin.api import JSON
from kubeletplugin.validation.fields import (
    Errors,
    check_all,
    check_list,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from kubeletplugin.validation.metadata import immutable
from kubeletplugin.validation.names import check_driver_name, check_pool_name, dns_label, dns_subdomain

MAX_REQUESTS = 32
MAX_SUBREQUESTS = 8
MAX_CONSTRAINTS = 32
MAX_CONFIGS = 32
MAX_RESULTS = 32
MAX_RESERVED_FOR = 256
MAX_CONDITIONS = 8
MAX_PARAMETERS = 10 * 1024
"""Bytes of an opaque configuration or of ``status.devices[].data``."""
SOURCES = ("FromClaim", "FromClass")
_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def validate_claim(spec: JSON, old: JSON | None = None) -> Errors:
    """Faults of a claim's ``spec``; it cannot change after creation."""
    if old is not None:
        return immutable("spec", spec, old)
    devices = spec.get("devices") or {}
    names = _request_names(devices)
    errors = check_list(
        "spec.devices.requests",
        devices.get("requests") or [],
        MAX_REQUESTS,
        _check_request,
        key=lambda r: r.get("name"),
    )
    errors += check_list(
        "spec.devices.constraints",
        devices.get("constraints") or [],
        MAX_CONSTRAINTS,
        lambda field, entry: _check_constraint(field, entry, names),
    )
    return errors + check_list(
        "spec.devices.config",
        devices.get("config") or [],
        MAX_CONFIGS,
        lambda field, entry: _check_config(field, entry, names),
    )


def _request_names(devices: JSON) -> frozenset[str]:
    names = set()
    for request in devices.get("requests") or ():
        names.add(request.get("name", ""))
        names.update(f"{request.get('name')}/{sub.get('name')}" for sub in request.get("firstAvailable") or ())
    return frozenset(names)


def _check_request(field: str, request: JSON) -> Errors:
    name = request.get("name", "")
    errors = check_all(f"{field}.name", name, dns_label(name))
    exactly, alternatives = request.get("exactly"), request.get("firstAvailable") or []
    if exactly is None and not alternatives:
        text = "must specify one of: `exactly`, `firstAvailable`"
        return [*errors, invalid(field, "", text)]
    if exactly is not None and alternatives:
        text = "must specify exactly one of: `exactly`, `firstAvailable`"
        return [*errors, invalid(field, "{exactly, firstAvailable}", text)]
    if exactly is not None:
        return errors + _check_exact(f"{field}.exactly", exactly)
    return errors + check_list(
        f"{field}.firstAvailable", alternatives, MAX_SUBREQUESTS, _check_subrequest, key=lambda entry: entry.get("name")
    )


def _check_subrequest(field: str, request: JSON) -> Errors:
    name = request.get("name", "")
    errors = check_all(f"{field}.name", name, dns_label(name))
    return errors + _check_exact(field, request)


def _check_exact(field: str, request: JSON) -> Errors:
    name = request.get("deviceClassName", "")
    path = f"{field}.deviceClassName"
    errors = check_all(path, name, dns_subdomain(name)) if name else [required(path)]
    mode, count = request.get("allocationMode", "ExactCount"), request.get("count", 0)
    if mode == "All":
        if count:
            text = "must not be specified when allocationMode is 'All'"
            errors.append(invalid(f"{field}.count", count, text))
    elif mode != "ExactCount":
        errors.append(not_supported(f"{field}.allocationMode", mode, ("All", "ExactCount")))
    elif "count" in request and count <= 0:
        errors.append(invalid(f"{field}.count", count, "must be greater than zero"))
    return errors


def _check_constraint(field: str, constraint: JSON, names: frozenset[str]) -> Errors:
    errors = _check_references(f"{field}.requests", constraint.get("requests") or [], names)
    if not constraint.get("matchAttribute") and not constraint.get("distinctAttribute"):
        errors.append(required(field, "exactly one of matchAttribute or distinctAttribute is required"))
    return errors


def _check_references(field: str, requests: Iterable[str], names: frozenset[str]) -> Errors:
    text = "must be the name of a request in the claim"
    return [invalid(f"{field}[{index}]", name, text) for index, name in enumerate(requests) if name not in names]


def _check_config(field: str, config: JSON, names: frozenset[str]) -> Errors:
    errors = _check_references(f"{field}.requests", config.get("requests") or [], names)
    opaque = config.get("opaque")
    if opaque is None:
        return [*errors, required(f"{field}.opaque")]
    errors += check_driver_name(f"{field}.opaque.driver", opaque.get("driver", ""))
    return errors + _check_raw(f"{field}.opaque.parameters", opaque.get("parameters"))


def _check_raw(field: str, value: object) -> Errors:
    if value is None:
        return [required(field)]
    if not isinstance(value, dict):
        return [invalid(field, "<value omitted>", "must be a valid JSON object")]
    return [too_long(field, MAX_PARAMETERS)] if len(msgspec.json.encode(value)) > MAX_PARAMETERS else []


def validate_claim_status(claim: JSON, old: JSON) -> Errors:
    """Faults of ``claim["status"]`` as an update of ``old["status"]``."""
    status, before = claim.get("status") or {}, old.get("status") or {}
    allocation, allocated = status.get("allocation"), before.get("allocation")
    reserved = status.get("reservedFor") or []
    errors = check_list(
        "status.reservedFor", reserved, MAX_RESERVED_FOR, _check_consumer, key=lambda entry: entry.get("uid")
    )
    results = ((allocation or {}).get("devices") or {}).get("results") or []
    devices = {_device_key(result) for result in results}
    errors += check_list(
        "status.devices",
        status.get("devices") or [],
        1 << 31,
        lambda field, entry: _check_device_status(field, entry, devices),
        key=_device_key,
        shown=_shown_key,
    )
    if reserved and allocation is None:
        errors.append(forbidden("status.reservedFor", "may not be specified when `allocated` is not set"))
    if allocation is not None and allocated is not None:
        return errors + immutable("status.allocation", allocation, allocated)
    if allocation is not None:
        errors += _check_allocation(allocation, _request_names(claim.get("spec", {}).get("devices") or {}))
    return errors


def _check_consumer(field: str, reference: JSON) -> Errors:
    return [required(f"{field}.{name}") for name in ("resource", "name", "uid") if not reference.get(name)]


def _check_allocation(allocation: JSON, names: frozenset[str]) -> Errors:
    devices = allocation.get("devices") or {}
    errors = check_list(
        "status.allocation.devices.results",
        devices.get("results") or [],
        MAX_RESULTS,
        lambda field, entry: _check_result(field, entry, names),
    )
    return errors + check_list(
        "status.allocation.devices.config",
        devices.get("config") or [],
        2 * MAX_CONFIGS,
        lambda field, entry: _check_source(field, entry) + _check_config(field, entry, names),
    )


def _check_source(field: str, config: JSON) -> Errors:
    source = config.get("source", "")
    if not source:
        return [required(f"{field}.source")]
    return [] if source in SOURCES else [not_supported(f"{field}.source", source, SOURCES)]


def _check_result(field: str, result: JSON, names: frozenset[str]) -> Errors:
    errors: Errors = []
    if result.get("request", "") not in names:
        text = "must be the name of a request in the claim"
        errors.append(invalid(f"{field}.request", result.get("request", ""), text))
    return errors + _check_identity(field, result)


def _check_identity(field: str, device: JSON) -> Errors:
    errors = check_driver_name(f"{field}.driver", device.get("driver", ""))
    errors += check_pool_name(f"{field}.pool", device.get("pool", ""))
    name = device.get("device", "")
    errors += check_all(f"{field}.device", name, dns_label(name))
    share = device.get("shareID")
    if share is not None and not _UID.fullmatch(share):
        errors.append(invalid(f"{field}.shareID", share, "must be a lowercase UUID in 8-4-4-4-12 format"))
    return errors


def _check_device_status(field: str, device: JSON, allocated: set[tuple[str, ...]]) -> Errors:
    errors = _check_identity(field, device)
    if _device_key(device) not in allocated:
        errors.append(invalid(field, _shown_key(device), "must be an allocated device in the claim"))
    conditions = device.get("conditions") or []
    if len(conditions) > MAX_CONDITIONS:
        errors.append(too_many(f"{field}.conditions", len(conditions), MAX_CONDITIONS))
    if device.get("data") is not None:
        errors += _check_raw(f"{field}.data", device["data"])
    return errors


def _device_key(device: JSON) -> tuple[str, ...]:
    return tuple(str(device.get(name) or "") for name in ("driver", "pool", "device", "shareID"))


def _shown_key(device: JSON) -> str:
    return "/".join(part for part in _device_key(device) if part)
