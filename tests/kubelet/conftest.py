"""The scenarios of this folder run on the real cluster, with drivers of this process beside its kubelet.

The kubelet looks again at a pod that failed, or that waits to be unprepared, once in ``syncFrequency``: a minute by
default. Here it is a few seconds, by the kubelet's own setting; all else is as users have it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from hack.cluster import lifecycle
from hack.cluster.api import Api
from hack.cluster.components import HEALTH_GATE
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, temporary_namespace
from tests.cluster.conftest import api, cluster, errors_expected, pytest_runtest_makereport, quiet_components
from tests.kubelet.scene_driver import Driver

__all__ = ["api", "cluster", "errors_expected", "pytest_runtest_makereport", "quiet_components"]

Install = Callable[..., Driver]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster."""
    for item in items:
        if "kubelet" in item.path.parts:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session", autouse=True)
def impatient_kubelet(cluster: Layout) -> Iterator[None]:
    """A kubelet that looks at every pod again after 4 to 6 seconds. Before 1.36 it is told to follow health, too."""
    gates = {} if cluster.load().minor_version >= (1, 36) else {"featureGates": {HEALTH_GATE: True}}
    with lifecycle.kubelet_settings(cluster, syncFrequency="4s", **gates):
        yield


@pytest.fixture(scope="session")
def version(cluster: Layout) -> tuple[int, int]:
    """(1, 37) on Kubernetes 1.37."""
    return cluster.load().minor_version


@pytest.fixture
def install(cluster: Layout, api: Api) -> Iterator[Install]:
    """Makes drivers, by name; all are gone after the test."""
    installed: list[Driver] = []

    def make(*arguments: object, **options: object) -> Driver:
        installed.append(Driver(cluster, api, *arguments, **options))  # type: ignore[arg-type] # as Driver takes them
        return installed[-1]

    yield make
    for driver in installed:
        driver.remove()


@pytest.fixture
def driver(install: Install) -> Driver:
    """One driver with two devices."""
    return install()


@pytest.fixture
def namespace(install: Install, api: Api, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """Ends before the drivers do: they are needed to unprepare its pods."""
    with temporary_namespace(api, request.node.name) as own:
        yield own
