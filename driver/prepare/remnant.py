"""What is left of a claim that was unprepared while a GPU of it was lost.

A GPU that NVML calls lost (GPU_IS_LOST) answers again only after a reset as a rule, which leaves no partition; but it
may answer again without one, and then its partitions stand as before. So Unprepare does not wait for it, because a pod
must not hang on a dead GPU, and does not forget it either: the record stays, with nothing in it but the partitions of
that GPU. It withholds their places. Recovery, which goes through all unfinished records after each reading of the node,
destroys what stands there when the GPU answers, and drops the record when nothing does: after a reset, a reboot, or
when NVML does not know the GPU any more.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

import msgspec

from driver.prepare.errors import ClaimError, Reason
from driver.prepare.partition import PARTITION
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase

_LOST = "lost"
_STEM = 48
"""Characters of a UID (which has 36) that leave room for more within the 63 that a UID may have."""


class LostGpuError(ClaimError):
    """All of a claim was undone but for partitions of GPUs that are lost.

    Attributes:
        left: the devices that these are.
    """

    def __init__(self, left: Sequence[DeviceRecord]) -> None:
        named = ", ".join(f"{one.device} of GPU {one.address}" for one in left)
        super().__init__(
            f"{named} cannot be destroyed, for the GPU is lost: it is withheld, and destroyed when the GPU answers "
            "again; nothing of it is left after a reset of the GPU (nvidia-smi --gpu-reset) or a reboot",
            Reason.DEVICE_NOT_READY,
        )
        self.left = tuple(left)


def remnant(record: ClaimRecord, left: Sequence[DeviceRecord]) -> ClaimRecord:
    """What is to be remembered of a claim: these partitions alone, and nothing of how they were shared."""
    bare = [msgspec.structs.replace(one, data={PARTITION: one.data[PARTITION]}) for one in left]
    return ClaimRecord(
        record.ref, Phase.UNPREPARING, tuple(bare), boot_id=record.boot_id, data={PARTITION: {_LOST: True}}
    )


def is_remnant(record: ClaimRecord) -> bool:
    """Whether a record is what is left of a claim: the kubelet was told that it is unprepared."""
    return _LOST in record.data.get(PARTITION, {})


def aside(rest: ClaimRecord, uids: Collection[str]) -> ClaimRecord:
    """The same under a UID that is none of these, for the claim is prepared anew under its own.

    Only records know it: no claim of the API server has such a UID.
    """
    stem = rest.ref.uid[:_STEM]
    uid = next(name for number in itertools.count(1) if (name := f"{stem}-lost-{number}") not in uids)
    return msgspec.structs.replace(rest, ref=msgspec.structs.replace(rest.ref, uid=uid))
