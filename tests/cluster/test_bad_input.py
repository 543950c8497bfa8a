"""What users, administrators and disks do wrong: said where the user looks, and nobody else suffers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from hack.cluster import access, lifecycle
from hack.cluster.agent import Agent
from hack.cluster.api import Api, path
from hack.cluster.layout import DRIVER_NAME, NODE_NAME
from hack.cluster.scene import Container, Namespace, listed, uuids
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc
from native.mock import MockNode

API_VERSION = "resource.nvidia.com/v1beta1"
pytestmark = pytest.mark.usefixtures("errors_expected")


@pytest.fixture
def bystander(agent: Agent, api: Api, namespace: Namespace) -> Iterator[None]:
    """A pod with a GPU that must not notice anything; a second one must still start at the end."""
    namespace.claim("bystander")
    namespace.pod("bystander", claim="bystander")
    namespace.running("bystander")
    yield
    pod = namespace.running("bystander")
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0
    agent.ensure()
    namespace.claim("latecomer")
    namespace.pod("latecomer", claim="latecomer")
    namespace.running("latecomer")
    assert listed(namespace.log_lines("latecomer", lines=1)) == uuids(api, namespace.allocated("latecomer"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"apiVersion": API_VERSION, "kind": "GpuConfg"}, ["GpuConfg", "GpuConfig"]),
        ({"apiVersion": "resource.nvidia.com/v9", "kind": "GpuConfig"}, ["resource.nvidia.com/v9", API_VERSION]),
        ({"apiVersion": API_VERSION, "kind": "GpuConfig", "sharng": {"strategy": "MPS"}}, ["sharng", "sharing"]),
        ({"apiVersion": API_VERSION, "kind": "MigDeviceConfig"}, ["MigDeviceConfig"]),
    ],
    ids=["unknown kind", "unknown version", "misspelt field", "kind of another device type"],
)
@pytest.mark.usefixtures("bystander")
def test_a_configuration_that_cannot_be_used_is_named_in_the_pod_s_event(
    namespace: Namespace, parameters: dict[str, Any], words: list[str]
) -> None:
    namespace.claim("bad", parameters=parameters)
    namespace.pod("p", claim="bad")
    message = namespace.wait_event("p", words[0])
    for word in words:
        assert word in message
    # Mended: a claim's spec cannot be changed, so the user replaces claim and pod under the same names.
    namespace.delete_pod("p")
    namespace.api.delete("resourceclaims", namespace.name, "bad")
    namespace.api.wait("resourceclaims", namespace.name, "bad", lambda found: found is None, "the bad claim gone")
    namespace.claim("bad", parameters={"apiVersion": API_VERSION, "kind": "GpuConfig"})
    namespace.pod("p", claim="bad")
    namespace.running("p")


def test_one_bad_claim_does_not_spoil_the_other_claims_of_its_pod(agent: Agent, namespace: Namespace) -> None:
    namespace.claim("good")
    namespace.claim("bad", parameters={"apiVersion": API_VERSION, "kind": "Nonsense"})
    namespace.pod("p", claims={"a": "good", "b": "bad"}, containers=[Container("main", claims=("a", "b"))])
    message = namespace.wait_event("p", "Nonsense")
    assert "bad" in message
    uid = namespace.api.get("resourceclaims", namespace.name, "good")["metadata"]["uid"]
    agent.wait_message(f"prepared claim {namespace.name}/good (uid {uid})", 0)


def allocate_by_hand(namespace: Namespace, name: str, *, driver: str, pool: str, device: str) -> str:
    """Write an allocation as no scheduler would; return the claim's UID."""
    claim = namespace.claim(name)
    where = path("resourceclaims", namespace.name, name)
    claim["status"] = {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": driver, "pool": pool, "device": device}]},
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE_NAME]}]}
                ]
            },
        }
    }
    namespace.api.call("PUT", f"{where}/status", claim)
    return str(claim["metadata"]["uid"])


@pytest.mark.usefixtures("bystander")
def test_a_device_that_does_not_exist_is_named_in_the_pod_s_event(namespace: Namespace) -> None:
    pool = f"{NODE_NAME}/{DRIVER_NAME}"
    allocate_by_hand(namespace, "ghost", driver=DRIVER_NAME, pool=pool, device="gpu-0000-ee-00-0")
    namespace.pod("p", claim="ghost", node=NODE_NAME)
    assert "gpu-0000-ee-00-0" in namespace.wait_event("p", "gpu-0000-ee-00-0")


@pytest.mark.usefixtures("bystander")
def test_an_allocation_of_another_driver_is_none_of_our_business(agent: Agent, namespace: Namespace) -> None:
    uid = allocate_by_hand(namespace, "nic", driver="nic.example.com", pool="p", device="nic-0")
    namespace.pod("p", claim="nic", node=NODE_NAME)
    namespace.wait_event("p", "nic.example.com")
    answer = call_prepare(agent, namespace.name, "nic", uid)
    assert list(answer.devices) == []
    assert uid not in "".join(file.name for file in agent.layout.cdi.glob("*.json"))


@pytest.mark.usefixtures("bystander")
def test_a_claim_that_was_replaced_under_the_same_name_is_not_prepared_for_the_old_one(
    agent: Agent, namespace: Namespace
) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    gone = "11111111-2222-3333-4444-555555555555"
    answer = call_prepare(agent, namespace.name, "one", gone)
    assert "one" in answer.error
    assert gone in answer.error
    assert namespace.api.get("resourceclaims", namespace.name, "one")["metadata"]["uid"] in answer.error


def delete_slices(api: Api) -> None:
    """Take away what an agent published."""
    for item in api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}"):
        api.delete("resourceslices", None, item["metadata"]["name"])


def call_prepare(agent: Agent, namespace: str, name: str, uid: str) -> dra_v1_pb2.NodePrepareResourceResponse:
    """Ask as the kubelet does."""
    (socket,) = (agent.layout.plugins / DRIVER_NAME).glob("*.sock")
    with grpc.insecure_channel(f"unix://{socket}") as channel:
        request = dra_v1_pb2.NodePrepareResourcesRequest(
            claims=[dra_v1_pb2.Claim(namespace=namespace, name=name, uid=uid)]
        )
        return dra_v1_pb2_grpc.DRAPluginStub(channel).NodePrepareResources(request, timeout=30).claims[uid]


@pytest.mark.usefixtures("bystander")
def test_a_damaged_checkpoint_is_set_aside_and_no_gpu_is_given_twice(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.template("single")
    namespace.pod("old", template="single")
    namespace.running("old")
    held = set(listed(namespace.log_lines("old", lines=1)) + listed(namespace.log_lines("bystander", lines=1)))
    agent.kill()
    checkpoint = agent.state_dir / "checkpoint.json"
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: len(content) // 2] + b"\0" * 64)
    offset = agent.log.stat().st_size
    agent.start()
    agent.wait_message("checkpoint", offset)
    assert list(agent.state_dir.glob("checkpoint.json.damaged-*")) != []
    namespace.pod("new", template="single")
    namespace.running("new")
    assert held.isdisjoint(listed(namespace.log_lines("new", lines=1)))
    namespace.delete_pod("old")


@pytest.fixture
def full_cdi_folder(agent: Agent) -> Iterator[Path]:
    """The CDI folder on a file system without room: a small tmpfs over it, seen by the agent only."""
    folder = agent.layout.cdi
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=755", "full", str(folder)], check=True)
    (folder / "filler.txt").write_bytes(b"x" * 4096)
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


@pytest.mark.bug("B63")
def test_a_full_disk_under_the_cdi_folder_is_told_and_the_pod_runs_once_there_is_room(
    agent: Agent, api: Api, namespace: Namespace, full_cdi_folder: Path
) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one")
    message = namespace.wait_event("p", "No space left on device")
    assert str(full_cdi_folder) in message
    subprocess.run(["umount", str(full_cdi_folder)], check=True)
    namespace.touch_pod("p")
    namespace.running("p")
    assert listed(namespace.log_lines("p", lines=1)) == uuids(api, namespace.allocated("one"))


@pytest.mark.bug("B21")
def test_an_nvml_library_that_is_a_directory_is_named_in_the_log_and_mended_without_a_restart(
    agent: Agent, api: Api, namespace: Namespace, mock_node: MockNode
) -> None:
    agent.stop()
    delete_slices(api)
    kept = mock_node.library.with_name("kept")
    mock_node.library.rename(kept)
    mock_node.library.mkdir()
    try:
        offset = agent.log.stat().st_size
        agent.start("--driver-retry-seconds=0.5")
        entry = agent.wait_message(str(mock_node.library), offset)
        assert "directory" in entry["message"]
        agent.wait_message("the kubelet has registered the plugin", offset)
        assert api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}") == []
    finally:
        mock_node.library.rmdir()
        kept.rename(mock_node.library)
    agent.wait_published(api, 8)
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")


@pytest.fixture
def agent_with_a_token_of_another_node(agent: Agent, api: Api) -> Iterator[Agent]:
    """It says that it is of node-a and has node-b's token: whatever it publishes is refused by the policy."""
    agent.stop()
    delete_slices(api)
    api.create("nodes", None, {"metadata": {"name": "node-b"}})
    access.write_agent_kubeconfig(agent.layout, agent.layout.load(), "node-b", "agent-b")
    agent.start(f"--kubeconfig={agent.layout.kubeconfig('agent-b')}")
    yield agent
    agent.stop()
    api.delete("nodes", None, "node-b")


def test_a_refused_slice_becomes_an_event_on_the_node_that_says_why(
    agent_with_a_token_of_another_node: Agent, api: Api
) -> None:
    def refused(events: dict[str, dict[str, Any]]) -> bool:
        return any(event["reason"] == "ResourceSliceRefused" for event in events.values())

    events = api.wait_all("events", "default", refused, "an event about the refusal", 30, "involvedObject.name=node-a")
    (event,) = [event for event in events.values() if event["reason"] == "ResourceSliceRefused"]
    assert event["type"] == "Warning"
    assert event["involvedObject"]["kind"] == "Node"
    assert "the agent of node 'node-b' may write slices of its own node only" in event["message"]
    assert api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}") == []


def test_the_cluster_still_stands(agent: Agent) -> None:
    assert lifecycle.is_running(agent.layout)
