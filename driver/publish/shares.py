"""A GPU that several claims may have shares of (KEP-5075, consumable capacity): what its Device object says. Pure.

``shares`` counts parts of equal weight, ``memory`` is dealt out in MiB. A claim that asks for neither gets one share
and its part of the memory. Of a capacity without a policy the first claim would take all (KEP-5075), so what partitions
count has one too: a share takes nothing of it unless the claim asks.
"""

from __future__ import annotations

from typing import Any, Final

from driver.model import Gpu
from driver.publish.values import quantity

MIB: Final = 1024 * 1024
SHARES: Final = "shares"
MEMORY: Final = "memory"
_NOTHING: Final = {"default": "0", "validRange": {"min": "0"}}
"""Policy of a capacity that claims have none of unless they ask."""


def shared(device: dict[str, Any], gpu: Gpu) -> dict[str, Any]:
    """The device, for several claims at the same time where the GPU is published in shares."""
    count = gpu.shares
    if count is None or count < 2:
        return device
    capacity = {key: {**value, "requestPolicy": _NOTHING} for key, value in device.get("capacity", {}).items()}
    capacity[SHARES] = {
        "value": str(count),
        "requestPolicy": {"default": "1", "validRange": {"min": "1", "max": str(count), "step": "1"}},
    }
    mebibytes = (gpu.memory_bytes or 0) // MIB
    if MEMORY in capacity and mebibytes < 2 * count:
        capacity[MEMORY] = device["capacity"][MEMORY]
    elif MEMORY in capacity:
        part = quantity(mebibytes // count * MIB)
        capacity[MEMORY] = {
            "value": quantity(mebibytes * MIB),
            "requestPolicy": {"default": part, "validRange": {"min": "1Mi", "step": "1Mi"}},
        }
    return {**device, "allowMultipleAllocations": True, "capacity": capacity}
