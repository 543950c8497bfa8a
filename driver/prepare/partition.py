"""What a record says of a MIG partition: which part of a GPU it is, who made it, and by which ids it is found again."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from driver.model import Placement
from driver.prepare.document import Cursor

PARTITION = "mig"
"""The name under which it stands in a device's data; also that of the step that makes partitions."""
_MOST_SLICES = 256


class Origin(enum.StrEnum):
    """Whose the partition is, which decides what may be done to it."""

    FOUND = "found"
    """It stood there: somebody else made it, and nobody but they may destroy it."""
    PLANNED = "planned"
    """To be made for the claim; nothing has been made yet."""
    MAKING = "making"
    """It is being made, and may stand there or not. Nothing stood in its place before."""
    MADE = "made"
    """Made for the claim: to be destroyed with it."""


class PartitionRecord(msgspec.Struct, frozen=True):
    """One partition of a claim."""

    profile_id: int
    profile: str
    placement: Placement
    """In memory slices of the GPU."""
    parent: str
    """UUID of the GPU."""
    origin: Origin
    compute: Placement | None = None
    """In compute slices of the partition, where the device is only a part of it."""
    gpu_instance: int | None = None
    compute_instance: int | None = None
    switches: bool = False
    """Whether this driver switches the GPU's MIG mode off again behind the last partition."""

    def parts(self, address: str) -> frozenset[str]:
        """Names of what it occupies on the GPU at that address: its memory slices, or its compute slices of those."""
        slices = _slices(address, self.placement)
        if self.compute is None:
            return slices
        inner = range(self.compute.start, self.compute.end)
        return frozenset(f"{item}.{number}" for item in slices for number in inner)

    def wholes(self, address: str) -> frozenset[str]:
        """Names of what it is a part of: the GPU, and the memory slices that it has only a part of."""
        gpu = frozenset((address, self.parent))
        return gpu if self.compute is None else gpu | _slices(address, self.placement)

    def to_data(self) -> Mapping[str, object]:
        """As it is stored."""
        data: dict[str, object] = {
            "profileID": self.profile_id,
            "profile": self.profile,
            "start": self.placement.start,
            "size": self.placement.size,
            "parentUUID": self.parent,
            "origin": str(self.origin),
        }
        if self.compute is not None:
            data.update(computeStart=self.compute.start, computeSize=self.compute.size)
        if self.gpu_instance is not None:
            data["gpuInstance"] = self.gpu_instance
        if self.compute_instance is not None:
            data["computeInstance"] = self.compute_instance
        if self.switches:
            data["switchesMode"] = True
        return data

    @classmethod
    def from_data(cls, data: Mapping[str, object]) -> PartitionRecord:
        """Read what ``to_data`` gave. DocumentError: somebody else wrote it."""
        return read_partition(Cursor(data, PARTITION))


def read_partition(cursor: Cursor) -> PartitionRecord:
    """Read a stored partition. DocumentError: it is none."""
    origin = cursor.get("origin")
    if origin.text() not in list(Origin):
        raise origin.error(f"is {origin.text()!a}, which this version does not know")
    switches = cursor.find("switchesMode")
    compute = _placement(cursor, "computeStart", "computeSize") if cursor.find("computeStart") else None
    return PartitionRecord(
        profile_id=cursor.get("profileID").integer(),
        profile=cursor.get("profile").text(),
        placement=_placement(cursor, "start", "size"),
        parent=cursor.get("parentUUID").text(),
        origin=Origin(origin.text()),
        compute=compute,
        gpu_instance=_number(cursor, "gpuInstance"),
        compute_instance=_number(cursor, "computeInstance"),
        switches=switches is not None and switches.boolean(),
    )


def _placement(cursor: Cursor, start: str, size: str) -> Placement:
    found = Placement(cursor.get(start).integer(), cursor.get(size).integer())
    if not (0 <= found.start < found.end <= _MOST_SLICES):
        raise cursor.get(start).error(f"and {size} ({found.start} and {found.size}) are no place on a GPU")
    return found


def _number(cursor: Cursor, key: str) -> int | None:
    found = cursor.find(key)
    return None if found is None else found.integer()


def _slices(address: str, placement: Placement) -> frozenset[str]:
    return frozenset(f"{address}/{number}" for number in range(placement.start, placement.end))
