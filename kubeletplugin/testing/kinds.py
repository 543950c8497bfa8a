"""The kinds that the embedded API server knows, and what it does to an object of each before it is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kubeletplugin.api import JSON
from kubeletplugin.testing.gates import drop_disabled_fields
from kubeletplugin.testing.schema import SLICE_SPEC, DecodeError, decode
from kubeletplugin.testing.status import bad_request
from kubeletplugin.validation import validate_claim, validate_claim_status, validate_slice
from kubeletplugin.validation.fields import Errors, invalid


@dataclass(frozen=True, slots=True)
class Context:
    """What a kind may ask the server."""

    gates: frozenset[str]
    now: Callable[[], str]


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. ``prepare`` makes the body of a new version out of what was sent, ``validate`` finds its faults.

    Both get (new, old, subresource, context) or (new, old, subresource); ``old`` is None for a creation.
    """

    kind: str
    plural: str
    group: str
    version: str
    namespaced: bool
    prepare: Callable[[JSON, JSON | None, str, Context], JSON]
    validate: Callable[[JSON, JSON | None, str], Errors]
    selectable: dict[str, Callable[[JSON], str]]
    status: bool = False
    counts_generation: bool = False
    applicable: bool = False
    """Whether its status can be written by server-side apply here (the real server takes it for all kinds)."""
    returns_deleted: bool = True
    """Whether DELETE answers with the object rather than with a Status."""

    @property
    def api_version(self) -> str:
        """As in documents."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def collection(self) -> str:
        """Key of the store."""
        return f"{self.group}/{self.plural}"


def timestamp() -> str:
    """Now, as the API writes times."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _field(*path: str) -> Callable[[JSON], str]:
    def read(document: JSON) -> str:
        value: Any = document
        for step in path:
            value = (value or {}).get(step)
        return "" if value is None else str(value)

    return read


def _metadata_fields(*names: str) -> dict[str, Callable[[JSON], str]]:
    return {f"metadata.{name}": _field("metadata", name) for name in names}


# ResourceSlice


def _prepare_slice(new: JSON, old: JSON | None, _subresource: str, context: Context) -> JSON:
    try:
        spec = decode(SLICE_SPEC, new.get("spec") or {})
    except DecodeError as error:
        raise bad_request(f'ResourceSlice in version "v1" cannot be handled as a ResourceSlice: {error}') from error
    drop_disabled_fields(spec, old["spec"] if old is not None else None, context.gates)
    for taint in (taint for device in spec.get("devices") or () for taint in device.get("taints") or ()):
        taint.setdefault("timeAdded", context.now())
    return {"spec": spec}


def _validate_slice(new: JSON, old: JSON | None, _subresource: str) -> Errors:
    return validate_slice(new["spec"], old["spec"] if old is not None else None)


# ResourceClaim


def _prepare_claim(new: JSON, old: JSON | None, subresource: str, _context: Context) -> JSON:
    if subresource == "status" and old is not None:
        status = _object(new, "ResourceClaim", "status")
        for device in (status.get("status") or {}).get("devices") or ():
            device.setdefault("conditions", None)  # the one field of the kind that is written even where it is empty
        return _body(old, "spec") | status
    body = _object(new, "ResourceClaim", "spec") or {"spec": {}}
    _default_claim(body["spec"])
    # Status has a door of its own.
    return body | (_body(old, "status") if old is not None else {})


def _default_claim(spec: JSON) -> None:
    requests = (spec.get("devices") or {}).get("requests") or ()
    for request in requests:
        chosen = [request["exactly"]] if request.get("exactly") is not None else request.get("firstAvailable") or ()
        for entry in chosen:
            if entry.setdefault("allocationMode", "ExactCount") == "ExactCount":
                entry.setdefault("count", 1)


def _validate_claim(new: JSON, old: JSON | None, subresource: str) -> Errors:
    if subresource == "status" and old is not None:
        return validate_claim_status(new, old)
    return validate_claim(new.get("spec") or {}, (old.get("spec") or {}) if old is not None else None)


# Everything else is stored as it comes.


def _prepare_plain(*fields: str) -> Callable[[JSON, JSON | None, str, Context], JSON]:
    def prepare(new: JSON, old: JSON | None, subresource: str, _context: Context) -> JSON:
        if subresource == "status" and old is not None:
            return _body(old, *(name for name in fields if name != "status")) | _body(new, "status")
        return _body(new, *fields)

    return prepare


def _no_faults(_new: JSON, _old: JSON | None, _subresource: str) -> Errors:
    return []


def _body(document: JSON, *fields: str) -> JSON:
    return {name: document[name] for name in fields if document.get(name) is not None}


def _object(document: JSON, kind: str, name: str) -> JSON:
    value = document.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        text = f'{kind} in version "v1" cannot be handled as a {kind}: json: cannot unmarshal into Go struct field'
        raise bad_request(f"{text} {kind}.{name}")
    return {name: value}


_EVENT_FIELDS = (
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "type",
    "eventTime",
    "series",
    "action",
    "related",
    "reportingComponent",
    "reportingInstance",
)


def _validate_event(new: JSON, _old: JSON | None, _subresource: str) -> Errors:
    namespace = new["metadata"].get("namespace", "")
    value = (new.get("involvedObject") or {}).get("namespace") or ""
    # Events about cluster-scoped objects live in "default".
    if namespace != (value or "default"):
        return [invalid("involvedObject.namespace", value, "does not match event.namespace")]
    return []


def _involved(*names: str) -> dict[str, Callable[[JSON], str]]:
    return {f"involvedObject.{name}": _field("involvedObject", name) for name in names}


KINDS: tuple[Kind, ...] = (
    Kind(
        kind="ResourceSlice",
        plural="resourceslices",
        group="resource.k8s.io",
        version="v1",
        namespaced=False,
        prepare=_prepare_slice,
        validate=_validate_slice,
        selectable=_metadata_fields("name")
        | {
            "spec.nodeName": _field("spec", "nodeName"),
            "spec.driver": _field("spec", "driver"),
            "spec.pool.name": _field("spec", "pool", "name"),
        },
        counts_generation=True,
    ),
    Kind(
        kind="ResourceClaim",
        plural="resourceclaims",
        group="resource.k8s.io",
        version="v1",
        namespaced=True,
        prepare=_prepare_claim,
        validate=_validate_claim,
        selectable=_metadata_fields("name", "namespace"),
        status=True,
        applicable=True,
    ),
    Kind(
        kind="DeviceClass",
        plural="deviceclasses",
        group="resource.k8s.io",
        version="v1",
        namespaced=False,
        prepare=_prepare_plain("spec"),
        validate=_no_faults,
        selectable=_metadata_fields("name"),
        counts_generation=True,
    ),
    Kind(
        kind="Node",
        plural="nodes",
        group="",
        version="v1",
        namespaced=False,
        prepare=_prepare_plain("spec", "status"),
        validate=_no_faults,
        selectable=_metadata_fields("name") | {"spec.unschedulable": _field("spec", "unschedulable")},
        status=True,
        returns_deleted=False,
    ),
    Kind(
        kind="Event",
        plural="events",
        group="",
        version="v1",
        namespaced=True,
        prepare=_prepare_plain(*_EVENT_FIELDS),
        validate=_validate_event,
        selectable=_metadata_fields("name", "namespace")
        | _involved("kind", "namespace", "name", "uid")
        | {"reason": _field("reason"), "type": _field("type")},
        returns_deleted=False,
    ),
)


def find_kind(group: str, version: str, plural: str, *, kinds: Iterable[Kind] = KINDS) -> Kind | None:
    """The kind behind a path, or None."""
    for kind in kinds:
        if (kind.group, kind.version, kind.plural) == (group, version, plural):
            return kind
    return None
