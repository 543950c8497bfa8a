"""How a GPU is doing, as frozen data. ``None`` is "no value"; why there is none stands in ``codes``."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from native.nvml.migtypes import NO_CODES


class GpuProcess(msgspec.Struct, frozen=True, order=True):
    """nvmlProcessInfo_t: a process that has a context on the GPU."""

    pid: int
    """As the driver's PID namespace numbers it: the host's."""
    gpu_instance: int | None
    compute_instance: int | None
    used_memory: int | None
    """Bytes; None where the driver does not say."""


class RemappedRows(msgspec.Struct, frozen=True):
    """nvmlDeviceGetRemappedRows."""

    correctable: int
    uncorrectable: int
    pending: bool
    """A row waits for a reset to be remapped."""
    failure: bool
    """A row could not be remapped: the board is to be replaced."""


class RetiredPages(msgspec.Struct, frozen=True):
    """nvmlDeviceGetRetiredPages and nvmlDeviceGetRetiredPagesPendingStatus: before Ampere, where no rows are remapped.

    The counts include pages that wait. They stand in the InfoROM: they never fall.
    """

    single_bit: int
    """Retired because of several single-bit ECC errors at one address."""
    double_bit: int
    """Retired because of a double-bit ECC error."""
    pending: bool
    """A page waits to be retired: for a reset of the GPU, or for the driver to be loaded anew."""


class GpuHealth(msgspec.Struct, frozen=True):
    """One GPU at one moment. Counters are NVML's: volatile ones begin anew with the driver, aggregate ones never."""

    address: str
    uuid: str | None = None
    """For the probe's sake: the GPU answers, and it is still the same one."""
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remapped_rows: RemappedRows | None = None
    """Not supported before Ampere, nor on a GPU with MIG instances."""
    retired_pages: RetiredPages | None = None
    """Not supported since Ampere."""
    repair_pending: tuple[bool, bool] | None = None
    """(channel, TPC), nvmlDeviceGetRepairStatus."""
    recovery_action: int | None = None
    """NVML_FI_DEV_GET_GPU_RECOVERY_ACTION: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, ..."""
    clocks_event_reasons: int | None = None
    """Bits of nvmlClocksEventReason*, 0 where nothing holds the clocks down."""
    temperature: int | None = None
    """Degrees Celsius."""
    utilization: tuple[int, int] | None = None
    """(GPU, memory), percent of the last sample period. Not supported on a GPU with MIG on."""
    memory_used: int | None = None
    """Bytes, without what is reserved."""
    compute_processes: tuple[GpuProcess, ...] | None = None
    graphics_processes: tuple[GpuProcess, ...] | None = None
    mps_processes: tuple[GpuProcess, ...] | None = None
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: NO_CODES)
    """Field name -> NVML return code. ``handle``: the GPU itself was not reachable."""


class NvmlTopology(msgspec.Struct, frozen=True):
    """How the GPUs lie to each other and to the CPUs by NVML's account. The second source: sysfs is the first."""

    addresses: tuple[str, ...]
    levels: Mapping[tuple[str, str], int]
    """Both orders of each pair -> nvmlGpuTopologyLevel_t (10 PIX, 20 PXB, 30 PHB, 40 NODE, 50 SYS)."""
    nvlink: Mapping[tuple[str, str], bool]
    """Both orders of each pair -> whether peer access over NVLink is possible (nvmlDeviceGetP2PStatus)."""
    cpus: Mapping[str, frozenset[int]]
    """nvmlDeviceGetCpuAffinity: all CPUs where the NUMA node is not known."""
    memory_nodes: Mapping[str, frozenset[int]]
    """nvmlDeviceGetMemoryAffinity: host NUMA nodes."""
    codes: Mapping[tuple[str, ...], int]
    """(``handle`` | ``cpus`` | ``memory_nodes``, address) or (``levels`` | ``nvlink``, address, address) -> code."""
