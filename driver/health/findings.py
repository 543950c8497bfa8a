"""What is wrong with a GPU, from what was read of it: pure functions from readings to findings.

A finding has a cause, which is a constant, and says by ``gpu_instance`` which partition it is about (None: the whole
GPU, and so every partition of it: NVML writes 0xFFFFFFFF for that). Two kinds differ in how they end:

* a sight is there as long as each look shows it (lost, hung, a row waiting for its remapping, a hot GPU); of what the
  board remembers, a look that does not tell of it shows nothing new;
* an event happened once (XID, poison): it stands until the GPU has proven itself, see ``driver.health.keeper``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from driver.health.xids import Severity, describe
from driver.model import Gpu, GpuState
from native.nvml.errors import NvmlReturn, code_name
from native.nvml.eventtypes import EventType, NvmlEvent
from native.nvml.healthtypes import GpuHealth, RemappedRows, RetiredPages

LOST: Final = "lost"
HANG: Final = "hang"
UNREADABLE: Final = "unreadable"
XID: Final = "xid"
ECC: Final = "ecc"
ROW_REMAP_PENDING: Final = "row-remap-pending"
ROW_REMAP_FAILURE: Final = "row-remap-failure"
PAGE_RETIREMENT_PENDING: Final = "page-retirement-pending"
PAGES_RETIRED: Final = "pages-retired"
REPAIR_PENDING: Final = "repair-pending"
RECOVERY_ACTION: Final = "recovery-action"
POISON: Final = "poison"
UNAVAILABLE: Final = "unavailable"
UNMONITORED: Final = "unmonitored"
NVLINK: Final = "nvlink-down"
PCIE: Final = "pcie-degraded"
THERMAL: Final = "thermal-slowdown"
POWER: Final = "power-brake"

CAUSES: Final = (
    LOST, HANG, UNREADABLE, XID, ECC, ROW_REMAP_PENDING, ROW_REMAP_FAILURE, PAGE_RETIREMENT_PENDING, PAGES_RETIRED,
    REPAIR_PENDING, RECOVERY_ACTION, POISON, UNAVAILABLE, UNMONITORED, NVLINK, PCIE, THERMAL, POWER,
)  # fmt: skip
"""All causes; what ``healthIgnoreCauses`` may name."""

REMEMBERED: Final[Mapping[str, str]] = {
    ROW_REMAP_PENDING: "remapped_rows",
    ROW_REMAP_FAILURE: "remapped_rows",
    PAGE_RETIREMENT_PENDING: "retired_pages",
    PAGES_RETIRED: "retired_pages",
}
"""Sights of what the board keeps in its InfoROM -> the field of ``GpuHealth`` that tells of it. It may not tell:
remapped rows are not supported while there are MIG instances (nvml.h)."""

MAX_RETIRED_PAGES: Final = 60
"""Pages retired for either cause from which NVIDIA has the board looked at for its replacement: DCGM isolates such a
GPU (DCGM_FR_RETIRED_PAGES_LIMIT with DCGM_LIMIT_MAX_RETIRED_PAGES 60; 63 in later ones), and 64 is all that a board has
room for (NVIDIA, "GPU Memory Error Management", on row remapping)."""

_HW_THERMAL: Final = 0x40
_HW_POWER_BRAKE: Final = 0x80
"""nvmlClocksEventReasonHwThermalSlowdown and ...HwPowerBrakeSlowdown (nvml.h)."""

_ACTIONS: Final = {
    1: (Severity.FATAL, "reset the GPU (nvidia-smi --gpu-reset)"),
    2: (Severity.FATAL, "reboot the node"),
    3: (Severity.DEVICE, "drain the GPUs that talk to it over NVLink, so that P2P can be reset"),
    4: (Severity.DEVICE, "let its processes end, then reset the GPU"),
    5: (Severity.DEVICE, "recover the IMEX domain that it belongs to"),
    6: (Severity.FATAL, "reset the GPU's PCIe bus (nvidia-smi --gpu-reset), or reboot the node"),
    7: (Severity.FATAL, "reboot the whole system that the GPU is part of"),
}
"""nvmlDeviceGpuRecoveryAction_t."""


class Finding(msgspec.Struct, frozen=True, order=True):
    """One thing that is wrong."""

    cause: str
    severity: Severity
    message: str
    """What, and what to do."""
    xid: int | None = None
    gpu_instance: int | None = None
    event: bool = False
    """It happened once, rather than being seen at each look."""

    @property
    def key(self) -> tuple[str, int | None, int | None]:
        """Equal for findings of the same thing."""
        return self.cause, self.xid, self.gpu_instance


def of_event(event: NvmlEvent) -> Finding | None:
    """What an event that NVML reported by itself says; None: nothing about health."""
    if event.xid is not None:
        known = describe(event.xid)
        message = f"XID {event.xid}: {known.name}; {known.action}"
        return Finding(XID, known.severity, message, event.xid, event.gpu_instance, event=True)
    row = _EVENTS.get(event.type)
    if row is None:
        return None
    cause, severity, message = row
    return Finding(cause, severity, message, gpu_instance=event.gpu_instance, event=True)


_EVENTS: Final[Mapping[int, tuple[str, Severity, str]]] = {
    EventType.DOUBLE_BIT_ECC_ERROR: (ECC, Severity.DEVICE, "an uncorrectable ECC error; reset the GPU"),
    EventType.SINGLE_BIT_ECC_ERROR_STORM: (ECC, Severity.DEGRADED, "a storm of corrected ECC errors; watch the GPU"),
    EventType.DRAM_RETIREMENT_FAILURE: (ROW_REMAP_FAILURE, Severity.FATAL, "memory could not be retired; replace it"),
    EventType.NON_FATAL_POISON_ERROR: (POISON, Severity.APPLICATION, "poisoned data was used; restart the application"),
    EventType.FATAL_POISON_ERROR: (POISON, Severity.FATAL, "poisoned data cannot be contained; reset the GPU"),
    EventType.GPU_UNAVAILABLE_ERROR: (UNAVAILABLE, Severity.FATAL, "NVML reports the GPU as unavailable; reset it"),
}


def of_gpu(gpu: Gpu, best: Gpu | None) -> tuple[Finding, ...]:
    """What the snapshot says of a GPU.

    Args:
        best: the same GPU as it was read at its best in this boot: with its links and its PCIe width.
    """
    reason = gpu.reason or f"its state is {gpu.state.value}"
    if gpu.state is GpuState.LOST:
        return (Finding(LOST, Severity.FATAL, reason),)
    if gpu.state is GpuState.WEDGED:
        return (Finding(HANG, Severity.FATAL, reason),)
    if gpu.state is GpuState.UNREADABLE:
        return (Finding(UNREADABLE, Severity.DEVICE, reason),)
    return () if best is None or gpu.state is not GpuState.READY else tuple(_links(gpu, best))


def _links(gpu: Gpu, best: Gpu) -> Iterable[Finding]:
    up = {link.index for link in gpu.nvlinks if link.active}
    down = [link.index for link in best.nvlinks if link.active and link.index not in up]
    # In MIG mode a GPU has no NVLink to others (MIG user guide, "Application Considerations"): none is up.
    if down and not gpu.mig_enabled and not {"nvlinks", "mig"} & set(gpu.unread):
        names = ", ".join(map(str, down))
        yield Finding(NVLINK, Severity.DEVICE, f"NVLink {names} was up and is down; drain and reset the GPU")
    pairs = (
        ("width", best.pcie_link_width, gpu.pcie_link_width),
        ("generation", best.pcie_link_generation, gpu.pcie_link_generation),
    )
    for word, before, now in pairs:
        if before is not None and now is not None and now < before:
            message = f"the PCIe link's {word} is {now}, it was {before}; reseat the board or check the slot"
            yield Finding(PCIE, Severity.DEGRADED, message)
            return


def of_health(health: GpuHealth) -> tuple[Finding, ...]:
    """What the probe says."""
    code = health.codes.get("handle")
    if code is None:
        return tuple(_probed(health))
    if code in GONE:
        message = f"NVML says {code_name(code)}: the GPU does not answer; see dmesg, reset it or reboot the node"
        return (Finding(LOST, Severity.FATAL, message),)
    if code == NvmlReturn.TIMEOUT:
        message = "an NVML call about it does not come back; see dmesg, reset it or reboot the node"
        return (Finding(HANG, Severity.FATAL, message),)
    return (Finding(UNREADABLE, Severity.DEVICE, f"NVML says {code_name(code)}; see dmesg"),)


def of_registration(code: int) -> tuple[Finding, ...]:
    """What it means that NVML reports no events for a GPU. Not supported (old boards, vGPU, WSL) is no fault."""
    if code in (NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND):
        return ()
    message = f"its events are not reported ({code_name(code)}): an XID would go unnoticed, probes go on"
    return (Finding(UNMONITORED, Severity.DEGRADED, message),)


def risen(before: GpuHealth, now: GpuHealth) -> str:
    """What has happened to a GPU between two readings, by what stays of it: a clause, empty for nothing.

    Volatile counters begin anew with the driver; what they lose by that is no news, and where the aggregate ones are
    told these count.
    """
    said = []
    for word in ("uncorrected", "corrected"):
        counters = [f"ecc_{word}_{kind}" for kind in ("aggregate", "volatile")]
        pairs = [(getattr(before, one), getattr(now, one)) for one in counters]
        told = next(((was, known) for was, known in pairs if was is not None and known is not None), (0, 0))
        if told[1] > told[0]:
            said.append(f"{told[1] - told[0]} {word} ECC errors")
    said += _rows_risen(before.remapped_rows, now.remapped_rows) + _pages_risen(before.retired_pages, now.retired_pages)
    if any(now.repair_pending or ()) and not any(before.repair_pending or ()):
        said.append("a repair waits for a reset")
    if now.recovery_action and now.recovery_action != before.recovery_action:
        said.append(f"the driver asks for recovery action {now.recovery_action}")
    if (code := now.codes.get("handle")) is not None:
        said.append(f"it does not answer ({code_name(code)})")
    return ", ".join(said)


def _rows_risen(old: RemappedRows | None, rows: RemappedRows | None) -> list[str]:
    if rows is None or old is None:
        return []
    count = rows.correctable + rows.uncorrectable - old.correctable - old.uncorrectable
    said = [f"{count} memory rows remapped"] if count > 0 else []
    said += ["a memory row waits to be remapped"] if rows.pending and not old.pending else []
    said += ["a memory row could not be remapped"] if rows.failure and not old.failure else []
    return said


def _pages_risen(old: RetiredPages | None, pages: RetiredPages | None) -> list[str]:
    if pages is None or old is None:
        return []
    count = pages.single_bit + pages.double_bit - old.single_bit - old.double_bit
    said = [f"{count} memory pages retired"] if count > 0 else []
    said += ["a memory page waits to be retired"] if pages.pending and not old.pending else []
    return said


NO_DRIVER: Final = frozenset(
    {NvmlReturn.DRIVER_NOT_LOADED, NvmlReturn.UNINITIALIZED, NvmlReturn.LIB_RM_VERSION_MISMATCH}
)
"""Codes that are about the driver as a whole, wherever they turn up."""
GONE: Final = frozenset({NvmlReturn.NOT_FOUND, NvmlReturn.GPU_NOT_FOUND, NvmlReturn.GPU_IS_LOST})


def _probed(health: GpuHealth) -> Iterable[Finding]:
    rows = health.remapped_rows
    if rows is not None and rows.failure:
        yield Finding(ROW_REMAP_FAILURE, Severity.FATAL, "a memory row could not be remapped; replace the GPU")
    elif rows is not None and rows.pending:
        message = "a memory row waits to be remapped; reset the GPU when it is idle"
        yield Finding(ROW_REMAP_PENDING, Severity.DEGRADED, message)
    yield from _pages(health)
    if health.repair_pending is not None and any(health.repair_pending):
        what = " and ".join(name for name, on in zip(("channel", "TPC"), health.repair_pending, strict=True) if on)
        yield Finding(REPAIR_PENDING, Severity.DEGRADED, f"a {what} repair waits; reset the GPU when it is idle")
    if health.ecc_uncorrected_volatile:
        count = health.ecc_uncorrected_volatile
        # A driver that knows recovery actions says by one whether they need a reset: a contained error does not.
        severity = Severity.DEVICE if health.recovery_action is None else Severity.DEGRADED
        yield Finding(ECC, severity, f"{count} uncorrectable ECC errors since the driver came; reset the GPU")
    if health.recovery_action:
        severity, text = _ACTIONS.get(health.recovery_action, (Severity.DEVICE, "see nvidia-smi -q"))
        message = f"the driver asks for recovery action {health.recovery_action}: {text}"
        yield Finding(RECOVERY_ACTION, severity, message)
    reasons = health.clocks_event_reasons or 0
    if reasons & _HW_THERMAL:
        degrees = f" at {health.temperature} C" if health.temperature is not None else ""
        yield Finding(THERMAL, Severity.DEGRADED, f"the clocks are held down by heat{degrees}; check the cooling")
    if reasons & _HW_POWER_BRAKE:
        yield Finding(POWER, Severity.DEGRADED, "the clocks are held down by the power brake; check the power supply")


def _pages(health: GpuHealth) -> Iterable[Finding]:
    """What retired pages say, on boards that remap no rows (before Ampere).

    A page is taken out of use when the GPU is next initialised. One that waits because of corrected errors harms nobody
    until then; behind an uncorrectable error no program gets a context before (NVIDIA, "Dynamic Page Retirement").
    Pages that are out of use harm nobody either: a board with many is kept from new work, and its programs go on. One
    that could not be retired is XID 64.
    """
    pages = health.retired_pages
    if pages is None:
        return
    if pages.pending and health.ecc_uncorrected_volatile:
        message = "a memory page waits to be retired behind an uncorrectable error, no program can begin; reset the GPU"
        yield Finding(PAGE_RETIREMENT_PENDING, Severity.DEVICE, message)
    elif pages.pending:
        message = "a memory page waits to be retired; reset the GPU when it is idle"
        yield Finding(PAGE_RETIREMENT_PENDING, Severity.DEGRADED, message)
    total = pages.single_bit + pages.double_bit
    if total >= MAX_RETIRED_PAGES:
        counts = f"{total} memory pages are retired, {pages.double_bit} of them for double-bit errors"
        yield Finding(PAGES_RETIRED, Severity.DEVICE, f"{counts}; replace the GPU")
