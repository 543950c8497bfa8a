"""Small documents for the tests of this folder."""

from __future__ import annotations

from typing import Any

from driver.analysis.allocator import Allocator, Features, Outcome, default_features, rules

Document = dict[str, Any]
DRIVER = "gpu.example.com"
NODE: Document = {"metadata": {"name": "node-a", "labels": {"zone": "a"}}}
CLASS: Document = {"metadata": {"name": "gpu"}, "spec": {}}


def device(name: str, **more: Any) -> Document:
    return {"name": name, **more}


def slice_of(*devices: Document, name: str = "slice", pool: str = "node-a", count: int = 1, **spec: Any) -> Document:
    where = (
        {}
        if spec.keys() & {"nodeName", "allNodes", "nodeSelector", "perDeviceNodeSelection"}
        else {"nodeName": "node-a"}
    )
    whole = {"name": pool, "generation": spec.pop("generation", 1), "resourceSliceCount": count}
    listed = {"devices": list(devices)} if devices else {}
    return {"metadata": {"name": name}, "spec": {"driver": DRIVER, "pool": whole, **where, **listed, **spec}}


def counters(name: str = "counters", count: int = 2, **sets: dict[str, str]) -> Document:
    listed = [
        {"name": key.replace("_", "-"), "counters": {inner: {"value": value} for inner, value in whole.items()}}
        for key, whole in sets.items()
    ]
    return slice_of(name=name, count=count, sharedCounters=listed)


def consumes(counter_set: str, **amounts: str) -> list[Document]:
    return [{"counterSet": counter_set, "counters": {name: {"value": value} for name, value in amounts.items()}}]


def request(name: str = "r", count: int = 1, **more: Any) -> Document:
    wish: Document = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    if wish["allocationMode"] == "All":
        del wish["count"]
    return {"name": name, "exactly": wish}


def first_of(name: str, *alternatives: Document) -> Document:
    subs = [{"name": each["name"], **each["exactly"]} for each in alternatives]
    return {"name": name, "firstAvailable": subs}


def claim(*requests: Document, name: str = "claim", **more: Any) -> Document:
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": {"devices": {"requests": list(requests), **more}}}


def held(*devices: str, pool: str = "node-a", **more: Any) -> Document:
    results = [{"request": "r", "driver": DRIVER, "pool": pool, "device": each, **more} for each in devices]
    return {"metadata": {"name": "held"}, "status": {"allocation": {"devices": {"results": results}}}}


def allocate(
    slices: list[Document],
    *claims: Document,
    release: int = 37,
    features: Features | None = None,
    classes: list[Document] | None = None,
    node: Document = NODE,
    **more: Any,
) -> Outcome:
    chosen = rules(release, default_features(release) if features is None else features)
    before = more.pop("before", [])
    allocator = Allocator(chosen, [CLASS] if classes is None else classes, slices, before, **more)
    return allocator.allocate(node, claims)


def names(outcome: Outcome, claim_: int = 0) -> list[str]:
    assert outcome.allocations is not None, outcome.error
    return [each["device"] for each in outcome.allocations[claim_]["devices"].get("results", [])]
