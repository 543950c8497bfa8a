"""Agents and kubelets that end and come back, in every order; slices that somebody else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hack.cluster import lifecycle
from hack.cluster.agent import REGISTERED, Agent, device_count
from hack.cluster.api import Api
from hack.cluster.layout import DRIVER_NAME, Layout
from hack.cluster.scene import Namespace, listed, uuids
from native.mock import MockNode

OURS = f"spec.driver={DRIVER_NAME}"


def slices(api: Api) -> dict[str, dict[str, Any]]:
    """The driver's slices by UID."""
    return {item["metadata"]["uid"]: item for item in api.items("resourceslices", fieldSelector=OURS)}


def claim_files(agent: Agent) -> list[str]:
    return sorted(path.name for path in agent.layout.cdi.glob("*.json"))


@pytest.fixture
def stopped(agent: Agent, mock_node: MockNode) -> Iterator[Agent]:
    """The agent, ended; whatever a test makes of it, the next one finds a sound machine and starts its own."""
    agent.stop()
    yield agent
    agent.stop()
    mock_node.set_driver_loaded(True)


@pytest.mark.parametrize("end", [Agent.kill, Agent.stop], ids=["SIGKILL", "SIGTERM"])
def test_pods_and_slices_outlive_the_agent_and_the_next_one_goes_on(
    agent: Agent, api: Api, namespace: Namespace, end: Callable[[Agent], None]
) -> None:
    namespace.template("single")
    namespace.pod("old", template="single")
    namespace.running("old")
    before = slices(api)
    end(agent)
    assert slices(api) == before
    agent.start()
    namespace.pod("new", template="single")
    namespace.running("new")
    assert slices(api).keys() == before.keys()
    assert namespace.running("old")["status"]["containerStatuses"][0]["restartCount"] == 0
    first, second = (listed(namespace.log_lines(name, lines=1)) for name in ("old", "new"))
    assert first != second
    assert len(claim_files(agent)) == 2
    namespace.delete_pod("old")
    assert len(claim_files(agent)) == 1


def test_a_pod_that_ends_while_no_agent_runs_is_unprepared_by_the_next_one(
    agent: Agent, namespace: Namespace, errors_expected: None
) -> None:
    namespace.template("single")
    namespace.pod("p", template="single")
    namespace.running("p")
    agent.kill()
    namespace.api.delete("pods", namespace.name, "p")
    assert len(claim_files(agent)) == 1
    agent.start()
    namespace.wait_pod("p", lambda pod: pod is None, "gone", 90)
    assert claim_files(agent) == []


def test_a_claim_whose_agent_was_killed_before_it_runs_as_soon_as_there_is_one(
    agent: Agent, api: Api, namespace: Namespace, errors_expected: None
) -> None:
    agent.kill()
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.wait_event("p", "Failed to prepare dynamic resources")
    agent.start()
    namespace.touch_pod("p")
    namespace.running("p")
    assert listed(namespace.log_lines("p", lines=1)) == uuids(api, namespace.allocated("one"))


def test_slices_come_back_after_a_restart_of_the_kubelet(
    cluster: Layout, agent: Agent, api: Api, namespace: Namespace, errors_expected: None
) -> None:
    namespace.template("single")
    namespace.pod("old", template="single")
    namespace.running("old")
    before = set(slices(api))
    lifecycle.stop_component(cluster, "kubelet")
    lifecycle.start_component(cluster, "kubelet")  # it deletes the slices of its node at its start

    def new_and_whole(found: dict[str, dict[str, Any]]) -> bool:
        fresh = {item["metadata"]["uid"] for item in found.values()}.isdisjoint(before)
        return fresh and device_count(found.values()) == 8

    api.wait_all("resourceslices", None, new_and_whole, "new slices with all devices", 60, OURS)
    namespace.pod("new", template="single")
    namespace.running("new")
    assert namespace.running("old")["status"]["containerStatuses"][0]["restartCount"] == 0
    namespace.delete_pod("old")
    assert len(claim_files(agent)) == 1


def test_a_slice_that_somebody_deletes_is_back(agent: Agent, api: Api) -> None:
    before = slices(api)
    for item in before.values():
        api.delete("resourceslices", None, item["metadata"]["name"])

    def back(found: dict[str, dict[str, Any]]) -> bool:
        return device_count(found.values()) == 8 and not {i["metadata"]["uid"] for i in found.values()} & before.keys()

    api.wait_all("resourceslices", None, back, "the slices are back", 15, OURS)


def test_a_slice_that_somebody_edits_is_put_right(agent: Agent, api: Api) -> None:
    item = next(iter(slices(api).values()))
    name = item["metadata"]["name"]
    item["spec"]["devices"] = item["spec"]["devices"][:3]
    api.call("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{name}", item)
    api.wait_all("resourceslices", None, lambda found: device_count(found.values()) == 8, "all devices again", 15, OURS)


def test_an_agent_that_starts_before_the_kubelet_is_registered_by_it(
    cluster: Layout, stopped: Agent, api: Api, namespace: Namespace, errors_expected: None
) -> None:
    lifecycle.stop_component(cluster, "kubelet")
    offset = stopped.log.stat().st_size
    stopped.start(kubelet=False)
    assert REGISTERED not in messages(stopped, offset)
    lifecycle.start_component(cluster, "kubelet")
    stopped.wait_published(api, 8)
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    assert REGISTERED in messages(stopped, offset)


def test_an_agent_without_a_gpu_driver_registers_and_publishes_nothing_until_it_can_publish_all(
    stopped: Agent, api: Api, mock_node: MockNode
) -> None:
    for item in slices(api).values():
        api.delete("resourceslices", None, item["metadata"]["name"])
    mock_node.set_driver_loaded(False)
    offset = stopped.log.stat().st_size
    stopped.start("--driver-retry-seconds=0.5")
    stopped.wait_message("driver", offset)
    stopped.wait_message(REGISTERED, offset)
    assert slices(api) == {}
    seen: list[int] = []

    def whole(found: dict[str, dict[str, Any]]) -> bool:
        if found:
            seen.append(device_count(found.values()))
        return 8 in seen

    mock_node.set_driver_loaded(True)
    api.wait_all("resourceslices", None, whole, "all devices are published", 30, OURS)
    assert seen == [8], "an empty or partial pool was visible"


def test_a_pod_gets_its_gpu_although_the_driver_came_after_the_agent(
    stopped: Agent, api: Api, namespace: Namespace, mock_node: MockNode
) -> None:
    mock_node.set_driver_loaded(False)
    stopped.start("--driver-retry-seconds=0.5")
    mock_node.set_driver_loaded(True)
    stopped.wait_published(api, 8)
    namespace.claim("one")
    namespace.pod("p", claim="one")
    namespace.running("p")
    assert listed(namespace.log_lines("p", lines=1)) == uuids(api, namespace.allocated("one"))


def messages(agent: Agent, offset: int) -> list[str]:
    return [entry["message"] for entry in agent.log_entries(offset)]
