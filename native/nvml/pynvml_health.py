"""Health, processes and topology through nvidia-ml-py's structs, call by call."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
from ctypes import byref, c_int, c_uint, c_ulong, c_ulonglong, c_void_p

from native.nvml import healthvalues
from native.nvml.errors import NvmlReturn
from native.nvml.healthtypes import GpuHealth, GpuProcess, NvmlTopology, RemappedRows, RetiredPages
from native.nvml.healthvalues import CPU_WORDS, NODE_WORDS, Pair
from native.nvml.pynvml_library import TOO_NEW, PynvmlLibrary, structs
from native.nvml.values import Fields
from native.pci import canonical_address

_ECC = {
    "ecc_corrected_volatile": (0, 0),
    "ecc_uncorrected_volatile": (1, 0),
    "ecc_corrected_aggregate": (0, 1),
    "ecc_uncorrected_aggregate": (1, 1),
}
_KINDS = {
    "compute_processes": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics_processes": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps_processes": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}
_RECOVERY_ACTION = 230


class PynvmlHealth(PynvmlLibrary):
    """The part of the ``Nvml`` Protocol that health and idle accounting use, and NVML's topology."""

    def health(self, addresses: Sequence[str]) -> tuple[GpuHealth, ...]:
        """See the Protocol."""
        names = [canonical_address(text) for text in addresses]
        self._function("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId_v2")
        found = [self._fields(address) for address in names]
        gpus = []
        for address, (code, fields) in zip(names, found, strict=True):
            if code != NvmlReturn.SUCCESS:
                gpus.append(healthvalues.unreachable_health(address, code))
                continue
            for name, call in _KINDS.items():
                ask = functools.partial(self._processes, address, call)
                fields.take(name, *healthvalues.all_processes(ask))
            gpus.append(healthvalues.gpu_health(address, fields))
        self._about = None
        return tuple(gpus)

    def topology(self, addresses: Sequence[str]) -> NvmlTopology:
        """See the Protocol."""
        names = [canonical_address(text) for text in addresses]
        self._function("nvmlDeviceGetHandleByPciBusId_v2", "nvmlDeviceGetHandleByPciBusId_v2")
        handles = []
        affinities = []
        for address in names:
            code, device = self._handle_by_address(address)
            cpus, nodes = (c_ulong * CPU_WORDS)(), (c_ulong * NODE_WORDS)()
            cpus_code = nodes_code = 0
            if code == NvmlReturn.SUCCESS:
                cpus_code = self._call("nvmlDeviceGetCpuAffinity", device, c_uint(CPU_WORDS), cpus)
                scope = c_int(structs.NVML_AFFINITY_SCOPE_NODE)
                nodes_code = self._call("nvmlDeviceGetMemoryAffinity", device, c_uint(NODE_WORDS), nodes, scope)
            handles.append((code, device))
            affinities.append((code, cpus_code, nodes_code, bytes(cpus), bytes(nodes)))
        pairs = []
        for (a, first), (b, second) in itertools.combinations(zip(names, handles, strict=True), 2):
            del b
            self._about = a
            pairs.append(self._pair(first, second))
        self._about = None
        return healthvalues.topology(names, affinities, pairs)

    def _pair(self, first: tuple[int, c_void_p], second: tuple[int, c_void_p]) -> Pair:
        code = first[0] or second[0]
        if code != NvmlReturn.SUCCESS:
            return code, 0, code, 0
        level, status = c_int(), c_int()
        level_code = self._call("nvmlDeviceGetTopologyCommonAncestor", first[1], second[1], byref(level))
        index = c_int(structs.NVML_P2P_CAPS_INDEX_NVLINK)
        nvlink_code = self._call("nvmlDeviceGetP2PStatus", first[1], second[1], index, byref(status))
        return level_code, level.value, nvlink_code, status.value

    def _fields(self, address: str) -> tuple[int, Fields]:
        code, device = self._handle_by_address(address)
        fields = Fields()
        if code == NvmlReturn.SUCCESS:
            fields.take_text("uuid", *self._text("nvmlDeviceGetUUID", device))
            self._take_errors(fields, device)
            self._take_load(fields, device)
        return code, fields

    def _take_errors(self, fields: Fields, device: c_void_p) -> None:
        for name, (error, counter) in _ECC.items():
            total = c_ulonglong()
            call = "nvmlDeviceGetTotalEccErrors"
            fields.take(name, self._call(call, device, c_int(error), c_int(counter), byref(total)), total.value)
        rows = [c_uint() for _ in range(4)]
        code = self._call("nvmlDeviceGetRemappedRows", device, *map(byref, rows))
        correctable, uncorrectable, pending, failure = (one.value for one in rows)
        fields.take("remapped_rows", code, RemappedRows(correctable, uncorrectable, bool(pending), bool(failure)))
        fields.take("retired_pages", *self._retired_pages(device))
        repair = structs.c_nvmlRepairStatus_t()
        repair.version = structs.nvmlRepairStatus_v1
        code = self._call("nvmlDeviceGetRepairStatus", device, byref(repair))
        fields.take("repair_pending", code, (bool(repair.bChannelRepairPending), bool(repair.bTpcRepairPending)))
        value = structs.c_nvmlFieldValue_t()
        value.fieldId = _RECOVERY_ACTION
        code = self._call("nvmlDeviceGetFieldValues", device, c_int(1), byref(value))
        fields.take("recovery_action", code or value.nvmlReturn, value.value.uiVal)

    def _retired_pages(self, device: c_void_p) -> tuple[int, RetiredPages]:
        """Asked for the counts only where pages are retired at all, so that other boards cost one call."""
        pending, counts = c_int(), [0, 0]
        code = self._call("nvmlDeviceGetRetiredPagesPendingStatus", device, byref(pending))
        for cause in range(len(counts)):
            if code == NvmlReturn.SUCCESS:
                count = c_uint(0)  # no room for addresses: only how many there are
                code = self._call("nvmlDeviceGetRetiredPages", device, c_int(cause), byref(count), None)
                code = NvmlReturn.SUCCESS if code == NvmlReturn.INSUFFICIENT_SIZE else code
                counts[cause] = count.value
        return code, RetiredPages(counts[0], counts[1], bool(pending.value))

    def _take_load(self, fields: Fields, device: c_void_p) -> None:
        reasons = c_ulonglong()
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        fields.take("clocks_event_reasons", self._first(names, device, byref(reasons)), reasons.value)
        temperature = structs.c_nvmlTemperature_v1_t()
        temperature.version = structs.nvmlTemperature_v1
        temperature.sensorType = structs.NVML_TEMPERATURE_GPU
        code = self._call("nvmlDeviceGetTemperatureV", device, byref(temperature))
        degrees = temperature.temperature
        if code in TOO_NEW:
            old = c_uint()
            sensor = c_int(structs.NVML_TEMPERATURE_GPU)
            code = self._call("nvmlDeviceGetTemperature", device, sensor, byref(old))
            degrees = old.value
        fields.take("temperature", code, degrees)
        rates = structs.c_nvmlUtilization_t()
        code = self._call("nvmlDeviceGetUtilizationRates", device, byref(rates))
        fields.take("utilization", code, (rates.gpu, rates.memory))
        memory = structs.c_nvmlMemory_v2_t()
        memory.version = structs.nvmlMemory_v2
        fields.take("memory_used", self._call("nvmlDeviceGetMemoryInfo_v2", device, byref(memory)), memory.used)

    def _processes(self, address: str, call: str, room: int) -> tuple[int, int, Iterable[GpuProcess]]:
        code, device = self._handle_by_address(address)
        infos, count = (structs.c_nvmlProcessInfo_v2_t * room)(), c_uint(room)
        if code == NvmlReturn.SUCCESS:
            code = self._call(call, device, byref(count), infos)
        found = (
            healthvalues.gpu_process(one.pid, one.usedGpuMemory or 0, one.gpuInstanceId, one.computeInstanceId)
            for one in infos[: min(count.value, room)]
        )
        return code, count.value, found
