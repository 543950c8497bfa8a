"""NVML through nvidia-ml-py: the second opinion that the extension is checked against, and the fallback for it.

Of pynvml this uses what it is good for, the struct layouts and constants. Its functions are not called: they share one
library per process in module globals, decode strings strictly and raise a type whose ``==`` fails against others. Here
every instance has a library of its own, out-arguments go by reference and return codes stay numbers.
"""

from __future__ import annotations

import ctypes
import os
from _ctypes import dlclose, dlopen
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_uint
from pathlib import Path
from typing import Any

import pynvml

from native.nvml import values
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.types import CallInProgress, GpuSnapshot, NvLink, NvmlSnapshot
from native.nvml.values import Fields, PciInfo
from native.pci import canonical_address

MOCK_MARKER = "gpudra_mock_marker"
_TOO_NEW = (NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.ARGUMENT_VERSION_MISMATCH)
_NO_PCI = PciInfo(b"", 0, 0, 0, 0, 0)

_TEXTS = {
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "serial": "nvmlDeviceGetSerial",
    "board_part_number": "nvmlDeviceGetBoardPartNumber",
    "vbios_version": "nvmlDeviceGetVbiosVersion",
}
_NUMBERS: dict[str, tuple[str, type[Any]]] = {
    "brand": ("nvmlDeviceGetBrand", c_int),
    "architecture": ("nvmlDeviceGetArchitecture", c_uint),
    "minor_number": ("nvmlDeviceGetMinorNumber", c_uint),
    "module_id": ("nvmlDeviceGetModuleId", c_uint),
    "compute_mode": ("nvmlDeviceGetComputeMode", c_int),
    "virtualization_mode": ("nvmlDeviceGetVirtualizationMode", c_int),
    "pcie_link_generation": ("nvmlDeviceGetMaxPcieLinkGeneration", c_uint),
    "pcie_link_width": ("nvmlDeviceGetMaxPcieLinkWidth", c_uint),
    "memory_numa_node": ("nvmlDeviceGetNumaNodeId", c_uint),
}


class PynvmlNvml:
    """The ``Nvml`` Protocol over ctypes and the structs of nvidia-ml-py."""

    name = "pynvml"

    def __init__(self, library_path: str | Path) -> None:
        self._path = str(library_path)
        self._library: ctypes.CDLL | None = None
        self._handle = 0
        self._functions: dict[str, Any] = {}
        self._about: str | None = None
        self._sequence = 0
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
            self._handle = dlopen(self._path, os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            message = f"cannot load the NVML library {self._path}: {error}"
            raise LibraryUnavailableError("dlopen", NvmlReturn.LIBRARY_NOT_FOUND, message) from error
        finally:
            self._running = None
        self._library = ctypes.CDLL(self._path, handle=self._handle)
        code = self._call("nvmlInitWithFlags", c_uint(pynvml.NVML_INIT_FLAG_NO_GPUS))
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

    def addresses(self) -> tuple[str | None, ...]:
        """Canonical address per index; None where a GPU does not answer."""
        found: list[str | None] = []
        for index in range(self.device_count()):
            code, device = self._handle_by_index(index)
            pci_code, info = self._pci(device) if code == NvmlReturn.SUCCESS else (code, _NO_PCI)
            found.append(values.pci_address(info) if pci_code == NvmlReturn.SUCCESS else None)
        self._about = None
        return tuple(found)

    def snapshot(self, addresses: Sequence[str] | None = None) -> NvmlSnapshot:
        """Read the whole node, call by call; see the Protocol."""
        self._about = None
        node = self._node()
        if addresses is None:
            gpus = [self._gpu(None, index) for index in range(self.device_count())]
        else:
            gpus = [self._gpu(canonical_address(text), None) for text in addresses]
        self._about = None
        return node.node(gpus)

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

    def _node(self) -> Fields:
        fields = Fields()
        code, raw = self._text("nvmlSystemGetDriverVersion")
        values.node_code(code, self._path)
        fields.take_text("driver_version", code, raw)
        fields.take_text("nvml_version", *self._text("nvmlSystemGetNVMLVersion"))
        cuda = c_int()
        fields.take("cuda_driver_version", self._call("nvmlSystemGetCudaDriverVersion_v2", byref(cuda)), cuda.value)
        return fields

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

    def _pci(self, device: ctypes.c_void_p) -> tuple[int, PciInfo]:
        info = pynvml.nvmlPciInfo_t()
        names = ("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo")
        return self._first(names, device, byref(info)), _pci_info(info)

    def _gpu(self, asked: str | None, index: int | None) -> GpuSnapshot:
        if asked is not None:
            code, device = self._handle_by_address(asked)
        else:
            code, device = self._handle_by_index(index or 0)
        if code != NvmlReturn.SUCCESS:
            return values.unreachable_gpu(asked, index, code)
        fields = Fields()
        fields.take_pci(*self._pci(device), asked)
        self._about = fields.values["address"]
        if index is None:
            number = c_uint()
            fields.take("index", self._call("nvmlDeviceGetIndex", device, byref(number)), number.value)
        else:
            fields.take("index", NvmlReturn.SUCCESS, index)
        for name, call in _TEXTS.items():
            fields.take_text(name, *self._text(call, device))
        for name, (call, kind) in _NUMBERS.items():
            out = kind()
            fields.take(name, self._call(call, device, byref(out)), out.value)
        self._take_memory(fields, device)
        self._take_modes(fields, device)
        fields.take("nvlinks", *self._links(device))
        fields.take("fabric", *self._fabric(device))
        return fields.gpu()

    def _take_memory(self, fields: Fields, device: ctypes.c_void_p) -> None:
        second = pynvml.c_nvmlMemory_v2_t()
        second.version = pynvml.nvmlMemory_v2
        code = self._call("nvmlDeviceGetMemoryInfo_v2", device, byref(second))
        fields.take("memory_reserved", code, second.reserved)
        total = second.total
        if code in (*_TOO_NEW, NvmlReturn.NOT_SUPPORTED):
            first = pynvml.c_nvmlMemory_t()
            code = self._call("nvmlDeviceGetMemoryInfo", device, byref(first))
            total = first.total
        fields.take("memory_total", code, total)
        bar1 = pynvml.c_nvmlBAR1Memory_t()
        code = self._call("nvmlDeviceGetBAR1MemoryInfo", device, byref(bar1))
        fields.take("bar1_total", code, bar1.bar1Total)

    def _take_modes(self, fields: Fields, device: ctypes.c_void_p) -> None:
        addressing = pynvml.c_nvmlDeviceAddressingMode_t()
        code = self._call("nvmlDeviceGetAddressingMode", device, byref(addressing))
        fields.take("addressing_mode", code, addressing.value)
        persistence = c_int()
        code = self._call("nvmlDeviceGetPersistenceMode", device, byref(persistence))
        fields.take("persistence_mode", code, bool(persistence.value))
        pairs: tuple[tuple[str, str, Callable[[int], object]], ...] = (
            ("cuda_compute_capability", "nvmlDeviceGetCudaComputeCapability", int),
            ("ecc_mode", "nvmlDeviceGetEccMode", bool),
            ("mig_mode", "nvmlDeviceGetMigMode", bool),
        )
        for name, call, convert in pairs:
            left, right = c_int(), c_int()
            code = self._call(call, device, byref(left), byref(right))
            fields.take(name, code, (convert(left.value), convert(right.value)))

    def _links(self, device: ctypes.c_void_p) -> tuple[int, tuple[NvLink, ...] | None]:
        """NOT_SUPPORTED is a hole, INVALID_ARGUMENT the end; any other failure makes the whole list unknown."""
        links: list[NvLink] = []
        hole: int = NvmlReturn.SUCCESS
        for index in range(pynvml.NVML_NVLINK_MAX_LINKS):
            active = c_int()
            code = self._call("nvmlDeviceGetNvLinkState", device, c_uint(index), byref(active))
            if code == NvmlReturn.NOT_SUPPORTED:
                hole = code
                continue
            if code != NvmlReturn.SUCCESS:
                if code != NvmlReturn.INVALID_ARGUMENT or index == 0:
                    return code, None
                break
            links.append(self._link(device, index, bool(active.value)))
        return (NvmlReturn.SUCCESS, tuple(links)) if links else (hole, None)

    def _link(self, device: ctypes.c_void_p, index: int, active: bool) -> NvLink:
        version = c_uint()
        code = self._call("nvmlDeviceGetNvLinkVersion", device, c_uint(index), byref(version))
        remote: tuple[int, PciInfo] = (NvmlReturn.NO_DATA, _NO_PCI)
        kind: tuple[int, int] = (NvmlReturn.NO_DATA, 0)
        if active:
            info = pynvml.nvmlPciInfo_t()
            names = ("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo")
            remote = self._first(names, device, c_uint(index), byref(info)), _pci_info(info)
            number = c_int()
            kind_code = self._call("nvmlDeviceGetNvLinkRemoteDeviceType", device, c_uint(index), byref(number))
            kind = kind_code, number.value
        return values.nvlink(index, active, (code, version.value), remote, kind)

    def _fabric(self, device: ctypes.c_void_p) -> tuple[int, object]:
        code: int = NvmlReturn.FUNCTION_NOT_FOUND
        for info in (pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.c_nvmlGpuFabricInfo_v2_t()):
            code = self._call("nvmlDeviceGetGpuFabricInfoV", device, byref(info))
            if code != NvmlReturn.ARGUMENT_VERSION_MISMATCH:
                break
        health = int(info.healthMask)
        if code in _TOO_NEW:
            info = pynvml.c_nvmlGpuFabricInfo_t()
            health = 0
            code = self._call("nvmlDeviceGetGpuFabricInfo", device, byref(info))
        if code != NvmlReturn.SUCCESS:
            return code, None
        return code, values.fabric_info(info.state, info.status, bytes(info.clusterUuid), info.cliqueId, health)


def _pci_info(info: Any) -> PciInfo:
    # Through the descriptor's offset: pynvml's structs decode char arrays strictly when they are read as attributes.
    field = type(info).busId
    bus_id = bytes(info)[field.offset : field.offset + field.size]
    return PciInfo(bus_id, info.domain, info.bus, info.device, info.pciDeviceId, info.pciSubSystemId)
