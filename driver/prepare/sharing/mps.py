"""MPS: processes of a claim run on its GPUs at the same time, through a control daemon of the claim's own.

One daemon for the devices of a claim that have the same configuration, as NVIDIA's driver has it. Where a GPU is
published in shares, one for the GPU: it lets one MPS server in (EXCLUSIVE_PROCESS), so all claims on it use that.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from driver.model import NodeInventory, Problem
from driver.prepare.cdi import CdiMount, ContainerEdits
from driver.prepare.config import MpsConfig, Strategy
from driver.prepare.effective import sharing_of
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.daemons import DaemonError, Daemons, DaemonSettings
from driver.prepare.sharing.debts import Setting
from driver.prepare.sharing.limits import pinned_limits
from driver.prepare.sharing.modes import MPS, GpuModes, kept
from driver.prepare.sharing.mpsrecord import MpsRecord, daemon_ids, mps_of
from driver.prepare.sharing.shares import share_of
from driver.prepare.sharing.sightings import Sighting, Sightings
from driver.prepare.steps import Lock, StepDefaults, Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NotSupportedError

log = logging.getLogger(__name__)

PIPE_IN_CONTAINER: Final = "/tmp/nvidia-mps"  # noqa: S108  where CUDA looks by default
_MULTI_USER_SINCE: Final = (7, 0)
_RECHECK_SECONDS: Final = 600.0
"""How long a compute mode is believed that was read, where NVML does not tell it with each reading of the node and
nothing is seen to happen to the GPU."""
_DONE: Final = "mps done"
_OPTIONS: Final = ("rw", "nosuid", "nodev", "rbind", "rprivate")


class MpsStep(StepDefaults):
    """Starts and ends control daemons, and tells containers where they are.

    Args:
        modes: sets the compute mode; that it is set back is the business of ``ModeStep``, behind the daemons' end.
        daemons: the node's daemons.
        seconds: that one claim may take until its daemons answer.
        sightings: what happens to GPUs; one for all steps.
    """

    name = MPS
    subject = "its MPS control daemon"
    strategies = frozenset({Strategy.MPS})
    do_points = ("s2",)
    undo_points = ("v2",)

    def __init__(
        self, modes: GpuModes, daemons: Daemons, seconds: float = 10.0, sightings: Sightings | None = None
    ) -> None:
        self._modes = modes
        self._daemons = daemons
        self._seconds = seconds
        self._sightings = sightings or Sightings()
        self._closed: dict[str, tuple[float, Sighting]] = {}
        """GPU -> when it was last known to let one server in, and what had happened to it by then."""
        self._began: dict[tuple[str, str], int] = {}
        """(daemon, PCI address of a GPU of it) -> the losses of that GPU before the daemon began."""

    def check(self, work: Work) -> None:
        """Compute every limit, and put it into the record, with the compute mode that the GPUs have."""
        for group in _groups(work):
            made = _planned(work, *group)
            work.record = work.record.with_devices(
                tuple(
                    _with_plan(device, made[device.cdi_device]) if device.cdi_device in made else device
                    for device in work.record.devices
                )
            )
        deadline = Deadline(self._seconds)
        for device in _closed_gpus(work.record):
            try:
                self._modes.look(work, device, MPS, Setting.COMPUTE_MODE, deadline)
            except CommandError as error:
                raise _unreadable(device.uuid, error) from error

    def do(self, work: Work) -> None:
        """Set the compute mode, start the daemons, wait until they answer."""
        deadline = Deadline(self._seconds)
        for settings, devices in _daemons(work.record):
            for device in devices:
                if device.partition is None:
                    self._exclude(work, device, deadline)
            losses = {device.address: self._sightings.of(device.address).losses for device in devices}
            if self._is_outlived(settings.id, losses) and self._daemons.runs(settings.id):
                settings = msgspec.structs.replace(settings, renewal=secrets.token_hex(4))  # noqa: PLW2901  the same
            try:
                self._daemons.start(settings, deadline)
            except DaemonError as error:
                raise ClaimError(
                    f"MPS on {', '.join(device.device for device in devices)}: {error}", Reason.DEVICE_NOT_READY
                ) from error
            self._began.update({(settings.id, address): count for address, count in losses.items()})
        work.seen[_DONE] = True

    def is_done(self, work: Work) -> bool:
        """Whether every daemon runs and is watched, its GPUs were not lost meanwhile, and let nobody else in, as far as
        they tell."""
        deadline = Deadline(self._seconds)
        found = _daemons(work.record)
        if not all(self._daemons.runs(settings.id) for settings, _ in found):
            return False
        if _DONE in work.seen:  # a moment ago; the reading of the node is from before it
            return True
        self._sightings.look(work.inventory)
        return all(
            not self._is_outlived(settings.id, {one.address: self._sightings.of(one.address).losses for one in devices})
            and all(device.partition is not None or self._is_closed(work, device, deadline) for device in devices)
            for settings, devices in found
        )

    def undo(self, record: ClaimRecord, others: Sequence[ClaimRecord]) -> None:
        """End the daemons that no other claim uses."""
        deadline = Deadline(self._seconds)
        still = {settings.id for other in others for settings, _ in _daemons(other)}
        for settings, devices in _daemons(record):
            if settings.id in still:
                continue
            try:
                self._daemons.stop(settings.id, deadline)
            except DaemonError as error:
                raise ClaimError(f"MPS of claim {record.ref}: {error}", Reason.DEVICE_NOT_READY) from error
            for device in devices:
                self._closed.pop(device.uuid, None)
                self._began.pop((settings.id, device.address), None)

    def sweep(
        self, records: Callable[[], Collection[ClaimRecord]], inventory: NodeInventory, lock: Lock
    ) -> Iterable[Problem]:
        """Take note of GPUs that are away: their claims can be made right only when they are back."""
        self._sightings.look(inventory)
        return ()

    def serves(self, record: ClaimRecord) -> bool:
        """Whether the claim's daemons run: a container that starts without them would find its GPU closed."""
        return all(self._daemons.runs(daemon) for daemon in daemon_ids(record))

    def resume(self, records: Iterable[ClaimRecord]) -> None:
        """Start the daemons of prepared claims again, as far as they do not run: those of an agent's pod end with it.

        To be called at start, before anything is known of the node; never raises. What fails is tried again with the
        first reading of the node.
        """
        for record in records:
            for settings, _ in _daemons(record) if record.trusted else ():
                try:
                    self._daemons.start(settings, Deadline(self._seconds))
                except DaemonError as error:
                    log.warning("the MPS control daemon of claim %s does not start yet: %s", record.ref, error)

    def end_orphans(self, records: Callable[[], Iterable[ClaimRecord]]) -> tuple[str, ...]:
        """End the daemons, and remove the folders, that no claim has; gives their ids.

        Args:
            records: gives all claims as they are when it is called.
        """
        return self._daemons.sweep(lambda: frozenset(daemon for record in records() for daemon in daemon_ids(record)))

    @property
    def restarts(self) -> int:
        """How often a daemon that had ended was started again since this agent began to need one."""
        return self._daemons.restarts

    def detach(self) -> None:
        """Start no daemon again from now on."""
        self._daemons.detach()

    def is_undone(self, record: ClaimRecord) -> bool:
        """Always: each end was waited for, and which daemons had to end only ``undo`` knows."""
        return True

    def edits(self, record: ClaimRecord, inventory: NodeInventory) -> Mapping[str, ContainerEdits]:
        """The daemon's sockets and shared memory, and the limits of a share."""
        return {device.cdi_device: self._edits(mps) for device, mps in _with_mps(record)}

    def _edits(self, mps: MpsRecord) -> ContainerEdits:
        folders = self._daemons.folders(mps.daemon)
        env = [f"CUDA_MPS_PIPE_DIRECTORY={PIPE_IN_CONTAINER}"]
        if mps.share_percentage is not None:
            env.append(f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE={mps.share_percentage}")
        if mps.share_mib is not None:
            env.append(f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={mps.share_mib}M")
        return ContainerEdits(
            env=tuple(env),
            mounts=(
                CdiMount(str(folders.pipe), PIPE_IN_CONTAINER, _OPTIONS),
                CdiMount(str(folders.shm), "/dev/shm", _OPTIONS),  # noqa: S108  clients and server meet there
            ),
        )

    def _exclude(self, work: Work, device: DeviceRecord, deadline: Deadline) -> None:
        try:
            wanted = ComputeMode.EXCLUSIVE_PROCESS.value
            self._modes.change(work, device, MPS, Setting.COMPUTE_MODE, wanted, deadline)
        except NotSupportedError as error:
            log.warning("GPU %s keeps its compute mode, so processes outside of MPS can use it: %s", device.uuid, error)
            self._closed[device.uuid] = math.inf, self._sightings.of(device.address)  # and will not be asked again
            return
        except CommandError as error:
            raise ClaimError(
                f"the compute mode of {device.device} cannot be set for MPS: {error}", Reason.DEVICE_NOT_READY
            ) from error
        self._closed[device.uuid] = time.monotonic(), self._sightings.of(device.address)

    def _is_outlived(self, daemon: str, losses: Mapping[str, int]) -> bool:
        """Whether a daemon began before one of its GPUs was lost: its servers have that GPU no more, and none begins
        anew as long as they are there."""
        return any(self._began.get((daemon, address), 0) != count for address, count in losses.items())

    def _is_closed(self, work: Work, device: DeviceRecord, deadline: Deadline) -> bool:
        """Whether a GPU lets one server in. NVML tells with each reading, which costs nothing; nvidia-smi is asked only
        where that says otherwise, for the reading may be older than what was set, or says nothing for long."""
        uuid, now = device.uuid, self._sightings.of(device.address)
        at, then = self._closed.get(uuid, (-math.inf, None))
        if at == math.inf:
            return True
        told = _told_mode(work.inventory, device.address)
        if told == ComputeMode.EXCLUSIVE_PROCESS:
            self._closed[uuid] = time.monotonic(), now
            return True
        if told is None and then == now and time.monotonic() - at < _RECHECK_SECONDS:
            return True
        try:
            mode = self._modes.read(uuid, Setting.COMPUTE_MODE, deadline)
        except CommandError as error:
            raise _unreadable(uuid, error) from error
        if mode not in (None, ComputeMode.EXCLUSIVE_PROCESS):
            text = "claim %s: GPU %s has compute mode %s, not %s: it was reset, or somebody changed it; it is set again"
            log.warning(text, work.record.ref, uuid, mode, ComputeMode.EXCLUSIVE_PROCESS)
            return False
        self._closed[uuid] = time.monotonic(), now
        return True


def _told_mode(inventory: NodeInventory, address: str) -> str | None:
    """The compute mode of the last reading, in nvidia-smi's spelling; None where it was not told."""
    gpu = inventory.at(address)
    if gpu is None or gpu.compute_mode is None or "compute_mode" in gpu.unread:
        return None
    return gpu.compute_mode.upper()


def _unreadable(uuid: str, error: CommandError) -> ClaimError:
    return ClaimError(f"the compute mode of GPU {uuid} cannot be read: {error}", Reason.DEVICE_NOT_READY)


def _closed_gpus(record: ClaimRecord) -> Iterable[DeviceRecord]:
    """A device of each GPU that is to let one server in; partitions have no modes."""
    return {device.uuid: device for device, _ in _with_mps(record) if device.partition is None}.values()


def _with_plan(device: DeviceRecord, planned: MpsRecord) -> DeviceRecord:
    """The device with what is planned; the mode that its GPU had before stays known."""
    return device.with_data(MPS, {**planned.to_data(), **kept(device.data.get(MPS, {}))})


def _groups(work: Work) -> Iterator[tuple[MpsConfig, list[DeviceRecord]]]:
    """The devices of each MPS configuration of the claim; equal ones are one."""
    groups: dict[MpsConfig, list[DeviceRecord]] = {}
    for device in work.record.devices:
        config = work.configs.get(device.cdi_device)
        sharing = None if config is None else sharing_of(config)
        if sharing is not None and sharing.strategy is Strategy.MPS and not device.admin_access:
            groups.setdefault(sharing.mps or MpsConfig(), []).append(device)
    yield from groups.items()


def _planned(work: Work, config: MpsConfig, devices: Sequence[DeviceRecord]) -> dict[str, MpsRecord]:
    """CDI device -> what its record will say."""
    limits = pinned_limits(config, devices)
    shared = {device.device for device in devices if device.share_id is not None}
    if shared and len({device.device for device in devices}) > 1:
        raise ClaimError(
            f"claim {work.record.ref} asks for MPS on shares of several GPUs ({', '.join(sorted(shared))}): a process "
            "reaches the daemon of one GPU only; ask for whole GPUs, or for one GPU in each claim",
            Reason.UNSUPPORTED_CONFIG,
            permanent=True,
        )
    if config.multi_user:
        _check_multi_user(work, devices)
    names = [devices[0].address] if shared else [work.record.ref.uid, *sorted(d.cdi_device for d in devices)]
    daemon = hashlib.sha256("\n".join(names).encode()).hexdigest()[:12]
    made = {}
    for device in devices:
        share = share_of(device, devices)
        made[device.cdi_device] = MpsRecord(
            daemon,
            config.default_active_thread_percentage or None,  # 0 stands for no limit, as with NVIDIA's driver
            limits.get(device.cdi_device),
            config.multi_user,
            share.percentage if share else None,
            share.memory_mib if share else None,
        )
    return made


def _check_multi_user(work: Work, devices: Iterable[DeviceRecord]) -> None:
    for device in devices:
        gpu = work.inventory.at(device.address)
        capability = gpu.cuda_compute_capability if gpu is not None else None
        if capability is not None and capability < _MULTI_USER_SINCE:
            raise ClaimError(
                f"sharing.mpsConfig.multiUser: {device.device} has compute capability {capability[0]}.{capability[1]}, "
                "one server for several users needs 7.0 or later (Volta): remove multiUser",
                Reason.UNSUPPORTED_CONFIG,
                permanent=True,
            )


def _with_mps(record: ClaimRecord) -> Iterator[tuple[DeviceRecord, MpsRecord]]:
    for device in record.devices:
        mps = mps_of(device)
        if mps is not None:
            yield device, mps


def _daemons(record: ClaimRecord) -> list[tuple[DaemonSettings, list[DeviceRecord]]]:
    """The daemons of a claim, and the devices that each serves, in the order of the allocation."""
    served: dict[str, list[tuple[DeviceRecord, MpsRecord]]] = {}
    for device, mps in _with_mps(record):
        served.setdefault(mps.daemon, []).append((device, mps))
    found = []
    for daemon, pairs in served.items():
        first = pairs[0][1]
        limits = {device.uuid: mps.pinned_mib for device, mps in pairs if mps.pinned_mib is not None}
        uuids = tuple(dict.fromkeys(device.uuid for device, _ in pairs))
        settings = DaemonSettings(
            daemon, uuids, first.percentage, tuple(sorted(limits.items())), first.multi_user, str(record.ref)
        )
        found.append((settings, [device for device, _ in pairs]))
    return found
