"""From one pool as wanted and its slices as stored to the writes that are needed, in order. Pure.

The rules are those of k8s.io/dynamic-resource-allocation/resourceslice: delete what is obsolete, then update, then
create; keep the pool's generation only where one update is enough, because two slices of different states must never
carry the same generation (the scheduler would combine them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from kubeletplugin.api import JSON, Pool, Slice
from kubeletplugin.publisher.diff import differences, keep_time_added
from kubeletplugin.publisher.naming import decode_index, generate_name, index_length

API_VERSION = "resource.k8s.io/v1"


class Owner(msgspec.Struct, frozen=True):
    """Whose slices these are: they go when this object goes. Without a ``name`` nobody owns them."""

    driver_name: str
    name: str
    uid: str
    api_version: str = "v1"
    kind: str = "Node"
    bound: bool = True
    """The devices are this node's: ``spec.nodeName`` is its name."""

    def reference(self) -> JSON:
        """The entry of ``metadata.ownerReferences``."""
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }


class Write(msgspec.Struct, frozen=True):
    """One slice to write: ``index`` in the pool and the whole object to send."""

    index: int
    document: JSON


class Plan(msgspec.Struct, frozen=True):
    """Deletes first, then updates, then creates. Empty: the pool is as desired."""

    generation: int
    deletes: tuple[JSON, ...] = ()
    updates: tuple[Write, ...] = ()
    creates: tuple[Write, ...] = ()

    @property
    def writes(self) -> int:
        """Requests that the plan needs."""
        return len(self.deletes) + len(self.updates) + len(self.creates)


class _Sorted(msgspec.Struct):
    """Stored slices of a pool: by position where they have one, and those that have none any more."""

    generation: int = 0
    by_index: dict[int, JSON] = msgspec.field(default_factory=dict)
    obsolete: list[JSON] = msgspec.field(default_factory=list)


def pool_of(document: JSON) -> str:
    """The pool that a stored slice belongs to."""
    return str(document.get("spec", {}).get("pool", {}).get("name", ""))


def pool_problem(pool: Pool) -> str | None:
    """Why the scheduler would refuse the whole pool, or None. No single slice shows this, so no server checks it."""
    sets: dict[str, JSON] = {}
    for counter_set in (entry for piece in pool.slices for entry in piece.shared_counters):
        name = str(counter_set.get("name"))
        if name in sets:
            return f"counter set {name!r} is there twice; names of counter sets are unique in a pool"
        sets[name] = counter_set
    devices: set[str] = set()
    for device in (entry for piece in pool.slices for entry in piece.devices):
        name = str(device.get("name"))
        if name in devices:
            return f"device {name!r} is there twice; names of devices are unique in a pool"
        devices.add(name)
        problem = _dangling(device, sets)
        if problem:
            return f"device {name!r} {problem}"
    return None


def _dangling(device: JSON, sets: Mapping[str, JSON]) -> str | None:
    for consumption in device.get("consumesCounters") or ():
        wanted = consumption.get("counterSet")
        counter_set = sets.get(str(wanted))
        if counter_set is None:
            return f"consumes counter set {wanted!r}, which the pool does not have"
        for counter in consumption.get("counters") or ():
            if counter not in (counter_set.get("counters") or {}):
                return f"consumes counter {counter!r}, which counter set {wanted!r} does not have"
    return None


def plan_pool(name: str, pool: Pool, stored: Sequence[JSON], owner: Owner) -> Plan:
    """The writes that turn ``stored`` (all slices of this driver, node and pool) into ``pool``."""
    count = len(pool.slices)
    existing = _sort(stored, count)
    generation = existing.generation
    changed: set[int] = set()
    adopted: set[int] = set()
    for index, document in existing.by_index.items():
        wanted = _spec(name, pool, index, generation, owner)
        if differences(wanted, document.get("spec")):
            changed.add(index)
        elif not _owned(document, owner):
            adopted.add(index)
    bumped = True
    if pool.generation is not None and pool.generation > generation:
        generation = pool.generation
    elif len(existing.by_index) == count and len(changed) <= 1:
        bumped = False
    else:
        generation += 1
    rewrite = set(existing.by_index) if bumped else changed | adopted
    return Plan(
        generation=generation,
        deletes=tuple(existing.obsolete),
        updates=tuple(
            Write(
                index,
                _updated(existing.by_index[index], _spec(name, pool, index, generation, owner), owner),
            )
            for index in sorted(rewrite)
        ),
        creates=tuple(
            Write(index, _created(index, _spec(name, pool, index, generation, owner), owner, count))
            for index in range(count)
            if index not in existing.by_index
        ),
    )


def _sort(stored: Sequence[JSON], count: int) -> _Sorted:
    result = _Sorted(generation=max((_generation(document) for document in stored), default=0))
    length = index_length(count)
    for document in sorted(stored, key=lambda entry: str(entry["metadata"]["name"])):
        index = decode_index(str(document["metadata"]["name"]), length)
        usable = index is not None and index < count and index not in result.by_index
        if usable and index is not None and _generation(document) == result.generation:
            result.by_index[index] = document
        else:
            result.obsolete.append(document)
    return result


def _generation(document: JSON) -> int:
    return int(document.get("spec", {}).get("pool", {}).get("generation") or 0)


def _spec(name: str, pool: Pool, index: int, generation: int, owner: Owner) -> JSON:
    content = pool.slices[index]
    spec: JSON = {
        "driver": owner.driver_name,
        "pool": {"name": name, "generation": generation, "resourceSliceCount": len(pool.slices)},
    }
    # Exactly one of these says where the devices are.
    if owner.bound:
        spec["nodeName"] = owner.name
    elif content.per_device_node_selection:
        spec["perDeviceNodeSelection"] = True
    elif pool.all_nodes:
        spec["allNodes"] = True
    elif pool.node_selector is not None:
        spec["nodeSelector"] = pool.node_selector
    # Only one of the two may be there at all, even if it is empty.
    if content.shared_counters:
        spec["sharedCounters"] = list(content.shared_counters)
    if content.devices:
        spec["devices"] = list(content.devices)
    if content.skip_node_operations:
        spec["skipNodeOperations"] = list(content.skip_node_operations)
    if content.partition_type_attribute is not None:
        spec["partitionTypeAttribute"] = content.partition_type_attribute
    return spec


def slice_of(spec: JSON) -> Slice:
    """The content of a stored slice."""
    return Slice(
        devices=tuple(spec.get("devices") or ()),
        shared_counters=tuple(spec.get("sharedCounters") or ()),
        per_device_node_selection=bool(spec.get("perDeviceNodeSelection")),
        skip_node_operations=tuple(spec.get("skipNodeOperations") or ()),
        partition_type_attribute=spec.get("partitionTypeAttribute"),
    )


def _owned(document: JSON, owner: Owner) -> bool:
    """Whether the owner as it is now owns the slice, and no earlier Node of that name."""
    if not owner.name:
        return True
    references = document["metadata"].get("ownerReferences") or ()
    return [ref.get("uid") for ref in references if ref.get("kind") == owner.kind] == [owner.uid]


def _updated(document: JSON, spec: JSON, owner: Owner) -> JSON:
    metadata = dict(document["metadata"])
    if owner.name:
        others = [ref for ref in metadata.get("ownerReferences") or () if ref.get("kind") != owner.kind]
        metadata["ownerReferences"] = [owner.reference(), *others]
    metadata.pop("managedFields", None)
    if "devices" in spec:
        spec = {**spec, "devices": keep_time_added(spec["devices"], document.get("spec", {}).get("devices") or ())}
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}


def _created(index: int, spec: JSON, owner: Owner, count: int) -> JSON:
    metadata: JSON = {"generateName": generate_name(index, index_length(count), owner.driver_name, owner.name)}
    if owner.name:
        metadata["ownerReferences"] = [owner.reference()]
    return {"apiVersion": API_VERSION, "kind": "ResourceSlice", "metadata": metadata, "spec": spec}
