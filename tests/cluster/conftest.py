"""Fixtures of the real cluster: started once for the run, a namespace for each test, one agent on a mock node."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from hack import image
from hack.cluster import binaries, lifecycle
from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.processes import tail
from hack.cluster.scene import Namespace, temporary_namespace
from native.mock import MockNode

ABOUT_US = re.compile(r"gpu\.nvidia\.com|gpudra|[Dd]ynamicResource|DRA ")
NOT_ABOUT_US = re.compile(
    # The kubelet asks once more about a pod (the agent's, say) whose deletion the API server has just completed.
    r"status_manager\.go.*no relationship found"
    # A stream of health reports ends with the kubelet or the plugin, which tests end and kill in every order.
    r"|Error receiving from WatchResources stream.*code = (Canceled|Unavailable)"
    # Kubernetes 1.34 opens it once more while a plugin ends.
    r"|NodeWatchResources RPC call failed.*code = Unavailable"
    # Kubernetes 1.34 asks for the health of a claim that it has just unprepared.
    r"|Failed to get claim infos for container.*unable to get information for ResourceClaim"
    # It was dialling an agent that a test ended, which it gives up after ten seconds: in another test.
    r"|RegisterPlugin error -- dial failed at socket .*context deadline exceeded"
)
ERROR_LINE = re.compile(r"^E\d{4} |level=error|\"level\":\"error\"")
WATCHED = ("kube-apiserver", "kube-scheduler", "kubelet")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Layout]:
    """A running cluster. It ends with this process, however that ends; GPUDRA_CLUSTER_KEEP=1 keeps it."""
    layout = Layout.default()
    ran_before = lifecycle.is_running(layout)
    keep = ran_before or bool(os.environ.get("GPUDRA_CLUSTER_KEEP"))
    version = layout.load().version if ran_before else binaries.DEFAULT_VERSION
    lifecycle.up(layout, version, owner=None if keep else os.getpid())
    yield layout
    Agent(layout).stop()
    if not keep:
        lifecycle.down(layout)


@pytest.fixture(scope="session")
def api(cluster: Layout) -> Iterator[Api]:
    """The administrator's connection."""
    connection = Api(cluster)
    yield connection
    connection.close()


@pytest.fixture
def namespace(api: Api, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace that is empty before and gone after."""
    with temporary_namespace(api, request.node.name) as own:
        yield own


@pytest.fixture(scope="session")
def mock_node(cluster: Layout) -> MockNode:
    """The mock DGX H100 that the agent runs on."""
    root = Agent(cluster).mock_root
    return MockNode.open(root) if (root / "usr").exists() else MockNode.create(root, "dgx-h100")


@pytest.fixture
def agent(cluster: Layout, api: Api, mock_node: MockNode) -> Agent:
    """A running agent whose eight GPUs are published. A test may end it, or end the test with other settings."""
    process = Agent(cluster)
    process.ensure()
    process.wait_published(api, len(mock_node.profile.gpus))
    return process


@pytest.fixture(scope="session")
def loaded_image(cluster: Layout, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The agent's image, built and known to the node."""
    archive = tmp_path_factory.mktemp("image") / "image.tar"
    image.build(archive)
    lifecycle.import_image(cluster, archive)


@pytest.fixture
def other_node(cluster: Layout, api: Api) -> Iterator[Callable[..., MockNode]]:
    """Starts an agent on another mock node in place of the usual one; behind the test that node is gone.

    Its arguments: the profile, the agent's flags, how many devices it then publishes, and on which GPUs MIG is on.
    """
    Agent(cluster).stop()
    made: list[tuple[Agent, MockNode]] = []

    def start(profile: str, *flags: str, devices: int, mig_on: tuple[int, ...] = ()) -> MockNode:
        if "--mig=dynamic" in flags and cluster.load().minor_version < (1, 36):
            pytest.skip("DRAPartitionableDevices is off by default before Kubernetes 1.36: no counters, no partitions")
        agent = Agent(cluster, profile)
        root = agent.mock_root
        node = MockNode.open(root) if (root / "usr").exists() else MockNode.create(root, profile)
        for number in mig_on:
            node.nvidia_smi("-i", node.profile.gpus[number].address, "-mig", "1")
        made.append((agent, node))
        agent.start(*flags, "--rescan-seconds=1")
        agent.wait_published(api, devices)
        return node

    yield start
    for agent, node in made:
        agent.stop()
        node.remove()


@pytest.fixture
def errors_expected() -> None:
    """For tests that make the kubelet log errors about us on purpose."""


@pytest.fixture
def noise() -> list[str]:
    """Regular expressions of errors about us that a test makes the components log, for tests that expect some and no
    others: filled by the test, with the reason of each."""
    return []


@pytest.fixture(autouse=True)
def quiet_components(request: pytest.FixtureRequest, cluster: Layout) -> Iterator[None]:
    """No component may log an error about us during a test that does not say that it provokes one."""
    noise: list[str] = request.getfixturevalue("noise") if "noise" in request.fixturenames else []
    offsets = {name: cluster.log(name).stat().st_size for name in WATCHED}
    yield
    if "errors_expected" in request.fixturenames:
        return
    for name in WATCHED:
        with cluster.log(name).open("rb") as log:
            log.seek(offsets[name])
            lines = log.read().decode(errors="replace").splitlines()
        errors = [line for line in lines if ERROR_LINE.search(line) and not NOT_ABOUT_US.search(line)]
        about_us = [line for line in errors if ABOUT_US.search(line)]
        about_us = [line for line in about_us if not any(re.search(expected, line) for expected in noise)]
        assert not about_us, f"{name} logged errors about the driver:\n" + "\n".join(about_us[:10])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the end of the agent's log and the components' last errors to the report of a failed test."""
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        layout = Layout.default()
        if layout.log("agent").exists():
            report.sections.append(("log of the agent", tail(layout.log("agent"), 25)))
        for name in WATCHED:
            if layout.log(name).exists():
                lines = layout.log(name).read_text(errors="replace").splitlines()
                errors = [line[:600] for line in lines if ERROR_LINE.search(line)]
                report.sections.append((f"last errors of {name}", "\n".join(errors[-4:])))
    return report
