"""Rows of public bug reports about discovery, through sysfs, NVML and the inventory at once, on odd machines."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.health.findings import CAUSES
from driver.health.verdicts import TAINTS
from driver.model import GpuState, NodeInventory
from driver.node import NodePaths, NodeReader
from driver.publish.pool import build_pool, slice_objects
from kubeletplugin.validation.slices import validate_slice
from native.mock import Failure, MockNode
from native.nvml.errors import NvmlReturn


def inventory(node: MockNode, **paths: Path) -> NodeInventory:
    roots = {"driver_root": node.root, "sys_root": node.root / "sys", "proc_root": node.root / "proc", **paths}
    reader = NodeReader(NodePaths(**roots))
    try:
        return reader.read()
    finally:
        reader.close()


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], MockNode]:
    """A node that the test may spoil."""

    def make(profile: str) -> MockNode:
        node = MockNode.create(tmp_path / "node", profile)
        for name, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
            monkeypatch.setenv(name, value)
        return node

    return make


@pytest.mark.bug("B03")
def test_a_gpu_under_wsl_has_a_name_without_minor_number_or_pci_tree(
    own: Callable[[str], MockNode], tmp_path: Path
) -> None:
    node = own("t4")
    library = node.library.resolve()
    windows = node.root / "usr/lib/wsl/lib"
    windows.mkdir(parents=True)
    shutil.move(library, windows / "libnvidia-ml.so.1")
    node.library.unlink()
    node.set_failures([Failure("nvmlDeviceGetMinorNumber", int(NvmlReturn.NOT_SUPPORTED))])
    nothing = tmp_path / "nothing"
    nothing.mkdir()

    found = inventory(node, sys_root=nothing)

    assert [str(gpu.address) for gpu in found.gpus] == [gpu.address for gpu in node.profile.gpus]
    for gpu in found.gpus:
        assert gpu.state is GpuState.READY
        assert gpu.minor is None
        assert gpu.name == f"gpu-{str(gpu.address).replace(':', '-').replace('.', '-')}"
        assert gpu.uuid is not None


@pytest.mark.bug("B28")
def test_two_gpus_with_one_uuid_are_both_held_back(dgx: MockNode) -> None:
    first, second = (gpu.address for gpu in dgx.profile.gpus[:2])
    kept = inventory(dgx)
    before = next(gpu.uuid for gpu in kept.gpus if str(gpu.address) == second)
    assert before is not None
    same = next(gpu.uuid for gpu in kept.gpus if str(gpu.address) == first)
    assert same is not None
    dgx.set_text(second, "uuid", same)
    try:
        states = {str(gpu.address): gpu.state for gpu in inventory(dgx).gpus}
    finally:
        dgx.set_text(second, "uuid", before)
    assert states[first] is not GpuState.READY
    assert states[second] is not GpuState.READY
    assert sum(state is GpuState.READY for state in states.values()) == 6


@pytest.mark.bug("B11")
def test_a_gpu_is_back_in_the_inventory_after_it_was_plugged_in_again(dgx: MockNode) -> None:
    victim = dgx.profile.gpus[5].address
    roots = NodePaths(driver_root=dgx.root, sys_root=dgx.root / "sys", proc_root=dgx.root / "proc")
    reader = NodeReader(roots)
    try:
        whole = reader.read()
        dgx.unplug(victim, first="nvml")
        assert victim not in [str(gpu.address) for gpu in reader.read().gpus]
        dgx.plug(victim, first="sysfs")
        assert reader.read().gpus == whole.gpus
    finally:
        reader.close()


@pytest.mark.bug("B23")
def test_a_uuid_that_fails_leaves_no_trace_of_the_gpu_before(dgx: MockNode) -> None:
    victim = dgx.profile.gpus[1].address
    healthy = {str(gpu.address): gpu.uuid for gpu in inventory(dgx).gpus}
    dgx.set_failures([Failure("nvmlDeviceGetUUID", int(NvmlReturn.UNKNOWN), victim)])
    found = {str(gpu.address): gpu for gpu in inventory(dgx).gpus}
    assert found[victim].uuid is None
    assert found[victim].state is GpuState.UNREADABLE
    assert {at: gpu.uuid for at, gpu in found.items() if at != victim} == {
        at: uuid for at, uuid in healthy.items() if at != victim
    }


@pytest.mark.bug("B17")
@pytest.mark.parametrize("profile", ["l40s", "t4", "gb10"])
def test_a_board_without_mig_is_published_without_counters(
    node_of: Callable[[str], MockNode], activate: Callable[[MockNode], MockNode], profile: str
) -> None:
    found = inventory(activate(node_of(profile)))
    assert [gpu.mig for gpu in found.gpus] == [None] * len(found.gpus)
    pool = build_pool(found, node_name="worker-1", driver_name="gpu.nvidia.com")
    documents = slice_objects(pool, node_name="worker-1", driver_name="gpu.nvidia.com")
    assert documents
    for document in documents:
        assert validate_slice(document["spec"]) == []
        assert not document["spec"].get("sharedCounters")
        assert [device for device in document["spec"]["devices"] if device.get("consumesCounters")] == []
    assert len(pool.devices) == len(found.gpus)


def test_a_gpu_that_vfio_holds_is_none_of_nvmls(own: Callable[[str], MockNode]) -> None:
    node = own("dgx-h100")
    held = node.profile.gpus[2]
    link = node.root.joinpath("sys/devices", *held.device.path, "driver")
    link.unlink()
    link.symlink_to(node.root / "sys/bus/pci/drivers/vfio-pci")
    node.set_gpu_state(held.address, "silent")  # whoever asks NVML about it does not come back

    found = inventory(node)

    states = {str(gpu.address): (gpu.state, gpu.driver) for gpu in found.gpus}
    assert states.pop(held.address) == (GpuState.UNBOUND, "vfio-pci")
    assert set(states.values()) == {(GpuState.READY, "nvidia")}


@pytest.mark.bug("B08")
@pytest.mark.parametrize("key", TAINTS)
def test_every_taint_is_one_that_the_api_takes_whatever_its_cause(key: str, dgx: MockNode) -> None:
    found = inventory(dgx)
    values = ["", "18446744073709551615", *CAUSES]  # an XID is the longest number that NVML can report
    for start in range(0, len(values), len(found.gpus)):
        some = dict(zip((gpu.name for gpu in found.gpus), values[start:], strict=False))
        chosen = {name: [{"key": key, "value": value, "effect": "NoExecute"}] for name, value in some.items()}
        pool = build_pool(found, node_name="worker-1", driver_name="gpu.nvidia.com", taints=chosen)
        documents = slice_objects(pool, node_name="worker-1", driver_name="gpu.nvidia.com")
        assert [fault for document in documents for fault in validate_slice(document["spec"])] == []
        tainted = [device for document in documents for device in document["spec"]["devices"] if device.get("taints")]
        assert {device["name"]: device["taints"][0]["value"] for device in tainted} == some
