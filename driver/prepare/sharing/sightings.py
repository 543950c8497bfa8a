"""What shows that a GPU may have lost what it was set to, or what ran on it, without a call to it.

A reset, a reload of the driver, a GPU that falls off the bus and comes back: compute mode and time slice are at their
defaults again, and programs that had the GPU open have lost it. NVML tells none of it afterwards, so what readings of
the node show on the way is counted, and whoever remembers a setting remembers the count with it.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from driver.model import GpuState, NodeInventory


class Sighting(msgspec.Struct, frozen=True):
    """Equal to an earlier one of the same GPU where nothing has happened to it meanwhile."""

    losses: int
    """How often it was taken from whatever ran on it."""
    doubts: int
    """How often it, or the driver, was not to be seen; what it is set to may be another thing since."""


class Sightings:
    """Counts what happens to GPUs. Safe to use from several threads.

    Args:
        binding: PCI address -> what is another thing once the driver was bound to the GPU anew; None: not known.
    """

    def __init__(self, binding: Callable[[str], object] = lambda _address: None) -> None:
        self._binding = binding
        self._lock = threading.Lock()
        self._states: dict[str, GpuState] = {}
        self._bindings: dict[str, object] = {}
        self._losses: Counter[str] = Counter()
        self._doubts: Counter[str] = Counter()
        self._version: str | None = None
        self._upgrades = 0
        self._interruptions = 0

    def look(self, inventory: NodeInventory) -> None:
        """Take note of a reading of the node; of the same one again it costs nothing.

        A GPU that is gone from the bus is lost; one that does not answer in time, or not with what is needed, is not,
        and programs on it may run on.
        """
        found = {str(gpu.address): gpu.state for gpu in inventory.gpus}
        with self._lock:
            if inventory.gpus_known:
                found.update(dict.fromkeys(self._states.keys() - found.keys(), GpuState.LOST))
            for address, state in found.items():
                if state is not self._states.get(address, GpuState.READY):
                    self._losses[address] += state is GpuState.LOST
                    self._doubts[address] += state is not GpuState.READY
            self._states = found
            if inventory.driver_version is not None:
                self._upgrades += self._version not in (None, inventory.driver_version)
                self._version = inventory.driver_version

    def interrupted(self) -> None:
        """The driver could not be asked, or this process has let go of it: whatever is remembered of GPUs is doubtful
        (a GPU that nobody holds open may forget what it was set to)."""
        with self._lock:
            self._interruptions += 1

    def rest(self, timeout: float) -> bool:
        """NVML is initialised anew, and lets go of all GPUs meanwhile: as a companion of its session."""
        self.interrupted()
        return True

    def go_on(self) -> None:
        """Nothing: it holds nothing open."""

    def of(self, address: str) -> Sighting:
        """The GPU at a PCI address as it is now. Costs one look at a link of sysfs."""
        bound = self._binding(address)
        with self._lock:
            if bound is not None:
                self._losses[address] += self._bindings.get(address, bound) != bound
                self._bindings[address] = bound
            losses = self._losses[address] + self._upgrades
            return Sighting(losses, losses + self._doubts[address] + self._interruptions)


def driver_link(sys_root: Path) -> Callable[[str], object]:
    """The ``binding`` of a machine: the kernel makes a device's link to its driver anew, under a number of its own,
    each time that it binds one: after a reload of the module, a hot plug or a virtual machine that gave it back.

    Args:
        sys_root: where its sysfs is.
    """

    folder = f"{sys_root}/bus/pci/devices"

    def of(address: str) -> object:
        try:
            return os.lstat(f"{folder}/{address}/driver").st_ino
        except OSError:  # no driver is bound now, or there is no such tree (WSL)
            return None

    return of
