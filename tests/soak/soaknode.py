"""A mock node with the agent as a process between stand-ins, whose clock can jump and which can be killed any time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import tempfile
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from driver.journal.reader import read
from driver.journal.records import Record
from driver.journal.state import replay
from driver.prepare.checkpoint import stored
from driver.prepare.records import ClaimRecord
from kubeletplugin.api import ClaimRef
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.plugin_manager import KubeletError, RegisteredPlugin
from native.mock import MockNode
from tests.soak.soakleaks import Figures
from tests.soak.soakpage import EXACT, Page, preloaded
from tests.support.agents import DRIVER, Scene
from tests.support.preload import Control

_KEPT = ("has registered the plugin", "metrics are served")
"""What is logged once in an agent's life, and looked for later."""
_IDLE = re.compile(r"^gpudra_claim_idle_seconds\{(?P<labels>.*)\} (?P<seconds>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class SoakNode(Scene):
    """Everything around the agent, and the agent."""

    flags: Mapping[str, object]
    """The agent's settings, beside those of every scene."""
    disk: Control
    """Lets calls fail that change the agent's files."""

    def equip(self, *, exact: bool) -> None:
        """Give the agent a wall clock that can be set, files whose changes can fail, and a heap that can be measured.

        Args:
            exact: whether the heap is measured to the byte, at the price of an allocator that is not Python's own.
        """
        self.page = Page(self.folder)
        self.disk = Control(self.folder, self.folder, str(self.node.root))
        self.exact = exact
        self.environment = {
            **self.page.environment,
            **self.disk.environment,
            **preloaded(self.page.library, self.disk.environment["LD_PRELOAD"]),
            **(EXACT if exact else {}),
            "MALLOC_ARENA_MAX": "2",  # as in the image
        }

    def mend_disk(self) -> None:
        """All files can be written again."""
        self.disk.mend()

    # the log: read once

    _read_to = 0
    _entries: list[dict[str, Any]]

    def logged(self, text: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log_entries() if text in entry["message"]]

    def log_entries(self) -> list[dict[str, Any]]:
        """The log of this and former agents, as far as it is not forgotten."""
        if not hasattr(self, "_entries"):
            self._entries = []
        if self.log.exists():
            with self.log.open("rb") as file:
                file.seek(self._read_to)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read_to += len(whole)
            for line in whole.splitlines():
                if line.startswith(b"{"):
                    with contextlib.suppress(ValueError):  # cut off by a kill
                        self._entries.append(json.loads(line))
        return self._entries

    def _last_words(self) -> str:
        """The loop shows what there is to see; threads are of no help beside it."""
        return ""

    def recent(self, count: int) -> str:
        """The last lines of the log."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return "\n".join(line[:400] for line in lines[-count:])

    def forget_log(self) -> None:
        """What was logged so far has been looked at."""
        self._entries = [one for one in self.log_entries() if any(words in one["message"] for words in _KEPT)]

    # the process

    def begin(self) -> None:
        """Start the agent and wait until the kubelet has it."""
        self.start(**self.flags)
        self.registered()
        self.until(self._reachable, "the new agent's socket")

    def _reachable(self) -> bool:
        with contextlib.suppress(KubeletError):
            return self.plugin().connected
        return False

    def plugin(self) -> RegisteredPlugin:
        """The newest registered one."""
        return self.kubelet.plugins.plugin(DRIVER)

    def figures(self) -> Figures:
        """Of the agent now."""
        assert self.process is not None
        folder = Path(f"/proc/{self.process.pid}")
        status = (folder / "status").read_text()
        rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))
        heap = self.page.heap(self.alive) if self.exact else None
        descriptors, threads = (len(list((folder / name).iterdir())) for name in ("fd", "task"))
        return Figures(descriptors, threads, rss / 1024, None if heap is None else heap / 1024)

    def programs(self) -> list[str]:
        """The programs that run for this node's agent or have ended and were never waited for, beside itself."""
        return sorted(name for pid in Path("/proc").glob("[0-9]*") if (name := self._program(pid)) is not None)

    def _program(self, process: Path) -> str | None:
        try:
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if self.process is None or int(process.name) in (self.process.pid, os.getpid()):
                return None
            if fields[0] == "Z" and int(fields[1]) == self.process.pid:
                return "one that has ended"
            ours = str(self.folder).encode() in (process / "environ").read_bytes()
            return (process / "comm").read_text().strip() if ours else None
        except OSError:
            return None  # it has just gone

    def reboot(self) -> None:
        """The agent is gone, and all that a boot does not keep."""
        if self.alive():
            self.end(signal.SIGKILL)
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.mps, ignore_errors=True)
        for path in self.cdi.glob("*"):
            path.unlink()
        self._unbind()
        self.node.reboot()
        self.kubelet.restart()

    def _unbind(self) -> None:
        """Each GPU is the NVIDIA driver's again: no override of a driver outlasts a boot."""
        folder = self.node.root / "sys/bus/pci/devices"
        for gpu in self.node.profile.gpus:
            override = folder / gpu.address / "driver_override"
            if override.exists():
                self.node.kernel.write(override, "\n")
            if self.node.kernel.driver(gpu.address) == "vfio-pci":
                self.node.kernel.write(folder / gpu.address / "driver/unbind", gpu.address)
            if self.node.kernel.driver(gpu.address) is None:
                self.node.kernel.write(folder.parent / "drivers_probe", gpu.address)

    def reset(self, address: str) -> None:
        """Reset a GPU that was lost, without which it would not work again; nothing of MIG and modes is left."""
        file, gpu = self.node._file, self.node.profile.gpu(address)
        file.forget_instances(address)
        for name in ("compute_mode", "timeslice", "mig_current", "mig_pending"):
            self.node.set_number(address, name, gpu.numbers.get(name, 0))
        folder = self.node.root / f"proc/driver/nvidia/capabilities/gpu{gpu.numbers['minor']}/mig"
        for access in folder.glob("gi*/**/access"):
            minor = access.read_text().split()[1]
            (self.node.root / f"dev/nvidia-caps/nvidia-cap{minor}").unlink(missing_ok=True)
        for instance in folder.glob("gi*"):
            shutil.rmtree(instance)

    # what is on the disk

    @property
    def state(self) -> Path:
        """The agent's own folder."""
        return self.plugins / DRIVER / "gpudra"

    @property
    def mps(self) -> Path:
        """The folder of the MPS daemons."""
        return self.folder / "mps"

    def records(self) -> dict[str, ClaimRecord]:
        """The checkpoint as it stands on the disk."""
        state = stored(self.state)
        return dict(state.records) if state is not None else {}

    def replayed(self) -> dict[str, str]:
        """Claim UID -> phase, as the journal has it."""
        folder = self.state / "journal"
        if not folder.exists():  # no file could be written since the node began
            return {}
        entries = (entry for entry in read(folder) if isinstance(entry, Record))
        return {uid: claim["phase"] for uid, claim in replay(entries).claims.items()}

    def idle_seconds(self) -> dict[tuple[str, str], float]:
        """(claim, device) -> for how long it has not been used, as the agent's metrics say. Nothing as long as it
        serves none, which it does a moment after it has registered."""
        served = self.logged("metrics are served")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{served[-1]['port']}/metrics", timeout=10) as answer:
                text = answer.read().decode()
        except (IndexError, OSError):
            return {}
        found = {}
        for series in _IDLE.finditer(text):
            labels = dict(_LABEL.findall(series["labels"]))
            found[labels["claim"], labels["device"]] = float(series["seconds"])
        return found

    def daemons(self) -> list[int]:
        """The process ids of MPS daemons."""
        found = []
        for path in self.mps.glob("*/*/pipe/nvidia-cuda-mps-control.pid"):
            with contextlib.suppress(ValueError, OSError):
                found.append(int(path.read_text()))
        return found

    def daemon_folders(self) -> list[Path]:
        """One for each MPS daemon."""
        return sorted(self.mps.glob("*/*"))


def ref(name: str, uid: str) -> ClaimRef:
    """As the kubelet names a claim."""
    return ClaimRef("default", name, uid)


@contextlib.contextmanager
def soak_node(profile: str, flags: Mapping[str, object], *, exact: bool) -> Iterator[SoakNode]:
    """A node whose kubelet runs and whose agent does not yet; ``exact``: as ``SoakNode.equip`` takes it."""
    folder = Path(tempfile.mkdtemp(prefix="k"))  # paths of sockets are short
    try:
        with EmbeddedApiServer() as server:
            made = SoakNode(folder, server, MockNode.create(folder / "node", profile))
            made.flags = {"mps_dir": made.mps, **flags}
            try:
                made.equip(exact=exact)
                made.kubelet.start()
                yield made
            finally:
                made.close()
                for pid in made.daemons():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
