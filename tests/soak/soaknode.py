"""A mock node with the agent as a process between stand-ins, whose clock can jump and which can be killed any time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from native.mock import MockNode, build
from tests.support.agents import DRIVER, Scene

_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

/* Whoever is told its time by the wall clock is told it with an offset, which others may change while it runs. */
int clock_gettime(clockid_t which, struct timespec *now)
{
    static int (*next)(clockid_t, struct timespec *);
    static volatile const long long *offset;
    if (next == NULL)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int code = next(which, now);
    if (offset == NULL) {
        int file = open(getenv("SOAK_CLOCK"), O_RDONLY | O_CLOEXEC);
        offset = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
    }
    if (code == 0 && which == CLOCK_REALTIME)
        now->tv_sec += *offset;
    return code;
}
"""


@dataclass(frozen=True)
class Figures:
    """What a process holds."""

    descriptors: int
    threads: int
    rss_mib: float

    def __str__(self) -> str:
        return f"{self.descriptors} descriptors, {self.threads} threads, {self.rss_mib:.1f} MiB"


class SoakNode(Scene):
    """Everything around the agent, and the agent."""

    flags: Mapping[str, object]
    """The agent's settings, beside those of every scene."""

    def prepare_clock(self) -> None:
        """Give the agent a wall clock that can be set."""
        source, library = self.folder / "clock.c", self.folder / "clock.so"
        source.write_text(_CLOCK)
        subprocess.run([build.compiler(), "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        self._clock = self.folder / "clock"
        self._clock.write_bytes(bytes(8))
        self.environment = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(self._clock)}

    def jump(self, seconds: int) -> None:
        """Let the wall clock be so far from the machine's."""
        with self._clock.open("r+b") as file:
            file.write(seconds.to_bytes(8, "little", signed=True))

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
        self._entries = [one for one in self.log_entries() if "has registered the plugin" in one["message"]]

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
        return Figures(len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir())), rss / 1024)

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
        self.node.reboot()
        self.kubelet.restart()

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
        entries = (entry for entry in read(self.state / "journal") if isinstance(entry, Record))
        return {uid: claim["phase"] for uid, claim in replay(entries).claims.items()}

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
def soak_node(profile: str, flags: Mapping[str, object]) -> Iterator[SoakNode]:
    """A node whose kubelet runs and whose agent does not yet."""
    folder = Path(tempfile.mkdtemp(prefix="k"))  # paths of sockets are short
    try:
        with EmbeddedApiServer() as server:
            made = SoakNode(folder, server, MockNode.create(folder / "node", profile))
            made.flags = {"mps_dir": made.mps, **flags}
            try:
                made.prepare_clock()
                made.kubelet.start()
                yield made
            finally:
                made.close()
                for pid in made.daemons():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
