"""Distances between a node's devices, over the model's own types."""

from __future__ import annotations

from driver.inventory import build_inventory, path_between
from native.pcipath import PathClass
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu


def test_a_gpu_and_a_nic_behind_one_switch_are_pix_and_gpus_of_a_numa_node_are_node() -> None:
    stem = ("0000:10:01.0", "0000:11:00.0")
    node = build_inventory(
        nvml(*(nvml_gpu(address(n)) for n in range(3))),
        host(
            pci_gpu(address(0), bridges=(*stem, "0000:12:00.0")),
            pci_gpu(address(1)),
            pci_gpu(address(2), numa_node=1),
            pci_gpu("0000:18:00.0", class_code=0x020700, pcie_root="pci0000:10", bridges=(*stem, "0000:12:01.0")),
        ),
        mock=False,
    )
    first, second, far = node.gpus
    (nic,) = node.nics

    assert path_between(first, nic) is PathClass.PIX
    assert path_between(nic, first) is PathClass.PIX
    assert path_between(first, second) is PathClass.NODE
    assert path_between(second, far) is PathClass.SYS
