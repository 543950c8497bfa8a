"""Claims that end without the kubelet: deleted by force under a running pod, or while the node's kubelet is away."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from driver.journal import Record, read
from hack.cluster import lifecycle
from hack.cluster.agent import Agent
from hack.cluster.api import Api, path
from hack.cluster.layout import Layout
from hack.cluster.processes import wait_for
from hack.cluster.scene import Namespace
from native.mock import MockNode

GRACE = 15
NOTICED = "the kubelet may unprepare it now"


@pytest.fixture
def hasty(agent: Agent, api: Api, mock_node: MockNode) -> Iterator[Agent]:
    """An agent that gives the kubelet less time, and looks at all claims only after all this is over."""
    agent.stop()
    agent.start(f"--reconcile-seconds={GRACE}")
    agent.wait_published(api, len(mock_node.profile.gpus))
    yield agent
    agent.stop()


def files(agent: Agent) -> list[str]:
    return sorted(one.name for one in agent.layout.cdi.glob("*.json"))


def swept(agent: Agent, claim: str) -> list[str]:
    """Why the claim was unprepared, by the journal."""
    entries = [one for one in read(agent.state_dir / "journal") if isinstance(one, Record)]
    return [one.data["why"] for one in entries if one.kind == "claim.sweep" and one.claim and one.claim.name == claim]


def until(agent: Agent, what: str, check: Callable[[], bool], timeout: float) -> None:
    """Wait while the agent lives."""
    process = agent.process
    assert process is not None
    wait_for(what, check, process, agent.log, timeout=timeout)


def wait_watched(agent: Agent, claim: str) -> None:
    """Wait until the API server streams to the agent what becomes of a claim."""

    def streamed() -> bool:
        lines = agent.layout.audit_log.read_text().splitlines()
        events = (json.loads(line) for line in lines if f"metadata.name%3D{claim}" in line)
        return any(
            event["verb"] == "watch"
            and event["stage"] == "ResponseStarted"
            and event["responseStatus"]["code"] == 200
            and event["objectRef"]["resource"] == "resourceclaims"
            for event in events
        )

    until(agent, f"a watch of claim {claim}", streamed, 40)


def wait_swept(agent: Agent, claim: str, why: str) -> None:
    until(agent, f"the end of claim {claim}", lambda: swept(agent, claim) == [why], 60)


@pytest.mark.bug("B51")
def test_a_claim_that_is_deleted_by_force_under_its_pod_is_noticed_at_once_and_unprepared_after_the_grace(
    hasty: Agent, api: Api, namespace: Namespace
) -> None:
    namespace.claim("forced")
    namespace.pod("p", claim="forced")
    namespace.running("p")
    wait_watched(hasty, "forced")
    offset = hasty.log.stat().st_size
    api.delete("resourceclaims", namespace.name, "forced")
    api.patch("resourceclaims", namespace.name, "forced", {"metadata": {"finalizers": None}})
    hasty.wait_message(NOTICED, offset, timeout=5)
    assert len(files(hasty)) == 1, "the kubelet goes first"
    wait_swept(hasty, "forced", "deleted")
    assert files(hasty) == []
    namespace.wait_event("forced", "the driver has: its devices are free")
    namespace.delete_pod("p")


def test_a_pod_that_is_deleted_by_force_while_its_kubelet_is_away_frees_its_gpu(
    cluster: Layout, hasty: Agent, api: Api, namespace: Namespace, errors_expected: None
) -> None:
    namespace.template("single")
    namespace.pod("p", template="single")
    pod = namespace.running("p")
    claim = pod["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
    wait_watched(hasty, claim)
    lifecycle.stop_component(cluster, "kubelet")
    try:
        offset = hasty.log.stat().st_size
        api.call("DELETE", path("pods", namespace.name, "p"), gracePeriodSeconds="0")
        hasty.wait_message(NOTICED, offset, timeout=30)
        wait_swept(hasty, claim, "deleted")
        assert files(hasty) == []
    finally:
        lifecycle.start_component(cluster, "kubelet")
    namespace.pod("next", template="single")
    namespace.running("next")
    namespace.delete_pod("next")
    assert files(hasty) == []
