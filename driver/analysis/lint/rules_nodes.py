"""Rules about nodes, groups of nodes and what runs on them: what an autoscaler learns from the wrong sample."""

from __future__ import annotations

import re
from collections.abc import Iterator

from driver.analysis.autoscaler import (
    NotSanitizableError,
    is_template_candidate,
    metric_driver,
    sanitized_claims,
)
from driver.analysis.documents import Document
from driver.analysis.lint.model import JSON, Context, Finding, Severity, counted, requests, shown
from driver.analysis.lint.rules_claims import claim_of, context_template
from driver.analysis.shape.compare import differences
from driver.analysis.shape.export import Shape, export

MOST_UNREADY_PERCENT = 45
"""Default of --max-total-unready-percentage: Cluster Autoscaler stops above it."""
_KUBELET_PLUGINS = "/var/lib/kubelet/plugins"
_WORKLOADS = ("DaemonSet", "Deployment", "StatefulSet", "ReplicaSet", "Job")


def group_alike(context: Context) -> Iterator[Finding]:
    """A07."""
    for group, names in context.groups.items():
        kinds: dict[str, tuple[Shape, list[str]]] = {}
        for number, name in enumerate(names):
            context.options.progress(f"shapes of group {group}", number)
            shape = export(context.node_slices[name], context.options.kinds, node_name=name)
            kinds.setdefault(shape.hash, (shape, []))[1].append(name)
        usual, most = max(kinds.values(), key=lambda kind: len(kind[1]))
        for shape, members in kinds.values():
            if members is most:
                continue
            found = differences(usual, shape, context.options.kinds)
            yield Finding(
                f"{shown(members)} of group {group} is of another shape than {shown(most, 1)}: "
                f"{found[0] if found else 'what it is cannot be said'}",
                context.document(context.node_slices[members[0]][0]),
                "spec.devices",
                tuple(map(str, found[:10])),
            )


def no_taints_on_samples(context: Context) -> Iterator[Finding]:
    """A08."""
    for node, slices in context.node_slices.items():
        known = context.nodes.get(node)
        if known is not None and not is_template_candidate(known):
            continue
        for body in slices:
            tainted = [
                (index, device, taint)
                for index, device in enumerate(body["spec"].get("devices") or ())
                for taint in device.get("taints") or ()
                if taint["effect"] in ("NoSchedule", "NoExecute")
            ]
            if tainted:
                index, device, taint = tainted[0]
                names = [device["name"] for _, device, _ in tainted]
                sick = counted(len(set(names)), "tainted device")
                yield Finding(
                    f"node {node} has {sick} ({taint['key']} on {device['name']}): where it is the sample "
                    "of its group, every new node is believed to be as sick",
                    context.document(body),
                    f"spec.devices[{index}].taints",
                    tuple(dict.fromkeys(names)),
                )


def claims_stay_on_the_node(context: Context) -> Iterator[Finding]:
    """A16."""
    for document in context.collection.of("Pod"):
        pod = document.body
        node, uid = pod["spec"].get("nodeName"), pod["metadata"].get("uid")
        known = context.nodes.get(node) if node else None
        if not node or not uid or (known is not None and not is_template_candidate(known)):
            continue
        pools = {body["spec"]["pool"]["name"] for body in context.node_slices.get(node, ())}
        for entry in pod["spec"].get("resourceClaims") or ():
            claim, _ = claim_of(context, pod, entry)
            if claim is None:
                continue
            try:
                sanitized_claims(
                    [claim.body], owner=uid, pool_names=pools, node_name=node, new_node_name="new", suffix="new"
                )
            except NotSanitizableError as error:
                yield Finding(
                    f"{error}: with node {node} as a sample, Cluster Autoscaler stops for all groups",
                    claim,
                    "status.allocation",
                )


def daemons_look_on(context: Context) -> Iterator[Finding]:
    """A17."""
    for document in context.collection.of("DaemonSet"):
        namespace = document.body["metadata"].get("namespace") or "default"
        for index, entry in enumerate(document.body["spec"]["template"]["spec"].get("resourceClaims") or ()):
            path = f"spec.template.spec.resourceClaims[{index}]"
            template = context_template(context, namespace, entry.get("resourceClaimTemplateName"))
            if template is None:
                continue
            taking = [
                request for _, request in requests(template.body["spec"]["spec"]) if not request.get("adminAccess")
            ]
            if taking:
                yield Finding(f"its pods take devices of their own, by claim template {template.name}", document, path)


def rollout_keeps_slices(context: Context) -> Iterator[Finding]:
    """A18."""
    for document in context.collection.of("DaemonSet"):
        if not _is_driver(document):
            continue
        strategy = document.body["spec"].get("updateStrategy") or {}
        rolling = strategy.get("rollingUpdate") or {}
        unavailable, surge = rolling.get("maxUnavailable", 1), rolling.get("maxSurge", 0)
        percent = re.fullmatch(r"(\d+)%", str(unavailable))
        path = "spec.updateStrategy.rollingUpdate.maxUnavailable"
        if percent and int(percent[1]) > MOST_UNREADY_PERCENT:
            text = (
                f"an update takes the driver from {unavailable} of the nodes at once; above {MOST_UNREADY_PERCENT} % "
                "unready nodes Cluster Autoscaler stops"
            )
            yield Finding(text, document, path)
        if strategy.get("type", "RollingUpdate") == "RollingUpdate" and str(surge) in ("0", "0%"):
            text = (
                "the old pod goes before the new one comes: if that takes longer than 30 seconds, the kubelet deletes "
                "the node's slices"
            )
            yield Finding(text, document, path, severity=Severity.NOTE)


def _is_driver(document: Document) -> bool:
    volumes = document.body["spec"]["template"]["spec"].get("volumes") or ()
    paths = [((volume or {}).get("hostPath") or {}).get("path", "") for volume in volumes if isinstance(volume, dict)]
    return any(str(path).startswith(_KUBELET_PLUGINS) for path in paths)


def no_taint_rules(context: Context) -> Iterator[Finding]:
    """A19."""
    for document in context.collection.of("DeviceTaintRule"):
        taint = document.body["spec"]["taint"]
        if taint["effect"] in ("NoSchedule", "NoExecute"):
            text = f"taint {taint['key']}:{taint['effect']} of a rule is seen by no autoscaler: the devices look free"
            yield Finding(text, document, "spec.taint")


def driver_in_metrics(context: Context) -> Iterator[Finding]:
    """A20."""
    drivers: dict[str, JSON] = {}
    for view in context.pools.values():
        drivers.setdefault(view.driver, view.slices[0])
    for driver, body in drivers.items():
        if metric_driver(driver) != driver:
            text = f"Cluster Autoscaler's metrics count driver {driver} as {metric_driver(driver)}"
            yield Finding(text, context.document(body), "spec.driver")


def pods_do_not_preempt(context: Context) -> Iterator[Finding]:
    """A24."""
    for document in context.collection.of("Pod"):
        phase = (document.body.get("status") or {}).get("phase")
        if phase not in ("Succeeded", "Failed"):
            yield from _preempting(document, document.body["spec"], "spec")
    for kind in _WORKLOADS:
        for document in context.collection.of(kind):
            yield from _preempting(document, document.body["spec"]["template"]["spec"], "spec.template.spec")


def _preempting(document: Document, spec: JSON, path: str) -> Iterator[Finding]:
    policy = spec.get("preemptionPolicy") or "PreemptLowerPriority"
    if spec.get("resourceClaims") and policy != "Never":
        text = f"pods with claims and preemption policy {policy} hide from Cluster Autoscaler that a node is missing"
        yield Finding(text, document, f"{path}.preemptionPolicy")
