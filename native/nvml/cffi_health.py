"""Health, processes and topology through the compiled extension: each one call for all GPUs, processes apart."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from native.nvml import healthvalues
from native.nvml.cffi_library import CffiLibrary, by_address, canonical, ffi, lib, raw
from native.nvml.errors import NvmlReturn
from native.nvml.healthtypes import GpuHealth, GpuProcess, NvmlTopology, RemappedRows, RetiredPages
from native.nvml.values import Fields
from native.pci import canonical_address

_CODE: dict[str, int] = {
    name.removeprefix("DOOR_HEALTH_").lower(): number
    for name, number in ffi.typeof("enum door_health_field").relements.items()
}
_ECC = ("ecc_corrected_volatile", "ecc_uncorrected_volatile", "ecc_corrected_aggregate", "ecc_uncorrected_aggregate")
_PAIR = struct.Struct("=iiii")
"""door_pair, which is ``healthvalues.Pair``."""
_AFFINITY = struct.Struct(f"=iii4x{8 * lib.DOOR_CPU_WORDS}s{8 * lib.DOOR_NODE_WORDS}s")
"""door_affinity, which is ``healthvalues.Affinity``."""
_KINDS = ("compute_processes", "graphics_processes", "mps_processes")


class CffiHealth(CffiLibrary):
    """The part of the ``Nvml`` Protocol that health and idle accounting use, and NVML's topology."""

    def __init__(self, library_path: str | Path) -> None:
        super().__init__(library_path)
        self._topology: tuple[object, NvmlTopology] | None = None

    def health(self, addresses: Sequence[str]) -> tuple[GpuHealth, ...]:
        """See the Protocol."""
        door, batch = self._opened("nvmlDeviceGetHandleByPciBusId_v2"), by_address(addresses)
        self._batch = batch
        out = ffi.new("door_health[]", len(batch))
        lib.door_read_health(door, batch, len(batch), out)
        return tuple(
            self._health(batch, position, canonical_address(text), out[position])
            for position, text in enumerate(addresses)
        )

    def topology(self, addresses: Sequence[str]) -> NvmlTopology:
        """See the Protocol. What did not change keeps its frozen value."""
        door, batch = self._opened("nvmlDeviceGetHandleByPciBusId_v2"), by_address(addresses)
        self._batch = batch
        count = len(batch)
        affinities = ffi.new("door_affinity[]", count)
        pairs = ffi.new("door_pair[]", count * (count - 1) // 2)
        lib.door_read_topology(door, batch, count, affinities, pairs)
        names = tuple(canonical(text) for text in addresses)
        key = (names, raw(affinities), raw(pairs))
        if self._topology is None or self._topology[0] != key:
            self._topology = (
                key,
                healthvalues.topology(
                    names,
                    _AFFINITY.iter_unpack(key[1]),
                    _PAIR.iter_unpack(key[2]),
                ),
            )
        return self._topology[1]

    def _health(self, batch: Any, position: int, address: str, found: Any) -> GpuHealth:
        codes = list(found.codes)
        if codes[_CODE["handle"]] != NvmlReturn.SUCCESS:
            return healthvalues.unreachable_health(address, codes[_CODE["handle"]])
        fields = Fields()
        fields.take_text("uuid", codes[_CODE["uuid"]], raw(found.uuid))
        for number, name in enumerate(_ECC):
            fields.take(name, codes[_CODE[name]], int(found.ecc[number]))
        rows = RemappedRows(
            found.rows_correctable, found.rows_uncorrectable, bool(found.rows_pending), bool(found.rows_failed)
        )
        single_bit, double_bit = found.pages_retired
        pages = RetiredPages(single_bit, double_bit, bool(found.pages_pending))
        repair = (bool(found.channel_repair_pending), bool(found.tpc_repair_pending))
        for name, value in (
            ("remapped_rows", rows),
            ("retired_pages", pages),
            ("repair_pending", repair),
            ("recovery_action", found.recovery_action),
            ("clocks_event_reasons", found.clocks_event_reasons),
            ("temperature", found.temperature),
            ("utilization", (found.gpu_utilization, found.memory_utilization)),
            ("memory_used", found.memory_used),
        ):
            fields.take(name, codes[_CODE[name]], value)
        for kind, name in enumerate(_KINDS):
            fields.take(name, *healthvalues.all_processes(functools.partial(self._processes, batch, position, kind)))
        return healthvalues.gpu_health(address, fields)

    def _processes(self, batch: Any, position: int, kind: int, room: int) -> tuple[int, int, Iterable[GpuProcess]]:
        out, count = ffi.new("door_process[]", room), ffi.new("unsigned int *", room)
        code = lib.door_processes(self._door, batch, position, kind, out, count)
        found = (
            healthvalues.gpu_process(one.pid, one.used_memory, one.gpu_instance, one.compute_instance)
            for one in out[0 : min(count[0], room)]
        )
        return code, count[0], found
