"""What no driver can be faster than on this machine at this moment, measured beside the drivers.

The ratio of a figure to its floor travels between machines; the figure itself does not.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kubeletplugin.api import ClaimRef
from kubeletplugin.client import KubeClient
from tests.bench import procfs
from tests.bench.cluster import CLAIMS
from tests.bench.kubelet import Kubelet
from tests.bench.stats import percentile

_BLOCK = b"x" * 4096
_PYTHON = (sys.executable, "-I", "-S", "-c")
"""Without what a development environment does at each start."""
_PATH = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); "
_IMPORTS = _PATH + "import grpc, google.protobuf.descriptor_pool; "
_SERVER = (
    "from concurrent.futures import ThreadPoolExecutor; server = grpc.server(ThreadPoolExecutor(2)); "
    "server.add_insecure_port('127.0.0.1:0'); server.start(); "
)
_WAIT = "sys.stdout.write('.'); sys.stdout.flush(); sys.stdin.read()"


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
        with _python(_IMPORTS) as process:
            seconds.append(time.perf_counter() - begin)
            memory = procfs.memory(process.pid)
            found = {f"floor_python_{name}": memory[name] for name in ("rss_mib", "pss_mib", "anon_mib")}
    return {"floor_python_ms": percentile(seconds, 50) * 1e3, **found}


def of_idleness(seconds: float) -> dict[str, float]:
    """A Python with one gRPC server that nobody calls: CPU milliseconds in 30 s, observed for ``seconds``.

    Nothing of ours is at work meanwhile: what the machine does then is the work of others.
    """
    with _python(_IMPORTS + _SERVER) as process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)  # what the start left to do
        machine, before = procfs.machine_times(), procfs.cpu_seconds(process.pid)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        used = procfs.cpu_seconds(process.pid) - before
        return {
            "floor_idle_cpu_ms_per_30_s": used * 1e3 * 30 / seconds,
            "machine_busy_before": procfs.machine_busy(machine),
        }


@contextmanager
def _python(program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A Python that has run the program and waits; it ends with the block."""
    with subprocess.Popen([*_PYTHON, program + _WAIT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        yield process
