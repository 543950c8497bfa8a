"""Writes the parts of /sys and /proc that tell a machine's PCI functions, NUMA nodes and memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

BOOT_ID = "0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55"


class HostTree:
    """A machine in files below ``root``; every method adds to it or spoils it."""

    def __init__(self, root: Path) -> None:
        self.sys = root / "sys"
        self.proc = root / "proc"
        (self.sys / "bus/pci/devices").mkdir(parents=True)
        self.write(self.proc / "sys/kernel/random/boot_id", BOOT_ID)
        self.write(self.proc / "meminfo", "MemTotal:       131072000 kB\nMemFree:        1024 kB")

    @staticmethod
    def write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def device(self, address: str) -> Path:
        """The real directory of a function."""
        return (self.sys / "bus/pci/devices" / address).resolve()

    def add(
        self,
        path: Sequence[str],
        *,
        vendor: str = "0x10de",
        device: str = "0x2330",
        class_code: str = "0x030200",
        numa_node: str | None = "0",
        driver: str | None = "nvidia",
        files: Mapping[str, str] | None = None,
    ) -> Path:
        """A function at the end of ``path`` (host bridge, bridges, function), and the bridges that are new."""
        folder = self.sys / "devices"
        for depth, part in enumerate(path):
            folder = folder / part
            if ":" not in part or part.startswith("pci") or folder.exists():
                folder.mkdir(parents=True, exist_ok=True)
                continue
            if depth < len(path) - 1:
                self._function(folder, "0x8086", "0x352a", "0x060400", numa_node)
            else:
                self._function(folder, vendor, device, class_code, numa_node)
        if driver is not None:
            target = self.sys / "bus/pci/drivers" / driver
            target.mkdir(parents=True, exist_ok=True)
            (folder / "driver").symlink_to(os.path.relpath(target, folder))
        for name, text in (files or {}).items():
            self.write(folder / name, text)
        return folder

    def numa_node(self, index: int, cpulist: str, memory_kib: int, distance: str) -> None:
        folder = self.sys / f"devices/system/node/node{index}"
        self.write(folder / "cpulist", cpulist)
        self.write(folder / "meminfo", f"Node {index} MemTotal:       {memory_kib} kB")
        self.write(folder / "distance", distance)

    def _function(self, folder: Path, vendor: str, device: str, class_code: str, numa_node: str | None) -> None:
        folder.mkdir(parents=True)
        values = {"vendor": vendor, "device": device, "class": class_code}
        values |= {"subsystem_vendor": vendor, "subsystem_device": "0x16c1"}
        if numa_node is not None:
            values["numa_node"] = numa_node
        for name, text in values.items():
            self.write(folder / name, text)
        link = self.sys / "bus/pci/devices" / folder.name
        link.symlink_to(os.path.relpath(folder, link.parent))
