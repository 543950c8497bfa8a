"""GPUs, readings and a clock to judge by."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from driver.health.keeper import Keeper, Policy
from driver.model import Gpu, GpuState, NvLinkLink, PciAddress
from native.nvml.eventtypes import EventType, NvmlEvent
from native.nvml.healthtypes import GpuHealth

ADDRESS = "0000:1b:00.0"
OTHER = "0000:1c:00.0"
BOOT = "11111111-1111-1111-1111-111111111111"


class Bench:
    """A keeper, its clock, and short words for what happens to GPUs."""

    def __init__(self, **policy: Any) -> None:
        self.wall = 1_800_000_000.0
        self.boot = 1000.0
        self.policy = Policy(recovery_seconds=60, **policy)
        self.keeper = self.make(BOOT)

    def make(self, boot_id: str | None) -> Keeper:
        return Keeper(self.policy, boot_id=boot_id, wall=lambda: self.wall, boot=lambda: self.boot)

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.boot += seconds

    def gpu(self, address: str = ADDRESS, **fields: Any) -> Gpu:
        links = tuple(NvLinkLink(number, True, "4.0", None, "switch") for number in range(2))
        known = {"state": GpuState.READY, "uuid": f"GPU-{address[5:7]}", "driver": "nvidia", "nvlinks": links}
        return Gpu(PciAddress.parse(address), **{**known, "pcie_link_width": 16, "pcie_link_generation": 5, **fields})

    def look(self, gpu: Gpu | None = None, seconds: float = 0.0, **reading: Any) -> None:
        """Time passes, and then a look ends."""
        self.advance(seconds)
        seen = gpu or self.gpu()
        address = str(seen.address)
        self.keeper.look((seen,), {address: GpuHealth(address, **{"uuid": seen.uuid, **reading})})

    def lost(self, seconds: float = 0.0) -> None:
        lost = replace(self.gpu(), state=GpuState.LOST, uuid=None, reason="NVML says it is lost", nvlinks=())
        self.look(lost, seconds, codes={"handle": 15})

    def well_for(self, seconds: float, **reading: Any) -> None:
        """Looks every ten seconds that find nothing."""
        for _ in range(int(seconds // 10)):
            self.look(seconds=10, **reading)

    def xid(self, code: int, gi: int | None = None, address: str = ADDRESS) -> None:
        self.keeper.event(NvmlEvent(address, EventType.XID_CRITICAL_ERROR, code, gi, None))

    def event(self, kind: EventType) -> None:
        self.keeper.event(NvmlEvent(ADDRESS, kind, 0, None, None))


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def bench_with() -> type[Bench]:
    """For benches with a policy of their own."""
    return Bench
