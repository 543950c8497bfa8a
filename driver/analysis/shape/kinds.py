"""What an attribute's value is worth on a node that does not exist yet: the same, another, or not to be known.

The driver that publishes an attribute knows its kind and says so in its table; for other drivers there are the standard
attributes of Kubernetes, names that are in use, and, where nothing else is known, a guess from the name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

TYPE, SOFTWARE, EQUALITY, LAUNCH, FABRIC, RUNTIME = "type", "software", "equality", "launch", "fabric", "runtime"
KINDS: Final = (TYPE, SOFTWARE, EQUALITY, LAUNCH, FABRIC, RUNTIME)

STANDARD: Final = {
    "resource.kubernetes.io/pciBusID": LAUNCH,
    "resource.kubernetes.io/pcieRoot": EQUALITY,
    "resource.kubernetes.io/numaNode": EQUALITY,
}
"""k8s.io/dynamic-resource-allocation/deviceattribute."""

USUAL: Final = {
    "gpu.nvidia.com/parentUUID": LAUNCH,
    "gpu.nvidia.com/uuid": LAUNCH,
    "gpu.nvidia.com/profile": TYPE,
    "dra.net/ifName": LAUNCH,
    "dra.net/mac": LAUNCH,
    "dra.net/ipv4": LAUNCH,
    "dra.net/ipv6": LAUNCH,
    "dra.net/pciAddress": LAUNCH,
    "dra.net/numaNode": EQUALITY,
    "dra.net/rdma": TYPE,
    "dra.cpu/numaNodeID": EQUALITY,
    "dra.cpu/socketID": EQUALITY,
    "dra.memory/numaNode": EQUALITY,
}

_GUESSES: Final = (
    (
        re.compile(r"uuid|serial|guid|\bmac|macaddr|\bip(v[46])?$|busid|pciaddress|hostname|ifname", re.IGNORECASE),
        LAUNCH,
    ),
    (re.compile(r"clique|fabric|rack|cluster|superpod|\bblock", re.IGNORECASE), FABRIC),
    (re.compile(r"numa|pcieroot|pcieswitch|nvlinkgroup|socket|island", re.IGNORECASE), EQUALITY),
    (re.compile(r"driverversion|firmware|kernel|version$", re.IGNORECASE), SOFTWARE),
    (re.compile(r"health|state|status|temperature|linkup", re.IGNORECASE), RUNTIME),
)


def qualified(name: str, driver: str) -> str:
    """The name with its domain: the driver's where it has none."""
    return name if "/" in name else f"{driver}/{name}"


@dataclass(frozen=True, slots=True)
class AttributeKinds:
    """Qualified name -> kind.

    ``own`` comes from the table of the driver that publishes; it goes before everything else.
    """

    own: Mapping[str, str] = field(default_factory=dict)
    _known: dict[tuple[str, str], str] = field(default_factory=dict, init=False, compare=False, repr=False)

    def kind(self, name: str, driver: str) -> str:
        """The kind of an attribute of this driver's devices."""
        kind = self._known.get((name, driver))
        if kind is None:
            full = qualified(name, driver)
            known = self.own.get(full) or STANDARD.get(full) or USUAL.get(full)
            kind = self._known[name, driver] = known or self._guess(full.partition("/")[2])
        return kind

    def guessed(self, name: str, driver: str) -> bool:
        """Whether nobody has said what kind it is."""
        full = qualified(name, driver)
        return not (full in self.own or full in STANDARD or full in USUAL)

    @staticmethod
    def _guess(identifier: str) -> str:
        return next((kind for pattern, kind in _GUESSES if pattern.search(identifier)), TYPE)
