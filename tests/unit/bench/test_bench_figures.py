"""How the benchmark counts: percentiles, spreads, the table, what /proc says."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench import procfs
from tests.bench.report import METRICS, table
from tests.bench.stats import Spread, latencies, percentile, spreads

NUMBERS = st.lists(st.floats(0, 1e6), min_size=1, max_size=50)


@pytest.mark.parametrize(("rank", "expected"), [(0, 1), (1, 1), (50, 5), (51, 6), (95, 10), (99, 10), (100, 10)])
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(rank: int, expected: int) -> None:
    assert percentile(list(range(10, 0, -1)), rank) == expected


@given(NUMBERS, st.integers(0, 100))
def test_a_percentile_is_one_of_the_values_and_enough_are_below_it(values: list[float], rank: int) -> None:
    found = percentile(values, rank)
    assert found in values
    assert sum(value <= found for value in values) * 100 >= rank * len(values)


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


def test_latencies_are_in_milliseconds() -> None:
    assert latencies("call", [0.001, 0.002, 0.003]) == {
        "call_p50_ms": 2.0,
        "call_p95_ms": 3.0,
        "call_p99_ms": 3.0,
    }


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e6)), max_size=6))
def test_spreads_cover_the_rounds_that_have_the_metric(rounds: list[dict[str, float]]) -> None:
    found = spreads(rounds)
    assert set(found) == {name for each in rounds for name in each}
    for name, spread in found.items():
        values = [each[name] for each in rounds if name in each]
        assert spread == Spread(statistics.median(values), min(values), max(values))


def row(text: str, title: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {title} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_figure_aim_and_the_ratio_to_the_sum_of_its_floors() -> None:
    rounds = [{"unprepare_p50_ms": value, "floor_rpc_ms": 0.5, "floor_write_ms": 1.5} for value in (4.0, 6.0, 5.0)]
    assert row(table({"own": rounds}), "Unprepare of one claim, p50 ms")[1:] == ["5 (4-6)", "3", "2.5"]


def test_a_peer_gets_its_figure_and_the_ratio_of_ours_to_it() -> None:
    text = table({"own": [{"threads": 8.0}], "peer": [{"threads": 16.0}]})
    assert row(text, "threads")[1:] == ["8 (8-8)", "", "", "16 (16-16)", "0.50"]


def test_what_a_peer_was_not_asked_stays_empty_and_what_we_were_not_asked_has_no_row() -> None:
    text = table({"own": [{"threads": 8.0}], "peer": [{"descriptors": 3.0}]})
    assert row(text, "threads")[4:] == ["", ""]
    assert "descriptors" not in text


def test_titles_and_keys_are_there_once() -> None:
    keys = [metric.key for metric in METRICS]
    assert len(set(keys)) == len(keys)
    assert {floor for metric in METRICS for floor in metric.floor} <= {*keys, "floor_python_pss_mib"}


def test_the_process_tree_holds_children_of_children() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen([sys.executable, "-c", nested], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        members = procfs.tree(process.pid)
        both = procfs.memory(process.pid)
        assert len(members) == 2
        assert process.pid == members[0]
        assert both["threads"] == 2
        assert both["rss_mib"] >= both["anon_mib"] > 1
        assert both["descriptors"] >= 6
        process.communicate(b"\n")


def test_work_counts_as_cpu_time_and_waiting_does_not() -> None:
    begin = procfs.cpu_seconds(os.getpid())
    spent = time.thread_time() + 0.05
    while time.thread_time() < spent:
        pass
    assert procfs.cpu_seconds(os.getpid()) - begin >= 0.04


def test_a_process_that_is_gone_has_nothing() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert procfs.cpu_seconds(process.pid) == 0
    assert set(procfs.memory(process.pid).values()) == {0.0}


def test_the_machine_is_busy_to_a_part_of_all() -> None:
    assert 0 <= procfs.machine_busy(procfs.machine_times()) <= 1
