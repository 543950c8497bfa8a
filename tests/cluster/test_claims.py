"""Claims as users write them, from the scheduler's decision to what a container sees."""

from __future__ import annotations

from collections import Counter

import pytest

from hack.cluster.agent import Agent
from hack.cluster.api import Api, path
from hack.cluster.scene import Container, Namespace, listed, phase, published, uuids

SLEEP = Container("main", "exec sleep 2147483647")


def test_a_pod_with_one_gpu_sees_exactly_the_gpu_that_was_allocated(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    lines = namespace.log_lines("p", lines=1)
    assert listed(lines) == uuids(api, namespace.allocated("one")), lines
    assert lines[0].startswith("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-")


def test_the_container_has_the_device_files_of_its_own_gpu_only(agent: Agent, namespace: Namespace) -> None:
    namespace.claim("one")
    script = "ls /dev; echo visible=$NVIDIA_VISIBLE_DEVICES; env | grep -c ^GPUDRA_"
    namespace.pod("p", claim="one", containers=[Container("main", script)])
    namespace.succeeded("p")
    lines = namespace.log_lines("p")
    gpus = [line for line in lines if line.startswith("nvidia") and line.removeprefix("nvidia").isdigit()]
    assert len(gpus) == 1
    assert {"nvidiactl", "nvidia-uvm"} <= set(lines)
    assert "visible=void" in lines


def test_a_container_without_the_claim_sees_no_gpu(agent: Agent, namespace: Namespace) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one", containers=[
        Container("main", "nvidia-smi -L"), Container("aside", "ls /dev | grep -c nvidia || true", claims=()),
    ])  # fmt: skip
    namespace.succeeded("p")
    assert namespace.log_lines("p", "aside") == ["0"]


def test_two_pods_get_different_gpus(agent: Agent, api: Api, namespace: Namespace) -> None:
    namespace.template("single")
    for name in ("a", "b"):
        namespace.pod(name, template="single")
    seen = []
    for name in ("a", "b"):
        namespace.running(name)
        uuid = listed(namespace.log_lines(name, lines=1))
        assert uuid == uuids(api, namespace.allocated(namespace.claim_of(name)))
        seen += uuid
    assert len(set(seen)) == 2


def test_of_nine_pods_on_eight_gpus_one_waits_until_another_is_gone(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.template("single")
    names = [f"p{number}" for number in range(9)]
    for name in names:
        namespace.pod(name, template="single")

    def eight_run(pods: dict[str, dict[str, object]]) -> bool:
        return Counter(phase(pod) for pod in pods.values()) == {"Running": 8, "Pending": 1}

    pods = api.wait_all("pods", namespace.name, eight_run, "eight of nine pods run", 90)
    waiting = next(name for name in names if phase(pods[name]) == "Pending")
    assert "cannot allocate all claims" in namespace.unschedulable(waiting)
    running = [name for name in names if name != waiting]
    seen = [uuid for name in running for uuid in listed(namespace.log_lines(name, lines=1))]
    assert len(set(seen)) == 8
    namespace.delete_pod(running[0])
    namespace.running(waiting)
    assert listed(namespace.log_lines(waiting, lines=1)) == [seen[0]]


def test_a_pod_deleted_by_force_hands_its_gpus_on_without_a_failed_prepare(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.template("all", count=8)
    namespace.template("single")
    namespace.pod("first", template="all")
    namespace.running("first")
    namespace.pod("next", template="single")
    assert "cannot allocate all claims" in namespace.unschedulable("next")
    # The scheduler hands a GPU out as soon as the pod is gone from the API; the kubelet unprepares the old claim later.
    # It would look at a pod whose Prepare was refused again only after more than a minute.
    api.call("DELETE", path("pods", namespace.name, "first"), {"gracePeriodSeconds": 0})
    namespace.running("next", 30)
    assert [event for event in namespace.events("next") if "FailedPrepareDynamicResources" in event] == []
    assert listed(namespace.log_lines("next", lines=1)) == uuids(api, namespace.allocated(namespace.claim_of("next")))


@pytest.mark.parametrize("attribute", ["resource.kubernetes.io/numaNode", "gpu.nvidia.com/nvlinkGroup"])
def test_four_gpus_that_must_share_an_attribute_share_it(
    agent: Agent, api: Api, namespace: Namespace, attribute: str
) -> None:
    namespace.claim("four", count=4, match=attribute)
    namespace.pod("p", claim="four")
    namespace.running("p")
    names = namespace.allocated("four")
    assert listed(namespace.log_lines("p", lines=4)) == uuids(api, names)
    devices = published(api)
    key = attribute.removeprefix("gpu.nvidia.com/")
    assert len({devices[name]["attributes"][key] for name in names}) == 1


def test_two_gpus_with_the_same_pcie_root_are_the_pairs_of_the_machine(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.template("pair", count=2, match="resource.kubernetes.io/pcieRoot")
    pairs = []
    for name in ("a", "b"):
        namespace.pod(name, template="pair")
        namespace.running(name)
        pairs.append(sorted(namespace.allocated(namespace.claim_of(name))))
    assert sorted(pairs) == [["gpu-0000-52-00-0", "gpu-0000-61-00-0"], ["gpu-0000-d1-00-0", "gpu-0000-df-00-0"]]
    namespace.pod("c", template="pair")
    assert "cannot allocate all claims" in namespace.unschedulable("c")


def test_a_selector_on_product_name_and_memory_chooses(agent: Agent, namespace: Namespace) -> None:
    gpu = "device.attributes['gpu.nvidia.com']"
    memory = "device.capacity['gpu.nvidia.com'].memory"
    namespace.claim(
        "big", cel=[f"{gpu}.productName == 'NVIDIA H100 80GB HBM3' && {memory}.isGreaterThan(quantity('79Gi'))"]
    )
    namespace.pod("p", claim="big")
    namespace.running("p")
    namespace.claim("bigger", cel=[f"{memory}.isGreaterThan(quantity('80Gi'))"])
    namespace.pod("q", claim="bigger")
    assert "cannot allocate all claims" in namespace.unschedulable("q")


def test_a_claim_that_cannot_be_met_stays_pending_and_the_agent_stays_quiet(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    offset = agent.log.stat().st_size
    audited = agent.layout.audit_log.stat().st_size
    namespace.claim("five", count=5, match="resource.kubernetes.io/numaNode")
    namespace.pod("p", claim="five")
    assert "cannot allocate all claims" in namespace.unschedulable("p")
    # A second pod runs after it: whatever the first would have caused at the agent has happened by then.
    namespace.claim("one")
    namespace.pod("after", claim="one")
    namespace.running("after")
    assert namespace.allocated("five") == []
    assert [entry for entry in agent.log_entries(offset) if entry["level"] not in ("info", "debug")] == []
    requests = agent.layout.audit_log.read_bytes()[audited:].decode()
    assert '"name":"five"' not in requests


def test_two_containers_share_a_claim(agent: Agent, api: Api, namespace: Namespace) -> None:
    namespace.claim("shared")
    namespace.pod("p", claim="shared", containers=[Container("left"), Container("right")])
    namespace.running("p")
    expected = uuids(api, namespace.allocated("shared"))
    assert listed(namespace.log_lines("p", "left", lines=1)) == expected
    assert listed(namespace.log_lines("p", "right", lines=1)) == expected


def test_two_pods_share_a_claim_and_the_second_keeps_it_when_the_first_is_gone(
    agent: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.claim("shared")
    for name in ("first", "second"):
        namespace.pod(name, claim="shared")
        namespace.running(name)
    expected = uuids(api, namespace.allocated("shared"))
    assert listed(namespace.log_lines("first", lines=1)) == listed(namespace.log_lines("second", lines=1)) == expected
    namespace.delete_pod("first")
    assert claim_files(agent), "the claim was unprepared under a running pod"
    namespace.pod("third", claim="shared")
    namespace.running("third")
    assert listed(namespace.log_lines("third", lines=1)) == expected


def test_an_init_container_uses_the_claim_before_the_others(agent: Agent, api: Api, namespace: Namespace) -> None:
    namespace.claim("one")
    namespace.pod("p", claim="one", init=[Container("first", "nvidia-smi -L")], containers=[SLEEP])
    namespace.running("p")
    assert listed(namespace.log_lines("p", "first")) == uuids(api, namespace.allocated("one"))


def test_a_pod_may_hold_a_claim_that_no_container_uses(agent: Agent, namespace: Namespace) -> None:
    namespace.claim("idle")
    namespace.pod("p", claim="idle", containers=[Container("main", "ls /dev; exec sleep 2147483647", claims=())])
    namespace.running("p")
    assert len(namespace.allocated("idle")) == 1
    assert len(claim_files(agent)) == 1


def test_the_end_of_a_pod_takes_its_cdi_file_away(agent: Agent, namespace: Namespace) -> None:
    namespace.template("single")
    namespace.pod("p", template="single")
    namespace.running("p")
    assert len(claim_files(agent)) == 1
    namespace.delete_pod("p")
    assert claim_files(agent) == []


def test_two_claims_of_one_pod_are_both_there(agent: Agent, api: Api, namespace: Namespace) -> None:
    namespace.claim("a")
    namespace.claim("b", count=2)
    namespace.pod("p", claims={"x": "a", "y": "b"}, containers=[Container("main", claims=("x", "y"))])
    namespace.running("p")
    names = namespace.allocated("a") + namespace.allocated("b")
    assert listed(namespace.log_lines("p", lines=3)) == uuids(api, names)


def claim_files(agent: Agent) -> list[str]:
    """The CDI files of claims."""
    return sorted(path.name for path in agent.layout.cdi.glob("*.json"))
