"""Any sequence of MIG operations against a model that knows the rules and nothing of the C."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from native.mock import MockNode
from native.mock.migtables import GiProfile, MigBoard
from tests.support.nvmlcalls import Nvml

OK, INVALID, NOT_SUPPORTED, IN_USE, INSUFFICIENT = 0, 2, 3, 19, 23
POOLS = ("slices", "copy", "decoder", "encoder", "jpeg", "ofa")
CI_SLICES = (1, 2, 3, 4, 7)
EXAMPLES = int(os.environ.get("GPUDRA_MOCK_EXAMPLES", "25"))


@dataclass
class Instance:
    profile: GiProfile
    start: int
    cis: dict[int, tuple[int, int]] = field(default_factory=dict)
    """id -> (start, slices)"""


@dataclass
class Model:
    """One GPU. What it says of an operation is the code; ids are the library's own business."""

    board: MigBoard
    on: bool = False
    gis: dict[int, Instance] = field(default_factory=dict)

    def fits(self, profile: GiProfile, start: int) -> bool:
        end = start + profile.size
        return all(end <= gi.start or gi.start + gi.profile.size <= start for gi in self.gis.values())

    def left(self, pool: str) -> int:
        return max(getattr(p, pool) for p in self.board.profiles) - sum(
            getattr(gi.profile, pool) for gi in self.gis.values()
        )

    def has_room(self, profile: GiProfile, more: int = 1) -> bool:
        same = sum(gi.profile == profile for gi in self.gis.values())
        return same + more <= profile.instances and all(
            getattr(profile, pool) * more <= self.left(pool) for pool in POOLS
        )

    def create_gi(self, profile: GiProfile, start: int | None) -> tuple[int, int]:
        if not self.on:
            return NOT_SUPPORTED, -1
        if start is not None and start not in profile.starts:
            return INVALID, -1
        places = [s for s in reversed(profile.starts) if start in (None, s) and self.fits(profile, s)]
        return (OK, places[0]) if places and self.has_room(profile) else (INSUFFICIENT, -1)

    def capacity(self, profile: GiProfile) -> int:
        places = sum(self.fits(profile, start) for start in profile.starts)
        return max(n for n in range(places + 1) if n == 0 or self.has_room(profile, n))

    @staticmethod
    def ci_starts(total: int, wanted: int) -> list[int]:
        if (wanted == 3 and total not in (3, 7)) or (wanted > 4 and wanted != total):
            return []
        step = {1: 1, 2: 2, 3: 4, 4: 4, 7: 8}[wanted]
        return [start for start in range(0, total, step) if start + wanted <= total]

    def create_ci(self, gi: Instance, wanted: int, start: int | None) -> tuple[int, int]:
        legal = self.ci_starts(gi.profile.slices, wanted)
        if not legal:
            return NOT_SUPPORTED, -1
        if start is not None and start not in legal:
            return INVALID, -1
        places = [
            s for s in legal if start in (None, s) and all(s + wanted <= a or a + n <= s for a, n in gi.cis.values())
        ]
        return (OK, places[0]) if places else (INSUFFICIENT, -1)


operation = st.one_of(
    st.tuples(st.just("mode"), st.sampled_from([0, 1, 1, 1]), st.none(), st.none()),
    st.tuples(st.just("create_gi"), st.integers(0, 10), st.none() | st.integers(0, 11), st.none()),
    st.tuples(
        st.just("create_ci"), st.integers(0, 6), st.integers(0, len(CI_SLICES) - 1), st.none() | st.integers(0, 6)
    ),
    st.tuples(st.just("destroy_ci"), st.integers(0, 6), st.integers(0, 6), st.none()),
    st.tuples(st.just("destroy_gi"), st.integers(0, 6), st.none(), st.none()),
)


class Run:
    """The library and the model side by side."""

    def __init__(self, nvml: Nvml, index: int) -> None:
        self.nvml, self.gpu = nvml, nvml.gpu(index)
        gpu = nvml.node.profile.gpus[index]
        assert gpu.mig is not None
        self.model = Model(gpu.mig)
        self.folder = nvml.node.root / f"proc/driver/nvidia/capabilities/gpu{gpu.numbers['minor']}/mig"
        self.first_cap = 3 + 135 * gpu.numbers["minor"]
        self.resets = gpu.numbers["mig_reset"] == 1
        self.gis: dict[int, ctypes.c_void_p] = {}
        self.cis: dict[tuple[int, int], ctypes.c_void_p] = {}
        self.dead: list[tuple[str, ctypes.c_void_p]] = []

    def mode(self, mode: int, *_: Any) -> None:
        blocked = bool(self.gis) and mode != int(self.model.on) and not self.resets
        assert self.nvml.set_mig_mode(self.gpu, mode) == (OK, IN_USE if blocked else OK)
        assert self.nvml.mig_mode(self.gpu) == (int(self.model.on) if blocked else mode, mode)
        if not blocked and mode != int(self.model.on):
            self.model.on = bool(mode)
            self.bury_all()

    def bury_all(self) -> None:
        self.dead += [("nvmlGpuInstanceDestroy", handle) for handle in self.gis.values()]
        self.dead += [("nvmlComputeInstanceDestroy", handle) for handle in self.cis.values()]
        self.model.gis, self.gis, self.cis = {}, {}, {}

    def create_gi(self, profile_index: int, start: int | None, _: None) -> None:
        profile = self.model.board.profiles[profile_index % len(self.model.board.profiles)]
        expected, place = self.model.create_gi(profile, start)
        code, handle = self.nvml.create_gi(self.gpu, profile.id, start, profile.size)
        assert code == expected
        if code == OK:
            number, profile_id, at, size = self.nvml.gi_info(handle)
            assert (profile_id, at, size) == (profile.id, place, profile.size)
            assert number not in self.gis
            self.gis[number] = handle
            self.model.gis[number] = Instance(profile, at)

    def pick(self, place: int) -> int | None:
        return sorted(self.gis)[place % len(self.gis)] if self.gis else None

    def create_ci(self, place: int, size: int, start: int | None) -> None:
        gi = self.pick(place)
        if gi is None:
            return
        expected, at = self.model.create_ci(self.model.gis[gi], CI_SLICES[size], start)
        code, handle = self.nvml.create_ci(self.gis[gi], size, start, CI_SLICES[size])
        assert code == expected
        if code == OK:
            info = self.nvml.ci_info(handle)
            assert (info.placement.start, info.placement.size, info.profileId) == (at, CI_SLICES[size], size)
            self.cis[gi, info.id] = handle
            self.model.gis[gi].cis[info.id] = (at, CI_SLICES[size])

    def destroy_ci(self, place: int, which: int, _: None) -> None:
        if not self.cis:
            return
        gi, ci = sorted(self.cis)[(place * 7 + which) % len(self.cis)]
        handle = self.cis.pop((gi, ci))
        assert self.nvml.code("nvmlComputeInstanceDestroy", handle) == OK
        del self.model.gis[gi].cis[ci]
        self.dead.append(("nvmlComputeInstanceDestroy", handle))

    def destroy_gi(self, place: int, *_: Any) -> None:
        gi = self.pick(place)
        if gi is None:
            return
        busy = bool(self.model.gis[gi].cis)
        assert self.nvml.code("nvmlGpuInstanceDestroy", self.gis[gi]) == (IN_USE if busy else OK)
        if not busy:
            self.dead.append(("nvmlGpuInstanceDestroy", self.gis.pop(gi)))
            del self.model.gis[gi]

    def check(self) -> None:
        instances = self.model.gis.values()
        slices = [s for gi in instances for s in range(gi.start, gi.start + gi.profile.size)]
        assert len(slices) == len(set(slices)), "no memory slice belongs to two instances"
        assert all(self.model.left(pool) >= 0 for pool in POOLS), "no pool is overdrawn"
        for profile in self.model.board.profiles if self.model.on else ():
            count = self.nvml.number("nvmlDeviceGetGpuInstanceRemainingCapacity", self.gpu, profile.id)
            assert count == self.model.capacity(profile), profile.name
        devices = self.nvml.mig_devices(self.gpu)
        found = {
            (
                self.nvml.number("nvmlDeviceGetGpuInstanceId", device),
                self.nvml.number("nvmlDeviceGetComputeInstanceId", device),
            )
            for device in devices.values()
        }
        assert found == self.cis.keys(), "the walk finds every compute instance once"
        assert len({self.nvml.text("nvmlDeviceGetUUID", device) for device in devices.values()}) == len(devices)
        for function, handle in self.dead:
            assert self.nvml.code(function, handle) == INVALID, "a handle never comes back to life"
        assert self.capabilities() == self.expected_capabilities()

    def capabilities(self) -> dict[str, int]:
        texts = {str(path.parent.relative_to(self.folder)): path.read_text() for path in self.folder.rglob("access")}
        minors = {name: int(re.findall(r"DeviceFileMinor: (\d+)", text)[0]) for name, text in texts.items()}
        for minor in minors.values():
            assert (self.nvml.node.root / f"dev/nvidia-caps/nvidia-cap{minor}").exists()
        return minors

    def expected_capabilities(self) -> dict[str, int]:
        found = {f"gi{gi}": self.first_cap + 9 * gi for gi in self.gis}
        return found | {f"gi{gi}/ci{ci}": self.first_cap + 9 * gi + 1 + ci for gi, ci in self.cis}

    def clean(self) -> None:
        for handle in self.cis.values():
            assert self.nvml.code("nvmlComputeInstanceDestroy", handle) == OK
        for handle in self.gis.values():
            assert self.nvml.code("nvmlGpuInstanceDestroy", handle) == OK
        self.bury_all()
        assert self.nvml.set_mig_mode(self.gpu, 0) == (OK, OK)
        self.model.on = False
        self.check()


@pytest.fixture(scope="module", params=["dgx-h100", "dgx-a100", "rtx-pro-6000"])
def nvml(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nvml]:
    library = Nvml(MockNode.create(tmp_path_factory.mktemp("mig") / "root", request.param))
    yield library
    assert library.close() == 0


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(operation, min_size=1, max_size=30))
def test_any_sequence_of_operations_does_what_the_model_says(nvml: Nvml, steps: list[Any]) -> None:
    run = Run(nvml, 1)
    if run.nvml.mig_mode(run.gpu)[0] == 0:
        run.mode(1)
    try:
        for name, *arguments in steps:
            getattr(run, name)(*arguments)
            run.check()
    finally:
        run.clean()


def test_the_caps_folder_holds_nothing_but_config_and_monitor_when_all_is_destroyed(nvml: Nvml) -> None:
    run = Run(nvml, 0)
    run.mode(1)
    for _ in range(2):
        run.create_gi(1, None, None)
    run.create_ci(0, 0, None)
    assert len(list(Path(nvml.node.root / "dev/nvidia-caps").iterdir())) == 5
    run.clean()
    assert sorted(path.name for path in (nvml.node.root / "dev/nvidia-caps").iterdir()) == [
        "nvidia-cap1",
        "nvidia-cap2",
    ]
