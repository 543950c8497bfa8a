"""The binding gives back what it takes: memory stays flat however often it reads, changes and waits.

``GPUDRA_LEAK_ROUNDS`` makes the runs longer; the growth that is allowed stays the same.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
ROUNDS = int(os.environ.get("GPUDRA_LEAK_ROUNDS", "150"))
ALLOWED_KIB = 1024

PROGRAM = """
import gc, sys
from pathlib import Path
from native.nvml import make_backend
from native.nvml.migtypes import Placement

library_path, backend, rounds, *addresses = sys.argv[1:]
library = make_backend(library_path, backend)

def resident():
    gc.collect()
    return int(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines()
                    if line.startswith("VmRSS")))

def once():
    library.open()
    library.snapshot(addresses, mig=True)
    library.snapshot(None)
    library.health(addresses)
    library.topology(addresses)
    made = library.create_gpu_instance(addresses[1], 19, Placement(1, 1))
    library.compute_instance_profiles(addresses[1], made.id)
    compute = library.create_compute_instance(addresses[1], made.id, 0)
    library.destroy_compute_instance(addresses[1], made.id, compute.id)
    library.destroy_gpu_instance(addresses[1], made.id)
    library.open_events()
    library.register_events(addresses[0], 8)
    library.wait_event(0)

for _ in range(30):
    once()
library.close()
before = resident()
for number in range(int(rounds)):
    once()
    if number % 10 == 0:
        library.close()
library.close()
print(resident() - before)
"""


@pytest.mark.parametrize("backend", ["cffi", "pynvml"])
def test_memory_stays_flat(node, backend: str) -> None:
    node.mig(ADDRESSES[1]).gpu_instance(ADDRESSES[1], 2, 9, 4, 4).compute_instance(ADDRESSES[1], 2, 0, 2, index=6)
    arguments = [str(node.library), backend, str(ROUNDS), *ADDRESSES]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < ALLOWED_KIB
