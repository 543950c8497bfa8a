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


_strangers: set[threading.Thread] = set()


def begin_counting() -> None:
    """What runs now was left by somebody else, and is not counted."""
    _strangers.clear()
    _strangers.update(nvml_threads())


def nvml_threads() -> list[threading.Thread]:
    """The threads of sessions that the test has made."""
    return [thread for thread in threading.enumerate() if thread.name == "nvml" and thread not in _strangers]


def wedged(snapshot: NvmlSnapshot) -> list[str | None]:
    return [gpu.address for gpu in snapshot.gpus if gpu.codes.get("handle") == NvmlReturn.TIMEOUT]
