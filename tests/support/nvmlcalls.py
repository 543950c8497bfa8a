"""NVML by ctypes, one call at a time and nothing in between: what a test of the library itself needs."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pynvml

from native.mock import MockNode


class Nvml:
    """The library of a node, loaded into this process. Every call gives its code.

    Several nodes do not disturb each other, because each has a library file of its own."""

    def __init__(self, node: MockNode) -> None:
        self.node = node
        self.library = ctypes.CDLL(str(node.library))
        self.init()

    def init(self) -> int:
        """Begin a session on the node."""
        before = {key: os.environ.get(key) for key in (*self.node.environment, "GPUDRA_MOCK_QUIET")}
        os.environ.update({**self.node.environment, "GPUDRA_MOCK_QUIET": "1"})
        try:
            return int(self.library.nvmlInit_v2())
        finally:
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value

    def close(self) -> int:
        return int(self.library.nvmlShutdown())

    def code(self, function: str, *arguments: Any) -> int:
        return int(getattr(self.library, function)(*arguments))

    def number(self, function: str, *arguments: Any) -> int:
        """A getter's answer; an error is a negative code."""
        out = ctypes.c_uint(0)
        code = self.code(function, *arguments, ctypes.byref(out))
        return -code if code else int(out.value)

    def handle(self, function: str, *arguments: Any) -> tuple[int, ctypes.c_void_p]:
        """(code, handle) of a call that makes or finds one."""
        out = ctypes.c_void_p()
        return self.code(function, *arguments, ctypes.byref(out)), out

    def gpu(self, index: int = 0) -> ctypes.c_void_p:
        code, found = self.handle("nvmlDeviceGetHandleByIndex_v2", index)
        assert code == 0, code
        return found

    def text(self, function: str, *arguments: Any) -> str | int:
        room = ctypes.create_string_buffer(96)
        code = self.code(function, *arguments, room, 96)
        return -code if code else room.value.decode()

    def set_mig_mode(self, gpu: ctypes.c_void_p, mode: int) -> tuple[int, int]:
        """(code, activation status)"""
        status = ctypes.c_int(-1)
        code = self.code("nvmlDeviceSetMigMode", gpu, mode, ctypes.byref(status))
        return code, status.value

    def mig_mode(self, gpu: ctypes.c_void_p) -> tuple[int, int]:
        """(current, pending)"""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        assert self.code("nvmlDeviceGetMigMode", gpu, ctypes.byref(current), ctypes.byref(pending)) == 0
        return current.value, pending.value

    def create_gi(
        self, gpu: ctypes.c_void_p, profile: int, start: int | None = None, size: int = 0
    ) -> tuple[int, ctypes.c_void_p]:
        if start is None:
            return self.handle("nvmlDeviceCreateGpuInstance", gpu, profile)
        placement = pynvml.c_nvmlGpuInstancePlacement_t(start, size)
        return self.handle("nvmlDeviceCreateGpuInstanceWithPlacement", gpu, profile, ctypes.byref(placement))

    def create_ci(
        self, gi: ctypes.c_void_p, profile: int, start: int | None = None, size: int = 0
    ) -> tuple[int, ctypes.c_void_p]:
        if start is None:
            return self.handle("nvmlGpuInstanceCreateComputeInstance", gi, profile)
        placement = pynvml.c_nvmlComputeInstancePlacement_t(start, size)
        return self.handle("nvmlGpuInstanceCreateComputeInstanceWithPlacement", gi, profile, ctypes.byref(placement))

    def gi_info(self, gi: ctypes.c_void_p) -> tuple[int, int, int, int]:
        """(id, profile id, start, size)"""
        info = pynvml.c_nvmlGpuInstanceInfo_t()
        assert self.code("nvmlGpuInstanceGetInfo", gi, ctypes.byref(info)) == 0
        return info.id, info.profileId, info.placement.start, info.placement.size

    def ci_info(self, ci: ctypes.c_void_p) -> Any:
        info = pynvml.c_nvmlComputeInstanceInfo_t()
        assert self.code("nvmlComputeInstanceGetInfo_v2", ci, ctypes.byref(info)) == 0
        return info

    def wait(self, events: ctypes.c_void_p, milliseconds: int) -> Any:
        """The next event, or the code."""
        data = pynvml.c_nvmlEventData_t()
        code = self.code("nvmlEventSetWait_v2", events, ctypes.byref(data), milliseconds)
        return code or data

    def listen(self, gpu: ctypes.c_void_p, mask: int) -> ctypes.c_void_p:
        """A new set with one GPU."""
        code, events = self.handle("nvmlEventSetCreate")
        assert code == 0
        assert self.code("nvmlDeviceRegisterEvents", gpu, ctypes.c_ulonglong(mask), events) == 0
        return events

    def mig_devices(self, gpu: ctypes.c_void_p) -> dict[int, ctypes.c_void_p]:
        """Index -> handle, holes left out."""
        found = {}
        for index in range(self.number("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            code, device = self.handle("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            assert code in (0, 6), "an index below the count is a device or NOT_FOUND"
            if code == 0:
                found[index] = device
        return found
