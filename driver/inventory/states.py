"""Whether a GPU can be given out at all, and if not, why: the verdict from what the bus and NVML say of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from driver.model import GpuState
from native.nvml.errors import NvmlReturn, code_name
from native.nvml.types import GpuSnapshot
from native.sysfs import PciDevice

NVIDIA_DRIVER: Final = "nvidia"

CALLS: Final[Mapping[str, str]] = {
    "handle": "nvmlDeviceGetHandleByPciBusId_v2",
    "index": "nvmlDeviceGetIndex",
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "brand": "nvmlDeviceGetBrand",
    "architecture": "nvmlDeviceGetArchitecture",
    "cuda_compute_capability": "nvmlDeviceGetCudaComputeCapability",
    "serial": "nvmlDeviceGetSerial",
    "board_part_number": "nvmlDeviceGetBoardPartNumber",
    "vbios_version": "nvmlDeviceGetVbiosVersion",
    "minor_number": "nvmlDeviceGetMinorNumber",
    "module_id": "nvmlDeviceGetModuleId",
    "pci_device_id": "nvmlDeviceGetPciInfo_v3",
    "pci_subsystem_id": "nvmlDeviceGetPciInfo_v3",
    "memory_total": "nvmlDeviceGetMemoryInfo",
    "memory_reserved": "nvmlDeviceGetMemoryInfo_v2",
    "bar1_total": "nvmlDeviceGetBAR1MemoryInfo",
    "addressing_mode": "nvmlDeviceGetAddressingMode",
    "ecc_mode": "nvmlDeviceGetEccMode",
    "mig_mode": "nvmlDeviceGetMigMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
    "virtualization_mode": "nvmlDeviceGetVirtualizationMode",
    "pcie_link_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_link_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "memory_numa_node": "nvmlDeviceGetNumaNodeId",
    "nvlinks": "nvmlDeviceGetNvLinkState",
    "fabric": "nvmlDeviceGetGpuFabricInfoV",
}
"""Field of ``GpuSnapshot`` -> the NVML function behind it, to name in a message."""

_NOT_LISTED: Final = "it may be drained (nvidia-smi drain -p {address} -q) or have failed to start; see the kernel log"
_REMEDIES: Final[Mapping[int, str]] = {
    NvmlReturn.GPU_IS_LOST: "look for XID 79 in the kernel log, then reset the GPU or reboot the node",
    NvmlReturn.RESET_REQUIRED: "reset it: nvidia-smi --gpu-reset -i {address}",
    NvmlReturn.TIMEOUT: "the driver holds the call; drain the node and reset the GPU or reboot",
    NvmlReturn.NO_PERMISSION: "run the agent with access to the NVIDIA device nodes",
    NvmlReturn.IRQ_ISSUE: "the kernel found an interrupt problem with the GPU; see the kernel log",
    NvmlReturn.INSUFFICIENT_POWER: "attach the GPU's external power cables",
    NvmlReturn.CORRUPTED_INFOROM: "the board's inforom is damaged; have the board checked",
    NvmlReturn.LIB_RM_VERSION_MISMATCH: "library and kernel module differ in version; reload the module or reboot",
    NvmlReturn.DRIVER_NOT_LOADED: "load NVIDIA's kernel module",
    NvmlReturn.NOT_FOUND: _NOT_LISTED,
    NvmlReturn.GPU_NOT_FOUND: _NOT_LISTED,
}
_ELSE_REMEDY: Final = "see the kernel log for NVRM lines about {address}"


def judge(
    address: str, device: PciDevice | None, gpu: GpuSnapshot | None, *, nvml_answers: bool
) -> tuple[GpuState, str | None]:
    """(state, reason) of one GPU; the reason is None only for READY.

    Args:
        address: canonical PCI address.
        device: what the bus says; None where sysfs does not show it (WSL, or no host /sys).
        gpu: what NVML says; None where it did not list it.
        nvml_answers: False where NVML as a whole gave no snapshot (driver loading, gone, or being upgraded).
    """
    if device is not None and device.driver != NVIDIA_DRIVER and (device.driver is not None or not _identified(gpu)):
        return GpuState.UNBOUND, _unbound(address, device)
    if not nvml_answers:
        return GpuState.UNREADABLE, f"NVML gives no answer on this node, so GPU {address} cannot be read"
    if gpu is None:
        return GpuState.UNREADABLE, (
            f"NVML does not list GPU {address}, which the PCI bus shows; {_remedy(NvmlReturn.NOT_FOUND, address)}"
        )
    for code, state in ((NvmlReturn.GPU_IS_LOST, GpuState.LOST), (NvmlReturn.TIMEOUT, GpuState.WEDGED)):
        field = next((name for name, found in gpu.codes.items() if found == code), None)
        if field is not None:
            return state, _failed(address, field, code)
    for field in ("handle", "uuid"):
        if field in gpu.codes:
            return GpuState.UNREADABLE, _failed(address, field, gpu.codes[field])
    if not gpu.uuid:
        return GpuState.UNREADABLE, f"nvmlDeviceGetUUID gave an empty UUID for GPU {address}; {_remedy(-1, address)}"
    return GpuState.READY, None


def duplicate_uuid(uuid: str, addresses: list[str]) -> str:
    """The reason of GPUs that claim to be the same one: none of them can be told from the other by its UUID."""
    return (
        f"GPUs {', '.join(addresses)} all report UUID {uuid}; none is offered until they differ "
        "(cloned vGPU templates and flashed boards do this)"
    )


def _identified(gpu: GpuSnapshot | None) -> bool:
    """NVML knows its UUID, which only a GPU that NVIDIA's driver holds has: the missing link is sysfs's fault."""
    return gpu is not None and bool(gpu.uuid)


def _unbound(address: str, device: PciDevice) -> str:
    if device.driver is None:
        return f"no kernel driver is bound to GPU {address}; load NVIDIA's kernel module or bind it to the GPU"
    return (
        f"GPU {address} is bound to {device.driver}, not to NVIDIA's driver; "
        f"unbind it there and bind it to {NVIDIA_DRIVER} to offer it to containers"
    )


def _failed(address: str, field: str, code: int) -> str:
    return f"{CALLS.get(field, field)} for GPU {address}: {code_name(code)}; {_remedy(code, address)}"


def _remedy(code: int, address: str) -> str:
    return _REMEDIES.get(code, _ELSE_REMEDY).format(address=address)
