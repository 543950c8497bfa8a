"""From what NVML wrote to typed values: pure functions that both backends share, so that they cannot disagree."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn, code_name
from native.nvml.types import FabricInfo, GpuSnapshot, NvmlSnapshot
from native.pci import canonical_address

TEXT_SIZE = 256
"""Bytes offered for a string: more than any length in nvml.h, so that INSUFFICIENT_SIZE does not arise."""

SUCCESS: Final = int(NvmlReturn.SUCCESS)
"""As a plain number: a snapshot compares with it hundreds of times, and each look into an enum costs."""

LIBRARY_GONE = frozenset(
    {NvmlReturn.DRIVER_NOT_LOADED, NvmlReturn.LIBRARY_NOT_FOUND, NvmlReturn.LIB_RM_VERSION_MISMATCH}
)

_REMEDIES = {
    NvmlReturn.DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: load it (modprobe nvidia), or wait for "
    "whatever installs it on this node",
    NvmlReturn.LIBRARY_NOT_FOUND: "the NVML library or one that it needs cannot be loaded: install the driver's "
    "user-space libraries, or set the driver root to where they are",
    NvmlReturn.LIB_RM_VERSION_MISMATCH: "the library and the loaded kernel driver are of different versions: a driver "
    "upgrade is under way, or the old kernel driver must be unloaded (or the node rebooted)",
}


class PciInfo(NamedTuple):
    """nvmlPciInfo_t without the legacy spelling."""

    bus_id: bytes
    domain: int
    bus: int
    device: int
    device_id: int
    subsystem_id: int


NO_PCI = PciInfo(b"", 0, 0, 0, 0, 0)


def clean_text(raw: bytes) -> str | None:
    """A string of a C library that is not to be trusted: cut at NUL, decoded with replacement, no control characters.

    Surrounding blanks go too (boards pad serial numbers). None where nothing is left.
    """
    text = raw.split(b"\0", 1)[0].decode("utf-8", errors="replace")
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text.strip() or None


@functools.lru_cache(maxsize=1024)
def pci_address(info: PciInfo) -> str | None:
    """The canonical address in an nvmlPciInfo_t: its busId, else (older structs lack it) its numbers."""
    try:
        return canonical_address(clean_text(info.bus_id) or "")
    except ValueError:
        if info.bus > 0xFF or info.device > 0x1F or not (info.domain or info.bus or info.device):
            return None
        return canonical_address(f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0")


def failure(call: str, code: int, device: str | None = None, library: str = "") -> NvmlError:
    """The error for a code that is not SUCCESS: the library's own absence, or a plain failure of the call."""
    if code in LIBRARY_GONE:
        where = f" of {library}" if library else ""
        return LibraryUnavailableError(call, code, f"{call}{where}: {code_name(code)}: {_REMEDIES[NvmlReturn(code)]}")
    return NvmlError(call, code, device)


def not_open(call: str) -> NvmlError:
    """The error of a backend that is asked before ``open`` or after ``close``."""
    return NvmlError(call, NvmlReturn.UNINITIALIZED)


class Fields:
    """Collects the fields of one GPU or node: each call's code decides between a value and an entry in ``codes``."""

    def __init__(self, codes: dict[str, int] | None = None, known: dict[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = known or {}
        self.codes: dict[str, int] = codes or {}

    def take(self, name: str, code: int, value: object) -> None:
        """``value`` where the code is SUCCESS; the code is kept otherwise."""
        if code == SUCCESS:
            self.values[name] = value
        else:
            self.codes[name] = int(code)

    def take_text(self, name: str, code: int, raw: bytes) -> None:
        """As ``take``; an answer that is empty after cleaning is NO_DATA (21)."""
        text = clean_text(raw) if code == SUCCESS else None
        self.take(name, NvmlReturn.NO_DATA if text is None and code == SUCCESS else code, text)

    def take_pci(self, code: int, info: PciInfo, asked: str | None) -> None:
        """Ids and address. A GPU that was looked up by address keeps that address whatever its PCI info says."""
        self.take("pci_device_id", code, info.device_id)
        self.take("pci_subsystem_id", code, info.subsystem_id)
        found = pci_address(info) if asked is None and code == SUCCESS else None
        self.values["address"] = asked or found
        if asked is None and found is None:
            self.codes["address"] = NvmlReturn.NO_DATA if code == SUCCESS else int(code)

    def gpu(self) -> GpuSnapshot:
        """The GPU that the fields taken so far make."""
        return GpuSnapshot(**self.values, codes=MappingProxyType(self.codes))

    def node(self, gpus: Sequence[GpuSnapshot]) -> NvmlSnapshot:
        """The node that the fields taken so far make."""
        named = {name: self.values.get(name) for name in ("driver_version", "nvml_version", "cuda_driver_version")}
        return NvmlSnapshot(**named, gpus=tuple(gpus), codes=MappingProxyType(self.codes))


def unreachable_gpu(address: str | None, index: int | None, code: int) -> GpuSnapshot:
    """A GPU of which nothing is known but why: ``codes["handle"]``."""
    return GpuSnapshot(address=address, index=index, codes=MappingProxyType({"handle": int(code)}))


def nvlink(
    active: bool, version: tuple[int, int], remote: tuple[int, PciInfo], kind: tuple[int, int]
) -> tuple[bool, int | None, str | None, int | None]:
    """All of an ``NvLink`` but its number, from the (code, value) pairs of its calls; what failed is None."""
    return (
        active,
        version[1] if version[0] == SUCCESS else None,
        pci_address(remote[1]) if remote[0] == SUCCESS else None,
        kind[1] if kind[0] == SUCCESS else None,
    )


def fabric_info(state: int, status: int, cluster: bytes, clique: int, health: int) -> FabricInfo:
    """Fabric info with the cluster's 16 bytes spelled as a UUID; only the low byte of ``state`` is NVML's."""
    digits = cluster.hex()
    return FabricInfo(
        state=state & 0xFF,
        status=status,
        cluster_uuid="-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])),
        clique_id=clique,
        health_mask=health,
    )


def node_code(code: int, library: str) -> None:
    """Judge the library as a whole by nvmlSystemGetDriverVersion, the one call that needs no GPU and no libcuda.

    Raises:
        NvmlError: UNINITIALIZED (1): NVML was shut down behind our back, or never initialised.
        LibraryUnavailableError: the driver is gone (9, 12, 18).
    """
    if code in LIBRARY_GONE or code == NvmlReturn.UNINITIALIZED:
        raise failure("nvmlSystemGetDriverVersion", code, library=library)
