"""A shape in the forms in which an autoscaler can be told of a node that it has not seen, and what each form loses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from driver.analysis.shape.consistency import device_ids, devices_of
from driver.analysis.shape.export import NODE, Shape
from driver.analysis.shape.instantiate import instantiate
from driver.analysis.shape.kinds import EQUALITY, qualified

JSON: TypeAlias = dict[str, Any]
Failure: TypeAlias = Callable[[str, JSON], str | None]
"""(name of a DeviceClass, device as JSON) -> why its selector cannot be evaluated on such a device."""

CAPI_PREFIX: Final = "capacity.cluster-autoscaler.kubernetes.io"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
_LABEL_LENGTH: Final = 63


@dataclass(frozen=True, slots=True)
class Emitted:
    """What to write, and what got lost on the way."""

    content: Any
    """JSON: an object, or a list of objects."""
    warnings: tuple[str, ...] = ()


def plain_slices(shape: Shape) -> Emitted:
    """ResourceSlices with ``$(NODE)`` where the node's name belongs: nothing is lost."""
    return Emitted(list(instantiate(shape, NODE)))


def cluster_api(
    shape: Shape, *, classes: Sequence[str] = (), failure: Failure | None = None, driver: str | None = None
) -> Emitted:
    """The annotations that Cluster Autoscaler's Cluster API provider reads on MachineDeployments and MachineSets.

    Source: kubernetes/autoscaler cluster-autoscaler/cloudprovider/clusterapi/README.md and
    clusterapi_unstructured.go, InstanceResourceSlices: a number of devices with the attribute ``type: gpu`` alone.

    Args:
        shape: which kind of node.
        classes: DeviceClasses that are in use.
        failure: asks one of them about a device.
        driver: which of the shape's drivers; None takes the first that has devices.
    """
    chosen = driver or next((pool["driver"] for pool in shape.pools if devices_of(pool)), None)
    whole = [
        device
        for pool, device in shape.devices
        if pool["driver"] == chosen and _text(device, "type", str(chosen)) in (None, "gpu")
    ]
    annotations = {f"{CAPI_PREFIX}/dra-driver": str(chosen or ""), f"{CAPI_PREFIX}/gpu-count": str(len(whole))}
    warnings = [f"driver {name} has no place in the annotations" for name in shape.drivers if name != chosen]
    others = sum(pool["driver"] == chosen for pool, _ in shape.devices) - len(whole)
    if others:
        warnings.append(f"{others} partitions and other devices of {chosen} have no place in the annotations")
    thin = {"name": "gpu-0", "attributes": {"type": {"string": "gpu"}}}
    reasons = {name: failure(name, thin) if failure is not None else None for name in classes}
    warnings += [
        f"DeviceClass {name} fails on such a node ({reason}): the group is never chosen for it"
        for name, reason in reasons.items()
        if reason is not None
    ]
    warnings.append("all attributes but type, and all capacities, are lost: claims that select on them never scale up")
    return Emitted({"metadata": {"annotations": annotations}}, tuple(warnings))


def karpenter(shape: Shape) -> Emitted:
    """ResourceSliceTemplates and AttributeBindings of one instance type, as JSON with the names of Karpenter's fields.

    Source: sigs.k8s.io/karpenter v1.15.0 pkg/cloudprovider/dynamicresources.go. Numbers that are only compared
    (``numaNode``) stay as they are, as they come out the same on each node; other values that are not known before
    the node is there become bindings.
    """
    templates, warnings = [], []
    for pool in shape.pools:
        head = {"driver": pool["driver"], "pool": {"name": pool["nameTemplate"].replace(NODE, "node")}}
        for part in pool["slices"]:
            if part.get("sharedCounters"):
                templates.append({**head, "sharedCounters": part["sharedCounters"]})
            if part.get("devices"):
                devices = [_template_device(device, pool["driver"], shape) for device in part["devices"]]
                templates.append({**head, "devices": devices})
        warnings += [
            f"{field} of driver {pool['driver']} has no place in a template"
            for field in ("bindingConditions", "bindsToNode")
            if any(device.get(field) for device in devices_of(pool))
        ]
    bindings = []
    for entry in shape.equal_groups:
        if not _is_unknown(entry["attribute"], shape):
            continue
        shared = [group for group in entry["groups"] if len(group) > 1]
        bindings += [
            {"attribute": entry["attribute"], "devices": [_device_id(name, shape) for name in group]}
            for group in shared
        ]
        alone = len(entry["groups"]) - len(shared)
        if alone and entry["kind"] == EQUALITY:
            warnings.append(
                f"{alone} devices share {entry['attribute']} with none: a binding needs two, so a claim for one device "
                "that compares it is not simulated"
            )
    return Emitted({"resourceSliceTemplates": templates, "attributeBindings": bindings}, tuple(warnings))


def _template_device(device: JSON, driver: str, shape: Shape) -> JSON:
    fields = ("name", "capacity", "allowMultipleAllocations", "consumesCounters")
    kept = {field: device[field] for field in fields if field in device}
    attributes = {
        name: value
        for name, value in (device.get("attributes") or {}).items()
        if not _is_unknown(qualified(name, driver), shape)
    }
    return {**kept, "attributes": attributes} if attributes else kept


def _is_unknown(attribute: str, shape: Shape) -> bool:
    """Whether the value is not to be known before the node is there."""
    if not any(entry["attribute"] == attribute for entry in shape.equal_groups):
        return False
    values = (
        value
        for pool, device in shape.devices
        for name, value in (device.get("attributes") or {}).items()
        if qualified(name, pool["driver"]) == attribute
    )
    return not all("int" in value for value in values) or _is_assigned(attribute, shape)


def _is_assigned(attribute: str, shape: Shape) -> bool:
    return any(
        qualified(name, pool["driver"]) == attribute
        for pool, device in shape.devices
        for name in device.get("assigned") or ()
    )


def _device_id(name: str, shape: Shape) -> JSON:
    ids = device_ids([(pool["driver"], [device["name"] for device in devices_of(pool)]) for pool in shape.pools])
    for pool, names in zip(shape.pools, ids, strict=True):
        if name in names:
            device = devices_of(pool)[names.index(name)]["name"]
            return {"driver": pool["driver"], "pool": pool["nameTemplate"].replace(NODE, "node"), "device": device}
    raise KeyError(name)


def kwok(shape: Shape, *, labels: Mapping[str, str] | None = None) -> Emitted:
    """DRAConfigs (test.karpenter.sh/v1alpha1), one a driver, with which Karpenter's KWOK provider plays the driver.

    Source: sigs.k8s.io/karpenter v1.15.0 dra-kwok-driver/pkg/apis/v1alpha1/draconfig_types.go.

    Args:
        shape: which kind of node.
        labels: of the nodes that are meant; None takes those of the shape.
    """
    wanted = dict(labels or shape.labels)
    warnings = [] if wanted else ["no label tells which nodes are meant: the configuration is for all that KWOK makes"]
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(wanted.items())]
    term = {"matchExpressions": expressions or [{"key": INSTANCE_TYPE, "operator": "Exists"}]}
    configs = []
    for driver in shape.drivers:
        entries = []
        for number, pool in enumerate(pool for pool in shape.pools if pool["driver"] == driver):
            parts = [part["devices"] for part in pool["slices"] if part.get("devices")]
            if any(part.get("sharedCounters") for part in pool["slices"]):
                warnings.append(
                    f"counters of {driver} have no place there: partitions of a GPU do not exclude each other"
                )
            devices = [[_plain_device(device, driver) for device in part] for part in parts]
            if devices:
                slices = [{"devices": part} for part in devices]
                entries.append({"name": f"pool-{number}", "nodeSelectorTerms": [term], "resourceSlices": slices})
        if entries:
            configs.append(
                {
                    "apiVersion": "test.karpenter.sh/v1alpha1",
                    "kind": "DRAConfig",
                    "metadata": {"name": f"{driver}-{shape.hash.removeprefix('sha256:')[:12]}"},
                    "spec": {"driver": driver, "pools": entries},
                }
            )
    assigned = any(device.get("assigned") for _, device in shape.devices)
    if assigned:
        warnings.append("attributes that are new on each node are the same on all nodes there")
    return Emitted(configs, tuple(dict.fromkeys(warnings)))


def _plain_device(device: JSON, driver: str) -> JSON:
    kept = {field: value for field, value in device.items() if field not in ("assigned", "consumesCounters")}
    made_up = {name: {kind: _example(kind)} for name, kind in (device.get("assigned") or {}).items()}
    attributes = {**(device.get("attributes") or {}), **made_up}
    return {**kept, "attributes": attributes} if attributes else kept


def _example(kind: str) -> Any:
    """Some value of the type that ``assigned`` names: ``string``, ``ints`` and so on."""
    value: Any = {"int": 0, "bool": False, "version": "0.0.0"}.get(kind.removesuffix("s"), "imaginary")
    return [value] if kind.endswith("s") else value


def config_map(shape: Shape, *, namespace: str) -> JSON:
    """The ConfigMap in which the shape is kept in a cluster.

    It is named by the hash with the software in it, so that nodes which write the same name write the same shape, and
    carries the other hash as a label.
    """
    # Without blanks: sixteen GPUs in all their partitions come near to the 1 MiB that a ConfigMap may hold.
    text = json.dumps(shape.document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest, software = (value.removeprefix("sha256:") for value in (shape.hash, shape.software_hash))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"gpudra-shape-{software[:16]}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/managed-by": "gpudra", "gpudra.dev/shape": digest[:_LABEL_LENGTH]},
        },
        "data": {"shape.json": text + "\n"},
    }


def _text(device: JSON, name: str, driver: str) -> str | None:
    attributes = device.get("attributes") or {}
    value = attributes.get(name) or attributes.get(f"{driver}/{name}") or {}
    return value.get("string") if isinstance(value, dict) else None
