"""MPS: processes of a claim run on its GPUs at the same time, through a control daemon of the claim's own.

One daemon for the devices of a claim that have the same configuration, as NVIDIA's driver has it. Where a GPU is
published in shares, one for the GPU: it lets one MPS server in (EXCLUSIVE_PROCESS), so all claims on it use that.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from driver.model import NodeInventory
from driver.prepare.cdi import CdiMount, ContainerEdits
from driver.prepare.config import MpsConfig, Strategy
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.effective import sharing_of
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord
from driver.prepare.sharing.daemons import DaemonError, Daemons, DaemonSettings
from driver.prepare.sharing.debts import Setting
from driver.prepare.sharing.limits import pinned_limits
from driver.prepare.sharing.modes import MPS, GpuModes, kept
from driver.prepare.sharing.shares import share_of
from driver.prepare.steps import StepDefaults, Work
from native.commands import CommandError, Deadline
from native.smi import ComputeMode, NotSupportedError

log = logging.getLogger(__name__)

PIPE_IN_CONTAINER: Final = "/tmp/nvidia-mps"  # noqa: S108  where CUDA looks by default
_MULTI_USER_SINCE: Final = (7, 0)
_RECHECK_SECONDS: Final = 600.0
"""How long a compute mode is believed that was read; a GPU that was reset, or its driver loaded anew, has lost it."""
_OPTIONS: Final = ("rw", "nosuid", "nodev", "rbind", "rprivate")


class MpsRecord(msgspec.Struct, frozen=True):
    """What a claim's record says of MPS on one device."""

    daemon: str
    """Id of the daemon that serves it; equal on all devices that it serves."""
    percentage: int | None = None
    """Default active thread percentage of the daemon."""
    pinned_mib: int | None = None
    """Default limit of pinned memory on this device."""
    multi_user: bool = False
    share_percentage: int | None = None
    """What the claim's part of a shared GPU comes to; CUDA keeps to it through the container's environment."""
    share_mib: int | None = None

    def to_data(self) -> dict[str, object]:
        """As it is stored."""
        named = {
            "daemon": self.daemon,
            "activeThreadPercentage": self.percentage,
            "pinnedMiB": self.pinned_mib,
            "multiUser": self.multi_user or None,
            "sharePercentage": self.share_percentage,
            "shareMiB": self.share_mib,
        }
        return {key: value for key, value in named.items() if value is not None}

    def shown(self) -> str:
        """The settings that all users of the daemon have in common."""
        percentage = "all threads" if self.percentage is None else f"{self.percentage} % of the threads"
        memory = "no memory limit" if self.pinned_mib is None else f"{self.pinned_mib} MiB"
        return f"{percentage}, {memory}{', multi-user' if self.multi_user else ''}"


def mps_of(device: DeviceRecord) -> MpsRecord | None:
    """What the record says; None where the device has no MPS."""
    data = device.data.get(MPS)
    if data is None:
        return None
    cursor = Cursor(data, f"{device.device}.data.mps")
    multi_user = cursor.find("multiUser")
    try:
        return MpsRecord(
            cursor.get("daemon").text(),
            _number(cursor, "activeThreadPercentage"),
            _number(cursor, "pinnedMiB"),
            multi_user is not None and multi_user.boolean(),
            _number(cursor, "sharePercentage"),
            _number(cursor, "shareMiB"),
        )
    except DocumentError as error:
        raise ClaimError(f"the record of {device.device} cannot be read: {error}", Reason.STATE_UNAVAILABLE) from error


def daemon_ids(record: ClaimRecord) -> frozenset[str]:
    """The daemons that a claim uses; none of a record that cannot be read."""
    found = set()
    for device in record.devices:
        daemon = device.data.get(MPS, {}).get("daemon")
        if isinstance(daemon, str):
            found.add(daemon)
    return frozenset(found)


class MpsStep(StepDefaults):
    """Starts and ends control daemons, and tells containers where they are.

    Args:
        modes: sets the compute mode; that it is set back is the business of ``ModeStep``, behind the daemons' end.
        daemons: the node's daemons.
        seconds: that one claim may take until its daemons answer.
    """

    name = MPS
    subject = "its MPS control daemon"
    strategies = frozenset({Strategy.MPS})
    do_points = ("s2",)
    undo_points = ("v2",)

    def __init__(self, modes: GpuModes, daemons: Daemons, seconds: float = 10.0) -> None:
        self._modes = modes
        self._daemons = daemons
        self._seconds = seconds
        self._closed: dict[str, float] = {}
        """GPU -> when it was last known to let one server in."""

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
            try:
                self._daemons.start(settings, deadline)
            except DaemonError as error:
                raise ClaimError(
                    f"MPS on {', '.join(device.device for device in devices)}: {error}", Reason.DEVICE_NOT_READY
                ) from error

    def is_done(self, work: Work) -> bool:
        """Whether every daemon runs and is watched, and its GPUs let nobody else in, as far as they tell."""
        deadline = Deadline(self._seconds)
        return all(
            self._daemons.runs(settings.id)
            and all(device.partition is not None or self._is_closed(device.uuid, deadline) for device in devices)
            for settings, devices in _daemons(work.record)
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
            self._closed[device.uuid] = math.inf  # and will not be asked again
            return
        except CommandError as error:
            raise ClaimError(
                f"the compute mode of {device.device} cannot be set for MPS: {error}", Reason.DEVICE_NOT_READY
            ) from error
        self._closed[device.uuid] = time.monotonic()

    def _is_closed(self, uuid: str, deadline: Deadline) -> bool:
        seen = self._closed.get(uuid)
        if seen is not None and time.monotonic() - seen < _RECHECK_SECONDS:
            return True
        try:
            mode = self._modes.read(uuid, Setting.COMPUTE_MODE, deadline)
        except CommandError as error:
            raise _unreadable(uuid, error) from error
        if mode not in (None, ComputeMode.EXCLUSIVE_PROCESS):
            return False
        self._closed[uuid] = time.monotonic()
        return True


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


def _number(cursor: Cursor, key: str) -> int | None:
    found = cursor.find(key)
    return None if found is None else found.integer()
