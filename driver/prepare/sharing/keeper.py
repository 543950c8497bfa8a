"""Runs the MPS daemons of a node on behalf of the agent, in a pod of its own: they do not end with the agent's.

It knows nothing of claims, Kubernetes or NVML. One request a connection, on a socket that root alone reaches: an object
of JSON in a line, answered by one (``Request``, ``Reply``). Whoever asks to ``stay`` is answered never: that connection
ends with this process, which is how the agent learns of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

import msgspec

from driver.prepare.sharing.daemons import DaemonError, DaemonSettings, MpsDaemons
from driver.prepare.sharing.process import number_of
from native.commands import Deadline, DriverPrograms

log = logging.getLogger(__name__)

SOCKET: Final = "keeper.sock"
"""In the folder of the daemons."""
LONGEST: Final = 64 * 1024
"""Bytes of a line."""
_UUID: Final = re.compile(r"\A(GPU|MIG)-[0-9A-Za-z/-]{4,128}\Z")
_LOOK_SECONDS: Final = 0.2
"""How often the keeper looks whether it is to end, and whether its socket is there."""
_ASK_SECONDS: Final = 10.0
"""How long a caller may take to say what it wants."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is asked for."""

    do: Literal["start", "stop", "runs", "list", "stay"]
    id: str = ""
    settings: DaemonSettings | None = None
    seconds: float = 0.0
    """How long the answer may take."""
    driver: str | None = None
    """Version of the driver, whose libraries the programs need; None: not known."""


class Reply(msgspec.Struct, frozen=True, omit_defaults=True):
    """What came of it."""

    error: str | None = None
    runs: bool = False
    ids: tuple[str, ...] = ()
    restarts: int = 0
    """How often a daemon was started again since the keeper began."""


class Keeper:
    """Serves one folder of daemons.

    Args:
        root: the driver root, as this process sees it.
        folder: of the daemons, at the same path on the host; one keeper a folder.
        private_shm: as ``MpsDaemons``.
    """

    def __init__(self, root: Path, folder: Path, *, private_shm: bool = True) -> None:
        self._folder = folder
        self._version: str | None = None
        programs = DriverPrograms(root, folder / "libraries", lambda: self._version)
        self._daemons = MpsDaemons(programs, folder, private_shm=private_shm)
        self.ended = threading.Event()

    def run(self, stopped: Callable[[], object]) -> None:
        """Serve until ``stopped`` comes back. Daemons that run then go on, as long as their pod lets them.

        Raises:
            DaemonError: the socket cannot be made, or another keeper serves the folder.
        """
        server = _listening(self._folder / SOCKET, self)
        thread = threading.Thread(target=self._serve, args=(server,), name="keeper", daemon=True)
        thread.start()
        log.info("MPS control daemons are served at %s", self._folder / SOCKET)
        stopped()
        self._daemons.detach()
        self.ended.set()
        thread.join()

    def _serve(self, server: _Server) -> None:
        """Serve until the end; where somebody removes the socket, at another one in its place. Connections stay."""
        while True:
            with server, contextlib.suppress(_ServedEnoughError):
                server.serve_forever(_LOOK_SECONDS)
            if self.ended.is_set():
                return
            log.warning("%s was removed or replaced: it is made anew", self._folder / SOCKET)
            again = self._served_again()
            if again is None:
                return
            server = again

    def _served_again(self) -> _Server | None:
        said = ""
        while not self.ended.is_set():
            try:
                return _listening(self._folder / SOCKET, self)
            except DaemonError as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("%s; it is tried again every second", error)
            self.ended.wait(1.0)
        return None

    def answer(self, request: Request) -> Reply:
        """Do what is asked for."""
        if request.driver is not None:
            self._version = request.driver
        deadline = Deadline(min(request.seconds, 60.0))
        try:
            if request.do == "start":
                self._daemons.start(_checked(request.settings), deadline)
            elif request.do == "stop":
                self._daemons.stop(request.id, deadline)
            elif request.do == "list":
                return Reply(ids=tuple(sorted(self._daemons.present())), restarts=self._daemons.restarts)
        except DaemonError as error:
            return Reply(error=str(error), restarts=self._daemons.restarts)
        return Reply(runs=self._daemons.runs(request.id), restarts=self._daemons.restarts)


def _checked(settings: DaemonSettings | None) -> DaemonSettings:
    """Nothing but UUIDs may reach the daemon's commands, which are lines of text."""
    if settings is None:
        raise DaemonError("settings are missing")
    for uuid in (*settings.uuids, *(uuid for uuid, _ in settings.limits)):
        if _UUID.match(uuid) is None:
            raise DaemonError(f"{uuid[:64]!a} is no UUID of a GPU or MIG device")
    return settings


class _ServedEnoughError(Exception):
    """The keeper ends, or nobody reaches it at this socket any more."""


class _Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: Path, keeper: Keeper) -> None:
        self.keeper = keeper
        super().__init__(str(path), _Handler)
        self._path = path
        self._place = number_of(path)

    def service_actions(self) -> None:
        """Called by the server in each round: look whether to go on."""
        if self.keeper.ended.is_set() or number_of(self._path) != self._place:
            raise _ServedEnoughError


class _Handler(socketserver.StreamRequestHandler):
    timeout = _ASK_SECONDS
    server: _Server

    def handle(self) -> None:
        try:
            request = msgspec.json.decode(self.rfile.readline(LONGEST), type=Request)
        except (msgspec.DecodeError, OSError) as error:
            reply = Reply(error=f"the request cannot be read: {error}")
        else:
            if request.do == "stay":
                self.connection.settimeout(None)
                self.rfile.read(1)  # until the caller, or this process, ends
                return
            reply = self.server.keeper.answer(request)
        with contextlib.suppress(OSError):  # the caller has not waited
            self.wfile.write(msgspec.json.encode(reply) + b"\n")


def _listening(path: Path, keeper: Keeper) -> _Server:
    """A server at the path, for root alone. What an ended keeper left there is replaced."""
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if _is_served(path):
            raise DaemonError(f"another process serves MPS control daemons at {path}")
        path.unlink(missing_ok=True)
        before = os.umask(0o177)
        try:
            return _Server(path, keeper)
        finally:
            os.umask(before)
    except OSError as error:
        raise DaemonError(f"{path} cannot be served: {error.strerror or error}; see setting mpsDir") from error


def _is_served(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
