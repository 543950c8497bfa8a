"""Which slices a publisher cares for, and how to ask the API server for those and no others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from kubeletplugin.api import JSON, DriverResources, Pool
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient, WatchEvent
from kubeletplugin.credentials import CredentialsError
from kubeletplugin.publisher.diff import gates_of
from kubeletplugin.publisher.features import ASKABLE, Features, detect_features
from kubeletplugin.publisher.plan import Owner, pool_of
from kubeletplugin.publisher.writer import SLICES

logger = logging.getLogger(__name__)


class Scope:
    """One driver's slices: of one node, of no node, or of one pool.

    The field ``spec.pool.name`` can be selected by from Kubernetes 1.37 on; an older server says no once, and then all
    slices of the driver are asked for and sorted here.
    """

    def __init__(self, client: KubeClient, driver_name: str, node_name: str | None, only_pool: str | None) -> None:
        self._client = client
        self._driver_name = driver_name
        self._node_name = node_name
        self._only_pool = only_pool
        self._by_pool = only_pool is not None

    def owner(self, given: Owner | None) -> Owner:
        """Of the slices; a Node without its UID where there is a node."""
        if self._node_name is not None:
            return Owner(self._driver_name, self._node_name, "", bound=self._only_pool is None)
        return given if given is not None else Owner(self._driver_name, "", "", kind="", bound=False)

    def check(self, resources: DriverResources) -> None:
        """Refuses pools that are not this scope's.

        Raises:
            ValueError: it is for one pool, and there are others.
        """
        if self._only_pool is not None and resources.pools and set(resources.pools) != {self._only_pool}:
            raise ValueError(
                f"pools {', '.join(sorted(resources.pools))} are to be published, but this publisher is for pool"
                f" {self._only_pool} alone; use another publisher for each pool"
            )

    def selector(self) -> str:
        """The field selector."""
        driver = f"spec.driver={self._driver_name}"
        if self._only_pool is None:
            return f"{driver},spec.nodeName={self._node_name or ''}"
        return f"{driver},spec.pool.name={self._only_pool}" if self._by_pool else driver

    def features(self) -> Features:
        """What the server keeps of this scope's slices. Raises as ``KubeClient.create``."""
        return detect_features(self._client, self._driver_name, self._node_name)

    def missing(self, pool: Pool) -> str:
        """Why a pool may be refused that is right elsewhere: words about fields that this server does not keep."""
        gates = frozenset().union(*(gates_of(piece) for piece in pool.slices)) & ASKABLE
        if not gates:
            return ""
        try:
            off = sorted(gates - self.features().gates)
        except (ApiError, ApiUnreachableError, CredentialsError) as error:
            logger.info("what the API server keeps cannot be found out now: %s", error)
            return ""
        if not off:
            return ""
        return f"; this server does not keep fields that the pool uses (feature gates that are off: {', '.join(off)})"

    def list(self) -> tuple[list[JSON], str]:
        """All slices of the scope, and the resource version of the list. Raises as ``KubeClient.get``."""
        try:
            answer = self._client.get(SLICES, query={"fieldSelector": self.selector()})
        except ApiError as error:
            if not self._give_up_selector(error):
                raise
            answer = self._client.get(SLICES, query={"fieldSelector": self.selector()})
        items = [item for item in answer.get("items") or () if self._is_ours(item)]
        return items, str(answer.get("metadata", {}).get("resourceVersion", ""))

    def watch(self, version: str, stop: threading.Event, seconds: float) -> Iterator[WatchEvent]:
        """Events of the scope from ``version`` on, bookmarks too. Raises as ``KubeClient.watch``."""
        try:
            yield from self._watch(version, stop, seconds)
        except ApiError as error:
            if not self._give_up_selector(error):
                raise
            yield from self._watch(version, stop, seconds)

    def _watch(self, version: str, stop: threading.Event, seconds: float) -> Iterator[WatchEvent]:
        query = {"fieldSelector": self.selector(), "resourceVersion": version}
        for event in self._client.watch(SLICES, query=query, stop=stop, timeout_seconds=seconds):
            if event.type == "BOOKMARK" or self._is_ours(event.object):
                yield event

    def _is_ours(self, document: JSON) -> bool:
        return self._only_pool is None or pool_of(document) == self._only_pool

    def _give_up_selector(self, error: ApiError) -> bool:
        if error.status != 400 or not self._by_pool:
            return False
        logger.info("this API server cannot select slices by their pool, sorting them here: %s", error.message)
        self._by_pool = False
        return True
