"""Random claims of every kind that the driver serves, from one source of chance. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from hack.cluster.layout import DRIVER_NAME
from tests.scheduler.isolation import Document
from tests.scheduler.machines import PASSTHROUGH_LABEL

MIG = "mig.nvidia.com"
VFIO = "vfio.gpu.nvidia.com"
SHARED = "device.allowMultipleAllocations"


class Wishes:
    """Makes the requests of claims.

    Args:
        chance: the only source of it.
        profiles: names of the partitions of each node that has some, the smallest first.
    """

    def __init__(self, chance: random.Random, profiles: Sequence[Sequence[str]]) -> None:
        self._chance = chance
        self._profiles = profiles
        self._kinds: dict[str, tuple[int, Callable[[], Document]]] = {
            "whole": (3, self._whole),
            "partition": (8, self._partition),
            "siblings": (2, self._siblings),
            "share": (4, self._share),
            "two shares": (1, self._two_shares),
            "admin": (1, self._admin),
            "vfio": (2, self._vfio),
            "whatever there is": (2, self._either),
            "both": (1, self._both),
        }

    @property
    def kinds(self) -> Sequence[str]:
        """What can be asked for."""
        return tuple(self._kinds)

    def one(self) -> tuple[str, Document, dict[str, str]]:
        """(kind, spec of a claim, labels of the nodes that it may be for)."""
        names, rows = zip(*self._kinds.items(), strict=True)
        (kind,) = self._chance.choices(names, [weight for weight, _ in rows])
        labels = {PASSTHROUGH_LABEL: "no"} if kind == "admin" else {}
        return kind, {"devices": self._kinds[kind][1]()}, labels

    def _whole(self) -> Document:
        return {"requests": [_request("gpu", DRIVER_NAME, f"!{SHARED}", count=self._chance.choice((1, 1, 2)))]}

    def _partition(self) -> Document:
        return {"requests": [self._part("mig", count=self._chance.choice((1, 1, 1, 2, 3)))]}

    def _siblings(self) -> Document:
        """Partitions of one GPU."""
        board = self._chance.choice(self._profiles)
        requests = [self._part("one", board=board), self._part("other", board=board)]
        return {"requests": requests, "constraints": [{"matchAttribute": f"{DRIVER_NAME}/parentUUID"}]}

    def _share(self) -> Document:
        request = _request("share", DRIVER_NAME, SHARED)
        wanted = self._chance.choice(({}, {"shares": "2"}, {"memory": "3Gi"}, {"memory": "20Gi", "shares": "1"}))
        if wanted:
            request["exactly"]["capacity"] = {"requests": wanted}
        return {"requests": [request]}

    def _two_shares(self) -> Document:
        return {"requests": [_request("one", DRIVER_NAME, SHARED), _request("other", DRIVER_NAME, SHARED)]}

    def _admin(self) -> Document:
        """On nodes without GPUs for virtual machines: one that such a machine has cannot be looked at."""
        request = _request("look", DRIVER_NAME)
        request["exactly"]["adminAccess"] = True
        return {"requests": [request]}

    def _vfio(self) -> Document:
        return {"requests": [_request("vm", VFIO)]}

    def _either(self) -> Document:
        whole = _request("whole", DRIVER_NAME, f"!{SHARED}")["exactly"]
        part = self._part("part")["exactly"]
        share = _request("share", DRIVER_NAME, SHARED)["exactly"]
        options = [{"name": f"o{number}", **each} for number, each in enumerate((whole, part, share))]
        return {"requests": [{"name": "any", "firstAvailable": options}]}

    def _both(self) -> Document:
        return {"requests": [self._part("part"), _request("whole", DRIVER_NAME)]}

    def _part(self, name: str, count: int = 1, board: Sequence[str] = ()) -> Document:
        """Partitions of a node's boards, small ones more often."""
        known = board or self._chance.choice(self._profiles)
        profile = known[min(self._chance.randrange(len(known)) for _ in range(2))]
        return _request(name, MIG, f'device.attributes["{DRIVER_NAME}"].profile == "{profile}"', count=count)


def _request(name: str, device_class: str, *selectors: str, count: int = 1) -> Document:
    chosen = [{"cel": {"expression": expression}} for expression in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "count": count, "selectors": chosen}}
