"""The one table of what is published about a whole GPU: id, type, kind, derivation, documentation, and the value.

The documentation page, the shape export, the lint and the documents themselves are all made from it. At most 32
attributes and capacities fit on a device (ResourceSliceMaxAttributesAndCapacitiesPerDevice), so each must earn its
place: somebody selects, groups or decides by it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Final

import msgspec

from driver.model import Gpu, NodeInventory
from driver.publish.values import bus_id, semver

STANDARD_DOMAIN: Final = "resource.kubernetes.io/"

Value = str | int | bool
"""What an attribute may hold; its type in the API is in the table, not in the value."""


class AttributeType(enum.Enum):
    """The value's field in a DeviceAttribute; CAPACITY stands for an entry of ``capacity``."""

    STRING = "string"
    INT = "int"
    BOOL = "bool"
    VERSION = "version"
    CAPACITY = "capacity"


class AttributeKind(enum.Enum):
    """What happens to the value when somebody imagines another node of this kind (an autoscaler does)."""

    TYPE = "type"
    """The same on every node of the kind: model, memory."""
    SOFTWARE = "software"
    """Changes with the node's image: versions, modes that an administrator sets."""
    EQUALITY = "equality"
    """Only which devices of one node share a value matters, not the value."""
    LAUNCH = "launch"
    """New on every node: identities."""
    FABRIC = "fabric"
    """Shared by several nodes, and not to be known before a node has joined."""
    RUNTIME = "runtime"
    """May change while the node runs."""


class Missing(enum.Enum):
    """What to do when a GPU has no value. All devices of a type carry the same keys: CEL fails on a missing one."""

    DROP_KEY = "the key is left out on every device of the node"
    """For values that a wrong one would make worse: identities of places, versions."""
    EXPLICIT = "an explicit value says so"
    WITHHOLD = "a GPU without it is held back where others have it; the key is left out where none has"


class Attribute(msgspec.Struct, frozen=True):
    """One row."""

    id: str
    """Qualified name: bare ids belong to the driver's domain."""
    type: AttributeType
    kind: AttributeKind
    derivation: str
    """Where the value comes from, for people."""
    doc: str
    """What it is good for, one sentence."""
    value: Callable[[NodeInventory, Gpu], Value | None]
    missing: Missing = Missing.DROP_KEY


def _unknown(text: str | None) -> str:
    return (text or "").strip() or "Unknown"


def _dotted(version: tuple[int, int] | None) -> str | None:
    return None if version is None else semver(f"{version[0]}.{version[1]}")


def _pcie_switch(_node: NodeInventory, gpu: Gpu) -> str:
    """The port above the GPU's own: the upstream port of its switch; its own port or itself where there is none."""
    if len(gpu.switch_path) > 1:
        return str(gpu.switch_path[-2])
    return str(gpu.switch_path[0] if gpu.switch_path else gpu.address)


def _nvlink_group(node: NodeInventory, gpu: Gpu) -> str:
    group = None if gpu.nvlink_group is None else node.nvlink_groups[gpu.nvlink_group]
    return str(group.members[0] if group else gpu.address)


def _shares(node: NodeInventory, gpu: Gpu) -> int | None:
    """Where one GPU of the node has shares, all tell how many they have: a key must be on every device of a type."""
    return (gpu.shares or 1) if any(other.shares for other in node.gpus) else None


def _share_limits(node: NodeInventory, gpu: Gpu) -> str | None:
    if _shares(node, gpu) is None:
        return None
    return "cooperative" if gpu.shares else "exclusive"


def _fabric_clique(_node: NodeInventory, gpu: Gpu) -> str:
    return gpu.fabric.clique if gpu.fabric else f"none.{gpu.address}"


def _largest(field: str) -> Callable[[NodeInventory, Gpu], Value | None]:
    def value(_node: NodeInventory, gpu: Gpu) -> Value | None:
        return max((int(getattr(profile, field)) for profile in gpu.mig_profiles), default=None)

    return value


_STRING, _INT, _BOOL, _VERSION = AttributeType.STRING, AttributeType.INT, AttributeType.BOOL, AttributeType.VERSION
_TYPE, _SOFTWARE, _EQUALITY = AttributeKind.TYPE, AttributeKind.SOFTWARE, AttributeKind.EQUALITY

ATTRIBUTES: Final[tuple[Attribute, ...]] = (
    Attribute("type", _STRING, _TYPE, "constant", "`gpu`: a whole GPU.", lambda _node, _gpu: "gpu", Missing.EXPLICIT),
    Attribute(
        "uuid",
        _STRING,
        AttributeKind.LAUNCH,
        "nvmlDeviceGetUUID",
        "The GPU's UUID as `nvidia-smi -L` prints it; a claim that selects it is bound to one board of one node.",
        lambda _node, gpu: gpu.uuid,
    ),
    Attribute(
        "index",
        _INT,
        _TYPE,
        "position in the order of PCI addresses",
        "The GPU's number on its node, from 0, as `nvidia-smi` counts while all GPUs have their driver. Another one "
        "has it when a GPU is taken out: it identifies no board.",
        lambda _node, gpu: gpu.index,
    ),
    Attribute(
        "productName",
        _STRING,
        _TYPE,
        "nvmlDeviceGetName, cut at 64 bytes",
        "Marketing name, such as `NVIDIA H100 80GB HBM3`; `Unknown` where the driver has none.",
        lambda _node, gpu: _unknown(gpu.product_name),
        Missing.EXPLICIT,
    ),
    Attribute(
        "brand",
        _STRING,
        _TYPE,
        "nvmlDeviceGetBrand",
        "Product family: `Nvidia` with current drivers of servers, `GeForce`, `Quadro` and so on, or `Unknown`.",
        lambda _node, gpu: _unknown(gpu.brand),
        Missing.EXPLICIT,
    ),
    Attribute(
        "architecture",
        _STRING,
        _TYPE,
        "nvmlDeviceGetArchitecture",
        "`Turing`, `Ampere`, `Ada Lovelace`, `Hopper`, `Blackwell` and so on, or `Unknown`.",
        lambda _node, gpu: _unknown(gpu.architecture),
        Missing.EXPLICIT,
    ),
    Attribute(
        "cudaComputeCapability",
        _VERSION,
        _TYPE,
        "nvmlDeviceGetCudaComputeCapability",
        "Compute capability: `9.0.0` for Hopper; `0.0.0` where the driver does not say.",
        lambda _node, gpu: _dotted(gpu.cuda_compute_capability) or "0.0.0",
        Missing.EXPLICIT,
    ),
    Attribute(
        "driverVersion",
        _VERSION,
        _SOFTWARE,
        "nvmlSystemGetDriverVersion as a strict semantic version",
        "Version of the kernel driver, to compare with: `580.159.04` becomes `580.159.4`.",
        lambda node, _gpu: semver(node.driver_version),
    ),
    Attribute(
        "driverVersionString",
        _STRING,
        _SOFTWARE,
        "nvmlSystemGetDriverVersion",
        "The same as the driver writes it, to tell apart what a semantic version cannot (`550.90.07-grid`).",
        lambda node, _gpu: _unknown(node.driver_version),
        Missing.EXPLICIT,
    ),
    Attribute(
        "cudaDriverVersion",
        _VERSION,
        _SOFTWARE,
        "nvmlSystemGetCudaDriverVersion_v2",
        "The highest CUDA version that the driver supports: `13.0.0`.",
        lambda node, _gpu: _dotted(node.cuda_driver_version),
    ),
    Attribute(
        "addressingMode",
        _STRING,
        _SOFTWARE,
        "nvmlDeviceGetAddressingMode",
        "How the GPU reaches pageable host memory: `HMM`, `ATS`, `None`, or `Unknown` (drivers before R580).",
        lambda _node, gpu: _unknown(gpu.addressing_mode),
        Missing.EXPLICIT,
    ),
    Attribute(
        STANDARD_DOMAIN + "pciBusID",
        _STRING,
        AttributeKind.LAUNCH,
        "PCI address; left out for domains of more than four digits",
        "The GPU's PCI address, `0000:1b:00.0`.",
        lambda _node, gpu: bus_id(str(gpu.address)),
    ),
    Attribute(
        STANDARD_DOMAIN + "pcieRoot",
        _STRING,
        _EQUALITY,
        "topmost pciDDDD:BB of the device's path in sysfs",
        "The PCIe root complex; equal on devices of any driver that share one.",
        lambda _node, gpu: gpu.pcie_root,
    ),
    Attribute(
        STANDARD_DOMAIN + "numaNode",
        _INT,
        _EQUALITY,
        "numa_node in sysfs; left out where the firmware gives none",
        "The NUMA node nearest to the GPU; equal on devices of any driver that share one.",
        lambda _node, gpu: gpu.numa_node,
    ),
    Attribute(
        "pcieSwitch",
        _STRING,
        _EQUALITY,
        "second-last bridge of the device's path in sysfs",
        "Upstream port of the PCIe switch above the GPU. GPUs with equal values talk through one switch (PIX).",
        _pcie_switch,
        Missing.EXPLICIT,
    ),
    Attribute(
        "nvlinkGroup",
        _STRING,
        _EQUALITY,
        "active NVLinks; the lowest PCI address in the group",
        "GPUs with equal values reach each other over NVLink; a GPU without NVLink is a group of its own.",
        _nvlink_group,
        Missing.EXPLICIT,
    ),
    Attribute(
        "nvlinkCount",
        _INT,
        AttributeKind.RUNTIME,
        "nvmlDeviceGetNvLinkState",
        "Number of active NVLinks: 18 on a sound H100, less where links are down, 0 without NVLink.",
        lambda _node, gpu: gpu.nvlink_count,
        Missing.EXPLICIT,
    ),
    Attribute(
        "fabricClique",
        _STRING,
        AttributeKind.FABRIC,
        "nvmlDeviceGetGpuFabricInfoV: `<cluster uuid>.<clique id>`",
        "The multi-node NVLink partition; equal values reach each other, on one node or several. "
        "`none.<address>` outside any, so that two GPUs without a fabric never look alike.",
        _fabric_clique,
        Missing.EXPLICIT,
    ),
    Attribute(
        "eccEnabled",
        _BOOL,
        _SOFTWARE,
        "nvmlDeviceGetEccMode (current)",
        "Whether the memory is protected by ECC now; false too where the board has no ECC.",
        lambda _node, gpu: gpu.ecc is not None and gpu.ecc.current,
        Missing.EXPLICIT,
    ),
    Attribute(
        "migEnabled",
        _BOOL,
        AttributeKind.RUNTIME,
        "nvmlDeviceGetMigMode (current)",
        "Whether MIG mode is on; false too where the board has no MIG.",
        lambda _node, gpu: gpu.mig is not None and gpu.mig.current,
        Missing.EXPLICIT,
    ),
    Attribute(
        "shareLimits",
        _STRING,
        _SOFTWARE,
        "setting `shares`",
        "What keeps a claim to its share: `exclusive` for a GPU that one claim has for itself, `cooperative` for one "
        "in shares, where nothing but programs themselves does, unless the claim asks for MPS "
        "([sharing.md](sharing.md)). Only on nodes with a GPU in shares.",
        _share_limits,
    ),
    Attribute(
        "memoryKind",
        _STRING,
        _TYPE,
        "nvmlDeviceGetMemoryInfo, nvmlDeviceGetAddressingMode, nvmlDeviceGetNumaNodeId",
        "`dedicated`; `coherent` (own memory that is also a NUMA node of the host, as on Grace Hopper); "
        "`unified` (shared with the host, as on DGX Spark: the size is then the host's).",
        lambda _node, gpu: gpu.memory_kind.value,
        Missing.EXPLICIT,
    ),
    Attribute(
        "memory",
        AttributeType.CAPACITY,
        _TYPE,
        "nvmlDeviceGetMemoryInfo; MemTotal of /proc/meminfo for unified memory",
        "Memory of the GPU in bytes, as a quantity (`81559Mi`).",
        lambda _node, gpu: gpu.memory_bytes or None,
        Missing.WITHHOLD,
    ),
    Attribute(
        "shares",
        AttributeType.CAPACITY,
        _SOFTWARE,
        "setting `shares`",
        "In how many shares the GPU is given out; a claim gets one unless it asks for more. Only on nodes with a GPU "
        "in shares.",
        _shares,
    ),
    *(
        Attribute(
            key,
            AttributeType.CAPACITY,
            _TYPE,
            "nvmlDeviceGetGpuInstanceProfileInfoV: the largest profile's",
            f"Number of {words} that partitions of the GPU share out; only where partitions are made for claims.",
            _largest(field),
        )
        for key, field, words in (
            ("multiprocessors", "multiprocessors", "streaming multiprocessors"),
            ("copyEngines", "copy_engines", "copy engines"),
            ("decoders", "decoders", "video decoders"),
            ("encoders", "encoders", "video encoders"),
            ("jpegEngines", "jpeg_engines", "JPEG decoders"),
            ("ofaEngines", "ofa_engines", "optical flow accelerators"),
        )
    ),
)
"""In the order in which the documentation lists them."""
