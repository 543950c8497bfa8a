"""DRAResourceHealth over its sockets: versions, streams that end, and Prepare that does not mind them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest

from kubeletplugin.api import DeviceHealth, HealthStatus, PreparedDevice
from kubeletplugin.health import HealthBoard
from kubeletplugin.healthservice import HEALTH_SERVICES, HealthService
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import (
    dra_health_v1_pb2,
    dra_health_v1alpha1_pb2,
    registration_v1_pb2,
    registration_v1_pb2_grpc,
)
from kubeletplugin.testing.health_watch import V1, V1ALPHA1, HealthWatcher, pick_health_service
from kubeletplugin.testing.kubelet import Kubelet
from tests.unit.kubelet_side.fakes import DRIVER, NODE, Node, prepare_request, ref

HEALTHY, UNHEALTHY, UNKNOWN = HealthStatus.HEALTHY, HealthStatus.UNHEALTHY, HealthStatus.UNKNOWN
POOL = f"{NODE}/{DRIVER}"


def device(name: str = "eth1", status: HealthStatus = HEALTHY, message: str = "") -> DeviceHealth:
    return DeviceHealth(POOL, name, status, message, checked_at=1_700_000_000.9)


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    pytest.fail("the condition never came true")


@contextmanager
def watching(node: Node, service: str, *, retry: float = 0.05) -> Iterator[HealthWatcher]:
    with grpc.insecure_channel(f"unix:{node.dra_socket}") as channel:
        watcher = HealthWatcher(channel, service, retry=retry)
        watcher.start()
        try:
            yield watcher
        finally:
            watcher.stop()


def supported(node: Node) -> list[str]:
    with grpc.insecure_channel(f"unix:{node.registration_socket}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        return list(stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=5).supported_versions)


def service_of(plugin: Plugin) -> HealthService:
    assert isinstance(plugin._health, HealthService)
    return plugin._health


def test_both_versions_are_advertised_after_the_dra_service(node: Node) -> None:
    with node.plugin(health=HealthBoard()):
        assert supported(node) == ["v1.DRAPlugin", "v1beta1.DRAPlugin", *HEALTH_SERVICES]


def test_what_is_not_served_is_not_advertised(node: Node) -> None:
    with node.plugin():
        assert not set(supported(node)) & set(HEALTH_SERVICES)
        with watching(node, V1) as watcher:
            wait_until(lambda: watcher.refused)


@pytest.mark.parametrize("service", HEALTH_SERVICES)
def test_each_version_sees_healthy_unhealthy_healthy(node: Node, service: str) -> None:
    board = HealthBoard(coalesce=0.01)
    board.report([device()])
    with node.plugin(health=board), watching(node, service) as watcher:
        assert watcher.wait_for(POOL, "eth1", HEALTHY)
        board.report([device(status=UNHEALTHY, message="no link")])
        assert watcher.wait_for(POOL, "eth1", UNHEALTHY)
        assert watcher.health(POOL, "eth1").message == "no link"
        board.report([device()])
        assert watcher.wait_for(POOL, "eth1", HEALTHY)
        assert watcher.health(POOL, "eth2").status is UNKNOWN


def test_both_versions_are_the_same_bytes(node: Node) -> None:
    board = HealthBoard()
    board.report([device(message="ü"), device("eth2", UNHEALTHY)])
    raw = {}
    with node.plugin(health=board), grpc.insecure_channel(f"unix:{node.dra_socket}") as channel:
        for name in HEALTH_SERVICES:
            stream = channel.unary_stream(f"/{name}/NodeWatchResources")(b"", timeout=5)
            raw[name] = next(iter(stream))
            stream.cancel()
    assert raw[V1] == raw[V1ALPHA1]
    for module in (dra_health_v1_pb2, dra_health_v1alpha1_pb2):
        first, second = module.NodeWatchResourcesResponse.FromString(raw[V1]).devices
        assert (first.device.pool_name, first.device.device_name, first.message) == (POOL, "eth1", "ü")
        assert (first.health, second.health) == (module.HEALTHY, module.UNHEALTHY)
        assert (first.last_updated_time, first.health_check_timeout_seconds) == (1_700_000_000, 30)


def test_more_streams_than_all_workers_leave_prepare_and_registration_alone(node: Node) -> None:
    node.api.add_claim(ref())
    board = HealthBoard()
    board.report([device()])
    with node.plugin(workers=1, health=board) as plugin, node.stub() as dra, ExitStack() as stack:
        for _ in range(6):
            stack.enter_context(watching(node, V1))
        wait_until(lambda: service_of(plugin).streams() == 6)
        assert dra.NodePrepareResources(prepare_request(ref()), timeout=5).claims["uid-1"].error == ""
        assert supported(node)


def test_the_oldest_stream_goes_when_there_are_too_many(node: Node) -> None:
    board = HealthBoard()
    board.report([device()])
    with node.plugin(health=board) as plugin, ExitStack() as stack:
        watchers = []
        for number in range(10):
            watchers.append(stack.enter_context(watching(node, V1, retry=60)))
            wait_until(lambda: watchers[-1].messages == 1)
            assert service_of(plugin).streams() == min(number + 1, 8)
        assert [one.health(POOL, "eth1").status for one in watchers[2:]] == [HEALTHY] * 8
        wait_until(lambda: watchers[1].health(POOL, "eth1").status is UNKNOWN)


@pytest.mark.bug("B111")
def test_a_kubelet_that_hangs_up_frees_its_stream(node: Node) -> None:
    board = HealthBoard()
    board.report([device()])
    with node.plugin(health=board) as plugin:
        with watching(node, V1) as watcher:
            wait_until(lambda: watcher.messages == 1)
        wait_until(lambda: service_of(plugin).streams() == 0)


@pytest.mark.bug("B111")
def test_stopping_does_not_wait_for_streams(node: Node) -> None:
    board = HealthBoard()
    board.report([device()])
    plugin = node.plugin(health=board)
    plugin.start()
    with watching(node, V1, retry=60) as watcher:
        wait_until(lambda: watcher.messages == 1)
        done = threading.Thread(target=plugin.stop, args=(30,))
        done.start()
        done.join(10)
        assert not done.is_alive(), "an open stream is no call to wait for"
        wait_until(lambda: watcher.health(POOL, "eth1").status is UNKNOWN)


def test_a_kubelet_that_comes_while_the_plugin_ends_is_sent_away_and_nobody_else_suffers(node: Node) -> None:
    """A call that found no thread would end the server's own, and the end of the plugin would wait for it in vain."""
    node.api.add_claim(ref())
    with node.plugin(health=HealthBoard()) as plugin, node.stub() as dra:
        service_of(plugin).close()
        with grpc.insecure_channel(f"unix:{node.dra_socket}") as channel:
            watch = channel.unary_stream(f"/{V1}/NodeWatchResources")
            assert list(watch(b"", timeout=10)) == []
        assert dra.NodePrepareResources(prepare_request(ref()), timeout=10).claims[ref().uid].error == ""


@pytest.mark.parametrize(
    ("offered", "known", "picked"),
    [
        (("v1.DRAPlugin", V1, V1ALPHA1), (V1, V1ALPHA1), V1),
        (("v1.DRAPlugin", V1ALPHA1, V1), (V1, V1ALPHA1), V1),
        (("v1.DRAPlugin", V1ALPHA1), (V1, V1ALPHA1), V1ALPHA1),
        (("v1.DRAPlugin", V1, V1ALPHA1), (V1ALPHA1,), V1ALPHA1),
        (("v1.DRAPlugin",), (V1, V1ALPHA1), None),
    ],
)
def test_the_kubelet_takes_the_newest_version_it_knows(
    offered: tuple[str, ...], known: tuple[str, ...], picked: str | None
) -> None:
    assert pick_health_service(offered, known) == picked


@pytest.mark.parametrize("known", [(V1, V1ALPHA1), (V1ALPHA1,)])
def test_pod_status_follows_the_device(node: Node, known: tuple[str, ...]) -> None:
    node.api.add_claim(ref())
    board = HealthBoard(coalesce=0.01)
    board.report([device()])
    kubelet = Kubelet(
        node.registry_dir,
        node_name=NODE,
        client=node.api,
        poll=0.01,
        health_services=known,  # type: ignore[arg-type]
    )
    with node.plugin(health=board), kubelet:
        plugin = kubelet.plugins.wait_registered(DRIVER)
        assert plugin.health_service == known[0]
        assert plugin.health is not None
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        for status in (HEALTHY, UNHEALTHY, HEALTHY):
            board.report([device(status=status, message="m")])
            assert plugin.health.wait_for(POOL, "eth1", status)
            shown = kubelet.allocated_resources("default", "claim-1")
            assert {name: word.status for name, word in shown.items()} == {f"{DRIVER}/claim=uid-1": status}


def test_shares_of_a_device_are_as_well_as_the_device(node: Node) -> None:
    node.api.add_claim(ref())
    node.driver.answers["uid-1"] = [
        PreparedDevice(("nic",), POOL, "eth1", (f"cdi-{number}",), share_id=f"share-{number}") for number in (1, 2)
    ]
    board = HealthBoard(coalesce=0.01)
    board.report([device()])
    kubelet = Kubelet(node.registry_dir, node_name=NODE, client=node.api, poll=0.01)  # type: ignore[arg-type]
    with node.plugin(health=board), kubelet:
        plugin = kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        assert plugin.health is not None
        for status in (HEALTHY, UNHEALTHY):
            board.report([device(status=status)])
            assert plugin.health.wait_for(POOL, "eth1", status)
            shown = kubelet.allocated_resources("default", "claim-1")
            assert {name: word.status for name, word in shown.items()} == {"cdi-1": status, "cdi-2": status}


def test_a_device_is_unknown_without_a_health_service(node: Node) -> None:
    node.api.add_claim(ref())
    kubelet = Kubelet(node.registry_dir, node_name=NODE, client=node.api, poll=0.01)  # type: ignore[arg-type]
    with node.plugin(), kubelet:
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        (word,) = kubelet.allocated_resources("default", "claim-1").values()
        assert word.status is UNKNOWN


def test_what_serves_health_may_be_made_when_a_kubelet_first_watches(node: Node) -> None:
    board = HealthBoard()
    board.report([device()])
    made: list[HealthBoard] = []

    def make() -> HealthBoard:
        made.append(board)
        return board

    with node.plugin(health=make):
        assert supported(node)[2:] == list(HEALTH_SERVICES)
        assert made == []
        with watching(node, V1) as new, watching(node, V1ALPHA1) as old:
            wait_until(lambda: new.messages > 0 and old.messages > 0)
        assert made == [board]


def test_a_service_that_nobody_watched_is_not_made_at_the_end(node: Node) -> None:
    made: list[HealthBoard] = []

    def make() -> HealthBoard:
        made.append(HealthBoard())
        return made[-1]

    with node.plugin(health=make):
        pass
    assert made == []
