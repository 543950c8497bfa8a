"""What is offered of a GPU of which NVML did not tell everything: nothing by a guess, and all once it was told."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from driver.health.lacking import HOLD_SECONDS, MUST, SOON, completed
from driver.health.remembered import Remembered
from driver.inventory import build_inventory
from driver.inventory.states import CALLS
from driver.inventory.unread import FIELDS, PLACE, unread_of
from driver.model import Gpu, GpuState, MigMode, MigPartition, MigSupport, NodeInventory, PciAddress, Placement
from driver.publish import build_pool
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import MigState
from native.nvml.types import FabricInfo, GpuSnapshot
from native.sysfs import HostProblem
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu, switch_links

A, B = address(0), address(1)
NAME, OTHER = "gpu-0000-10-00-0", "gpu-0000-20-00-0"
CLUSTER = "2e9eb4a5-9d5e-4d2f-8d9a-6b6c2a3d1f00"
FABRIC = FabricInfo(3, 0, CLUSTER, 7, 0)
OF_MIG = frozenset({"instances", "profiles"})
NEEDED = sorted(source for source, fields in FIELDS.items() if set(fields) & (MUST | SOON))


class Node:
    """Two GPUs, and what is published of them."""

    def __init__(self, mig: MigSupport = MigSupport.STATIC) -> None:
        self.now = 1000.0
        self.mig = mig
        self.remembered = Remembered(lambda _gpu: False, clock=lambda: self.now)

    def reading(self, *refused: str, **changes: Any) -> GpuSnapshot:
        codes = {source: int(NvmlReturn.UNKNOWN) for source in refused if source not in OF_MIG}
        of_mig = {source: int(NvmlReturn.UNKNOWN) for source in refused if source in OF_MIG}
        state = None
        if of_mig:
            state = MigState(
                None if "profiles" in of_mig else (), None if "instances" in of_mig else (), (), codes=of_mig
            )
        fields = {"nvlinks": switch_links(18), "fabric": FABRIC, "mig": state, "memory_numa_node": 1, **changes}
        return nvml_gpu(A, codes=codes, **fields)

    def inventory(self, gpu: GpuSnapshot, **bus: Any) -> NodeInventory:
        other = nvml_gpu(B, nvlinks=switch_links(18), fabric=FABRIC, memory_numa_node=1)
        return build_inventory(nvml(gpu, other), host(pci_gpu(A), pci_gpu(B), **bus), mock=False)

    def published(self, *refused: str, **changes: Any) -> dict[str, dict[str, Any]]:
        shown = self.remembered.view(self.inventory(self.reading(*refused, **changes)))
        pool = build_pool(shown, node_name="node-a", driver_name="gpu.nvidia.com", mig=self.mig, counters=True)
        self.withheld = {one.device: one.reason for one in pool.withheld}
        return {device["name"]: device for device in pool.devices}


def but_group(device: dict[str, Any]) -> dict[str, Any]:
    """A group of NVLink is called by the first of those that are known to be in it."""
    return {**device, "attributes": {key: one for key, one in device["attributes"].items() if key != "nvlinkGroup"}}


WELL = Node().published()


def test_every_call_of_a_reading_is_in_the_table_or_decides_alone_whether_there_is_a_gpu() -> None:
    assert set(CALLS) - set(FIELDS) == {"handle", "uuid", "index", "memory_reserved", "bar1_total"}
    assert set(FIELDS) - set(CALLS) == OF_MIG
    known = set(Gpu.__struct_fields__)
    assert {field for fields in FIELDS.values() for field in fields} | set(PLACE) | MUST | SOON <= known


@pytest.mark.parametrize("source", sorted(FIELDS))
def test_a_fact_that_is_not_told_at_the_first_reading_leads_to_no_wrong_offer_and_to_the_right_one_when_it_is(
    source: str,
) -> None:
    node = Node()
    first = node.published(source)
    assert but_group(first[OTHER]) == but_group(WELL[OTHER]), "the other GPU is published as usual"
    if source in NEEDED:
        assert NAME not in first
        assert f"of GPU {A} yet" in node.withheld[NAME]
    else:
        assert first == WELL, "nothing that is published depends on it"
    assert node.published() == WELL
    assert node.published(source) == WELL, "and it is not forgotten when it is not told again"


@pytest.mark.parametrize("source", NEEDED)
def test_a_gpu_is_offered_without_what_it_computes_without_after_a_while_and_never_without_what_may_be_in_use(
    source: str,
) -> None:
    node = Node()
    node.published(source)
    assert not node.remembered.overdue()
    node.now += HOLD_SECONDS + 1
    must = bool(set(FIELDS[source]) & MUST)
    assert node.remembered.overdue() is not must
    # Of the memory a key would be missing that its sibling has, which is a reason of the publication's own.
    assert (NAME in node.published(source)) is not (must or source == "memory_total")
    assert not node.remembered.overdue()
    assert node.published() == WELL


@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND])
@pytest.mark.parametrize("source", sorted(set(FIELDS) - OF_MIG - {"memory_total"}))
def test_a_board_or_a_driver_without_a_thing_has_told_so(source: str, code: int) -> None:
    gpu = nvml_gpu(A, codes={source: int(code)})
    (built,) = build_inventory(nvml(gpu), host(pci_gpu(A)), mock=False).gpus
    assert built.unread == ()


@pytest.mark.parametrize("mig", [MigSupport.STATIC, MigSupport.DYNAMIC, MigSupport.OFF])
@pytest.mark.parametrize("source", ["mig_mode", "instances"])
def test_no_guess_is_made_about_partitions_whatever_the_driver_does_with_mig(source: str, mig: MigSupport) -> None:
    node = Node(mig)
    mode = {} if source == "mig_mode" else {"mig_mode": (True, True)}
    assert NAME not in node.published(source, **mode)
    node.now += 10 * HOLD_SECONDS
    assert NAME not in node.published(source, **mode)


@pytest.mark.parametrize("architecture", [6, 8])
def test_a_board_of_a_kind_that_has_no_mig_needs_no_mode(architecture: int) -> None:
    assert NAME in Node().published("mig_mode", architecture=architecture)


def test_a_gpu_that_is_still_joining_its_fabric_is_in_no_clique_yet_rather_than_outside_any() -> None:
    node = Node()
    assert NAME not in node.published(fabric=replace_state(FABRIC, 2))
    assert node.published() == WELL
    assert node.published(fabric=replace_state(FABRIC, 2)) == WELL
    assert NAME in Node().published(fabric=replace_state(FABRIC, 1)), "nobody has begun"


def replace_state(fabric: FabricInfo, state: int) -> FabricInfo:
    return FabricInfo(state, fabric.status, fabric.cluster_uuid, fabric.clique_id, fabric.health_mask)


@pytest.mark.parametrize("field", sorted(PLACE))
def test_what_the_bus_does_not_tell_is_as_it_was(field: str) -> None:
    node = Node()
    node.published()
    empty: Any = {"drm_nodes": (), "switch_path": ()}.get(field)
    device = pci_gpu(A, **{{"switch_path": "bridges"}.get(field, field): empty})
    trouble = (HostProblem(A, "cannot read it"),)
    reading = build_inventory(nvml(node.reading()), host(device, problems=trouble), mock=False)
    assert field in reading.gpus[0].unread
    known = node.inventory(node.reading()).gpus[0]
    assert getattr(node.remembered.view(reading).gpus[0], field) == getattr(known, field)


@pytest.mark.parametrize("driver", [None, "vfio-pci"])
def test_a_gpu_whose_driver_the_bus_does_not_tell_is_not_offered_unless_nvml_answers(driver: str | None) -> None:
    gone = nvml_gpu(A, codes={"handle": NvmlReturn.NOT_FOUND})
    (built,) = build_inventory(nvml(gone), host(pci_gpu(A, driver=driver)), mock=False).gpus
    assert built.state is GpuState.UNBOUND


def test_versions_that_are_not_told_are_as_they_were() -> None:
    node = Node()
    well = node.inventory(node.reading())
    assert node.remembered.view(well) == well
    untold = replace(well, driver_version=None, cuda_driver_version=None)
    assert node.remembered.view(untold) == well
    without = replace(untold, gpus=())
    assert Remembered(lambda _gpu: False).view(without).driver_version is None


def test_partitions_stay_in_view_while_nvml_does_not_tell_what_stands(bench: Any) -> None:
    remembered = Remembered(lambda _gpu: False)
    on = MigMode(True, True)
    part = MigPartition("MIG-a", 3, 0, 9, "3g.40gb", Placement(0, 4))
    untold = bench.gpu(mig=on, partitions_known=False, unread=("partitions",))
    assert view(remembered, untold).state is GpuState.UNREADABLE, "nothing was known yet"
    known = bench.gpu(mig=on, partitions=(part,))
    view(remembered, known)
    assert view(remembered, untold) == known
    modeless = bench.gpu(mig=None, partitions_known=False, unread=("mig", "mig_profiles", "partitions"))
    assert view(remembered, modeless) == known, "nor its mode"
    assert remembered.whole is not None
    assert remembered.whole.gpus == (known,)
    empty = bench.gpu(mig=on)
    assert view(remembered, empty) == empty, "NVML says that nothing stands"
    other = bench.gpu(uuid="GPU-other", mig=on, partitions_known=False, unread=("partitions",))
    assert view(remembered, other).state is GpuState.UNREADABLE, "another board"


def view(remembered: Remembered, *gpus: Gpu, **fields: Any) -> Gpu:
    return remembered.view(NodeInventory("580.1", (13, 0), "13", gpus, **fields)).gpus[0]


def test_gpus_that_a_reading_of_the_bus_may_lack_are_neither_withdrawn_nor_called_lost(bench: Any) -> None:
    remembered = Remembered(lambda _gpu: False, clock=lambda: bench.boot)
    well, other = bench.gpu(), bench.gpu("0000:1c:00.0")
    view(remembered, well, other)
    for _ in range(3):
        bench.advance(1000)
        shown = remembered.view(NodeInventory("580.1", (13, 0), "13", (other,), gpus_known=False))
        assert shown.gpus == (well, other)
        assert remembered.vanished() == frozenset()
    remembered.view(NodeInventory("580.1", (13, 0), "13", (other,)))
    assert remembered.vanished() == {well.name}
    remembered.view(NodeInventory("580.1", (13, 0), "13", (other,), gpus_known=False))
    assert remembered.vanished() == {well.name}, "that it is gone was known before"


def test_groups_of_nvlink_are_as_they_were_while_one_of_them_does_not_tell_its_links() -> None:
    node = Node()
    well = node.remembered.view(node.inventory(node.reading()))
    untold = node.remembered.view(node.inventory(node.reading("nvlinks")))
    assert [gpu.nvlink_group for gpu in untold.gpus] == [gpu.nvlink_group for gpu in well.gpus] == [0, 0]
    assert untold.nvlink_groups == well.nvlink_groups
    assert node.remembered.whole == well


@given(st.lists(st.sets(st.sampled_from(sorted(FIELDS)), max_size=4), max_size=8))
@settings(max_examples=80, deadline=None)
def test_whatever_is_refused_when_what_was_told_once_is_published_as_it_was_told(refusals: list[set[str]]) -> None:
    node = Node()
    for refused in refusals:
        published = node.published(*refused)
        assert but_group(published[OTHER]) == but_group(WELL[OTHER])
        assert published.get(NAME, WELL[NAME]) == WELL[NAME], "right, or not there"
    assert node.published() == WELL


def test_another_board_in_the_same_place_has_nothing_of_the_one_before() -> None:
    before = Gpu(PciAddress(0, 1, 0, 0), GpuState.READY, uuid="GPU-1", serial="1")
    now = replace(before, uuid="GPU-2", serial=None, unread=("serial",))
    assert completed(now, before) == now
    assert completed(replace(now, uuid="GPU-1"), before) == before


def test_a_gpu_that_is_built_with_its_answers_has_nothing_unread() -> None:
    node = Node()
    built = node.inventory(node.reading()).gpus[0]
    assert unread_of(built, node.reading(), troubled=False) == ()
