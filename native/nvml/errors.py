"""NVML return codes and the errors they become. Codes and names are those of ``nvmlReturn_t`` in nvml.h."""

from __future__ import annotations

import enum


class NvmlReturn(enum.IntEnum):
    """``nvmlReturn_t``. A code that this list lacks stays a plain int wherever codes are reported."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    IN_USE = 19
    MEMORY = 20
    NO_DATA = 21
    VGPU_ECC_NOT_SUPPORTED = 22
    INSUFFICIENT_RESOURCES = 23
    FREQ_NOT_SUPPORTED = 24
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    INVALID_STATE = 29
    RESET_TYPE_NOT_SUPPORTED = 30
    UNKNOWN = 999


def code_name(code: int) -> str:
    """``GPU_IS_LOST (15)`` for a known code, ``return code 77`` for another."""
    try:
        return f"{NvmlReturn(code).name} ({int(code)})"
    except ValueError:
        return f"return code {int(code)}"


class NvmlError(Exception):
    """An NVML call failed. Carries the call, the code and the device (its PCI address), and says them all."""

    def __init__(self, call: str, code: int, device: str | None = None) -> None:
        self.call = call
        self.code = code
        self.device = device
        where = f" for GPU {device}" if device else ""
        super().__init__(f"{call}{where}: {code_name(code)}")


_ACTIVATION_REMEDIES: dict[int, str] = {
    NvmlReturn.IN_USE: "stop what holds the GPU open (jobs, nvidia-persistenced, DCGM and its exporter), then retry",
    NvmlReturn.RESET_REQUIRED: "reset the GPU (nvidia-smi --gpu-reset), or reboot a virtual machine",
    NvmlReturn.NOT_SUPPORTED: "this board or this virtual machine cannot switch it",
}


class MigActivationError(NvmlError):
    """nvmlDeviceSetMigMode succeeded, but the mode is not active; ``mode`` is (current, pending) afterwards."""

    def __init__(self, code: int, device: str, mode: tuple[bool, bool] | None) -> None:
        super().__init__("nvmlDeviceSetMigMode", code, device)
        self.mode = mode
        remedy = _ACTIVATION_REMEDIES.get(code, "see the driver's log (dmesg)")
        self.args = (f"the MIG mode of GPU {device} was not activated: {code_name(code)}: {remedy}",)


class LibraryUnavailableError(NvmlError):
    """The library cannot be loaded, or its driver is not there (codes 9, 12, 18): a state of the node, not a crash."""

    def __init__(self, call: str, code: int, message: str) -> None:
        super().__init__(call, code)
        self.args = (message,)


class NvmlTimeoutError(NvmlError):
    """A call did not come back before its deadline; the thread that runs it is lost to it."""

    def __init__(self, call: str, device: str | None, seconds: float) -> None:
        super().__init__(call, NvmlReturn.TIMEOUT, device)
        self.seconds = seconds
        where = f" for GPU {device}" if device else ""
        self.args = (f"{call}{where} did not come back within {seconds:g} s",)
