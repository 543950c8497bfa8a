"""The scheduler's part, stood in for: gives devices to a claim by first fit and writes the allocation.

For demos and tests only. What it knows: ``exactly`` requests with ExactCount and All, adminAccess, taints and
tolerations, matchAttribute and distinctAttribute over single values with backtracking, class and claim configuration.

What it does not know raises ``UnsupportedClaimError`` instead of being guessed: firstAvailable, capacity requests,
devices with counters or shares, list attributes in constraints, and CEL beyond a chain of equalities
(``device.driver == "x" && device.attributes["x"].type == "gpu"``) unless a ``device_filter`` is given.

Source of the rules: k8s.io/dynamic-resource-allocation/structured of Kubernetes 1.37.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from kubeletplugin.api import JSON
from kubeletplugin.client import ApiError, KubeClient

API = "/apis/resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"


class AllocationError(Exception):
    """The claim cannot be met with what is free."""


class UnsupportedClaimError(AllocationError):
    """The claim, its class or a device asks for something that this stand-in does not evaluate."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One published device."""

    driver: str
    pool: str
    device: JSON

    @property
    def key(self) -> tuple[str, str, str]:
        """Driver, pool and device name: what an allocation names it by."""
        return (self.driver, self.pool, self.device["name"])

    def attribute(self, name: str) -> tuple[str, Any] | None:
        """Type and value of an attribute by its full name; a bare name in the slice belongs to the driver's domain."""
        attributes = self.device.get("attributes") or {}
        domain, _, bare = name.rpartition("/")
        value = attributes.get(name)
        if value is None and domain == self.driver:
            value = attributes.get(bare)
        if value is None:
            return None
        ((kind, content),) = value.items()
        if isinstance(content, list):
            raise UnsupportedClaimError(f"attribute {name} of {self.key} is a list")
        return (kind, content)


DeviceFilter: TypeAlias = Callable[[Candidate, Sequence[str]], bool]
"""Whether a device satisfies all CEL expressions of a class and a request."""

_TERM = re.compile(
    r"""\A\s*\(?\s*device\.
    (?:(?P<driver>driver)|attributes\[(?P<q>['"])(?P<domain>[^'"]+)(?P=q)\]\.(?P<id>[A-Za-z_]\w*))
    \s*==\s*(?:(?P<v>['"])(?P<text>[^'"\\]*)(?P=v)|(?P<number>-?\d+)|(?P<bool>true|false))\s*\)?\s*\Z""",
    re.VERBOSE,
)


def equalities(candidate: Candidate, expressions: Sequence[str]) -> bool:
    """The built-in device filter: CEL that is nothing but equalities joined by ``&&``.

    Raises:
        AllocationError: a device lacks the attribute, which ends the real scheduler's attempt too.
        UnsupportedClaimError: an expression is more than that.
    """
    return all(_conjunction(candidate, expression) for expression in expressions)


def _conjunction(candidate: Candidate, expression: str) -> bool:
    """CEL's ``&&``: one false term decides, wherever it stands; else a missing attribute is a runtime error."""
    values = [_term(candidate, term, expression) for term in expression.split("&&")]
    if False in values:
        return False
    if None in values:
        raise AllocationError(f"CEL runtime error: {'/'.join(candidate.key)} lacks an attribute of {expression!r}")
    return True


def _term(candidate: Candidate, term: str, expression: str) -> bool | None:
    """One equality; ``None`` where the device lacks the attribute."""
    match = _TERM.match(term)
    if match is None:
        raise UnsupportedClaimError(
            f"CEL expression {expression!r} is not evaluated by this stand-in (only equalities of device.driver and"
            ' device.attributes["domain"].name joined by &&); pass a device_filter'
        )
    wanted: tuple[str, Any]
    if match["number"] is not None:
        wanted = ("int", int(match["number"]))
    elif match["bool"] is not None:
        wanted = ("bool", match["bool"] == "true")
    else:
        wanted = ("string", match["text"])
    if match["driver"]:
        return wanted == ("string", candidate.driver)
    value = candidate.attribute(f"{match['domain']}/{match['id']}")
    if value is not None and value[0] != wanted[0]:
        raise UnsupportedClaimError(f"{expression!r} compares a {value[0]} attribute with a {wanted[0]}")
    return None if value is None else value == wanted


def candidates(slices: Iterable[JSON], node_name: str) -> list[Candidate]:
    """The devices of complete pools on the node, in the scheduler's order: by driver, pool and name of the slice."""
    pools: dict[tuple[str, str], list[JSON]] = {}
    for item in slices:
        spec = item["spec"]
        if spec.get("nodeName") == node_name or spec.get("allNodes"):
            pools.setdefault((spec["driver"], spec["pool"]["name"]), []).append(item)
    found = []
    for (driver, pool), items in sorted(pools.items(), key=lambda entry: entry[0]):
        newest = max(item["spec"]["pool"]["generation"] for item in items)
        current = [item for item in items if item["spec"]["pool"]["generation"] == newest]
        if len(current) != current[0]["spec"]["pool"]["resourceSliceCount"]:
            continue
        for item in sorted(current, key=lambda item: str(item["metadata"]["name"])):
            found += [Candidate(driver, pool, device) for device in item["spec"].get("devices") or ()]
    return found


def tolerated(candidate: Candidate, tolerations: Sequence[JSON]) -> bool:
    """Whether every taint that keeps claims away is tolerated."""
    return all(
        any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in candidate.device.get("taints") or ()
        if taint["effect"] in ("NoSchedule", "NoExecute")
    )


def _tolerates(toleration: JSON, taint: JSON) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint["effect"]:
        return False
    if toleration.get("key") and toleration["key"] != taint["key"]:
        return False
    if toleration.get("operator", "Equal") == "Exists":
        return True
    return bool(toleration.get("key")) and toleration.get("value", "") == taint.get("value", "")


@dataclass(frozen=True, slots=True)
class _Request:
    name: str
    count: int | None
    """``None`` for All."""
    admin: bool
    tolerations: tuple[JSON, ...]
    fitting: tuple[Candidate, ...]


class _Search:
    """Depth first over the requests in order, devices in order; the first complete choice wins."""

    def __init__(self, requests: Sequence[_Request], constraints: Sequence[JSON], in_use: set[tuple[str, str, str]]):
        self._requests = requests
        self._constraints = constraints
        self._in_use = in_use
        self._chosen: list[tuple[_Request, Candidate]] = []

    def run(self) -> list[tuple[_Request, Candidate]] | None:
        return self._chosen if self._request(0) else None

    def _request(self, index: int) -> bool:
        if index == len(self._requests):
            return True
        request = self._requests[index]
        if request.count is None:
            return self._all(index, request)
        return self._pick(index, request, 0, request.count)

    def _all(self, index: int, request: _Request) -> bool:
        """All matching devices, or nothing: one that is taken makes the request fail."""
        mark = len(self._chosen)
        added = bool(request.fitting) and all(self._add(request, candidate) for candidate in request.fitting)
        if added and self._request(index + 1):
            return True
        del self._chosen[mark:]
        return False

    def _pick(self, index: int, request: _Request, start: int, left: int) -> bool:
        if left == 0:
            return self._request(index + 1)
        for position in range(start, len(request.fitting) - left + 1):
            if self._add(request, request.fitting[position]):
                if self._pick(index, request, position + 1, left - 1):
                    return True
                self._chosen.pop()
        return False

    def _add(self, request: _Request, candidate: Candidate) -> bool:
        taken = candidate.key in self._in_use or any(
            other.key == candidate.key for owner, other in self._chosen if not owner.admin
        )
        if taken and not request.admin:
            return False
        if not all(self._holds(constraint, request, candidate) for constraint in self._constraints):
            return False
        self._chosen.append((request, candidate))
        return True

    def _holds(self, constraint: JSON, request: _Request, candidate: Candidate) -> bool:
        names = constraint.get("requests") or ()
        if names and request.name not in names:
            return True
        name = constraint.get("matchAttribute") or constraint["distinctAttribute"]
        value = candidate.attribute(name)
        others = [other.attribute(name) for owner, other in self._chosen if not names or owner.name in names]
        if value is None:
            return False
        if constraint.get("matchAttribute"):
            return all(other == value for other in others)
        return value not in others


def find_allocation(
    claim: JSON,
    *,
    slices: Iterable[JSON],
    classes: Mapping[str, JSON],
    in_use: set[tuple[str, str, str]],
    node_name: str,
    device_filter: DeviceFilter = equalities,
) -> JSON:
    """``status.allocation`` for the claim on the node. Pure.

    Args:
        claim: a ResourceClaim.
        slices: all ResourceSlices.
        classes: DeviceClasses by name.
        in_use: (driver, pool, device) of what is allocated, without admin access.
        node_name: where.
        device_filter: evaluates CEL.

    Raises:
        AllocationError: it cannot be met.
        UnsupportedClaimError: it asks for more than this stand-in knows.
    """
    devices = claim["spec"].get("devices") or {}
    published = candidates(slices, node_name)
    requests = [_request(request, classes, published, device_filter) for request in devices.get("requests") or ()]
    chosen = _Search(requests, devices.get("constraints") or (), in_use).run()
    if chosen is None:
        stages = ", ".join(f"{request.name}: {len(request.fitting)} devices fit" for request in requests)
        raise AllocationError(f"cannot allocate all claims on node {node_name} ({stages}; {len(in_use)} are in use)")
    allocation: JSON = {
        "devices": {"results": [_result(request, candidate) for request, candidate in chosen]},
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]},
            ]
        },
    }
    if config := list(_configuration(devices, classes)):
        allocation["devices"]["config"] = config
    return allocation


def _request(
    request: JSON, classes: Mapping[str, JSON], published: Sequence[Candidate], device_filter: DeviceFilter
) -> _Request:
    name = request["name"]
    exactly = request.get("exactly")
    if exactly is None:
        raise UnsupportedClaimError(f"request {name} uses firstAvailable")
    if exactly.get("capacity"):
        raise UnsupportedClaimError(f"request {name} asks for capacity")
    class_name = exactly["deviceClassName"]
    if class_name not in classes:
        raise AllocationError(f"request {name}: device class {class_name} does not exist")
    selectors = [*(classes[class_name]["spec"].get("selectors") or ()), *(exactly.get("selectors") or ())]
    expressions = [selector["cel"]["expression"] for selector in selectors]
    tolerations = tuple(exactly.get("tolerations") or ())
    fitting = [
        candidate
        for candidate in published
        if tolerated(candidate, tolerations) and device_filter(candidate, expressions)
    ]
    for candidate in fitting:
        for key in ("consumesCounters", "allowMultipleAllocations", "bindingConditions"):
            if candidate.device.get(key):
                raise UnsupportedClaimError(f"device {'/'.join(candidate.key)} has {key}")
    return _Request(
        name=name,
        count=None if exactly.get("allocationMode") == "All" else exactly.get("count", 1),
        admin=bool(exactly.get("adminAccess")),
        tolerations=tolerations,
        fitting=tuple(fitting),
    )


def _result(request: _Request, candidate: Candidate) -> JSON:
    driver, pool, device = candidate.key
    result: JSON = {"request": request.name, "driver": driver, "pool": pool, "device": device}
    if request.admin:
        result["adminAccess"] = True
    if request.tolerations:
        result["tolerations"] = list(request.tolerations)
    return result


def _configuration(devices: JSON, classes: Mapping[str, JSON]) -> Iterator[JSON]:
    """Configuration of the classes, each with the requests that use the class, then the claim's own."""
    users: dict[str, list[str]] = {}
    for request in devices.get("requests") or ():
        users.setdefault(request["exactly"]["deviceClassName"], []).append(request["name"])
    for class_name, names in users.items():
        for config in classes[class_name]["spec"].get("config") or ():
            yield {"source": "FromClass", "requests": names, **config}
    for config in devices.get("config") or ():
        yield {"source": "FromClaim", **config}


class Allocator:
    """Allocates claims through the API server, one at a time.

    Args:
        client: needs to read slices, classes and claims and to write claims and their status.
        device_filter: evaluates CEL; the built-in one knows equalities only.
    """

    def __init__(self, client: KubeClient, *, device_filter: DeviceFilter = equalities) -> None:
        self._client = client
        self._device_filter = device_filter

    def allocate(self, namespace: str, name: str, *, node_name: str, pod_name: str, pod_uid: str) -> JSON:
        """Allocates the claim on the node if it is not allocated, reserves it for the pod, and returns it as stored.

        Raises:
            AllocationError: it cannot be met, or not by this stand-in.
            ApiError: the API server refused a write.
        """
        path = f"{API}/namespaces/{namespace}/resourceclaims/{name}"
        claim = self._client.get(path)
        status: JSON = dict(claim.get("status") or {})
        if not status.get("allocation"):
            status["allocation"] = self._find(claim, node_name)
            finalizers = claim["metadata"].setdefault("finalizers", [])
            if FINALIZER not in finalizers:
                finalizers.append(FINALIZER)
                claim = self._client.update(path, claim)
        consumers = list(status.get("reservedFor") or ())
        if all(consumer["uid"] != pod_uid for consumer in consumers):
            consumers.append({"resource": "pods", "name": pod_name, "uid": pod_uid})
        status["reservedFor"] = consumers
        return self._client.update(f"{path}/status", {**claim, "status": status})

    def release(self, namespace: str, name: str, *, pod_uid: str) -> JSON:
        """Takes the pod's reservation away; the last one takes the allocation and the finalizer with it.

        Somebody else may write the claim's status meanwhile (the driver does): then it is read and written again.
        """
        for _ in range(10):
            try:
                return self._release(namespace, name, pod_uid)
            except ApiError as error:
                if error.status != 409:
                    raise
        return self._release(namespace, name, pod_uid)

    def _release(self, namespace: str, name: str, pod_uid: str) -> JSON:
        path = f"{API}/namespaces/{namespace}/resourceclaims/{name}"
        claim = self._client.get(path)
        status: JSON = dict(claim.get("status") or {})
        status["reservedFor"] = [c for c in status.get("reservedFor") or () if c["uid"] != pod_uid]
        if status["reservedFor"]:
            return self._client.update(f"{path}/status", {**claim, "status": status})
        claim = self._client.update(f"{path}/status", {**claim, "status": {}})
        claim["metadata"]["finalizers"] = [f for f in claim["metadata"].get("finalizers") or () if f != FINALIZER]
        return self._client.update(path, claim)

    def _find(self, claim: JSON, node_name: str) -> JSON:
        classes = self._client.get(f"{API}/deviceclasses")["items"]
        claims = self._client.get(f"{API}/resourceclaims")["items"]
        return find_allocation(
            claim,
            slices=self._client.get(f"{API}/resourceslices")["items"],
            classes={item["metadata"]["name"]: item for item in classes},
            in_use=in_use(claims),
            node_name=node_name,
            device_filter=self._device_filter,
        )


def in_use(claims: Iterable[JSON]) -> set[tuple[str, str, str]]:
    """(driver, pool, device) of everything allocated; admin access takes nothing away."""
    return {
        (result["driver"], result["pool"], result["device"])
        for claim in claims
        for result in ((claim.get("status") or {}).get("allocation") or {}).get("devices", {}).get("results", ())
        if not result.get("adminAccess")
    }
