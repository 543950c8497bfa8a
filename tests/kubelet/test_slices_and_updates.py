"""The slices of a plugin on a real node: what they are, what the kubelet takes away, and updates of the plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.layout import NODE_NAME, Layout
from hack.cluster.scene import Namespace
from kubeletplugin.api import DriverResources, DroppedFields, NullObserver, Pool, Slice
from kubeletplugin.publisher import Publisher
from kubeletplugin.testing.handler import PREPARE, FaultyHandler
from tests.kubelet.scene_driver import WAIT, Driver, environment

LONG_NAME = "a-driver-whose-name-fills-a-socket-path.example.com"


def test_the_slice_of_a_node_is_exactly_this(driver: Driver) -> None:
    driver.started()
    (item,) = driver.slices()
    node = driver.api.get("nodes", None, NODE_NAME)
    assert item["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": node["metadata"]["uid"], "controller": True}
    ]
    devices = [{"name": name, "attributes": {"speed": {"int": 100}}} for name in driver.driver.devices]
    pool = {"name": driver.driver.pool, "generation": 1, "resourceSliceCount": 1}
    assert item["spec"] == {"driver": driver.name, "nodeName": NODE_NAME, "pool": pool, "devices": devices}


def test_slices_are_removed_by_a_starting_kubelet_and_come_back_those_of_other_nodes_stay(
    driver: Driver, cluster: Layout
) -> None:
    driver.started()
    (before,) = driver.slices()
    spec = before["spec"] | {"nodeName": "node-b", "driver": "other.example.com"}
    foreign = {"metadata": {"name": "of-another-node"}, "spec": spec}
    uid = driver.api.create("resourceslices", None, foreign)["metadata"]["uid"]

    def anew(found: dict[str, Any]) -> bool:
        return any(item["metadata"]["uid"] != before["metadata"]["uid"] for item in found.values())

    try:
        lifecycle.restart_kubelet(cluster)
        driver.wait_slices(anew)
        assert [item["spec"] for item in driver.slices()] == [before["spec"]]
        assert driver.api.get("resourceslices", None, "of-another-node")["metadata"]["uid"] == uid
    finally:
        driver.api.delete("resourceslices", None, "of-another-node")


def test_a_pool_that_is_cared_for_by_its_name_is_repaired(driver: Driver) -> None:
    publisher = Publisher(driver.client, driver_name=driver.name, node_name=None, only_pool="everywhere")
    publisher.start()
    try:
        content = Slice(devices=({"name": "device-00"},))
        publisher.update(DriverResources({"everywhere": Pool((content,), all_nodes=True)}))
        driver.wait_slices(lambda found: len(found) == 1)
        (before,) = driver.slices()
        pool = {"name": "everywhere", "generation": 1, "resourceSliceCount": 1}
        assert before["spec"] == {
            "driver": driver.name, "allNodes": True, "pool": pool, "devices": [{"name": "device-00"}],
        }  # fmt: skip
        driver.api.delete("resourceslices", None, before["metadata"]["name"])
        driver.wait_slices(lambda found: all(i["metadata"]["uid"] != before["metadata"]["uid"] for i in found.values()))
        driver.wait_slices(
            lambda found: [item["spec"]["devices"] for item in found.values()] == [[{"name": "device-00"}]]
        )
    finally:
        publisher.stop()


class Told(NullObserver):
    """Keeps what was dropped."""

    def __init__(self) -> None:
        self.drops: list[DroppedFields] = []

    def dropped(self, dropped: DroppedFields) -> None:
        self.drops.append(dropped)


@pytest.mark.parametrize(
    ("gate", "field", "content"),
    [
        ("DRADeviceTaints", "devices[*].taints", {"taints": [{"key": "lost", "effect": "NoSchedule"}]}),
        ("DRAConsumableCapacity", "devices[*].allowMultipleAllocations", {"allowMultipleAllocations": True}),
        (
            "DRADeviceBindingConditions",
            "devices[*].bindingConditions",
            {"bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
        ),
    ],
)
def test_a_field_is_kept_or_its_loss_is_told_with_the_feature_gate(
    driver: Driver, version: tuple[int, int], gate: str, field: str, content: dict[str, Any]
) -> None:
    told = Told()
    publisher = Publisher(driver.client, driver_name=driver.name, node_name=NODE_NAME, observer=told)
    publisher.start()
    try:
        publisher.update(DriverResources({driver.driver.pool: Pool((Slice(devices=({"name": "eth1", **content},)),))}))
        assert publisher.synced(30)
    finally:
        publisher.stop()
    (item,) = driver.slices()
    name = field.rpartition(".")[2]
    if version >= (1, 36):
        assert told.drops == []
        assert name in item["spec"]["devices"][0]
    else:
        assert [(one.feature_gates, field in one.fields) for one in told.drops] == [((gate,), True)]
        assert name not in item["spec"]["devices"][0]


def publish_overlapping(driver: Driver) -> None:
    """Two devices of which the card has room for one. The counter set has the same name whatever the driver."""
    memory = {"counterSet": "card", "counters": {"memory": {"value": "6Gi"}}}
    halves = tuple({"name": name, "consumesCounters": [memory]} for name in driver.driver.devices)
    card = {"name": "card", "counters": {"memory": {"value": "8Gi"}}}
    plugin = driver.started()
    plugin.publish(DriverResources({driver.driver.pool: Pool((Slice(devices=halves), Slice(shared_counters=(card,))))}))
    driver.wait_slices(lambda found: len(found) == 2)


@pytest.mark.bug("B42")
def test_overlapping_devices_are_given_out_as_their_counters_allow_whatever_other_drivers_count(
    driver: Driver, install: Callable[..., Driver], namespace: Namespace, version: tuple[int, int]
) -> None:
    if version < (1, 36):
        pytest.skip("DRAPartitionableDevices is off by default before Kubernetes 1.36: the counters would be dropped")
    other = install("other.example.com", ["x0", "x1"])
    publish_overlapping(driver)
    publish_overlapping(other)
    driver.run(namespace, "first")
    namespace.running("first", WAIT)
    driver.run(namespace, "second")
    assert "cannot allocate all claims" in namespace.unschedulable("second")
    other.run(namespace, "other")
    namespace.running("other", WAIT)
    namespace.delete_pod("first")
    namespace.running("second", WAIT)


@pytest.mark.parametrize("name", ["", LONG_NAME], ids=["short name", "long name"])
def test_an_update_side_by_side_leaves_slices_to_the_byte_and_pods_run(
    install: Callable[..., Driver], namespace: Namespace, name: str
) -> None:
    driver = install(name)
    old = driver.started("11111111-2222-3333-4444-555555555555")
    before = driver.slices()
    driver.run(namespace, "first")
    namespace.running("first", WAIT)
    new = driver.started("66666666-7777-8888-9999-000000000000")
    old.stop(5)
    driver.run(namespace, "second")
    namespace.running("second", WAIT)
    namespace.delete_pod("first")
    assert driver.prepared_names() == namespace.allocated("second-claim")
    assert driver.slices() == before
    assert new.liveness() is None


def test_a_failed_update_leaves_the_old_instance_at_work(driver: Driver, namespace: Namespace) -> None:
    driver.started("old")
    before = driver.slices()
    failing = driver.started("new", handler=FaultyHandler())
    failing.stop(0)
    driver.run(namespace)
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) == 1
    assert environment(namespace, "p")["claim_p_claim_gpu"] == "true"
    assert driver.slices() == before
