"""What /proc tells of a process and its children (proc(5)): CPU time, memory, threads, descriptors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_MEMORY = {"Rss": "rss_mib", "Pss": "pss_mib", "Anonymous": "anon_mib"}
_GONE = (FileNotFoundError, ProcessLookupError)
_EXITED_SLACK = 0.02
"""Seconds by which the clock ticks of a process may run ahead of its threads' exact times."""


def tree(pid: int) -> list[int]:
    """A process and all its descendants that are alive."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(*_GONE):
                children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of the process tree, in nanosecond resolution as far as threads are alive."""
    total = 0.0
    for member in tree(pid):
        with contextlib.suppress(*_GONE):
            fields = _stat(member)
            ticks = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            exact = sum(_thread_nanoseconds(member)) / 1e9
            # Threads that have ended are in the ticks only.
            total += max(exact, ticks - _EXITED_SLACK) if exact else ticks
    return total


def memory(pid: int) -> dict[str, float]:
    """``rss_mib``, ``pss_mib``, ``anon_mib``, ``threads`` and ``descriptors`` of the process tree."""
    found = dict.fromkeys((*_MEMORY.values(), "threads", "descriptors"), 0.0)
    for member in tree(pid):
        with contextlib.suppress(*_GONE):
            folder = Path("/proc") / str(member)
            for line in (folder / "smaps_rollup").read_text().splitlines():
                key, _, value = line.partition(":")
                if key in _MEMORY:
                    found[_MEMORY[key]] += int(value.split()[0]) / 1024
            found["threads"] += len(list((folder / "task").iterdir()))
            found["descriptors"] += len(list((folder / "fd").iterdir()))
    return found


def machine_busy(since: tuple[int, int]) -> float:
    """The part of all CPUs that was busy since ``machine_times`` gave ``since``, 0 to 1."""
    total, busy = machine_times()
    return (busy - since[1]) / max(1, total - since[0])


def machine_times() -> tuple[int, int]:
    """Clock ticks of all CPUs since boot: all of them, and the busy ones."""
    values = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return sum(values), sum(values) - values[3] - values[4]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on: the name before them may hold spaces and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _thread_nanoseconds(pid: int) -> Iterator[int]:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(*_GONE):
            yield int((thread / "schedstat").read_text().split()[0])
