"""What NVML or the bus refused to tell of a GPU in one reading: which fields of the model then say nothing.

A call that fails says nothing: a MIG mode that was not read is not a mode that is off, a clique that was not read is no
proof of having none. NOT_SUPPORTED and FUNCTION_NOT_FOUND are answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from driver.inventory.words import FABRIC_IN_PROGRESS
from driver.model import Gpu
from native.nvml.errors import NvmlReturn
from native.nvml.types import GpuSnapshot

ORDINARY: Final = frozenset({NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND})
"""Codes that say "this board or this driver has no such thing": nothing to report."""

FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "name": ("product_name",),
    "brand": ("brand",),
    "architecture": ("architecture",),
    "cuda_compute_capability": ("cuda_compute_capability",),
    "serial": ("serial",),
    "board_part_number": ("board_part_number",),
    "vbios_version": ("vbios_version",),
    "minor_number": ("minor",),
    "module_id": ("module_id",),
    "pci_device_id": ("pci_device_id",),
    "pci_subsystem_id": ("pci_subsystem_id",),
    "memory_total": ("memory_bytes", "memory_kind"),
    "addressing_mode": ("addressing_mode", "memory_kind"),
    "memory_numa_node": ("memory_numa_node", "memory_kind"),
    "ecc_mode": ("ecc",),
    "mig_mode": ("mig", "mig_profiles", "partitions"),
    "compute_mode": ("compute_mode",),
    "persistence_mode": ("persistence_mode",),
    "virtualization_mode": ("virtualization_mode",),
    "pcie_link_generation": ("pcie_link_generation",),
    "pcie_link_width": ("pcie_link_width",),
    "nvlinks": ("nvlinks",),
    "fabric": ("fabric",),
    "profiles": ("mig_profiles",),
    "instances": ("partitions",),
}
"""Field of ``GpuSnapshot`` or ``MigState`` -> the fields of ``Gpu`` that are made of it."""

PLACE: Final = ("drm_nodes", "iommu_group", "local_cpulist", "numa_node", "pcie_root", "switch_path")
"""Fields of ``Gpu`` that the bus alone tells."""
_FROM_BUS: Final = frozenset({"pci_device_id", "pci_subsystem_id", "pcie_link_generation", "pcie_link_width"})
"""What the bus tells too."""
_MIG: Final = frozenset({"mig", "mig_profiles", "partitions"})
_WITHOUT_MIG: Final = frozenset({"Kepler", "Maxwell", "Pascal", "Volta", "Turing", "Ada Lovelace"})
"""Architectures of which no board has MIG (MIG user guide, "Supported GPUs"): whatever NVML does not tell of it."""


def unread_of(gpu: Gpu, read: GpuSnapshot, *, troubled: bool) -> tuple[str, ...]:
    """The fields of a GPU that say nothing because the calls behind them failed, in alphabetical order.

    Args:
        gpu: as it was built of the reading.
        read: NVML's part of it.
        troubled: something of the GPU could not be read on the bus.
    """
    found = {field for source in _refused(read) for field in FIELDS[source]}
    found |= {field for field in PLACE if troubled and getattr(gpu, field) in (None, ())}
    found -= {field for field in _FROM_BUS & found if getattr(gpu, field) is not None}
    if not gpu.partitions_known:
        found.add("partitions")
    return tuple(sorted(found - _MIG if gpu.architecture in _WITHOUT_MIG else found))


def _refused(read: GpuSnapshot) -> Iterable[str]:
    of_mig = {} if read.mig is None else read.mig.codes
    for source, code in (*of_mig.items(), *read.codes.items()):
        if source in FIELDS and code not in ORDINARY and getattr(read, source, None) is None:
            yield source
    if read.fabric is not None and read.fabric.state == FABRIC_IN_PROGRESS:
        yield "fabric"  # it will be in a clique, and in which one is not known yet
