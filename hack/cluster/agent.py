"""The driver's agent as a plain process beside the cluster, on a mock node."""

from __future__ import annotations

import json
import signal
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from driver.model import PciAddress
from native.mock import profiles

from . import processes
from .api import JSON, Api
from .layout import DRIVER_NAME, NODE_NAME, ClusterError, Layout
from .processes import Process

_WAITING_PARENT = ("sh", "-c", '"$@"; exit $?', "sh")
"""For ``processes.spawn``, which wants a parent that stays."""

REGISTERED = "the kubelet has registered the plugin"


class Agent:
    """One agent at a time for the cluster's node; ``down`` ends it with the rest.

    The mock node stands in the cluster's folder and outlives restarts, as hardware does.
    """

    def __init__(self, layout: Layout, profile: str = "dgx-h100") -> None:
        self.layout = layout
        self.profile = profile
        self.log = layout.log("agent")

    @property
    def mock_root(self) -> Path:
        return self.layout.root / "mock" / Path(self.profile).stem

    @property
    def state_dir(self) -> Path:
        """The agent's own folder: checkpoint and journal."""
        return self.layout.plugins / DRIVER_NAME / "gpudra"

    @property
    def mps_dir(self) -> Path:
        """The folder of MPS daemons. Not below /run, which is another one for the node's containers."""
        return self.layout.root / "mps"

    def command(self, extra: Sequence[str] = ()) -> list[str]:
        """The command line: identity and folders of this cluster's node, hardware of the mock, free ports."""
        return [
            str(Path(sys.executable).with_name("gpudra")),
            "agent",
            f"--node-name={NODE_NAME}",
            f"--kubeconfig={self.layout.kubeconfig('agent')}",
            f"--plugins-dir={self.layout.plugins}",
            f"--registry-dir={self.layout.registry}",
            f"--cdi-dir={self.layout.cdi}",
            f"--mps-dir={self.mps_dir}",
            f"--mock-profile={self.profile}",
            f"--mock-root={self.mock_root}",
            "--metrics-address=127.0.0.1",
            "--metrics-port=0",
            "--health-port=0",
            *extra,
        ]

    @property
    def process(self) -> Process | None:
        """The running agent."""
        process = Process.load(self.layout.pid_file("agent"))
        return process if process is not None and process.alive() else None

    def start(self, *extra: str, kubelet: bool = True) -> None:
        """Start it and wait for its registration socket and for the kubelet's word.

        Args:
            extra: more flags.
            kubelet: whether one runs.

        Raises:
            ClusterError: it runs already, or ended at once.
        """
        if self.process is not None:
            raise ClusterError(f"an agent runs already, PID {self.process.pid}")
        before, offset = self._sockets(), self.log.stat().st_size if self.log.exists() else 0
        process = processes.spawn("agent", _WAITING_PARENT, self.command(extra), self.log)
        process.save(self.layout.pid_file("agent"))
        processes.wait_for("the agent's registration", lambda: self._sockets() - before != set(), process, self.log)
        if kubelet:
            self.wait_message(REGISTERED, offset)

    def _sockets(self) -> set[tuple[str, int]]:
        """Registration sockets with the time of their making: one that a killed agent left is not a new one."""
        return {(path.name, path.stat().st_mtime_ns) for path in self.layout.registry.glob(f"{DRIVER_NAME}*.sock")}

    def ensure(self) -> None:
        """Start it unless it runs."""
        if self.process is None:
            self.start()

    def kill(self) -> None:
        """SIGKILL: it gets no chance to tidy up."""
        self.stop(grace=0)

    def stop(self, *, grace: float = 20.0) -> None:
        """SIGTERM, and wait for its end."""
        if (process := self.process) is not None:
            processes.end(process, grace=grace)
        self.layout.pid_file("agent").unlink(missing_ok=True)

    def suspend(self) -> None:
        """Freeze it, as a machine under pressure does."""
        if (process := self.process) is not None:
            processes.send_signal(process, signal.SIGSTOP)

    def log_entries(self, offset: int = 0) -> list[dict[str, Any]]:
        """What it logged from byte ``offset`` on; lines of others (the mock's warning) are left out."""
        with self.log.open("rb") as log:
            log.seek(offset)
            lines = log.read().decode(errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def wait_message(self, text: str, offset: int = 0, timeout: float = 30.0) -> dict[str, Any]:
        """Wait until it has logged a message that holds ``text`` after byte ``offset``; return the entry.

        Raises:
            ClusterError: it ended, or the time is over.
        """
        process = self.process
        if process is None:
            raise ClusterError(f"no agent runs:\n{processes.tail(self.log)}")
        found: list[dict[str, Any]] = []

        def said() -> bool:
            found[:] = [entry for entry in self.log_entries(offset) if text in entry["message"]]
            return bool(found)

        processes.wait_for(f"the words {text!r} in the agent's log", said, process, self.log, timeout=timeout)
        return found[0]

    def wait(self, check: Callable[[], bool], what: str, timeout: float = 30.0) -> None:
        """Wait until something is so that no watch tells of, as long as the agent runs.

        Raises:
            ClusterError: it ended, or the time is over.
        """
        process = self.process
        if process is None:
            raise ClusterError(f"no agent runs:\n{processes.tail(self.log)}")
        processes.wait_for(what, check, process, self.log, timeout=timeout)

    def metrics(self) -> dict[str, float]:
        """What its /metrics says now: ``name{label="value"}``, as it stands there -> value.

        Raises:
            ClusterError: it does not serve them.
        """
        ports = [entry["port"] for entry in self.log_entries() if entry["message"] == "metrics are served"]
        if not ports or self.process is None:
            raise ClusterError(f"no agent serves metrics:\n{processes.tail(self.log)}")
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[-1]}/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    def wait_published(self, api: Api, devices: int, timeout: float = 30.0) -> None:
        """Wait until the node's slices hold exactly so many devices, all of them of this agent's own GPUs: those of an
        agent that was here before stay until this one has published."""
        own = [PciAddress.parse(gpu.address).label for gpu in profiles.load(self.profile).gpus]

        def there(slices: dict[str, JSON]) -> bool:
            names = [device["name"] for item in slices.values() for device in item["spec"].get("devices", [])]
            return len(names) == devices and all(any(label in name for label in own) for name in names)

        api.wait_all(
            "resourceslices",
            None,
            there,
            f"{devices} devices of this node published",
            timeout,
            f"spec.driver={DRIVER_NAME}",
        )


def device_count(slices: Any) -> int:
    """The devices in these slices."""
    return sum(len(item["spec"].get("devices", [])) for item in slices)
