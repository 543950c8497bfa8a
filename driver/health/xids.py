"""The XIDs: what each number says, how bad it is, and what NVIDIA recommends.

Names and recommended actions follow the "immediate action" of NVIDIA's XID catalogue for Ampere and newer
(docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog), put into our words; the severity is ours:

* APPLICATION: the program is at fault, or only it is hit. The GPU goes on, so nobody is kept from it: RESTART_APP or
  IGNORE. NVIDIA's own DRA driver and device plugin pass over 13, 31, 43, 45, 68 and 109 for that reason.
* DEGRADED: the catalogue says IGNORE, and yet it tells of hardware that wears out.
* DEVICE: the GPU should not get new work until it has shown for a while that it is well again.
* FATAL: it does not come back without a reset of the GPU or a reboot of the machine: RESET_GPU, RESTART_BM, RESTART_VM.

A number that the table lacks counts as DEVICE: newer drivers know more faults than this table, and handing out a sick
GPU costs more than holding a sound one back for some minutes. NVML's 999 stands for a number that it does not know.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec


class Severity(enum.IntEnum):
    """How bad something is; of two findings the higher one decides."""

    APPLICATION = 1
    """Noted, no more: a program's fault."""
    DEGRADED = 2
    """It works, but not as well as it should."""
    DEVICE = 3
    FATAL = 4


class Xid(msgspec.Struct, frozen=True):
    """One number."""

    code: int
    name: str
    severity: Severity
    action: str
    """What to do, as a clause for a message."""


class Difference(NamedTuple):
    """Codes that are judged otherwise than NVIDIA's catalogue suggests."""

    codes: tuple[int, ...]
    why: str


_RESTART: Final = "restart the application"
_IGNORE: Final = "nothing"
_RESET: Final = "drain and reset the GPU (nvidia-smi --gpu-reset)"
_LATER: Final = "reset the GPU when it is idle"
_REBOOT: Final = "drain and reboot the node; if it comes again, replace the GPU"
_SUPPORT: Final = "collect nvidia-bug-report and contact NVIDIA"
_LINK: Final = "drain, reset all GPUs of the NVLink domain, check the fabric manager"

_A, _G, _D, _F = Severity.APPLICATION, Severity.DEGRADED, Severity.DEVICE, Severity.FATAL

_COPY: Final = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO: Final = (42, 47, 60, 65, 68, 73, 83, 84, 88, 89, 96, 97, 98, 142)
_JPEG: Final = (82, *range(99, 106))

_ROWS: Final[tuple[tuple[int, str, Severity, str], ...]] = (
    *((code, "copy engine exception", _A, _RESTART) for code in _COPY),
    *((code, "video engine exception", _A, _RESTART) for code in _VIDEO),
    *((code, "JPEG engine error", _A, _RESTART) for code in _JPEG),
    (8, "GPU stopped processing", _A, _RESTART),
    (11, "invalid or corrupted push buffer", _A, _RESTART),
    (12, "driver error while handling an exception", _A, _RESTART),
    (13, "graphics engine exception", _A, _RESTART),
    (14, "test of error reporting", _A, _IGNORE),
    (25, "invalid push buffer", _A, _RESTART),
    (31, "MMU fault", _A, _RESTART),
    (32, "invalid or corrupted push buffer", _A, _RESTART),
    (37, "driver firmware error", _A, _RESTART),
    (38, "driver firmware does not answer in time", _G, _SUPPORT),
    (43, "channel reset: the application's work was stopped", _A, _RESTART),
    (44, "fault during a context switch", _A, _RESTART),
    (45, "preemptive cleanup after an earlier error", _A, _RESTART),
    (46, "GPU stopped processing", _F, _RESET),
    (48, "double bit ECC error", _F, _RESET),
    (54, "auxiliary power is not connected", _D, "check the power cables of the board"),
    (61, "microcontroller breakpoint", _D, _SUPPORT),
    (62, "power management unit halted", _F, _RESET),
    (63, "memory row marked for remapping, or page for retirement", _G, f"{_LATER}, so that it takes effect"),
    (64, "memory row could not be remapped, or page could not be retired", _F, _RESET),
    (66, "illegal access by the driver", _A, _RESTART),
    (67, "illegal access by the driver", _A, _RESTART),
    (69, "graphics engine class error", _A, _RESTART),
    (74, "NVLink error", _D, _LINK),
    (78, "vGPU start error", _D, "update the vGPU software or the driver"),
    (79, "GPU has fallen off the bus", _F, _REBOOT),
    (80, "corrupted data sent to the GPU", _A, _RESTART),
    (86, "optical flow engine error", _A, _RESTART),
    (92, "high rate of single bit ECC errors", _G, _IGNORE),
    (93, "erase cycles of the InfoROM are nearly used up", _G, _IGNORE),
    (94, "contained memory error", _A, _RESTART),
    (95, "uncontained memory error", _F, _RESET),
    (106, "test message of the board's management", _A, _IGNORE),
    (107, "test message of the board's management", _A, _IGNORE),
    (108, "NVLink access to an address of another GPU that is not mapped", _A, _RESTART),
    (109, "context switch timeout", _A, "restart the application; if it comes again, reset the GPU"),
    (110, "security fault", _F, _RESET),
    (119, "GSP firmware does not answer", _F, _RESET),
    (120, "GSP firmware error", _F, _RESET),
    (121, "C2C link corrected error", _G, _IGNORE),
    (122, "SPI read failure", _D, _SUPPORT),
    (123, "SPI write failure", _D, _SUPPORT),
    (124, "SPI erase failure", _D, _SUPPORT),
    (125, "InfoROM file system failure", _G, _SUPPORT),
    (136, "NVLink training failed", _F, _LINK),
    (137, "NVLink access without permission", _A, _RESTART),
    (139, "optical flow engine error", _A, _RESTART),
    (140, "ECC error that recovery did not reach", _F, _RESET),
    (141, "error on CUDA's fast path", _A, _RESTART),
    (143, "GPU initialisation failure", _F, _RESET),
    (144, "NVLink error in the switch-attached link unit", _D, _LINK),
    (145, "NVLink receiver error", _D, _LINK),
    (146, "NVLink error in the link unit", _D, _LINK),
    (147, "NVLink error in the translation unit", _D, _LINK),
    (148, "NVLink error in the physical layer", _D, _LINK),
    (149, "NVLink error in the network layer", _D, _LINK),
    (150, "NVLink error in the link management unit", _D, _LINK),
    (151, "key rotation error", _F, "restart the virtual machine that has the GPU, or drain and reset the GPU"),
    (152, "deep learning accelerator: memory error", _A, _RESTART),
    (153, "deep learning accelerator: timeout", _A, _RESTART),
    (154, "recommended recovery action has changed", _A, "see the recovery action that the probe reads"),
    (155, "NVLink went down, perhaps on purpose", _D, _LINK),
    (156, "a faulty unit is to be retired", _G, f"{_LATER}, so that the unit is retired"),
    (157, "a faulty unit could not be retired", _G, _SUPPORT),
    (158, "fatal timeout in the GPU", _F, _RESET),
    (159, "C2C link error outside of data", _D, "reset the GPU if managed memory is in use on it; see dmesg"),
    (160, "a faulty memory channel is to be retired", _G, f"{_LATER}, so that the channel is retired"),
    (161, "a faulty memory channel could not be retired", _G, _SUPPORT),
    (162, "power smoothing is on again", _G, _IGNORE),
    (163, "power smoothing is off", _G, "see to the cooling; reload the driver or reset the GPU to have it again"),
    (164, "power smoothing is nearly worn out", _G, "replace the GPU in time, if the power supply needs it"),
    (165, "power smoothing is worn out", _G, "replace the GPU, if the power supply needs it"),
    (166, "NVLink traffic before the link was encrypted", _D, _SUPPORT),
    (167, "PCIe does not answer in time", _D, _RESET),
    (168, "faulty memory has reduced the GPU's memory", _G, "turn ECC on, so that rows are remapped"),
    (169, "security microcontroller halted", _F, _RESET),
    (170, "NVLink interrupt in confidential computing", _D, _SUPPORT),
    (171, "uncorrectable error in DRAM (comes with XID 48)", _D, _RESET),
    (172, "uncorrectable error in SRAM (comes with XID 48)", _D, _RESET),
    (999, "an XID that NVML does not know", _D, "look into the kernel's log (dmesg) for its number"),
)

XIDS: Final[Mapping[int, Xid]] = {row[0]: Xid(*row) for row in sorted(_ROWS)}
"""Code -> what is known of it, in the order of the codes."""

DIFFERENCES: Final = (
    Difference(
        (12, 42, 47, 65, 73, 142),
        "the catalogue expects none of them on Ampere and newer, or asks for support; as for the other engines of a "
        "channel, only the application that used it is hit",
    ),
    Difference(
        (109,),
        "the catalogue resets the GPU; a context switch that takes too long is a kernel's fault far more often, both "
        "of NVIDIA's Kubernetes drivers pass over it, and a GPU that does hang is found by the probe and by the "
        "driver's own recovery action",
    ),
    Difference((125,), "the catalogue asks for support; the InfoROM's file system has no part in computing"),
    Difference(
        (155,),
        "the catalogue resets the GPU; a link that is put to sleep on purpose is reported by this number too, and one "
        "that stays down is seen by the probe",
    ),
    Difference(
        (156,),
        "the catalogue resets the GPU; the faulty unit is out of use already and its retirement waits for a reset, as "
        "a row's remapping does (63)",
    ),
    Difference(
        (162, 163, 164, 165, 168),
        "the catalogue names no action; they tell of power smoothing and of the memory's size, and the GPU computes as "
        "before",
    ),
    Difference(
        (169,), "the catalogue names no action; it resets the GPU for the other microcontroller that halts (62)"
    ),
)
"""All of them: the severity follows from the catalogue's immediate action elsewhere."""


def describe(code: int) -> Xid:
    """What is known of an XID; one that the table lacks counts as a fault of the device."""
    return XIDS.get(code) or Xid(code, "not in this version's table", Severity.DEVICE, _SUPPORT)
