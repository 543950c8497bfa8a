"""GPUs that have fallen ill stay in view: published as they were, with a taint, instead of vanishing.

A device that is withdrawn while a claim holds it gives its counters and its name away, and an autoscaler sees a
smaller node. So a GPU that was READY and cannot be read any more is shown with what was read of it last; one that has
left the bus as well, for as long as a claim holds it and some time beyond.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from driver import statefile
from driver.health.lacking import completed, held_back, lacking
from driver.model import Gpu, GpuState, NodeInventory, PciAddress

log = logging.getLogger(__name__)

ALBUM = "node.json"
_MAX_BYTES = 16 * 1024 * 1024
_GROUPING = frozenset({"nvlinks", "fabric"})
KEEP_SECONDS = 600.0
"""For which a GPU that has left the bus is shown although no claim holds it."""


class Remembered:
    """Not safe for threads.

    Args:
        held: whether a claim holds the GPU.
    """

    def __init__(self, held: Callable[[Gpu], bool], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._held = held
        self._clock = clock
        self._well: dict[PciAddress, Gpu] = {}
        self._gone_since: dict[PciAddress, float] = {}
        self._incomplete_since: dict[PciAddress, float] = {}
        self._waiting: dict[PciAddress, Gpu] = {}
        """GPUs that are held back, with what is known of them."""
        self._whole: NodeInventory | None = None
        self._versions: tuple[str | None, tuple[int, int] | None] = (None, None)

    @property
    def whole(self) -> NodeInventory | None:
        """The newest reading in which every GPU was well."""
        return self._whole

    def go_on(self, whole: NodeInventory) -> None:
        """Take up what an earlier agent saw in this boot."""
        self._whole = whole
        self._versions = whole.driver_version, whole.cuda_driver_version
        self._well = {gpu.address: gpu for gpu in whole.gpus}

    def view(self, inventory: NodeInventory) -> NodeInventory:
        """The inventory with its sick and vanished GPUs as they were when they were well."""
        inventory = self._versioned(inventory)
        present = {gpu.address for gpu in inventory.gpus}
        self._incomplete_since = {at: since for at, since in self._incomplete_since.items() if at in present}
        self._waiting.clear()
        shown = tuple(self._shown(gpu) for gpu in inventory.gpus)
        missing = [gpu for address, gpu in list(self._well.items()) if address not in present]
        if inventory.gpus_known:  # otherwise nobody knows which of them are gone
            missing = [gpu for gpu in missing if self._is_kept(gpu)]
        if not missing and all(map(_is_told, inventory.gpus, shown)):
            self._whole = inventory if shown == inventory.gpus else replace(inventory, gpus=shown)
            return self._whole
        gpus = tuple(sorted((*shown, *missing), key=lambda gpu: gpu.address))
        return self._in_groups(replace(inventory, gpus=gpus))

    def _versioned(self, inventory: NodeInventory) -> NodeInventory:
        """With the driver's versions as they were told last: a key that is on no device stops pods on all nodes."""
        if any(gpu.state is GpuState.READY for gpu in inventory.gpus):
            told = inventory.driver_version, inventory.cuda_driver_version
            driver, cuda = told[0] or self._versions[0], told[1] or self._versions[1]
            self._versions = driver, cuda
            if (driver, cuda) != told:
                return replace(inventory, driver_version=driver, cuda_driver_version=cuda)
        return inventory

    def overdue(self) -> bool:
        """Whether a GPU was held back that would not be any more."""
        return any(not lacking(gpu, self._waited(address)) for address, gpu in self._waiting.items())

    def _waited(self, address: PciAddress) -> float:
        return self._clock() - self._incomplete_since.setdefault(address, self._clock())

    def _shown(self, gpu: Gpu) -> Gpu:
        address = gpu.address
        self._gone_since.pop(address, None)
        if gpu.state is GpuState.UNBOUND:  # somebody took it away on purpose
            self._well.pop(address, None)
        if gpu.state is not GpuState.READY:
            return self._well.get(address, gpu)
        whole = completed(gpu, self._well.get(address))
        if not whole.unread:
            self._incomplete_since.pop(address, None)
        elif fields := lacking(whole, self._waited(address)):
            self._well.pop(address, None)
            self._waiting[address] = whole
            return held_back(whole, fields)
        self._well[address] = whole
        return whole

    def vanished(self) -> frozenset[str]:
        """Names of the shown GPUs that are not on the bus."""
        return frozenset(self._well[address].name for address in self._gone_since)

    def _is_kept(self, gpu: Gpu) -> bool:
        since = self._gone_since.setdefault(gpu.address, self._clock())
        if self._held(gpu) or self._clock() - since < KEEP_SECONDS:
            return True
        del self._gone_since[gpu.address], self._well[gpu.address]
        return False

    def _in_groups(self, inventory: NodeInventory) -> NodeInventory:
        """The groups of NVLink as they were when all GPUs were well: without a sick member they would be renumbered,
        and all the others' attributes with them."""
        whole = self._whole
        if whole is None or {gpu.address for gpu in whole.gpus} != {gpu.address for gpu in inventory.gpus}:
            return inventory
        groups = {gpu.address: gpu.nvlink_group for gpu in whole.gpus}
        gpus = tuple(replace(gpu, nvlink_group=groups[gpu.address]) for gpu in inventory.gpus)
        return replace(inventory, gpus=gpus, nvlink_groups=whole.nvlink_groups)


def _is_told(gpu: Gpu, shown: Gpu) -> bool:
    """Whether a reading tells of a GPU all that is shown, as far as others are concerned: the groups of NVLink are made
    of what all of them tell."""
    told_before = set(gpu.unread) - set(shown.unread)
    return shown.state is gpu.state is GpuState.READY and gpu.partitions_known and not told_before & _GROUPING


def _theirs(gpu: Gpu) -> tuple[str | None, ...]:
    """The partitions that this driver did not make."""
    return tuple(one.uuid for one in gpu.partitions if not one.managed)


class Album:
    """The newest reading in which every GPU was well, in a file: so that a restart of the agent withdraws no sick GPU.

    A file that cannot be used costs just that.

    Args:
        folder: the agent's own.
        boot_id: of the running system; readings of other boots are not taken up.
    """

    def __init__(self, folder: Path, boot_id: str | None) -> None:
        self._path = folder / ALBUM
        self._file = statefile.HelpfulFile(self._path, "A restart would withdraw GPUs that are sick then")
        self._boot_id = boot_id
        self._kept: object = None

    def load(self) -> NodeInventory | None:
        """What was kept in this boot."""
        try:
            stored = msgspec.json.decode(statefile.read(self._path, _MAX_BYTES), type=_Stored)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            log.warning("%s cannot be used: %s; GPUs that are sick now are not shown as they were", self._path, error)
            return None
        return stored.node if stored.boot is not None and stored.boot == self._boot_id else None

    def keep(self, node: NodeInventory) -> None:
        """Write it, if GPUs, what others made on them, or the driver are others than at the last time."""
        essence = node.driver_version, tuple((gpu.address, gpu.uuid, gpu.mig, _theirs(gpu)) for gpu in node.gpus)
        if essence == self._kept:
            return
        if self._file.write(msgspec.json.encode(_Stored(self._boot_id, node))):
            self._kept = essence


class _Stored(msgspec.Struct):
    boot: str | None
    node: NodeInventory
