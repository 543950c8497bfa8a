"""The agent as a process, told to keep its node's shape: it tries once, says what stands in its way, and goes on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.agents import Scene, open_scene

PATH = "/api/v1/namespaces/gpudra-system/configmaps"


@pytest.fixture
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("s"), "t4") as made:
        yield made


def test_an_agent_that_may_not_write_its_shape_says_so_once_and_serves(scene: Scene) -> None:
    scene.start(shape_namespace="gpudra-system")

    scene.until(lambda: scene.logged("the node's shape cannot be written to ConfigMap gpudra-system/"), "a warning")
    scene.until(scene.slices, "slices")
    scene.registered()

    assert [(request.method, request.path) for request in scene.server.writes("configmaps")] == [("POST", PATH)]
    assert scene.alive()
    assert scene.end() == 0


def test_an_agent_that_was_not_told_to_tries_nothing(scene: Scene) -> None:
    scene.start()

    scene.until(scene.slices, "slices")

    assert scene.end() == 0
    assert scene.server.writes("configmaps") == []
