"""What the scheduler knows of a node: which claim was given what, and what may be given beside that."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.agents import DRIVER, NODE, POOL
from tests.support.countered import Counted

JSON = dict[str, Any]
SHARES = 4
LEVELS = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
"""Interval of a time slice -> its number in nvidia-smi compute-policy."""


@dataclass(frozen=True)
class Place:
    """One device, or one share of one."""

    device: str
    share: str | None = None


@dataclass(frozen=True)
class Config:
    """How a claim wants its devices to be shared."""

    strategy: str
    interval: str | None = None
    text: str | None = None
    """The whole document as JSON, instead of one that is made from the rest."""

    def parameters(self, *, partition: bool) -> JSON:
        """The opaque configuration."""
        if self.text is not None:
            return json.loads(self.text)  # type: ignore[no-any-return] # a document
        sharing: JSON = {"strategy": self.strategy}
        if self.strategy == "MPS":
            sharing["mpsConfig"] = {"defaultActiveThreadPercentage": 50}
        elif self.interval is not None:
            sharing["timeSlicingConfig"] = {"interval": self.interval}
        kind = "MigDeviceConfig" if partition else "GpuConfig"
        return {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}


@dataclass
class Claim:
    """A claim, and what the driver has answered about it."""

    name: str
    uid: str
    places: tuple[Place, ...]
    config: Config | None = None
    admin: bool = False
    over: str | None = None
    """The claim that holds its device, where the scheduler was wrong: then it must never be prepared."""
    broken: bool = False
    """It cannot be prepared whatever is tried."""
    ids: tuple[str, ...] = ()
    """The CDI names of the last good answer; empty: none stands."""
    unsure: bool = False
    """A call about it failed or was cut off: it may be prepared or not until the next good answer."""
    exists: bool = True
    static: bool = False
    """Its partitions were made by an administrator and stay."""
    replaced: bool = False
    """It can be ended, and nothing else: other partitions stand where its own were (bug row B94), or it is in doubt."""

    def __str__(self) -> str:
        shown = ", ".join(place.device + (f"#{place.share[:8]}" if place.share else "") for place in self.places)
        return f"{self.name} ({self.uid[:8]}: {shown})"

    def is_prepared(self) -> bool:
        """The same as a condition to wait for."""
        return self.prepared

    @property
    def prepared(self) -> bool:
        """Certainly."""
        return bool(self.ids) and not self.unsure

    @property
    def hopeless(self) -> bool:
        """Never to be prepared."""
        return self.broken or self.over is not None

    def document(self, driver: str = DRIVER, pool: str = POOL) -> JSON:
        """The status that the scheduler writes."""
        results: list[JSON] = []
        for number, place in enumerate(self.places):
            result: JSON = {"request": f"r{number}", "driver": driver, "pool": pool, "device": place.device}
            if place.share is not None:
                result |= {"shareID": place.share, "consumedCapacity": {"shares": "1", "memory": "1Gi"}}
            if self.admin:
                result["adminAccess"] = True
            results.append(result)
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [NODE]}]}
        given: JSON = {"results": results}
        if self.config is not None:
            parameters = self.config.parameters(partition=any("-mig-" in place.device for place in self.places))
            given["config"] = [{"source": "FromClaim", "opaque": {"driver": driver, "parameters": parameters}}]
        return {
            "allocation": {"devices": given, "nodeSelector": {"nodeSelectorTerms": [term]}},
            "reservedFor": [{"resource": "pods", "name": self.name, "uid": f"pod-{self.name}"}],
        }


class Pool:
    """The published devices, and who has them."""

    def __init__(self, slices: Iterable[JSON]) -> None:
        self._counted = Counted.of_slices(slices)
        devices: Mapping[str, JSON] = self._counted.devices
        self.names = sorted(devices)
        self._shared = {name for name, device in devices.items() if device.get("allowMultipleAllocations")}
        self._shares: dict[str, set[str]] = {name: set() for name in self._shared}
        self._atoms = {name: _atoms(device) for name, device in devices.items()}

    def free(self) -> list[Place]:
        """What may be allocated now."""
        whole = [Place(name) for name in self.names if name not in self._shared and self._counted.fits(name)]
        return whole + [
            Place(name, share)
            for name in sorted(self._shared)
            for share in (f"{number:08x}-0f3a-4b6d-9a6e-0d6f1f0c2a11" for number in range(SHARES))
            if share not in self._shares[name]
        ]

    def take(self, places: Iterable[Place]) -> None:
        """Allocate."""
        for place in places:
            if place.share is None:
                self._counted.take(place.device)
            else:
                self._shares[place.device].add(place.share)

    def give_back(self, places: Iterable[Place]) -> None:
        """End an allocation."""
        for place in places:
            if place.share is None:
                self._counted.give_back(place.device)
            else:
                self._shares[place.device].remove(place.share)

    def atoms(self, device: str, share: str | None) -> frozenset[tuple[str, str]]:
        """What nobody else may have: memory slices, a whole device, or a share of one."""
        return self._atoms[device] if share is None else frozenset({(device, share)})

    def config(self, place: Place, chance: random.Random) -> Config | None:
        """A way of sharing that is possible there; shares of one device agree."""
        if place.share is not None:
            return (None, Config("MPS"), Config("TimeSlicing", "Long"))[self.names.index(place.device) % 3]
        roll = chance.random()
        if place.device.endswith("-vfio"):
            return None
        if roll < 0.12:
            return Config("MPS")
        if roll < 0.3 and "-mig-" not in place.device:
            return Config("TimeSlicing", chance.choice([*LEVELS, None]))
        return None


def _atoms(device: JSON) -> frozenset[tuple[str, str]]:
    slices = {
        (entry["counterSet"], counter)
        for entry in device.get("consumesCounters", ())
        for counter in entry["counters"]
        if counter.startswith("memory-slice")
    }
    return frozenset(slices or {(device["name"], "")})
