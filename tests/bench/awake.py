"""CPUs that do not fall asleep while something is measured.

A CPU without work halts, and a virtual one goes back to its host; each hand-over between threads or processes then
costs the way back, 50 to 100 µs, several times in one call. A node that runs pods hardly ever has such CPUs, a machine
that does nothing but this measurement always. Here a process of the lowest class (``SCHED_IDLE``, sched(7)) turns on
each CPU: whatever else becomes runnable takes its place at once.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_TURN = """
import os, sys
parent = os.getppid()
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
print("turning", flush=True)
while os.getppid() == parent:
    for _ in range(100_000):
        pass
"""
"""Ends by itself when whoever measures is gone, also by SIGKILL."""


@contextlib.contextmanager
def cpus_awake() -> Iterator[tuple[int, ...]]:
    """Keep every CPU that this process may use awake; gives the processes' ids.

    Raises:
        OSError: the kernel does not let a process have this class or CPU.
    """
    turning: list[subprocess.Popen[str]] = []
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            command = [sys.executable, "-I", "-S", "-c", _TURN, str(cpu)]
            turning.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        for process in turning:
            assert process.stdout is not None
            if process.stdout.readline() != "turning\n":
                raise OSError(f"process {process.pid} that was to keep a CPU awake has ended; see above")
        yield tuple(process.pid for process in turning)
    finally:
        for process in turning:
            process.kill()
        for process in turning:
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
