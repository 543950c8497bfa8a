"""CPUs that do not fall asleep while something is measured.

A CPU without work halts, and a virtual one goes back to its host; each hand-over between threads or processes then
costs the way back, 50 to 100 µs, several times in one call. A node that runs pods hardly ever has such CPUs, a machine
that does nothing but this measurement always. The kernel lets a program forbid it for as long as it holds a file open
(power management's quality of service, Documentation/power/pm_qos_interface.rst), as ``tuned`` does with its profiles
for low latency.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

LATENCY = Path("/dev/cpu_dma_latency")


@contextlib.contextmanager
def cpus_awake(latency: Path = LATENCY) -> Iterator[None]:
    """Keep every CPU from sleeping.

    Raises:
        OSError: the kernel has no such file, or it may not be written.
    """
    with latency.open("wb", buffering=0) as file:
        file.write((0).to_bytes(4, "little"))  # microseconds that waking up may take
        yield
