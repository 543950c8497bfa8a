"""What is measured of one driver in one round: its start, its memory, its idleness, claims, many claims."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kubeletplugin.api import ClaimRef
from kubeletplugin.client import KubeClient
from tests.bench import cluster, floors, kubelet, procfs
from tests.bench.candidate import Candidate, Running
from tests.bench.stats import latencies, percentile

DEVICES = 8
SETTLE = 5.0
"""Seconds between the first slice and the look at memory."""
PUBLISH_TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        starts: extra starts and ends before the one that is measured on.
        idle: seconds of idleness to observe.
        rounds: rounds of eight claims, one call after the other.
        groups: eight claims in one call, and in eight calls at once: how often.
        burst: rounds of eight in the burst of all.
        cycles: Prepare and Unprepare of one claim, in the test for growth.
    """

    starts: int = 4
    idle: float = 30.0
    rounds: int = 25
    groups: int = 20
    burst: int = 8
    cycles: int = 2000

    @classmethod
    def quick(cls) -> Effort:
        """A look, not a measurement."""
        return cls(starts=1, idle=5.0, rounds=6, groups=6, burst=8, cycles=200)


def one_round(candidate: Candidate, client: KubeClient, effort: Effort) -> dict[str, float]:
    """All that is measured of one driver; metric -> value."""
    found = floors.of_interpreter() | floors.of_idleness(effort.idle / 3)
    starts = []
    for _ in range(effort.starts):
        with _fresh(candidate, client) as first, candidate.started() as running:
            starts.append(_start(running, first))
    with _fresh(candidate, client) as first, candidate.started() as running:
        starts.append(_start(running, first))
        found |= {name: percentile([each[name] for each in starts], 50) for name in starts[0]}
        found |= _rest(running, effort.idle)
        socket = kubelet.endpoint(running.wait_registration())
        offered = cluster.devices(client, candidate.driver, DEVICES)
        claims = cluster.create_claims(client, candidate.driver, offered, DEVICES * effort.burst)
        try:
            with kubelet.Kubelet(socket) as calls:
                found |= floors.of_calls(calls) | floors.of_reads(client, claims[0]) | floors.of_writes(candidate.data)
                found |= _one_by_one(calls, claims, effort.rounds)
                found |= _repeated(calls, claims[:DEVICES], effort.rounds)
                found |= _groups(calls, claims, effort.groups)
                found |= _bursts(calls, claims, effort.burst)
                found |= _growth(running, calls, claims[:DEVICES], effort.cycles)
        finally:
            cluster.delete_claims(client, claims)
    return found


def _fresh(candidate: Candidate, client: KubeClient) -> cluster.FirstSlice:
    candidate.clean()
    cluster.delete_slices(client, candidate.driver)
    return cluster.FirstSlice(client, candidate.driver)


def _start(running: Running, first: cluster.FirstSlice) -> dict[str, float]:
    running.wait_registration()
    registered = time.perf_counter()
    published = first.wait(PUBLISH_TIMEOUT)
    running.check("it had published")
    return {
        "start_socket_ms": (registered - running.begin) * 1e3,
        "start_slice_ms": (published - running.begin) * 1e3,
        "start_cpu_ms": procfs.cpu_seconds(running.pid) * 1e3,
    }


def _rest(running: Running, seconds: float) -> dict[str, float]:
    running.outlast(SETTLE)
    found = procfs.memory(running.pid)
    before = procfs.cpu_seconds(running.pid)
    running.outlast(seconds)
    found["idle_cpu_ms_per_30_s"] = (procfs.cpu_seconds(running.pid) - before) * 1e3 * 30 / seconds
    return found


def _rounds(claims: Sequence[ClaimRef], count: int) -> Iterator[Sequence[ClaimRef]]:
    """``count`` rounds of eight claims, all eight devices in each; the claims come again and again."""
    for number in range(count):
        begin = number * DEVICES % len(claims)
        yield claims[begin : begin + DEVICES]


def _one_by_one(calls: kubelet.Kubelet, claims: Sequence[ClaimRef], rounds: int) -> dict[str, float]:
    prepared: list[float] = []
    unprepared: list[float] = []
    for eight in _rounds(claims, rounds):
        prepared += [calls.prepare([ref]) for ref in eight]
        unprepared += [calls.unprepare([ref]) for ref in eight]
    held = {f"prepare_{number}_held_ms": percentile(prepared[number::DEVICES], 50) * 1e3 for number in (0, 3, 7)}
    return latencies("prepare", prepared) | held | latencies("unprepare", unprepared)


def _repeated(calls: kubelet.Kubelet, eight: Sequence[ClaimRef], rounds: int) -> dict[str, float]:
    for ref in eight:
        calls.prepare([ref])
    seconds = [calls.prepare([ref]) for _ in range(rounds) for ref in eight]
    calls.unprepare(eight)
    return latencies("repeat", seconds)


def _groups(calls: kubelet.Kubelet, claims: Sequence[ClaimRef], count: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, prepare, unprepare in _both_ways(calls):
        prepared, unprepared = [], []
        for eight in _rounds(claims, count):
            prepared.append(prepare(eight))
            unprepared.append(unprepare(eight))
        found[f"{name}_ms"] = percentile(prepared, 50) * 1e3
        found[f"{name}_undone_ms"] = percentile(unprepared, 50) * 1e3
    return found


def _bursts(calls: kubelet.Kubelet, claims: Sequence[ClaimRef], rounds: int) -> dict[str, float]:
    found = {}
    for name, prepare, unprepare in _both_ways(calls):
        begin = time.perf_counter()
        for eight in _rounds(claims, rounds):
            prepare(eight)
            unprepare(eight)
        found[f"burst_{name}_s"] = time.perf_counter() - begin
    return found


def _both_ways(
    calls: kubelet.Kubelet,
) -> tuple[tuple[str, Callable[[Sequence[ClaimRef]], float], Callable[[Sequence[ClaimRef]], float]], ...]:
    return (
        ("one_call_of_8", calls.prepare, calls.unprepare),
        ("8_calls_at_once", calls.prepare_each, calls.unprepare_each),
    )


def _growth(running: Running, calls: kubelet.Kubelet, eight: Sequence[ClaimRef], cycles: int) -> dict[str, float]:
    before, cpu = procfs.memory(running.pid), procfs.cpu_seconds(running.pid)
    for number in range(cycles):
        ref = eight[number % len(eight)]
        calls.prepare([ref])
        calls.unprepare([ref])
    after = procfs.memory(running.pid)
    return {
        "cycle_cpu_ms": (procfs.cpu_seconds(running.pid) - cpu) * 1e3 / cycles,
        "rss_after_mib": after["rss_mib"],
        "anon_after_mib": after["anon_mib"],
        "rss_growth_mib": after["rss_mib"] - before["rss_mib"],
        "descriptor_growth": after["descriptors"] - before["descriptors"],
    }
