"""One MPS control daemon as a process, started here or found, and its folders."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

import native
from driver.prepare import files
from driver.statefile import remedy

_LAUNCH: Final = Path(native.__file__).with_name("launch.py")
"""Run as a script of its own, never imported here: it needs ctypes, and this module is loaded at the agent's start."""
_LONGEST_SOCKET_PATH: Final = 107
"""sun_path of unix(7), without the NUL."""
_SHOWN: Final = 300
_LONGEST_PID: Final = 64
_PREFIX: Final = b"nvidia-cuda-mps-"
"""Of the names of the control daemon and of its servers."""


class DaemonError(Exception):
    """A daemon does not do what it should; the message says what, and what it said last."""


Places: TypeAlias = Mapping[Path, tuple[int, int] | None]
"""Path -> (device, inode); None: nothing is there. Another one under the same path is not the daemon's."""


class DaemonFolders(msgspec.Struct, frozen=True):
    """Where a daemon's files are."""

    base: Path

    @property
    def pipe(self) -> Path:
        """CUDA_MPS_PIPE_DIRECTORY: sockets and the pid file."""
        return self.base / "pipe"

    @property
    def log(self) -> Path:
        """CUDA_MPS_LOG_DIRECTORY."""
        return self.base / "log"

    @property
    def shm(self) -> Path:
        """What daemon and clients have as /dev/shm."""
        return self.base / "shm"

    @property
    def socket(self) -> Path:
        """Where commands go."""
        return self.pipe / "control"

    @property
    def pid_file(self) -> Path:
        """Written by the daemon."""
        return self.pipe / "nvidia-cuda-mps-control.pid"

    @property
    def environment(self) -> dict[str, str]:
        """What tells the program which daemon is meant."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}

    def make(self) -> None:
        """Make the folders. Clients of any user must reach the pipe folder and write to shared memory.

        Raises:
            DaemonError: they cannot be made, or the path is too long for a socket.
        """
        if len(str(self.socket)) > _LONGEST_SOCKET_PATH:
            raise DaemonError(f"{self.socket} is too long for a socket: choose a shorter mpsDir")
        try:
            for folder, mode in ((self.pipe, 0o755), (self.log, 0o755), (self.shm, 0o1777)):
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(mode)  # whatever the umask
        except OSError as error:
            raise DaemonError(
                f"{error.filename} cannot be made: {error.strerror}; {remedy(error)} (setting mpsDir)"
            ) from error

    def places(self) -> Places:
        """What stands at the paths by which programs reach the daemon; costs three looks at a file system."""
        return {path: number_of(path) for path in (self.pipe, self.socket, self.shm)}

    def last_words(self) -> str:
        """The end of what the daemon printed or logged, for messages."""
        for path in (self.log / "console.log", self.log / "control.log"):
            with contextlib.suppress(OSError):
                words = " ".join(path.read_bytes()[-4096:].decode("utf-8", "replace").split())
                if words:
                    return f": {words[-_SHOWN:]}"
        return ""


def number_of(path: Path) -> tuple[int, int] | None:
    """(device, inode) of what stands at a path; None: nothing does."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class DaemonProcess:
    """A process, by a descriptor that names it even when its number is used again."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        """Take hold of it.

        Raises:
            ProcessLookupError: it is gone.
        """
        self.pid = pid
        self._child = child
        self._descriptor = -1
        self._descriptor = os.pidfd_open(pid)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return not self.wait(0)

    @property
    def end_shown(self) -> str:
        """How it ended, for messages."""
        code = self._child.poll() if self._child is not None else None
        return "of an earlier agent" if code is None else f"exit code {code}"

    def wait(self, seconds: float | None) -> bool:
        """Wait for its end (None: as long as it takes); False where it runs on."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(None if seconds is None else max(0.0, seconds) * 1000):
            return False
        if self._child is not None:
            self._child.wait()
        return True

    def end(self, seconds: float) -> bool:
        """Make it end, with its servers: first asked, then killed. False where it does not even then."""
        if self.wait(0):
            return True
        if seconds > 0:
            self._signal(signal.SIGTERM)
            if self.wait(seconds / 2):
                return True
        self._signal(signal.SIGKILL)
        return self.wait(max(seconds / 2, 1.0))

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._child is not None:
                os.killpg(self.pid, number)  # a session of its own, with its servers
            else:
                signal.pidfd_send_signal(self._descriptor, number)


class Launcher:
    """Starts a program as a daemon of this process.

    Args:
        program: its path.
        environment: all of its variables.
    """

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._program = program
        self._environment = environment

    def start(self, arguments: Sequence[str], folders: DaemonFolders, *, private_shm: bool) -> DaemonProcess:
        """Start it; what it prints goes to ``console.log`` in its log folder.

        Raises:
            DaemonError: it cannot be started.
        """
        command = [str(self._program), *arguments]
        if private_shm:
            bind = f"{folders.shm}:/dev/shm"  # clients get the same folder there
            command = [sys.executable, "-I", str(_LAUNCH), "--bind", bind, "--", *command]
        words = folders.log / "console.log"
        try:
            console = words.open("wb")
        except OSError as error:
            raise DaemonError(f"{words} cannot be written: {error.strerror}; {remedy(error)}") from error
        try:
            with console:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=console,
                    stderr=console,
                    env=dict(self._environment),
                    cwd="/",
                    start_new_session=True,
                )
            return DaemonProcess(child.pid, child)
        except OSError as error:
            raise DaemonError(f"{self._program} cannot be started: {error.strerror}") from error


def adopt(pid_file: Path) -> DaemonProcess | None:
    """The daemon of a pid file, if it runs; None for another process that has its number now.

    Containers of the claim can write where the file lies: it may be a pipe or a link, and name any process. What a
    process was started with they cannot change, so a daemon is one that was started for this folder.
    """
    try:
        pid = int(files.read_regular(pid_file, _LONGEST_PID))
        process = DaemonProcess(pid)
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except (OSError, ValueError, OverflowError, files.NotAFileError, files.TooLargeError):
        return None
    is_daemon = b"nvidia-cuda-mps-control" in command.split(b"\0")[0]
    folder = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pid_file.parent)
    return process if is_daemon and folder in variables.split(b"\0") else None


def left_of(pipe: Path) -> Iterator[DaemonProcess]:
    """The control daemons and servers that run for a pipe folder, whoever started them.

    A server may outlive its daemon; and a daemon the file that names it, which containers of its claim can remove.
    """
    variable = b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pipe)
    for name in os.listdir("/proc"):  # noqa: PTH208  names only
        if name.isascii() and name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                process = DaemonProcess(int(name))
                command = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")[0]
                if _PREFIX in command and variable in Path(f"/proc/{name}/environ").read_bytes().split(b"\0"):
                    yield process
