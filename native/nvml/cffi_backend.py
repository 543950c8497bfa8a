"""Snapshots through the compiled extension: one call into C reads the whole node, every field with its own code.

GPUs whose C struct did not change since the last snapshot keep their frozen value: a poll of a quiet node costs one
call and a comparison of bytes per GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from native.nvml import values
from native.nvml.cffi_events import CffiEvents
from native.nvml.cffi_health import CffiHealth
from native.nvml.cffi_library import by_address, canonical, ffi, lib, raw
from native.nvml.cffi_mig import CffiMig
from native.nvml.errors import NvmlReturn
from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot
from native.nvml.values import Fields, PciInfo

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
    for name, number in ffi.typeof("enum door_field").relements.items()
    if name != "DOOR_FIELDS"
}


class CffiNvml(CffiMig, CffiEvents, CffiHealth):
    """The ``Nvml`` Protocol over ``native._nvml``."""

    def __init__(self, library_path: str | Path) -> None:
        super().__init__(library_path)
        self._memo: dict[str | int, tuple[bytes, GpuSnapshot]] = {}

    def close(self) -> None:
        """Shut down and unload; safe to repeat."""
        self._memo.clear()
        super().close()

    def addresses(self) -> tuple[str | None, ...]:
        """Canonical address per index; None where a GPU does not answer."""
        batch = self._by_index()
        self._batch = batch
        lib.door_locate(self._door, batch, len(batch))
        return tuple(_address_found(gpu) for gpu in batch)

    def snapshot(self, addresses: Sequence[str] | None = None, *, mig: bool = False) -> NvmlSnapshot:
        """Read the whole node in one call, and one call more for each GPU with MIG; see the Protocol."""
        door = self._opened("nvmlSystemGetDriverVersion")
        node = ffi.new("door_node *")
        lib.door_read_node(door, node)
        values.node_code(node.driver_version_code, self._path)
        batch = self._by_index() if addresses is None else by_address(addresses)
        self._batch = batch
        lib.door_read(door, batch, len(batch))
        asked = [None] * len(batch) if addresses is None else [canonical(text) for text in addresses]
        gpus = self._decoded(batch, asked)
        for position, gpu in enumerate(gpus):
            if gpu.mig_mode is not None and (mig or gpu.mig_mode[0]):
                gpus[position] = self._with_mig(gpu, batch, position)
        return _node_fields(node).node(gpus)

    def _decoded(self, batch: Any, asked: Sequence[str | None]) -> list[GpuSnapshot]:
        every = raw(batch)
        size = ffi.sizeof("door_gpu")
        memo: dict[str | int, tuple[bytes, GpuSnapshot]] = {}
        gpus = []
        for position, address in enumerate(asked):
            now = every[position * size : (position + 1) * size]
            key = position if address is None else address
            known = self._memo.get(key)
            memo[key] = known if known is not None and known[0] == now else (now, _decode(batch[position], address))
            gpus.append(memo[key][1])
        self._memo = memo
        return gpus

    def _by_index(self) -> Any:
        batch = ffi.new("door_gpu[]", self.device_count())
        for index, gpu in enumerate(batch):
            gpu.index = index
        return batch


def _pci(pci: Any) -> PciInfo:
    return PciInfo(raw(pci.bus_id), pci.domain, pci.bus, pci.device, pci.device_id, pci.subsystem_id)


def _address_found(gpu: Any) -> str | None:
    if gpu.codes[_CODE["handle"]] != NvmlReturn.SUCCESS or gpu.codes[_CODE["pci"]] != NvmlReturn.SUCCESS:
        return None
    return values.pci_address(_pci(gpu.pci))


def _node_fields(node: Any) -> Fields:
    fields = Fields()
    fields.take_text("driver_version", node.driver_version_code, raw(node.driver_version))
    fields.take_text("nvml_version", node.nvml_version_code, raw(node.nvml_version))
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
        fields.take_text(name, codes[_CODE[name]], ffi.string(getattr(gpu, name)))
    for name in _NUMBERS:
        fields.take(name, codes[_CODE[name]], getattr(gpu, name))
    _take_pairs(fields, gpu, codes)
    fields.take("nvlinks", codes[_CODE["nvlinks"]], _links(gpu.link_count, raw(gpu.links)))
    if codes[_CODE["fabric"]] == NvmlReturn.SUCCESS:
        fabric = values.fabric_info(
            gpu.fabric_state, gpu.fabric_status, raw(gpu.fabric_uuid), gpu.fabric_clique, gpu.fabric_health_mask
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


@functools.lru_cache(maxsize=256)
def _links(count: int, every: bytes) -> tuple[NvLink, ...]:
    """The links of a GPU, holes left out; cached, because they outlive most other changes and are often those of its
    siblings too."""
    links = ffi.from_buffer("door_link[]", every)
    found = (_link(index, links[index]) for index in range(count))
    return tuple(link for link in found if link is not None)


def _link(index: int, link: Any) -> NvLink | None:
    """One door_link as a value, None for a hole."""
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
