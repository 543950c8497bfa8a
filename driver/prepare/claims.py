"""A ResourceClaim document -> what of it concerns this driver on this node.

Source of the rules: resource.k8s.io/v1 (k8s.io/api/resource/v1/types.go) and KEP-4381. The document comes from the
API server, but parts of it were written by users: every value is checked before it is used, in particular before it
becomes part of a path or of a CDI name.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from driver.prepare.document import Cursor, DocumentError, shown
from driver.prepare.errors import ClaimError, Reason

_UID = re.compile(r"\A[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")
_LABEL = re.compile(r"\A[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
_SUBDOMAIN = re.compile(r"\A[a-z0-9](?:[a-z0-9-]*[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]*[a-z0-9])?)*\Z")
_SHARE = re.compile(r"\A[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_SUBDOMAIN_LENGTH = 253

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
"""On claims made from a template: the name in the pod's ``spec.resourceClaims``."""
FROM_CLASS = "FromClass"
FROM_CLAIM = "FromClaim"


class ClaimRef(msgspec.Struct, frozen=True, order=True):
    """What names a claim: ``uid`` is the identity, the names may be reused. Names are empty where they are unknown."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace or '?'}/{self.name or '?'} (uid {self.uid})"


class AllocationResult(msgspec.Struct, frozen=True):
    """One device that the scheduler gave to the claim out of this node's pool."""

    request: str
    """``req``, or ``req/sub`` where a subrequest of a prioritised list was chosen."""
    device: str
    pool: str
    share_id: str | None
    admin_access: bool
    path: str
    """Where it stands in the document, for messages."""
    consumed: tuple[tuple[str, str], ...] = ()
    """(capacity, quantity) of a share: what the scheduler counts as used by it."""

    @property
    def base_request(self) -> str:
        """The request without the subrequest."""
        return self.request.partition("/")[0]


class OpaqueConfig(msgspec.Struct, frozen=True):
    """A configuration entry for this driver, not yet decoded."""

    source: str
    """``FromClass`` or ``FromClaim``."""
    requests: tuple[str, ...]
    """The requests it is for; empty means all."""
    parameters: object
    path: str
    """Where the parameters stand in the document, for messages."""
    named: bool = False
    """Whether the claim's author named requests: the scheduler clears ``requests`` in the allocation where they are all
    requests of the claim (structured allocator of Kubernetes 1.37)."""

    def applies_to(self, result: AllocationResult) -> bool:
        """Whether it is for the request that this result answers; ``req`` covers ``req/sub``."""
        return not self.requests or result.request in self.requests or result.base_request in self.requests


class ClaimAllocation(msgspec.Struct, frozen=True):
    """What a claim asks of this driver here."""

    ref: ClaimRef
    results: tuple[AllocationResult, ...]
    """Those of this driver and this pool, in the scheduler's order. May be empty: all belongs to other drivers."""
    configs: tuple[OpaqueConfig, ...]
    """Those of this driver, lowest precedence first (class before claim, earlier before later)."""
    pod_claim: str | None = None
    """The name in the pod's ``spec.resourceClaims``, of a claim made from a template; empty: it is used by its own
    name. None: what the claim says cannot be such a name."""

    def configs_for(self, result: AllocationResult) -> tuple[OpaqueConfig, ...]:
        """The configurations for one result, lowest precedence first."""
        return tuple(config for config in self.configs if config.applies_to(result))


def is_claim_uid(text: str) -> bool:
    """Whether a text can be a claim UID: letters, digits and hyphens only, so that it is safe in a file name."""
    return _UID.match(text) is not None


def read_claim(document: object, *, uid: str, driver_name: str, pool_name: str) -> ClaimAllocation:
    """Take from a claim what concerns this driver and pool.

    Args:
        document: the parsed ResourceClaim (resource.k8s.io/v1).
        uid: the UID that the kubelet asked for; the document must be of this one.
        driver_name: results and configurations of other drivers are skipped whatever they hold.
        pool_name: this node's pool; results of the driver in other pools are another node's.

    Raises:
        ClaimError: the document is malformed (the message has the JSON path), not allocated, of another UID, or holds
            devices of this driver in other pools only.
    """
    try:
        return _read(Cursor(document), uid, driver_name, pool_name)
    except DocumentError as error:
        raise ClaimError(
            f"claim {_label(document, uid)} is malformed: {error}", Reason.INVALID_CLAIM, permanent=True
        ) from error


def _label(document: object, uid: str) -> str:
    metadata = document.get("metadata") if isinstance(document, dict) else None
    if isinstance(metadata, dict):
        namespace, name = metadata.get("namespace"), metadata.get("name")
        if isinstance(namespace, str) and isinstance(name, str):
            return f"{shown(namespace)[1:-1]}/{shown(name)[1:-1]}"
    return f"with uid {shown(uid)}"


def _read(root: Cursor, uid: str, driver_name: str, pool_name: str) -> ClaimAllocation:
    ref = _read_ref(root.get("metadata"))
    if ref.uid != uid:
        raise ClaimError(
            f"claim {ref.namespace}/{ref.name} has uid {ref.uid}, not {shown(uid)}: it was deleted and made again; "
            "the pod that used the old claim must be made again too",
            Reason.INVALID_CLAIM,
        )
    status = root.find("status")
    allocation = status.find("allocation") if status else None
    if allocation is None:
        raise ClaimError(
            f"claim {ref} is not allocated (status.allocation is missing): the scheduler has not placed it yet, "
            "or has taken the allocation back",
            Reason.INVALID_CLAIM,
        )
    devices = allocation.find("devices")
    if devices is None:
        return ClaimAllocation(ref, (), ())
    results, elsewhere = _read_results(devices, driver_name, pool_name)
    if elsewhere and not results:
        raise ClaimError(
            f"claim {ref} holds devices of {driver_name} only in pool {elsewhere[0]}, but the pool of this node is "
            f"{pool_name}: delete the pod and the claim so that they are scheduled again",
            Reason.DEVICE_NOT_FOUND,
            permanent=True,
        )
    configs = _read_configs(root, devices, driver_name) if results else ()
    return ClaimAllocation(ref, results, configs, _pod_claim(root.get("metadata")))


def _pod_claim(metadata: Cursor) -> str | None:
    """Of an annotation, which is nothing that a claim can fail by: whoever may write the claim may write anything."""
    annotations = metadata.find("annotations")
    name = (
        annotations.value.get(POD_CLAIM_ANNOTATION, "") if annotations and isinstance(annotations.value, dict) else ""
    )
    return name if isinstance(name, str) and (not name or _LABEL.match(name)) else None


def _read_ref(metadata: Cursor) -> ClaimRef:
    return ClaimRef(
        namespace=_matching(metadata.get("namespace"), lambda text: _LABEL.match(text) is not None, "a DNS label"),
        name=_matching(metadata.get("name"), _is_subdomain, "a DNS subdomain"),
        uid=_matching(metadata.get("uid"), is_claim_uid, "a UID (letters, digits and hyphens)"),
    )


def _read_results(
    devices: Cursor, driver_name: str, pool_name: str
) -> tuple[tuple[AllocationResult, ...], tuple[str, ...]]:
    """The own results, and the pools of results that are this driver's on other nodes."""
    found: list[AllocationResult] = []
    elsewhere: list[str] = []
    listed = devices.find("results")
    for entry in listed.elements() if listed else ():
        if entry.get("driver").text() != driver_name:
            continue
        pool = entry.get("pool").text()
        if pool != pool_name:
            elsewhere.append(shown(pool))
            continue
        found.append(_read_result(entry, pool))
    seen: dict[tuple[str, str, str | None], str] = {}
    for result in found:
        key = (result.request, result.device, result.share_id)
        if key in seen:
            raise DocumentError(result.path, f"repeats {seen[key]}: the same request, device and share")
        seen[key] = result.path
    return tuple(found), tuple(elsewhere)


def _read_result(entry: Cursor, pool: str) -> AllocationResult:
    share = entry.find("shareID")
    admin = entry.find("adminAccess")
    consumed = entry.find("consumedCapacity")
    return AllocationResult(
        request=_matching(entry.get("request"), _is_request, "a request name"),
        device=_matching(entry.get("device"), lambda text: _LABEL.match(text) is not None, "a device name"),
        pool=pool,
        share_id=None
        if share is None
        else _matching(share, lambda text: _SHARE.match(text) is not None, "a lower-case UUID"),
        admin_access=admin is not None and admin.boolean(),
        path=entry.path,
        consumed=tuple((key, _quantity(value)) for key, value in consumed.members()) if consumed else (),
    )


def _quantity(cursor: Cursor) -> str:
    """Quantities are strings, but a whole number may stand without quotes."""
    value = cursor.value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else cursor.text()


def _read_configs(root: Cursor, devices: Cursor, driver_name: str) -> tuple[OpaqueConfig, ...]:
    found: list[OpaqueConfig] = []
    written_for_requests = _written_for_requests(root, driver_name)
    listed = devices.find("config")
    for entry in listed.elements() if listed else ():
        opaque = entry.find("opaque")
        if opaque is None or opaque.get("driver").text() != driver_name:
            continue
        source = entry.get("source")
        if source.text() not in (FROM_CLASS, FROM_CLAIM):
            raise source.error(f"must be {FROM_CLASS} or {FROM_CLAIM}, is {shown(source.value)}")
        requests = entry.find("requests")
        names = tuple(
            _matching(request, _is_request, "a request name") for request in (requests.elements() if requests else ())
        )
        parameters = opaque.get("parameters")
        named = bool(names) or (source.text() == FROM_CLAIM and parameters.value in written_for_requests)
        found.append(OpaqueConfig(source.text(), names, parameters.value, parameters.path, named))
    # The scheduler lists class configurations first already; sorting (stably) makes the rule ours and not its habit.
    return tuple(sorted(found, key=lambda config: config.source == FROM_CLAIM))


def _written_for_requests(root: Cursor, driver_name: str) -> list[object]:
    """The parameters in the claim's spec that its author gave to requests by name."""
    spec = root.find("spec")
    devices = spec.find("devices") if spec else None
    listed = devices.find("config") if devices else None
    found = []
    for entry in listed.elements() if listed else ():
        opaque, requests = entry.find("opaque"), entry.find("requests")
        if requests is None or not any(requests.elements()) or opaque is None:
            continue
        if opaque.get("driver").text() == driver_name:
            found.append(opaque.get("parameters").value)
    return found


def _matching(cursor: Cursor, accepted: Callable[[str], bool], what: str) -> str:
    text = cursor.text()
    if not accepted(text):
        raise cursor.error(f"must be {what}, is {shown(text)}")
    return text


def _is_subdomain(text: str) -> bool:
    return len(text) <= _SUBDOMAIN_LENGTH and _SUBDOMAIN.match(text) is not None


def _is_request(text: str) -> bool:
    base, slash, sub = text.partition("/")
    return _LABEL.match(base) is not None and (not slash or _LABEL.match(sub) is not None)
