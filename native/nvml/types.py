"""What NVML says, as frozen data. ``None`` is "no value"; why there is none stands in ``codes``.

A snapshot is one consistent reading of the whole node. Each field of a GPU that could not be read is ``None`` and
has its return code in ``GpuSnapshot.codes`` under the field's name; a field that was read has no entry there. Two
backends that read the same machine give equal snapshots, codes included.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from native.nvml.migtypes import NO_CODES as _NO_CODES
from native.nvml.migtypes import MigState


class NvLink(msgspec.Struct, frozen=True):
    """State of one link (nvmlDeviceGetNvLinkState, ...RemotePciInfo_v2, ...RemoteDeviceType, ...Version)."""

    index: int
    active: bool
    version: int | None
    """NVML's enum value (nvmlNvlinkVersion_t): 6 is NVLink 4.0."""
    remote_address: str | None
    """Canonical PCI address of the far end."""
    remote_type: int | None
    """nvmlIntNvLinkDeviceType_t: 0 GPU, 1 NPU (IBM), 2 switch, 255 unknown."""


class FabricInfo(msgspec.Struct, frozen=True):
    """nvmlDeviceGetGpuFabricInfoV (v3, else v2). ``status`` means something only where ``state`` is 3 (completed)."""

    state: int
    status: int
    cluster_uuid: str
    """Lower-case canonical UUID; all zero where the GPU is in no multi-node fabric."""
    clique_id: int
    health_mask: int


class GpuSnapshot(msgspec.Struct, frozen=True):
    """One GPU. Sizes in bytes, PCI ids packed as NVML does (device << 16 | vendor)."""

    address: str | None
    """Canonical PCI address; None only where a GPU was reached by index and would not even say its address."""
    index: int | None = None
    uuid: str | None = None
    name: str | None = None
    brand: int | None = None
    architecture: int | None = None
    cuda_compute_capability: tuple[int, int] | None = None
    serial: str | None = None
    board_part_number: str | None = None
    vbios_version: str | None = None
    minor_number: int | None = None
    module_id: int | None = None
    pci_device_id: int | None = None
    pci_subsystem_id: int | None = None
    memory_total: int | None = None
    memory_reserved: int | None = None
    bar1_total: int | None = None
    addressing_mode: int | None = None
    ecc_mode: tuple[bool, bool] | None = None
    """(current, pending)."""
    mig_mode: tuple[bool, bool] | None = None
    """(current, pending)."""
    compute_mode: int | None = None
    persistence_mode: bool | None = None
    virtualization_mode: int | None = None
    pcie_link_generation: int | None = None
    """nvmlDeviceGetMaxPcieLinkGeneration."""
    pcie_link_width: int | None = None
    """nvmlDeviceGetMaxPcieLinkWidth."""
    memory_numa_node: int | None = None
    """nvmlDeviceGetNumaNodeId: the node that the GPU's own memory forms, not the host's nearest."""
    nvlinks: tuple[NvLink, ...] | None = None
    """Every link the GPU has, active or not; None where NVLink is not supported."""
    fabric: FabricInfo | None = None
    mig: MigState | None = None
    """Read where MIG is on, and where it was asked for; otherwise None without a code."""
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: _NO_CODES)
    """Field name -> NVML return code of the call that gave no value. ``handle``: the GPU itself was not reachable."""


class NvmlSnapshot(msgspec.Struct, frozen=True):
    """The whole node in one reading."""

    driver_version: str | None
    nvml_version: str | None
    cuda_driver_version: int | None
    """1000 * major + 10 * minor."""
    gpus: tuple[GpuSnapshot, ...]
    """In the order they were asked for, else by index."""
    codes: Mapping[str, int] = msgspec.field(default_factory=lambda: _NO_CODES)


class CallInProgress(msgspec.Struct, frozen=True):
    """What a backend is doing at this moment, readable from any thread."""

    call: str
    """The NVML function's name."""
    address: str | None
    """The GPU it is about, where it is about one."""
    sequence: int = 0
    """Differs between any two calls: two readings with the same number saw the same call still under way."""
