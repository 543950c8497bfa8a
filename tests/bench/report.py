"""The table: metric, measured, aim, ratio to what the machine itself costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.bench.stats import Spread, spreads


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table.

    Attributes:
        key: as in a round's result.
        title: as in the table, with the unit.
        aim: what the agent should need at most on a quiet machine; None: no aim is set.
        floor: the floors whose sum no driver can pass; empty: there is none.
    """

    key: str
    title: str
    aim: float | None = None
    floor: tuple[str, ...] = ()


_CALL = ("floor_rpc_ms",)
_REPEAT = (*_CALL, "floor_get_ms")
_PREPARE = (*_REPEAT, "floor_write_ms")
_UNPREPARE = (*_CALL, "floor_write_ms")
_EIGHT = ("floor_8_rpcs_ms", "floor_get_ms", "floor_write_ms")
_PYTHON = ("floor_python_ms",)

METRICS = (
    Metric("start_socket_ms", "exec to registration socket, ms", 180, _PYTHON),
    Metric("start_slice_ms", "exec to first slice in the API, ms", 350, _PYTHON),
    Metric("start_cpu_ms", "CPU until then, ms"),
    Metric("rss_mib", "RSS 5 s after, MiB", 50, ("floor_python_rss_mib",)),
    Metric("pss_mib", "PSS, MiB", None, ("floor_python_pss_mib",)),
    Metric("anon_mib", "anonymous memory, MiB", None, ("floor_python_anon_mib",)),
    Metric("threads", "threads"),
    Metric("descriptors", "descriptors"),
    Metric("idle_cpu_ms_per_30_s", "idle CPU per 30 s, ms", 30, ("floor_idle_cpu_ms_per_30_s",)),
    Metric("prepare_p50_ms", "Prepare of one claim, p50 ms", 5, _PREPARE),
    Metric("prepare_p95_ms", "p95 ms", 10),
    Metric("prepare_p99_ms", "p99 ms", 15),
    Metric("prepare_0_held_ms", "Prepare with 0 claims held, p50 ms"),
    Metric("prepare_3_held_ms", "with 3 claims held"),
    Metric("prepare_7_held_ms", "with 7 claims held"),
    Metric("unprepare_p50_ms", "Unprepare of one claim, p50 ms", 3, _UNPREPARE),
    Metric("unprepare_p95_ms", "p95 ms"),
    Metric("unprepare_p99_ms", "p99 ms", 9),
    Metric("repeat_p50_ms", "repeated Prepare, p50 ms", 3, _REPEAT),
    Metric("repeat_p99_ms", "p99 ms"),
    Metric("one_call_of_8_ms", "8 claims in one call, p50 ms", 20, _PREPARE),
    Metric("one_call_of_8_undone_ms", "undone in one call, p50 ms"),
    Metric("8_calls_at_once_ms", "8 concurrent calls, p50 wall ms", 25, _EIGHT),
    Metric("8_calls_at_once_undone_ms", "undone by 8 concurrent calls, ms"),
    Metric("burst_one_call_of_8_s", "64 claims, 8 rounds of 8 in one call, s", 0.4),
    Metric("burst_8_calls_at_once_s", "64 claims, 8 rounds of 8 concurrent, s", 0.4),
    Metric("cycle_cpu_ms", "CPU per Prepare and Unprepare, ms", 5),
    Metric("rss_after_mib", "RSS after all cycles, MiB", 53),
    Metric("anon_after_mib", "anonymous memory after all cycles, MiB"),
    Metric("rss_growth_mib", "growth of RSS over the cycles, MiB"),
    Metric("descriptor_growth", "growth of descriptors over the cycles"),
    Metric("floor_rpc_ms", "floor: RPC without a claim, p50 ms"),
    Metric("floor_8_rpcs_ms", "floor: 8 of them at once, wall ms"),
    Metric("floor_get_ms", "floor: GET of a claim, p50 ms"),
    Metric("floor_write_ms", "floor: 4 KiB write, fsync, rename, p50 ms"),
    Metric("floor_python_ms", "floor: exec until Python has imported grpc, ms"),
    Metric("floor_python_rss_mib", "floor: its RSS, MiB"),
    Metric("floor_python_anon_mib", "floor: its anonymous memory, MiB"),
    Metric("floor_idle_cpu_ms_per_30_s", "floor: idle CPU of a Python with one gRPC server, per 30 s, ms"),
    Metric("machine_busy_before", "CPUs busy with others before a round, 0 to 1"),
)


def table(results: Mapping[str, Sequence[Mapping[str, float]]]) -> str:
    """A Markdown table.

    Args:
        results: label -> its rounds, the driver that the aims are for first. Every further driver gets a column with
            its figure and one with the ratio of the first driver's to it.
    """
    labels = list(results)
    head = ["metric", f"{labels[0]}: median (min-max)", "aim", "ratio to floor"]
    for label in labels[1:]:
        head += [label, f"{labels[0]} / {label}"]
    lines = [head, ["---"] * len(head)]
    found = {label: spreads(rounds) for label, rounds in results.items()}
    lines += [_row(metric, [found[label] for label in labels]) for metric in METRICS if metric.key in found[labels[0]]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _row(metric: Metric, columns: Sequence[Mapping[str, Spread]]) -> list[str]:
    own = columns[0]
    value = own[metric.key]
    floor = sum(own[key].median for key in metric.floor)
    aim = "" if metric.aim is None else f"{metric.aim:g}"
    cells = [metric.title, _spread(value), aim, f"{value.median / floor:.1f}" if floor else ""]
    for other in columns[1:]:
        theirs = other.get(metric.key)
        if theirs is None:
            cells += ["", ""]
        else:
            cells += [_spread(theirs), f"{value.median / theirs.median:.2f}" if theirs.median else ""]
    return cells


def _spread(value: Spread) -> str:
    return f"{_number(value.median)} ({_number(value.low)}-{_number(value.high)})"


def _number(value: float) -> str:
    if value == int(value) or abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
