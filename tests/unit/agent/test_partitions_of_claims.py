"""Between the rooms: whose partitions are whose, what metrics and statuses say of them, links that MIG mode hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.bridge import (
    count_prepared,
    device_statuses,
    kind_of,
    own_partitions,
    resources,
    with_other_hardware,
    with_owners,
    without_handed_over,
)
from driver.metrics import Deferred
from driver.model import Gpu, GpuState, MigMode, MigPartition, NodeInventory, PciAddress, Placement
from driver.node import LINKS, HiddenLinks
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Origin, Phase, is_remnant
from driver.prepare.partition import PartitionRecord
from driver.prepare.remnant import remnant
from driver.publish import PoolDocument
from native.nvml.errors import NvmlReturn
from native.nvml.types import NvmlSnapshot
from tests.support.nodes import address, nvml, nvml_gpu, switch_links

AT = "0000:1b:00.0"


def device(name: str, **changes: Any) -> DeviceRecord:
    values: dict[str, Any] = {"request": "r", "pool": "p", "share_id": None, "admin_access": False, "cdi_device": "c"}
    return DeviceRecord(device=name, **(values | {"address": AT, "uuid": "GPU-1"} | changes))


def part(origin: Origin, start: int = 4) -> DeviceRecord:
    partition = PartitionRecord(9, "3g.40gb", Placement(start, 4), "GPU-1", origin)
    return device(f"gpu-0000-1b-00-0-mig-3g-40gb-9-{start}").with_partition(partition, "MIG-1")


def record(*devices: DeviceRecord) -> ClaimRecord:
    return ClaimRecord(ClaimRef("ns", "c", "u1"), Phase.PREPARED, devices)


def divided(*starts: int) -> NodeInventory:
    partitions = tuple(MigPartition(f"MIG-{s}", s, 0, 9, "3g.40gb", Placement(s, 4)) for s in starts)
    gpu = Gpu(PciAddress.parse(AT), GpuState.READY, mig=MigMode(True, True), partitions=partitions)
    return NodeInventory("580", (13, 0), "13", (gpu, Gpu(PciAddress.parse("0000:1c:00.0"), GpuState.READY)))


@pytest.mark.parametrize("origin", [Origin.PLANNED, Origin.MAKING, Origin.MADE])
def test_what_is_made_for_a_claim_or_may_be_is_this_drivers(origin: Origin) -> None:
    marked = with_owners(divided(0, 4), own_partitions([record(part(origin))]))
    assert [(one.placement.start, one.managed) for one in marked.gpus[0].partitions] == [(0, False), (4, True)]


def test_what_was_found_is_somebody_elses_also_while_a_claim_has_it() -> None:
    assert own_partitions([record(part(Origin.FOUND), device("gpu-0000-1b-00-0"))]) == frozenset()
    inventory = divided(0, 4)
    assert with_owners(inventory, ()) is inventory


def test_a_claim_has_other_hardware_where_its_partition_was_made_again_under_another_uuid() -> None:
    whole = ClaimRecord(ClaimRef("ns", "w", "u2"), Phase.PREPARED, (device("gpu-0000-1b-00-0"),))
    before = record(part(Origin.MADE))
    partition = before.devices[0].partition
    assert partition is not None
    again = record(before.devices[0].with_partition(partition, "MIG-2"))
    assert with_other_hardware([before, whole], [again, whole]) == [again]
    assert with_other_hardware([whole], [whole, again]) == [], "one that is new says so itself"
    assert with_other_hardware([before, whole], [whole]) == []


def test_what_is_left_of_a_claim_on_a_lost_gpu_is_neither_counted_nor_told() -> None:
    before = record(part(Origin.MADE, 0), part(Origin.MADE))
    left = remnant(before, before.devices[:1])
    assert is_remnant(left)
    assert not is_remnant(before)
    assert with_other_hardware([before], [left]) == []
    told: dict[str, float] = {}

    class Seen:
        def set(self, name: str, value: float, **labels: str) -> None:
            told[name] = told.get(name, 0) + value

    metrics = Deferred()
    count_prepared([left], metrics)
    metrics.attach(Seen())  # type: ignore[arg-type]
    assert told == {"gpudra_prepared_claims": 0, "gpudra_prepared_devices": 0}


def nobody_asks(address: str) -> str | None:
    raise AssertionError(f"{address}: a GPU that is ready needs no look at the bus")


@pytest.mark.parametrize("phase", Phase)
def test_a_gpu_that_a_virtual_machine_has_is_nobody_of_nvidias_to_be_asked_about(phase: Phase) -> None:
    inventory = divided(0, 4)
    gpu, other = inventory.gpus
    claim = ClaimRecord(ClaimRef("ns", "vm", "u2"), phase, (device(f"{gpu.name}-vfio"),))
    seen, beside = without_handed_over(inventory, [claim], nobody_asks).gpus
    assert (seen.state, seen.driver) == (GpuState.UNBOUND, "vfio-pci")
    assert (seen.name, beside) == (gpu.name, other)
    whole = ClaimRecord(ClaimRef("ns", "w", "u3"), phase, (device(gpu.name),))
    assert without_handed_over(inventory, [whole], nobody_asks) is inventory


@pytest.mark.parametrize("state", sorted(set(GpuState) - {GpuState.READY, GpuState.UNBOUND}, key=str))
@pytest.mark.parametrize("phase", Phase)
def test_what_a_reading_found_of_a_gpu_in_the_moment_of_its_hand_over_is_nothing(phase: Phase, state: GpuState) -> None:
    inventory = divided(0, 4)
    gpu, other = inventory.gpus
    claim = ClaimRecord(ClaimRef("ns", "vm", "u2"), phase, (device(f"{gpu.name}-vfio"),))
    ill = replace(inventory, gpus=(replace(gpu, state=state), other))
    assert without_handed_over(ill, [claim], lambda _address: "nvidia") == ill, "it is NVIDIA's: this stays"
    for driver in ("vfio-pci", None):  # None: between the two
        seen, beside = without_handed_over(ill, [claim], {str(gpu.address): driver}.__getitem__).gpus
        assert (seen.state, seen.driver, beside) == (GpuState.UNBOUND, "vfio-pci", other)


def test_kinds_are_told_by_the_name() -> None:
    names = ["gpu-0000-1b-00-0", "gpu-0000-1b-00-0-vfio", "gpu-0000-1b-00-0-mig-3g-40gb-9-4", "gpu-of-another-version"]
    assert [kind_of(name) for name in names] == ["gpu", "vfio", "mig", "gpu"]


def test_prepared_devices_are_counted_by_kind() -> None:
    told: dict[tuple[str, str], float] = {}

    class Seen:
        def set(self, name: str, value: float, **labels: str) -> None:
            told[name, labels.get("type", "")] = value

    metrics = Deferred()
    count_prepared([record(part(Origin.MADE, 0), part(Origin.MADE), device("gpu-0000-1c-00-0"))], metrics)
    metrics.attach(Seen())  # type: ignore[arg-type]
    assert told == {
        ("gpudra_prepared_claims", ""): 1,
        ("gpudra_prepared_devices", "gpu"): 1,
        ("gpudra_prepared_devices", "mig"): 2,
        ("gpudra_prepared_devices", "vfio"): 0,
    }


def test_a_status_says_which_part_of_which_gpu_it_is() -> None:
    (status,) = device_statuses(record(part(Origin.MADE)))
    assert status.data is not None
    assert status.data["uuid"] == "MIG-1"
    assert (status.data["parentUUID"], status.data["profile"], status.data["pciBusID"]) == ("GPU-1", "3g.40gb", AT)


def test_of_a_device_that_only_its_cdi_file_tells_of_nothing_is_said_in_the_claims_status() -> None:
    forgotten = device("gpu-0000-1b-00-0", pool="", request="")
    assert device_statuses(record(forgotten)) == []
    assert len(device_statuses(record(forgotten, device("gpu-0000-1c-00-0")))) == 1


def test_counter_sets_are_slices_before_those_of_devices() -> None:
    document = PoolDocument("p", (({"name": "d"},),), counters=(({"name": "s"},),))
    first, second = resources(document).pools["p"].slices
    assert (first.shared_counters, first.devices) == (({"name": "s"},), ())
    assert (second.shared_counters, second.devices) == ((), ({"name": "d"},))


def reading(mode: bool, links: int | None) -> NvmlSnapshot:
    nvlinks = None if links is None else switch_links(links)
    return nvml(nvml_gpu(address(0), mig_mode=(mode, mode), nvlinks=nvlinks))


def test_links_that_mig_mode_hides_are_those_of_before() -> None:
    links = HiddenLinks()
    assert links.put_back(reading(mode=False, links=18)) == reading(mode=False, links=18)
    assert links.put_back(reading(mode=True, links=None)).gpus[0].nvlinks == switch_links(18)
    assert links.put_back(reading(mode=False, links=17)).gpus[0].nvlinks == switch_links(17)
    assert links.put_back(reading(mode=True, links=None)).gpus[0].nvlinks == switch_links(17)


@pytest.mark.parametrize("field", ["mig_mode", "nvlinks", "fabric"])
def test_links_that_nvml_does_not_tell_are_not_taken_for_none(field: str) -> None:
    links = HiddenLinks()
    links.put_back(reading(mode=False, links=18))
    refused = nvml(nvml_gpu(address(0), codes={field: NvmlReturn.UNKNOWN}, nvlinks=()))
    shown = links.put_back(refused).gpus[0].nvlinks
    assert shown == (switch_links(18) if field == "mig_mode" else refused.gpus[0].nvlinks), "the mode may be on"
    assert links.put_back(reading(mode=True, links=None)).gpus[0].nvlinks == switch_links(18)


def test_of_a_gpu_that_was_in_mig_mode_from_the_start_no_links_are_known() -> None:
    assert HiddenLinks().put_back(reading(mode=True, links=None)).gpus[0].nvlinks is None


def test_links_that_mig_mode_hides_outlive_the_agent(tmp_path: Path) -> None:
    HiddenLinks(tmp_path / LINKS).put_back(reading(mode=False, links=18))
    assert HiddenLinks(tmp_path / LINKS).put_back(reading(mode=True, links=None)).gpus[0].nvlinks == switch_links(18)


def test_links_of_another_gpu_in_the_same_place_are_not_taken_for_its_own(tmp_path: Path) -> None:
    HiddenLinks(tmp_path / LINKS).put_back(reading(mode=False, links=18))
    other = nvml(nvml_gpu(address(0), mig_mode=(True, True), nvlinks=None, uuid="GPU-other"))
    assert HiddenLinks(tmp_path / LINKS).put_back(other).gpus[0].nvlinks is None


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"0000:10:00.0":{}}', b"\xff"])
def test_a_file_of_links_that_cannot_be_used_costs_just_them(tmp_path: Path, content: bytes) -> None:
    (tmp_path / LINKS).write_bytes(content)
    links = HiddenLinks(tmp_path / LINKS)
    assert links.put_back(reading(mode=True, links=None)).gpus[0].nvlinks is None
    links.put_back(reading(mode=False, links=18))
    assert HiddenLinks(tmp_path / LINKS).put_back(reading(mode=True, links=None)).gpus[0].nvlinks == switch_links(18)


def test_links_that_cannot_be_written_are_said_once_and_written_when_they_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    links = HiddenLinks(tmp_path / "away" / LINKS)
    for _ in range(2):
        links.put_back(reading(mode=False, links=18))
    assert caplog.text.count("cannot be written") == 1
    (tmp_path / "away").mkdir()
    links.put_back(reading(mode=False, links=18))
    assert (tmp_path / "away" / LINKS).exists()
