"""What tests of the publisher publish, and how."""

from __future__ import annotations

from typing import Any

from kubeletplugin.api import DriverResources, Pool, Slice

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = "node-a/gpu.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TAINT = {"key": "example.com/lost", "effect": "NoSchedule"}
COUNTERS = {"name": "set", "counters": {"memory": {"value": "80Gi"}}}


def content(*names: str, **fields: Any) -> Slice:
    return Slice(tuple({"name": name, **fields} for name in names))


def pools(*slices: Slice, name: str = POOL) -> DriverResources:
    return DriverResources({name: Pool(slices)})


def publish(bench: Any, *slices: Slice, **options: Any) -> Any:
    publisher = bench.publisher(**options)
    publisher.update(pools(*slices))
    assert publisher.synced(10)
    return publisher
