"""What a snapshot of eight GPUs with topology costs through each backend: ``python -m tests.bench.nvml``.

The node is a mock DGX H100, which answers a call in tens of nanoseconds: what is compared is the binding. On hardware
the driver's own time comes on top for both. The two backends take turns of ten rounds, so that a busy moment hits both
and neither starts with the other's data in the CPU's caches; the best round counts, as that in which nobody else was at
work. The states:

    unchanged   a poll of a node on which nothing happened
    one         one GPU has changed
    all         every GPU has changed; what their parts have in common is known
    cold        nothing is known, as in the first reading of a process
    first       the first reading of a process of its own, of which each round starts one for each backend
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from native.mock import MockNode
from native.nvml import cffi_backend, cffi_library, open_library, values
from native.nvml.cffi_backend import CffiNvml
from native.nvml.protocol import Nvml

BACKENDS = ("cffi", "pynvml")
TURN = 10
PARTS = (cffi_backend._links, cffi_library.canonical, values.pci_address)

_FIRST = """
import json, sys, time
from native.nvml import make_backend
library = make_backend(sys.argv[1], sys.argv[2])
addresses = sys.argv[3:]
begin = time.perf_counter()
library.open()
opened = time.perf_counter()
library.snapshot(addresses)
library.topology(addresses)
print(json.dumps([opened - begin, time.perf_counter() - opened]))
"""


def forget(library: Nvml, *, gpus: int, parts: bool = False) -> None:
    """Make the backend forget what it knows of so many GPUs, and of their parts."""
    if isinstance(library, CffiNvml):
        for address in list(library._memo)[:gpus]:
            del library._memo[address]
        if gpus > 1:
            library._topology = None
    if parts:
        for cached in PARTS:
            cached.cache_clear()


STATES: dict[str, Callable[[Nvml], None]] = {
    "unchanged": lambda _: None,
    "one": lambda library: forget(library, gpus=1),
    "all": lambda library: forget(library, gpus=8),
    "cold": lambda library: forget(library, gpus=8, parts=True),
}


def measure(node: MockNode, rounds: int) -> dict[str, dict[str, list[float]]]:
    """State -> backend -> seconds of each round."""
    addresses = [gpu.address for gpu in node.profile.gpus]
    libraries = {name: open_library(node.library, name) for name in BACKENDS}
    found: dict[str, dict[str, list[float]]] = {}
    for state, before in STATES.items():
        found[state] = {name: [] for name in BACKENDS}
        for name, library in itertools.chain.from_iterable([libraries.items()] * (rounds // TURN)):
            for _ in range(TURN):
                before(library)
                begin = time.perf_counter()
                library.snapshot(addresses)
                library.topology(addresses)
                found[state][name].append(time.perf_counter() - begin)
    for library in libraries.values():
        library.close()
    return found


def first(node: MockNode, rounds: int) -> dict[str, list[float]]:
    """Backend -> seconds of the first reading, each by a process of its own; opening the library is not in it."""
    addresses = [gpu.address for gpu in node.profile.gpus]
    found: dict[str, list[float]] = {name: [] for name in BACKENDS}
    for _ in range(rounds):
        for name in BACKENDS:
            command = [sys.executable, "-c", _FIRST, str(node.library), name, *addresses]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout)[1])
    return found


def table(found: dict[str, dict[str, list[float]]]) -> str:
    """One row a state, in microseconds: best and median of both, and the ratio of the best."""
    lines = ["| state | cffi, µs | pynvml, µs | pynvml / cffi |", "| --- | --- | --- | --- |"]
    for state, backends in found.items():
        best = {name: min(each) * 1e6 for name, each in backends.items()}
        middle = {name: statistics.median(each) * 1e6 for name, each in backends.items()}
        cells = [f"{best[name]:.0f} ({middle[name]:.0f})" for name in BACKENDS]
        lines.append(f"| {state} | {cells[0]} | {cells[1]} | {best['pynvml'] / best['cffi']:.1f} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=500, help="rounds of each state (default: 500)")
    parser.add_argument("--processes", type=int, default=20, help="rounds of the state `first` (default: 20)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        node = MockNode.create(Path(folder) / "node", "dgx-h100")
        os.environ.update({**node.environment, "GPUDRA_MOCK_QUIET": "1"})
        print(table(measure(node, options.rounds) | {"first": first(node, options.processes)}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
