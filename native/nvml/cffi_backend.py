"""NVML through the compiled extension: one call into C reads the whole node, every field with its own code.

GPUs whose C struct did not change since the last snapshot keep their frozen value: a poll of a quiet node costs one
call and a comparison of bytes per GPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from native import _nvml
from native.nvml import values
from native.nvml.errors import LibraryUnavailableError, NvmlReturn
from native.nvml.types import CallInProgress, GpuSnapshot, NvLink, NvmlSnapshot
from native.nvml.values import Fields, PciInfo
from native.pci import canonical_address

MOCK_MARKER = "gpudra_mock_marker"
_ffi: Any = _nvml.ffi
_lib: Any = _nvml.lib
_ERROR_SIZE = 512

# Fields of GpuSnapshot that are one number of door_gpu under the same name.
_NUMBERS = (
    "brand",
    "architecture",
    "minor_number",
    "module_id",
    "memory_total",
    "memory_reserved",
    "bar1_total",
    "addressing_mode",
    "compute_mode",
    "virtualization_mode",
    "pcie_link_generation",
    "pcie_link_width",
    "memory_numa_node",
)
_TEXTS = ("uuid", "name", "serial", "board_part_number", "vbios_version")
_CODE: dict[str, int] = {
    name.removeprefix("DOOR_").lower(): number
    for name, number in _ffi.typeof("enum door_field").relements.items()
    if name != "DOOR_FIELDS"
}


class CffiNvml:
    """The ``Nvml`` Protocol over ``native._nvml``."""

    name = "cffi"

    def __init__(self, library_path: str | Path) -> None:
        self._path = str(library_path)
        self._door: Any = _ffi.NULL
        self._progress: Any = _ffi.new("door_progress *")
        self._batch: Any = None
        self._memo: dict[tuple[bytes, str | None], GpuSnapshot] = {}

    @property
    def library_path(self) -> str:
        """The file it loads."""
        return self._path

    def open(self) -> None:
        """Load and initialise; does nothing when already open."""
        if self._door:
            return
        out = _ffi.new("door **")
        error = _ffi.new("char[]", _ERROR_SIZE)
        code = _lib.door_open(out, os.fsencode(self._path), self._progress, error, _ERROR_SIZE)
        words = _ffi.string(error).decode(errors="replace")
        if words:
            message = f"cannot load the NVML library {self._path}: {words}"
            raise LibraryUnavailableError("dlopen", NvmlReturn.LIBRARY_NOT_FOUND, message)
        if code == NvmlReturn.FUNCTION_NOT_FOUND:
            message = f"{self._path} is not an NVML library: it has neither nvmlInitWithFlags nor nvmlInit_v2"
            raise LibraryUnavailableError("dlsym", NvmlReturn.LIBRARY_NOT_FOUND, message)
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlInitWithFlags", code, library=self._path)
        self._door = out[0]

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        door, self._door = self._door, _ffi.NULL
        self._memo.clear()
        self._batch = None
        _lib.door_close(door)

    def is_mock(self) -> bool:
        """Whether the library announces itself as the mock."""
        return bool(_lib.door_has_symbol(self._opened("dlsym"), MOCK_MARKER.encode()))

    def device_count(self) -> int:
        """nvmlDeviceGetCount_v2."""
        count = _ffi.new("unsigned int *")
        code = _lib.door_count(self._opened("nvmlDeviceGetCount_v2"), count)
        if code != NvmlReturn.SUCCESS:
            raise values.failure("nvmlDeviceGetCount_v2", code, library=self._path)
        return int(count[0])

    def addresses(self) -> tuple[str | None, ...]:
        """Canonical address per index; None where a GPU does not answer."""
        batch = self._by_index()
        self._batch = batch
        _lib.door_locate(self._door, batch, len(batch))
        return tuple(_address_found(gpu) for gpu in batch)

    def snapshot(self, addresses: Sequence[str] | None = None) -> NvmlSnapshot:
        """Read the whole node in one call; see the Protocol."""
        door = self._opened("nvmlSystemGetDriverVersion")
        node = _ffi.new("door_node *")
        _lib.door_read_node(door, node)
        values.node_code(node.driver_version_code, self._path)
        batch = self._by_index() if addresses is None else _by_address(addresses)
        self._batch = batch
        _lib.door_read(door, batch, len(batch))
        asked = [None] * len(batch) if addresses is None else [canonical_address(text) for text in addresses]
        memo = {}
        gpus = []
        for position, address in enumerate(asked):
            key = (bytes(_ffi.buffer(_ffi.addressof(batch, position))), address)
            known = self._memo.get(key)
            memo[key] = known if known is not None else _decode(batch[position], address)
            gpus.append(memo[key])
        self._memo = memo
        return _node_fields(node).node(gpus)

    def progress(self) -> CallInProgress | None:
        """The call under way; safe from any thread and after ``close``."""
        seen = _ffi.new("door_look_result *")
        _lib.door_look(self._progress, seen)
        if seen.call == _ffi.NULL:
            return None
        batch = self._batch
        address = None
        if batch is not None and 0 <= seen.gpu < len(batch):
            address = values.pci_address(PciInfo(_raw(batch[seen.gpu].address), 0, 0, 0, 0, 0))
        return CallInProgress(_ffi.string(seen.call).decode(), address, int(seen.sequence))

    def _opened(self, call: str) -> Any:
        if not self._door:
            raise values.not_open(call)
        return self._door

    def _by_index(self) -> Any:
        batch = _ffi.new("door_gpu[]", self.device_count())
        for index, gpu in enumerate(batch):
            gpu.index = index
        return batch


def _by_address(addresses: Sequence[str]) -> Any:
    batch = _ffi.new("door_gpu[]", len(addresses))
    for gpu, address in zip(batch, addresses, strict=True):
        gpu.address = canonical_address(address).encode()
    return batch


def _raw(buffer: Any) -> bytes:
    return bytes(_ffi.buffer(buffer))


def _pci(pci: Any) -> PciInfo:
    return PciInfo(_raw(pci.bus_id), pci.domain, pci.bus, pci.device, pci.device_id, pci.subsystem_id)


def _address_found(gpu: Any) -> str | None:
    if gpu.codes[_CODE["handle"]] != NvmlReturn.SUCCESS or gpu.codes[_CODE["pci"]] != NvmlReturn.SUCCESS:
        return None
    return values.pci_address(_pci(gpu.pci))


def _node_fields(node: Any) -> Fields:
    fields = Fields()
    fields.take_text("driver_version", node.driver_version_code, _raw(node.driver_version))
    fields.take_text("nvml_version", node.nvml_version_code, _raw(node.nvml_version))
    fields.take("cuda_driver_version", node.cuda_driver_version_code, int(node.cuda_driver_version))
    return fields


def _decode(gpu: Any, asked: str | None) -> GpuSnapshot:
    """One struct as a value. ``asked``: the canonical address it was looked up by, None for an index."""
    codes = list(gpu.codes)
    if codes[_CODE["handle"]] != NvmlReturn.SUCCESS:
        return values.unreachable_gpu(asked, None if asked else gpu.index, codes[_CODE["handle"]])
    fields = Fields()
    fields.take_pci(codes[_CODE["pci"]], _pci(gpu.pci), asked)
    fields.take("index", codes[_CODE["index"]], gpu.index)
    for name in _TEXTS:
        fields.take_text(name, codes[_CODE[name]], _raw(getattr(gpu, name)))
    for name in _NUMBERS:
        fields.take(name, codes[_CODE[name]], getattr(gpu, name))
    _take_pairs(fields, gpu, codes)
    fields.take("nvlinks", codes[_CODE["nvlinks"]], _links(gpu))
    if codes[_CODE["fabric"]] == NvmlReturn.SUCCESS:
        fabric = values.fabric_info(
            gpu.fabric_state, gpu.fabric_status, _raw(gpu.fabric_uuid), gpu.fabric_clique, gpu.fabric_health_mask
        )
        fields.take("fabric", NvmlReturn.SUCCESS, fabric)
    else:
        fields.take("fabric", codes[_CODE["fabric"]], None)
    return fields.gpu()


def _take_pairs(fields: Fields, gpu: Any, codes: list[int]) -> None:
    fields.take("cuda_compute_capability", codes[_CODE["cuda_compute_capability"]], (gpu.cuda_major, gpu.cuda_minor))
    fields.take("ecc_mode", codes[_CODE["ecc_mode"]], (bool(gpu.ecc_current), bool(gpu.ecc_pending)))
    fields.take("mig_mode", codes[_CODE["mig_mode"]], (bool(gpu.mig_current), bool(gpu.mig_pending)))
    fields.take("persistence_mode", codes[_CODE["persistence_mode"]], bool(gpu.persistence_mode))


def _links(gpu: Any) -> tuple[NvLink, ...]:
    raw = _raw(gpu.links)
    size = _ffi.sizeof("door_link")
    links = (_link(index, raw[index * size : (index + 1) * size]) for index in range(gpu.link_count))
    return tuple(link for link in links if link is not None)


@functools.lru_cache(maxsize=4096)
def _link(index: int, raw: bytes) -> NvLink | None:
    """One door_link as a value, None for a hole; cached, because links outlive most other changes of a GPU."""
    link = _ffi.from_buffer("door_link *", raw)
    if link.state_code != NvmlReturn.SUCCESS:
        return None
    active = bool(link.active)
    # The far end of a link that is down is not asked for: its codes are zero because nobody wrote them.
    absent = NvmlReturn.SUCCESS if active else NvmlReturn.NO_DATA
    return values.nvlink(
        index,
        active,
        (link.version_code, link.version),
        (link.remote_pci_code or absent, _pci(link.remote)),
        (link.remote_type_code or absent, link.remote_type),
    )
