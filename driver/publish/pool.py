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

from driver.model import Gpu, GpuState, NodeInventory
from driver.publish.attributes import ATTRIBUTES, Attribute, AttributeType, Missing, Value
from driver.publish.values import clip, quantity

JSON: TypeAlias = dict[str, Any]

MAX_DEVICES_PER_SLICE: Final = 64
"""The API's limit is 128, and 64 as soon as one device has a taint: a first taint must not make a slice invalid."""
MAX_TAINTS: Final = 16
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
    """What to publish: the devices of each slice, as JSON, in the order in which the scheduler is to read them."""

    name: str
    slices: tuple[tuple[JSON, ...], ...]
    """Never empty: a node without a GPU has one slice without devices, which says that the driver is up."""
    withheld: tuple[Withheld, ...] = ()

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
) -> PoolDocument:
    """The documents of a node's whole GPUs.

    Equal inventories give equal documents, in the order of PCI addresses.

    Args:
        inventory: GPUs that are not READY are withheld.
        node_name: name of the Node object.
        driver_name: name of the DRA driver.
        taints: device name -> DeviceTaint objects; names that the pool does not have are ignored.

    Raises:
        ValueError: a name that the API would refuse, or more taints on a device than it allows.
    """
    name = pool_name(node_name, driver_name)
    withheld = []
    offered = []
    for gpu in inventory.gpus:
        reason = _obstacle(gpu)
        if reason is None:
            offered.append(gpu)
        else:
            withheld.append(Withheld(gpu.name, reason))
    values = {gpu.name: {row.id: row.value(inventory, gpu) for row in ATTRIBUTES} for gpu in offered}
    for gpu_name, reason in _incomplete(values, ATTRIBUTES):
        del values[gpu_name]
        withheld.append(Withheld(gpu_name, reason))
    keys = uniform_keys(values.values())
    devices = [_device(gpu_name, keys, row, (taints or {}).get(gpu_name, ())) for gpu_name, row in values.items()]
    return PoolDocument(name, chunks(devices), tuple(withheld))


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


def uniform_keys(rows: Iterable[Mapping[str, Value | None]]) -> frozenset[str]:
    """The keys that every row has a value for: only these may be published.

    A CEL expression that meets a missing key fails, and a failing expression stops the scheduling of that pod on
    all nodes, not only on this device.
    """
    shared: frozenset[str] | None = None
    for row in rows:
        present = frozenset(key for key, value in row.items() if not _is_missing(value))
        shared = present if shared is None else shared & present
    return shared or frozenset()


def chunks(devices: Sequence[JSON], size: int = MAX_DEVICES_PER_SLICE) -> tuple[tuple[JSON, ...], ...]:
    """The devices in order, at most ``size`` to a slice; one empty slice for none."""
    starts = range(0, max(len(devices), 1), size)
    return tuple(tuple(devices[start : start + size]) for start in starts)


def slice_objects(pool: PoolDocument, *, node_name: str, driver_name: str) -> tuple[JSON, ...]:
    """Whole ResourceSlice objects, as a first publication writes them (the owner reference apart, which has a UID)."""
    objects = []
    width = max(5, len(f"{len(pool.slices) - 1:x}"))
    for index, devices in enumerate(pool.slices):
        spec: JSON = {
            "driver": driver_name,
            "nodeName": node_name,
            "pool": {"name": pool.name, "generation": 1, "resourceSliceCount": len(pool.slices)},
        }
        if devices:
            spec["devices"] = list(devices)
        objects.append(
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"generateName": f"{index:0{width}x}-{driver_name}-{node_name}-"},
                "spec": spec,
            }
        )
    return tuple(objects)


def _obstacle(gpu: Gpu) -> str | None:
    if gpu.state is not GpuState.READY:
        return gpu.reason or f"its state is {gpu.state.value}"
    if gpu.mig is not None and gpu.mig.current:
        return (
            f"MIG mode is on, so GPU {gpu.address} cannot be given out as a whole; "
            f"turn it off with nvidia-smi -i {gpu.address} -mig 0"
        )
    return None


def _incomplete(
    values: Mapping[str, Mapping[str, Value | None]], rows: Iterable[Attribute]
) -> tuple[tuple[str, str], ...]:
    """(device, reason) of those that lack a value which is asked for everywhere and which their siblings have."""
    found: dict[str, str] = {}
    for row in rows:
        lacking = [name for name, value in values.items() if _is_missing(value[row.id])]
        if row.missing is Missing.WITHHOLD and len(lacking) < len(values):
            for name in lacking:
                found[name] = (
                    f"its {row.id} is unknown while other GPUs of the node tell theirs; "
                    f"offering it would hide {row.id} of all of them ({row.derivation})"
                )
    return tuple(found.items())


def _device(name: str, keys: frozenset[str], values: Mapping[str, Value | None], taints: Sequence[JSON]) -> JSON:
    if len(taints) > MAX_TAINTS:
        raise ValueError(f"device {name} has {len(taints)} taints, the API takes {MAX_TAINTS}")
    attributes: JSON = {}
    capacity: JSON = {}
    for row in ATTRIBUTES:
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
    if taints:
        device["taints"] = [dict(taint) for taint in taints]
    return device


def _is_missing(value: Value | None) -> bool:
    return value is None or (isinstance(value, str) and not clip(value))
