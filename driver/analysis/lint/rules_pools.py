"""Rules about slices and pools: whether the scheduler and the autoscalers can read what a node publishes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from driver.analysis import autoscaler
from driver.analysis.autoscaler import incomplete_reason
from driver.analysis.autoscaler.karpenter import duplicate_names
from driver.analysis.lint.model import Context, Finding, Severity, counted, device_paths, shown

_INDEX = re.compile(r"\A([0-9a-f]{5,})-")
_BUS_ID = re.compile(r"\A[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\Z")
_ROOT = re.compile(r"\Apci[0-9a-f]{4,8}:[0-9a-f]{2}\Z")
MOST_DEVICES_WITH_TAINTS = 64
"""More than this in a slice, and the first taint makes the API server refuse it."""


def one_pool_per_node(context: Context) -> Iterator[Finding]:
    """A01."""
    for node, slices in context.node_slices.items():
        found: dict[str, dict[str, None]] = {}
        for body in slices:
            found.setdefault(body["spec"]["driver"], {})[body["spec"]["pool"]["name"]] = None
        for driver, names in found.items():
            if len(names) > 1:
                first = next(body for body in slices if body["spec"]["driver"] == driver)
                yield Finding(
                    f"driver {driver} publishes {len(names)} pools on node {node}: {shown(names)}",
                    context.document(first),
                    "spec.pool.name",
                    tuple(names),
                )


def node_local(context: Context) -> Iterator[Finding]:
    """A02."""
    for document in context.collection.slices:
        spec = document.body["spec"]
        for field in ("allNodes", "nodeSelector", "perDeviceNodeSelection"):
            if spec.get(field):
                yield Finding(
                    f"devices of pool {spec['pool']['name']} are not bound to a node by name, but by {field}",
                    document,
                    f"spec.{field}",
                )


def pool_names_apart(context: Context) -> Iterator[Finding]:
    """A03."""
    holders: dict[str, list[tuple[str, bool]]] = {}
    for (driver, name), view in context.pools.items():
        holders.setdefault(name, []).append((driver, bool(view.counter_sets)))
        nodes = {body["spec"].get("nodeName") for body in view.slices} - {None}
        if len(nodes) > 1:
            text = f"pool {name} of driver {driver} has slices of {len(nodes)} nodes: {shown(sorted(nodes))}"
            yield Finding(text, context.document(view.slices[0]), "spec.pool.name", severity=Severity.ERROR)
    for name, drivers in holders.items():
        if len(drivers) > 1:
            counting = [driver for driver, counters in drivers if counters]
            first = context.pools[drivers[0][0], name].slices[0]
            yield Finding(
                f"pool name {name} is used by {len(drivers)} drivers: {shown(driver for driver, _ in drivers)}"
                + (f"; counters of {shown(counting)} disturb each other" if len(counting) > 1 else ""),
                context.document(first),
                "spec.pool.name",
                severity=Severity.ERROR if len(counting) > 1 else Severity.NOTE,
            )


def complete(context: Context) -> Iterator[Finding]:
    """A04."""
    for view in context.sound_pools.values():
        document = context.document(view.slices[0])
        reason = incomplete_reason(view)
        counts = sorted({body["spec"]["pool"]["resourceSliceCount"] for body in view.slices})
        label = f"pool {view.name} of driver {view.driver}"
        if len(counts) > 1:
            text = f"slices of {label} do not agree on how many they are: {shown(map(str, counts))}"
            yield Finding(text, document, "spec.pool.resourceSliceCount")
        elif reason is not None:
            yield Finding(f"{label} is not complete: {reason}", document, "spec.pool.resourceSliceCount")
        if view.obsolete:
            text = f"{label} still has {counted(len(view.obsolete), 'slice')} of an older generation"
            path = "spec.pool.generation"
            yield Finding(text, context.document(view.obsolete[0]), path, severity=Severity.NOTE)


def owned_by_node(context: Context) -> Iterator[Finding]:
    """A05: only of slices that the API server has stored; before that nobody knows the Node's UID."""
    for document in context.collection.slices:
        stored = document.body.get("metadata", {}).get("uid")
        if stored and document.body["spec"].get("nodeName") and not autoscaler.owned_by_node(document.body):
            node = document.body["spec"]["nodeName"]
            yield Finding(f"the slice has no owner reference to node {node}", document, "metadata.ownerReferences")


def valid_pool(context: Context) -> Iterator[Finding]:
    """A25: what makes the scheduler take nothing from a pool although each slice by itself is right."""
    for view in context.sound_pools.values():
        document = context.document(view.slices[0])
        label = f"pool {view.name} of driver {view.driver}"
        names = duplicate_names(view)
        if names:
            yield Finding(f"{label} has device names twice: {shown(names)}", document, "spec.devices")
        sets = [entry["name"] for entry in view.counter_sets]
        twice = sorted({name for name in sets if sets.count(name) > 1})
        if twice:
            yield Finding(f"{label} has counter sets twice: {shown(twice)}", document, "spec.sharedCounters")
        known = {entry["name"]: entry["counters"] for entry in view.counter_sets}
        for body, path, device in device_paths(view):
            for index, use in enumerate(device.get("consumesCounters") or ()):
                missing = [name for name in use["counters"] if name not in known.get(use["counterSet"], {})]
                if missing and view.complete:
                    text = (
                        f"device {device['name']} draws on {use['counterSet']}: {shown(missing)}, which {label} lacks"
                    )
                    yield Finding(text, context.document(body), f"{path}.consumesCounters[{index}]")


def room_for_a_taint(context: Context) -> Iterator[Finding]:
    """A14."""
    for document in context.collection.slices:
        devices = document.body["spec"].get("devices") or ()
        plain = not any(device.get("taints") or device.get("consumesCounters") for device in devices)
        if len(devices) > MOST_DEVICES_WITH_TAINTS and plain:
            text = f"the slice has {len(devices)} devices: the first taint on one of them makes it invalid"
            yield Finding(text, document, "spec.devices")
    for document, path, spec in context.claim_specs:
        wanted = sum(
            (request.get("exactly") or {}).get("count") or 1
            for request in (spec.get("devices") or {}).get("requests") or ()
        )
        if wanted > 32:
            text = f"the claim asks for {wanted} devices, and a claim can be given 32"
            yield Finding(text, document, f"{path}.devices.requests", severity=Severity.ERROR)


def accepted_by_the_server(context: Context) -> Iterator[Finding]:
    """A26."""
    for document in context.collection.documents:
        validator = context.options.validators.get(document.kind)
        for path, message in validator(document.body) if validator is not None else ():
            yield Finding(f"the API server refuses it: {message}", document, path)


def slice_order(context: Context) -> Iterator[Finding]:
    """A22."""
    for view in context.sound_pools.values():
        offering = [body for body in view.slices if body["spec"].get("devices")]
        names = [body.get("metadata", {}).get("name") or body["metadata"].get("generateName", "") for body in offering]
        if len(offering) < 2 or not all(names):
            continue
        widths = {len(match[1]) if match else 0 for match in map(_INDEX.match, names)}
        if len(widths) > 1 or 0 in widths:
            text = (
                f"the {len(offering)} slices of pool {view.name} have no index of one width at the front of their "
                f"names ({shown(sorted(names))}): devices are tried in an order that nobody chose"
            )
            yield Finding(text, context.document(offering[0]), "metadata.name")


def standard_attributes(context: Context) -> Iterator[Finding]:
    """A27."""
    for view in context.pools.values():
        for body, path, device in device_paths(view):
            attributes = device.get("attributes") or {}
            where = f"{path}.attributes"
            for text, name in _standard_faults(attributes):
                yield Finding(f"device {device['name']}: {text}", context.document(body), f"{where}[{name}]")


def _standard_faults(attributes: dict[str, dict[str, object]]) -> Iterator[tuple[str, str]]:
    prefix = "resource.kubernetes.io/"
    for name, pattern, form in (
        ("pciBusID", _BUS_ID, "0000:1b:00.0 in lower case"),
        ("pcieRoot", _ROOT, "pci0000:16"),
    ):
        value = attributes.get(prefix + name)
        if value is not None and not pattern.match(str(value.get("string"))):
            yield f"{prefix}{name} is {value.get('string')!r}, and other drivers write it as {form}", prefix + name
    numa = attributes.get(prefix + "numaNode")
    if numa is None:
        return
    listed = numa.get("ints")
    values = listed if isinstance(listed, list) else [numa.get("int")]
    if any(not isinstance(value, int) or value < 0 for value in values):
        yield (
            f"{prefix}numaNode is {values[0]!r}: devices without a node would look as if they shared one; leave it out",
            prefix + "numaNode",
        )


def one_type_per_attribute(context: Context) -> Iterator[Finding]:
    """A28."""
    seen: dict[tuple[str, str], tuple[str, str]] = {}
    told: set[tuple[str, str]] = set()
    for view in context.pools.values():
        for body, path, device in device_paths(view):
            for name, value in (device.get("attributes") or {}).items():
                kind = next((field for field, given in value.items() if given is not None), "nothing")
                key = view.driver, name
                first = seen.setdefault(key, (kind, device["name"]))
                if first[0] != kind and key not in told:
                    told.add(key)
                    text = f"attribute {name} is {kind} on device {device['name']} and {first[0]} on {first[1]}"
                    yield Finding(text, context.document(body), f"{path}.attributes[{name}]")
