"""First fit over published slices, counters included: what a scheduler may do with a node's pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import Any

from kubeletplugin.quantity import parse_quantity

JSON = dict[str, Any]


@lru_cache(maxsize=4096)
def amount(text: str) -> Fraction | int:
    value = parse_quantity(text).value
    return int(value) if value.denominator == 1 else value


class Counted:
    """The devices of a pool, and what of them is allocated."""

    def __init__(self, devices: Iterable[JSON], sets: Iterable[JSON]) -> None:
        self.devices = {device["name"]: device for device in devices}
        self._left: dict[tuple[str, str], Fraction | int] = defaultdict(int)
        for counters in sets:
            for name, value in counters["counters"].items():
                self._left[counters["name"], name] = amount(value["value"])
        self.taken: list[str] = []
        self._wants = {name: _wanted(device) for name, device in self.devices.items()}

    @classmethod
    def of_slices(cls, slices: Iterable[JSON]) -> Counted:
        """From ResourceSlice objects, in the order of their names, as the scheduler reads them."""
        ordered = sorted(slices, key=lambda item: str(item["metadata"]["name"]))
        specs = [item["spec"] for item in ordered]
        return cls(
            (device for spec in specs for device in spec.get("devices", ())),
            (counters for spec in specs for counters in spec.get("sharedCounters", ())),
        )

    def fits(self, name: str) -> bool:
        """Whether the counters allow it beside what is allocated."""
        return name not in self.taken and all(self._left[key] >= wanted for key, wanted in self._wants[name].items())

    def take(self, name: str) -> None:
        """Allocate it."""
        assert self.fits(name), name
        self._move(name, -1)
        self.taken.append(name)

    def give_back(self, name: str) -> None:
        """End its allocation."""
        self.taken.remove(name)
        self._move(name, 1)

    def first(self, **attributes: str | int) -> str | None:
        """The first device with these attributes that fits."""
        for name, device in self.devices.items():
            values = {key: next(iter(value.values())) for key, value in device["attributes"].items()}
            if attributes.items() <= values.items() and self.fits(name):
                return name
        return None

    def _move(self, name: str, sign: int) -> None:
        for key, wanted in self._wants[name].items():
            self._left[key] += sign * wanted


def _wanted(device: JSON) -> Mapping[tuple[str, str], Fraction | int]:
    return {
        (entry["counterSet"], counter): amount(value["value"])
        for entry in device.get("consumesCounters", ())
        for counter, value in entry["counters"].items()
    }
