"""Hands a PCI function over to a virtual machine: bound to vfio-pci, and given back to the driver it had.

Works through sysfs below a root. Sources: the kernel's ABI (Documentation/ABI/testing/sysfs-bus-pci: driver_override,
unbind, drivers_probe), Documentation/driver-api/vfio.rst (groups, IOMMUFD device nodes).
The kernel may hold a write for as long as somebody uses the device; no call here waits longer than its deadline.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from native.commands import Deadline
from native.pci import canonical_address

VFIO_PCI: Final = "vfio-pci"
_BRIDGE: Final = 0x06
"""Base class of bridges: they stand in groups and need no driver of VFIO's."""
_HARMLESS: Final = frozenset({VFIO_PCI, "pci-stub", "nvgrace-gpu-vfio-pci", "nvidia-vgpu-vfio"})
"""Drivers that leave a group viable."""


class VfioError(Exception):
    """A function cannot be handed over or taken back; the message says why and what would help."""


class Function(msgspec.Struct, frozen=True):
    """One PCI function of a group."""

    address: str
    class_code: int | None
    driver: str | None

    @property
    def slot(self) -> str:
        """Domain, bus and device: functions that share it are one board."""
        return self.address.rpartition(".")[0]

    @property
    def is_bridge(self) -> bool:
        """Whether it is a PCI bridge."""
        return self.class_code is not None and self.class_code >> 16 == _BRIDGE


class Nodes(msgspec.Struct, frozen=True):
    """Which device files open a function to a virtual machine, as paths below /dev."""

    device: str
    """``/dev/vfio/12`` (its group) or ``/dev/vfio/devices/vfio3`` (itself, with IOMMUFD)."""
    api: str
    """``/dev/vfio/vfio`` or ``/dev/iommu``."""


def write_file(path: Path, text: str) -> None:
    """One write to a file that is there, as sysfs wants it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class VfioBus:
    """The PCI functions of a machine, by address. Remembers nothing but the writes that the kernel still holds.

    Args:
        sys_root: sysfs.
        dev_root: folder of the device nodes, to see whether the kernel has IOMMUFD.
        write: writes a sysfs file; may block as long as the kernel wants.
    """

    def __init__(self, sys_root: Path, dev_root: Path, write: Callable[[Path, str], None] = write_file) -> None:
        self._devices = sys_root / "bus/pci/devices"
        self._pci = sys_root / "bus/pci"
        self._groups = sys_root / "kernel/iommu_groups"
        self._dev = dev_root
        self._write = write
        self._held: dict[str, threading.Thread] = {}
        """Address of a function -> a write about it that did not come back in time."""

    def driver(self, address: str) -> str | None:
        """The driver that is bound to a function; None without one, or without the function."""
        return _link_name(self._devices / address / "driver")

    def group(self, address: str) -> int | None:
        """Its IOMMU group; None where the IOMMU is off."""
        name = _link_name(self._devices / address / "iommu_group")
        return int(name) if name is not None and name.isascii() and name.isdigit() else None

    def functions(self, address: str) -> tuple[Function, ...]:
        """All functions of its group, itself included, by address; it alone where there is no group."""
        group = self.group(address)
        names = _names(self._groups / str(group) / "devices") if group is not None else ()
        return tuple(self._function(name) for name in sorted({address, *names}))

    def obstacle(self, address: str) -> str | None:
        """Why it cannot be handed over as things are; None where it can."""
        if not (self._devices / address).exists():
            return f"there is no PCI function {address}"
        if not (self._pci / "drivers" / VFIO_PCI).is_dir():
            return "the kernel module vfio-pci is not loaded: run `modprobe vfio-pci` on the host"
        if self.group(address) is None:
            return "it is in no IOMMU group: turn the IOMMU on (firmware, and intel_iommu=on or amd_iommu=on)"
        functions = self._number(self._devices / address / "sriov_numvfs")
        if functions:
            return f"it has {functions} SR-IOV virtual functions: remove them first (sriov_numvfs)"
        slot = address.rpartition(".")[0]
        for other in self.functions(address):
            if other.slot == slot or other.is_bridge or other.driver is None or other.driver in _HARMLESS:
                continue
            return (
                f"{other.address} in its IOMMU group {self.group(address)} is bound to {other.driver}: a group goes to "
                "a virtual machine as a whole; unbind that device, or enable ACS in the firmware"
            )
        return None

    def board(self, address: str) -> tuple[Function, ...]:
        """The functions of its group that are the same board (audio, USB) and go with it, itself first."""
        slot = address.rpartition(".")[0]
        own = [function for function in self.functions(address) if function.slot == slot and not function.is_bridge]
        return tuple(sorted(own, key=lambda function: (function.address != address, function.address)))

    def bind(self, address: str, deadline: Deadline) -> None:
        """Bind a function to vfio-pci, whatever it is bound to. Done already is success.

        Raises:
            VfioError: the kernel refuses, or does not come back in time. What was changed is for ``restore``.
        """
        self._wait_for_held(address, deadline)
        if self.driver(address) == VFIO_PCI:
            return
        self._set(address, "driver_override", VFIO_PCI, deadline)
        self._unbind(address, deadline)
        self._probe(address, deadline)
        found = self.driver(address)
        if found != VFIO_PCI:
            raise VfioError(f"{address} was to be bound to {VFIO_PCI} and is bound to {found or 'no driver'}")

    def restore(self, address: str, driver: str | None, deadline: Deadline) -> None:
        """Give a function back to the driver that it had (None: to none). Done already, and gone, are success.

        Raises:
            VfioError: as ``bind``.
        """
        if not (self._devices / address).exists():
            return
        self._wait_for_held(address, deadline)
        self._set(address, "driver_override", "\n", deadline)
        if self.driver(address) == driver:
            return
        self._unbind(address, deadline)
        if driver is None:
            return
        self._probe(address, deadline)
        found = self.driver(address)
        if found != driver:
            raise VfioError(
                f"{address} was to go back to {driver} and is bound to {found or 'no driver'}: is the module loaded?"
            )

    def nodes(self, address: str, *, iommufd: bool) -> Nodes:
        """The device files of a bound function.

        Args:
            address: of the function.
            iommufd: whether its own node is preferred, where the kernel has it; else that of its group.

        Raises:
            VfioError: it is in no group.
        """
        if iommufd and (self._dev / "iommu").exists():
            own = sorted(_names(self._devices / address / "vfio-dev"))
            if own:
                return Nodes(f"/dev/vfio/devices/{own[0]}", "/dev/iommu")
        group = self.group(address)
        if group is None:
            raise VfioError(f"{address} is in no IOMMU group")
        return Nodes(f"/dev/vfio/{group}", "/dev/vfio/vfio")

    @property
    def has_iommufd(self) -> bool:
        """Whether the kernel offers IOMMUFD."""
        return (self._dev / "iommu").exists()

    def _function(self, name: str) -> Function:
        address = canonical_address(name)
        return Function(address, self._number(self._devices / name / "class"), self.driver(name))

    def _number(self, path: Path) -> int | None:
        try:
            return int(path.read_text(encoding="ascii").strip(), 0)
        except (OSError, ValueError):
            return None

    def _unbind(self, address: str, deadline: Deadline) -> None:
        if self.driver(address) is not None:
            self._set(address, "driver/unbind", address, deadline)

    def _probe(self, address: str, deadline: Deadline) -> None:
        self._bounded(address, self._pci / "drivers_probe", address, deadline)

    def _set(self, address: str, name: str, text: str, deadline: Deadline) -> None:
        self._bounded(address, self._devices / address / name, text, deadline)

    def _wait_for_held(self, address: str, deadline: Deadline) -> None:
        """What the kernel holds still happens, at any time: nothing about the function is settled before."""
        held = self._held.get(address)
        if held is None:
            return
        held.join(deadline.left)
        if held.is_alive():
            raise VfioError(
                f"the kernel still holds an earlier change of the driver of {address}: something still uses the device "
                "(see the kernel log)"
            )
        self._held.pop(address, None)

    def _bounded(self, address: str, path: Path, text: str, deadline: Deadline) -> None:
        """Write in a thread of its own: a write that the kernel holds is left to it."""
        failures: list[OSError] = []

        def write() -> None:
            try:
                self._write(path, text)
            except OSError as error:
                failures.append(error)

        thread = threading.Thread(target=write, name="vfio-write", daemon=True)
        thread.start()
        thread.join(deadline.left)
        if thread.is_alive():
            self._held[address] = thread
            raise VfioError(
                f"the kernel has not taken {text.strip()!r} for {path} in time: something still uses the device (see "
                "the kernel log)"
            )
        if failures:
            raise VfioError(f"{path} cannot be written: {failures[0].strerror}; is sysfs mounted writable?")


def _link_name(path: Path) -> str | None:
    try:
        return path.readlink().name
    except OSError:
        return None


def _names(folder: Path) -> Sequence[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  names only
    except OSError:
        return ()
