"""How far two PCI functions are apart, in the words of ``nvidia-smi topo -m``: a pure function over their paths.

The classes and their order are those of nvmlGpuTopologyLevel_t (nvml.h); like NVML's they look at PCIe only and
know nothing of NVLink. A path is the chain of bridges below a host bridge, as the kernel lays it out in sysfs.
"""

from __future__ import annotations

import enum

import msgspec


class PathClass(enum.IntEnum):
    """Nearest first; the numbers are NVML's levels, so that classes can be compared and sorted."""

    PIX = 10
    """One PCIe switch at most lies between them."""
    PXB = 20
    """Several switches, no host bridge."""
    PHB = 30
    """The same host bridge (root complex), different root ports."""
    NODE = 40
    """Different host bridges of one NUMA node."""
    SYS = 50
    """The interconnect between NUMA nodes, or nothing is known."""


class PciPlace(msgspec.Struct, frozen=True):
    """Where a function hangs: its address, its host bridge, the bridges above it (root port first), its NUMA node."""

    address: str
    root: str | None
    bridges: tuple[str, ...]
    numa_node: int | None

    @property
    def own_bridges(self) -> tuple[str, ...]:
        """Bridges in the function's own PCI domain.

        A bridge of another domain is a host bridge in disguise (an Intel VMD endpoint opens a domain of its own),
        so sharing it is sharing a host bridge and not sharing a switch.
        """
        domain = self.address.partition(":")[0]
        return tuple(bridge for bridge in self.bridges if bridge.partition(":")[0] == domain)


def path_class(a: PciPlace, b: PciPlace) -> PathClass:
    """The class of the path between two different functions. Symmetric.

    Each switch shows up as two bridges, its upstream and its downstream port. Below the last port that both paths
    share, one further bridge on a side is the shared switch's own downstream port; each two beyond that are another
    switch on the way, and turn PIX into PXB.
    """
    if a.root is None or b.root is None or a.root != b.root:
        same_node = a.numa_node is not None and a.numa_node == b.numa_node
        return PathClass.NODE if same_node else PathClass.SYS
    shared = 0
    for left, right in zip(a.own_bridges, b.own_bridges, strict=False):
        if left != right:
            break
        shared += 1
    if shared == 0:
        return PathClass.PHB
    beyond = [len(place.own_bridges) - shared for place in (a, b)]
    return PathClass.PIX if max(beyond) <= 1 else PathClass.PXB
