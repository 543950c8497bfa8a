"""The random claims of tests/scheduler: the same from the same seed, of every kind, and such as an API server takes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kubeletplugin.client import KubeClient
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from tests.scheduler.machines import PASSTHROUGH_LABEL
from tests.scheduler.wishes import Wishes

BOARDS = (("1g.10gb", "2g.20gb", "7g.80gb"), ("1g.24gb", "4g.96gb"))
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


@pytest.fixture
def client() -> Iterator[KubeClient]:
    with EmbeddedApiServer() as server, server.client() as client:
        yield client


def wishes(seed: int) -> Wishes:
    return Wishes(random.Random(seed), BOARDS)


def test_every_kind_is_asked_for_and_an_api_server_takes_it(client: KubeClient) -> None:
    source = wishes(1)
    seen = set()
    for number in range(120):
        kind, spec, labels = source.one()
        seen.add(kind)
        claim = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": f"c{number}"}}
        client.create(CLAIMS, claim | {"spec": spec})
        assert (labels == {PASSTHROUGH_LABEL: "no"}) == (kind == "admin")
    assert seen == set(source.kinds)


def test_the_same_seed_asks_for_the_same() -> None:
    one, other = wishes(7), wishes(7)
    assert [one.one() for _ in range(50)] == [other.one() for _ in range(50)]
    assert [wishes(8).one() for _ in range(5)] != [wishes(9).one() for _ in range(5)]


def test_partitions_of_one_gpu_are_of_one_board() -> None:
    source = wishes(3)
    found = [spec["devices"] for kind, spec, _ in (source.one() for _ in range(300)) if kind == "siblings"]
    assert found
    for devices in found:
        texts = [request["exactly"]["selectors"][0]["cel"]["expression"] for request in devices["requests"]]
        assert any(all(any(name in text for name in board) for text in texts) for board in BOARDS)
        assert devices["constraints"] == [{"matchAttribute": "gpu.nvidia.com/parentUUID"}]
