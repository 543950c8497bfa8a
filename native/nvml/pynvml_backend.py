"""Snapshots through nvidia-ml-py: the second opinion that the extension is checked against, and the fallback for it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_int, c_uint
from typing import Any

from native.nvml import values
from native.nvml.errors import NvmlReturn
from native.nvml.pynvml_events import PynvmlEvents
from native.nvml.pynvml_health import PynvmlHealth
from native.nvml.pynvml_library import TOO_NEW, pci_info, structs
from native.nvml.pynvml_mig import PynvmlMig
from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot
from native.nvml.values import NO_PCI, Fields, PciInfo
from native.pci import canonical_address

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


class PynvmlNvml(PynvmlMig, PynvmlEvents, PynvmlHealth):
    """The ``Nvml`` Protocol over ctypes and the structs of nvidia-ml-py."""

    def addresses(self) -> tuple[str | None, ...]:
        """Canonical address per index; None where a GPU does not answer."""
        found: list[str | None] = []
        for index in range(self.device_count()):
            code, device = self._handle_by_index(index)
            pci_code, info = self._pci(device) if code == NvmlReturn.SUCCESS else (code, NO_PCI)
            found.append(values.pci_address(info) if pci_code == NvmlReturn.SUCCESS else None)
        self._about = None
        return tuple(found)

    def snapshot(self, addresses: Sequence[str] | None = None, *, mig: bool = False) -> NvmlSnapshot:
        """Read the whole node, call by call; see the Protocol."""
        self._about = None
        node = self._node()
        if addresses is None:
            gpus = [self._gpu(None, index) for index in range(self.device_count())]
        else:
            gpus = [self._gpu(canonical_address(text), None) for text in addresses]
        for position, gpu in enumerate(gpus):
            if gpu.mig_mode is not None and (mig or gpu.mig_mode[0]):
                gpus[position] = self._with_mig(gpu, position)
        self._about = None
        return node.node(gpus)

    def _node(self) -> Fields:
        fields = Fields()
        code, raw = self._text("nvmlSystemGetDriverVersion")
        values.node_code(code, self._path)
        fields.take_text("driver_version", code, raw)
        fields.take_text("nvml_version", *self._text("nvmlSystemGetNVMLVersion"))
        cuda = c_int()
        fields.take("cuda_driver_version", self._call("nvmlSystemGetCudaDriverVersion_v2", byref(cuda)), cuda.value)
        return fields

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
        second = structs.c_nvmlMemory_v2_t()
        second.version = structs.nvmlMemory_v2
        code = self._call("nvmlDeviceGetMemoryInfo_v2", device, byref(second))
        fields.take("memory_reserved", code, second.reserved)
        total = second.total
        if code in (*TOO_NEW, NvmlReturn.NOT_SUPPORTED):
            first = structs.c_nvmlMemory_t()
            code = self._call("nvmlDeviceGetMemoryInfo", device, byref(first))
            total = first.total
        fields.take("memory_total", code, total)
        bar1 = structs.c_nvmlBAR1Memory_t()
        code = self._call("nvmlDeviceGetBAR1MemoryInfo", device, byref(bar1))
        fields.take("bar1_total", code, bar1.bar1Total)

    def _take_modes(self, fields: Fields, device: ctypes.c_void_p) -> None:
        addressing = structs.c_nvmlDeviceAddressingMode_t()
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
        for index in range(structs.NVML_NVLINK_MAX_LINKS):
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
        remote: tuple[int, PciInfo] = (NvmlReturn.NO_DATA, NO_PCI)
        kind: tuple[int, int] = (NvmlReturn.NO_DATA, 0)
        if active:
            info = structs.nvmlPciInfo_t()
            names = ("nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo")
            remote = self._first(names, device, c_uint(index), byref(info)), pci_info(info)
            number = c_int()
            kind_code = self._call("nvmlDeviceGetNvLinkRemoteDeviceType", device, c_uint(index), byref(number))
            kind = kind_code, number.value
        return NvLink(index, *values.nvlink(active, (code, version.value), remote, kind))

    def _fabric(self, device: ctypes.c_void_p) -> tuple[int, object]:
        code: int = NvmlReturn.FUNCTION_NOT_FOUND
        for info in (structs.c_nvmlGpuFabricInfo_v3_t(), structs.c_nvmlGpuFabricInfo_v2_t()):
            code = self._call("nvmlDeviceGetGpuFabricInfoV", device, byref(info))
            if code != NvmlReturn.ARGUMENT_VERSION_MISMATCH:
                break
        health = int(info.healthMask)
        if code in TOO_NEW:
            info = structs.c_nvmlGpuFabricInfo_t()
            health = 0
            code = self._call("nvmlDeviceGetGpuFabricInfo", device, byref(info))
        if code != NvmlReturn.SUCCESS:
            return code, None
        return code, values.fabric_info(info.state, info.status, bytes(info.clusterUuid), info.cliqueId, health)
