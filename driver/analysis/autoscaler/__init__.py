"""How Cluster Autoscaler and Karpenter see what a node publishes: their rules as pure functions over documents.

Each function names the file of the version it was ported from; golden data made by running that code keeps them equal
(``hack/autoscaler``, ``tests/unit/analysis_autoscaler``).
"""

from __future__ import annotations

from typing import Final

from driver.analysis.autoscaler.clusterautoscaler import (
    MAX_NODE_STARTUP_SECONDS,
    STABILIZATION_SECONDS,
    WIPING_DELAY_SECONDS,
    NotSanitizableError,
    Template,
    incomplete_reason,
    is_template_candidate,
    metric_driver,
    pools_ready,
    sanitized_claims,
    sanitized_slices,
    template,
    utilization,
)
from driver.analysis.autoscaler.karpenter import (
    KarpenterPool,
    bound_devices,
    gather_pools,
    initialized,
    owned_by_node,
    refusals,
)
from driver.analysis.autoscaler.pools import PoolKey, PoolView, complete_pools, pools

CLUSTER_AUTOSCALER: Final = "Cluster Autoscaler 1.37 (kubernetes-sigs/cluster-autoscaler 33c3f97)"
KARPENTER: Final = "Karpenter 1.15.0 (sigs.k8s.io/karpenter)"
"""The versions that the ports follow."""

IGNORED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    CLUSTER_AUTOSCALER: (
        ("DeviceTaintRule", "pkg/simulator/dynamicresources/snapshot/snapshot_slice_lister.go"),
        ("ResourceSlice.spec.nodeSelector", "pkg/simulator/dynamicresources/provider/provider.go"),
        ("ResourceSlice.spec.allNodes", "pkg/simulator/dynamicresources/provider/provider.go"),
        ("ResourceSlice.spec.perDeviceNodeSelection", "pkg/simulator/dynamicresources/provider/provider.go"),
        ("devices[].bindingConditions", "pkg/docs/dra_support.md"),
        ("status.allocation.devices.results[].consumedCapacity", "pkg/simulator/dynamicresources/utils/utilization.go"),
        ("PodGroup", "pkg/simulator/dynamicresources/noop_manager.go"),
    ),
    KARPENTER: (
        ("devices[].taints", "pkg/cloudprovider/dynamicresources.go"),
        ("DeviceTaintRule", "pkg/cloudprovider/dynamicresources.go"),
        ("devices[].bindingConditions", "pkg/cloudprovider/dynamicresources.go"),
        ("devices[].nodeName", "pkg/scheduling/dynamicresources/types.go"),
        ("requests[].exactly.adminAccess", "pkg/scheduling/dynamicresources/request.go"),
        ("constraints[].distinctAttribute", "pkg/scheduling/dynamicresources/request.go"),
    ),
}
"""What each does not look at, with the file that says so."""

__all__ = [
    "CLUSTER_AUTOSCALER",
    "IGNORED",
    "KARPENTER",
    "MAX_NODE_STARTUP_SECONDS",
    "STABILIZATION_SECONDS",
    "WIPING_DELAY_SECONDS",
    "KarpenterPool",
    "NotSanitizableError",
    "PoolKey",
    "PoolView",
    "Template",
    "bound_devices",
    "complete_pools",
    "gather_pools",
    "incomplete_reason",
    "initialized",
    "is_template_candidate",
    "metric_driver",
    "owned_by_node",
    "pools",
    "pools_ready",
    "refusals",
    "sanitized_claims",
    "sanitized_slices",
    "template",
    "utilization",
]
