"""The names of devices: publish makes them, claims bring them back, Prepare reads them. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec

from driver.model import Gpu, MigPartition, PciAddress, Placement

_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+")
_LONGEST_PROFILE = 24
_DEVICE_NAME = re.compile(
    r"\Agpu-([0-9a-f]{4,8})-([0-9a-f]{2})-([0-9a-f]{2})-([0-7])"
    r"(?:-(vfio)|-mig-([a-z0-9](?:[a-z0-9-]*[a-z0-9])?)-(\d{1,4})-(\d{1,3})(?:-c(\d{1,3}))?)?\Z"
)


class DeviceName(msgspec.Struct, frozen=True):
    """What the name of a published device says.

    ``gpu-0000-1b-00-0`` is a whole GPU, ``gpu-0000-1b-00-0-vfio`` the same for passthrough,
    ``gpu-0000-1b-00-0-mig-1g-10gb-19-0`` a partition: profile, profile id, first memory slice; with ``-c2`` behind it
    the part of that partition that begins at compute slice 2. The profile's text is for people; its id identifies.
    """

    address: PciAddress
    kind: str
    """``gpu``, ``vfio`` or ``mig``."""
    profile_id: int | None = None
    start: int | None = None
    compute_start: int | None = None

    @classmethod
    @lru_cache(maxsize=1024)
    def parse(cls, name: str) -> DeviceName | None:
        """None for a name that this driver gives to no device. A Prepare asks a dozen times about the same few."""
        match = _DEVICE_NAME.match(name)
        if match is None:
            return None
        domain, bus, device, function, vfio, profile, profile_id, start, compute = match.groups()
        if int(device, 16) > 0x1F:
            return None
        address = PciAddress(int(domain, 16), int(bus, 16), int(device, 16), int(function, 16))
        if profile is None:
            return cls(address, "vfio" if vfio else "gpu")
        return cls(address, "mig", int(profile_id), int(start), None if compute is None else int(compute))

    @property
    def gpu(self) -> str:
        """The name of the whole GPU."""
        return f"gpu-{self.address.label}"


def partition_name(gpu: str, profile: str, profile_id: int, start: int, compute: Placement | None = None) -> str:
    """The device name of a partition (see ``DeviceName``): a DNS label whatever NVIDIA calls the profile."""
    label = _NOT_IN_LABELS.sub("-", profile.lower()).strip("-")[:_LONGEST_PROFILE].strip("-") or "unnamed"
    part = "" if compute is None else f"-c{compute.start}"
    return f"{gpu}-mig-{label}-{profile_id}-{start}{part}"


def name_of(gpu: Gpu, partition: MigPartition) -> str:
    """The device name of a partition that stands on a GPU."""
    start = partition.placement.start
    return partition_name(gpu.name, partition.profile, partition.profile_id, start, partition.compute)
