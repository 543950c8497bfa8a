"""Why a claim cannot be prepared or undone, in words for the pod's event and in one word for the metrics."""

from __future__ import annotations

import enum
import os

from driver.statefile import remedy


class Reason(enum.StrEnum):
    """One CamelCase word per kind of failure: the label of the error metrics."""

    INVALID_CLAIM = "InvalidClaim"
    """The claim document is not what the API promises."""
    INVALID_CONFIG = "InvalidConfig"
    """The opaque configuration cannot be read, or contradicts itself or the device."""
    UNSUPPORTED_CONFIG = "UnsupportedConfig"
    """The configuration is sound and asks for something that this version does not serve."""
    DEVICE_NOT_FOUND = "DeviceNotFound"
    DEVICE_NOT_READY = "DeviceNotReady"
    """The GPU is there, but lost, wedged, without its device node, or not the one that was prepared."""
    DEVICE_IN_USE = "DeviceInUse"
    """Another claim holds the same hardware."""
    NODE_CHANGED = "NodeChanged"
    """The hardware is not as the last reading of the node saw it; the node is read anew."""
    DRIVER_NOT_READY = "DriverNotReady"
    """There is no snapshot of the node yet, or NVIDIA's user-space driver is incomplete."""
    STATE_UNAVAILABLE = "StateUnavailable"
    """The checkpoint cannot be read; nothing is handed out until it can."""
    WRITE_FAILED = "WriteFailed"
    """The checkpoint or a CDI file could not be written or removed."""
    BUSY = "Busy"
    """Another operation holds the claim, the GPU or the state for too long."""


class ClaimError(Exception):
    """One claim cannot be prepared or undone; other claims are not touched.

    Attributes:
        reason: for metrics.
        permanent: a retry cannot help until somebody changes the claim, its class or this driver.
    """

    def __init__(self, message: str, reason: Reason, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent


def storage_error(action: str, path: str | os.PathLike[str], error: OSError) -> ClaimError:
    """The retryable error for a file operation that failed; it names the path, the cause and the remedy."""
    cause = error.strerror or str(error)
    return ClaimError(f"cannot {action} {os.fspath(path)}: {cause}; {remedy(error)}", Reason.WRITE_FAILED)
