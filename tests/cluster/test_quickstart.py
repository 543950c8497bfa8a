"""The demos of NVIDIA's driver, gpu-test1 to gpu-test6, MPS and consumable shares: their documents, our driver.

``data/quickstart`` holds the documents as that project publishes them (kubernetes-sigs/dra-driver-nvidia-gpu, folder
demo/specs, resource.k8s.io/v1): the same fields and values. Only the image is another one, whose stand-in for the CUDA
sample says which GPUs and which MPS daemon it would use.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hack.cluster import access
from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.layout import Layout
from hack.cluster.manifests import Demo, applied
from hack.cluster.scene import Namespace, listed, mig_listed, published, uuids
from native.mock import MockNode

DATA = Path(__file__).parent / "data" / "quickstart"
Start = Callable[..., MockNode]


def seen(demo: Demo, pod: str, container: str) -> list[str]:
    """The GPUs that a container's ``nvidia-smi -L`` lists, where one is expected."""
    return listed(demo.log_lines(pod, container, lines=1))


def shown(node: MockNode, uuid: str) -> tuple[str, str]:
    """(time slice, compute mode) of a GPU, in nvidia-smi's words."""
    slice_line = node.nvidia_smi("compute-policy", "-i", uuid, "-l")
    mode = node.nvidia_smi("-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader")
    return slice_line.split()[-1], mode.split()[-1]


def sample(demo: Demo, container: str, pod: str) -> tuple[list[str], dict[str, str], str]:
    """What the stand-in for the sample says: GPUs, variables, and what its MPS daemon answered."""
    lines = demo.log_lines(pod, container, lines=30, until="running")
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    rest = [line for line in lines if "=" not in line and not line.startswith("GPU ")]
    return listed(lines), variables, " ".join(rest)


def test_1_two_pods_have_a_gpu_each(agent: Agent, api: Api) -> None:
    with applied(api, DATA / "gpu-test1.yaml") as demo:
        found = {pod: seen(demo, pod, "ctr") for pod in demo.running_pods(2)}
        for pod, gpus in found.items():
            assert gpus == uuids(api, demo.allocated(demo.claim_of(pod)))
        assert len({gpu for gpus in found.values() for gpu in gpus}) == 2


def test_2_two_containers_of_a_pod_share_a_gpu(agent: Agent, api: Api) -> None:
    with applied(api, DATA / "gpu-test2.yaml") as demo:
        demo.running_pods(1)
        expected = uuids(api, demo.allocated(demo.claim_of("pod")))
        assert len(expected) == 1
        assert seen(demo, "pod", "ctr0") == seen(demo, "pod", "ctr1") == expected


def test_3_two_pods_share_a_claim(agent: Agent, api: Api) -> None:
    with applied(api, DATA / "gpu-test3.yaml") as demo:
        assert demo.running_pods(2) == ["pod1", "pod2"]
        expected = uuids(api, demo.allocated("single-gpu"))
        assert len(expected) == 1
        assert seen(demo, "pod1", "ctr") == seen(demo, "pod2", "ctr") == expected


def four_partitions_in_each_of_four_pods(api: Api, node: MockNode) -> None:
    """gpu-test4: a container of each pod sees one partition, and those of a pod are of one GPU."""
    containers = {
        "ctr0": ("mig-1g-5gb-0", "1g.5gb"),
        "ctr1": ("mig-1g-5gb-1", "1g.5gb"),
        "ctr2": ("mig-2g-10gb", "2g.10gb"),
        "ctr3": ("mig-3g-20gb", "3g.20gb"),
    }
    parents: list[set[str]] = []
    partitions: list[str] = []
    with applied(api, DATA / "gpu-test4.yaml") as demo:
        for pod in demo.running_pods(4, 120):
            claim = demo.claim_of(pod)
            devices, told = demo.requests(claim), demo.told(claim)
            for container, (request, profile) in containers.items():
                (device,) = devices[request]
                lines = demo.log_lines(pod, container, lines=2)
                assert mig_listed(lines) == [told[device]], lines
                assert published(api)[device]["attributes"]["profile"] == profile
            parents.append({published(api)[device]["attributes"]["parentUUID"] for device in told})
            partitions += told.values()
    assert all(len(parent) == 1 for parent in parents)
    assert len(set.union(*parents)) == 4
    assert len(set(partitions)) == 16


def test_4_partitions_that_the_administrator_made(other_node: Start, cluster: Layout, api: Api) -> None:
    node = other_node("dgx-a100", devices=8)
    for gpu in node.profile.gpus[:4]:
        node.nvidia_smi("-i", gpu.address, "-mig", "1")
        node.nvidia_smi("mig", "-i", gpu.address, "-cgi", "3g.20gb,2g.10gb,1g.5gb,1g.5gb", "-C")
    Agent(cluster, "dgx-a100").wait_published(api, 4 * 4 + 4)
    four_partitions_in_each_of_four_pods(api, node)
    assert [len(node.instances(gpu.address)) for gpu in node.profile.gpus] == [4] * 4 + [0] * 4


def test_4_partitions_that_are_made_for_the_claims(other_node: Start, cluster: Layout, api: Api) -> None:
    node = other_node("dgx-a100", "--mig=dynamic", devices=4 * 25 + 4, mig_on=(0, 1, 2, 3))
    four_partitions_in_each_of_four_pods(api, node)
    assert [node.instances(gpu.address) for gpu in node.profile.gpus] == [[]] * 8
    assert list(cluster.cdi.iterdir()) == []


def test_5_time_slices_and_mps_in_one_pod(agent: Agent, api: Api, mock_node: MockNode) -> None:
    with applied(api, DATA / "gpu-test5.yaml") as demo:
        demo.running_pods(1)
        devices = demo.requests(demo.claim_of("pod0"))
        (sliced,), (served,) = uuids(api, devices["ts-gpu"]), uuids(api, devices["mps-gpu"])
        for container in ("ts-ctr0", "ts-ctr1"):
            gpus, variables, said = sample(demo, container, "pod0")
            assert (gpus, said) == ([sliced], "running")
            assert not [name for name in variables if name.startswith("CUDA_MPS")]
        for container in ("mps-ctr0", "mps-ctr1"):
            gpus, variables, said = sample(demo, container, "pod0")
            assert (gpus, said) == ([served], "50.0 running")
            assert variables["CUDA_MPS_PIPE_DIRECTORY"] == "/tmp/nvidia-mps"
        assert shown(mock_node, sliced) == ("Long", "Default")
        assert shown(mock_node, served) == ("Default", "Exclusive_Process")
    assert shown(mock_node, sliced) == shown(mock_node, served) == ("Default", "Default")
    assert [folder for folder in agent.mps_dir.rglob("*") if folder.name == "pipe"] == []


def test_6_gpus_chosen_by_their_number_have_long_time_slices(other_node: Start, api: Api) -> None:
    node = other_node("dgx-a100", devices=8)
    numbers = {}
    with applied(api, DATA / "gpu-test6.yaml") as demo:
        for pod in demo.running_pods(4):
            (uuid,) = seen(demo, pod, "ctr")
            (device,) = demo.allocated(demo.claim_of(pod))
            assert uuids(api, [device]) == [uuid]
            numbers[published(api)[device]["attributes"]["index"]] = uuid
        assert numbers.keys() == {0, 2, 4, 6}
        assert [shown(node, gpu.uuid)[0] for gpu in node.profile.gpus] == ["Long", "Default"] * 4
    assert {shown(node, uuid)[0] for uuid in numbers.values()} == {"Default"}


def test_mps_two_containers_share_a_gpu_through_one_daemon(agent: Agent, api: Api, mock_node: MockNode) -> None:
    with applied(api, DATA / "gpu-test-mps.yaml") as demo:
        demo.running_pods(1)
        (uuid,) = uuids(api, demo.allocated(demo.claim_of("test-pod")))
        for container in ("mps-ctr0", "mps-ctr1"):
            gpus, _, said = sample(demo, container, "test-pod")
            assert (gpus, said) == ([uuid], "50.0 running")
        assert shown(mock_node, uuid)[1] == "Exclusive_Process"
    assert shown(mock_node, uuid)[1] == "Default"


SHARES_SINCE = (1, 36)
"""DRAConsumableCapacity is on by default."""


@pytest.mark.parametrize(
    ("file", "shares", "pods", "told"),
    [
        ("integer-sharing.yaml", 4, 4, "GPUDRA_SHARES"),
        ("memory-sharing.yaml", 4, 2, "GPUDRA_MEMORY_LIMIT"),
        ("unlimited-sharing.yaml", 256, 2, "GPUDRA_SHARES"),
    ],
)
def test_consumable_shares_let_the_pods_of_a_deployment_share_gpus(
    other_node: Start, cluster: Layout, api: Api, file: str, shares: int, pods: int, told: str
) -> None:
    if cluster.load().minor_version < SHARES_SINCE:
        pytest.skip("DRAConsumableCapacity is off by default before Kubernetes 1.36")
    other_node("h200", f'--shares={{"*": {shares}}}', devices=8)
    parts = {"GPUDRA_SHARES": f"1/{shares}", "GPUDRA_MEMORY_LIMIT": str(4 << 30)}
    with applied(api, DATA / file) as demo:
        found = {pod: seen(demo, pod, "ctr") for pod in demo.running_pods(pods)}
        for pod, gpus in found.items():
            assert gpus == uuids(api, demo.allocated(demo.claim_of(pod)))
            variables = access.kubectl(cluster, "exec", "-n", demo.name, pod, "--", "env").splitlines()
            assert [line.partition("=")[2] for line in variables if line.startswith(f"{told}_")] == [parts[told]]
        # Not all need be on one: kube-scheduler counts the shares of a claim twice while it writes the allocation down.
        assert len({gpu for gpus in found.values() for gpu in gpus}) < pods
        assert len({share_id(api, demo, pod) for pod in found}) == pods


def test_shares_are_given_until_none_is_left(
    other_node: Start, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    if cluster.load().minor_version < SHARES_SINCE:
        pytest.skip("DRAConsumableCapacity is off by default before Kubernetes 1.36")
    node = other_node("h200", "--allow-devices=index=0", '--shares={"*": 4}', devices=1)
    namespace.template("share")
    names = [f"p{number}" for number in range(5)]
    for name in names[:4]:
        namespace.pod(name, template="share")
        namespace.running(name)
        assert listed(namespace.log_lines(name, lines=1)) == [node.profile.gpus[0].uuid]
    namespace.pod("p4", template="share")
    assert "cannot allocate all claims" in namespace.unschedulable("p4")
    namespace.delete_pod("p2")
    namespace.running("p4", 60)
    assert len({share_id(api, namespace, name) for name in ("p0", "p1", "p3", "p4")}) == 4


def share_id(api: Api, namespace: Namespace, pod: str) -> str:
    """The id of a pod's share, which the allocation and the claim's status say alike."""
    claim = namespace.claim_of(pod)
    namespace.told(claim)
    status = api.get("resourceclaims", namespace.name, claim)["status"]
    (result,) = status["allocation"]["devices"]["results"]
    assert [entry["shareID"] for entry in status["devices"]] == [result["shareID"]]
    return str(result["shareID"])
