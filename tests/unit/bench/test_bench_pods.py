"""How the pods of the benchmark are timed: containerd's events, the kubelet's metrics, the table."""

from __future__ import annotations

import pytest

from tests.bench.pods import AIMS, STAGES, kubelet_prepares, pods_table, task_start

EVENT = '2026-03-01 00:00:01.250000001 +0000 UTC k8s.io /tasks/start {"container_id":"abc","pid":7}'
METRIC = "dra_grpc_operations_duration_seconds"


def labels(driver: str, method: str) -> str:
    method_name = f"/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/{method}"
    return f'{{driver_name="{driver}",grpc_status_code="OK",method_name="{method_name}"}}'


def test_a_task_starts_when_containerd_says() -> None:
    assert task_start(EVENT) == ("abc", pytest.approx(1772323201.25, abs=1e-6))


def test_containerd_leaves_the_fraction_out_where_it_is_nought() -> None:
    assert task_start(EVENT.replace(".250000001", "")) == ("abc", 1772323201.0)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "time=... level=info",
        EVENT.replace("/tasks/start", "/tasks/exit"),
        EVENT.replace("{", "[").replace("}", "]"),
    ],
)
def test_other_lines_are_about_no_start(line: str) -> None:
    assert task_start(line) is None


def test_the_kubelets_time_is_that_of_prepare_and_of_this_driver() -> None:
    lines = [
        "# HELP dra_grpc_operations_duration_seconds [BETA] ...",
        f"{METRIC}_bucket{labels('a.example.com', 'NodePrepareResources')} 9",
        f"{METRIC}_sum{labels('a.example.com', 'NodePrepareResources')} 0.5",
        f"{METRIC}_count{labels('a.example.com', 'NodePrepareResources')} 4",
        f"{METRIC}_sum{labels('a.example.com', 'NodeUnprepareResources')} 7",
        f"{METRIC}_sum{labels('b.example.com', 'NodePrepareResources')} 8",
    ]
    assert kubelet_prepares(lines, "a.example.com") == (0.5, 4.0)
    assert kubelet_prepares([], "a.example.com") == (0.0, 0.0)


def test_the_calls_of_each_status_count() -> None:
    good = f"{METRIC}_sum{labels('a.example.com', 'NodePrepareResources')} 0.5"
    assert kubelet_prepares([good, good.replace('"OK"', '"Unavailable"')], "a.example.com") == (1.0, 0.0)


def test_the_table_shows_what_a_claim_adds() -> None:
    measured = {
        kind: {stage: [base + step for step in (0.0, 10.0, 20.0)] for stage in STAGES}
        for kind, base in (("claim", 140.0), ("plain", 100.0))
    }
    rows = pods_table(measured, 6.25).splitlines()
    assert rows[2] == "| created until scheduled | 150 (140-160) | 110 (100-120) | 40 | 36 |"
    assert rows[4] == "| deleted until gone | 150 (140-160) | 110 (100-120) | 40 |  |"
    assert rows[5] == "| NodePrepareResources as the kubelet sees it, mean | 6.2 |  |  | 7 |"


def test_each_aim_is_shown() -> None:
    measured = {kind: {stage: [1.0] for stage in STAGES} for kind in ("claim", "plain")}
    text = pods_table(measured, 1.0)
    assert all(f"| {aim:g} |" in text for aim in AIMS.values())
