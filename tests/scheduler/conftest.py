"""What the real scheduler decides: etcd, API server, scheduler and claim controller, for nodes that only have names."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.cluster import binaries, lifecycle
from hack.cluster.layout import Layout
from tests.scheduler.plane import Plane


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster's programs."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Layout]:
    """A running control plane, beside a cluster that may run too. It ends with this process, however that ends;
    GPUDRA_CLUSTER_KEEP=1 keeps it."""
    whole = Layout.default().root
    layout = Layout(whole.with_name(f"{whole.name}-plane"))
    keep = lifecycle.is_running(layout) or bool(os.environ.get("GPUDRA_CLUSTER_KEEP"))
    version = binaries.resolve(os.environ.get("GPUDRA_TEST_K8S", binaries.DEFAULT_VERSION))
    lifecycle.up(layout, version, owner=None if keep else os.getpid(), control_plane=True)
    yield layout
    if not keep:
        lifecycle.down(layout)


@pytest.fixture(scope="module")
def plane(control_plane: Layout, request: pytest.FixtureRequest) -> Iterator[Plane]:
    """The control plane with a namespace for the tests of one file."""
    made = Plane(control_plane, f"{request.node.path.stem.replace('_', '-')}-{secrets.token_hex(3)}")
    yield made
    made.close()
