"""The watch over one MPS control daemon: when it ends, it is started again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from driver.prepare.sharing.process import DaemonProcess, Places, number_of

if TYPE_CHECKING:
    from driver.prepare.sharing.daemons import DaemonSettings

log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class Watch:
    """Waits for a daemon's end in a thread, and starts it again, with pauses that grow while it keeps ending.

    Args:
        settings: of the daemon.
        process: which runs.
        places: its socket and folders when it answered.
        restart: puts another process into ``process``; False: it could not.
    """

    def __init__(
        self, settings: DaemonSettings, process: DaemonProcess, places: Places, restart: Callable[[Watch], bool]
    ) -> None:
        self.settings = settings
        self.process = process
        self.places = places
        self.stopping = threading.Event()
        self._restart = restart
        self._thread = threading.Thread(target=self._run, name=f"mps-{settings.id}", daemon=True)

    @property
    def alive(self) -> bool:
        """Whether it runs, and is started again when it ends."""
        return not self.stopping.is_set() and self.process.alive

    def taken(self) -> Iterator[Path]:
        """The places at which not what the daemon answered with stands any more."""
        return (path for path, place in self.places.items() if number_of(path) != place)

    def begin(self) -> None:
        """Watch from now on."""
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until nothing is watched any more: after ``stopping`` and the end of the process."""
        self._thread.join(seconds)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            begun = time.monotonic()
            self.process.wait(None)
            if time.monotonic() - begun > _LONGEST_PAUSE:
                pause = _FIRST_PAUSE
            if self.stopping.is_set():
                return
            log.warning(
                "the MPS control daemon of claim %s ended (%s); it is started again in %g s, and running CUDA programs "
                "of the claim fail",
                self.settings.claim,
                self.process.end_shown,
                pause,
            )
            while True:
                if self.stopping.wait(pause):
                    return
                pause = min(2 * pause, _LONGEST_PAUSE)
                if self._restart(self):
                    break
