"""Who is meant by a finding, and which taints follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.health.findings import CAUSES
from driver.health.verdicts import TAINTS, Status, TaintPolicy, Target, taints, verdicts
from driver.health.xids import Severity
from native.nvml.healthtypes import GpuHealth, RetiredPages

ADDRESS = "0000:1b:00.0"
GPU = Target("gpu", ADDRESS)
ONE = Target("gpu-mig-1", ADDRESS, gpu_instance=3, partition=True)
TWO = Target("gpu-mig-2", ADDRESS, gpu_instance=4, partition=True)
OFFERED = Target("gpu-mig-3", ADDRESS, partition=True)
OTHER = Target("other", "0000:1c:00.0")
ALL = [GPU, ONE, TWO, OFFERED, OTHER]
POLICY = TaintPolicy()


def ill(bench: Any) -> set[str]:
    return {name for name, verdict in verdicts(bench.keeper, ALL).items() if verdict.status is Status.UNHEALTHY}


def tainted(bench: Any, policy: TaintPolicy = POLICY) -> dict[str, list[str]]:
    found = taints(bench.keeper, ALL, policy)
    return {
        name: [f"{one['key']}={one.get('value', '')}:{one['effect']}" for one in some] for name, some in found.items()
    }


@pytest.mark.bug("B107")
def test_an_event_about_the_whole_gpu_reaches_every_partition_of_it_and_no_other_gpu(bench: Any) -> None:
    bench.look()
    bench.xid(79)
    assert ill(bench) == {"gpu", "gpu-mig-1", "gpu-mig-2", "gpu-mig-3"}


@pytest.mark.bug("B107")
def test_an_event_about_one_partition_reaches_it_and_the_whole_gpu(bench: Any) -> None:
    bench.look()
    bench.xid(74, gi=3)
    assert ill(bench) == {"gpu", "gpu-mig-1"}
    assert tainted(bench) == {"gpu-mig-1": ["gpu.nvidia.com/xid=74:NoSchedule"]}, "a GPU's taints are its partitions'"


@pytest.mark.bug("B107")
def test_an_event_about_a_partition_that_nobody_knows_counts_for_all(bench: Any) -> None:
    bench.look()
    bench.xid(74, gi=9)
    assert ill(bench) == {"gpu", "gpu-mig-1", "gpu-mig-2", "gpu-mig-3"}


def test_a_partition_that_has_the_taints_of_its_gpu_has_none_of_them_twice(bench: Any) -> None:
    parts = [msgspec.structs.replace(one, inherits=True) for one in (ONE, TWO, OFFERED)]
    bench.look()
    bench.xid(119)
    assert set(taints(bench.keeper, [GPU, *parts], POLICY)) == {"gpu"}
    bench.xid(74, gi=3)
    bench.xid(48, gi=9)
    found = taints(bench.keeper, [GPU, *parts], POLICY)
    assert {name: [one["value"] for one in some] for name, some in found.items()} == {
        "gpu": ["119"],
        "gpu-mig-1": ["74"],
    }


def test_each_fault_has_the_taint_that_is_promised(bench: Any) -> None:
    bench.look()
    bench.xid(119)
    bench.xid(74)
    bench.lost()
    bench.look(seconds=1, recovery_action=4)
    assert tainted(bench)["gpu"] == [
        "gpu.nvidia.com/xid=119:NoSchedule",
        "gpu.nvidia.com/gpu-lost=:NoSchedule",
        "gpu.nvidia.com/unhealthy=recovery-action:NoSchedule",
    ]


def test_an_application_fault_and_a_degradation_keep_nobody_away(bench: Any) -> None:
    for _ in range(2):
        bench.look(seconds=10, clocks_event_reasons=0x40)
    bench.xid(31)
    bench.xid(63)
    assert tainted(bench) == {}
    assert ill(bench) == set()


def test_degradations_keep_new_pods_away_where_that_is_wanted(bench: Any) -> None:
    gpu = bench.gpu()
    for _ in range(2):
        bench.advance(10)
        bench.keeper.look((gpu,), {ADDRESS: GpuHealth(ADDRESS, clocks_event_reasons=0x40)}, {ADDRESS: 999})
    found = tainted(bench, TaintPolicy(degraded=True))
    assert found["gpu"] == [
        "gpu.nvidia.com/unmonitored=:NoSchedule",
        "gpu.nvidia.com/degraded=thermal-slowdown:NoSchedule",
    ]


def test_a_board_with_many_retired_pages_gets_no_new_work_and_its_pods_go_on(bench: Any) -> None:
    bench.look(retired_pages=RetiredPages(59, 0, True))
    assert (ill(bench), tainted(bench, TaintPolicy(no_execute=Severity.FATAL))) == (set(), {})
    assert tainted(bench, TaintPolicy(degraded=True))["gpu"] == [
        "gpu.nvidia.com/degraded=page-retirement-pending:NoSchedule"
    ]
    bench.look(retired_pages=RetiredPages(59, 1, False))
    assert tainted(bench, TaintPolicy(no_execute=Severity.FATAL))["gpu"] == [
        "gpu.nvidia.com/unhealthy=pages-retired:NoSchedule"
    ]
    assert "gpu" in ill(bench)


@pytest.mark.parametrize(
    ("policy", "device", "fatal"),
    [
        (None, "NoSchedule", "NoSchedule"),
        (Severity.FATAL, "NoSchedule", "NoExecute"),
        (Severity.DEVICE, "NoExecute", "NoExecute"),
    ],
)
def test_pods_are_evicted_only_where_that_is_set(bench: Any, policy: Any, device: str, fatal: str) -> None:
    bench.look()
    bench.xid(74)
    assert taints(bench.keeper, [GPU], TaintPolicy(policy))["gpu"][0]["effect"] == device
    bench.xid(119)
    assert taints(bench.keeper, [GPU], TaintPolicy(policy))["gpu"][0]["effect"] == fatal


def test_taints_are_what_the_api_takes(bench: Any) -> None:
    assert len(TAINTS) <= 16
    for cause in CAUSES:
        assert len(cause) <= 63
        assert cause.replace("-", "").isalnum()
    for key in TAINTS:
        assert key.startswith("gpu.nvidia.com/")


def test_a_verdict_says_what_since_when_and_how_often(bench: Any) -> None:
    bench.look()
    for _ in range(5):
        bench.xid(74)
        bench.advance(1)
    verdict = verdicts(bench.keeper, [GPU])["gpu"]
    assert verdict.since == bench.wall - 5
    assert verdict.severity == Severity.DEVICE
    assert "XID 74" in verdict.message
    assert "(5 times)" in verdict.message


def test_a_gpu_that_was_never_asked_is_unknown(bench: Any) -> None:
    bench.look()
    verdict = verdicts(bench.keeper, [OTHER])["other"]
    assert (verdict.status, verdict.cause) == (Status.UNKNOWN, "not-probed")
