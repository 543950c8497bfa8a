"""By brute force: the mixes of partitions that the published counters allow are those that the board accepts.

Every mix is walked through once, in the order of the pool: as far as counters and board agree on each step, they agree
on every mix, because both allow all parts of what they allow. The board is the mock's, whose rule is stated in
native/mock/csrc/mig_profiles.c: no two instances on one memory slice, compute slices and engines as many as the largest
profile has, and no more of a profile than its instance count.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.model import Gpu, MigSupport, NodeInventory
from driver.names import DeviceName
from driver.node import NodePaths, NodeReader
from driver.publish import build_pool
from native.mock import MockNode
from native.mock.migtables import boards
from tests.support.countered import Counted
from tests.support.nvmlcalls import Nvml

PROFILES = {
    "a30": "A30",
    "dgx-a100": "A100-SXM4-40GB",
    "a100-80": "A100-80GB",
    "dgx-h100": "H100-80GB",
    "h100-nvl": "H100-NVL-94GB",
    "h200": "H200-141GB",
    "b200": "B200-180GB",
    "gb200": "GB200-186GB",
    "rtx-pro-6000": "RTX-PRO-6000-BSE-96GB",
}


def test_every_board_is_walked_through() -> None:
    assert sorted(PROFILES.values()) == sorted(boards())


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockNode:
    """A node of the profile, with MIG mode on."""
    made = MockNode.create(tmp_path / "node", request.param)
    for key, value in {**made.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(key, value)
    made.nvidia_smi("-mig", "1")
    return made


def inventory_of(node: MockNode) -> NodeInventory:
    reader = NodeReader(NodePaths(node.root, node.root / "sys", node.root / "proc", node.library), mig=True)
    try:
        return reader.read()
    finally:
        reader.close()


def published(inventory: NodeInventory, gpu: Gpu) -> Counted:
    """The partitions of one GPU as the scheduler sees them."""
    pool = build_pool(
        inventory, node_name="node-a", driver_name="gpu.nvidia.com", mig=MigSupport.DYNAMIC, counters=True
    )
    partitions = (device for device in pool.devices if device["name"].startswith(f"{gpu.name}-mig-"))
    return Counted(partitions, (counters for sets in pool.counters for counters in sets))


@pytest.mark.parametrize("node", PROFILES, indirect=True)
def test_counters_and_board_agree_on_every_mix(node: MockNode) -> None:
    inventory = inventory_of(node)
    gpu = inventory.gpus[0]
    counted = published(inventory, gpu)
    order = [(name, *_place(gpu, name)) for name in counted.devices]
    nvml = Nvml(node)
    handle = nvml.gpu(0)
    differences: list[tuple[tuple[str, ...], str, bool]] = []
    mixes = 0

    def walk(position: int) -> None:
        nonlocal mixes
        mixes += 1
        for number in range(position, len(order)):
            name, profile, start, size = order[number]
            allowed = counted.fits(name)
            code, instance = nvml.create_gi(handle, profile, start, size)
            if allowed != (code == 0):
                differences.append((tuple(counted.taken), name, allowed))
            elif allowed:
                counted.take(name)
                walk(number + 1)
                counted.give_back(name)
            if code == 0:
                assert nvml.code("nvmlGpuInstanceDestroy", instance) == 0

    try:
        walk(0)
    finally:
        nvml.close()
    assert differences == []
    assert mixes > 50


def _place(gpu: Gpu, name: str) -> tuple[int, int, int]:
    """(profile id, start, size) of a published partition."""
    read = DeviceName.parse(name)
    assert read is not None
    assert read.profile_id is not None
    profile = gpu.profile(read.profile_id)
    assert profile is not None
    (placement,) = [one for one in profile.placements if one.start == read.start]
    return profile.profile_id, placement.start, placement.size
