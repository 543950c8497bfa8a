"""A node whose GPUs can be shared: nvidia-smi and the MPS daemons in memory, with faults that tests set."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from driver.model import NodeInventory
from driver.prepare import DeviceNodes, Preparer
from driver.prepare.sharing.daemons import DaemonSettings
from driver.prepare.sharing.debts import Debts
from driver.prepare.sharing.modes import GpuModes
from driver.prepare.sharing.modestep import ModeStep
from driver.prepare.sharing.mps import MpsStep
from driver.prepare.sharing.process import DaemonError, DaemonFolders
from driver.prepare.sharing.rules import SharingRulesStep
from driver.prepare.sharing.shares import ShareStep
from driver.prepare.sharing.sightings import Sightings
from driver.prepare.sharing.timeslicing import TimeSliceStep
from driver.prepare.steps import Step
from native.commands import CommandError, Deadline
from native.smi import ComputeMode
from tests.unit.prepare.prepare_node import DRIVER, POOL, FakeNode, config, gpu, gpu_config, result

_SHOWN = {
    None: "Default",
    ComputeMode.DEFAULT: "Default",
    ComputeMode.PROHIBITED: "Prohibited",
    ComputeMode.EXCLUSIVE_PROCESS: "Exclusive_Process",
}
SHARES = tuple(f"{index:08x}-0f3a-4b6d-9a6e-0d6f1f0c2a11" for index in range(8))


class FakeSmi:
    """Settings by UUID; every call is counted."""

    def __init__(self) -> None:
        self.slices: dict[str, int] = {}
        self.modes: dict[str, ComputeMode] = {}
        self.calls: list[str] = []
        self.faults: dict[str, CommandError] = {}
        """Name of the call -> what it raises."""
        self.deaf = False
        """Takes a time slice and does not keep it."""
        self.hung: set[str] = set()

    def hangs(self, uuid: str) -> bool:
        return uuid in self.hung

    def set_time_slice(self, uuid: str, level: int, deadline: Deadline) -> None:
        self._called(f"slice {level}", "slice")
        if not self.deaf:
            self.slices[uuid] = level

    def time_slice(self, uuid: str, deadline: Deadline) -> int | None:
        self._called("read slice", "read")
        return self.slices.get(uuid, 0)

    def set_compute_mode(self, uuid: str, mode: ComputeMode, deadline: Deadline) -> None:
        self._called(f"mode {mode}", "mode")
        self.modes[uuid] = mode

    def compute_mode(self, uuid: str, deadline: Deadline) -> ComputeMode:
        self._called("read mode", "read")
        return self.modes.get(uuid, ComputeMode.DEFAULT)

    def _called(self, shown: str, name: str) -> None:
        self.calls.append(shown)
        if name in self.faults:
            raise self.faults[name]


class FakeDaemons:
    """MPS daemons that are only remembered."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.running: dict[str, DaemonSettings] = {}
        self.starts = 0
        self.renewals = 0
        """How often a daemon that ran was replaced."""
        self.fault: DaemonError | None = None

    def folders(self, daemon: str) -> DaemonFolders:
        return DaemonFolders(self.base / daemon)

    def start(self, settings: DaemonSettings, deadline: Deadline) -> None:
        if self.fault is not None:
            raise self.fault
        before = self.running.get(settings.id)
        self.starts += before is None
        self.renewals += before is not None and settings.renewal not in ("", before.renewal)
        self.running[settings.id] = settings

    def runs(self, daemon: str) -> bool:
        return daemon in self.running

    def stop(self, daemon: str, deadline: Deadline) -> None:
        if self.fault is not None:
            raise self.fault
        self.running.pop(daemon, None)


@dataclass
class SharingNode(FakeNode):
    """Eight GPUs, of which all may be shared in four."""

    smi: FakeSmi = field(default_factory=FakeSmi)
    shares: Callable[[str, NodeInventory], int | None] = lambda _device, _inventory: 4
    tells_modes: bool = False
    """Whether NVML tells compute modes with each reading."""
    bindings: dict[str, int] = field(default_factory=dict)
    """PCI address -> what changes when the driver is bound anew."""

    def __post_init__(self) -> None:
        self.daemons = FakeDaemons(self.base / "mps")
        self.sightings = Sightings(self.bindings.get)

    def inventory(self) -> NodeInventory | None:
        found = super().inventory()
        if found is None or not self.tells_modes:
            return found
        gpus = (replace(gpu, compute_mode=_SHOWN[self.smi.modes.get(gpu.uuid or "")]) for gpu in found.gpus)
        return replace(found, gpus=tuple(gpus))

    def reset(self, *indices: int) -> None:
        """GPUs are set to their defaults, as by a reset; nothing else shows it."""
        for index in indices:
            self.smi.modes.pop(uuid(index), None)
            self.smi.slices.pop(uuid(index), None)

    def steps(self) -> Sequence[Step]:
        smi: Any = self.smi
        daemons: Any = self.daemons
        modes = GpuModes(smi, Debts(self.debts, lambda: self.boot))
        return (
            ModeStep(modes),
            ShareStep(self.shares),
            MpsStep(modes, daemons, sightings=self.sightings),
            TimeSliceStep(modes, sightings=self.sightings),
            SharingRulesStep(),
        )

    @property
    def debts(self) -> Path:
        return self.state_dir / "debts.json"

    def start(self, patience: float = 10.0) -> Preparer:
        self.sightings = Sightings(self.bindings.get)
        return Preparer(
            DRIVER,
            POOL,
            self.state_dir,
            self.cdi_dir,
            self.inventory,
            edits=self.edits,
            nodes=DeviceNodes(self.nodes),
            steps=self.steps(),
            boot_id=lambda: self.boot,
            faults=lambda point: self.faults(point),
            patience=patience,
        )


def daemon(node: SharingNode) -> DaemonSettings:
    """The only one that runs."""
    (found,) = node.daemons.running.values()
    return found


def uuid(index: int) -> str:
    return gpu(index).uuid or ""


def slicing(interval: str | None = None, **entry: Any) -> dict[str, Any]:
    """A configuration entry for time slices."""
    sharing: dict[str, Any] = {"strategy": "TimeSlicing"}
    if interval is not None:
        sharing["timeSlicingConfig"] = {"interval": interval}
    return config(gpu_config(sharing=sharing), **entry)


def mps(entry: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """A configuration entry for MPS."""
    return config(gpu_config(sharing={"strategy": "MPS", "mpsConfig": fields}), **(entry or {}))


def share(index: int, number: int, request: str = "gpu", **consumed: str) -> dict[str, Any]:
    """An allocation result for a share of GPU ``index``."""
    return result(index, request, shareID=SHARES[number], consumedCapacity=consumed)
