"""The pool of one node: its name, its devices, and the slices that hold them.

Limits are those of resource.k8s.io/v1. A GPU that cannot be given out is not in the pool; what is left out, and why,
is part of the answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from driver.model import Gpu, GpuState, MigSupport, NodeInventory
from driver.publish.attributes import ATTRIBUTES, Attribute, Missing, Value
from driver.publish.counters import MAX_SETS_PER_SLICE, WHOLE, counter_set, set_name, totals
from driver.publish.devices import Tables, device_document, is_missing, mig_keys, part_devices, tainted, uniform_keys
from driver.publish.offers import DeviceOrder, Offer, offer_of
from driver.publish.shares import shared
from driver.publish.vfio import NO_IOMMU, vfio_devices, vfio_name

JSON: TypeAlias = dict[str, Any]

MAX_DEVICES_PER_SLICE: Final = 64
"""The API's limit is 128, and 64 as soon as one device has a taint: a first taint must not make a slice invalid."""
MAX_NAME: Final = 253
MAX_DRIVER_NAME: Final = 63
_HASH_DIGITS: Final = 16
_SUBDOMAIN: Final = re.compile(r"\A[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")


class Withheld(msgspec.Struct, frozen=True):
    """A GPU that is not published."""

    device: str
    """The name it would have."""
    reason: str


class PoolDocument(msgspec.Struct, frozen=True):
    """What to publish, as JSON, in the order in which the scheduler is to read it."""

    name: str
    slices: tuple[tuple[JSON, ...], ...]
    """The devices of each slice that has devices. Never empty: a node without a GPU has one slice without devices,
    which says that the driver is up."""
    withheld: tuple[Withheld, ...] = ()
    counters: tuple[tuple[JSON, ...], ...] = ()
    """The counter sets of each slice that has counter sets; these come before those of devices. Empty where devices
    consume nothing."""

    @property
    def devices(self) -> tuple[JSON, ...]:
        """The devices of all slices."""
        return tuple(device for devices in self.slices for device in devices)


def build_pool(
    inventory: NodeInventory,
    *,
    node_name: str,
    driver_name: str,
    taints: Mapping[str, Sequence[JSON]] | None = None,
    mig: MigSupport = MigSupport.STATIC,
    order: DeviceOrder = DeviceOrder.PACK,
    counters: bool = False,
) -> PoolDocument:
    """The documents of a node's devices: whole GPUs, and partitions of them.

    Equal inventories give equal documents, in the order of PCI addresses; partitions of a GPU come before the whole of
    it, those that block the fewest others first.

    Args:
        inventory: GPUs that are not READY are withheld.
        node_name: name of the Node object.
        driver_name: name of the DRA driver.
        taints: device name -> DeviceTaint objects; a GPU's are also those of its partitions. Names that the pool does
            not have are ignored.
        mig: what is done with MIG.
        order: whether one GPU is filled before the next one, or all at the same time.
        counters: whether the API server keeps counters (feature gate DRAPartitionableDevices, 1.36). Without them
            partitions that are still to be made are not published, and GPUs for virtual machines for those alone:
            nothing would keep them apart.

    Raises:
        ValueError: a name that the API would refuse, or more taints on a device than it allows.
    """
    name = pool_name(node_name, driver_name)
    if mig is MigSupport.DYNAMIC and not counters:
        mig = MigSupport.STATIC
    passed = [gpu for gpu in inventory.gpus if gpu.passthrough is not None]
    twins = [gpu for gpu in passed if gpu.state is GpuState.READY] if counters and _countable(inventory) else []
    offers, withheld = _offers([gpu for gpu in inventory.gpus if gpu.passthrough is None or gpu in twins], mig)
    values = {offer.gpu.name: _values(inventory, offer) for offer in offers}
    whole = {offer.gpu.name: values[offer.gpu.name] for offer in offers if offer.whole}
    for gpu_name, reason in _incomplete(whole, ATTRIBUTES):
        del whole[gpu_name]
        withheld.append(Withheld(gpu_name, reason))
    counted = bool(twins) or (mig is MigSupport.DYNAMIC and any(offer.possible for offer in offers))
    tables = Tables(uniform_keys(whole.values()), mig_keys(offers, values), counted, taints or {})
    groups = [_devices_of(offer, values, whole, tables) for offer in offers]
    sets = [counter_set(offer.gpu, divided=offer.divided) for offer in offers] if counted else []
    able = [gpu for gpu in passed if gpu.iommu_group is not None]
    withheld += [Withheld(vfio_name(gpu), NO_IOMMU) for gpu in passed if gpu.iommu_group is None]
    virtual = vfio_devices(able, taints or {})
    if counted:
        sets += _consuming(virtual, able, sets)
    groups += [[device] for device in virtual]
    return PoolDocument(
        name,
        spread(groups) if order is DeviceOrder.SPREAD else packed(groups),
        tuple(withheld),
        chunks(sets, MAX_SETS_PER_SLICE) if sets else (),
    )


def _offers(gpus: Iterable[Gpu], mig: MigSupport) -> tuple[list[Offer], list[Withheld]]:
    """What can be given out, and the GPUs that cannot."""
    found = [offer_of(gpu, mig) for gpu in gpus]
    withheld = [Withheld(offer.gpu.name, offer.reason) for offer in found if offer.reason is not None]
    return [offer for offer in found if offer.reason is None], withheld


def _devices_of(
    offer: Offer,
    values: Mapping[str, Mapping[str, Value | None]],
    whole: Mapping[str, Mapping[str, Value | None]],
    tables: Tables,
) -> list[JSON]:
    """The partitions of a GPU, then the whole of it."""
    name = offer.gpu.name
    devices = [*part_devices(offer, values[name], tables)]
    return [*devices, _whole_device(offer, whole[name], tables)] if name in whole else devices


def _consuming(virtual: Sequence[JSON], gpus: Sequence[Gpu], sets: Sequence[JSON]) -> list[JSON]:
    """Let the GPUs for virtual machines consume counters too, since devices with counters and devices without never
    stand in one pool; gives the counter sets that they need beside those that are there."""
    known = {made["name"]: made["counters"] for made in sets}
    more = [counter_set(gpu, divided=False) for gpu in gpus if set_name(gpu) not in known]
    for gpu, device in zip(gpus, virtual, strict=True):
        consumed = known.get(set_name(gpu), {WHOLE: {"value": "1"}})
        device["consumesCounters"] = [{"counterSet": set_name(gpu), "counters": consumed}]
    return more


def pool_name(node_name: str, driver_name: str) -> str:
    """``<node>/<driver>``, or with the node's name shortened and hashed where that is longer than 253 bytes.

    Not the bare node name: schedulers without kubernetes#140435 keep their counter cache by pool name alone, so that
    two drivers with counters on a node disturb each other.

    Raises:
        ValueError: not the name of a Node, or not that of a driver.
    """
    driver = driver_name.lower()
    if len(driver) > MAX_DRIVER_NAME or not _SUBDOMAIN.match(driver):
        raise ValueError(f"driver name {driver_name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} characters")
    if len(node_name) > MAX_NAME or not _SUBDOMAIN.match(node_name):
        raise ValueError(f"node name {node_name!r} is not a DNS subdomain of at most {MAX_NAME} characters")
    name = f"{node_name}/{driver}"
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:_HASH_DIGITS]
    room = MAX_NAME - len(driver) - len(digest) - 2
    return f"{node_name[:room].rstrip('-.')}-{digest}/{driver}"


def chunks(devices: Sequence[JSON], size: int = MAX_DEVICES_PER_SLICE) -> tuple[tuple[JSON, ...], ...]:
    """The devices in order, at most ``size`` to a slice; one empty slice for none."""
    starts = range(0, max(len(devices), 1), size)
    return tuple(tuple(devices[start : start + size]) for start in starts)


def packed(groups: Iterable[Sequence[JSON]], size: int = MAX_DEVICES_PER_SLICE) -> tuple[tuple[JSON, ...], ...]:
    """GPU after GPU, no GPU over two slices where it fits into one: what becomes of one GPU changes one slice, and a
    change of one slice is the only one that the scheduler sees at once."""
    slices: list[tuple[JSON, ...]] = []
    current: list[JSON] = []
    for group in groups:
        if current and len(current) + len(group) > size:
            slices.append(tuple(current))
            current = []
        if len(group) > size:
            slices.extend(chunks(group, size))
        else:
            current.extend(group)
    if current or not slices:
        slices.append(tuple(current))
    return tuple(slices)


def spread(groups: Sequence[Sequence[JSON]], size: int = MAX_DEVICES_PER_SLICE) -> tuple[tuple[JSON, ...], ...]:
    """The first device of every GPU, then the second of every GPU, and so on."""
    longest = max((len(group) for group in groups), default=0)
    ordered = [group[position] for position in range(longest) for group in groups if position < len(group)]
    return chunks(ordered, size)


def slice_objects(pool: PoolDocument, *, node_name: str, driver_name: str) -> tuple[JSON, ...]:
    """Whole ResourceSlice objects, as a first publication writes them (the owner reference apart, which has a UID)."""
    contents = [
        *(("sharedCounters", sets) for sets in pool.counters),
        *(("devices", devices) for devices in pool.slices),
    ]
    objects = []
    width = max(5, len(f"{len(contents) - 1:x}"))
    for index, (field, content) in enumerate(contents):
        spec: JSON = {
            "driver": driver_name,
            "nodeName": node_name,
            "pool": {"name": pool.name, "generation": 1, "resourceSliceCount": len(contents)},
        }
        if content:
            spec[field] = list(content)
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"generateName": f"{index:0{width}x}-{driver_name}-{node_name}-"},
                "spec": spec,
            }
        )
    return tuple(objects)


def _values(inventory: NodeInventory, offer: Offer) -> dict[str, Value | None]:
    """What is known of a GPU, by attribute."""
    values = {row.id: row.value(inventory, offer.gpu) for row in ATTRIBUTES}
    if offer.possible:
        values["migEnabled"] = False  # whoever gets it as a whole gets it so, whatever it is meanwhile
    return values


def _incomplete(
    values: Mapping[str, Mapping[str, Value | None]], rows: Iterable[Attribute]
) -> tuple[tuple[str, str], ...]:
    """(device, reason) of those that lack a value which is asked for everywhere and which their siblings have."""
    found: dict[str, str] = {}
    for row in rows:
        lacking = [name for name, value in values.items() if is_missing(value[row.id])]
        if row.missing is Missing.WITHHOLD and len(lacking) < len(values):
            for name in lacking:
                found[name] = (
                    f"its {row.id} is unknown while other GPUs of the node tell theirs; "
                    f"offering it would hide {row.id} of all of them ({row.derivation})"
                )
    return tuple(found.items())


def _countable(inventory: NodeInventory) -> bool:
    """Whether there can be counters for all devices: of a divided GPU, only where its profiles are known."""
    return all(gpu.mig_profiles or not gpu.partitions for gpu in inventory.gpus)


def _whole_device(offer: Offer, values: Mapping[str, Value | None], tables: Tables) -> JSON:
    device = device_document(offer.gpu.name, ATTRIBUTES, values, tables.gpu_keys)
    if tables.counted:
        consumed = totals(offer.gpu.mig_profiles) if offer.divided else {WHOLE: {"value": "1"}}
        device["consumesCounters"] = [{"counterSet": set_name(offer.gpu), "counters": consumed}]
    return tainted(shared(device, offer.gpu), tables.taints.get(offer.gpu.name, ()))
