"""MPS control daemons of a node: started, found again, watched, restarted, ended.

A daemon is a child of this process. In a pod it dies with the pod and is started again from the claim's record; without
a pod it outlives the agent, and the next one finds it by its socket and takes it over.
Source: nvidia-cuda-mps-control(1); NVIDIA's "Multi-Process Service", chapter "Common Tasks".
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from driver.prepare.locks import KeyedLocks
from driver.prepare.sharing.process import DaemonError, DaemonFolders, DaemonProcess, Launcher, adopt, left_of
from driver.prepare.sharing.watch import Watch
from driver.statefile import remedy
from native.commands import CommandError, Deadline, DriverPrograms

log = logging.getLogger(__name__)

PROGRAM: Final = "nvidia-cuda-mps-control"
_ID = re.compile(r"\A[0-9a-f]{12}\Z")
_QUIT_SECONDS: Final = 2
"""How long running programs get before their servers are ended: the pods are gone when a claim is unprepared."""
_RESTART_SECONDS: Final = 10.0
_END_SECONDS: Final = 2.0
"""For a process whose programs are lost anyway."""
_TURN_SECONDS: Final = 0.5
_LIMIT = re.compile(r"(\d+)\s*([GM])", re.IGNORECASE)

__all__ = ["DaemonError", "DaemonFolders", "DaemonSettings", "Daemons", "MpsDaemons", "folders_of"]


class DaemonSettings(msgspec.Struct, frozen=True):
    """All that makes a daemon what it is: enough to start it again."""

    id: str
    uuids: tuple[str, ...]
    """The GPUs or MIG devices that it serves, in the order in which CUDA numbers them."""
    percentage: int | None = None
    limits: tuple[tuple[str, int], ...] = ()
    """(UUID, MiB)."""
    multi_user: bool = False
    claim: str = ""
    """For messages."""
    renewal: str = ""
    """Asks for a new process in place of one that was started without this very text: its GPUs were lost to it. A
    keeper of an earlier version does not know it, and leaves the process."""


class Daemons(Protocol):
    """The MPS daemons of a node, whoever runs them: ``MpsDaemons`` here, ``KeptDaemons`` in a pod of their own."""

    @property
    def restarts(self) -> int:
        """How often a daemon that had ended was started again."""

    def folders(self, daemon: str) -> DaemonFolders:
        """As ``folders_of``."""

    def start(self, settings: DaemonSettings, deadline: Deadline) -> None:
        """Have a daemon that answers and has these settings, started now or before."""

    def runs(self, daemon: str) -> bool:
        """Whether the daemon runs and is looked after."""

    def stop(self, daemon: str, deadline: Deadline) -> None:
        """End a daemon and its servers, and remove its files. One that does not run is a success."""

    def sweep(self, wanted: Callable[[], frozenset[str]]) -> tuple[str, ...]:
        """End daemons and remove folders of claims that nobody knows any more; gives their ids."""

    def detach(self) -> None:
        """Start no daemon again from now on; those that run go on running."""


def folders_of(folder: Path, daemon: str) -> DaemonFolders:
    """Where a daemon's files are.

    Raises:
        DaemonError: that is no id of a daemon.
    """
    if _ID.match(daemon) is None:
        raise DaemonError(f"{daemon[:64]!a} is no id of a daemon")
    return DaemonFolders(folder / daemon)


class MpsDaemons:
    """The daemons below one folder. Safe to use from several threads.

    Args:
        programs: of the driver root.
        folder: holds a folder per daemon; the host has it at the same path.
        private_shm: whether a daemon gets a /dev/shm of its own, as its clients do (needs CAP_SYS_ADMIN); without one
            CUDA programs cannot meet it.
    """

    def __init__(self, programs: DriverPrograms, folder: Path, *, private_shm: bool = True) -> None:
        self._programs = programs
        self._folder = folder
        self._private_shm = private_shm
        self._lock = threading.Lock()
        self._locks = KeyedLocks()
        self._watched: dict[str, Watch] = {}
        self._restarts = 0

    @property
    def restarts(self) -> int:
        """How often a daemon that had ended was started again."""
        return self._restarts

    def folders(self, daemon: str) -> DaemonFolders:
        """As ``folders_of``."""
        return folders_of(self._folder, daemon)

    def present(self) -> frozenset[str]:
        """The ids of all daemons that have a folder, running or not."""
        try:
            return frozenset(entry.name for entry in self._folder.iterdir() if _ID.match(entry.name))
        except FileNotFoundError:
            return frozenset()

    def start(self, settings: DaemonSettings, deadline: Deadline) -> None:
        """Have a daemon that answers and has these settings, started now or before.

        Raises:
            DaemonError: it did not come up in time, or refuses a setting.
        """
        with self._alone(settings.id, deadline):
            with self._lock:
                watch = self._watched.get(settings.id)
            if watch is not None and watch.process.alive:
                fault = self._fault(watch, settings.renewal)
                if fault is None:
                    self._apply(settings, self.folders(settings.id), deadline)
                    watch.settings = settings
                    return
                self._give_up(watch, fault)
            process = self._obtain(settings, deadline)
            fresh = Watch(settings, process, self.folders(settings.id).places(), self._restart)
            with self._lock:
                self._watched[settings.id] = fresh
                self._restarts += watch is not None
            if watch is not None:
                watch.stopping.set()
            fresh.begin()

    def runs(self, daemon: str) -> bool:
        """Whether the daemon runs and is watched here, and its socket and folders are those with which it answered."""
        with self._lock:
            watch = self._watched.get(daemon)
        return watch is not None and watch.alive and next(watch.taken(), None) is None

    def _fault(self, watch: Watch, renewal: str) -> str | None:
        """Why a process that runs is of no use; None: it is."""
        if watch.stopping.is_set():
            return "it was to be ended before"
        taken = next(watch.taken(), None)
        if taken is not None:
            return f"{taken} was {'replaced' if taken.exists() else 'removed'}, so that no program can reach it"
        if renewal and renewal != watch.settings.renewal:
            return "a GPU that it serves was lost to it (reset, off the bus, or its driver loaded anew)"
        return None

    def _give_up(self, watch: Watch, fault: str) -> None:
        """End a process that is of no use, and its servers. What is left of its folders stays: containers have them.

        Raises:
            DaemonError: it cannot be ended.
        """
        log.warning(
            "the MPS control daemon %d of claim %s runs, but %s; it is ended and started anew, and running CUDA "
            "programs of the claim fail",
            watch.process.pid,
            watch.settings.claim,
            fault,
        )
        watch.stopping.set()
        for process in (watch.process, *left_of(self.folders(watch.settings.id).pipe)):
            if not process.end(_END_SECONDS):
                raise DaemonError(f"process {process.pid} of MPS cannot be ended; it may hang on its GPU")
        watch.join(_END_SECONDS)

    def stop(self, daemon: str, deadline: Deadline) -> None:
        """End a daemon and its servers, and remove its files. One that does not run is a success.

        Raises:
            DaemonError: it cannot be ended, or its files cannot be removed.
        """
        with self._alone(daemon, deadline):
            self._stop(daemon, deadline)

    def _stop(self, daemon: str, deadline: Deadline) -> None:
        folders = self.folders(daemon)
        with self._lock:
            watch = self._watched.pop(daemon, None)
        process = watch.process if watch is not None else adopt(folders.pid_file)
        if watch is not None:
            watch.stopping.set()
        if process is not None and process.alive:
            self._quit(folders, deadline)
            if not process.end(max(deadline.left, 0.5)):
                raise DaemonError(f"control daemon {process.pid} cannot be ended; it may hang on its GPU")
        for stray in left_of(folders.pipe):
            if not stray.end(max(deadline.left, 0.5)):
                raise DaemonError(f"process {stray.pid} of MPS cannot be ended; it may hang on its GPU")
        if watch is not None:
            watch.join(max(deadline.left, 0.5))
        import shutil  # with its compressors it takes as long to import as the rest of this room

        try:
            shutil.rmtree(folders.base)
        except FileNotFoundError:
            log.debug("%s is gone already", folders.base)
        except OSError as error:
            raise DaemonError(f"{folders.base} cannot be removed: {error.strerror}; {remedy(error)}") from error

    def sweep(self, wanted: Callable[[], frozenset[str]]) -> tuple[str, ...]:
        """End daemons and remove folders of claims that nobody knows any more; gives their ids.

        Args:
            wanted: ids of the daemons that claims have; asked after a look at the folder, so that a claim that comes
                meanwhile, and is recorded before its daemon is started, is not missed.
        """
        present = self.present()
        gone = []
        for daemon in sorted(present - wanted()) if present else ():
            try:
                self.stop(daemon, Deadline(_RESTART_SECONDS))
            except DaemonError as error:
                log.warning("MPS control daemon %s of no claim: %s", daemon, error)
            else:
                gone.append(daemon)
        return tuple(gone)

    @contextlib.contextmanager
    def _alone(self, daemon: str, deadline: Deadline) -> Iterator[None]:
        """Keep others from starting or ending the same daemon meanwhile."""
        with self._locks.hold((daemon,), time.monotonic() + deadline.left) as taken:
            if not taken:
                raise DaemonError("it is still being started or ended")
            yield

    def detach(self) -> None:
        """Start no daemon again from now on; those that run go on running."""
        with self._lock:
            watched, self._watched = self._watched, {}
        for watch in watched.values():
            watch.stopping.set()

    def _launch(self, settings: DaemonSettings, deadline: Deadline) -> DaemonProcess:
        folders = self.folders(settings.id)
        arguments = ["-f", *(["-M"] if settings.multi_user else [])]
        try:
            program = self._programs.find(PROGRAM)
            environment = {
                **folders.environment,
                "CUDA_VISIBLE_DEVICES": ",".join(settings.uuids),
                # The daemon starts nvidia-cuda-mps-server, which lies beside it.
                "PATH": f"{program.parent}:{os.environ.get('PATH', os.defpath)}",
            }
            launcher = Launcher(program, self._programs.environment(environment))
        except CommandError as error:
            raise DaemonError(str(error)) from error
        return launcher.start(arguments, folders, private_shm=self._private_shm)

    def _restart(self, watch: Watch) -> bool:
        """Start a watched daemon again; False where it does not start, or somebody is about to start or end it."""
        with self._locks.hold((watch.settings.id,), time.monotonic() + _TURN_SECONDS) as taken:
            if not taken or watch.stopping.is_set():
                return False
            try:
                watch.process = self._obtain(watch.settings, Deadline(_RESTART_SECONDS))
                watch.places = self.folders(watch.settings.id).places()
            except DaemonError as error:
                log.warning("the MPS control daemon of claim %s does not start: %s", watch.settings.claim, error)
                return False
            with self._lock:
                self._restarts += 1
            return True

    def _obtain(self, settings: DaemonSettings, deadline: Deadline) -> DaemonProcess:
        """A daemon that answers and has the settings: the one that runs already, or a new one."""
        folders = self.folders(settings.id)
        folders.make()
        process = adopt(folders.pid_file) if self._asked(folders, deadline) else None
        found = process is not None
        if process is None:
            process = self._launch(settings, deadline)
        try:
            process = self._ready(folders, process, deadline)
            self._apply(settings, folders, deadline)
        except DaemonError:
            if not found:
                process.end(0.0)
            raise
        log.info(
            "MPS control daemon %d of claim %s %s", process.pid, settings.claim, "was found" if found else "answers"
        )
        return process

    def _ready(self, folders: DaemonFolders, process: DaemonProcess, deadline: Deadline) -> DaemonProcess:
        """Wait until the daemon answers; gives the process that does."""
        while not self._asked(folders, deadline):
            if process.wait(min(0.05, deadline.left)):
                raise DaemonError(f"the control daemon ended at once{folders.last_words()}")
            if deadline.left <= 0:
                raise DaemonError(f"the control daemon does not answer in time{folders.last_words()}")
        # Two agents during an update may both start one; the lock in the pipe folder lets one of them in.
        return process if process.alive else adopt(folders.pid_file) or process

    def _asked(self, folders: DaemonFolders, deadline: Deadline) -> bool:
        """Whether somebody answers on the socket."""
        if not folders.socket.exists():
            return False
        try:
            self._command(folders, ["get_server_list"], deadline)
        except DaemonError:
            return False
        return True

    def _apply(self, settings: DaemonSettings, folders: DaemonFolders, deadline: Deadline) -> None:
        """Set the defaults of servers that start from now on, and read them back."""
        if settings.percentage is not None:
            self._command(folders, [f"set_default_active_thread_percentage {settings.percentage}"], deadline)
            found = self._command(folders, ["get_default_active_thread_percentage"], deadline)
            if not _is_percentage(found, settings.percentage):
                raise DaemonError(f"the thread percentage was set to {settings.percentage}, the daemon says: {found}")
        for uuid, mib in settings.limits:
            answer = self._command(folders, [f"set_default_device_pinned_mem_limit {uuid} {mib}M"], deadline)
            found = self._command(folders, [f"get_default_device_pinned_mem_limit {uuid}"], deadline)
            if not _is_limit(found, mib):
                raise DaemonError(f"the memory limit of {uuid} was set to {mib}M, the daemon says: {answer} {found}")

    def _command(self, folders: DaemonFolders, lines: list[str], deadline: Deadline) -> str:
        try:
            done = self._programs.run(
                PROGRAM, [], seconds=deadline.left, stdin="\n".join(lines) + "\n", environment=folders.environment
            )
        except CommandError as error:
            raise DaemonError(str(error)) from error
        if done.code != 0:
            raise DaemonError(f"{lines[0]} failed: {' '.join(done.output.split())}")
        return " ".join(done.output.split())

    def _quit(self, folders: DaemonFolders, deadline: Deadline) -> None:
        try:
            self._command(folders, [f"quit -t {_QUIT_SECONDS}"], deadline)
        except DaemonError as error:
            log.info("control daemon of %s does not quit by itself: %s", folders.base.name, error)


def _is_percentage(answer: str, wanted: int) -> bool:
    try:
        return abs(float(answer.rsplit(maxsplit=1)[-1].rstrip("%")) - wanted) < 1
    except (ValueError, IndexError):
        return False


def _is_limit(answer: str, wanted: int) -> bool:
    """Some drivers show a limit above 1 GiB in whole GiB, rounded down."""
    match = _LIMIT.search(answer)
    if match is None:
        return False
    number = int(match[1])
    return number == wanted if match[2].upper() == "M" else number == wanted // 1024
