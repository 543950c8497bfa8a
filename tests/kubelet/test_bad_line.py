"""Between the plugin and the real API server: a proxy that breaks every connection after a random time."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from hack.cluster.layout import NODE_NAME, Layout
from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.client import KubeClient
from kubeletplugin.publisher import Publisher
from kubeletplugin.testing.proxy import Proxy
from tests.kubelet.scene_driver import Driver

SECONDS = float(os.environ.get("GPUDRA_PROXY_SECONDS", "10"))
"""A short time by default; ``GPUDRA_PROXY_SECONDS=300`` for a long one."""


def pool(*names: str) -> Pool:
    """A slice for each device."""
    return Pool(tuple(Slice(devices=({"name": name},)) for name in names))


@pytest.mark.timeout(120 + SECONDS)
def test_slices_are_right_in_the_end_and_the_server_was_not_asked_too_often(driver: Driver, cluster: Layout) -> None:
    rng = random.Random(7)
    token = cluster.token().read_text()
    changes, began = 0, time.monotonic()
    with (
        Proxy.breaking(cluster.load().server, rng, mean_seconds=0.3) as proxy,
        KubeClient(proxy.url, token=token, insecure_skip_verify=True) as client,
    ):
        publisher = Publisher(client, driver_name=driver.name, node_name=NODE_NAME)
        publisher.start()
        try:
            while time.monotonic() < began + SECONDS:
                names = [f"eth-{rng.randrange(9)}-{number}" for number in range(rng.randrange(1, 4))]
                publisher.update(DriverResources({driver.driver.pool: pool(*names)}))
                changes += 1
                stored = driver.slices()
                if stored and rng.random() < 0.2:
                    driver.api.delete("resourceslices", None, rng.choice(stored)["metadata"]["name"])
                threading.Event().wait(0.3)
            seconds = time.monotonic() - began
            proxy.heal()
            publisher.update(DriverResources({driver.driver.pool: pool("last-0", "last-1")}))
            assert publisher.synced(60)
        finally:
            publisher.stop()
        # A connection may serve for a single request: at most three slices, the list before them and a second try of
        # each for a change; list, version and watch for each round of the watch, whose pauses grow from half a second.
        assert proxy.broken >= SECONDS / 3
        assert proxy.connections <= 20 + 8 * changes + 6 * seconds
    assert [[device["name"] for device in item["spec"]["devices"]] for item in driver.slices()] == [
        ["last-0"],
        ["last-1"],
    ]
    assert len({item["spec"]["pool"]["generation"] for item in driver.slices()}) == 1
