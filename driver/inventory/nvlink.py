"""NVLink of one node: links in the model's words, the groups they form, and the fabric that a GPU has joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from driver.inventory.words import FABRIC_COMPLETED, NVLINK_REMOTES, NVLINK_VERSIONS, word
from driver.model import Fabric, NvLinkGroup, NvLinkLink, PciAddress
from native.nvml.errors import NvmlReturn
from native.nvml.types import FabricInfo, NvLink


def links_of(
    nvlinks: Sequence[NvLink] | None, gpus: frozenset[PciAddress], switches: frozenset[PciAddress]
) -> tuple[NvLinkLink, ...]:
    """A GPU's links, by index. Where NVML does not know the far end's kind, the bus tells it by its address."""
    links = []
    for link in sorted(nvlinks or (), key=lambda link: link.index):
        remote = None if link.remote_address is None else PciAddress.parse(link.remote_address)
        kind = word(NVLINK_REMOTES, link.remote_type) or "unknown"
        if remote in gpus:
            kind = "gpu"
        elif remote in switches:
            kind = "switch"
        links.append(NvLinkLink(link.index, link.active, word(NVLINK_VERSIONS, link.version), remote, kind))
    return tuple(links)


def fabric_of(info: FabricInfo | None) -> Fabric | None:
    """The multi-node fabric a GPU has joined.

    None before registration completed, where it failed (``status`` means something only then) and where the cluster
    UUID is all zero, as on single nodes: nvml.h, nvmlGpuFabricInfo_v3_t.
    """
    if info is None or info.state != FABRIC_COMPLETED or info.status != NvmlReturn.SUCCESS:
        return None
    if not info.cluster_uuid.strip("0-"):
        return None
    return Fabric(info.cluster_uuid.lower(), info.clique_id)


def groups_of(
    links: Mapping[PciAddress, Sequence[NvLinkLink]], fabrics: Mapping[PciAddress, Fabric | None]
) -> tuple[NvLinkGroup, ...]:
    """The GPUs that reach each other over active links, directly, over a peer, or through switches.

    All GPUs of a node with a link to a switch reach each other, whichever chip the link ends in (NVML names the
    node's own chips, or on multi-node systems remote trays); GPUs that the fabric manager put into different cliques
    do not. A single GPU with a link to a switch is a group of one.

    Args:
        links: of GPUs that can be used; a link to any other GPU joins nobody.
        fabrics: as ``fabric_of`` gives them, for the same GPUs.
    """
    sets = _DisjointSets()
    for address, own in links.items():
        for link in own:
            if not link.active:
                continue
            if link.remote_kind == "switch":
                fabric = fabrics.get(address)
                sets.join(address, fabric.clique if fabric else "")
            elif link.remote is not None and link.remote in links:
                sets.join(address, link.remote)
    members = (sorted(part for part in group if isinstance(part, PciAddress)) for group in sets.groups())
    return tuple(NvLinkGroup(index, tuple(group)) for index, group in enumerate(sorted(members)))


class _DisjointSets:
    """Union-find over GPUs (their addresses) and switch planes (their cliques)."""

    def __init__(self) -> None:
        self._parents: dict[PciAddress | str, PciAddress | str] = {}

    def join(self, a: PciAddress | str, b: PciAddress | str) -> None:
        self._parents[self._find(a)] = self._find(b)

    def groups(self) -> Iterable[list[PciAddress | str]]:
        found: dict[PciAddress | str, list[PciAddress | str]] = {}
        for item in self._parents:
            found.setdefault(self._find(item), []).append(item)
        return found.values()

    def _find(self, item: PciAddress | str) -> PciAddress | str:
        self._parents.setdefault(item, item)
        while self._parents[item] != item:
            item = self._parents[item]
        return item
