"""Runs the driver's own programs (nvidia-smi, nvidia-cuda-mps-control) from below the driver root, with a deadline.

No shell, no chroot: the program is called by its path as this process sees it. Where the driver root is not ``/``, the
program finds the driver's libraries through ``LD_LIBRARY_PATH``; not in the host's library folder, whose libc would
meet this container's loader, but in a folder of links to the driver's libraries alone.
A program that does not end in time is killed with everything it started; one that cannot even be killed (it hangs in
the kernel, on a dying GPU) is left behind, and the caller goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

_SHOWN_OUTPUT = 400
_KILL_SECONDS = 1.0
"""How long a killed program may take to be gone."""
_DROPPED = ("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Of our own environment; what is in it was meant for this process. CUDA_MPS_* are dropped too."""


class CommandError(Exception):
    """A program could not be run, failed or did not end.

    Attributes:
        code: its exit code; None where it did not end by itself.
        output: what it printed, on both streams.
        hung: the process, where it could not even be killed: what it was to do may still happen.
    """

    def __init__(
        self, message: str, code: int | None = None, output: str = "", hung: subprocess.Popen[bytes] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.output = output
        self.hung = hung


class Completed(msgspec.Struct, frozen=True):
    """A program that ended."""

    code: int
    output: str
    """Standard output and standard error, as they came."""


class DriverPrograms:
    """The programs of one driver root. Safe to use from several threads.

    Args:
        root: the driver root, as this process sees it.
        links: a folder of our own for links to the driver's libraries; used only where ``root`` is not ``/``.
        version: of the driver that is loaded, as NVML prints it; None while it is not known: the links that an earlier
            process left are used.
    """

    def __init__(self, root: Path, links: Path, version: Callable[[], str | None] = lambda: None) -> None:
        self._root = root
        self._links = links
        self._version = version
        self._lock = threading.Lock()
        self._linked: str | None = None
        self._left: list[subprocess.Popen[bytes]] = []

    def find(self, program: str) -> Path:
        """Where a program is.

        Raises:
            CommandError: nowhere below the driver root; the message lists where it was looked for.
        """
        from native.driverroot import find_binary  # nothing of it is needed before a program is

        try:
            return find_binary(self._root, program)
        except OSError as error:
            raise CommandError(str(error)) from error

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What a program of the driver needs around it.

        Raises:
            CommandError: the links to the driver's libraries cannot be made.
        """
        kept = {k: v for k, v in os.environ.items() if k not in _DROPPED and not k.startswith("CUDA_MPS_")}
        kept.update({"LC_ALL": "C", **(extra or {})})
        if self._root != Path("/"):
            self._link()
            kept["LD_LIBRARY_PATH"] = str(self._links)
        return kept

    def run(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        seconds: float,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a program to its end.

        Args:
            program: its name.
            arguments: passed as they are; no shell sees them.
            seconds: after which it is killed.
            stdin: what it reads.
            environment: variables beside ours.

        Raises:
            CommandError: it is not there, cannot be started, or did not end in time. Its exit code is for the caller.
        """
        path = self.find(program)
        variables = self.environment(environment)
        # Grandchildren may keep a pipe open for ever, so the output goes to a file in memory.
        descriptor = os.memfd_create(program, os.MFD_CLOEXEC)
        try:
            code, process = self._wait(path, arguments, stdin, variables, descriptor, seconds)
            output = os.pread(descriptor, 64 * 1024, 0).decode("utf-8", "replace")
        finally:
            os.close(descriptor)
        if code is None:
            raise CommandError(
                f"{_shown(program, arguments)} did not end within {seconds:g} s and was killed{_said(output)}",
                None,
                output,
                process if process.poll() is None else None,
            )
        return Completed(code, output)

    def _wait(
        self,
        path: Path,
        arguments: Sequence[str],
        stdin: str,
        variables: Mapping[str, str],
        output: int,
        seconds: float,
    ) -> tuple[int | None, subprocess.Popen[bytes]]:
        """The exit code, None where it was killed, and the process."""
        source = os.memfd_create("stdin", os.MFD_CLOEXEC)
        try:
            os.pwrite(source, stdin.encode(), 0)
            process = subprocess.Popen(
                [str(path), *arguments],
                stdin=source,
                stdout=output,
                stderr=output,
                env=variables,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise CommandError(f"{path} cannot be started: {error.strerror}") from error
        finally:
            os.close(source)
        try:
            return process.wait(max(0.0, seconds)), process
        except subprocess.TimeoutExpired:
            self._kill(process)
            return None, process

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        try:
            process.wait(_KILL_SECONDS)
        except subprocess.TimeoutExpired:
            with self._lock:  # hangs in the kernel; taken from the list of processes whenever it is gone
                self._left = [*(left for left in self._left if left.poll() is None), process]

    def _link(self) -> None:
        version = self._version()
        with self._lock:
            if version is None or self._linked == version:
                return
            from native.driverroot import driver_libraries

            try:
                libraries = driver_libraries(self._root, version)
                self._links.mkdir(mode=0o755, parents=True, exist_ok=True)
                for old in self._links.iterdir():
                    old.unlink()
                for inside, target in libraries:
                    link = self._links / Path(target).name
                    link.unlink(missing_ok=True)  # one library in two folders
                    link.symlink_to(self._root / inside.lstrip("/"))
            except (OSError, ValueError) as error:
                raise CommandError(f"the driver's libraries cannot be linked below {self._links}: {error}") from error
            self._linked = version


class Deadline:
    """A point in time that several steps share."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        """Seconds that are left; 0 when it has passed."""
        return max(0.0, self._end - time.monotonic())


def failed(program: str, arguments: Sequence[str], done: Completed) -> CommandError:
    """The error for a program that ended with another code than it should have."""
    return CommandError(
        f"{_shown(program, arguments)} failed with exit code {done.code}{_said(done.output)}", done.code, done.output
    )


def _shown(program: str, arguments: Sequence[str]) -> str:
    return " ".join((program, *arguments))


def _said(output: str) -> str:
    words = " ".join(output.split())
    if not words:
        return ""
    return f": {words if len(words) <= _SHOWN_OUTPUT else words[:_SHOWN_OUTPUT] + '...'}"
