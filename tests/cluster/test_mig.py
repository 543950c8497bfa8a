"""Partitions on the real cluster: the scheduler counts, the agent makes them, each container sees its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, published
from native.mock import MockNode

Start = Callable[..., MockNode]


@pytest.fixture
def mig_node(cluster: Layout, api: Api) -> Iterator[Start]:
    """Starts an agent on another mock node in place of the usual one; behind the test nothing may be left on it."""
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


def profile_is(profile: str) -> list[str]:
    return [f'device.attributes["gpu.nvidia.com"].profile == "{profile}"']


def claim_mig(namespace: Namespace, name: str, profile: str, **options: object) -> None:
    namespace.claim(name, device_class="mig.nvidia.com", cel=profile_is(profile), **options)


def mig_lines(namespace: Namespace, pod: str, devices: int = 1) -> list[str]:
    """The UUIDs of the MIG devices that ``nvidia-smi -L`` lists in the pod's container."""
    lines = namespace.log_lines(pod, lines=1 + devices)
    assert lines[0].startswith("GPU 0:"), lines
    found = [line.rpartition("UUID: ")[2].rstrip(")") for line in lines[1:]]
    assert all(uuid.startswith("MIG-") for uuid in found), lines
    return sorted(found)


def told(api: Api, namespace: Namespace, claim: str) -> list[str]:
    """The UUIDs that the claim's status says."""

    def said(document: JSON | None) -> bool:
        return document is not None and bool(document.get("status", {}).get("devices"))

    document = api.wait("resourceclaims", namespace.name, claim, said, f"status of claim {claim}")
    assert document is not None
    return sorted(entry["data"]["uuid"] for entry in document["status"]["devices"])


def standing(node: MockNode, number: int = 0) -> list[tuple[str, int]]:
    found = node.instances(node.profile.gpus[number].address)
    return sorted(((one.profile, one.start) for one in found), key=lambda one: one[1])


@pytest.mark.parametrize("seed", [1, 2])
def test_a_mix_of_claims_fills_one_a100_and_leaves_nothing_in_whatever_order_it_goes(
    mig_node: Start, cluster: Layout, api: Api, namespace: Namespace, seed: int
) -> None:
    node = mig_node("dgx-a100", "--mig=dynamic", devices=25 + 7, mig_on=(0,))
    mix = {"a": "3g.20gb", "b": "1g.5gb", "c": "1g.5gb+me", "d": "2g.10gb"}
    for name, profile in mix.items():
        claim_mig(namespace, name, profile)
        namespace.pod(name, claim=name)
        namespace.running(name)
        assert mig_lines(namespace, name) == told(api, namespace, name)
    assert len({told(api, namespace, name)[0] for name in mix}) == 4
    assert sorted(profile for profile, _ in standing(node)) == sorted(mix.values())
    claim_mig(namespace, "late", "3g.20gb")
    namespace.pod("late", claim="late")
    assert "cannot allocate all claims" in namespace.unschedulable("late")
    namespace.delete_pod("late")
    order = sorted(mix)
    random.Random(seed).shuffle(order)
    for name in order:
        namespace.delete_pod(name)
    assert standing(node) == []
    assert list(cluster.cdi.iterdir()) == []


def test_on_an_h200_whole_gpus_and_parts_follow_each_other(mig_node: Start, api: Api, namespace: Namespace) -> None:
    node = mig_node("h200", "--mig=dynamic", devices=8 * 26)
    claim_mig(namespace, "part", "1g.18gb")
    namespace.pod("part", claim="part")
    namespace.running("part")
    assert mig_lines(namespace, "part") == told(api, namespace, "part")
    first = next(iter(namespace.allocated("part"))).partition("-mig-")[0]
    namespace.claim("seven", count=7)
    namespace.pod("seven", claim="seven")
    namespace.running("seven")
    assert first not in namespace.allocated("seven")
    namespace.claim("eighth")
    namespace.pod("eighth", claim="eighth")
    assert "cannot allocate all claims" in namespace.unschedulable("eighth")
    namespace.delete_pod("part")
    namespace.running("eighth", 60)
    assert namespace.allocated("eighth") == [first]
    for name in ("seven", "eighth"):
        namespace.delete_pod(name)
    assert {node.number(gpu.address, "mig_current") for gpu in node.profile.gpus} == {0}


def test_two_partitions_that_must_be_of_one_gpu_are(mig_node: Start, api: Api, namespace: Namespace) -> None:
    mig_node("rtx-pro-6000", "--mig=dynamic", "--device-order=spread", devices=2 * 31)
    claim_mig(namespace, "pair", "2g.48gb", count=2, match="gpu.nvidia.com/parentUUID")
    namespace.pod("p", claim="pair")
    namespace.running("p")
    assert mig_lines(namespace, "p", devices=2) == told(api, namespace, "pair")
    devices = published(api)
    assert len({devices[name]["attributes"]["parentUUID"] for name in namespace.allocated("pair")}) == 1


def test_what_is_asked_for_first_is_given_where_it_is_free_and_else_the_next(
    mig_node: Start, api: Api, namespace: Namespace
) -> None:
    mig_node("rtx-pro-6000", "--mig=dynamic", devices=2 * 31)
    wanted = [("whole", "4g.96gb"), ("half", "2g.48gb"), ("quarter", "1g.24gb")]
    alternatives = [
        {
            "name": name,
            "deviceClassName": "mig.nvidia.com",
            "selectors": [{"cel": {"expression": profile_is(profile)[0]}}],
        }
        for name, profile in wanted
    ]
    claim_mig(namespace, "busy", "1g.24gb")
    namespace.pod("busy", claim="busy")
    namespace.running("busy")
    got = []
    for number in range(3):
        spec = {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}
        api.create("resourceclaims", namespace.name, {"metadata": {"name": f"c{number}"}, "spec": spec})
        namespace.pod(f"p{number}", claim=f"c{number}")
        namespace.running(f"p{number}")
        (device,) = namespace.allocated(f"c{number}")
        got.append(published(api)[device]["attributes"]["profile"])
    assert got == ["4g.96gb", "2g.48gb", "1g.24gb"]


def test_static_partitions_are_handed_out_as_the_administrator_made_them(
    mig_node: Start, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    node = mig_node("dgx-a100", devices=8)
    first = node.profile.gpus[0].address
    node.nvidia_smi("-i", first, "-mig", "1")
    node.nvidia_smi("mig", "-i", first, "-cgi", "3g.20gb,3g.20gb", "-C")
    Agent(cluster, "dgx-a100").wait_published(api, 7 + 2)
    before = standing(node)
    for name in ("a", "b"):
        claim_mig(namespace, name, "3g.20gb")
        namespace.pod(name, claim=name)
        namespace.running(name)
        (device,) = namespace.allocated(name)
        assert mig_lines(namespace, name) == [published(api)[device]["attributes"]["uuid"]]
    claim_mig(namespace, "c", "3g.20gb")
    namespace.pod("c", claim="c")
    assert "cannot allocate all claims" in namespace.unschedulable("c")
    for name in ("a", "b", "c"):
        namespace.delete_pod(name)
    assert standing(node) == before


def test_an_agent_that_is_killed_finds_its_partitions_again(
    mig_node: Start, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    node = mig_node("h200", "--mig=dynamic", devices=8 * 26)
    claim_mig(namespace, "held", "2g.35gb")
    namespace.pod("p", claim="held")
    namespace.running("p")
    seen = mig_lines(namespace, "p")
    agent = Agent(cluster, "h200")
    agent.kill()
    agent.start("--mig=dynamic", "--rescan-seconds=1")
    agent.wait_published(api, 8 * 26)
    assert told(api, namespace, "held") == seen
    namespace.delete_pod("p")
    assert standing(node) == []
