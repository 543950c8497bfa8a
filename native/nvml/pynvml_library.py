"""An NVML library over ctypes, with the structs of nvidia-ml-py: loading, calling, and the call under way.

Of pynvml this uses what it is good for, the struct layouts and constants. Its functions are not called: they share one
library per process in module globals, decode strings strictly and raise a type whose ``==`` fails against others. Here
every instance has a library of its own, out-arguments go by reference and return codes stay numbers.
"""

from __future__ import annotations

import ctypes
import os
from _ctypes import dlclose, dlopen
from collections.abc import Sequence
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

import pynvml

from native.nvml import values
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.opening import MOCK_MARKER, path_to_load
from native.nvml.types import CallInProgress
from native.nvml.values import PciInfo
from native.pci import canonical_address

structs: Any = pynvml
"""The one place where pynvml is imported: its structs and constants for the rest of the backend."""
TOO_NEW = (NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.ARGUMENT_VERSION_MISMATCH)


class PynvmlLibrary:
    """A library that is open, and the GPU that the call under way is about."""

    name = "pynvml"

    def __init__(self, library_path: str | Path) -> None:
        self._path = str(library_path)
        self._library: ctypes.CDLL | None = None
        self._handle = 0
        self._functions: dict[str, Any] = {}
        self._about: str | None = None
        self._sequence = 0
        self._last = "dlopen"
        self._running: tuple[str, str | None, int] | None = None

    @property
    def library_path(self) -> str:
        """The file it loads."""
        return self._path

    def open(self) -> None:
        """Load and initialise; does nothing when already open."""
        if self._library is not None:
            return
        self._running = ("dlopen", None, self._sequence)
        try:
            self._handle = dlopen(path_to_load(self._path), os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            message = f"cannot load the NVML library {self._path}: {error}"
            raise LibraryUnavailableError("dlopen", NvmlReturn.LIBRARY_NOT_FOUND, message) from error
        finally:
            self._running = None
        self._library = ctypes.CDLL(self._path, handle=self._handle)
        code = self._call("nvmlInitWithFlags", c_uint(structs.NVML_INIT_FLAG_NO_GPUS))
        if code == NvmlReturn.FUNCTION_NOT_FOUND:
            code = self._call("nvmlInit_v2")
        if code == NvmlReturn.SUCCESS:
            return
        self._unload()
        if code == NvmlReturn.FUNCTION_NOT_FOUND:
            message = f"{self._path} is not an NVML library: it has neither nvmlInitWithFlags nor nvmlInit_v2"
            raise LibraryUnavailableError("dlsym", NvmlReturn.LIBRARY_NOT_FOUND, message)
        raise values.failure("nvmlInitWithFlags", code, library=self._path)

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        if self._library is not None:
            self._about = None
            self._call("nvmlShutdown")
            self._unload()

    def is_mock(self) -> bool:
        """Whether the library announces itself as the mock."""
        return self._function(MOCK_MARKER, "dlsym") is not None

    def device_count(self) -> int:
        """nvmlDeviceGetCount_v2."""
        count = c_uint()
        code = self._first(("nvmlDeviceGetCount_v2", "nvmlDeviceGetCount"), byref(count))
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlDeviceGetCount_v2", code, library=self._path)
        return count.value

    def progress(self) -> CallInProgress | None:
        """The call under way; safe from any thread: the tuple is replaced whole."""
        running = self._running
        return CallInProgress(*running) if running is not None else None

    def _unload(self) -> None:
        library, self._library = self._library, None
        self._functions.clear()
        if library is not None:
            # CDLL never closes what it opened; without this an upgraded library would stay mapped under its old path.
            dlclose(self._handle)

    def _function(self, name: str, call: str) -> Any:
        if self._library is None:
            raise values.not_open(call)
        if name not in self._functions:
            self._functions[name] = getattr(self._library, name, None)
        return self._functions[name]

    def _call(self, name: str, *arguments: Any) -> int:
        self._last = name
        function = self._function(name, name)
        if function is None:
            return NvmlReturn.FUNCTION_NOT_FOUND
        self._sequence += 1
        self._running = (name, self._about, self._sequence)
        code: int = function(*arguments)
        self._running = None
        return code

    def _first(self, names: Sequence[str], *arguments: Any) -> int:
        """The newest of several forms of a call that the library has."""
        code: int = NvmlReturn.FUNCTION_NOT_FOUND
        for name in names:
            code = self._call(name, *arguments)
            if code != NvmlReturn.FUNCTION_NOT_FOUND:
                return code
        return code

    def _text(self, name: str, *before: Any) -> tuple[int, bytes]:
        buffer = ctypes.create_string_buffer(values.TEXT_SIZE)
        return self._call(name, *before, buffer, c_uint(values.TEXT_SIZE)), buffer.raw

    def _handle_by_index(self, index: int) -> tuple[int, ctypes.c_void_p]:
        self._about = None
        device = ctypes.c_void_p()
        names = ("nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
        return self._first(names, c_uint(index), byref(device)), device

    def _handle_by_address(self, address: str) -> tuple[int, ctypes.c_void_p]:
        self._about = address
        device = ctypes.c_void_p()
        names = ("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId")
        return self._first(names, address.encode(), byref(device)), device

    def _device(self, address: str) -> ctypes.c_void_p:
        """The handle of the GPU that calls are about from here on; raises where there is none."""
        code, device = self._handle_by_address(canonical_address(address))
        self._check(code, address)
        return device

    def _check(self, code: int, address: str) -> None:
        """Raise for a call about one GPU that did not succeed."""
        if code != NvmlReturn.SUCCESS:
            raise values.failure(self._last, code, canonical_address(address), self._path)

    def _pci(self, device: ctypes.c_void_p) -> tuple[int, PciInfo]:
        info = structs.nvmlPciInfo_t()
        names = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
        return self._first(names, device, byref(info)), pci_info(info)


def pci_info(info: Any) -> PciInfo:
    """What is wanted of an nvmlPciInfo_t."""
    # Through the descriptor's offset: pynvml's structs decode char arrays strictly when they are read as attributes.
    field = type(info).busId
    bus_id = bytes(info)[field.offset : field.offset + field.size]
    return PciInfo(bus_id, info.domain, info.bus, info.device, info.pciDeviceId, info.pciSubSystemId)
