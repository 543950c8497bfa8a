"""What the tests of the NVML session share."""

from __future__ import annotations

import threading
from collections.abc import Callable

from native.nvml import NvmlSession
from native.nvml.errors import NvmlReturn
from native.nvml.types import NvmlSnapshot

ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
QUICK = 0.25
"""Seconds after which a call counts as stuck, in tests where one is. Elsewhere a busy machine must not matter."""

MakeSession = Callable[..., NvmlSession]


def nvml_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "nvml"]


def wedged(snapshot: NvmlSnapshot) -> list[str | None]:
    return [gpu.address for gpu in snapshot.gpus if gpu.codes.get("handle") == NvmlReturn.TIMEOUT]
