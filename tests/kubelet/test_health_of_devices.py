"""A pod's status follows the health of its devices, in whichever version of the health service both sides speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

import kubeletplugin.healthservice
from hack.cluster.layout import NODE_NAME
from hack.cluster.scene import Container, Namespace
from kubeletplugin.api import HealthStatus
from kubeletplugin.healthservice import HEALTH_SERVICES, HealthService
from kubeletplugin.testing.handler import PREPARE
from tests.kubelet.scene_driver import SLEEP, WAIT, Driver
from tests.kubelet.test_shares import allocate, result

V1, V1ALPHA1 = HEALTH_SERVICES


def shown(pod: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """What the pod's status says of its devices' health: (health, message) each."""
    statuses: Sequence[Any] = pod["status"].get("containerStatuses", []) if pod else []
    resources = [
        entry
        for status in statuses
        for resource in status.get("allocatedResourcesStatus", [])
        for entry in resource.get("resources", [])
    ]
    return [(entry["health"], entry.get("message", "")) for entry in resources]


def wait_shown(namespace: Namespace, pod: str, *expected: str) -> list[tuple[str, str]]:
    """Wait at most a minute until the devices of a pod are shown as this."""
    found = namespace.wait_pod(
        pod, lambda pod: [health for health, _ in shown(pod)] == list(expected), str(expected), 60
    )
    return shown(found)


def follow(driver: Driver, namespace: Namespace, devices: int = 1) -> list[list[tuple[str, str]]]:
    """Healthy, unhealthy, healthy; what the pod ``p`` showed each time."""
    seen = []
    for status, message in (
        (HealthStatus.HEALTHY, ""),
        (HealthStatus.UNHEALTHY, "the cable is out"),
        (HealthStatus.HEALTHY, ""),
    ):
        driver.report(status, message)
        seen.append(wait_shown(namespace, "p", *[status.value] * devices))
    return seen


@pytest.mark.parametrize("served", [(V1, V1ALPHA1), (V1ALPHA1,), (V1,)], ids=["both", "v1alpha1 alone", "v1 alone"])
def test_pod_status_follows_the_health_of_its_device_within_a_minute(
    driver: Driver,
    namespace: Namespace,
    version: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
    served: tuple[str, ...],
) -> None:
    if served == (V1,) and version < (1, 37):
        pytest.skip("the kubelet knows v1 of the health service from Kubernetes 1.37 on")
    monkeypatch.setattr(kubeletplugin.healthservice, "HEALTH_SERVICES", served)
    streams: list[HealthService] = []
    watched = HealthService._admit

    def admit(self: HealthService, *arguments: Any) -> bool:
        streams.append(self)
        return watched(self, *arguments)

    monkeypatch.setattr(HealthService, "_admit", admit)
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    seen = follow(driver, namespace)
    assert len(streams) == 1, "the kubelet watches by one version"
    if version >= (1, 36):
        assert seen[1] == [("Unhealthy", "the cable is out")], "ResourceHealthStatusMessage is on from 1.36"


def test_three_pods_and_their_health_are_served_at_the_same_time(
    install: Callable[..., Driver], namespace: Namespace
) -> None:
    driver = install(devices=["eth1", "eth2", "eth3"])
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    pods = ("a", "b", "c")
    for pod in pods:
        driver.run(namespace, pod)
    for pod in pods:
        namespace.running(pod, WAIT)
        wait_shown(namespace, pod, "Healthy")
    assert driver.handler.count(PREPARE) >= len(pods)
    driver.report(HealthStatus.UNHEALTHY)
    for pod in pods:
        wait_shown(namespace, pod, "Unhealthy")


def test_shares_of_a_device_are_as_well_as_the_device(
    driver: Driver, namespace: Namespace, version: tuple[int, int]
) -> None:
    if version < (1, 36):
        pytest.skip("DRAConsumableCapacity is off by default before Kubernetes 1.36: the API server drops share IDs")
    driver.report(HealthStatus.HEALTHY)
    driver.started()
    shares = ["11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa"]
    allocate(driver, namespace, [result(driver, share) for share in shares])
    namespace.pod("p", claim="shared", containers=[Container("main", SLEEP)], node=NODE_NAME)
    namespace.running("p", WAIT)
    follow(driver, namespace, devices=2)
