"""Partitions on the real cluster: the scheduler counts, the agent makes them, each container sees its own."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace, listed, mig_listed, published
from native.mock import MockNode

Start = Callable[..., MockNode]


def profile_is(profile: str) -> list[str]:
    return [f'device.attributes["gpu.nvidia.com"].profile == "{profile}"']


def alternative(name: str, profile: str) -> JSON:
    """An alternative of a prioritised list."""
    selectors = [{"cel": {"expression": profile_is(profile)[0]}}]
    return {"name": name, "deviceClassName": "mig.nvidia.com", "selectors": selectors}


SHARES = {"name": "shares", "deviceClassName": "gpu.nvidia.com", "capacity": {"requests": {"shares": "3"}}}
SEVEN_ELSE = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "firstAvailable": [alternative("seven", "7g.141gb"), alternative("three", "3g.71gb"), SHARES],
            }
        ]
    }
}


def claim_mig(namespace: Namespace, name: str, profile: str, **options: object) -> None:
    namespace.claim(name, device_class="mig.nvidia.com", cel=profile_is(profile), **options)


def mig_lines(namespace: Namespace, pod: str, devices: int = 1) -> list[str]:
    """The UUIDs of the MIG devices that ``nvidia-smi -L`` lists in the pod's container."""
    lines = namespace.log_lines(pod, lines=1 + devices)
    assert lines[0].startswith("GPU 0:"), lines
    found = mig_listed(lines)
    assert len(found) == devices, lines
    return found


def told(namespace: Namespace, claim: str) -> list[str]:
    """The UUIDs that the claim's status says."""
    return sorted(namespace.told(claim).values())


def standing(node: MockNode, number: int = 0) -> list[tuple[str, int]]:
    found = node.instances(node.profile.gpus[number].address)
    return sorted(((one.profile, one.start) for one in found), key=lambda one: one[1])


MIXES = {
    "dgx-a100": ("3g.20gb", "1g.5gb", "1g.5gb+me", "2g.10gb"),
    "h200": ("3g.71gb", "1g.18gb", "1g.18gb+me", "2g.35gb"),
}
"""Profiles that fill a board, in the order in which they are claimed."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("profile", "mode"), [("dgx-a100", 1), ("h200", 0)])
def test_a_mix_of_claims_fills_one_board_and_leaves_nothing_in_whatever_order_it_goes(
    other_node: Start, cluster: Layout, namespace: Namespace, profile: str, mode: int, seed: int
) -> None:
    # On an A100 MIG mode is the administrator's; on an H200 the driver switches it on and off again.
    devices = {"dgx-a100": 25, "h200": 26}[profile]
    node = other_node(profile, "--mig=dynamic", "--allow-devices=index=0", devices=devices, mig_on=(0,) if mode else ())
    address = node.profile.gpus[0].address
    mix = dict(zip("abcd", MIXES[profile], strict=True))
    for name, wanted in mix.items():
        claim_mig(namespace, name, wanted)
        namespace.pod(name, claim=name)
        namespace.running(name)
        assert mig_lines(namespace, name) == told(namespace, name)
    assert len({told(namespace, name)[0] for name in mix}) == 4
    assert sorted(found for found, _ in standing(node)) == sorted(mix.values())
    assert node.number(address, "mig_current") == 1
    claim_mig(namespace, "late", mix["a"])
    namespace.pod("late", claim="late")
    assert "cannot allocate all claims" in namespace.unschedulable("late")
    namespace.delete_pod("late")
    order = sorted(mix)
    random.Random(seed).shuffle(order)
    for name in order:
        namespace.delete_pod(name)
    assert standing(node) == []
    assert node.number(address, "mig_current") == mode
    assert list(cluster.cdi.iterdir()) == []


def test_seven_slices_if_there_are_else_three_else_shares_of_a_whole_gpu(
    other_node: Start, api: Api, namespace: Namespace
) -> None:
    """Of three GPUs one is empty, one is in parts, and one has shares left."""
    other_node(
        "h200", "--mig=dynamic", "--allow-devices=index=0,index=1,index=2", '--shares={"index=2": 4}', devices=78
    )
    namespace.claim("third", cel=['device.attributes["gpu.nvidia.com"].index == 2'])
    claim_mig(namespace, "part", "1g.18gb")
    for name in ("third", "part"):
        namespace.pod(name, claim=name)
        namespace.running(name)
    given = {}
    for name in ("c0", "c1", "c2"):
        api.create("resourceclaims", namespace.name, {"metadata": {"name": name}, "spec": SEVEN_ELSE})
        namespace.pod(name, claim=name)
        namespace.running(name)
        (result,) = api.get("resourceclaims", namespace.name, name)["status"]["allocation"]["devices"]["results"]
        given[name] = result["request"]
        if result["request"] == "gpu/shares":
            assert result["consumedCapacity"]["shares"] == "3"
            assert listed(namespace.log_lines(name, lines=1)) == listed(namespace.log_lines("third", lines=1))
        else:
            assert mig_lines(namespace, name) == told(namespace, name)
    assert given == {"c0": "gpu/seven", "c1": "gpu/three", "c2": "gpu/shares"}
    api.create("resourceclaims", namespace.name, {"metadata": {"name": "c3"}, "spec": SEVEN_ELSE})
    namespace.pod("c3", claim="c3")
    assert "cannot allocate all claims" in namespace.unschedulable("c3")


def test_on_an_h200_whole_gpus_and_parts_follow_each_other(other_node: Start, api: Api, namespace: Namespace) -> None:
    node = other_node("h200", "--mig=dynamic", devices=8 * 26)
    claim_mig(namespace, "part", "1g.18gb")
    namespace.pod("part", claim="part")
    namespace.running("part")
    assert mig_lines(namespace, "part") == told(namespace, "part")
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


def test_two_partitions_that_must_be_of_one_gpu_are(other_node: Start, api: Api, namespace: Namespace) -> None:
    other_node("rtx-pro-6000", "--mig=dynamic", "--device-order=spread", devices=2 * 31)
    claim_mig(namespace, "pair", "2g.48gb", count=2, match="gpu.nvidia.com/parentUUID")
    namespace.pod("p", claim="pair")
    namespace.running("p")
    assert mig_lines(namespace, "p", devices=2) == told(namespace, "pair")
    devices = published(api)
    assert len({devices[name]["attributes"]["parentUUID"] for name in namespace.allocated("pair")}) == 1


def test_what_is_asked_for_first_is_given_where_it_is_free_and_else_the_next(
    other_node: Start, api: Api, namespace: Namespace
) -> None:
    other_node("rtx-pro-6000", "--mig=dynamic", devices=2 * 31)
    wanted = [("whole", "4g.96gb"), ("half", "2g.48gb"), ("quarter", "1g.24gb")]
    alternatives = [alternative(name, profile) for name, profile in wanted]
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
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    node = other_node("dgx-a100", devices=8)
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
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    node = other_node("h200", "--mig=dynamic", devices=8 * 26)
    claim_mig(namespace, "held", "2g.35gb")
    namespace.pod("p", claim="held")
    namespace.running("p")
    seen = mig_lines(namespace, "p")
    agent = Agent(cluster, "h200")
    agent.kill()
    agent.start("--mig=dynamic", "--rescan-seconds=1")
    agent.wait_published(api, 8 * 26)
    assert told(namespace, "held") == seen
    namespace.delete_pod("p")
    assert standing(node) == []
