"""Processes that outlive the command which started them: start, recognise, wait for, end.

A process is known by its PID and its start time, so that a number which the kernel gave to somebody else is never
signalled. Deaths are waited for through pidfds.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .layout import ClusterError

POLL_SECONDS = 0.1

# The outer shell tells the PID that unshare or nsenter keeps after exec; the inner one, already the only child of it
# and inside the namespaces, says that it is there and turns into the program. Both write to descriptor 3, which is
# what was standard output: the shell of Debian cannot close a descriptor with two digits.
_LAUNCH = 'exec 3>&1 1>&2; echo $$ >&3; exec "$@"'
_INSIDE = ("sh", "-c", 'echo ready >&3; exec "$@" 3>&-', "sh")


@dataclass(frozen=True, slots=True)
class Process:
    """A process of the cluster, as its PID file holds it."""

    name: str
    pid: int
    started: int
    """Start time in clock ticks after boot: field 22 of /proc/PID/stat (proc(5))."""
    argv: tuple[str, ...]

    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)) + "\n")

    @classmethod
    def load(cls, path: Path) -> Process | None:
        """What the PID file says; None where there is none or it was cut short by a crash."""
        try:
            raw = json.loads(path.read_text())
            return cls(raw["name"], int(raw["pid"]), int(raw["started"]), tuple(raw["argv"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


def _start_time(pid: int) -> int | None:
    """Start time of a running process; None for one that is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])


def of_pid(name: str, pid: int, argv: Sequence[str] = ()) -> Process:
    """Describe a running process.

    Raises:
        ClusterError: it is gone.
    """
    started = _start_time(pid)
    if started is None:
        raise ClusterError(f"{name} (PID {pid}) ended at once")
    return Process(name, pid, started, tuple(argv))


def spawn(
    name: str,
    wrapper: Sequence[str],
    argv: Sequence[str],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    announced: bool = False,
) -> Process:
    """Start ``wrapper argv`` in a session of its own, output appended to ``log``; return the inner process.

    ``wrapper`` is a command that runs the rest of its command line as its only child (nsenter, unshare --fork).

    Args:
        announced: the program itself writes ``ready`` to descriptor 3 once it has set itself up.

    Raises:
        ClusterError: it ended before it was ready; the end of its log is in the message.
    """
    inside = () if announced else _INSIDE
    command = ["setsid", "--fork", "sh", "-c", _LAUNCH, "sh", *wrapper, *inside, *argv]
    read_end, write_end = os.pipe()
    with os.fdopen(read_end) as announcements, log.open("ab") as output:
        try:
            subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=write_end,
                stderr=output,
                env=dict(environment) if environment is not None else None,
                cwd="/",
                check=True,
            )
        finally:
            os.close(write_end)
        outer, ready = announcements.readline().strip(), announcements.readline().strip()
    if ready != "ready":
        raise ClusterError(f"{name} did not start:\n{tail(log)}")
    children = Path(f"/proc/{outer}/task/{outer}/children").read_text().split()
    if len(children) != 1:
        raise ClusterError(f"{name} ended at once:\n{tail(log)}")
    try:
        return of_pid(name, int(children[0]), argv)
    except ClusterError as error:
        raise ClusterError(f"{error}:\n{tail(log)}") from None


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return f"(no log at {log})"
    return "\n".join(text.splitlines()[-lines:])


def wait_gone(process: Process, timeout: float) -> bool:
    """Wait until a process has ended; False when it still runs after ``timeout`` seconds."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.alive():  # checked with the descriptor in hand: it cannot name a successor any more
            return True
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return bool(poller.poll(timeout * 1000))
    finally:
        os.close(pidfd)


def send_signal(process: Process, number: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not process.alive():
            return False
        signal.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        return False
    else:
        return True
    finally:
        os.close(pidfd)


def end(process: Process, *, grace: float = 10.0) -> None:
    """Ask a process to end, and kill it after ``grace`` seconds (0: at once).

    Raises:
        ClusterError: it does not die (stuck in the kernel).
    """
    if grace and send_signal(process, signal.SIGTERM) and wait_gone(process, grace):
        return
    send_signal(process, signal.SIGKILL)
    if not wait_gone(process, 30):
        raise ClusterError(f"{process.name} (PID {process.pid}) does not die: look at /proc/{process.pid}/stack")


def wait_for(what: str, check: Callable[[], bool], watched: Process, log: Path, *, timeout: float = 60.0) -> None:
    """Ask ``check`` until it is true; between the questions wait for the death of ``watched``, which ends the wait.

    Raises:
        ClusterError: the process died, or the time is over; with the end of its log.
    """
    deadline = time.monotonic() + timeout
    while not check():
        if wait_gone(watched, POLL_SECONDS):
            raise ClusterError(f"{watched.name} ended while we waited for {what}:\n{tail(log)}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{what}: not within {timeout:.0f} s; {watched.name} says:\n{tail(log)}")


def run_checked(command: Sequence[str], *, stdin: str | None = None) -> str:
    """Run a short command to its end and return what it printed.

    Raises:
        ClusterError: it failed; with its words.
    """
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
