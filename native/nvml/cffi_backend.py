"""Snapshots through the compiled extension: one call into C reads the whole node, every field with its own code.

GPUs whose C struct did not change since the last snapshot keep their frozen value: a poll of a quiet node costs one
call and a comparison of bytes per GPU. In a first reading most of a GPU is what it is on its siblings, byte for byte:
that part is decoded once for all of them.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from native.nvml import values
from native.nvml.cffi_events import CffiEvents
from native.nvml.cffi_health import CffiHealth
from native.nvml.cffi_library import by_address, canonical, ffi, lib, raw
from native.nvml.cffi_mig import CffiMig
from native.nvml.errors import NvmlReturn
from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot
from native.nvml.values import SUCCESS, Fields, PciInfo, clean_text

# Fields of GpuSnapshot that are one number (or text) of door_gpu under the same name, without those that tell a GPU
# from its siblings.
_NUMBERS = (
    "brand",
    "architecture",
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
_TEXTS = ("name", "board_part_number", "vbios_version")
_CODE: dict[str, int] = {
    name.removeprefix("DOOR_").lower(): number
    for name, number in ffi.typeof("enum door_field").relements.items()
    if name != "DOOR_FIELDS"
}
_IDENTITY = tuple(_CODE[name] for name in ("pci", "index", "uuid", "serial", "minor_number", "module_id"))
"""What is not common to siblings."""
_OFFSET: dict[str, int] = {name: field.offset for name, field in ffi.typeof("door_gpu").fields}
_SHARED = tuple(
    slice(_OFFSET[start], _OFFSET[end] if end else None)
    for start, end in (
        ("codes", "pci"),
        ("name", "serial"),
        ("board_part_number", "minor_number"),
        ("memory_total", "links"),
        ("fabric_uuid", None),
    )
)
"""The bytes of a door_gpu that are not its identity; its links apart, which ``_links`` remembers by themselves."""
_PCI = struct.Struct(f"={lib.DOOR_ADDRESS}sIIIII")
"""door_pci, which is ``values.PciInfo``."""
_LINK = struct.Struct(f"=iiiiiIi{lib.DOOR_ADDRESS}sIIIII")
"""door_link."""
_LINKS = slice(_OFFSET["links"], _OFFSET["links"] + ffi.sizeof("door_link") * lib.DOOR_LINKS)

for _kind, _layout in (("door_pci", _PCI), ("door_link", _LINK)):
    if _layout.size != ffi.sizeof(_kind):
        raise ImportError(f"{_kind} has {ffi.sizeof(_kind)} bytes, not {_layout.size}: build the extension again")


class _Common(NamedTuple):
    """What a GPU has in common with its siblings: the codes of all its calls, and the fields that are no identity."""

    shared: bytes
    codes: list[int]
    fields: Fields
    failed: MappingProxyType[str, int]
    """Their codes, as a GPU has them of which no call about its identity failed."""
    identified: bool
    """No such call failed."""
    link_bytes: bytes
    links: tuple[NvLink, ...] | None
    """The links of the first of them, and their bytes; None where they have none."""


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
        siblings: list[_Common] = []
        gpus = []
        for position, address in enumerate(asked):
            now = every[position * size : (position + 1) * size]
            key = position if address is None else address
            known = self._memo.get(key)
            if known is None or known[0] != now:
                known = (now, _decode(batch[position], now, address, siblings))
            memo[key] = known
            gpus.append(known[1])
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
    if gpu.codes[_CODE["handle"]] != SUCCESS or gpu.codes[_CODE["pci"]] != SUCCESS:
        return None
    return values.pci_address(_pci(gpu.pci))


def _node_fields(node: Any) -> Fields:
    fields = Fields()
    fields.take_text("driver_version", node.driver_version_code, raw(node.driver_version))
    fields.take_text("nvml_version", node.nvml_version_code, raw(node.nvml_version))
    fields.take("cuda_driver_version", node.cuda_driver_version_code, int(node.cuda_driver_version))
    return fields


def _decode(gpu: Any, every: bytes, asked: str | None, siblings: list[_Common]) -> GpuSnapshot:
    """One struct, whose bytes are ``every``, as a value. ``asked``: the canonical address it was looked up by, None for
    an index. ``siblings``: what the GPUs of this reading have in common with others."""
    shared = b"".join([every[part] for part in _SHARED])
    common = _sibling(siblings, shared)
    if common is None:
        codes = list(gpu.codes)
        if codes[_CODE["handle"]] != SUCCESS:
            return values.unreachable_gpu(asked, None if asked else gpu.index, codes[_CODE["handle"]])
        fields = _common(gpu, codes)
        links = _links(gpu.link_count, every[_LINKS]) if codes[_CODE["nvlinks"]] == SUCCESS else None
        identified = not any(codes[number] for number in _IDENTITY)
        common = _Common(shared, codes, fields, MappingProxyType(fields.codes), identified, every[_LINKS], links)
        siblings.append(common)
    uuid, serial = ffi.string(gpu.uuid), ffi.string(gpu.serial)
    pci = PciInfo(*_PCI.unpack_from(every, _OFFSET["pci"]))
    links = common.links
    if links is not None and every[_LINKS] != common.link_bytes:
        links = _links(gpu.link_count, every[_LINKS])
    if asked is not None and common.identified and (named := clean_text(uuid)) and (number := clean_text(serial)):
        return GpuSnapshot(
            address=asked,
            index=gpu.index,
            uuid=named,
            serial=number,
            minor_number=gpu.minor_number,
            module_id=gpu.module_id,
            pci_device_id=pci.device_id,
            pci_subsystem_id=pci.subsystem_id,
            nvlinks=links,
            codes=common.failed,
            **common.fields.values,
        )
    codes = common.codes
    fields = Fields(dict(common.fields.codes), dict(common.fields.values))
    fields.take_pci(codes[_CODE["pci"]], pci, asked)
    fields.take("index", codes[_CODE["index"]], gpu.index)
    fields.take_text("uuid", codes[_CODE["uuid"]], uuid)
    fields.take_text("serial", codes[_CODE["serial"]], serial)
    fields.take("minor_number", codes[_CODE["minor_number"]], gpu.minor_number)
    fields.take("module_id", codes[_CODE["module_id"]], gpu.module_id)
    fields.values["nvlinks"] = links
    return fields.gpu()


def _sibling(siblings: list[_Common], shared: bytes) -> _Common | None:
    """What is known of GPUs with these bytes. Mostly all are of one kind: to compare is cheaper than to hash."""
    for common in siblings:
        if common.shared == shared:
            return common
    return None


def _common(gpu: Any, codes: list[int]) -> Fields:
    fields = Fields()
    for name in _TEXTS:
        fields.take_text(name, codes[_CODE[name]], ffi.string(getattr(gpu, name)))
    for name in _NUMBERS:
        fields.take(name, codes[_CODE[name]], getattr(gpu, name))
    _take_pairs(fields, gpu, codes)
    if codes[_CODE["nvlinks"]] != SUCCESS:
        fields.codes["nvlinks"] = codes[_CODE["nvlinks"]]
    fabric = None
    if codes[_CODE["fabric"]] == SUCCESS:
        fabric = values.fabric_info(
            gpu.fabric_state, gpu.fabric_status, raw(gpu.fabric_uuid), gpu.fabric_clique, gpu.fabric_health_mask
        )
    fields.take("fabric", codes[_CODE["fabric"]], fabric)
    return fields


def _take_pairs(fields: Fields, gpu: Any, codes: list[int]) -> None:
    fields.take("cuda_compute_capability", codes[_CODE["cuda_compute_capability"]], (gpu.cuda_major, gpu.cuda_minor))
    fields.take("ecc_mode", codes[_CODE["ecc_mode"]], (bool(gpu.ecc_current), bool(gpu.ecc_pending)))
    fields.take("mig_mode", codes[_CODE["mig_mode"]], (bool(gpu.mig_current), bool(gpu.mig_pending)))
    fields.take("persistence_mode", codes[_CODE["persistence_mode"]], bool(gpu.persistence_mode))


@functools.lru_cache(maxsize=256)
def _links(count: int, every: bytes) -> tuple[NvLink, ...]:
    """The links of a GPU, holes left out; cached, because they outlive most other changes and are often those of its
    siblings too. Links that differ in nothing but their number (to one switch) are decoded once."""
    found = []
    size = _LINK.size
    seen: dict[bytes, tuple[bool, int | None, str | None, int | None] | None] = {}
    for index in range(count):
        link = every[index * size : (index + 1) * size]
        if link not in seen:
            seen[link] = _link(link)
        known = seen[link]
        if known is not None:
            found.append(NvLink(index, *known))
    return tuple(found)


def _link(link: bytes) -> tuple[bool, int | None, str | None, int | None] | None:
    """All of an ``NvLink`` but its number; None for a hole."""
    state, version_code, pci_code, type_code, active, version, kind, *remote = _LINK.unpack(link)
    if state != SUCCESS:
        return None
    # The far end of a link that is down is not asked for: its codes are zero because nobody wrote them.
    absent = SUCCESS if active else int(NvmlReturn.NO_DATA)
    far = (pci_code or absent, PciInfo(*remote)), (type_code or absent, kind)
    return values.nvlink(bool(active), (version_code, version), *far)
