"""The C of the binding under the compiler's sanitizers, with a watcher beside the reader."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[3] / "native" / "csrc"
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")


@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_reading_is_clean_while_another_thread_watches(node, tmp_path: Path, sanitizer: str) -> None:
    program = tmp_path / "watched-read"
    flags = [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-g", "-O1", "-std=gnu11", "-Wall", "-Wextra"]
    flags += ["-Werror", "-DNVML_NO_UNVERSIONED_FUNC_DEFS", f"-I{CSRC}", f"-I{CSRC / 'vendor'}"]
    sources = [str(Path(__file__).with_name("watched_read.c")), *map(str, sorted(CSRC.glob("nvml_*.c")))]
    subprocess.run(["cc", *flags, "-o", str(program), *sources, "-ldl", "-lpthread"], check=True)
    node.text("nvmlDeviceGetName", b"\xff" * 255, ADDRESSES[0])
    node.text("nvmlDeviceGetPciInfo_v3", b"\xff" * 32, ADDRESSES[1])
    node.code("nvmlDeviceGetHandleByPciBusId_v2", 15, ADDRESSES[2]).code("nvmlDeviceGetMemoryInfo_v2", 25)
    node.set("fabric", 1).set("profiles", 2).mig(ADDRESSES[1])
    node.gpu_instance(ADDRESSES[1], 2, 9, 4, 4).compute_instance(ADDRESSES[1], 2, 0, 2, index=6)
    node.text("nvmlDeviceGetGpuInstanceProfileInfoV", b"\xff" * 96, ADDRESSES[1])
    node.event(ADDRESSES[1], 8, 79).event("-", 8, 31)
    done = subprocess.run(
        [str(program), str(node.library), "20", *ADDRESSES], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
