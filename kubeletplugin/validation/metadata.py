"""Rules of ``metadata``, the same for all kinds (k8s.io/apimachinery/pkg/api/validation)."""

from __future__ import annotations

from typing import Any

from kubeletplugin.api import JSON
from kubeletplugin.validation.fields import Errors, FieldError, Kind, check_all, invalid, required
from kubeletplugin.validation.names import dns_subdomain, label_key, label_value

IMMUTABLE = "field is immutable"
_FIXED = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def validate_metadata(metadata: JSON) -> Errors:
    """Faults of an object's metadata; the name has been made from ``generateName`` before, where there is one."""
    errors: Errors = []
    prefix = metadata.get("generateName")
    if prefix:
        # The server completes the name, so a dash at the end is no fault here.
        errors += check_all("metadata.generateName", prefix, dns_subdomain(prefix.removesuffix("-")))
    name = metadata.get("name")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    else:
        errors += check_all("metadata.name", name, dns_subdomain(name))
    for key, value in (metadata.get("labels") or {}).items():
        errors += check_all("metadata.labels", key, label_key(key))
        errors += check_all("metadata.labels", value, label_value(value))
    for key in metadata.get("annotations") or ():
        errors += check_all("metadata.annotations", key, label_key(key.lower()))
    for index, reference in enumerate(metadata.get("ownerReferences") or ()):
        errors += _owner(f"metadata.ownerReferences[{index}]", reference)
    return errors


def _owner(field: str, reference: JSON) -> Errors:
    errors: Errors = []
    if not reference.get("apiVersion"):
        errors.append(invalid(f"{field}.apiVersion", reference.get("apiVersion") or "", "version must not be empty"))
    errors += [
        required(f"{field}.{name}", "must not be empty") for name in ("kind", "name", "uid") if not reference.get(name)
    ]
    return errors


def validate_metadata_update(metadata: JSON, old: JSON) -> Errors:
    """Faults of new metadata in view of the old one."""
    errors = [
        invalid(f"metadata.{field}", metadata.get(field), IMMUTABLE)
        for field in _FIXED
        if metadata.get(field) != old.get(field)
    ]
    return errors + validate_metadata({**metadata, "generateName": None})


def immutable(field: str, value: Any, old: Any) -> Errors:
    """A complaint where the field changed."""
    return [] if value == old else [FieldError(Kind.INVALID, field, value, IMMUTABLE)]
