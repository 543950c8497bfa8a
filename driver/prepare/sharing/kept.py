"""MPS daemons that a keeper runs in a pod of its own (``keeper``): asked for over its socket.

The keeper forgets with its process, and its daemons end with its pod: what it had is asked of the next one again, at
once, because a connection that ends tells of it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from driver.prepare.sharing.daemons import DaemonError, DaemonFolders, DaemonSettings, folders_of
from driver.prepare.sharing.keeper import LONGEST, SOCKET, Reply, Request
from native.commands import Deadline

log = logging.getLogger(__name__)

_QUICK_SECONDS: Final = 5.0
_START_SECONDS: Final = 10.0
_LOOK_SECONDS: Final = 0.5
"""How often a keeper that ended is looked for."""


class KeptDaemons:
    """The daemons of a keeper; as ``MpsDaemons``. Safe to use from several threads.

    Args:
        folder: of the daemons and of the keeper's socket, at the same path for both.
        version: of the driver, as NVML prints it; None while it is not known.
    """

    def __init__(self, folder: Path, version: Callable[[], str | None] = lambda: None) -> None:
        self._folder = folder
        self._version = version
        self._lock = threading.Lock()
        self._wanted: dict[str, DaemonSettings] = {}
        self._ended = threading.Event()
        self._watch: threading.Thread | None = None
        self._held: socket.socket | None = None
        """The connection that ends with the keeper."""
        self._restarts = 0
        self._told = 0
        """What the keeper last said of its restarts."""

    @property
    def restarts(self) -> int:
        """How often a daemon that had ended was started again, by the keeper or by another one in its place."""
        return self._restarts

    def folders(self, daemon: str) -> DaemonFolders:
        """As ``folders_of``."""
        return folders_of(self._folder, daemon)

    def start(self, settings: DaemonSettings, deadline: Deadline) -> None:
        """Have a daemon that answers and has these settings, started now or before.

        Raises:
            DaemonError: it did not come up in time, or refuses a setting; or there is no keeper.
        """
        self.folders(settings.id)
        with self._lock:
            self._wanted[settings.id] = settings
        self._ask(Request("start", settings.id, settings, deadline.left, self._version()), deadline.left)
        with self._lock:
            if self._watch is None and not self._ended.is_set():
                self._watch = threading.Thread(target=self._look_after, name="mps-keeper", daemon=True)
                self._watch.start()

    def runs(self, daemon: str) -> bool:
        """Whether the daemon runs; False too where nobody can tell."""
        try:
            return self._ask(Request("runs", daemon), _QUICK_SECONDS).runs
        except DaemonError:
            return False

    def stop(self, daemon: str, deadline: Deadline) -> None:
        """End a daemon and its servers, and remove its files. One that does not run is a success.

        Raises:
            DaemonError: it cannot be ended, its files cannot be removed, or there is no keeper.
        """
        folders = self.folders(daemon)
        with self._lock:
            self._wanted.pop(daemon, None)
        try:
            self._ask(Request("stop", daemon, seconds=deadline.left), deadline.left)
        except NoKeeperError:
            if folders.base.exists():
                raise

    def sweep(self, wanted: Callable[[], frozenset[str]]) -> tuple[str, ...]:
        """End daemons and remove folders of claims that nobody knows any more; gives their ids.

        Args:
            wanted: ids of the daemons that claims have; asked after the keeper.
        """
        gone = []
        try:
            present = frozenset(self._ask(Request("list"), _QUICK_SECONDS).ids)
        except NoKeeperError:  # nothing can be done, and whoever needs a daemon hears of it
            return ()
        except DaemonError as error:
            log.warning("whether MPS control daemons of no claim are left cannot be told: %s", error)
            return ()
        for daemon in sorted(present - wanted()):
            try:
                self.stop(daemon, Deadline(_START_SECONDS))
            except DaemonError as error:  # one that does not end keeps none of the others; it is tried again
                log.warning("MPS control daemon %s of no claim: %s", daemon, error)
            else:
                gone.append(daemon)
        return tuple(gone)

    def detach(self) -> None:
        """Look after nothing from now on; the keeper goes on."""
        self._ended.set()
        with self._lock:
            if self._held is not None:
                with contextlib.suppress(OSError):
                    self._held.shutdown(socket.SHUT_RDWR)

    def _ask(self, request: Request, seconds: float) -> Reply:
        with _connected(self._folder / SOCKET) as connection:
            connection.settimeout(seconds + 1.0)
            try:
                connection.sendall(msgspec.json.encode(request) + b"\n")
                with connection.makefile("rb") as stream:
                    reply = msgspec.json.decode(stream.readline(LONGEST), type=Reply)
            except (OSError, msgspec.DecodeError) as error:
                raise DaemonError(f"the keeper of MPS control daemons does not answer: {error}") from error
        with self._lock:
            self._restarts += max(0, reply.restarts - self._told)
            self._told = reply.restarts
        if reply.error is not None:
            raise DaemonError(reply.error)
        return reply

    def _look_after(self) -> None:
        """Wait for the keeper's end, and ask the next one for what there was."""
        while not self._ended.is_set():
            try:
                self._stay()
            except (DaemonError, OSError):
                self._ended.wait(_LOOK_SECONDS)
                continue
            if self._ended.is_set():
                return
            log.warning("the keeper of MPS control daemons ended; running CUDA programs of their claims fail")
            self._begin_again()

    def _stay(self) -> None:
        """Come back when the keeper ends, or when nothing is looked after any more."""
        with _connected(self._folder / SOCKET) as connection:
            with self._lock:
                self._held = connection
            if not self._ended.is_set():
                connection.sendall(msgspec.json.encode(Request("stay")) + b"\n")
                connection.recv(1)
            with self._lock:
                self._held = None

    def _begin_again(self) -> None:
        with self._lock:
            self._told = 0
            missing = dict(self._wanted)
        while missing and not self._ended.is_set():
            for daemon, settings in list(missing.items()):
                with self._lock:
                    if self._wanted.get(daemon) != settings:
                        del missing[daemon]
                        continue
                try:
                    self.start(settings, Deadline(_START_SECONDS))
                except DaemonError as error:
                    log.info("the MPS control daemon of claim %s is still away: %s", settings.claim, error)
                    self._ended.wait(_LOOK_SECONDS)
                    break
                del missing[daemon]
                with self._lock:
                    self._restarts += 1
                log.info("the MPS control daemon of claim %s runs again", settings.claim)


class NoKeeperError(DaemonError):
    """Nobody serves the socket."""


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise NoKeeperError(
            f"nobody serves MPS control daemons at {path} ({error.strerror}): is the DaemonSet gpudra-mps on this "
            "node, with the same folder? Or set mpsDaemons to child"
        ) from error
    return connection
