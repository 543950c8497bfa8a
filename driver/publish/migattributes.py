"""The table of what is published about a MIG device: its own values, and those that it has from its GPU.

Names and types are those of NVIDIA's driver, which has no ``placementStart`` and ``placementSize``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from driver.model import Gpu, MigPartition, MigProfile, Placement
from driver.publish.attributes import ATTRIBUTES, STANDARD_DOMAIN, Attribute, AttributeKind, AttributeType, Value

FROM_GPU: Final = (
    "productName",
    "brand",
    "architecture",
    "cudaComputeCapability",
    "driverVersion",
    "driverVersionString",
    "cudaDriverVersion",
    "addressingMode",
    STANDARD_DOMAIN + "pciBusID",
    STANDARD_DOMAIN + "pcieRoot",
    STANDARD_DOMAIN + "numaNode",
    "pcieSwitch",
    "eccEnabled",
    "memoryKind",
)
"""Ids of the attributes that a partition has from its GPU."""
INHERITED: Final[tuple[Attribute, ...]] = tuple(row for row in ATTRIBUTES if row.id in FROM_GPU)


class PartFacts(msgspec.Struct, frozen=True):
    """A MIG device to be published, standing or possible."""

    profile: str
    placement: Placement
    uuid: str | None
    amounts: MigProfile | MigPartition
    """Who knows its memory and engines."""


class MigAttribute(msgspec.Struct, frozen=True):
    """One row of what a MIG device has of its own. A value that is None leaves the key out on all of the node."""

    id: str
    type: AttributeType
    kind: AttributeKind
    derivation: str
    doc: str
    value: Callable[[Gpu, PartFacts], Value | None]


_STRING, _INT, _CAPACITY = AttributeType.STRING, AttributeType.INT, AttributeType.CAPACITY
_TYPE, _LAUNCH = AttributeKind.TYPE, AttributeKind.LAUNCH
_PROFILE_INFO = "nvmlDeviceGetGpuInstanceProfileInfoV"

MIG_ATTRIBUTES: Final[tuple[MigAttribute, ...]] = (
    MigAttribute("type", _STRING, _TYPE, "constant", "`mig`: a MIG device.", lambda _gpu, _part: "mig"),
    MigAttribute(
        "uuid",
        _STRING,
        _LAUNCH,
        "nvmlDeviceGetUUID of the MIG device",
        "The MIG device's UUID, where all of the node's stand already; one that is made for a claim has none before.",
        lambda _gpu, part: part.uuid,
    ),
    MigAttribute(
        "parentUUID",
        _STRING,
        _LAUNCH,
        "nvmlDeviceGetUUID of the GPU",
        "Equal on all partitions of one GPU: `matchAttribute` puts a claim's partitions on one GPU.",
        lambda gpu, _part: gpu.uuid,
    ),
    MigAttribute(
        "profile",
        _STRING,
        _TYPE,
        f"{_PROFILE_INFO} (name)",
        "As NVIDIA writes it: `1g.10gb`, `1g.10gb+me`; `1c.3g.40gb` for a part of one.",
        lambda _gpu, part: part.profile,
    ),
    MigAttribute(
        "placementStart",
        _INT,
        _TYPE,
        "nvmlDeviceGetGpuInstancePossiblePlacements, nvmlGpuInstanceGetInfo",
        "The first of its memory slices.",
        lambda _gpu, part: part.placement.start,
    ),
    MigAttribute(
        "placementSize",
        _INT,
        _TYPE,
        "the same",
        "How many memory slices it has.",
        lambda _gpu, part: part.placement.size,
    ),
    MigAttribute(
        "memory",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Memory of the partition in bytes, as a quantity (`9984Mi`).",
        lambda _gpu, part: part.amounts.memory_bytes or None,
    ),
    MigAttribute(
        "multiprocessors",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of streaming multiprocessors.",
        lambda _gpu, part: part.amounts.multiprocessors,
    ),
    MigAttribute(
        "copyEngines",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of copy engines.",
        lambda _gpu, part: part.amounts.copy_engines,
    ),
    MigAttribute(
        "decoders",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of video decoders.",
        lambda _gpu, part: part.amounts.decoders,
    ),
    MigAttribute(
        "encoders",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of video encoders.",
        lambda _gpu, part: part.amounts.encoders,
    ),
    MigAttribute(
        "jpegEngines",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of JPEG decoders.",
        lambda _gpu, part: part.amounts.jpeg_engines,
    ),
    MigAttribute(
        "ofaEngines",
        _CAPACITY,
        _TYPE,
        _PROFILE_INFO,
        "Number of optical flow accelerators.",
        lambda _gpu, part: part.amounts.ofa_engines,
    ),
)
"""In the order in which the documentation lists them."""
