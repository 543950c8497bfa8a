"""How far two devices of a node are apart on PCIe, over the model's types."""

from __future__ import annotations

from driver.model import Gpu, Nic
from native.pcipath import PathClass, PciPlace, path_class


def path_between(a: Gpu | Nic, b: Gpu | Nic) -> PathClass:
    """The class of ``nvidia-smi topo -m`` for two different devices, NVLink left aside. Symmetric."""
    return path_class(_place(a), _place(b))


def _place(device: Gpu | Nic) -> PciPlace:
    bridges = tuple(str(bridge) for bridge in device.switch_path)
    return PciPlace(str(device.address), device.pcie_root, bridges, device.numa_node)
