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
PARENT: Final = "parentUUID"
"""The one attribute of a MIG device that its GPU gives it and that is not its GPU's own."""


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
    bodies: dict[int, JSON] = msgspec.field(default_factory=dict)
    """What possible partitions of several GPUs have in common, by ``id`` of the ``Part``."""


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
    return inherited | uniform_keys(_own(offer.gpu, part) for offer in divided for part in _kinds(offer))


def part_devices(offer: Offer, gpu: Values, tables: Tables) -> Iterator[JSON]:
    """The MIG devices of one GPU, in the order in which the scheduler is to take them."""
    if not offer.divided:
        return
    name, base = offer.gpu.name, device_document("", INHERITED, gpu, tables.mig_keys)["attributes"]
    if PARENT in tables.mig_keys:
        base[PARENT] = {"string": offer.gpu.uuid}
    above = tables.taints.get(name, ())
    for body, consumed in _bodies(offer, tables):
        device = {**body, "name": name + body["name"], "attributes": {**body["attributes"], **base}}
        if tables.counted:
            device["consumesCounters"] = [{"counterSet": set_name(offer.gpu), "counters": consumed}]
        own = tables.taints.get(device["name"], ()) if tables.taints else ()
        yield tainted(device, (*above, *own))


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


def _kinds(offer: Offer) -> Iterator[PartFacts]:
    """One of each kind: what is known of a possible partition is known of its profile."""
    yield from map(_of_standing, offer.standing)
    yield from map(_of_possible, {part.profile.profile_id: part for part in offer.possible}.values())


def _bodies(offer: Offer, tables: Tables) -> Iterator[tuple[JSON, JSON]]:
    """(device without what it has from its GPU, what it consumes). The name is what follows the GPU's."""
    for partition in offer.standing:
        suffix = name_of(offer.gpu, partition).removeprefix(offer.gpu.name)
        yield _body(suffix, offer.gpu, _of_standing(partition), tables), fixed_consumption(partition)
    for part in offer.possible:  # the same for all GPUs of a kind
        body = tables.bodies.get(id(part))
        if body is None:
            profile = part.profile
            suffix = partition_name("", profile.name, profile.profile_id, part.placement.start)
            body = tables.bodies[id(part)] = _body(suffix, offer.gpu, _of_possible(part), tables)
        yield body, part.consumes


def _body(suffix: str, gpu: Gpu, part: PartFacts, tables: Tables) -> JSON:
    return device_document(suffix, MIG_ATTRIBUTES, _own(gpu, part), tables.mig_keys - {PARENT})


def _of_standing(partition: MigPartition) -> PartFacts:
    return PartFacts(partition.profile, partition.placement, partition.uuid, partition)


def _of_possible(part: Part) -> PartFacts:
    return PartFacts(part.profile.name, part.placement, None, part.profile)


def _own(gpu: Gpu, part: PartFacts) -> Values:
    return {row.id: row.value(gpu, part) for row in MIG_ATTRIBUTES}
