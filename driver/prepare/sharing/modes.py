"""Compute modes, set only where they differ; and when a GPU that does not answer is left as it is."""

from __future__ import annotations

from typing import Final

from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NvidiaSmi

_GONE: Final = frozenset({6, 9, 15})
"""nvidia-smi(1): a query for an object failed (no such GPU), the driver is not loaded, GPU is lost."""


def set_mode(smi: NvidiaSmi, uuid: str, mode: ComputeMode, deadline: Deadline) -> None:
    """Set the mode of a GPU if it has another one.

    Raises:
        CommandError: as ``NvidiaSmi.set_compute_mode``.
    """
    if smi.compute_mode(uuid, deadline) is not mode:
        smi.set_compute_mode(uuid, mode, deadline)


def gives_up(error: CommandError) -> bool:
    """Whether setting back is pointless: the GPU or the driver is gone (and the setting with it), or does not answer.

    A pod must not stay in Terminating for a setting of a GPU that nobody can use.
    """
    return error.code is None or error.code in _GONE
