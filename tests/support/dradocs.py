"""Documents of resource.k8s.io and what stands around them, as small as a test can have them."""

from __future__ import annotations

import json
from typing import Any

from driver.analysis.document_text import Value
from driver.analysis.documents import Collection, collect

JSON = dict[str, Any]
DRIVER = "gpu.nvidia.com"
UNNAMED = object()


def device(name: str, attributes: JSON | None = None, **fields: Any) -> JSON:
    """A device; plain values of attributes get the type that they have."""
    made: JSON = {"name": name}
    if attributes:
        made["attributes"] = {key: typed(value) for key, value in attributes.items()}
    return made | fields


def typed(value: Any) -> JSON:
    """``True`` as ``{"bool": true}`` and so on; an object stays as it is."""
    if isinstance(value, dict):
        return value
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
    return {kind: value}


def resource_slice(
    *devices: JSON,
    node: str | None = "node-a",
    driver: str = DRIVER,
    pool: str | None = None,
    name: str = "",
    generation: int = 1,
    count: int = 1,
    **spec: Any,
) -> JSON:
    """A slice of a node; one without a node has what ``spec`` says instead."""
    pool = pool or f"{node}/{driver}"
    where = {"nodeName": node} if node else {}
    held = {"devices": list(devices)} if "sharedCounters" not in spec else {}
    metadata = {"name": name or f"00000-{driver}-{node}-{generation}", "uid": "slice-uid"}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": f"{node}-uid", "controller": True}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": metadata | ({"ownerReferences": [owner]} if node else {}),
        "spec": {
            "driver": driver,
            "pool": {"name": pool, "generation": generation, "resourceSliceCount": count},
            **where,
            **held,
            **spec,
        },
    }


def counter_set(name: str, **counters: str) -> JSON:
    """A counter set."""
    return {"name": name, "counters": {key: {"value": value} for key, value in counters.items()}}


def uses(name: str, **counters: str) -> list[JSON]:
    """``consumesCounters`` of one set."""
    return [{"counterSet": name, "counters": {key: {"value": value} for key, value in counters.items()}}]


def device_class(name: str, *expressions: str) -> JSON:
    """A class with CEL selectors."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    return _object("DeviceClass", name, None, {"selectors": selectors})


def request(name: str = "gpus", device_class: str = DRIVER, *expressions: str, **fields: Any) -> JSON:
    """One request for exactly what it says, with the defaults that the API server fills in."""
    selectors = [{"cel": {"expression": expression}} for expression in expressions]
    mode = fields.get("allocationMode", "ExactCount")
    number = {"count": 1} if mode == "ExactCount" else {}
    exactly = {"deviceClassName": device_class, "allocationMode": mode, **number, **fields}
    return {"name": name, "exactly": exactly | ({"selectors": selectors} if selectors else {})}


def claim(
    name: str,
    *requests: JSON,
    constraints: Any = (),
    results: Any = None,
    node: str = "node-a",
    owner: str | None = None,
) -> JSON:
    """A claim; allocated on a node where results are given: (device, pool) or (device, pool, more fields)."""
    spec = {"devices": {"requests": list(requests or (request(),)), "constraints": list(constraints)}}
    made = _object("ResourceClaim", name, "ml", spec)
    if owner:
        made["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": "pod", "uid": owner, "controller": True}
        ]
    if results is not None:
        entries = [
            {"request": "gpus", "driver": DRIVER, "pool": pool, "device": device, **(more[0] if more else {})}
            for device, pool, *more in results
        ]
        field = {"key": "metadata.name", "operator": "In", "values": [node]}
        selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
        made["status"] = {"allocation": {"devices": {"results": entries}, "nodeSelector": selector}}
    return made


def claim_template(name: str, *requests: JSON) -> JSON:
    """A claim template."""
    return _object("ResourceClaimTemplate", name, "ml", {"spec": {"devices": {"requests": list(requests)}}})


def node(name: str, *, ready: bool = True, unschedulable: bool = False, **labels: str) -> JSON:
    """A Node."""
    made = _object("Node", name, None, {"unschedulable": True} if unschedulable else {}, api="v1")
    made["metadata"]["labels"] = {key.replace("__", "/"): value for key, value in labels.items()}
    made["status"] = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    return made


def pod(name: str, *, claims: Any = (), node: str | None = None, **spec: Any) -> JSON:
    """A pod with claims: (entry, claim name) pairs."""
    entries = [{"name": entry, "resourceClaimName": given} for entry, given in claims]
    made = _object("Pod", name, "ml", {"resourceClaims": entries, **spec}, api="v1")
    made["metadata"]["uid"] = f"{name}-uid"
    if node:
        made["spec"]["nodeName"] = node
    return made


def daemon_set(name: str, *, pod_spec: JSON | None = None, **spec: Any) -> JSON:
    """A DaemonSet."""
    return _object("DaemonSet", name, "ml", {"template": {"spec": pod_spec or {}}, **spec}, api="apps/v1")


def taint(effect: str = "NoSchedule", key: str = "gpu.nvidia.com/xid") -> JSON:
    """A device taint."""
    return {"key": key, "value": "79", "effect": effect}


def taint_rule(name: str, effect: str = "NoSchedule") -> JSON:
    """A DeviceTaintRule."""
    return _object("DeviceTaintRule", name, None, {"taint": taint(effect)})


def _object(kind: str, name: str, namespace: str | None, spec: JSON, api: str = "resource.k8s.io/v1") -> JSON:
    metadata = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"apiVersion": api, "kind": kind, "metadata": metadata, "spec": spec}


def collection(*bodies: JSON) -> Collection:
    """Read them as a file that holds them all; none may be damaged."""
    read = collect([Value(json.loads(json.dumps(body))) for body in bodies], "test")
    assert read.problems == ()
    return read
