"""What the settings make of the node's GPUs: which are offered, in how many shares, and how claims may share them.

Wires the filters of ``driver.inventory`` and the steps of ``driver.prepare.sharing`` to this machine.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from driver.model import Gpu, GpuState, NodeInventory, Passthrough, PciAddress, Problem
from driver.names import DeviceName
from driver.prepare.config import Strategy
from driver.prepare.effective import sharing_of
from driver.prepare.sharing import DEBTS_FILE
from driver.prepare.sharing.lazy import LazyStep
from driver.prepare.sharing.sightings import Sightings, driver_link
from driver.settings import Settings, listed

if TYPE_CHECKING:
    from driver.inventory.filters import Policy, Usage
    from driver.prepare import ClaimRecord
    from driver.prepare.config import DeviceConfig
    from driver.prepare.sharing.daemons import Daemons
    from driver.prepare.sharing.modes import GpuModes
    from driver.prepare.sharing.mps import MpsStep
    from driver.prepare.steps import Step
    from native.commands import DriverPrograms

log = logging.getLogger(__name__)

VFIO_SUFFIX = "-vfio"
"""Of the names of devices for passthrough."""


class Offering:
    """The settings about what is offered, applied.

    Args:
        settings: of the agent.
        inventory: the last reading of the node.
        release: makes this process let go of the GPUs for a moment: what holds one keeps it from being handed over.
    """

    def __init__(
        self, settings: Settings, inventory: Callable[[], NodeInventory | None], release: Callable[[], None]
    ) -> None:
        self._settings = settings
        self._debts = settings.state_dir / DEBTS_FILE
        self._inventory = inventory
        self._release = release
        self._sightings = Sightings(driver_link(Path(settings.sys_root)))
        self._policy: Policy | None = None
        self._said: frozenset[Problem] = frozenset()
        self._boot_id: str | None = None
        self._making = threading.Lock()
        self._modes: GpuModes | None = None
        self._mps = self._lazy_mps()
        self._restarts = 0

    def first_steps(self, boot_id: str | None) -> tuple[Step, ...]:
        """The steps that come before anything of a GPU is changed.

        Args:
            boot_id: of the running system; None: unknown.
        """
        self._boot_id = boot_id
        modes = LazyStep(
            self._make_mode_step,
            lambda device, _config: "mps" in device.data or "timeSlice" in device.data or self._owes(),
            name="modes",
            subject="what its GPUs were set to before",
            do_points=("s5",),
            undo_points=("v5",),
            left=self._owes,
        )
        return (modes,)

    def steps(self) -> tuple[Step, ...]:
        """The steps of claims that share devices. A way of sharing that is turned off cannot be asked for; what claims
        have of it from before is undone."""
        settings = self._settings
        shares = LazyStep(
            self._make_shares,
            lambda device, _config: device.share_id is not None,
            name="share",
            subject="its shares",
            do_points=("s0",),
            undo_points=("v0",),
        )
        slices = LazyStep(
            self._make_slices,
            lambda device, config: "timeSlice" in device.data or _asks(config, Strategy.TIME_SLICING),
            name="timeSlice",
            subject="the time slice of its GPUs",
            do_points=("s1",),
            undo_points=("v1",),
            strategies=self._served(Strategy.TIME_SLICING),
            left=lambda: slices.made is not None,
        )
        rules = LazyStep(
            self._make_rules,
            lambda device, _config: device.share_id is not None,
            name="sharingRules",
            subject="what it shares",
            do_points=("s3",),
            undo_points=("v3",),
        )
        vfio = LazyStep(
            self._make_passthrough,
            lambda device, _config: device.device.endswith(VFIO_SUFFIX),
            name="vfio",
            subject="the driver of its GPUs",
            do_points=("s4",),
            undo_points=("v4",),
            kinds=frozenset({"vfio"} if settings.passthrough_devices else ()),
        )
        return (shares, self._mps, slices, rules, vfio)

    def _lazy_mps(self) -> LazyStep[MpsStep]:
        return LazyStep(
            self._make_mps,
            lambda device, config: "mps" in device.data or _asks(config, Strategy.MPS),
            name="mps",
            subject="its MPS control daemon",
            do_points=("s2",),
            undo_points=("v2",),
            strategies=self._served(Strategy.MPS),
            left=lambda: self._mps.made is not None,
        )

    def _served(self, strategy: Strategy) -> frozenset[str]:
        return frozenset({strategy.value} & set(listed(self._settings.sharing)))

    def _make_shares(self) -> Step:
        from driver.prepare.sharing.shares import ShareStep

        return ShareStep(self.share_count)

    def _owes(self) -> bool:
        return self._debts.exists()

    def _the_modes(self) -> GpuModes:
        """One for all steps: they have the same file."""
        with self._making:
            if self._modes is None:
                from driver.prepare.sharing.debts import Debts
                from driver.prepare.sharing.modes import GpuModes
                from native.smi import NvidiaSmi

                self._modes = GpuModes(NvidiaSmi(self._programs()), Debts(self._debts, lambda: self._boot_id))
            return self._modes

    def _make_mode_step(self) -> Step:
        from driver.prepare.sharing.modestep import ModeStep

        return ModeStep(self._the_modes(), self._settings.sharing_seconds)

    def _make_mps(self) -> MpsStep:
        from driver.prepare.sharing.mps import MpsStep

        daemons = self._make_daemons(self._programs())
        return MpsStep(self._the_modes(), daemons, self._settings.sharing_seconds, self._sightings)

    def _make_daemons(self, programs: DriverPrograms) -> Daemons:
        if self._settings.mps_daemons == "pod":
            from driver.prepare.sharing.kept import KeptDaemons

            return KeptDaemons(self._mps_folder, self._driver_version)
        from driver.prepare.sharing.daemons import MpsDaemons

        # A mock node that may not make device nodes may not make mounts either; it has no CUDA anyway.
        return MpsDaemons(programs, self._mps_folder, private_shm=not self._settings.plain_device_nodes)

    def _make_slices(self) -> Step:
        from driver.prepare.sharing.timeslicing import TimeSliceStep

        return TimeSliceStep(self._the_modes(), self._settings.sharing_seconds, self._sightings)

    def _make_rules(self) -> Step:
        from driver.prepare.sharing.rules import SharingRulesStep

        return SharingRulesStep()

    def _make_passthrough(self) -> Step:
        from driver.prepare.sharing.passthrough import VfioStep
        from native.holders import holders
        from native.vfio import VfioBus

        settings = self._settings
        return VfioStep(
            VfioBus(Path(settings.sys_root), settings.dev_path),
            lambda nodes: [str(holder) for holder in holders(Path(settings.proc_root), nodes)],
            self._let_go,
            offered=bool(settings.passthrough_devices),
            host_root=str(settings.host_dev_path.parent),
        )

    def _let_go(self) -> None:
        self._release()
        self._sightings.interrupted()

    @property
    def sightings(self) -> Sightings:
        """What happens to GPUs, as far as what they are set to depends on it."""
        return self._sightings

    def _programs(self) -> DriverPrograms:
        from native.commands import DriverPrograms

        settings = self._settings
        return DriverPrograms(Path(settings.driver_root), settings.state_dir / "libraries", self._driver_version)

    def offered(self, inventory: NodeInventory, records: Collection[ClaimRecord]) -> NodeInventory:
        """The inventory with the GPUs that are offered; says why the others are not, once.

        Args:
            inventory: the whole node.
            records: the claims: their processes are no processes of the host.
        """
        if not self._has_policy() and not any(_is_virtual(record) for record in records):
            return inventory
        from driver.inventory.filters import offered

        policy = self._the_policy()
        inventory = self._passed_through(inventory, records)
        usage = self._usage(inventory, records) if policy.withhold_displays or policy.withhold_held else {}
        done = offered(inventory, policy, usage)
        for problem in done.withheld:
            if problem not in self._said:
                log.info("not offered: %s: %s", problem.subject, problem.message)
        self._said = frozenset(done.withheld)
        return done.inventory

    def _passed_through(self, inventory: NodeInventory, records: Collection[ClaimRecord]) -> NodeInventory:
        """Marks the GPUs that virtual machines have: NVML, and with it most selectors, knows nothing of them now."""
        from driver.prepare.sharing.passthrough import vfio_of

        bound = {d.address: vfio_of(d) for record in records for d in record.devices if d.device.endswith(VFIO_SUFFIX)}
        if not bound and not self._settings.passthrough_devices:
            return inventory
        iommufd = (self._settings.dev_path / "iommu").exists()
        gpus = []
        for index, gpu in enumerate(inventory.gpus):
            vfio = bound.get(str(gpu.address))
            if vfio is not None:
                gpu = replace(gpu, passthrough=Passthrough(vfio.product_name, iommufd))  # noqa: PLW2901  the same GPU
            elif self._the_policy().is_passed_through(gpu, index):
                gpu = replace(gpu, passthrough=Passthrough(gpu.product_name, iommufd))  # noqa: PLW2901  the same GPU
            gpus.append(gpu)
        return replace(inventory, gpus=tuple(gpus))

    def share_count(self, device: str, inventory: NodeInventory) -> int | None:
        """In how many shares the GPU of that device name is offered."""
        name = DeviceName.parse(device)
        for index, gpu in enumerate(inventory.gpus):
            if name is not None and gpu.address == name.address:
                return self._the_policy().share_count(gpu, index)
        return None

    def resume(self, records: Collection[ClaimRecord]) -> None:
        """Start the MPS daemons of prepared claims that ended with an earlier agent, in the background."""
        if any(self._mps.concerns(record) for record in records):
            step = self._mps.step()
            threading.Thread(target=step.resume, args=(records,), name="mps-resume", daemon=True).start()

    def recovered(self, records: Callable[[], Collection[ClaimRecord]]) -> None:
        """End what belongs to no claim any more.

        Args:
            records: gives all claims as they are now.
        """
        if self._mps_folder.is_dir():
            for daemon in self._mps.step().end_orphans(records):
                log.info("ended MPS control daemon %s, which belonged to no claim", daemon)

    def new_restarts(self) -> int:
        """How often an MPS daemon was started again since this was asked last."""
        total = 0 if self._mps.made is None else self._mps.made.restarts
        new, self._restarts = total - self._restarts, total
        return new

    def close(self) -> None:
        """Start no MPS daemon again; what a pod's end leaves of them is the next agent's."""
        if self._mps.made is not None:
            self._mps.made.detach()

    @property
    def _mps_folder(self) -> Path:
        """Ours alone: what is in it and belongs to no claim of ours is removed."""
        return Path(self._settings.mps_dir) / self._settings.driver_name

    def _has_policy(self) -> bool:
        settings = self._settings
        return bool(
            settings.allow_devices
            or settings.deny_devices
            or settings.passthrough_devices
            or settings.shares
            or "withhold" in (settings.display_gpus, settings.held_gpus)
        )

    def _driver_version(self) -> str | None:
        inventory = self._inventory()
        return None if inventory is None else inventory.driver_version

    def _the_policy(self) -> Policy:
        if self._policy is None:
            from driver.inventory.filters import Policy, parse_selectors, parse_shares

            settings = self._settings
            self._policy = Policy(
                parse_selectors(settings.allow_devices),
                parse_selectors(settings.deny_devices),
                settings.display_gpus == "withhold",
                settings.held_gpus == "withhold",
                parse_shares(settings.shares),
                parse_selectors(settings.passthrough_devices),
            )
        return self._policy

    def _usage(self, inventory: NodeInventory, records: Collection[ClaimRecord]) -> Mapping[PciAddress, Usage]:
        from driver.inventory.filters import Usage
        from native.holders import WATCHERS, connected_display, holders

        settings = self._settings
        claimed = {device.address for record in records for device in record.devices}
        nodes = {
            f"/dev/nvidia{gpu.minor}": gpu
            for gpu in inventory.gpus
            if gpu.minor is not None and gpu.state is GpuState.READY and str(gpu.address) not in claimed
        }
        found: dict[PciAddress, list[str]] = {}
        for holder in holders(Path(settings.proc_root), nodes) if settings.held_gpus == "withhold" else ():
            if holder.name not in WATCHERS:
                found.setdefault(nodes[holder.path].address, []).append(str(holder))

        def of(gpu: Gpu) -> Usage:
            display = connected_display(Path(settings.sys_root), gpu.drm_nodes)
            return Usage(display, tuple(found.get(gpu.address, ())))

        return {gpu.address: of(gpu) for gpu in inventory.gpus}


def _asks(config: DeviceConfig | None, strategy: Strategy) -> bool:
    sharing = None if config is None else sharing_of(config)
    return sharing is not None and sharing.strategy is strategy


def _is_virtual(record: ClaimRecord) -> bool:
    return any(device.device.endswith(VFIO_SUFFIX) for device in record.devices)
