"""Events through nvidia-ml-py's structs: the wait is made of short ones, with a look at a flag in between."""

from __future__ import annotations

import ctypes
import threading
import time
from ctypes import byref, c_uint, c_ulonglong, c_void_p
from pathlib import Path
from typing import Any

from native.nvml import values
from native.nvml.errors import NvmlReturn
from native.nvml.eventtypes import NvmlEvent, nvml_event
from native.nvml.protocol import WAIT_STEP
from native.nvml.pynvml_library import PynvmlLibrary, structs
from native.pci import canonical_address

_PAUSE = 0.005
"""Seconds between two waits of a library that does not wait at all."""


class PynvmlEvents(PynvmlLibrary):
    """The part of the ``Nvml`` Protocol that is about events."""

    def __init__(self, library_path: str | Path) -> None:
        super().__init__(library_path)
        self._stop = threading.Event()
        self._registered: dict[int, str] = {}
        self._set: c_void_p | None = None

    def open_events(self) -> None:
        """See the Protocol."""
        self.close_events()
        made = c_void_p()
        code = self._call("nvmlEventSetCreate", byref(made))
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlEventSetCreate", code, library=self._path)
        self._set = made

    def register_events(self, address: str, mask: int) -> int:
        """See the Protocol."""
        events = self._with_set("nvmlDeviceRegisterEvents")
        device, supported = self._device(address), c_ulonglong()
        self._check(self._call("nvmlDeviceGetSupportedEventTypes", device, byref(supported)), address)
        wanted = supported.value & mask
        if wanted:
            self._check(self._call("nvmlDeviceRegisterEvents", device, c_ulonglong(wanted), events), address)
        self._about = None
        self._registered[device.value or 0] = canonical_address(address)
        return wanted

    def wait_event(self, seconds: float) -> NvmlEvent | None:
        """See the Protocol."""
        events = self._with_set("nvmlEventSetWait_v2")
        self._about = None
        end = time.monotonic() + seconds
        while not self._stop.is_set():
            begin = time.monotonic()
            left = max(0.0, end - begin)
            data = structs.c_nvmlEventData_t()
            code = self._call("nvmlEventSetWait_v2", events, byref(data), c_uint(int(min(left, WAIT_STEP) * 1000)))
            if code == NvmlReturn.SUCCESS:
                return self._event(data)
            if code != NvmlReturn.TIMEOUT:
                raise values.failure("nvmlEventSetWait_v2", code, library=self._path)
            if left == 0:
                break
            if time.monotonic() - begin < _PAUSE:
                self._stop.wait(_PAUSE)
        self._stop.clear()
        return None

    def stop_waiting(self) -> None:
        """See the Protocol."""
        self._stop.set()

    def close_events(self) -> None:
        """See the Protocol."""
        self._registered.clear()
        events, self._set = self._set, None
        if events is not None and self._library is not None:
            self._about = None
            self._call("nvmlEventSetFree", events)

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        self.close_events()
        super().close()

    def _with_set(self, call: str) -> c_void_p:
        if self._library is None or self._set is None:
            raise values.not_open(call)
        return self._set

    def _event(self, data: Any) -> NvmlEvent:
        device = ctypes.cast(data.device, c_void_p)
        code, info = self._pci(device) if device.value else (NvmlReturn.NOT_FOUND, values.NO_PCI)
        address = values.pci_address(info) if code == NvmlReturn.SUCCESS else None
        address = address or self._registered.get(device.value or 0)
        numbers = (data.eventType, data.eventData, data.gpuInstanceId, data.computeInstanceId)
        return nvml_event(address, *numbers)
