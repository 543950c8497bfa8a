"""A DRA driver as the benchmark sees it: a command, the folders that it is given, a process."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from native.mock import MockNode
from tests.bench.folderwatch import FolderWatch

NODE_NAME = "bench-node"
OWN_LABEL = "gpudra"
OWN_DRIVER = "gpu.nvidia.com"
_GRACE = 20.0
_IMAGE = {"MALLOC_ARENA_MAX": "2"}
"""What the Dockerfile sets and figures depend on."""
_CHECK = 0.5
"""Seconds after which it is looked whether a driver that says nothing is still there."""

OWN_ARGUMENTS = (
    "agent --node-name={node} --kubeconfig={kubeconfig}"
    " --plugins-dir={plugins} --registry-dir={registry} --cdi-dir={cdi} --driver-root={root}"
    " --sys-root={root}/sys --proc-root={root}/proc --metrics-address=127.0.0.1 --metrics-port=0 --health-port=0"
)
"""As in the DaemonSet: a node's folders are named one by one, and metrics and health are served."""


class CandidateError(Exception):
    """A driver did not do what every DRA driver does; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A driver under test.

    Attributes:
        label: its name in the table.
        command: its command line with ``{node}``, ``{kubeconfig}``, ``{plugins}``, ``{registry}``, ``{cdi}`` and
            ``{root}`` (the driver root of the mock node) in it.
        driver: the DRA driver's name.
        root: a folder of its own, on a disk.
        cdi: a folder of its own, on a tmpfs as /var/run is on a node.
        kubeconfig: of an identity that may do everything.
        node: the mock node that it runs on.
    """

    label: str
    command: str
    driver: str
    root: Path
    cdi: Path
    kubeconfig: Path
    node: MockNode

    @property
    def plugins(self) -> Path:
        """The kubelet's folder of plugin data."""
        return self.root / "plugins"

    @property
    def registry(self) -> Path:
        """The kubelet's registration folder."""
        return self.root / "registry"

    @property
    def data(self) -> Path:
        """The driver's own folder."""
        return self.plugins / self.driver

    @property
    def log(self) -> Path:
        """What it prints."""
        return self.root / "log"

    def arguments(self) -> list[str]:
        """Its command line."""
        values = {
            "node": NODE_NAME,
            "kubeconfig": self.kubeconfig,
            "plugins": self.plugins,
            "registry": self.registry,
            "cdi": self.cdi,
            "root": self.node.root,
        }
        return [word.format_map(values) for word in shlex.split(self.command)]

    def environment(self) -> Mapping[str, str]:
        """Ours, the image's and the mock node's."""
        return {**os.environ, **_IMAGE, **self.node.environment, "GPUDRA_MOCK_QUIET": "1"}

    def clean(self) -> None:
        """A node on which it never ran."""
        for folder in (self.plugins, self.registry, self.cdi):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

    @contextlib.contextmanager
    def started(self) -> Iterator[Running]:
        """Start it; end it with SIGTERM. Raises ``CandidateError`` where it does not end in 20 s."""
        arguments, environment = self.arguments(), self.environment()
        with FolderWatch(self.registry) as watch:
            with self.log.open("ab") as log:
                begin = time.perf_counter()
                process = subprocess.Popen(
                    arguments, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            running = Running(self, process, begin, watch)
            try:
                yield running
            finally:
                running.end()


class Running:
    """A driver's process. ``begin`` is the moment before its exec, in seconds of ``time.perf_counter``."""

    def __init__(
        self, candidate: Candidate, process: subprocess.Popen[bytes], begin: float, watch: FolderWatch
    ) -> None:
        self.candidate = candidate
        self.process = process
        self.begin = begin
        self._watch = watch

    @property
    def pid(self) -> int:
        """Of its first process."""
        return self.process.pid

    def wait_registration(self, timeout: float = 30.0) -> Path:
        """Wait for the first socket in the registration folder.

        Raises:
            CandidateError: it ended, or there is none in time.
        """
        while not (sockets := list(self.candidate.registry.glob("*.sock"))):
            self.check("it had registered")
            left = self.begin + timeout - time.perf_counter()
            if left < 0:
                raise CandidateError(f"{self.candidate.label} has no registration socket after {timeout:.0f} s")
            self._watch.wait(min(left, _CHECK))
        return sockets[0]

    def check(self, before: str) -> None:
        """Raises ``CandidateError`` where it has ended."""
        if self.process.poll() is not None:
            raise CandidateError(
                f"{self.candidate.label} ended with {self.process.returncode} before {before}:\n{self._tail()}"
            )

    def outlast(self, seconds: float) -> None:
        """Let that time pass. Raises ``CandidateError`` where it does not live so long."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.check(f"{seconds:g} s of rest were over")

    def end(self) -> None:
        """SIGTERM, and after 20 s SIGKILL to it and its children."""
        if self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise CandidateError(f"{self.candidate.label} did not end {_GRACE:.0f} s after SIGTERM") from None

    def _tail(self) -> str:
        return "\n".join(self.candidate.log.read_text(errors="replace").splitlines()[-15:])
