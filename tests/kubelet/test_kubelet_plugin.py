"""The plugin library on the real kubelet: a network driver of this process, whose handler goes wrong on demand.

The scenarios are those of Kubernetes' own test/e2e_node/dra_test.go and of the plugin's side of test/e2e/dra/dra.go;
docs/conformance.md says which is which.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.api import Api, path
from hack.cluster.layout import NODE_NAME, Layout
from hack.cluster.scene import Container, Namespace, phase
from kubeletplugin.api import (
    Claim,
    DeviceHealth,
    DeviceMetadata,
    HealthStatus,
    PreparedDevice,
    PrepareError,
    PrepareResult,
)
from kubeletplugin.client import KubeClient
from kubeletplugin.devicemetadata import KNOWN_VERSIONS, decode_stream
from kubeletplugin.health import HealthBoard
from kubeletplugin.plugin import Plugin
from kubeletplugin.testing.handler import PREPARE, UNPREPARE, FaultyHandler
from tests.unit.kubelet_side.network_driver import NetworkDriver

DRIVER = "net.example.com"
CLASS = "nic"
WAIT = 90.0
"""Seconds; the kubelet comes back to a pod that failed within about a minute."""
SLEEP = "env | grep ^NET_; exec sleep 2147483647"


class WithMetadata(NetworkDriver):
    """Also says what containers are to know of an interface."""

    def _prepare(self, claim: Claim) -> PrepareResult:
        prepared = super()._prepare(claim)
        if isinstance(prepared, PrepareError):
            return prepared
        return [
            PreparedDevice(
                one.requests,
                one.pool,
                one.device,
                one.cdi_device_ids,
                metadata=DeviceMetadata({"device": {"string": one.device}}),
            )
            for one in prepared
        ]


class Driver:
    """One driver on the cluster's node and its instances."""

    def __init__(self, layout: Layout, api: Api, name: str = DRIVER) -> None:
        self.layout, self.api, self.name = layout, api, name
        self.client = KubeClient.from_kubeconfig(layout.kubeconfig())
        self.driver = WithMetadata(NODE_NAME, layout.cdi, ["eth1", "eth2"])
        self.handler = FaultyHandler(self.driver)
        self.board = HealthBoard()
        self.plugins: list[Plugin] = []

    def start(self, uid: str | None = None, *, handler: FaultyHandler | None = None, **options: Any) -> Plugin:
        plugin = Plugin(
            self.name,
            NODE_NAME,
            handler or self.handler,
            client=self.client,
            plugins_dir=self.layout.plugins,
            registry_dir=self.layout.registry,
            instance_uid=uid,
            health=self.board,
            metadata_versions=KNOWN_VERSIONS,
            cdi_dir=self.layout.cdi,
            **options,
        )
        plugin.start()
        self.plugins.append(plugin)
        plugin.publish(self.driver.resources())
        return plugin

    def started(self, uid: str | None = None, **options: Any) -> Plugin:
        """Start one and wait for the kubelet and for the slices."""
        plugin = self.start(uid, **options)
        assert plugin.registered.wait(60), self.client.server
        self.wait_slices(lambda found: len(found) == 1)
        return plugin

    def stop(self) -> None:
        self.handler.heal()
        for plugin in self.plugins:
            plugin.stop(5)
        self.plugins.clear()

    def slices(self) -> list[dict[str, Any]]:
        return self.api.items("resourceslices", fieldSelector=f"spec.driver={self.name}")

    def wait_slices(self, until: Callable[[dict[str, Any]], bool], timeout: float = 60.0) -> None:
        selector = f"spec.driver={self.name}"
        self.api.wait_all("resourceslices", None, until, f"slices of {self.name}", timeout, selector)

    def report(self, status: HealthStatus, message: str = "") -> None:
        pool = self.driver.pool
        self.board.report(
            [DeviceHealth(pool, name, status, message, timeout_seconds=600) for name in self.driver.interfaces]
        )


@pytest.fixture
def driver(cluster: Layout, api: Api) -> Iterator[Driver]:
    spec = {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    api.create("deviceclasses", None, {"metadata": {"name": CLASS}, "spec": spec})
    driver = Driver(cluster, api)
    yield driver
    driver.stop()
    for item in driver.slices():
        api.delete("resourceslices", None, item["metadata"]["name"])
    api.delete("deviceclasses", None, CLASS)
    driver.client.close()


def run(namespace: Namespace, name: str = "p", **options: Any) -> None:
    """A pod with a claim of its own; it waits until somebody ends it."""
    namespace.claim(f"{name}-claim", device_class=CLASS)
    namespace.pod(name, claim=f"{name}-claim", containers=[Container("main", SLEEP)], **options)


def restart_kubelet(layout: Layout, between: Callable[[], object] = lambda: None) -> None:
    lifecycle.stop_component(layout, "kubelet")
    between()
    lifecycle.start_component(layout, "kubelet")


# Registration


def test_it_registers_again_after_a_restart_of_the_kubelet(driver: Driver, cluster: Layout) -> None:
    plugin = driver.started()
    words = threading.Event()
    plugin.registered.set = lambda status: words.set()  # type: ignore[method-assign] # the next word of the kubelet
    restart_kubelet(cluster)
    assert words.wait(60)


def test_it_registers_again_after_a_restart_of_the_plugin(driver: Driver) -> None:
    driver.started()
    driver.stop()
    driver.started()


def test_a_pod_made_while_no_kubelet_ran_is_prepared(driver: Driver, cluster: Layout, namespace: Namespace) -> None:
    driver.started()
    restart_kubelet(cluster, lambda: run(namespace))
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) == 1


# Prepare and Unprepare


def test_a_pod_stays_pending_while_prepare_hangs_and_runs_after(
    driver: Driver, namespace: Namespace, errors_expected: None
) -> None:
    driver.started(call_deadline=5.0)
    with driver.handler.held(PREPARE):
        run(namespace)
        namespace.wait_event("p", "prepare still runs and goes on")
        assert phase(namespace.api.get("pods", namespace.name, "p")) == "Pending"
    namespace.running("p", WAIT)


@pytest.mark.parametrize("fault", [FaultyHandler.fail, FaultyHandler.fail_afterwards, FaultyHandler.forget])
def test_a_pod_runs_after_prepare_failed_and_then_succeeds(
    driver: Driver, namespace: Namespace, errors_expected: None, fault: Callable[..., None]
) -> None:
    driver.started()
    fault(driver.handler, PREPARE, times=1)
    run(namespace)
    assert driver.handler.wait_called(PREPARE, timeout=WAIT)
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) >= 2


def test_unprepare_is_repeated_until_it_succeeds(driver: Driver, namespace: Namespace, errors_expected: None) -> None:
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    driver.handler.fail(UNPREPARE, times=1)
    namespace.api.delete("pods", namespace.name, "p")
    assert driver.handler.wait_called(UNPREPARE, 2, timeout=150)
    namespace.wait_pod("p", lambda pod: pod is None, "gone", WAIT)


@pytest.mark.parametrize("kind", [PREPARE, UNPREPARE])
def test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet(
    driver: Driver, cluster: Layout, namespace: Namespace, errors_expected: None, kind: str
) -> None:
    driver.started()
    if kind == UNPREPARE:
        run(namespace)
        namespace.running("p", WAIT)
    with driver.handler.held(kind):
        if kind == PREPARE:
            run(namespace)
        else:
            namespace.api.delete("pods", namespace.name, "p")
        assert driver.handler.wait_hanging(timeout=WAIT)
        restart_kubelet(cluster)
    assert driver.handler.wait_called(kind, 2, timeout=150)
    if kind == PREPARE:
        namespace.running("p", WAIT)
    else:
        namespace.wait_pod("p", lambda pod: pod is None, "gone", WAIT)


def test_a_pod_deleted_while_prepare_fails_is_unprepared(
    driver: Driver, namespace: Namespace, errors_expected: None
) -> None:
    driver.started()
    driver.handler.fail(PREPARE)
    run(namespace)
    assert driver.handler.wait_called(PREPARE, timeout=WAIT)
    namespace.api.delete("pods", namespace.name, "p")
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    namespace.wait_pod("p", lambda pod: pod is None, "gone", WAIT)


def test_a_force_deleted_pod_is_unprepared(driver: Driver, api: Api, namespace: Namespace) -> None:
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    api.call("DELETE", path("pods", namespace.name, "p"), {"gracePeriodSeconds": 0})
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)


def test_a_pod_deleted_while_no_kubelet_ran_is_unprepared(
    driver: Driver, cluster: Layout, namespace: Namespace
) -> None:
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    restart_kubelet(cluster, lambda: namespace.api.delete("pods", namespace.name, "p"))
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    namespace.wait_pod("p", lambda pod: pod is None, "gone", WAIT)


def test_a_claim_that_no_container_uses_is_prepared_all_the_same(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.claim("unused", device_class=CLASS)
    namespace.pod("p", claim="unused", containers=[Container("main", "exec sleep 2147483647", claims=())])
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) == 1


# Slices


def test_slices_are_removed_by_a_starting_kubelet_and_come_back(driver: Driver, cluster: Layout) -> None:
    driver.started()
    (before,) = driver.slices()
    restart_kubelet(cluster)
    driver.wait_slices(lambda found: {item["metadata"]["uid"] for item in found.values()} - {before["metadata"]["uid"]})  # type: ignore[arg-type, return-value] # empty is false


def test_slices_are_removed_half_a_minute_after_the_plugin_ended(driver: Driver, errors_expected: None) -> None:
    driver.started()
    driver.stop()
    assert len(driver.slices()) == 1
    driver.wait_slices(lambda found: not found, 90)


def test_slices_stay_if_the_plugin_is_back_soon(driver: Driver) -> None:
    driver.started()
    before = driver.slices()
    driver.stop()
    driver.started()
    with pytest.raises(AssertionError, match="not within"):
        driver.wait_slices(lambda found: [*found.values()] != before, 40)


def test_an_update_side_by_side_leaves_slices_to_the_byte_and_pods_run(driver: Driver, namespace: Namespace) -> None:
    old = driver.started("old")
    before = driver.slices()
    run(namespace, "first")
    namespace.running("first", WAIT)
    new = driver.started("new")
    old.stop(5)
    run(namespace, "second")
    namespace.running("second", WAIT)
    namespace.delete_pod("first")
    assert driver.slices() == before
    assert new.liveness() is None


def test_a_failed_update_leaves_the_old_instance_at_work(driver: Driver, namespace: Namespace) -> None:
    driver.started("old")
    failing = driver.started("new", handler=FaultyHandler())
    failing.stop(0)
    run(namespace)
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) == 1


# Health


def shown(pod: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the pod's status says of its devices' health."""
    statuses: Sequence[Any] = pod["status"].get("containerStatuses", []) if pod else []
    resources = [
        entry
        for status in statuses
        for resource in status.get("allocatedResourcesStatus", [])
        for entry in resource.get("resources", [])
    ]
    return [(entry["health"], entry.get("message", "")) for entry in resources]


def test_pod_status_follows_the_health_of_its_device_within_a_minute(driver: Driver, namespace: Namespace) -> None:
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    for status, message in (
        (HealthStatus.HEALTHY, ""),
        (HealthStatus.UNHEALTHY, "the cable is out"),
        (HealthStatus.HEALTHY, ""),
    ):
        driver.report(status, message)
        namespace.wait_pod("p", lambda pod, s=status: [h for h, _ in shown(pod)] == [s.value], f"{status}", 60)  # type: ignore[misc] # bound early
        if message:
            assert [text for _, text in shown(namespace.api.get("pods", namespace.name, "p"))] == [message]


def test_health_is_unknown_without_the_plugin_and_known_again_with_it(
    driver: Driver, namespace: Namespace, errors_expected: None
) -> None:
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    namespace.wait_pod("p", lambda pod: [h for h, _ in shown(pod)] == ["Healthy"], "healthy", 60)
    driver.stop()
    namespace.wait_pod("p", lambda pod: [h for h, _ in shown(pod)] == ["Unknown"], "unknown", 120)
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    namespace.wait_pod("p", lambda pod: [h for h, _ in shown(pod)] == ["Healthy"], "healthy again", 60)


# Metadata

METADATA = "/var/run/kubernetes.io/dra-device-attributes"


def test_metadata_of_a_claim_is_in_its_container_and_in_no_other(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.claim("one", device_class=CLASS)
    show = f"cat {METADATA}/resourceclaims/one/gpu/{DRIVER}-metadata.json; echo end"
    containers = [Container("with", show), Container("without", f"ls {METADATA} || echo nothing", claims=())]
    namespace.pod("p", claim="one", containers=containers)
    namespace.succeeded("p", WAIT)
    document = decode_stream("\n".join(namespace.log_lines("p", "with")).rpartition("end")[0])
    assert document["apiVersion"] == KNOWN_VERSIONS[0]
    assert document["metadata"]["name"] == "one"
    assert document["metadata"]["generation"] == 1
    (device,) = document["requests"][0]["devices"]
    assert [device["name"]] == namespace.allocated("one")
    assert device["attributes"] == {"device": {"string": device["name"]}}
    assert namespace.log_lines("p", "without")[-1] == "nothing"


def test_metadata_of_a_claim_from_a_template_goes_by_the_pods_name_for_it(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.template("nics", device_class=CLASS)
    show = f"cat {METADATA}/resourceclaimtemplates/gpu/gpu/{DRIVER}-metadata.json"
    namespace.pod("p", template="nics", containers=[Container("main", show)])
    namespace.succeeded("p", WAIT)
    document = decode_stream("\n".join(namespace.log_lines("p")))
    assert document["podClaimName"] == "gpu"
    assert json.dumps(document)


def test_nothing_is_left_after_the_pod(driver: Driver, cluster: Layout, namespace: Namespace) -> None:
    driver.started()
    run(namespace)
    namespace.running("p", WAIT)
    namespace.delete_pod("p")
    assert list(cluster.cdi.glob(f"{DRIVER}*")) == []
    assert list((cluster.plugins / DRIVER / "dra-device-metadata").iterdir()) == []
