"""What the autoscalers make of a node, in the situations that people meet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from driver.analysis import autoscaler
from tests.support import dradocs as dra

JSON = dict[str, Any]
POOL = "node-a/gpu.nvidia.com"
KEY = (dra.DRIVER, POOL)


def partitioned(gpus: int, *, place: bool) -> list[JSON]:
    """GPUs of seven partitions each, with or without counters that mark a place."""
    places = {f"slice-{n}": "1" for n in range(7)} if place else {}
    sets = [dra.counter_set(f"gpu-{gpu}", sms="98", **places) for gpu in range(gpus)]
    devices = [
        dra.device(
            f"gpu-{gpu}-mig-{n}",
            consumesCounters=dra.uses(f"gpu-{gpu}", sms="14", **({f"slice-{n}": "1"} if place else {})),
        )
        for gpu in range(gpus)
        for n in range(7)
    ]
    return [
        dra.resource_slice(sharedCounters=sets, count=2, name="00000-a"),
        dra.resource_slice(*devices, count=2, name="00001-a"),
    ]


def allocated(*devices: str, **fields: Any) -> JSON:
    return dra.claim("c", results=[(device, POOL, fields) for device in devices])


@pytest.mark.parametrize(
    ("slices", "devices", "used"),
    [
        (partitioned(1, place=True), ["gpu-0-mig-0"], 1.0),
        (partitioned(4, place=True), ["gpu-0-mig-0"], 0.25),
        (partitioned(8, place=True), [f"gpu-{gpu}-mig-0" for gpu in range(8)], 1.0),
        (partitioned(1, place=False), ["gpu-0-mig-0"], 1 / 7),
        ([dra.resource_slice(*(dra.device(f"gpu-{n}") for n in range(4)))], ["gpu-0"], 0.25),
        ([dra.resource_slice()], [], 0.0),
        ([dra.resource_slice(dra.device("gpu-0", allowMultipleAllocations=True))], ["gpu-0"], 1.0),
    ],
)
def test_a_node_is_as_full_as_its_fullest_counter(slices: list[JSON], devices: list[str], used: float) -> None:
    assert autoscaler.utilization(slices, [allocated(*devices)])[KEY] == pytest.approx(used)


def test_allocated_gpus_without_counters_beside_idle_ones_with_counters_look_idle() -> None:
    counters, parts = partitioned(4, place=True)
    parts["spec"]["devices"] += [dra.device(f"whole-{n}") for n in range(4)]

    assert autoscaler.utilization([counters, parts], [allocated(*(f"whole-{n}" for n in range(4)))])[KEY] == 0.0


def test_admin_access_uses_nothing() -> None:
    slices = [dra.resource_slice(dra.device("gpu-0"))]

    assert autoscaler.utilization(slices, [allocated("gpu-0", adminAccess=True)])[KEY] == 0.0


@pytest.mark.bug("B40")
def test_the_use_of_a_half_published_node_cannot_be_told_so_it_is_kept() -> None:
    with pytest.raises(ValueError, match="slice count: 2 - found only 1 slices"):
        autoscaler.utilization([dra.resource_slice(dra.device("gpu-0"), count=2)], [])


def test_a_slice_that_an_older_generation_left_behind_does_not_count() -> None:
    slices = [dra.resource_slice(dra.device("a"), generation=3), dra.resource_slice(generation=2, count=2)]

    assert autoscaler.complete_pools(slices) == {dra.DRIVER: 1}


def test_pools_are_counted_not_devices() -> None:
    whole = [dra.resource_slice(*(dra.device(f"gpu-{n}") for n in range(8)))]
    one_left = [dra.resource_slice(dra.device("gpu-0"))]
    pools_of_one = [dra.resource_slice(dra.device(f"gpu-{n}"), pool=f"gpu-{n}") for n in range(8)]

    assert autoscaler.pools_ready(one_left, whole)
    assert not autoscaler.pools_ready(pools_of_one[:7], pools_of_one)
    assert not autoscaler.pools_ready([], whole)
    assert autoscaler.pools_ready([], [])


@pytest.mark.bug("B122")
def test_a_template_is_a_copy_with_other_names_that_is_complete_and_keeps_taints_and_identities() -> None:
    sample = dra.resource_slice(dra.device("gpu-0", {"uuid": "GPU-1"}, taints=[dra.taint()]))

    (copy,) = autoscaler.template([sample], {}, node_name="node-a", new_node_name="template-1", suffix="t1").slices

    assert copy["spec"]["nodeName"] == "template-1"
    assert copy["spec"]["pool"] == {"name": f"{POOL}-t1", "generation": 1, "resourceSliceCount": 1}
    assert copy["metadata"]["name"] == f"{sample['metadata']['name']}-t1"
    assert "uid" not in copy["metadata"]
    assert copy["spec"]["devices"] == sample["spec"]["devices"]
    assert sample["spec"]["nodeName"] == "node-a"


def test_one_claim_from_elsewhere_ends_the_template_of_the_node() -> None:
    slices = [dra.resource_slice(dra.device("gpu-0"))]
    claims = {
        "here": [dra.claim("a", results=[("gpu-0", POOL)], owner="here")],
        "there": [dra.claim("b", results=[("channel-0", "fabric")], owner="there")],
    }

    with pytest.raises(autoscaler.NotSanitizableError, match="claim ml/b has an allocation gpus, from a pool"):
        autoscaler.template(slices, claims, node_name="node-a", new_node_name="t", suffix="t")
    del claims["there"]
    template = autoscaler.template(slices, claims, node_name="node-a", new_node_name="t", suffix="t")
    assert template.claims[0]["status"]["allocation"]["devices"]["results"][0]["pool"] == f"{POOL}-t"


NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("change", "candidate"),
    [
        ({}, True),
        ({"unschedulable": True}, False),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}]}, False),
        ({"taints": [{"key": "other", "effect": "NoSchedule"}]}, True),
    ],
)
def test_a_template_is_taken_from_a_node_that_can_be_scheduled_on(change: JSON, candidate: bool) -> None:
    node = dra.node("node-a")
    node["spec"].update(change)

    assert autoscaler.is_template_candidate(node) is candidate


@pytest.mark.parametrize(("since", "candidate"), [("2026-11-30T11:58:59Z", True), ("2026-11-30T11:59:30Z", False)])
def test_a_template_is_taken_a_minute_after_the_node_became_ready(since: str, candidate: bool) -> None:
    node = dra.node("node-a")
    node["status"]["conditions"][0]["lastTransitionTime"] = since

    assert autoscaler.is_template_candidate(node, NOW) is candidate
    assert not autoscaler.is_template_candidate(dra.node("node-a", ready=False), NOW)
    assert not autoscaler.is_template_candidate({"metadata": {}})


def test_karpenter_waits_for_a_complete_pool_of_each_driver_that_was_asked_for() -> None:
    slices = [dra.resource_slice(), dra.resource_slice(driver="nic.example.com", pool="nics", count=2)]

    assert autoscaler.initialized(slices, [dra.DRIVER, "nic.example.com"]) == ("nic.example.com",)


def test_for_karpenter_a_slice_is_its_nodes_by_the_owner_alone() -> None:
    assert autoscaler.owned_by_node(dra.resource_slice())
    assert not autoscaler.owned_by_node({"metadata": {"name": "s"}, "spec": {"nodeName": "node-a"}})


@pytest.mark.parametrize(
    ("spec", "path", "part"),
    [
        (
            {"requests": [dra.request(adminAccess=True)]},
            "spec.devices.requests[0].exactly.adminAccess",
            "ordinary request",
        ),
        (
            {"requests": [{"name": "a", "firstAvailable": [{"deviceClassName": "c", "tolerations": [{"key": "x"}]}]}]},
            "spec.devices.requests[0].firstAvailable[0].tolerations",
            "no device taints",
        ),
        (
            {"constraints": [{"matchAttribute": "a/b"}, {"distinctAttribute": "a/b"}]},
            "spec.devices.constraints[1].distinctAttribute",
            "refuses the claim",
        ),
    ],
)
def test_karpenter_does_not_take_every_claim(spec: JSON, path: str, part: str) -> None:
    ((where, what),) = autoscaler.refusals({"devices": spec})

    assert where == path
    assert part in what
    assert autoscaler.refusals({"devices": {"requests": [dra.request()]}}) == ()


def test_what_is_ignored_is_named_with_the_file_that_shows_it() -> None:
    for program in (autoscaler.CLUSTER_AUTOSCALER, autoscaler.KARPENTER):
        assert autoscaler.IGNORED[program]
        for field, source in autoscaler.IGNORED[program]:
            assert field
            assert source.startswith("pkg/")
