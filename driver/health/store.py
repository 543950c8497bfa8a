"""The file in which findings outlive the agent: ``health.json`` in its own folder, whole or not there."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from driver import statefile
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
        self._file = statefile.HelpfulFile(self._path, "Taints would not outlive the agent", sync=True)
        self._clock = clock
        self._last: object = None
        self._written_at = -PACE_SECONDS

    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self._path.is_file() and not self._path.is_symlink()

    def load(self, keeper: Keeper) -> None:
        """Let the keeper go on from the file."""
        try:
            keeper.load(statefile.read(self._path, _MAX_BYTES))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            log.warning("%s cannot be used: %s; the health of the GPUs is judged anew", self._path, error)

    def save(self, keeper: Keeper) -> None:
        """Write what has changed: findings at once, their times and counts now and then."""
        essence = keeper.essence()
        if essence == self._last and (not essence or self._clock() - self._written_at < PACE_SECONDS):
            return
        if self._file.write(keeper.dump()):
            self._last, self._written_at = essence, self._clock()
