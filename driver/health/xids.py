"""The XIDs: what each number says, how bad it is, and what NVIDIA recommends.

Names and recommended actions follow the "immediate action" of NVIDIA's XID catalogue for Ampere and newer
(docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog), put into our words; the severity is ours:

* APPLICATION: the program is at fault, or only it is hit. The GPU goes on, so nobody is kept from it. NVIDIA's own
  DRA driver and device plugin pass over 13, 31, 43, 45, 68 and 109 for that reason.
* DEVICE: the GPU should not get new work until it has shown for a while that it is well again.
* FATAL: it does not come back without a reset of the GPU or a reboot of the machine.

A number that the table lacks counts as DEVICE: newer drivers know more faults than this table, and handing out a sick
GPU costs more than holding a sound one back for some minutes. NVML's 999 stands for a number that it does not know.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

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


_RESTART: Final = "restart the application"
_IGNORE: Final = "nothing"
_RESET: Final = "drain and reset the GPU (nvidia-smi --gpu-reset)"
_REBOOT: Final = "drain and reboot the node; if it comes again, replace the GPU"
_SUPPORT: Final = "collect nvidia-bug-report and contact NVIDIA"
_LINK: Final = "drain, reset all GPUs of the NVLink domain, check the fabric manager"

_A, _G, _D, _F = Severity.APPLICATION, Severity.DEGRADED, Severity.DEVICE, Severity.FATAL

_ROWS: Final[tuple[tuple[int, str, Severity, str], ...]] = (
    (8, "GPU stopped processing", _A, _RESTART),
    (11, "invalid method in a push buffer", _A, _RESTART),
    (12, "driver error while handling an exception", _A, _RESTART),
    (13, "graphics engine exception", _A, _RESTART),
    (25, "invalid buffer state", _A, _RESTART),
    (31, "MMU fault", _A, _RESTART),
    (32, "invalid or corrupted push buffer", _A, _RESTART),
    (37, "driver firmware error", _A, _RESTART),
    (38, "driver firmware error", _D, _SUPPORT),
    (39, "copy engine exception", _A, _RESTART),
    (40, "copy engine exception", _A, _RESTART),
    (41, "copy engine exception", _A, _RESTART),
    (42, "video processor exception", _A, _RESTART),
    (43, "channel reset: the application's work was stopped", _A, _RESTART),
    (44, "context switch fault", _A, _RESTART),
    (45, "preemptive cleanup after an earlier error", _A, _RESTART),
    (46, "GPU stopped processing", _F, _RESET),
    (47, "video processor exception", _A, _RESTART),
    (48, "double bit ECC error", _F, _RESET),
    (54, "auxiliary power is not connected", _D, "check the power cables of the board"),
    (60, "video processor exception", _A, _RESTART),
    (61, "microcontroller breakpoint", _D, _RESET),
    (62, "power management unit halted", _F, _RESET),
    (63, "memory row marked for remapping", _G, "reset the GPU when it is idle, so that the row is remapped"),
    (64, "memory row could not be remapped", _F, _RESET),
    (65, "video processor exception", _A, _RESTART),
    (66, "illegal access by the driver", _A, _RESTART),
    (67, "illegal access by the driver", _A, _RESTART),
    (68, "video decoder exception", _A, _RESTART),
    (69, "graphics engine class error", _A, _RESTART),
    (70, "copy engine exception", _A, _RESTART),
    (71, "copy engine exception", _A, _RESTART),
    (72, "copy engine exception", _A, _RESTART),
    (73, "video encoder exception", _A, _RESTART),
    (74, "NVLink error", _D, _LINK),
    (75, "copy engine exception", _A, _RESTART),
    (76, "copy engine exception", _A, _RESTART),
    (77, "copy engine exception", _A, _RESTART),
    (78, "vGPU start error", _D, _SUPPORT),
    (79, "GPU has fallen off the bus", _F, _REBOOT),
    (80, "corrupted data sent to the GPU", _D, _RESET),
    (82, "JPEG engine error", _A, _RESTART),
    (83, "video decoder exception", _A, _RESTART),
    (84, "video decoder exception", _A, _RESTART),
    (88, "video decoder exception", _A, _RESTART),
    (89, "video decoder exception", _A, _RESTART),
    (92, "high rate of single bit ECC errors", _G, _IGNORE),
    (93, "erase cycles of the InfoROM are nearly used up", _G, _IGNORE),
    (94, "contained memory error", _A, _RESTART),
    (95, "uncontained memory error", _F, _RESET),
    (96, "video decoder exception", _A, _RESTART),
    (97, "video decoder exception", _A, _RESTART),
    (98, "video decoder exception", _A, _RESTART),
    (99, "optical flow engine error", _A, _RESTART),
    (109, "context switch timeout", _A, "restart the application; if it comes again, reset the GPU"),
    (110, "security fault", _F, _REBOOT),
    (119, "GSP firmware does not answer", _F, _RESET),
    (120, "GSP firmware error", _F, _RESET),
    (121, "C2C link corrected error", _G, _IGNORE),
    (122, "SPI read failure", _D, _SUPPORT),
    (123, "SPI write failure", _D, _RESET),
    (124, "SPI erase failure", _D, _SUPPORT),
    (125, "InfoROM file system failure", _G, _SUPPORT),
    (136, "NVLink training failed", _D, _LINK),
    (137, "NVLink access without permission", _A, _RESTART),
    (140, "ECC error that recovery did not reach", _F, _RESET),
    (143, "GPU initialisation failure", _F, _RESET),
    (144, "NVLink error in the switch-attached link unit", _D, _LINK),
    (145, "NVLink receiver error", _D, _LINK),
    (146, "NVLink error in the link unit", _D, _LINK),
    (147, "NVLink error in the translation unit", _D, _LINK),
    (148, "NVLink error in the physical layer", _D, _LINK),
    (149, "NVLink error in the network layer", _D, _LINK),
    (150, "NVLink error in the link management unit", _D, _LINK),
    (151, "key rotation error", _D, _RESET),
    (154, "recommended recovery action has changed", _A, "see the recovery action that the probe reads"),
    (155, "NVLink flow control error", _D, _LINK),
    (156, "memory retirement event", _G, "reset the GPU when it is idle"),
    (157, "memory retirement failure", _F, _RESET),
    (158, "fatal timeout in the GPU", _F, _RESET),
    (999, "an XID that NVML does not know", _D, "look into the kernel's log (dmesg) for its number"),
)

XIDS: Final[Mapping[int, Xid]] = {row[0]: Xid(*row) for row in _ROWS}
"""Code -> what is known of it."""


def describe(code: int) -> Xid:
    """What is known of an XID; one that the table lacks counts as a fault of the device."""
    return XIDS.get(code) or Xid(code, "not in this version's table", Severity.DEVICE, _SUPPORT)
