"""An embedded API server with a node, a publisher on it, and an observer that remembers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kubeletplugin.api import DroppedFields, NullObserver, PublishFailure
from kubeletplugin.client import KubeClient
from kubeletplugin.publisher import Publisher
from kubeletplugin.testing.apiserver import EmbeddedApiServer

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = "node-a/gpu.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"


class Remembering(NullObserver):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.successes: list[tuple[str, int, int]] = []
        self.failures: list[PublishFailure] = []
        self.drops: list[DroppedFields] = []
        self.happened = threading.Condition()

    def published(self, pool: str, *, slices: int, writes: int) -> None:
        self._note(self.successes, (pool, slices, writes))

    def publish_failed(self, failure: PublishFailure) -> None:
        self._note(self.failures, failure)

    def dropped(self, dropped: DroppedFields) -> None:
        self._note(self.drops, dropped)

    def _note(self, where: list[Any], what: Any) -> None:
        with self.happened:
            where.append(what)
            self.happened.notify_all()

    def wait_for(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        with self.happened:
            assert self.happened.wait_for(condition, timeout), (self.successes, self.failures)


class Bench:
    """What a test of the publisher needs in one place."""

    def __init__(self, server: EmbeddedApiServer) -> None:
        self.server = server
        self.client = server.client()
        self.observer = Remembering()
        self.publishers: list[Publisher] = []
        self.node_uid = self.make_node()

    def make_node(self) -> str:
        uid: str = self.client.create("/api/v1/nodes", {"metadata": {"name": NODE}})["metadata"]["uid"]
        return uid

    def publisher(self, client: KubeClient | None = None, **options: Any) -> Publisher:
        """A started publisher, quick to repair."""
        options = {"repair_delay": 0.02, **options}
        publisher = Publisher(
            client or self.server.client(), driver_name=DRIVER, node_name=NODE, observer=self.observer, **options
        )
        self.publishers.append(publisher)
        publisher.start()
        return publisher

    def stop(self) -> None:
        """End every publisher that was made."""
        for publisher in self.publishers:
            publisher.stop()

    def stored(self, pool: str = POOL) -> list[dict[str, Any]]:
        """The slices of a pool as the server has them, by name."""
        items = self.client.get(SLICES)["items"]
        return [item for item in items if item["spec"]["pool"]["name"] == pool]

    def devices(self, pool: str = POOL) -> list[list[str]]:
        return [[device["name"] for device in item["spec"].get("devices", ())] for item in self.stored(pool)]

    def generations(self, pool: str = POOL) -> set[int]:
        return {item["spec"]["pool"]["generation"] for item in self.stored(pool)}

    def watched(self) -> None:
        """Until the publisher watches: a watch that is not open yet can neither break nor end."""
        self.eventually(lambda: self.server.open_watches > 0)

    def writes(self) -> list[str]:
        return [request.method for request in self.server.writes()]

    def eventually(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Until the server's objects are as wanted; asked again after each change of the store."""
        end = time.monotonic() + timeout
        while not condition():
            left = end - time.monotonic()
            assert left > 0, (self.devices(), self.observer.failures)
            with self.server.store.changed:
                self.server.store.changed.wait(min(left, 0.05))


@pytest.fixture
def server() -> Iterator[EmbeddedApiServer]:
    with EmbeddedApiServer() as server:
        yield server


@pytest.fixture
def bench(server: EmbeddedApiServer) -> Iterator[Bench]:
    bench = Bench(server)
    yield bench
    bench.stop()


@pytest.fixture
def bench_class() -> type[Bench]:
    """For tests that configure the server themselves; they stop their publishers."""
    return Bench
