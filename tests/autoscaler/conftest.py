"""The real autoscalers beside a control plane: their kwok providers, fake nodes, and slices made from shapes.

They run where ``GPUDRA_CLUSTER_AUTOSCALER`` and ``GPUDRA_KARPENTER`` name the programs, which
``python -m hack.autoscaler build`` makes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from hack.autoscaler import running
from hack.autoscaler.fakenodes import FakeNodes, beating, gpudra
from hack.autoscaler.running import Running
from hack.autoscaler.scene import ensure_class
from hack.cluster import lifecycle
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, temporary_namespace

PROGRAMS = {
    "test_cluster_autoscaler": "GPUDRA_CLUSTER_AUTOSCALER",
    "test_karpenter": "GPUDRA_KARPENTER",
}
PROFILES = {"good": "dgx-h100", "bad": "gb200"}
"""Kind of node -> the machine that its nodes are: eight GPUs on two NUMA nodes, four on two."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs a cluster and the program of its autoscaler."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)
            variable = PROGRAMS[item.path.stem]
            if not os.environ.get(variable):
                reason = f"{variable} names no program; python -m hack.autoscaler build makes it"
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def shapes() -> dict[str, str]:
    """Kind of node -> the shape of its nodes, as JSON."""
    return {kind: gpudra("shape", "export", "--mock-profile", profile) for kind, profile in PROFILES.items()}


@pytest.fixture(scope="session")
def layout() -> Iterator[Layout]:
    """A control plane that is started for this run, unless a cluster is there."""
    found = Layout.default()
    ran_before = lifecycle.is_running(found)
    if not ran_before:
        lifecycle.up(found, owner=os.getpid(), control_plane=True)
    yield found
    if not ran_before:
        lifecycle.down(found)


@pytest.fixture(scope="session")
def api(layout: Layout) -> Iterator[Api]:
    """The administrator's connection; there is a class for every GPU."""
    connection = Api(layout)
    ensure_class(connection)
    yield connection
    connection.close()


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace that is empty before and gone after."""
    with temporary_namespace(api, request.node.name) as own:
        yield own


@pytest.fixture
def nodes(api: Api, layout: Layout) -> Iterator[FakeNodes]:
    """No fake nodes, and a heart that beats for those that come."""
    made = FakeNodes(api)
    made.remove_all()
    with beating(layout):
        yield made
    made.remove_all()


@pytest.fixture
def samples(nodes: FakeNodes, shapes: dict[str, str]) -> FakeNodes:
    """One Ready node of each group, which publishes what its machine has."""
    for group, shape in shapes.items():
        nodes.add(f"sample-{group}", {running.GROUP_LABEL: group})
        nodes.publish(f"sample-{group}", shape)
    return nodes


@pytest.fixture
def autoscaler(layout: Layout, api: Api, tmp_path: Path) -> Callable[[], AbstractContextManager[Running]]:
    """Starts Cluster Autoscaler for the two groups."""
    binary = Path(os.environ["GPUDRA_CLUSTER_AUTOSCALER"])
    log = tmp_path / "cluster-autoscaler.log"
    return partial(running.cluster_autoscaler, binary, layout, api, list(PROFILES), log)
