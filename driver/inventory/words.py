"""NVML's enum values in the words that NVIDIA's own Kubernetes components publish for them.

Numbers are nvml.h's. Words for brand and architecture are those that claims already select on (GPU feature
discovery and NVIDIA's DRA driver print the same); where a value is newer than those, nvml.h's own name is taken.
A number that is in no table becomes ``None``: unknown, never a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

BRANDS: Final[Mapping[int, str]] = {
    1: "Quadro",
    2: "Tesla",
    3: "NVS",
    4: "Grid",
    5: "GeForce",
    6: "Titan",
    7: "NvidiaVApps",
    8: "NvidiaVPC",
    9: "NvidiaVCS",
    10: "NvidiaVWS",
    11: "NvidiaCloudGaming",
    12: "QuadroRTX",
    13: "NvidiaRTX",
    14: "Nvidia",
    15: "GeForceRTX",
    16: "TitanRTX",
    17: "NvidiaDLA",
    18: "NvidiaVGameDev",
    19: "NvidiaNPU",
}
"""nvmlBrandType_t."""

ARCHITECTURES: Final[Mapping[int, str]] = {
    2: "Kepler",
    3: "Maxwell",
    4: "Pascal",
    5: "Volta",
    6: "Turing",
    7: "Ampere",
    8: "Ada Lovelace",
    9: "Hopper",
    10: "Blackwell",
    13: "Rubin",
}
"""NVML_DEVICE_ARCH_*."""

ADDRESSING_MODES: Final[Mapping[int, str]] = {0: "None", 1: "HMM", 2: "ATS"}
"""nvmlDeviceAddressingModeType_t."""

COMPUTE_MODES: Final[Mapping[int, str]] = {
    0: "Default",
    1: "Exclusive_Thread",
    2: "Prohibited",
    3: "Exclusive_Process",
}
"""nvmlComputeMode_t, as nvidia-smi prints it."""

VIRTUALIZATION_MODES: Final[Mapping[int, str]] = {
    0: "None",
    1: "Pass-Through",
    2: "VGPU",
    3: "Host VGPU",
    4: "Host VSGA",
}
"""nvmlGpuVirtualizationMode_t, as nvidia-smi prints it."""

NVLINK_VERSIONS: Final[Mapping[int, str]] = {
    1: "1.0",
    2: "2.0",
    3: "2.2",
    4: "3.0",
    5: "3.1",
    6: "4.0",
    7: "5.0",
    8: "6.0",
}
"""nvmlNvlinkVersion_t: the enum value is not the generation."""

NVLINK_REMOTES: Final[Mapping[int, str]] = {0: "gpu", 1: "npu", 2: "switch"}
"""nvmlIntNvLinkDeviceType_t."""

FABRIC_IN_PROGRESS: Final = 2
"""NVML_GPU_FABRIC_STATE_IN_PROGRESS."""
FABRIC_COMPLETED: Final = 3
"""NVML_GPU_FABRIC_STATE_COMPLETED."""


def word(table: Mapping[int, str], value: int | None) -> str | None:
    """The word for a value; None for none and for one that the table lacks."""
    return None if value is None else table.get(value)
