"""Allocations with and without share IDs, written as a scheduler would, reach driver and kubelet as they are."""

from __future__ import annotations

from typing import Any

import pytest

from hack.cluster.api import path
from hack.cluster.layout import NODE_NAME
from hack.cluster.scene import Container, Namespace
from kubeletplugin.testing.handler import UNPREPARE
from tests.kubelet.scene_driver import SHOW, WAIT, Driver, environment

SHARES = ("11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-aaaaaaaaaaaa")


def result(driver: Driver, share: str | None = None) -> dict[str, Any]:
    """An allocation result of the driver's first device."""
    device = {"request": "gpu", "driver": driver.name, "pool": driver.driver.pool, "device": driver.driver.devices[0]}
    return device | ({"shareID": share} if share else {})


def allocate(driver: Driver, namespace: Namespace, results: list[dict[str, Any]]) -> None:
    """Allocate the claim ``shared`` by hand."""
    claim = namespace.claim("shared", device_class=driver.name)
    claim["status"] = {"allocation": {"devices": {"results": results}}}
    namespace.api.call("PUT", f"{path('resourceclaims', namespace.name, 'shared')}/status", claim)


@pytest.mark.parametrize("shares", [(None,), SHARES[:1], SHARES], ids=["no share", "a share", "two shares of a device"])
def test_the_devices_of_an_allocation_are_prepared_share_by_share(
    driver: Driver, namespace: Namespace, version: tuple[int, int], shares: tuple[str | None, ...]
) -> None:
    if shares[0] and version < (1, 36):
        pytest.skip("DRAConsumableCapacity is off by default before Kubernetes 1.36: the API server drops share IDs")
    driver.started()
    allocate(driver, namespace, [result(driver, share) for share in shares])
    prepared: list[str | None] = []
    working = driver.driver.prepare

    def noted(claims: Any) -> Any:
        answer = working(claims)
        prepared.extend(device.share_id for devices in answer.values() for device in devices)
        return answer

    driver.driver.prepare = noted  # type: ignore[method-assign] # the share IDs of each answer are noted
    namespace.pod("p", claim="shared", containers=[Container("main", SHOW)], node=NODE_NAME)
    namespace.succeeded("p", WAIT)
    assert prepared == list(shares)
    assert environment(namespace, "p")[f"device_{driver.driver.devices[0]}"] == "true"
    namespace.delete_pod("p")
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
