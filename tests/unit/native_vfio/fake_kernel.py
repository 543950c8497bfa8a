"""A sysfs with a kernel behind it: what is written to it happens."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

GPU = "0000:1b:00.0"
AUDIO = "0000:1b:00.1"
BRIDGE = "0000:1a:00.0"
NIC = "0000:3d:00.0"


class Kernel:
    """Binds and unbinds drivers, links groups, makes vfio-dev folders; refuses and hangs on demand."""

    def __init__(self, root: Path) -> None:
        self.sys = root / "sys"
        self.dev = root / "dev"
        self.pci = self.sys / "bus/pci"
        self.devices = self.pci / "devices"
        self.devices.mkdir(parents=True)
        (self.pci / "drivers_probe").touch()
        (self.dev / "vfio").mkdir(parents=True)
        self.natural: dict[str, str | None] = {}
        """Address -> the driver that takes the function when nothing else is said."""
        self.writes: list[tuple[str, str]] = []
        self.refused: dict[str, int] = {}
        """Name of a file -> errno of a write to it."""
        self.held = threading.Event()
        self.held.set()
        """Cleared: writes hang until it is set."""
        for name in ("nvidia", "vfio-pci", "snd_hda_intel", "mlx5_core"):
            (self.pci / "drivers" / name).mkdir(parents=True)

    def add(self, address: str, driver: str | None, group: int | None, class_code: str = "0x030200") -> None:
        folder = self.devices / address
        folder.mkdir()
        (folder / "class").write_text(f"{class_code}\n")
        (folder / "driver_override").write_text("(null)\n")
        self.natural[address] = driver
        if group is not None:
            at = self.sys / "kernel/iommu_groups" / str(group)
            (at / "devices").mkdir(parents=True, exist_ok=True)
            (at / "devices" / address).symlink_to(folder)
            (folder / "iommu_group").symlink_to(at)
        if driver is not None:
            self._bind(address, driver)

    def write(self, path: Path, text: str) -> None:
        self.writes.append((str(path.relative_to(self.sys)), text))
        self.held.wait(20)
        if path.name in self.refused:
            raise OSError(self.refused[path.name], "refused")
        if not path.exists():
            raise OSError(errno.ENOENT, "No such file or directory")
        if path.name == "driver_override":
            path.write_text(text.strip() or "(null)")
        elif path.name == "unbind":
            self._unbind(text)
        elif path.name == "drivers_probe":
            override = (self.devices / text / "driver_override").read_text().strip()
            wanted = self.natural[text] if override == "(null)" else override
            if wanted is not None and (self.pci / "drivers" / wanted).is_dir():  # the module is loaded
                self._bind(text, wanted)

    def _bind(self, address: str, driver: str) -> None:
        folder = self.devices / address
        target = self.pci / "drivers" / driver
        target.mkdir(exist_ok=True)
        (target / "unbind").touch()
        (folder / "driver").unlink(missing_ok=True)
        (folder / "driver").symlink_to(target)
        if driver == "vfio-pci":
            (folder / "vfio-dev" / "vfio3").mkdir(parents=True)

    def _unbind(self, address: str) -> None:
        folder = self.devices / address
        if (folder / "vfio-dev").exists():
            (folder / "vfio-dev" / "vfio3").rmdir()
            (folder / "vfio-dev").rmdir()
        (folder / "driver").unlink()


def machine(root: Path) -> Kernel:
    """A GPU with its audio function and the bridge above in one group, and a NIC in another."""
    kernel = Kernel(root)
    kernel.add(BRIDGE, "pcieport", 7, "0x060400")
    kernel.add(GPU, "nvidia", 7)
    kernel.add(AUDIO, "snd_hda_intel", 7, "0x040300")
    kernel.add(NIC, "mlx5_core", 8, "0x020000")
    return kernel
