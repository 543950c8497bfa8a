"""What nvidia-smi sets that matters when GPUs are shared: compute mode and time slice, set and read back.

NVML has no call for the time slice (nvidia-smi talks to the kernel driver itself), so both go through the program, as
one reader of messages and one deadline serve them.
Source: nvidia-smi(1), sections RETURN VALUE and DEVICE MODIFICATION OPTIONS; ``nvidia-smi compute-policy --help``.
"""

from __future__ import annotations

import enum
import re
import subprocess
import threading
from typing import Final

from native.commands import CommandError, Completed, Deadline, DriverPrograms, failed

PROGRAM: Final = "nvidia-smi"
_NOT_SUPPORTED = 3
"""nvidia-smi(1): the requested operation is not available on target device."""
_SLICES: Final = {"default": 0, "short": 1, "medium": 2, "long": 3}
_SLICE_LINE = re.compile(r"time-?\s?slice\W+(default|short|medium|long|[0-3])\b", re.IGNORECASE)


class NotSupportedError(CommandError):
    """This GPU cannot do it; no retry will help."""


class ComputeMode(enum.StrEnum):
    """As ``nvidia-smi -c`` takes it."""

    DEFAULT = "DEFAULT"
    PROHIBITED = "PROHIBITED"
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


class NvidiaSmi:
    """Settings of GPUs, by UUID. Safe to use from several threads.

    Args:
        programs: of the driver root.
    """

    def __init__(self, programs: DriverPrograms) -> None:
        self._programs = programs
        self._lock = threading.Lock()
        self._hung: dict[str, list[subprocess.Popen[bytes]]] = {}

    def hangs(self, uuid: str) -> bool:
        """Whether a call that was to change something of this GPU hangs in the kernel, and may still change it."""
        with self._lock:
            left = [process for process in self._hung.pop(uuid, ()) if process.poll() is None]
            if left:
                self._hung[uuid] = left
            return bool(left)

    def set_time_slice(self, uuid: str, level: int, deadline: Deadline) -> None:
        """Set how long a process keeps the GPU: 0 default, 1 short, 2 medium, 3 long.

        Raises:
            NotSupportedError: the GPU has no time slice to set (before Volta).
            CommandError: it failed, or the GPU says another value afterwards.
        """
        self._change(uuid, ["compute-policy", "-i", uuid, f"--set-timeslice={level}"], deadline)
        found = self.time_slice(uuid, deadline)
        if found is not None and found != level:
            raise CommandError(f"the time slice of GPU {uuid} was set to {level} and is {found}")

    def time_slice(self, uuid: str, deadline: Deadline) -> int | None:
        """The present time slice; None where nvidia-smi does not tell, or not in words that are known."""
        done = self._run(["compute-policy", "-i", uuid, "-l"], deadline)
        match = _SLICE_LINE.search(done.output)
        if done.code != 0 or match is None:
            return None
        word = match[1].lower()
        return _SLICES[word] if word in _SLICES else int(word)

    def set_compute_mode(self, uuid: str, mode: ComputeMode, deadline: Deadline) -> None:
        """Set which processes may use the GPU.

        Raises:
            NotSupportedError: the GPU has one mode only.
            CommandError: it failed, or the GPU says another mode afterwards (as one in MIG mode does).
        """
        self._change(uuid, ["-i", uuid, "-c", mode.value], deadline)
        found = self.compute_mode(uuid, deadline)
        if found is not None and found is not mode:
            raise CommandError(f"the compute mode of GPU {uuid} was set to {mode} and is {found}")

    def compute_mode(self, uuid: str, deadline: Deadline) -> ComputeMode | None:
        """The present mode; None where the GPU does not tell.

        Raises:
            CommandError: the GPU cannot be asked.
        """
        arguments = ["-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader"]
        done = self._run(arguments, deadline)
        if done.code != 0:
            raise failed(PROGRAM, arguments, done)
        lines = [line.strip().upper() for line in done.output.splitlines()]
        return next((mode for mode in ComputeMode if mode.value in lines), None)

    def _change(self, uuid: str, arguments: list[str], deadline: Deadline) -> None:
        try:
            done = self._run(arguments, deadline)
        except CommandError as left:
            if left.hung is not None:
                with self._lock:
                    self._hung.setdefault(uuid, []).append(left.hung)
            raise
        if done.code == 0:
            return
        error = failed(PROGRAM, arguments, done)
        if done.code == _NOT_SUPPORTED or "not supported" in done.output.lower():
            raise NotSupportedError(str(error), done.code, done.output)
        raise error

    def _run(self, arguments: list[str], deadline: Deadline) -> Completed:
        return self._programs.run(PROGRAM, arguments, seconds=deadline.left)
