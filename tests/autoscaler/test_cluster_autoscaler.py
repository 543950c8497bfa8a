"""Cluster Autoscaler: what a node publishes decides what is bought; a bad sample misleads, as the lint foretells."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

from driver.analysis.shape import instantiate, read
from hack.autoscaler.fakenodes import FakeNodes, gpudra
from hack.autoscaler.running import GROUP_LABEL, PATIENCE, Running
from hack.autoscaler.scene import answered, claims, findings, placed, pod, pod_with
from hack.cluster.api import Api
from hack.cluster.scene import Namespace
from tests.support.shapeclaims import ADMINISTRATORS, KINDS, corpus, decided

pytestmark = pytest.mark.timeout(300)  # an autoscaler may take its minute, twice in some tests

JSON = dict[str, Any]
Start = Callable[[], AbstractContextManager[Running]]
NUMA = "resource.kubernetes.io/numaNode"
REFUSED = "pod didn't trigger scale-up"
BOUGHT = "good 1->2"


def group(name: str) -> JSON:
    """Selects the nodes of a group."""
    return {GROUP_LABEL: name}


def fill(namespace: Namespace) -> None:
    """Take every GPU of both samples."""
    for name, count in (("good", 8), ("bad", 4)):
        pod(namespace, f"fill-{name}", count=count, selector=group(name))
        placed(namespace, f"fill-{name}")


def sizes(nodes: FakeNodes) -> list[int]:
    """How many nodes the two groups have."""
    return [len(nodes.names(kwok_nodegroup=name)) for name in ("good", "bad")]


def test_the_group_whose_topology_fits_is_scaled_up_and_the_pod_is_placed_there(
    namespace: Namespace, samples: FakeNodes, shapes: dict[str, str], autoscaler: Start
) -> None:
    fill(namespace)
    pod(namespace, "train", count=4, match=NUMA)
    assert "cannot allocate all claims" in namespace.unschedulable("train")

    with autoscaler():
        message = namespace.wait_event("train", BOUGHT, PATIENCE)

        assert "bad" not in message
        assert sizes(samples) == [2, 1]
        sample, new = samples.names(kwok_nodegroup="good")
        assert sample == "sample-good"
        samples.publish(new, shapes["good"])  # the new node's agent speaks
        assert placed(namespace, "train") == new
        assert not findings(*samples.slices(new)) - {"A20"}


def test_a_claim_that_no_group_can_meet_buys_nothing(
    namespace: Namespace, samples: FakeNodes, autoscaler: Start
) -> None:
    pod(namespace, "too-much", count=5, match=NUMA)  # five GPUs on one NUMA node exist nowhere

    with autoscaler():
        namespace.wait_event("too-much", REFUSED, PATIENCE)

        assert sizes(samples) == [1, 1]


def taint(body: JSON) -> None:
    """Every GPU of the slice has had an XID."""
    for device in body["spec"].get("devices", []):
        device["taints"] = [{"key": "gpu.nvidia.com/xid", "value": "79", "effect": "NoSchedule"}]


def announce_more(body: JSON) -> None:
    """A slice of the pool has not come yet."""
    body["spec"]["pool"]["resourceSliceCount"] += 1


@pytest.mark.parametrize(("harm", "rule"), [(taint, "A08"), (announce_more, "A04")])
def test_a_bad_sample_keeps_the_right_node_from_being_bought_until_it_is_mended(
    namespace: Namespace, samples: FakeNodes, autoscaler: Start, harm: Callable[[JSON], None], rule: str
) -> None:
    fill(namespace)
    sound = samples.slices("sample-good")
    assert rule not in findings(*sound)
    for body in copy.deepcopy(sound):
        harm(body)
        samples.replace(body)
    assert rule in findings(*samples.slices("sample-good"))  # the lint tells it before anybody waits
    pod(namespace, "train", count=4, match=NUMA)

    with autoscaler():
        namespace.wait_event("train", REFUSED, PATIENCE)
        assert sizes(samples) == [1, 1]

        for body in samples.slices("sample-good"):
            spec = next(each["spec"] for each in sound if each["metadata"]["name"] == body["metadata"]["name"])
            samples.replace({**body, "spec": spec})
        assert rule not in findings(*samples.slices("sample-good"))
        namespace.wait_event("train", BOUGHT, PATIENCE)


def test_a_claim_for_the_samples_own_uuid_buys_a_node_that_can_never_serve_it(
    namespace: Namespace, samples: FakeNodes, shapes: dict[str, str], autoscaler: Start
) -> None:
    fill(namespace)
    device = next(each for body in samples.slices("sample-good") for each in body["spec"].get("devices", ()))
    selector = f"device.attributes['gpu.nvidia.com'].uuid == '{device['attributes']['uuid']['string']}'"
    pod(namespace, "nostalgic", cel=[selector])
    assert "A09" in findings(*claims(namespace))

    with autoscaler():
        namespace.wait_event("nostalgic", BOUGHT, PATIENCE)
        new = samples.names(kwok_nodegroup="good")[-1]
        samples.publish(new, shapes["good"])

        assert "cannot allocate all claims" in namespace.unschedulable("nostalgic")
        assert new != "sample-good"


def test_a_pods_own_claim_on_a_pool_that_is_not_the_nodes_stops_all_scaling(
    namespace: Namespace, samples: FakeNodes, api: Api, autoscaler: Start, shared_pool: JSON
) -> None:
    pod(namespace, "fabric", template=True, cel=["device.attributes['gpu.nvidia.com'].productName == 'Fabric'"],
        selector=group("bad"))  # fmt: skip
    assert placed(namespace, "fabric") == "sample-bad"
    fabric = api.get("pods", namespace.name, "fabric") | {"apiVersion": "v1", "kind": "Pod"}
    assert "A16" in findings(*samples.slices("sample-bad"), *claims(namespace), fabric, shared_pool)
    pod(namespace, "train", count=4, match=NUMA, selector=group("good"))
    pod(namespace, "more", count=8, selector=group("good"))  # the sound group would be scaled up for one of them

    with autoscaler() as running:
        line = running.said("Failed to recompute template node infos")

        assert "can't be sanitized" in line
        assert sizes(samples) == [1, 1]
        assert not [event for event in namespace.events("more") if "cale" in event.split(":")[0]]


@pytest.fixture
def shared_pool(api: Api) -> Iterator[JSON]:
    """A pool that all nodes reach, with one device."""
    value = {"string": "Fabric"}
    spec = {
        "driver": "gpu.nvidia.com",
        "allNodes": True,
        "pool": {"name": "fabric", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "channel-0", "attributes": {"productName": value}}],
    }
    made = api.create("resourceslices", None, {"metadata": {"name": "fabric"}, "spec": spec})
    yield json.loads(json.dumps(made)) | {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
    api.delete("resourceslices", None, "fabric")


def test_a_group_without_nodes_is_never_bought_for_claims_because_nobody_tells_what_it_publishes(
    namespace: Namespace, nodes: FakeNodes, autoscaler: Start
) -> None:
    pod(namespace, "first", count=1)

    with autoscaler():
        namespace.wait_event("first", REFUSED, PATIENCE)

        assert sizes(nodes) == [0, 0]


def test_a_rule_that_taints_is_not_seen_so_that_nothing_is_bought_for_the_pod_that_it_keeps_out(
    namespace: Namespace, samples: FakeNodes, api: Api, autoscaler: Start
) -> None:
    rule = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceTaintRule",
        "metadata": {"name": "sick"},
        "spec": {
            "deviceSelector": {"pool": "sample-good/gpu.nvidia.com"},
            "taint": {"key": "example.com/sick", "value": "yes", "effect": "NoSchedule"},
        },
    }
    rules = "/apis/resource.k8s.io/v1/devicetaintrules"
    api.call("POST", rules, rule)
    try:
        assert "A19" in findings(rule)
        pod(namespace, "train", count=4, match=NUMA)
        assert "cannot allocate all claims" in namespace.unschedulable("train")

        with autoscaler() as running:
            running.said("1 pods marked as unschedulable can be scheduled")  # it believes in the sick GPUs
            assert sizes(samples) == [1, 1]
    finally:
        api.call("DELETE", f"{rules}/sick")
    assert placed(namespace, "train") == "sample-good"  # they were all that was missing


@pytest.mark.parametrize(("profile", "mig"), [("dgx-h100", "static"), ("h200", "dynamic")])
def test_for_every_kind_of_claim_a_node_is_bought_where_the_port_says_that_it_will_serve(
    namespace: Namespace, nodes: FakeNodes, autoscaler: Start, profile: str, mig: str
) -> None:
    shape = gpudra("shape", "export", "--mock-profile", profile, "--mig", mig)
    nodes.add("sample-good", group("good"))
    nodes.publish("sample-good", shape)
    pod_with(namespace, "fill", corpus()["all"]["spec"])
    assert placed(namespace, "fill") == "sample-good"
    expected = decided(instantiate(read(json.loads(shape), KINDS), "imaginary"), "imaginary")
    titles = {f"claim-{number}": title for number, title in enumerate(corpus()) if title not in ADMINISTRATORS}
    for name, title in titles.items():
        pod_with(namespace, name, corpus()[title]["spec"])

    with autoscaler():
        found = answered(namespace, list(titles), {"good 1->": True, REFUSED: False}, PATIENCE)

    assert {titles[name]: bought for name, bought in found.items()} == {
        title: expected[title] for title in titles.values()
    }
