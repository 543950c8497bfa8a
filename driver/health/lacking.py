"""A GPU of which NVML did not tell everything: completed with what is known, or held back until enough is.

What is offered is decided by values, and one that was not read is none. Of a GPU that was read before, it is as it was
then. One that was never read whole is not offered by a guess: as a whole, while it may be in MIG mode with partitions
in use; outside any clique, while it may be in one. The others of the node are offered meanwhile.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from driver.model import Gpu, GpuState

MUST: Final = frozenset({"mig", "partitions"})
"""Fields without which a GPU is not offered, however long that lasts: what would be given out may be in use."""
SOON: Final = frozenset(
    {
        "addressing_mode",
        "architecture",
        "brand",
        "cuda_compute_capability",
        "ecc",
        "fabric",
        "memory_bytes",
        "memory_kind",
        "memory_numa_node",
        "mig_profiles",
        "nvlinks",
        "product_name",
        "virtualization_mode",
    }
)
"""Fields without which a wrong value would be published, or a wrong choice made: they are waited for, and not for
ever, since a GPU computes without them."""
HOLD_SECONDS: Final = 10.0
"""For which a GPU is held back for ``SOON``. The node is read again at once when something was not told."""


def completed(gpu: Gpu, before: Gpu | None) -> Gpu:
    """The GPU, with what was not read now as it was when it was read last; of the same board only."""
    if not gpu.unread or before is None or before.uuid != gpu.uuid:
        return gpu
    known = [field for field in gpu.unread if field not in before.unread]
    values: dict[str, Any] = {field: getattr(before, field) for field in known}
    if "partitions" in known:
        # Where the mode was told and the list was not, the profiles may be missing with it.
        values |= {"partitions_known": True, "mig_profiles": gpu.mig_profiles or before.mig_profiles}
    return replace(gpu, **values, unread=tuple(field for field in gpu.unread if field not in known))


def lacking(gpu: Gpu, waited: float) -> tuple[str, ...]:
    """The fields for which a GPU is held back.

    Args:
        waited: seconds since it was first seen without them.
    """
    return tuple(field for field in gpu.unread if field in MUST or (field in SOON and waited < HOLD_SECONDS))


def held_back(gpu: Gpu, fields: tuple[str, ...]) -> Gpu:
    """The GPU as one that is not to be offered, with the reason."""
    reason = (
        f"NVML has not told {', '.join(fields)} of GPU {gpu.address} yet, so what can be offered of it is not known; "
        "it is read again, and the agent's log has the call that failed"
    )
    return replace(gpu, state=GpuState.UNREADABLE, reason=reason)
