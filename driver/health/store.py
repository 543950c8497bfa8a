"""The file in which findings outlive the agent: ``health.json`` in its own folder, whole or not there."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from driver.health.keeper import Keeper

log = logging.getLogger(__name__)

FILE_NAME = "health.json"
PACE_SECONDS = 60.0
"""Seconds between two writes where only times and counts have changed."""
_MAX_BYTES = 4 * 1024 * 1024


class HealthStore:
    """Keeps a keeper's state in a folder. A file that cannot be used costs memory of the past, nothing else."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = folder / FILE_NAME
        self._clock = clock
        self._last: object = None
        self._written_at = -PACE_SECONDS
        self._problem: str | None = None

    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self._path.is_file() and not self._path.is_symlink()

    def load(self, keeper: Keeper) -> None:
        """Let the keeper go on from the file."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
            with os.fdopen(descriptor, "rb") as file:
                keeper.load(file.read(_MAX_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s; the health of the GPUs is judged anew", self._path, error)

    def save(self, keeper: Keeper) -> None:
        """Write what has changed: findings at once, their times and counts now and then."""
        essence = keeper.essence()
        if essence == self._last and (not essence or self._clock() - self._written_at < PACE_SECONDS):
            return
        data = keeper.dump()
        temporary = self._path.with_name(f"{FILE_NAME}.tmp")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(descriptor)
            temporary.replace(self._path)
        except OSError as error:
            if str(error) != self._problem:
                log.warning("%s cannot be written: %s; taints would not outlive the agent", self._path, error)
            self._problem = str(error)
            return
        self._last, self._written_at, self._problem = essence, self._clock(), None
