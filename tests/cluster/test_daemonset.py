"""The agent as users run it: the built image, as the DaemonSet of deploy/, under its own token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from hack import image
from hack.cluster import access
from hack.cluster.agent import Agent
from hack.cluster.api import Api, path
from hack.cluster.daemonset import DAEMONSET, NAME, for_this_cluster, ready_pod, running
from hack.cluster.layout import AGENT_NAMESPACE, DRIVER_NAME, NODE_NAME, Layout
from hack.cluster.reboot import powered_off
from hack.cluster.scene import Container, Namespace, listed, uuids
from native.mock import MockNode
from tests.cluster.test_reboot import NOISE, run, running_again

pytestmark = [pytest.mark.image, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def daemonset(cluster: Layout, api: Api, mock_node: MockNode, loaded_image: None) -> Iterator[dict[str, Any]]:
    """The agent's pod, ready."""
    document = for_this_cluster(yaml.safe_load(DAEMONSET.read_text()), cluster, mock_node, image.TAG)
    with running(cluster, api, document) as pod:
        yield pod


def test_the_daemonset_publishes_and_a_pod_gets_exactly_its_gpu(
    daemonset: dict[str, Any], cluster: Layout, api: Api, namespace: Namespace
) -> None:
    Agent(cluster).wait_published(api, 8)
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    assert listed(namespace.log_lines("p", lines=1)) == uuids(api, namespace.allocated("one"))


def test_its_own_token_may_not_write_a_slice_of_another_node(daemonset: dict[str, Any], cluster: Layout) -> None:
    token = access.kubectl(
        cluster, "create", "token", access.AGENT_ACCOUNT, "-n", AGENT_NAMESPACE,
        "--bound-object-kind=Pod", f"--bound-object-name={daemonset['metadata']['name']}",
    ).strip()  # fmt: skip
    access.write_secret(cluster.token("pod"), token)
    pod = Api(cluster, "pod")
    spec: dict[str, Any] = {"driver": DRIVER_NAME, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}
    for node, expected in (("node-b", {403, 422}), (NODE_NAME, {201})):
        document = {"metadata": {"name": "forged"}, "spec": spec | {"nodeName": node}}
        status, answer = pod.request("POST", path("resourceslices"), document, dryRun="All")
        assert status in expected, answer
    pod.close()


def test_its_sockets_are_the_pod_s_own_and_gone_with_it_and_the_slices_stay(
    daemonset: dict[str, Any], cluster: Layout, api: Api, namespace: Namespace
) -> None:
    uid = daemonset["metadata"]["uid"]
    own_sockets = {socket.name for socket in cluster.registry.glob("*.sock")}
    assert len(own_sockets) == 1, "named by a hash of the UID where the UID makes the path too long"
    before = {
        item["metadata"]["uid"] for item in api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}")
    }
    api.delete("pods", AGENT_NAMESPACE, daemonset["metadata"]["name"])
    api.wait("pods", AGENT_NAMESPACE, daemonset["metadata"]["name"], lambda pod: pod is None, "the pod is gone")
    successor = ready_pod(api)
    assert successor["metadata"]["uid"] != uid
    new_sockets = {socket.name for socket in cluster.registry.glob("*.sock")}
    assert len(new_sockets) == 1
    assert own_sockets.isdisjoint(new_sockets)
    after = {
        item["metadata"]["uid"] for item in api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}")
    }
    assert after == before, "an update of the agent took the slices away"
    namespace.claim("one")
    namespace.pod("p", claim="one", containers=[Container("main", "nvidia-smi -L")])
    namespace.succeeded("p")


def test_a_rolling_update_leaves_the_slices_to_the_byte_and_a_pod_running(
    daemonset: dict[str, Any], api: Api, namespace: Namespace
) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    (old,) = [pod["metadata"]["name"] for pod in api.items("pods", AGENT_NAMESPACE)]
    before = api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}")
    template = {"metadata": {"annotations": {"gpudra.test/revision": "2"}}}
    api.patch("daemonsets", AGENT_NAMESPACE, NAME, {"spec": {"template": template}})
    api.wait("pods", AGENT_NAMESPACE, old, lambda pod: pod is None, "the old agent's pod is gone", 90)
    new = ready_pod(api)
    assert new["metadata"]["annotations"]["gpudra.test/revision"] == "2"
    assert api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}") == before
    assert namespace.running("p")["status"]["containerStatuses"][0]["restartCount"] == 0
    namespace.delete_pod("p")
    namespace.claim("two")
    namespace.pod("q", claim="two", containers=[Container("main", "nvidia-smi -L")])
    namespace.succeeded("q")


@pytest.mark.bug("B72")
def test_after_a_reboot_the_agents_pod_comes_back_and_with_it_the_pods_that_have_gpus(
    daemonset: dict[str, Any],
    cluster: Layout,
    api: Api,
    namespace: Namespace,
    mock_node: MockNode,
    noise: list[str],
) -> None:
    noise += NOISE
    namespace.claim("p")
    before = run(namespace, "p")
    (agent,) = [pod["metadata"]["name"] for pod in api.items("pods", AGENT_NAMESPACE)]
    with powered_off(Agent(cluster)):
        mock_node.reboot()
    restarted = api.wait("pods", AGENT_NAMESPACE, agent, ready_again, f"pod {agent} is ready again", 90)
    assert restarted is not None, "the same pod, not another one in its place"
    running_again(namespace, "p", before)
    assert listed(namespace.log_lines("p", lines=1)) == uuids(api, namespace.allocated("p"))


def ready_again(pod: dict[str, Any] | None) -> bool:
    """Whether a pod's one container was started again and is ready."""
    (status,) = pod["status"].get("containerStatuses") or [{}] if pod else [{}]
    return bool(status.get("restartCount") and status["ready"])


def test_the_image_holds_no_mock_and_no_compiler(daemonset: dict[str, Any], cluster: Layout) -> None:
    name = daemonset["metadata"]["name"]
    pods = access.kubectl(cluster, "get", "pods", "-n", AGENT_NAMESPACE, "-o", "name").split()
    script = (
        "import importlib.util, shutil; "
        "print(importlib.util.find_spec('native.mock'), shutil.which('cc'), shutil.which('pip'), shutil.which('uv'))"
    )
    for pod in pods or [name]:
        said = access.kubectl(cluster, "exec", "-n", AGENT_NAMESPACE, pod, "--", "/opt/gpudra/bin/python", "-c", script)
        assert said.split() == ["None"] * 4
