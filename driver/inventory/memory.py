"""What a GPU's memory is and how large: dedicated, coherent with the host's, or one with it."""

from __future__ import annotations

import msgspec

from driver.inventory.words import ADDRESSING_MODES
from driver.model import MemoryKind
from native.nvml.errors import NvmlReturn
from native.nvml.types import GpuSnapshot


class GpuMemory(msgspec.Struct, frozen=True):
    """Size in bytes (None: unknown, never 0) and kind; ``remark`` is for people, where there is something to say."""

    total_bytes: int | None
    kind: MemoryKind
    remark: str | None = None


def memory_of(gpu: GpuSnapshot, host_memory_bytes: int | None) -> GpuMemory:
    """The memory of a GPU that NVML can read.

    A GPU without memory of its own (GB10, Jetson) answers nvmlDeviceGetMemoryInfo with NOT_SUPPORTED, and with some
    drivers with success and a total of 0: its memory is the host's, /proc/meminfo's MemTotal. Any other failure says
    nothing about the kind and leaves the size unknown.
    """
    if gpu.memory_total:
        if gpu.memory_total == host_memory_bytes:  # to the byte: the driver reported the host's memory
            return GpuMemory(gpu.memory_total, MemoryKind.UNIFIED)
        coherent = gpu.memory_numa_node is not None or ADDRESSING_MODES.get(gpu.addressing_mode or 0) == "ATS"
        return GpuMemory(gpu.memory_total, MemoryKind.COHERENT if coherent else MemoryKind.DEDICATED)
    code = gpu.codes.get("memory_total", NvmlReturn.SUCCESS)
    if code not in (NvmlReturn.SUCCESS, NvmlReturn.NOT_SUPPORTED):
        return GpuMemory(None, MemoryKind.DEDICATED)
    if host_memory_bytes:
        remark = "has no memory of its own; the host's MemTotal is taken for its size, shared with the host's programs"
    else:
        remark = "has no memory of its own and the host's MemTotal is unknown; no memory capacity is published"
    return GpuMemory(host_memory_bytes or None, MemoryKind.UNIFIED, remark)
