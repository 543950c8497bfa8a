"""Which claims hold a GPU and do not use it, and for how long: counted from the readings of the health probe.

A whole GPU is in use while NVML's utilisation is above 0. Where NVML has none to tell (a partition), it is in use while
a process has a context on it. What several claims share cannot be told apart: it counts as used for all of them. A
reading is of the last second or less, so short bursts between two probes go unseen; a claim that computes now and then
is found in use sooner or later, one that never does is not. Without a reading nothing is counted.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from driver import statefile
from driver.metrics import Metrics
from driver.prepare import ClaimRecord, ClaimRef
from native.nvml.healthtypes import GpuHealth

log = logging.getLogger(__name__)

FILE_NAME = "idle.json"
SAVE_SECONDS = 60.0
_MAX_BYTES = 16 * 1024 * 1024


class Use(msgspec.Struct):
    """One device of one claim."""

    namespace: str
    claim: str
    uid: str
    device: str
    since: float
    """Unix time of the first sample."""
    used: float
    """Boot time (CLOCK_BOOTTIME) of the last sample that found it in use; of the first one where none did."""
    seen: float
    """Boot time of the last sample."""
    ever: bool = False
    """It was found in use at least once."""
    idle: bool = False
    """Not used for as long as the setting says."""
    utilization: int | None = None
    """Percent, of the last sample."""
    processes: int = 0
    memory: int | None = None
    """Bytes that are used on the GPU."""

    @property
    def seconds(self) -> float:
        """For how long it has not been used."""
        return max(0.0, self.seen - self.used)

    @property
    def ref(self) -> ClaimRef:
        """The claim."""
        return ClaimRef(self.namespace, self.claim, self.uid)


class Stored(msgspec.Struct):
    """What ``gpudra idle`` reads."""

    version: int
    boot: str | None
    wall: float
    """When it was written."""
    uses: list[Use]


class IdleBook:
    """Not safe for threads: of the thread that probes.

    Args:
        idle_seconds: after how long without use a device is idle.
        boot_id: of the running system.
        folder: where the book is kept; a file that cannot be used costs memory of the past, nothing else.
    """

    def __init__(
        self,
        idle_seconds: float,
        boot_id: str | None,
        folder: Path,
        *,
        wall: Callable[[], float] = time.time,
        boot: Callable[[], float] = lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    ) -> None:
        self._idle_seconds = idle_seconds
        self._boot_id = boot_id
        self._path = folder / FILE_NAME
        self._file = statefile.HelpfulFile(self._path, "gpudra idle does not see what is new")
        self._wall = wall
        self._boot = boot
        self._uses: dict[tuple[str, str], Use] = {}
        self._saved: float | None = None
        self._load()

    def sample(self, health: Mapping[str, GpuHealth], records: Sequence[ClaimRecord]) -> list[Use]:
        """Take readings in; gives the devices that have become idle, or are used again."""
        now = self._boot()
        held: set[tuple[str, str]] = set()
        turned = []
        for record in records:
            for device in record.devices:
                if device.admin_access:
                    continue
                key = record.ref.uid, device.device
                held.add(key)
                reading = health.get(device.address)
                if reading is None or reading.codes.get("handle") is not None:
                    continue
                use = self._uses.get(key)
                if use is None:
                    ref = record.ref
                    use = Use(ref.namespace, ref.name, ref.uid, device.device, self._wall(), now, now)
                    self._uses[key] = use
                part = device.partition
                _read(use, reading, None if part is None else part.gpu_instance, now, whole=part is None)
                if (use.seconds >= self._idle_seconds) != use.idle:
                    use.idle = not use.idle
                    turned.append(use)
        for key in self._uses.keys() - held:
            del self._uses[key]
        self._save(now)
        return turned

    def uses(self) -> tuple[Use, ...]:
        """All devices of claims, longest unused first."""
        return tuple(sorted(self._uses.values(), key=lambda use: -use.seconds))

    def _load(self) -> None:
        stored = read_book(self._path)
        if stored is not None and stored.boot is not None and stored.boot == self._boot_id:
            self._uses = {(use.uid, use.device): use for use in stored.uses}

    def _save(self, now: float) -> None:
        if self._saved is not None and now - self._saved < SAVE_SECONDS:
            return
        self._saved = now
        self._file.write(msgspec.json.encode(Stored(1, self._boot_id, self._wall(), list(self.uses()))))


def tell_metrics(metrics: Metrics, uses: Sequence[Use]) -> None:
    """The series of the devices that are held now, and of no others."""
    metrics.set("gpudra_claims_idle", len({use.uid for use in uses if use.idle}))
    metrics.replace(
        "gpudra_claim_idle_seconds",
        {(use.namespace, use.claim, use.device): use.seconds for use in uses},
    )


def read_book(path: Path) -> Stored | None:
    """The stored book; None where there is none that can be read."""
    try:
        stored = msgspec.json.decode(statefile.read(path, _MAX_BYTES), type=Stored)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        log.warning("%s cannot be used: %s", path, error)
        return None
    return stored if stored.version == 1 else None


def _read(use: Use, reading: GpuHealth, instance: int | None, now: float, *, whole: bool) -> None:
    """Take one reading of its GPU into a device's account."""
    kinds = (reading.compute_processes, reading.graphics_processes, reading.mps_processes)
    processes = {one.pid: one for kind in kinds for one in kind or () if whole or one.gpu_instance == instance}
    use.processes = len(processes)
    use.utilization = reading.utilization[0] if whole and reading.utilization is not None else None
    use.memory = reading.memory_used if whole else sum(one.used_memory or 0 for one in processes.values())
    busy = use.utilization > 0 if use.utilization is not None else bool(processes)
    use.seen = now
    if busy:
        use.used, use.ever = now, True
