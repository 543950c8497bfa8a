"""The node loses its power under its pods, and comes back without all that was in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from driver.journal import Record, read
from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api, path
from hack.cluster.layout import DRIVER_NAME, NODE_NAME, Layout
from hack.cluster.reboot import powered_off
from hack.cluster.scene import Container, Namespace, listed, mig_listed, published, uuids
from native.mock import MockNode

FLAGS = ("--mig=dynamic", "--reconcile-seconds=1")
LONG_SLICES = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Long"}},
}
HALF = {
    "apiVersion": "resource.nvidia.com/v1beta1",
    "kind": "GpuConfig",
    "sharing": {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}},
}
NOISE = (
    # The kubelet begins with the pods that it remembers, before the plugin is there; it comes back to them.
    r"Failed to prepare dynamic resources.*DRA driver gpu\.nvidia\.com is not registered",
    # Nobody serves the sockets of before the reboot.
    r"RegisterPlugin error -- dial failed at socket .*gpu\.nvidia\.com",
)


Start = Callable[..., MockNode]


def container_id(pod: JSON) -> str:
    return str(pod["status"]["containerStatuses"][0]["containerID"])


def standing(node: MockNode) -> list[str]:
    """The profiles of the partitions that stand on any of the GPUs."""
    return sorted(one.profile for gpu in node.profile.gpus for one in node.instances(gpu.address))


def run(namespace: Namespace, name: str) -> str:
    """A pod that is started again whenever it ends; gives its container."""
    namespace.pod(name, claim=name, restart="Always")
    return container_id(namespace.running(name))


def running_again(namespace: Namespace, name: str, before: str) -> None:
    """Wait until a pod runs in another container than before the reboot."""

    def anew(pod: JSON | None) -> bool:
        (status,) = pod["status"].get("containerStatuses") or [{}] if pod else [{}]
        return "running" in status.get("state", {}) and status["containerID"] != before

    namespace.touch_pod(name)
    namespace.wait_pod(name, anew, "running again")


def delete_by_force(namespace: Namespace, *names: str) -> None:
    """Delete pods without asking their node, and their claims, and wait until the API server has none of them."""
    for name in names:
        namespace.api.call("DELETE", path("pods", namespace.name, name), {"gracePeriodSeconds": 0})
        namespace.api.delete("resourceclaims", namespace.name, name)
    for name in names:
        namespace.api.wait("resourceclaims", namespace.name, name, lambda found: found is None, f"claim {name} gone")


def wait_prepared(agent: Agent, namespace: Namespace, *claims: str) -> None:
    """Wait until exactly these claims have a CDI file."""
    wanted = {namespace.api.get("resourceclaims", namespace.name, name)["metadata"]["uid"] for name in claims}
    agent.wait(
        lambda: {file.name for file in agent.layout.cdi.iterdir()} == {file_of(uid) for uid in wanted},
        f"CDI files of {', '.join(claims)} and no others",
    )


def file_of(uid: str) -> str:
    return f"{DRIVER_NAME}-claim_{uid}.json"


@pytest.mark.bug("B72")
@pytest.mark.bug("B73")
def test_after_a_reboot_pods_have_their_gpus_and_partitions_again_and_nothing_is_left_of_those_that_are_gone(
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace, noise: list[str]
) -> None:
    node = other_node("h200", *FLAGS, devices=8 * 26)
    agent = Agent(cluster, "h200")
    noise += NOISE
    namespace.claim("one", parameters=LONG_SLICES)
    namespace.claim("two", count=2)
    namespace.claim("gone")
    for name, profile in {"part": "2g.35gb", "small": "1g.18gb", "gone-part": "1g.18gb"}.items():
        cel = f'device.attributes["{DRIVER_NAME}"].profile == "{profile}"'
        namespace.claim(name, device_class="mig.nvidia.com", cel=[cel])
    whole, parts, gone = ("one", "two"), ("part", "small"), ("gone", "gone-part")
    before = {name: run(namespace, name) for name in (*whole, *parts, *gone)}
    devices = {name: namespace.allocated(name) for name in (*whole, *parts)}
    assert len(standing(node)) == 3
    sliced = address_of(api, node, devices["one"][0])
    assert node.number(sliced, "timeslice") > 0

    with powered_off(agent, stale_sockets=False):
        node.reboot()
        assert standing(node) == []
        assert node.number(sliced, "timeslice") == 0
        delete_by_force(namespace, *gone)
    agent.start(*FLAGS, "--rescan-seconds=1")

    for name in (*whole, *parts):
        running_again(namespace, name, before[name])
    assert {name: namespace.allocated(name) for name in devices} == devices
    for name in whole:
        assert listed(namespace.log_lines(name, lines=len(devices[name]))) == uuids(api, devices[name])
    for name in parts:
        assert mig_listed(namespace.log_lines(name, lines=2)) == list(namespace.told(name).values())
    wait_prepared(agent, namespace, *whole, *parts)
    assert standing(node) == ["1g.18gb", "2g.35gb"]
    assert node.number(sliced, "timeslice") > 0
    agent.wait(lambda: agent.metrics()["gpudra_prepared_claims"] == 4, "the claims that are left in the metrics")
    namespace.api.wait_all("events", "default", rebooted, "the kubelet saw another boot id", 60)
    agent.wait(
        lambda: account(agent) >= {("gap", "reboot"), *(("held", name) for name in (*whole, *parts))},
        "the reboot and the claims that outlived it in the journal",
    )
    agent.wait(lambda: account(agent) >= {("given back", name) for name in gone}, "the other claims in the journal")

    for name in (*whole, *parts):
        namespace.delete_pod(name)
    assert standing(node) == []
    assert list(agent.layout.cdi.iterdir()) == []
    assert {node.number(gpu.address, "mig_current") for gpu in node.profile.gpus} == {0}


def account(agent: Agent) -> set[tuple[str, str]]:
    """What the journal says of the present boot, in short."""
    boot_id = (agent.mock_root / "proc/sys/kernel/random/boot_id").read_text().strip()
    words = {
        "claim.recover": "held",
        "claim.prepare": "held",
        "claim.sweep": "given back",
        "claim.unprepare": "given back",
    }
    records = [one for one in read(agent.state_dir / "journal") if isinstance(one, Record) and one.boot == boot_id]
    gaps = {("gap", str(one.data.get("cause"))) for one in records if one.kind == "gap"}
    return gaps | {(words[one.kind], one.claim.name) for one in records if one.kind in words and one.claim is not None}


def address_of(api: Api, node: MockNode, device: str) -> str:
    """The PCI address of a published GPU."""
    uuid = published(api)[device]["attributes"]["uuid"]
    return next(gpu.address for gpu in node.profile.gpus if gpu.uuid == uuid)


def rebooted(events: dict[str, JSON]) -> bool:
    return any(one["reason"] == "Rebooted" and one["involvedObject"]["name"] == NODE_NAME for one in events.values())


@pytest.mark.bug("B37")
@pytest.mark.bug("B72")
def test_a_pod_whose_gpu_did_not_come_back_waits_and_says_so_and_has_it_when_it_does(
    agent: Agent, api: Api, namespace: Namespace, mock_node: MockNode, noise: list[str]
) -> None:
    noise += [*NOISE, r"Failed to prepare dynamic resources.*this node has no device"]
    for name in ("lucky", "unlucky"):
        namespace.claim(name)
    before = {name: run(namespace, name) for name in ("lucky", "unlucky")}
    (device,) = namespace.allocated("unlucky")
    uuid = published(api)[device]["attributes"]["uuid"]
    address = address_of(api, mock_node, device)

    with powered_off(agent):
        mock_node.reboot()
        mock_node.unplug(address)
    agent.start("--rescan-seconds=1")
    try:
        running_again(namespace, "lucky", before["lucky"])
        assert listed(namespace.log_lines("lucky", lines=1)) == uuids(api, namespace.allocated("lucky"))
        namespace.touch_pod("unlucky")
        namespace.wait_event("unlucky", f"this node has no device {device}")
        wait_prepared(agent, namespace, "lucky")
        agent.wait_published(api, 7)
    finally:
        mock_node.plug(address)
    agent.wait_published(api, 8)
    running_again(namespace, "unlucky", before["unlucky"])
    assert listed(namespace.log_lines("unlucky", lines=1)) == [uuid]
    for name in ("lucky", "unlucky"):
        namespace.delete_pod(name)
    assert list(agent.layout.cdi.iterdir()) == []
    agent.stop()


@pytest.mark.bug("B72")
@pytest.mark.bug("B95")
def test_partitions_that_an_administrator_makes_again_at_the_start_are_told_apart_by_their_places(
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace, noise: list[str]
) -> None:
    node = other_node("dgx-a100", devices=8)
    agent = Agent(cluster, "dgx-a100")
    noise += NOISE
    first = node.profile.gpus[0].address
    node.nvidia_smi("-i", first, "-mig", "1")
    node.nvidia_smi("mig", "-i", first, "-cgi", "9:0,9:4", "-C")
    agent.wait_published(api, 7 + 2)
    for name in ("a", "b"):
        cel = f'device.attributes["{DRIVER_NAME}"].profile == "3g.20gb"'
        namespace.claim(name, device_class="mig.nvidia.com", cel=[cel])
    before = {name: run(namespace, name) for name in ("a", "b")}
    devices = {name: namespace.allocated(name) for name in ("a", "b")}
    seen = {name: mig_listed(namespace.log_lines(name, lines=2)) for name in ("a", "b")}

    with powered_off(agent):
        node.reboot()
        # In the other order, and with other UUIDs.
        node.nvidia_smi("mig", "-i", first, "-cgi", "9:4,9:0", "-C")
    agent.start("--rescan-seconds=1")

    agent.wait_published(api, 7 + 2)
    for name in ("a", "b"):
        running_again(namespace, name, before[name])
    after = {name: mig_listed(namespace.log_lines(name, lines=2)) for name in ("a", "b")}
    assert {name: namespace.allocated(name) for name in ("a", "b")} == devices
    assert not {*after["a"], *after["b"]} & {*seen["a"], *seen["b"]}
    assert after == {name: uuids(api, devices[name]) for name in ("a", "b")}
    for name in ("a", "b"):
        namespace.delete_pod(name)
    assert standing(node) == ["3g.20gb", "3g.20gb"]


@pytest.mark.bug("B72")
def test_the_mps_daemon_of_a_claim_is_there_again_for_its_pod(
    agent: Agent, api: Api, namespace: Namespace, mock_node: MockNode, noise: list[str]
) -> None:
    noise += NOISE
    namespace.claim("shared", parameters=HALF)
    script = "nvidia-smi -L; echo get_default_active_thread_percentage | nvidia-cuda-mps-control; exec sleep 2147483647"
    namespace.pod("shared", claim="shared", containers=[Container("main", script)], restart="Always")
    before = container_id(namespace.running("shared"))
    said = namespace.log_lines("shared", lines=2)
    assert said[1] == "50.0"
    address = address_of(api, mock_node, namespace.allocated("shared")[0])
    exclusive = mock_node.number(address, "compute_mode")

    with powered_off(agent):
        mock_node.reboot()
        assert mock_node.number(address, "compute_mode") != exclusive
        assert not agent.mps_dir.exists()
    agent.start("--rescan-seconds=1")
    running_again(namespace, "shared", before)
    assert namespace.log_lines("shared", lines=2) == said
    assert mock_node.number(address, "compute_mode") == exclusive
    namespace.delete_pod("shared")
    assert mock_node.number(address, "compute_mode") != exclusive
    assert [path for path in agent.mps_dir.rglob("*") if path.name == "pipe"] == []
    agent.stop()
