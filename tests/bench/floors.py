"""What no driver can be faster than on this machine at this moment, measured beside the drivers.

The ratio of a figure to its floor travels between machines; the figure itself does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from kubeletplugin.api import ClaimRef
from kubeletplugin.client import KubeClient
from tests.bench import procfs
from tests.bench.cluster import CLAIMS
from tests.bench.kubelet import Kubelet
from tests.bench.stats import percentile

_BLOCK = b"x" * 4096
_IMPORTS = "import grpc, google.protobuf.descriptor_pool, sys; sys.stdout.write('.'); sys.stdout.flush(); "
_WAIT = "sys.stdin.read()"


def of_calls(kubelet: Kubelet, calls: int = 200) -> dict[str, float]:
    """An RPC without a claim, and eight of them at once: milliseconds."""
    alone = [kubelet.prepare(()) for _ in range(calls)]
    together = [kubelet.empty_each(8) for _ in range(20)]
    return {"floor_rpc_ms": percentile(alone, 50) * 1e3, "floor_8_rpcs_ms": percentile(together, 50) * 1e3}


def of_reads(client: KubeClient, ref: ClaimRef, reads: int = 200) -> dict[str, float]:
    """A GET of a claim over a kept connection: milliseconds."""
    seconds = []
    for _ in range(reads):
        begin = time.perf_counter()
        client.get(f"{CLAIMS}/{ref.name}")
        seconds.append(time.perf_counter() - begin)
    return {"floor_get_ms": percentile(seconds, 50) * 1e3}


def of_writes(folder: Path, writes: int = 200) -> dict[str, float]:
    """4 KiB written, synced and renamed in the driver's folder: milliseconds."""
    temporary, final = folder / ".bench.tmp", folder / ".bench"
    seconds = []
    for _ in range(writes):
        begin = time.perf_counter()
        with temporary.open("wb", buffering=0) as file:
            file.write(_BLOCK)
            os.fsync(file.fileno())
        temporary.rename(final)
        seconds.append(time.perf_counter() - begin)
    final.unlink()
    return {"floor_write_ms": percentile(seconds, 50) * 1e3}


def of_interpreter(starts: int = 3) -> dict[str, float]:
    """A Python that has imported grpc and protobuf and does nothing: milliseconds until then, and its memory in MiB."""
    seconds = []
    found: dict[str, float] = {}
    for _ in range(starts):
        begin = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", _IMPORTS + _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            seconds.append(time.perf_counter() - begin)
            memory = procfs.memory(process.pid)
            found = {f"floor_python_{name}": memory[name] for name in ("rss_mib", "pss_mib", "anon_mib")}
    return {"floor_python_ms": percentile(seconds, 50) * 1e3, **found}
