"""The agent's part: the shape of what is published, once, in the background."""

from __future__ import annotations

import json
import logging
import queue
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.inventory import build_inventory
from driver.publish import PoolDocument, Withheld, build_pool
from driver.settings import Settings
from driver.shapekeeper import ShapeKeeper
from kubeletplugin.client import ApiError, ApiUnreachableError
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu

PATH = "/api/v1/namespaces/gpudra-system/configmaps"


class FakeClient:
    """Takes what is created, or answers with the errors that were laid out."""

    def __init__(self) -> None:
        self.created: queue.Queue[dict[str, Any]] = queue.Queue()
        self.errors: list[Exception] = []

    def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == PATH
        error = self.errors.pop(0) if self.errors else None
        self.created.put(body)
        if error is not None:
            raise error
        return body


def pool(gpus: int, *withheld: Withheld, node: str = "node-a") -> PoolDocument:
    addresses = [address(number) for number in range(gpus)]
    inventory = build_inventory(
        nvml(*(nvml_gpu(at) for at in addresses)), host(*(pci_gpu(at) for at in addresses)), mock=False
    )
    document = build_pool(inventory, node_name=node, driver_name="gpu.nvidia.com")
    return PoolDocument(document.name, document.slices, withheld=withheld)


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def keeper(client: FakeClient) -> Iterator[Callable[..., ShapeKeeper]]:
    made: list[ShapeKeeper] = []

    def make(node: str = "node-a", retry_seconds: float = 60.0, refused_seconds: float = 600.0) -> ShapeKeeper:
        one = ShapeKeeper(
            client,  # type: ignore[arg-type]  # only what is used of it
            driver_name="gpu.nvidia.com",
            node_name=node,
            namespace="gpudra-system",
            retry_seconds=retry_seconds,
            refused_seconds=refused_seconds,
        )
        made.append(one)
        return one

    yield make
    for one in made:
        one.close()


def test_a_new_shape_is_written_once(client: FakeClient, keeper: Callable[..., ShapeKeeper]) -> None:
    shapes = keeper()
    shapes.offer(pool(2))
    first = client.created.get(timeout=10)
    shapes.offer(pool(2))
    shapes.offer(pool(3))
    second = client.created.get(timeout=10)

    assert first["metadata"]["namespace"] == "gpudra-system"
    assert len(json.loads(first["data"]["shape.json"])["pools"][0]["slices"][0]["devices"]) == 2
    assert len(json.loads(second["data"]["shape.json"])["pools"][0]["slices"][0]["devices"]) == 3
    shapes.close()
    assert client.created.empty()


def test_equal_nodes_write_one_config_map(client: FakeClient, keeper: Callable[..., ShapeKeeper]) -> None:
    keeper().offer(pool(2))
    one = client.created.get(timeout=10)
    client.errors = [ApiError(409, "AlreadyExists", "configmaps already exists")]
    keeper("node-b").offer(pool(2, node="node-b"))
    other = client.created.get(timeout=10)

    assert one == other


def test_a_node_that_withholds_a_gpu_or_has_none_says_nothing_of_its_kind(
    client: FakeClient, keeper: Callable[..., ShapeKeeper]
) -> None:
    shapes = keeper()
    shapes.offer(pool(2, Withheld("gpu-0", "lost")))
    shapes.offer(pool(0))
    shapes.offer(pool(1))

    written = client.created.get(timeout=10)

    assert len(json.loads(written["data"]["shape.json"])["pools"][0]["slices"][0]["devices"]) == 1
    shapes.close()
    assert client.created.empty()


def test_a_server_that_cannot_be_reached_is_asked_again(client: FakeClient, keeper: Callable[..., ShapeKeeper]) -> None:
    client.errors = [ApiUnreachableError("refused"), ApiUnreachableError("refused")]

    keeper(retry_seconds=0.01).offer(pool(1))

    bodies = [client.created.get(timeout=10) for _ in range(3)]
    assert bodies[0] == bodies[1] == bodies[2]


def test_a_refusal_is_said_once_with_the_remedy(
    client: FakeClient, keeper: Callable[..., ShapeKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = [ApiError(403, "Forbidden", "configmaps is forbidden")]
    shapes = keeper(retry_seconds=0.01)

    with caplog.at_level(logging.WARNING):
        shapes.offer(pool(1))
        client.created.get(timeout=10)
        shapes.offer(pool(1))
        shapes.close()

    assert client.created.empty()
    (record,) = caplog.records
    assert "deploy/shape-publishing.yaml gives the right" in record.getMessage()


def test_a_refused_shape_that_is_offered_again_waits_for_its_time(
    client: FakeClient, keeper: Callable[..., ShapeKeeper]
) -> None:
    client.errors = [ApiError(403, "Forbidden", "no")]
    shapes = keeper(refused_seconds=600.0)
    one, two = (shapes._shape(pool(count)) for count in (1, 2))

    assert shapes._attend(one) == 600.0
    again = shapes._attend(one)  # a taint came and went, say

    assert again is not None
    assert 0 < again <= 600.0
    assert client.created.qsize() == 1
    assert shapes._attend(two) is None  # another shape has no need to wait
    assert client.created.qsize() == 2


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_an_administrator_can_mend_is_tried_again_and_told_once(
    status: int, client: FakeClient, keeper: Callable[..., ShapeKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = [ApiError(status, "Refused", "no"), ApiError(status, "Refused", "no")]

    with caplog.at_level(logging.INFO):
        shapes = keeper(refused_seconds=0.01)
        shapes.offer(pool(1))
        bodies = [client.created.get(timeout=10) for _ in range(3)]
        shapes.close()

    assert bodies[0] == bodies[1] == bodies[2]
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert caplog.records[-1].getMessage() == "the node's shape is written"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again_and_nobody_is_warned(
    status: int, client: FakeClient, keeper: Callable[..., ShapeKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = [ApiError(status, "Busy", "later")]

    with caplog.at_level(logging.INFO):
        shapes = keeper(retry_seconds=0.01)
        shapes.offer(pool(1))
        bodies = [client.created.get(timeout=10) for _ in range(2)]
        shapes.close()

    assert bodies[0] == bodies[1]
    assert {record.levelname for record in caplog.records} == {"INFO"}


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_server_will_never_take_is_sent_once(
    status: int, client: FakeClient, keeper: Callable[..., ShapeKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = [ApiError(status, "Invalid", "no")]
    shapes = keeper(retry_seconds=0.01, refused_seconds=0.01)

    with caplog.at_level(logging.WARNING):
        shapes.offer(pool(1))
        client.created.get(timeout=10)
        shapes.offer(pool(2))
        client.created.get(timeout=10)
        shapes.offer(pool(2))
        shapes.close()

    assert client.created.empty()
    assert len(caplog.records) == 1


def test_each_new_shape_that_is_refused_is_told(
    client: FakeClient, keeper: Callable[..., ShapeKeeper], caplog: pytest.LogCaptureFixture
) -> None:
    client.errors = [ApiError(403, "Forbidden", "no"), ApiError(403, "Forbidden", "no")]
    shapes = keeper()

    with caplog.at_level(logging.WARNING):
        for count in (1, 2):
            shapes.offer(pool(count))
            client.created.get(timeout=10)
        shapes.close()

    names = {record.getMessage().partition(": ")[0] for record in caplog.records}
    assert len(names) == len(caplog.records) == 2


def test_after_the_end_nothing_is_written(client: FakeClient, keeper: Callable[..., ShapeKeeper]) -> None:
    shapes = keeper()
    shapes.close()

    shapes.offer(pool(1))
    shapes.close()

    assert client.created.empty()


@pytest.mark.parametrize(("namespace", "kept"), [("", False), ("gpudra-system", True)])
def test_the_agent_keeps_a_shape_only_where_a_namespace_is_set(namespace: str, kept: bool, tmp_path: Path) -> None:
    from driver.agent import Agent

    settings = Settings(
        node_name="node-a",
        api_server="http://127.0.0.1:1",
        plugins_dir=str(tmp_path / "plugins"),
        registry_dir=str(tmp_path / "registry"),
        cdi_dir=str(tmp_path / "cdi"),
        shape_namespace=namespace,
    )

    agent = Agent(settings)

    assert (agent._shapes is not None) is kept
