"""Rules about counters and shares: what Cluster Autoscaler will make of a node that is partly used."""

from __future__ import annotations

from collections.abc import Iterator

from driver.analysis import quantity
from driver.analysis.autoscaler import PoolView
from driver.analysis.autoscaler.clusterautoscaler import pool_utilization
from driver.analysis.lint.model import JSON, Context, Finding, counted, device_paths, shown

MUCH_TOO_HIGH, MUCH_TOO_LOW = 2.0, 0.5


def counters_for_all(context: Context) -> Iterator[Finding]:
    """A10."""
    for view in context.sound_pools.values():
        if not view.counter_sets:
            continue
        without = [
            (body, path, device) for body, path, device in device_paths(view) if not device.get("consumesCounters")
        ]
        if without:
            body, path, _device = without[0]
            names = [device["name"] for _, _, device in without]
            text = (
                f"pool {view.name} has {counted(len(names), 'device')} without a counter to draw on while others have "
                f"one ({shown(names)}): they do not count when the node's use is reckoned, not even when allocated"
            )
            yield Finding(text, context.document(body), path, tuple(names[:10]))


def forecast(context: Context) -> Iterator[Finding]:
    """A11."""
    for view in context.sound_pools.values():
        if not view.counter_sets:
            continue
        exclusive = _exclusive_counters(view)
        told: set[tuple[float, float]] = set()
        for body, path, device in device_paths(view):
            uses = device.get("consumesCounters") or ()
            if not uses:
                continue
            believed = pool_utilization(view, [device["name"]]) * _sets_drawn_on(view)
            share = _share(view, device, exclusive)
            key = round(believed, 3), round(share, 3)
            wrong = share > 0 and not MUCH_TOO_LOW <= believed / share <= MUCH_TOO_HIGH
            if wrong and key not in told:
                told.add(key)
                text = (
                    f"with {device['name']} allocated, Cluster Autoscaler takes its GPU for {believed:.0%} used, while "
                    f"{share:.0%} of it is"
                )
                yield Finding(text, context.document(body), f"{path}.consumesCounters")


def _sets_drawn_on(view: PoolView) -> int:
    return len({use["counterSet"] for device in view.devices for use in device.get("consumesCounters") or ()})


def _exclusive_counters(view: PoolView) -> frozenset[tuple[str, str]]:
    """Counters that whoever uses them uses up: they mark a place, and say nothing of an amount."""
    sizes = _sizes(view)
    partial = {
        (use["counterSet"], name)
        for device in view.devices
        for use in device.get("consumesCounters") or ()
        for name, counter in use["counters"].items()
        if 0 < quantity.read(counter["value"]).nanos < sizes.get((use["counterSet"], name), 0)
    }
    return frozenset(sizes) - partial


def _share(view: PoolView, device: JSON, exclusive: frozenset[tuple[str, str]]) -> float:
    """The largest part of any amount that the device takes; of places, where it takes nothing else."""
    sizes = _sizes(view)
    amounts, places = [0.0], []
    for use in device.get("consumesCounters") or ():
        own = [key for key in exclusive if key[0] == use["counterSet"]]
        taken = 0
        for name, counter in use["counters"].items():
            key = use["counterSet"], name
            size, value = sizes.get(key, 0), quantity.read(counter["value"]).nanos
            if key in exclusive:
                taken += value > 0
            elif size:
                amounts.append(value / size)
        if own:
            places.append(taken / len(own))
    return max(amounts) or max(places, default=0.0)


def _sizes(view: PoolView) -> dict[tuple[str, str], int]:
    return {
        (entry["name"], name): quantity.read(counter["value"]).nanos
        for entry in view.counter_sets
        for name, counter in entry["counters"].items()
    }


def shares_count_whole(context: Context) -> Iterator[Finding]:
    """A12."""
    for view in context.sound_pools.values():
        shareable = [entry for entry in device_paths(view) if entry[2].get("allowMultipleAllocations")]
        if shareable:
            body, path, device = shareable[0]
            text = (
                f"pool {view.name} has {counted(len(shareable), 'device')} to be shared: one share of {device['name']}"
                f", however small, counts as the whole device, so the pool is {1 / len(view.devices):.0%} used"
            )
            yield Finding(text, context.document(body), f"{path}.allowMultipleAllocations")


def one_cost_per_type(context: Context) -> Iterator[Finding]:
    """A15."""
    for view in context.sound_pools.values():
        costs: dict[str, dict[str, str]] = {}
        for body, path, device in device_paths(view):
            attribute = body["spec"].get("partitionTypeAttribute")
            if not attribute or not device.get("consumesCounters"):
                continue
            attributes = device.get("attributes") or {}
            domain, _, identifier = attribute.partition("/")
            value = (attributes.get(attribute) or (attributes.get(identifier) if domain == view.driver else None)) or {}
            if value.get("string") is None:
                text = f"device {device['name']} has no text in {attribute}, which tells its type"
                yield Finding(text, context.document(body), f"{path}.attributes")
                continue
            known = costs.setdefault(value["string"], {})
            known.setdefault(_cost(device), device["name"])
            if len(known) == 2 and known[_cost(device)] == device["name"]:
                text = f"devices of type {value['string']} draw on different counters: {shown(known.values())}"
                yield Finding(text, context.document(body), f"{path}.consumesCounters")


def _cost(device: JSON) -> str:
    uses = device.get("consumesCounters") or ()
    return repr(
        sorted(
            sorted((name, quantity.read(counter["value"]).nanos) for name, counter in use["counters"].items())
            for use in uses
        )
    )
