"""GPUs that fall ill under running pods: who is told what, what goes on, and when all is well again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from driver.journal import Record, read
from hack.cluster.agent import Agent
from hack.cluster.api import JSON, Api
from hack.cluster.layout import DRIVER_NAME, Layout
from hack.cluster.scene import Namespace, claim_spec, listed, published, uuids
from native.mock import MockNode

QUICK = ("--health-seconds=1", "--health-recovery-seconds=3", "--rescan-seconds=2")
LASTING = ("--health-seconds=1", "--health-recovery-seconds=600", "--rescan-seconds=2")
APPLICATION = (13, 31, 43, 45, 94)
"""XIDs that are a program's own fault."""


class Ward:
    """The node's GPUs, by their names, and the agent that looks at them."""

    def __init__(self, agent: Agent, api: Api, node: MockNode) -> None:
        self.agent = agent
        self.api = api
        self.node = node
        addresses = {gpu.uuid: gpu.address for gpu in node.profile.gpus}
        self.addresses = {name: addresses[one["attributes"]["uuid"]] for name, one in published(api).items()}

    @property
    def names(self) -> list[str]:
        return sorted(self.addresses)

    def start(self, *flags: str) -> None:
        """Start the agent and wait until it hears what NVML reports."""
        offset = self.agent.log.stat().st_size
        self.agent.start(*flags)
        self.agent.wait_published(self.api, len(self.addresses))
        self.agent.wait_message("events are watched", offset)

    def taints(self) -> dict[str, list[str]]:
        """Device -> its taints, as ``key=value:effect`` without the driver's domain."""
        return taints_of(self.api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}"))

    def wait_taints(self, expected: dict[str, list[str]], timeout: float = 60) -> None:
        """Wait until these taints are published and no others."""
        self.api.wait_all(
            "resourceslices", None, lambda found: taints_of(found.values()) == expected, f"taints {expected}", timeout,
            f"spec.driver={DRIVER_NAME}",
        )  # fmt: skip

    def metric(self, name: str, **labels: str) -> float:
        """A metric's value; the sum, where the labels leave several."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.agent.metrics().items()
            if sample.partition("{")[0] == name and all(part in sample for part in wanted)
        )

    def wait_record(self, kind: str, device: str, **data: object) -> None:
        """Wait until the newest record of a kind about a device (and a taint's key, where one is given) says this."""

        def written() -> bool:
            newest = [one for one in self.records(kind, device) if one.get("key") == data.get("key")][-1:]
            return bool(newest) and {key: newest[0].get(key) for key in data} == data

        self.agent.wait(written, f"{data} of {device} in the journal")

    def records(self, kind: str, device: str) -> list[dict[str, Any]]:
        """What the journal says of a device."""
        entries = read(self.agent.state_dir / "journal")
        found = [one for one in entries if isinstance(one, Record)]
        return [dict(one.data) for one in found if (one.kind, one.device) == (kind, device)]


def taints_of(slices: Any) -> dict[str, list[str]]:
    return {
        device["name"]: [
            f"{one['key'].partition('/')[2]}={one.get('value', '')}:{one['effect']}" for one in device["taints"]
        ]
        for item in slices
        for device in item["spec"].get("devices", [])
        if device.get("taints")
    }


@pytest.fixture
def ward(cluster: Layout, agent: Agent, api: Api, mock_node: MockNode) -> Iterator[Ward]:
    """The GPUs of the usual node, without an agent yet; behind the test they are well, and nobody knows otherwise."""
    if cluster.load().minor_version < (1, 36):
        pytest.skip("DRADeviceTaints and ResourceHealthStatus are off by default before Kubernetes 1.36")
    found = Ward(agent, api, mock_node)
    agent.stop()
    yield found
    agent.stop()
    for address in found.addresses.values():
        with suppress(FileNotFoundError):
            mock_node.plug(address)
        mock_node.set_gpu_state(address, "ok")
        mock_node.set_number(address, "recovery_action", 0)
    (agent.state_dir / "health.json").unlink(missing_ok=True)


def shown(pod: JSON | None) -> list[tuple[str, str]]:
    """What a pod's status says of its devices' health: (health, message) each."""
    return [
        (entry["health"], entry.get("message", ""))
        for status in (pod["status"].get("containerStatuses", []) if pod else [])
        for resource in status.get("allocatedResourcesStatus", [])
        for entry in resource.get("resources", [])
    ]


def wait_shown(namespace: Namespace, pod: str, health: str) -> str:
    """Wait at most a minute until a pod's one device is shown as that; gives the message."""
    found = namespace.wait_pod(pod, lambda pod: [one for one, _ in shown(pod)] == [health], f"device {health}", 60)
    return shown(found)[0][1]


def wait_condition(namespace: Namespace, claim: str, status: str) -> JSON:
    """Wait until the claim's one device has that status of the condition Healthy; gives the condition."""

    def conditions(document: JSON | None) -> list[JSON]:
        devices = document.get("status", {}).get("devices", []) if document else []
        return [one for device in devices for one in device.get("conditions", []) if one["type"] == "Healthy"]

    found = namespace.api.wait(
        "resourceclaims", namespace.name, claim, lambda one: [c["status"] for c in conditions(one)] == [status],
        f"condition Healthy of claim {claim} is {status}",
    )  # fmt: skip
    return conditions(found)[0]


def hold(namespace: Namespace, name: str, **options: Any) -> str:
    """A pod with a GPU of its own; gives the device."""
    namespace.claim(name, **options)
    namespace.pod(name, claim=name)
    namespace.running(name)
    return namespace.allocated(name)[0]


def told_ill(ward: Ward, namespace: Namespace, device: str, cause: str, why: str) -> None:
    """Everybody who asks after the device of the pod and claim ``held`` hears that it is ill, and why."""
    assert re.search(why, wait_shown(namespace, "held", "Unhealthy"))
    assert re.search(why, wait_condition(namespace, "held", "False")["message"])
    assert re.search(why, namespace.wait_event("held", f"device {device} is unhealthy"))
    ward.agent.wait(lambda: ward.metric("gpudra_device_unhealthy", device=device, cause=cause) == 1, "the metric")
    assert ward.metric("gpudra_device_unhealthy") == 1
    assert ward.metric("gpudra_devices_health", health="unhealthy") == 1
    ward.wait_record("device.health", device, after="unhealthy", cause=cause)
    assert re.search(why, ward.records("device.health", device)[-1]["message"])
    ward.wait_record("device.taint", device, key="gpu.nvidia.com/gpu-lost", after=":NoSchedule")


@pytest.mark.bug("B13")
@pytest.mark.bug("B105")
def test_a_gpu_is_lost_under_a_pod_the_others_work_on_and_it_recovers_under_the_pod(
    ward: Ward, namespace: Namespace
) -> None:
    ward.start(*QUICK)
    device = hold(namespace, "held")
    assert wait_shown(namespace, "held", "Healthy") == ""
    ward.node.xid(ward.addresses[device], 79)
    ward.wait_taints({device: ["xid=79:NoSchedule"]})
    ward.node.set_gpu_state(ward.addresses[device], "lost")
    ward.wait_taints({device: ["xid=79:NoSchedule", "gpu-lost=:NoSchedule"]})
    told_ill(ward, namespace, device, "xid-79", "fallen off the bus")
    ward.wait_record("xid", device, xid=79)

    namespace.claim("seven", count=7)
    namespace.pod("seven", claim="seven")
    namespace.running("seven")
    assert sorted(namespace.allocated("seven")) == [name for name in ward.names if name != device]
    assert listed(namespace.log_lines("seven", lines=7)) == uuids(ward.api, namespace.allocated("seven"))

    ward.node.set_gpu_state(ward.addresses[device], "ok")
    wait_shown(namespace, "held", "Healthy")
    ward.wait_taints({})
    assert wait_condition(namespace, "held", "True")["reason"] == "Recovered"
    namespace.wait_event("held", f"device {device} is healthy")
    ward.agent.wait(lambda: ward.metric("gpudra_device_unhealthy") == 0, "the metric")
    assert namespace.running("held")["status"]["containerStatuses"][0]["restartCount"] == 0
    namespace.delete_pod("held")
    assert hold(namespace, "next") == device
    namespace.wait_pod("next", lambda pod: shown(pod) == [("Healthy", "")], "on a GPU whose events are heard again")
    ward.node.xid(ward.addresses[device], 74)
    ward.wait_taints({device: ["xid=74:NoSchedule"]})


@pytest.mark.bug("B11")
def test_a_gpu_that_was_pulled_out_gets_no_new_pod_until_it_is_back(ward: Ward, namespace: Namespace) -> None:
    ward.start(*QUICK)
    device = hold(namespace, "held")
    address = ward.addresses[device]
    wait_shown(namespace, "held", "Healthy")
    ward.node.unplug(address)
    ward.wait_taints({device: ["gpu-lost=:NoSchedule"]})
    told_ill(ward, namespace, device, "lost", "GPU_IS_LOST|NOT_FOUND|left the bus")

    namespace.delete_pod("held")
    assert list(ward.agent.layout.cdi.iterdir()) == [], "a claim can be given back without its GPU"
    namespace.claim("others", count=7)
    namespace.pod("others", claim="others")
    namespace.running("others")
    assert device not in namespace.allocated("others")
    namespace.claim("late")
    namespace.pod("late", claim="late")
    assert "cannot allocate all claims" in namespace.unschedulable("late")

    ward.node.plug(address)
    namespace.running("late")
    assert namespace.allocated("late") == [device]
    assert listed(namespace.log_lines("late", lines=1)) == uuids(ward.api, [device])
    ward.wait_taints({})
    wait_shown(namespace, "late", "Healthy")


def storm(ward: Ward, rounds: int) -> int:
    """XIDs over seven of the GPUs, in turn; gives how many."""
    codes = [APPLICATION, APPLICATION, (*APPLICATION, 63, 92), (74, 31), (31, 119), (79, 13), (48, 13, 45)]
    pairs = [(name, code) for name, some in zip(ward.names, codes, strict=False) for code in some]
    for _ in range(rounds):
        for name, code in pairs:
            ward.node.xid(ward.addresses[name], code)
    return rounds * len(pairs)


AFTER_THE_STORM = ((3, "74"), (4, "119"), (5, "79"), (6, "48"))
"""GPU by its place -> the XID of its taint."""


def requests(layout: Layout, offset: int) -> list[tuple[str, str]]:
    """(verb, resource) of each request that the agent made behind this place of the audit log."""
    with layout.audit_log.open("rb") as log:
        log.seek(offset)
        text = log.read()
    events = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
    return [
        (event["verb"], event["objectRef"]["resource"])
        for event in events
        if event["userAgent"].startswith("gpudra") and "objectRef" in event
    ]


@pytest.mark.bug("B44")
@pytest.mark.bug("B104")
@pytest.mark.bug("B106")
def test_a_storm_of_xids_costs_a_few_requests_and_only_the_sick_gpus_and_outlives_the_agent(
    ward: Ward, cluster: Layout, namespace: Namespace
) -> None:
    ward.start(*LASTING)
    hold(namespace, "noisy", cel=[is_device(ward, ward.names[0])])
    hold(namespace, "sick", cel=[is_device(ward, ward.names[3])])
    for pod in ("noisy", "sick"):
        wait_shown(namespace, pod, "Healthy")
    offset = cluster.audit_log.stat().st_size
    sent = storm(ward, rounds=30)
    expected = {ward.names[place]: [f"xid={code}:NoSchedule"] for place, code in AFTER_THE_STORM}
    ward.wait_taints(expected)
    assert "74" in wait_shown(namespace, "sick", "Unhealthy")
    wait_condition(namespace, "sick", "False")
    namespace.wait_event("sick", "is unhealthy")
    made = requests(cluster, offset)
    assert sent > 600
    assert len([one for one in made if one[1] == "resourceslices"]) <= len(AFTER_THE_STORM), made
    assert len(made) <= 10, made

    assert [health for health, _ in shown(namespace.running("noisy"))] == ["Healthy"]
    assert not any("unhealthy" in event for event in namespace.events("noisy"))
    namespace.claim("rest", count=3)
    namespace.pod("rest", claim="rest")
    namespace.running("rest")
    assert sorted(namespace.allocated("rest")) == [ward.names[1], ward.names[2], ward.names[7]]
    namespace.claim("late")
    namespace.pod("late", claim="late")
    assert "cannot allocate all claims" in namespace.unschedulable("late")

    written = ward.api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}")
    ward.agent.kill()
    ward.start(*LASTING)
    ward.agent.wait(lambda: ward.metric("gpudra_devices_health", health="unhealthy") == 4, "the next agent's verdicts")
    assert ward.taints() == expected
    now = ward.api.items("resourceslices", fieldSelector=f"spec.driver={DRIVER_NAME}")
    assert now == written, "no slice without the taints in between"
    wait_shown(namespace, "sick", "Unhealthy")


def is_device(ward: Ward, device: str) -> str:
    """A selector of exactly this device."""
    return f'device.attributes["{DRIVER_NAME}"].uuid == "{uuids(ward.api, [device])[0]}"'


def deploy(namespace: Namespace, name: str, **options: Any) -> None:
    """One pod, made anew whenever it is deleted, with a claim of its own."""
    namespace.template(name, **options)
    container = {
        "name": "main",
        "image": "localhost/gpudra-test:1",
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "nvidia-smi -L; exec sleep 2147483647"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    pod = {
        "containers": [container],
        "terminationGracePeriodSeconds": 1,
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": name}],
    }
    labels = {"app": name}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    namespace.api.create("deployments", namespace.name, {"metadata": {"name": name}, "spec": spec})


def pod_of(namespace: Namespace, deployment: str, *, other_than: str = "") -> str:
    """The name of a deployment's pod."""

    def candidates(pods: dict[str, JSON]) -> list[str]:
        return [
            name
            for name, pod in pods.items()
            if pod["metadata"].get("labels", {}).get("app") == deployment
            and name != other_than
            and "deletionTimestamp" not in pod["metadata"]
        ]

    found = namespace.api.wait_all(
        "pods", namespace.name, lambda pods: bool(candidates(pods)), f"a pod of deployment {deployment}"
    )
    return candidates(found)[0]


def test_where_it_is_set_a_dying_gpu_evicts_its_pods_which_run_elsewhere_or_say_why_they_do_not(
    ward: Ward, namespace: Namespace
) -> None:
    ward.start(*QUICK, "--evict=fatal")
    pinned_to = ward.names[-1]
    deploy(namespace, "pinned", cel=[is_device(ward, pinned_to)])
    deploy(namespace, "any")
    try:
        evict_and_recover(ward, namespace, pinned_to)
    finally:
        for name in ("pinned", "any"):
            namespace.api.delete("deployments", namespace.name, name)


def evict_and_recover(ward: Ward, namespace: Namespace, pinned_to: str) -> None:
    spec = claim_spec()
    toleration = {"key": "gpu.nvidia.com/xid", "operator": "Exists", "effect": "NoExecute"}
    spec["devices"]["requests"][0]["exactly"]["tolerations"] = [toleration]
    namespace.api.create("resourceclaims", namespace.name, {"metadata": {"name": "tolerant"}, "spec": spec})
    namespace.pod("tolerant", claim="tolerant")
    old = {name: pod_of(namespace, name) for name in ("pinned", "any")}
    for pod in (*old.values(), "tolerant"):
        namespace.running(pod)
    (any_device,) = namespace.allocated(namespace.claim_of(old["any"]))
    assert namespace.allocated(namespace.claim_of(old["pinned"])) == [pinned_to]
    sick = sorted([any_device, pinned_to, *namespace.allocated("tolerant")])
    for device in sick:
        # A driver before R570 never says by itself that a GPU needs no reset any more.
        ward.node.set_number(ward.addresses[device], "recovery_action", -1)
        ward.node.xid(ward.addresses[device], 119)
    for pod in old.values():
        namespace.wait_pod(pod, lambda found: found is None, "evicted")
        namespace.wait_event(pod, "Marking for deletion")
    assert ward.taints() == {name: ["xid=119:NoExecute"] for name in sick}
    new = {name: pod_of(namespace, name, other_than=pod) for name, pod in old.items()}
    namespace.running(new["any"])
    (elsewhere,) = namespace.allocated(namespace.claim_of(new["any"]))
    assert elsewhere not in sick
    assert "cannot allocate all claims" in namespace.unschedulable(new["pinned"])
    assert namespace.running("tolerant")["status"]["containerStatuses"][0]["restartCount"] == 0
    assert len(list(ward.agent.layout.cdi.iterdir())) == 2, "what was evicted is unprepared"

    for device in sick:
        ward.node.set_number(ward.addresses[device], "recovery_action", 0)
    namespace.running(new["pinned"])
    assert namespace.allocated(namespace.claim_of(new["pinned"])) == [pinned_to]
    ward.wait_taints({})
