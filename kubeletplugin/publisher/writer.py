"""Carries out the plan for one pool: looks up the owner, rehearses where half a write would hurt, writes, remembers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from kubeletplugin.api import JSON, Pool
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.clock import SYSTEM_CLOCK, Clock
from kubeletplugin.publisher.cache import SliceCache
from kubeletplugin.publisher.diff import Path, differences
from kubeletplugin.publisher.plan import Owner, Plan, plan_pool

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODE_UID_AGE = 60.0
"""Seconds for which the Node's UID is believed before a slice is created under it."""
DRY_RUN = {"dryRun": "All"}

Stored: TypeAlias = Callable[[int, dict[str, Any], dict[str, Any]], None]
"""Called with the slice's index, the spec that was sent and the spec that was stored."""


class MovedError(Exception):
    """A slice is not what we took it for; it has been read again."""


class UnsafeError(Exception):
    """The server would store devices without the counters that keep overlapping ones from being used at once."""

    def __init__(self, index: int, missing: list[Path]) -> None:
        super().__init__(
            "the API server drops consumesCounters (feature gate DRAPartitionableDevices is off), so devices that "
            "share hardware would be offered as if they did not; nothing is written: publish the pool without "
            "partitions, or enable the gate"
        )
        self.index = index
        self.missing = missing


class PoolWriter:
    """Writes pools. Used by one thread, except ``distrust_node`` and ``forget``.

    Args:
        client: the API server.
        cache: what it holds.
        clock: the time.
        owner: of the slices. Where it is a Node its UID is looked up, and again when it may have changed.
    """

    def __init__(self, client: KubeClient, cache: SliceCache, *, owner: Owner, clock: Clock = SYSTEM_CLOCK) -> None:
        self._client = client
        self._cache = cache
        self._clock = clock
        self._template = owner
        self._reads_node = owner.kind == "Node" and bool(owner.name)
        self._node_uid: str | None = owner.uid or None
        self._node_read = 0.0
        self._accepted: dict[str, Pool] = {}

    def distrust_node(self) -> None:
        """Slices vanished: perhaps they were collected with their Node, and it is another one now."""
        self._node_uid = None

    def forget(self) -> None:
        """Whatever this server accepted so far, another one might not."""
        self._accepted.clear()
        self.distrust_node()

    def remove(self, name: str) -> int:
        """Delete all slices of the pool; returns the number of requests.

        Raises:
            ApiError, ApiUnreachableError: a request failed.
            MovedError: somebody changed a slice in between.
        """
        documents = self._cache.pool(name)
        for document in documents:
            self._delete(document)
        self._accepted.pop(name, None)
        return len(documents)

    def write(self, name: str, pool: Pool, stored: Stored) -> int:
        """Make the pool as desired; returns the number of requests that changed something.

        Raises:
            ApiError, ApiUnreachableError, MovedError: as ``remove``.
            UnsafeError: the server would drop what keeps overlapping devices apart; nothing was written.
        """
        plan = plan_pool(name, pool, self._cache.pool(name), self._owner(fresh=False))
        if self._reads_node and plan.creates and self._clock.monotonic() - self._node_read > NODE_UID_AGE:
            plan = plan_pool(name, pool, self._cache.pool(name), self._owner(fresh=True))
        if self._accepted.get(name) != pool:
            self._rehearse(plan)
        for document in plan.deletes:
            self._delete(document)
        for write in plan.updates:
            answer = self._update(write.document, {})
            self._cache.stored(answer)
            stored(write.index, write.document["spec"], answer["spec"])
        for write in plan.creates:
            answer = self._client.create(SLICES, write.document)
            self._cache.stored(answer)
            stored(write.index, write.document["spec"], answer["spec"])
        self._accepted[name] = pool
        return plan.writes

    def is_settled(self, name: str, pool: Pool) -> bool:
        """Whether nothing would have to be written now; asks nobody."""
        owner, uid = self._template, self._node_uid
        if self._reads_node:
            if uid is None:
                return False
            owner = msgspec.structs.replace(owner, uid=uid)
        return not plan_pool(name, pool, self._cache.pool(name), owner).writes

    def _rehearse(self, plan: Plan) -> None:
        """Ask for a dry run where a refusal in the middle would leave a pool that the scheduler has to ignore."""
        writes = (*plan.updates, *plan.creates)
        if plan.writes < 2 and not any(_consumes_counters(write.document) for write in writes):
            return
        for write in writes:
            if write in plan.updates:
                answer = self._update(write.document, DRY_RUN)
            else:
                answer = self._client.create(SLICES, write.document, query=DRY_RUN)
            missing = differences(write.document["spec"], answer["spec"])
            # Without compatibility groups the counters still keep devices apart, only less well: said, and published.
            if any("consumesCounters" in path and "compatibilityGroups" not in path for path in missing):
                raise UnsafeError(write.index, missing)

    def _owner(self, *, fresh: bool) -> Owner:
        if not self._reads_node:
            return self._template
        uid = self._node_uid
        if uid is None or fresh:
            node = self._client.get(f"/api/v1/nodes/{self._template.name}")
            uid = str(node["metadata"]["uid"])
            self._node_uid, self._node_read = uid, self._clock.monotonic()
        return msgspec.structs.replace(self._template, uid=uid)

    def _update(self, document: JSON, query: Mapping[str, str]) -> JSON:
        name = document["metadata"]["name"]
        try:
            return self._client.update(f"{SLICES}/{name}", document, query=query)
        except ApiError as error:
            if error.status in (404, 409):
                self._read_again(document)
                raise MovedError(f"ResourceSlice {name} was changed by somebody else") from error
            raise

    def _delete(self, document: JSON) -> None:
        metadata = document["metadata"]
        self._cache.deleting(document)
        try:
            self._client.delete(
                f"{SLICES}/{metadata['name']}", uid=metadata["uid"], resource_version=metadata["resourceVersion"]
            )
        except ApiError as error:
            self._cache.kept(document)
            if error.status == 409:
                self._read_again(document)
                raise MovedError(f"ResourceSlice {metadata['name']} was changed by somebody else") from error
            if error.status != 404:
                raise
        except ApiUnreachableError:
            # It may have been carried out; then its event comes as news and the pool is looked at again.
            self._cache.kept(document)
            raise
        self._cache.deleted(document)

    def _read_again(self, document: JSON) -> None:
        try:
            current = self._client.get(f"{SLICES}/{document['metadata']['name']}")
        except ApiError as error:
            if error.status != 404:
                raise
            self._cache.deleted(document)
            return
        if current["metadata"]["uid"] != document["metadata"]["uid"]:
            self._cache.deleted(document)
        self._cache.stored(current)


def _consumes_counters(document: JSON) -> bool:
    return any(device.get("consumesCounters") for device in document["spec"].get("devices") or ())
