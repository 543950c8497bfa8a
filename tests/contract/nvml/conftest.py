"""Mock nodes for the contract of the NVML backends: one per profile, shared by the tests of a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from native.mock import MockNode, profiles


@pytest.fixture(scope="session")
def node_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MockNode]:
    """The node of a profile, made once."""
    nodes: dict[str, MockNode] = {}

    def make(profile: str) -> MockNode:
        if profile not in nodes:
            nodes[profile] = MockNode.create(tmp_path_factory.mktemp("mock") / profile, profile)
        return nodes[profile]

    return make


@pytest.fixture
def activate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[MockNode], MockNode]]:
    """Puts a node's environment into this process for the length of a test, and leaves the node healthy."""
    active: list[MockNode] = []

    def enter(node: MockNode) -> MockNode:
        for name, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
            monkeypatch.setenv(name, value)
        active.append(node)
        return node

    yield enter
    for node in active:
        node.set_failures([])
        node.set_driver_loaded(True)
        for gpu in node.profile.gpus:
            node.set_gpu_state(gpu.address, "ok")


@pytest.fixture(params=profiles.names())
def node(
    request: pytest.FixtureRequest, node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode]
) -> MockNode:
    """The node of every profile in turn."""
    return activate(node_of(request.param))


@pytest.fixture
def dgx(node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode]) -> MockNode:
    """A DGX H100."""
    return activate(node_of("dgx-h100"))


@pytest.fixture
def derived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str], str]], MockNode]:
    """An active node of its own, from the text of the DGX H100 profile after an edit."""

    def make(edit: Callable[[str], str]) -> MockNode:
        path = tmp_path / "edited.yaml"
        before = profiles.text("dgx-h100")
        path.write_text(edit(before))
        assert path.read_text() != before
        node = MockNode.create(tmp_path / "node", path)
        for name, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
            monkeypatch.setenv(name, value)
        return node

    return make
