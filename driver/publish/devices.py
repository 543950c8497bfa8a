"""One Device object each: attributes and capacity from the tables, counters, taints. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from driver.model import Gpu, MigPartition
from driver.names import name_of, partition_name
from driver.publish.attributes import AttributeType, Value
from driver.publish.counters import Part, fixed_consumption, set_name
from driver.publish.migattributes import INHERITED, MIG_ATTRIBUTES, PartFacts
from driver.publish.offers import Offer
from driver.publish.values import clip, quantity

JSON: TypeAlias = dict[str, Any]
Values: TypeAlias = Mapping[str, Value | None]

MAX_TAINTS: Final = 16


class Row(Protocol):
    """What a document needs of a row of a table."""

    @property
    def id(self) -> str:
        """Qualified name."""

    @property
    def type(self) -> AttributeType:
        """Where and how its value stands."""


class Tables(msgspec.Struct, frozen=True):
    """What all devices of a pool have in common."""

    gpu_keys: frozenset[str]
    """Which attributes and capacities whole GPUs have."""
    mig_keys: frozenset[str]
    """Which ones MIG devices have."""
    counted: bool
    """Whether devices consume counters."""
    taints: Mapping[str, Sequence[JSON]]


def uniform_keys(rows: Iterable[Values]) -> frozenset[str]:
    """The keys that every row has a value for: only these may be published.

    A CEL expression that meets a missing key fails, and a failing expression stops the scheduling of that pod on
    all nodes, not only on this device.
    """
    shared: frozenset[str] | None = None
    for row in rows:
        present = frozenset(key for key, value in row.items() if not is_missing(value))
        shared = present if shared is None else shared & present
    return shared or frozenset()


def is_missing(value: Value | None) -> bool:
    """Whether there is nothing to publish."""
    return value is None or (isinstance(value, str) and not clip(value))


def mig_keys(offers: Iterable[Offer], gpus: Mapping[str, Values]) -> frozenset[str]:
    """The keys that every MIG device of the pool has a value for."""
    divided = [offer for offer in offers if offer.divided]
    inherited = uniform_keys({row.id: gpus[offer.gpu.name][row.id] for row in INHERITED} for offer in divided)
    own = uniform_keys(_own(offer.gpu, part) for offer in divided for part in _facts(offer))
    return inherited | own


def part_devices(offer: Offer, gpu: Values, tables: Tables) -> Iterator[JSON]:
    """The MIG devices of one GPU, in the order in which the scheduler is to take them."""
    if not offer.divided:
        return
    base = device_document("", INHERITED, gpu, tables.mig_keys)
    counters = set_name(offer.gpu)
    above = tables.taints.get(offer.gpu.name, ())
    for name, facts, consumed in _named(offer):
        device = device_document(name, MIG_ATTRIBUTES, _own(offer.gpu, facts), tables.mig_keys)
        device["attributes"].update(base["attributes"])
        if tables.counted:
            device["consumesCounters"] = [{"counterSet": counters, "counters": consumed}]
        yield tainted(device, [*above, *tables.taints.get(name, ())])


def device_document(name: str, rows: Iterable[Row], values: Values, keys: frozenset[str]) -> JSON:
    """A device with those of the rows' values that have their key in ``keys``."""
    attributes: JSON = {}
    capacity: JSON = {}
    for row in rows:
        value = values[row.id]
        if row.id not in keys or value is None:
            continue
        if row.type is AttributeType.CAPACITY:
            capacity[row.id] = {"value": quantity(int(value))}
        else:
            attributes[row.id] = {row.type.value: clip(value) if isinstance(value, str) else value}
    device: JSON = {"name": name, "attributes": attributes}
    if capacity:
        device["capacity"] = capacity
    return device


def tainted(device: JSON, taints: Sequence[JSON]) -> JSON:
    """The device with its taints. ValueError: more than the API allows."""
    if len(taints) > MAX_TAINTS:
        raise ValueError(f"device {device['name']} has {len(taints)} taints, the API takes {MAX_TAINTS}")
    if taints:
        device["taints"] = [dict(taint) for taint in taints]
    return device


def _named(offer: Offer) -> Iterator[tuple[str, PartFacts, JSON]]:
    gpu = offer.gpu
    for partition in offer.standing:
        yield name_of(gpu, partition), _of_standing(partition), fixed_consumption(partition)
    for part in offer.possible:
        profile = part.profile
        name = partition_name(gpu.name, profile.name, profile.profile_id, part.placement.start)
        yield name, _of_possible(part), part.consumes


def _facts(offer: Offer) -> Iterator[PartFacts]:
    yield from map(_of_standing, offer.standing)
    yield from map(_of_possible, offer.possible)


def _of_standing(partition: MigPartition) -> PartFacts:
    return PartFacts(partition.profile, partition.placement, partition.uuid, partition)


def _of_possible(part: Part) -> PartFacts:
    return PartFacts(part.profile.name, part.placement, None, part.profile)


def _own(gpu: Gpu, part: PartFacts) -> Values:
    return {row.id: row.value(gpu, part) for row in MIG_ATTRIBUTES}
