"""What the kernel does when somebody writes to a node's sysfs: binding PCI functions to drivers and taking them off.

Plain files do not act, so whoever writes (``native.vfio.VfioBus``) is given ``MockKernel.write`` for its write. The
files and errors are those of Documentation/ABI/testing/sysfs-bus-pci and drivers/base/bus.c. A GPU that NVIDIA's driver
lets go of is gone for NVML, with its device nodes; one that it gets back is another one, as after hot plug.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Final

from native.mock import hotplug, tree
from native.mock.control import NodeFile
from native.mock.pcie import PciDevice
from native.mock.profile import Profile
from native.mock.sysfs import driver_of

VFIO: Final = "vfio-pci"
VFIO_MAJOR: Final = 511
NO_OVERRIDE: Final = "(null)"
_STASH: Final = Path("run/gpudra-mock/unbound")


class MockKernel:
    """Applies writes below ``sys/bus/pci`` of a node."""

    def __init__(self, root: Path, profile: Profile, file: NodeFile) -> None:
        self._root = root
        self._pci = root / "sys/bus/pci"
        self._profile = profile
        self._file = file
        self._lock = threading.Lock()

    def write(self, path: Path, text: str) -> None:
        """One write to a file of sysfs.

        Unbinding a GPU from NVIDIA's driver does not come back while a process uses it, as on hardware.

        Raises:
            OSError: as the kernel refuses: ENOENT no such file, ENODEV no such device or not bound there, EBUSY bound
                already, EINVAL nothing that can be written to.
        """
        target = path.parent.resolve() / path.name
        if not target.exists():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        if target.name == "driver_override":
            target.write_text(f"{text.strip() or NO_OVERRIDE}\n", encoding="ascii")
        elif target.name == "unbind":
            self._unbind(self._device(text), target.parent.name)
        elif target.name == "bind":
            self._bind(self._device(text), target.parent.name)
        elif target.name == "drivers_probe":
            self._probe(self._device(text))
        else:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), str(path))

    def driver(self, address: str) -> str | None:
        """The driver that a function is bound to."""
        link = self._pci / "devices" / address / "driver"
        return link.readlink().name if link.is_symlink() else None

    def _device(self, text: str) -> PciDevice:
        for device in self._profile.devices:
            if device.address == text.strip() and (self._pci / "devices" / device.address).exists():
                return device
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), text.strip())

    def _home(self, device: PciDevice) -> Path:
        return self._root.joinpath("sys/devices", *device.path)

    def _unbind(self, device: PciDevice, driver: str) -> None:
        if self.driver(device.address) != driver:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), device.address)
        pause = threading.Event()
        while driver == "nvidia" and device.kind == "gpu" and self._file.processes(device.address):
            pause.wait(0.01)
        with self._lock:
            (self._home(device) / "driver").unlink()
            (self._pci / "drivers" / driver / device.address).unlink()
            if driver == VFIO:
                self._close_vfio(device)
            elif driver == "nvidia" and device.kind == "gpu":
                self._leave_nvml(device)

    def _bind(self, device: PciDevice, driver: str) -> None:
        if self.driver(device.address) is not None:
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), device.address)
        if driver not in {driver_of(device), self._override(device)}:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV), device.address)
        folder = self._pci / "drivers" / driver
        with self._lock:
            home = self._home(device)
            (home / "driver").symlink_to(os.path.relpath(folder, home))
            (folder / device.address).symlink_to(os.path.relpath(home, folder))
            if driver == VFIO:
                self._open_vfio(device)
            elif driver == "nvidia" and device.kind == "gpu":
                self._enter_nvml(device)

    def _probe(self, device: PciDevice) -> None:
        """Match anew: the override where there is one, else the driver that knows the device. No match is no error."""
        wanted = self._override(device) or driver_of(device)
        if self.driver(device.address) is None and (self._pci / "drivers" / wanted).is_dir():
            self._bind(device, wanted)

    def _override(self, device: PciDevice) -> str | None:
        text = (self._home(device) / "driver_override").read_text(encoding="ascii").strip()
        return None if text == NO_OVERRIDE else text

    def _open_vfio(self, device: PciDevice) -> None:
        number = self._profile.devices.index(device)
        (self._home(device) / "vfio-dev" / f"vfio{number}").mkdir(parents=True)
        for node in self._vfio_nodes(device):
            node.parent.mkdir(parents=True, exist_ok=True)
            tree.make_node(node, VFIO_MAJOR, number)

    def _close_vfio(self, device: PciDevice) -> None:
        folder = self._home(device) / "vfio-dev"
        for entry in folder.iterdir():
            entry.rmdir()
        folder.rmdir()
        for node in self._vfio_nodes(device):
            node.unlink(missing_ok=True)

    def _vfio_nodes(self, device: PciDevice) -> tuple[Path, ...]:
        """The group's node, and the device's own where the node has IOMMUFD."""
        group = (self._home(device) / "iommu_group").resolve().name
        nodes = [self._root / "dev/vfio" / group]
        if (self._root / "dev/iommu").exists():
            nodes.append(self._root / "dev/vfio/devices" / f"vfio{self._profile.devices.index(device)}")
        return tuple(nodes)

    def _leave_nvml(self, device: PciDevice) -> None:
        self._file.set_number(device.address, "state", 2)
        hotplug.stash(
            self._root, _STASH / device.address, hotplug.driver_files(self._root, self._profile, device.address)
        )

    def _enter_nvml(self, device: PciDevice) -> None:
        hotplug.unstash(self._root, _STASH / device.address)
        self._file.set_number(device.address, "plugged", self._file.number(device.address, "plugged") + 1)
        self._file.set_number(device.address, "state", 0)
