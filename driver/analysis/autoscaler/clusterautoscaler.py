"""Cluster Autoscaler's view: the template it makes of a node, when it holds a node for ready, how full it thinks it is.

Ported from kubernetes-sigs/cluster-autoscaler 33c3f97 (for Kubernetes 1.37), with the file named at each function.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from driver.analysis import quantity
from driver.analysis.autoscaler.pools import PoolKey, PoolView, complete_pools, pools

JSON: TypeAlias = dict[str, Any]

STABILIZATION_SECONDS: Final = 60
"""A node is a good template only this long after it became Ready (mixed_nodeinfos_processor.go)."""
MAX_NODE_STARTUP_SECONDS: Final = 15 * 60
"""Default of --max-node-startup-time: how long a node may lack pools before it counts as unready."""
WIPING_DELAY_SECONDS: Final = 30
"""After this long without a registered plugin the kubelet deletes a driver's slices (dra_plugin_manager.go)."""
TO_BE_DELETED_TAINT: Final = "ToBeDeletedByClusterAutoscaler"
_NAMED_DRIVERS: Final = frozenset({"compute-domain.nvidia.com", "dra.net", "gpu.nvidia.com", "tpu.google.com"})


class NotSanitizableError(ValueError):
    """No template can be made of this node; in Cluster Autoscaler this ends the whole loop."""


@dataclass(frozen=True, slots=True)
class Template:
    """What an imaginary node of the group would publish."""

    slices: tuple[JSON, ...]
    claims: tuple[JSON, ...]
    """Of the pods that come along (DaemonSets), pointed to the imaginary node."""


def sanitized_slices(slices: Iterable[JSON], *, node_name: str, suffix: str) -> tuple[JSON, ...]:
    """Copies for another node: names, pool names and node name change, everything else stays, taints and UUIDs too.

    Source: pkg/simulator/dynamicresources/utils/sanitize.go, SanitizedNodeResourceSlices. ``metadata.uid``, which is
    random there, is left out here.

    Raises:
        NotSanitizableError: a slice without ``spec.nodeName``.
    """
    copies = []
    for body in slices:
        spec = body["spec"]
        name = body.get("metadata", {}).get("name", "")
        if not spec.get("nodeName"):
            raise NotSanitizableError(f"can't sanitize slice {name} because it isn't node-local")
        metadata = {key: value for key, value in body.get("metadata", {}).items() if key != "uid"}
        pool = {**spec["pool"], "name": f"{spec['pool']['name']}-{suffix}"}
        copies.append(
            {
                **body,
                "metadata": {**metadata, "name": f"{name}-{suffix}"},
                "spec": {**spec, "nodeName": node_name, "pool": pool},
            }
        )
    return tuple(copies)


def sanitized_claims(
    claims: Iterable[JSON], *, owner: str, pool_names: Iterable[str], node_name: str, new_node_name: str, suffix: str
) -> tuple[JSON, ...]:
    """Copies of the claims that a pod owns, for its copy on another node; claims that it does not own stay the same.

    Source: sanitize.go, SanitizedPodResourceClaims.

    Args:
        claims: of one pod.
        owner: UID of the pod.
        pool_names: those that are local to its node.
        node_name: its node.
        new_node_name: the imaginary one.
        suffix: as for the slices.

    Raises:
        NotSanitizableError: a claim of its own is allocated outside the node.
    """
    local = frozenset(pool_names)
    result = []
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if not _owned_by(claim, owner):
            result.append(claim)
            continue
        copy: JSON = {**claim, "metadata": {**claim["metadata"], "name": f"{claim['metadata']['name']}-{suffix}"}}
        if allocation is None:
            result.append(copy)
            continue
        copy["status"] = {
            **claim["status"],
            "allocation": _moved(claim, allocation, local, node_name, new_node_name, suffix),
        }
        result.append(copy)
    return tuple(result)


def _moved(
    claim: JSON, allocation: JSON, local: frozenset[str], node_name: str, new_node_name: str, suffix: str
) -> JSON:
    label = f"claim {_claim_name(claim)}"
    devices = allocation.get("devices") or {}
    results, regular = [], False
    for entry in devices.get("results") or ():
        if entry.get("adminAccess"):
            results.append(entry)
            continue
        regular = True
        if entry["pool"] not in local:
            raise NotSanitizableError(
                f"{label} has an allocation {entry['request']}, from a pool that isn't node-local on {node_name}"
                " - can't be sanitized"
            )
        results.append({**entry, "pool": f"{entry['pool']}-{suffix}"})
    if regular and single_node(allocation.get("nodeSelector")) != node_name:
        raise NotSanitizableError(f"{label} is allocated, but not node-local on {node_name} - can't be sanitized")
    field = {"key": "metadata.name", "operator": "In", "values": [new_node_name]}
    selector = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return {**allocation, "devices": {**devices, "results": results}, "nodeSelector": selector}


def single_node(selector: JSON | None) -> str:
    """The node that a selector names alone, in the form that the scheduler writes; empty for any other selector."""
    terms = (selector or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions") or len(terms[0].get("matchFields") or ()) != 1:
        return ""
    field = terms[0]["matchFields"][0]
    values = field.get("values") or []
    named = field.get("key") == "metadata.name" and field.get("operator") == "In" and len(values) == 1
    return str(values[0]) if named else ""


def _owned_by(claim: JSON, uid: str) -> bool:
    return any(
        owner.get("uid") == uid and owner.get("controller") for owner in claim["metadata"].get("ownerReferences") or ()
    )


def _claim_name(claim: JSON) -> str:
    metadata = claim.get("metadata", {})
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def template(
    slices: Iterable[JSON],
    claims_by_pod: Mapping[str, Sequence[JSON]],
    *,
    node_name: str,
    new_node_name: str,
    suffix: str,
) -> Template:
    """The template that Cluster Autoscaler makes of a node: of all its slices and of the claims of all its pods.

    Source: pkg/simulator/node_info_utils.go. The claims of every pod are looked at, also of those that do not come
    along to the imaginary node, and one that cannot be copied ends the loop for all node groups.

    Args:
        slices: with ``spec.nodeName`` of this node.
        claims_by_pod: UID of each pod on it -> its claims.
        node_name: this node.
        new_node_name: the imaginary one.
        suffix: what names get at their end.

    Raises:
        NotSanitizableError: see ``sanitized_slices`` and ``sanitized_claims``.
    """
    local = list(slices)
    copies = sanitized_slices(local, node_name=new_node_name, suffix=suffix)
    names = {body["spec"]["pool"]["name"] for body in local}
    claims: list[JSON] = []
    for owner, owned in claims_by_pod.items():
        claims += sanitized_claims(
            owned,
            owner=owner,
            pool_names=names,
            node_name=node_name,
            new_node_name=new_node_name,
            suffix=suffix,
        )
    return Template(copies, tuple(claims))


def is_template_candidate(node: JSON, now: datetime | None = None) -> bool:
    """Whether the group's template may be taken from this node.

    Source: pkg/processors/nodeinfosprovider/mixed_nodeinfos_processor.go, isNodeGoodTemplateCandidate.

    Args:
        node: a Node.
        now: None leaves aside for how long it has been Ready.
    """
    spec = node.get("spec") or {}
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True" or spec.get("unschedulable"):
        return False
    if any(taint.get("key") == TO_BE_DELETED_TAINT for taint in spec.get("taints") or ()):
        return False
    if now is None or not ready.get("lastTransitionTime"):
        return True
    since = datetime.fromisoformat(str(ready["lastTransitionTime"]))
    return (now - since).total_seconds() > STABILIZATION_SECONDS


def pools_ready(slices: Iterable[JSON], template_slices: Iterable[JSON]) -> bool:
    """Whether a node has at least as many complete pools of each driver as the template: else it counts as unready.

    Source: pkg/processors/customresources/dra_processor.go, areResourcePoolsReady. Pools are counted, not devices.
    """
    real = complete_pools(slices)
    return all(real[driver] >= count for driver, count in complete_pools(template_slices).items())


def incomplete_reason(view: PoolView) -> str | None:
    """Why the utilisation of a node with this pool cannot be told (so that it is never scaled down); None where it can.

    Source: pkg/simulator/dynamicresources/utils/utilization.go, allCurrentGenSlices.
    """
    if view.complete:
        return None
    return f"newest generation: {view.generation}, slice count: {view.expected} - found only {len(view.slices)} slices"


def utilization(slices: Iterable[JSON], claims: Iterable[JSON]) -> dict[PoolKey, float]:
    """How full Cluster Autoscaler thinks each pool of a node is, 0 to 1; the node counts as its fullest pool.

    Source: utilization.go, CalculateDynamicResourceUtilization. CPU and memory do not count beside any slice.

    Args:
        slices: those with ``spec.nodeName`` of the node.
        claims: those of the pods on it, all allocated.

    Raises:
        ValueError: a pool is not complete, or a claim is not allocated; Cluster Autoscaler keeps the node then.
    """
    allocated: dict[PoolKey, set[str]] = {}
    for claim in claims:
        allocation = (claim.get("status") or {}).get("allocation")
        if allocation is None:
            raise ValueError(f"claim {_claim_name(claim)} not allocated")
        for entry in (allocation.get("devices") or {}).get("results") or ():
            if not entry.get("adminAccess"):
                allocated.setdefault((entry["driver"], entry["pool"]), set()).add(entry["device"])
    result = {}
    for key, view in pools(slices).items():
        reason = incomplete_reason(view)
        if reason is not None:
            raise ValueError(f'pool "{view.name}" error: {reason}')
        result[key] = pool_utilization(view, allocated.get(key, frozenset()))
    return result


def pool_utilization(view: PoolView, allocated: Iterable[str]) -> float:
    """The same for one pool, of which the named devices are allocated.

    With counters: of each counter set the fullest counter, averaged over the sets that any device draws on; devices
    without counters do not count. Without: the allocated part of the devices.
    """
    names = frozenset(allocated)
    devices = view.devices
    taken = [device for device in devices if device["name"] in names]
    if not view.counter_sets:
        return len(taken) / len(devices) if devices else 0.0
    drawn_on = {entry["counterSet"] for device in devices for entry in device.get("consumesCounters") or ()}
    if not drawn_on:
        return 0.0
    consumed: dict[tuple[str, str], int] = {}
    for device in taken:
        for entry in device.get("consumesCounters") or ():
            for name, counter in entry["counters"].items():
                key = entry["counterSet"], name
                consumed[key] = consumed.get(key, 0) + quantity.read(counter["value"]).nanos
    total = 0.0
    for counter_set in view.counter_sets:
        highest = 0.0
        for name, counter in counter_set["counters"].items():
            size = quantity.read(counter["value"]).nanos
            if size:
                highest = max(highest, consumed.get((counter_set["name"], name), 0) / size)
        total += highest / len(drawn_on)
    return total


def metric_driver(driver: str) -> str:
    """The name under which a driver appears in Cluster Autoscaler's metrics (pkg/utils/dynamicresources/metrics.go)."""
    return driver if driver in _NAMED_DRIVERS else "custom.driver"
