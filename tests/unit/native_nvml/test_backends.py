"""Both backends over a small library of our own: what a snapshot says of good and bad GPUs."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from native.nvml.cffi_backend import CffiNvml
from native.nvml.errors import LibraryUnavailableError, NvmlError, NvmlReturn
from native.nvml.protocol import Nvml
from native.nvml.pynvml_backend import PynvmlNvml
from native.nvml.types import GpuSnapshot, NvLink, NvmlSnapshot

Open = Callable[..., Nvml]
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")

GETTERS = {
    "index": "nvmlDeviceGetIndex",
    "uuid": "nvmlDeviceGetUUID",
    "name": "nvmlDeviceGetName",
    "brand": "nvmlDeviceGetBrand",
    "architecture": "nvmlDeviceGetArchitecture",
    "cuda_compute_capability": "nvmlDeviceGetCudaComputeCapability",
    "serial": "nvmlDeviceGetSerial",
    "board_part_number": "nvmlDeviceGetBoardPartNumber",
    "vbios_version": "nvmlDeviceGetVbiosVersion",
    "minor_number": "nvmlDeviceGetMinorNumber",
    "module_id": "nvmlDeviceGetModuleId",
    "memory_reserved": "nvmlDeviceGetMemoryInfo_v2",
    "bar1_total": "nvmlDeviceGetBAR1MemoryInfo",
    "addressing_mode": "nvmlDeviceGetAddressingMode",
    "ecc_mode": "nvmlDeviceGetEccMode",
    "mig_mode": "nvmlDeviceGetMigMode",
    "compute_mode": "nvmlDeviceGetComputeMode",
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
    "virtualization_mode": "nvmlDeviceGetVirtualizationMode",
    "pcie_link_generation": "nvmlDeviceGetMaxPcieLinkGeneration",
    "pcie_link_width": "nvmlDeviceGetMaxPcieLinkWidth",
    "memory_numa_node": "nvmlDeviceGetNumaNodeId",
    "nvlinks": "nvmlDeviceGetNvLinkState",
    "fabric": "nvmlDeviceGetGpuFabricInfoV",
}


def both(node: object) -> tuple[NvmlSnapshot, NvmlSnapshot]:
    """The node by both backends, by address and by index; equal, or the test fails here."""
    snapshots = []
    for asked in (ADDRESSES, None):
        readings = []
        for kind in (CffiNvml, PynvmlNvml):
            library = kind(node.library)  # type: ignore[attr-defined]  # StubNode lives in conftest
            library.open()
            try:
                readings.append(library.snapshot(asked))
            finally:
                library.close()
        assert readings[0] == readings[1]
        snapshots.append(readings[0])
    return snapshots[0], snapshots[1]


def test_a_healthy_node_is_read_whole(node, opened: Open) -> None:
    snapshot = opened(node).snapshot(ADDRESSES)
    assert (snapshot.driver_version, snapshot.nvml_version) == ("580.105.08", "13.580.105.08")
    assert snapshot.cuda_driver_version == 13000
    assert [gpu.address for gpu in snapshot.gpus] == list(ADDRESSES)
    gpu = snapshot.gpus[1]
    assert gpu.codes == {}
    assert all(getattr(gpu, name) is not None for name in GpuSnapshot.__struct_fields__ if name != "mig")
    assert gpu.mig is None
    assert (gpu.index, gpu.minor_number, gpu.module_id) == (1, 1, 6)
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000000001"
    assert (gpu.pci_device_id, gpu.pci_subsystem_id) == (0x233010DE, 0x16C110DE)
    assert (gpu.memory_total, gpu.memory_reserved, gpu.bar1_total) == (85520809984, 700000000, 137438953472)
    assert (gpu.ecc_mode, gpu.mig_mode, gpu.cuda_compute_capability) == ((True, False), (False, True), (9, 0))
    assert (gpu.persistence_mode, gpu.addressing_mode, gpu.memory_numa_node) == (True, 1, 2)


def test_links_say_state_generation_and_far_end(node, opened: Open) -> None:
    links = opened(node).snapshot(ADDRESSES).gpus[0].nvlinks
    assert links is not None
    assert len(links) == 18
    assert links[1] == NvLink(1, True, 6, "0000:a1:00.0", 2)
    assert links[17] == NvLink(17, False, 6, None, None)


def test_gpus_come_in_the_order_that_was_asked_for(node, opened: Open) -> None:
    asked = ("0000:61:00.0", "00000000:1B:00.0")
    assert [gpu.address for gpu in opened(node).snapshot(asked).gpus] == ["0000:61:00.0", "0000:1b:00.0"]


def test_enumerating_by_index_gives_the_same_gpus(node, opened: Open) -> None:
    library = opened(node)
    assert library.snapshot(None) == library.snapshot(ADDRESSES)
    assert library.addresses() == ADDRESSES
    assert library.device_count() == 4


def test_nothing_asked_gives_the_node_without_gpus(node, opened: Open) -> None:
    snapshot = opened(node).snapshot(())
    assert snapshot.gpus == ()
    assert snapshot.driver_version == "580.105.08"


def test_an_address_without_a_gpu_is_said_to_be_unreachable(node, opened: Open) -> None:
    snapshot = opened(node).snapshot(("0000:99:00.0", ADDRESSES[0]))
    assert snapshot.gpus[0] == GpuSnapshot("0000:99:00.0", codes={"handle": NvmlReturn.NOT_FOUND})
    assert snapshot.gpus[1].codes == {}


def test_a_misspelt_address_is_refused_before_any_call(node, opened: Open) -> None:
    with pytest.raises(ValueError, match="not a PCI address"):
        opened(node).snapshot(("GPU-1",))


@pytest.mark.bug("B13")
@pytest.mark.parametrize("code", [NvmlReturn.GPU_IS_LOST, NvmlReturn.UNKNOWN, 77])
def test_a_lost_gpu_does_not_hide_the_others(node, code: int) -> None:
    node.code("nvmlDeviceGetHandleByPciBusId_v2", code, ADDRESSES[2])
    node.code("nvmlDeviceGetHandleByIndex_v2", code, ADDRESSES[2])
    by_address, by_index = both(node)
    assert by_address.gpus[2] == GpuSnapshot(ADDRESSES[2], codes={"handle": code})
    assert by_index.gpus[2] == GpuSnapshot(None, index=2, codes={"handle": code})
    assert [gpu.uuid is not None for gpu in by_address.gpus] == [True, True, False, True]
    assert [gpu.uuid is not None for gpu in by_index.gpus] == [True, True, False, True]


@pytest.mark.bug("B13")
def test_a_gpu_that_dies_while_it_is_read_keeps_what_it_said_before(node) -> None:
    for call in list(GETTERS.values())[8:]:
        node.code(call, NvmlReturn.GPU_IS_LOST, ADDRESSES[3])
    gpu = both(node)[0].gpus[3]
    assert gpu.name == "NVIDIA H100 80GB HBM3"
    assert gpu.codes["mig_mode"] == NvmlReturn.GPU_IS_LOST
    assert gpu.nvlinks is None


@pytest.mark.bug("B13")
def test_addresses_leave_a_hole_for_a_gpu_that_does_not_answer(node, opened: Open) -> None:
    node.code("nvmlDeviceGetHandleByIndex_v2", NvmlReturn.GPU_IS_LOST, ADDRESSES[0])
    node.code("nvmlDeviceGetPciInfo_v3", NvmlReturn.UNKNOWN, ADDRESSES[1])
    assert opened(node).addresses() == (None, None, ADDRESSES[2], ADDRESSES[3])


@pytest.mark.bug("B27")
@pytest.mark.bug("B26")
@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.UNKNOWN, NvmlReturn.NO_PERMISSION])
@pytest.mark.parametrize(("field", "call"), GETTERS.items())
def test_each_getter_may_fail_alone_and_its_code_is_kept(node, field: str, call: str, code: int) -> None:
    node.code(call, code, ADDRESSES[1])
    by_address, by_index = both(node)
    for snapshot in (by_address, by_index):
        assert [gpu.codes for gpu in snapshot.gpus if gpu.address != ADDRESSES[1]] == [{}, {}, {}]
    gpu = by_address.gpus[1]
    assert getattr(gpu, field) is None
    assert gpu.codes[field] == code
    others = set(GpuSnapshot.__struct_fields__) - {field, "codes", "memory_total", "mig"}
    assert all(getattr(gpu, other) is not None for other in others)


@pytest.mark.bug("B27")
@pytest.mark.parametrize(("field", "call"), GETTERS.items())
def test_a_call_that_an_old_library_lacks_reads_as_function_not_found(make_node, field: str, call: str) -> None:
    older = ("nvmlDeviceGetGpuFabricInfo",) if field == "fabric" else ()
    node = make_node(absent=(call, *older))
    by_address, by_index = both(node)
    for snapshot in (by_address, by_index) if field != "index" else (by_address,):
        for gpu in snapshot.gpus:
            assert getattr(gpu, field) is None
            assert gpu.codes == {field: NvmlReturn.FUNCTION_NOT_FOUND}


@pytest.mark.bug("B23")
def test_a_failed_read_never_repeats_the_gpu_before(node) -> None:
    node.code("nvmlDeviceGetUUID", NvmlReturn.UNKNOWN, ADDRESSES[1])
    node.code("nvmlDeviceGetPciInfo_v3", NvmlReturn.UNKNOWN, ADDRESSES[1])
    by_address, by_index = both(node)
    for gpu in (by_address.gpus[1], by_index.gpus[1]):
        assert gpu.uuid is None
        assert gpu.pci_device_id is None
    assert by_index.gpus[1].address is None
    assert by_index.gpus[1].codes["address"] == NvmlReturn.UNKNOWN


@pytest.mark.bug("B01")
def test_memory_that_is_not_supported_is_absent_not_zero(node) -> None:
    node.code("nvmlDeviceGetMemoryInfo_v2", NvmlReturn.NOT_SUPPORTED)
    node.code("nvmlDeviceGetMemoryInfo", NvmlReturn.NOT_SUPPORTED)
    gpu = both(node)[0].gpus[0]
    assert (gpu.memory_total, gpu.memory_reserved) == (None, None)
    assert gpu.codes == {"memory_total": 3, "memory_reserved": 3}


@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.ARGUMENT_VERSION_MISMATCH])
def test_memory_falls_back_to_the_older_call(node, code: int) -> None:
    node.code("nvmlDeviceGetMemoryInfo_v2", code)
    gpu = both(node)[0].gpus[0]
    assert gpu.memory_total == 1000
    assert gpu.codes == {"memory_reserved": code}


def test_memory_that_failed_for_good_is_not_asked_in_the_older_way(node) -> None:
    node.code("nvmlDeviceGetMemoryInfo_v2", NvmlReturn.GPU_IS_LOST)
    assert both(node)[0].gpus[0].codes == {"memory_total": 15, "memory_reserved": 15}


@pytest.mark.parametrize(("version", "clique", "health"), [(3, 3, 0x1555), (2, 2, 0x1555), (1, 1, 0)])
def test_fabric_info_falls_back_through_its_versions(node, version: int, clique: int, health: int) -> None:
    fabric = both(node.set("fabric", version))[0].gpus[0].fabric
    assert fabric is not None
    assert (fabric.clique_id, fabric.health_mask, fabric.state) == (clique, health, 3)
    assert fabric.cluster_uuid == "deadbeef-0102-0304-0506-0708090a0b0c"


def test_pci_info_falls_back_to_the_form_that_an_old_library_has(make_node) -> None:
    by_address, by_index = both(make_node(absent=("nvmlDeviceGetPciInfo_v3",)))
    assert [gpu.codes for gpu in (*by_address.gpus, *by_index.gpus)] == [{}] * 8


@pytest.mark.parametrize("links", [1, 4, 18])
def test_links_end_where_the_board_has_no_more(node, links: int) -> None:
    found = both(node.set("links", links))[0].gpus[0].nvlinks
    assert found is not None
    assert [link.index for link in found] == list(range(links))


def test_a_board_without_links_has_none_and_says_why(node) -> None:
    gpu = both(node.set("links", 0))[0].gpus[0]
    assert gpu.nvlinks is None
    assert gpu.codes == {"nvlinks": NvmlReturn.NOT_SUPPORTED}


def test_a_link_that_the_board_lacks_in_the_middle_is_a_hole(node) -> None:
    node.code("nvmlDeviceGetNvLinkState/2", NvmlReturn.NOT_SUPPORTED).set("links", 4)
    found = both(node)[0].gpus[0].nvlinks
    assert found is not None
    assert [link.index for link in found] == [0, 1, 3]


def test_an_invalid_link_number_is_the_end_of_the_list(node) -> None:
    node.code("nvmlDeviceGetNvLinkState/2", NvmlReturn.INVALID_ARGUMENT)
    found = both(node)[0].gpus[0].nvlinks
    assert found is not None
    assert [link.index for link in found] == [0, 1]


def test_a_link_list_that_breaks_off_is_unknown_not_short(node) -> None:
    node.code("nvmlDeviceGetNvLinkState/5", NvmlReturn.GPU_IS_LOST)
    gpu = both(node)[0].gpus[0]
    assert gpu.nvlinks is None
    assert gpu.codes == {"nvlinks": NvmlReturn.GPU_IS_LOST}


def test_a_far_end_that_is_not_told_leaves_the_link(node) -> None:
    node.code("nvmlDeviceGetNvLinkRemotePciInfo_v2/0", NvmlReturn.NOT_SUPPORTED)
    node.code("nvmlDeviceGetNvLinkRemoteDeviceType/1", NvmlReturn.UNKNOWN)
    node.code("nvmlDeviceGetNvLinkVersion/2", NvmlReturn.UNKNOWN)
    links = both(node)[0].gpus[0].nvlinks
    assert links is not None
    assert links[0] == NvLink(0, True, 6, None, 2)
    assert links[1] == NvLink(1, True, 6, "0000:a1:00.0", None)
    assert links[2] == NvLink(2, True, None, "0000:a2:00.0", 2)


@pytest.mark.bug("B04")
@pytest.mark.parametrize(("field", "call"), [(name, GETTERS[name]) for name in ("uuid", "name", "serial")])
def test_foreign_bytes_in_a_string_do_no_harm(node, field: str, call: str) -> None:
    node.text(call, b"\xf8\x95\x8d\x8f\x00", ADDRESSES[0])
    node.text(call, b"N" * 96, ADDRESSES[1])
    node.text(call, b"NVIDIA L4\0\0\0junk", ADDRESSES[2])
    node.text(call, b"\0", ADDRESSES[3])
    gpus = both(node)[0].gpus
    assert [getattr(gpu, field) for gpu in gpus] == ["\ufffd" * 4, "N" * 96, "NVIDIA L4", None]
    assert gpus[3].codes == {field: NvmlReturn.NO_DATA}


@pytest.mark.bug("B04")
def test_foreign_bytes_in_versions_and_bus_ids_do_no_harm(node) -> None:
    node.text("nvmlSystemGetDriverVersion", b"580.\xff05\0", "-")
    node.text("nvmlDeviceGetPciInfo_v3", b"\xff\xfe" * 16, ADDRESSES[0])
    by_address, by_index = both(node)
    assert by_address.driver_version == "580.\ufffd05"
    # The numbers beside the unreadable text still say where the GPU is.
    assert by_index.gpus[0].address == ADDRESSES[0]


@pytest.mark.bug("B20")
@pytest.mark.parametrize("address", ["000f:01:00.0", "10000:01:00.0", "3f8cfdd:00:00.0"])
def test_wide_and_odd_domains_are_spelt_as_the_kernel_does(make_node, opened: Open, address: str) -> None:
    library = opened(make_node(gpus=(address,)))
    assert library.addresses() == (address,)
    assert library.snapshot(None).gpus[0].address == address
    assert library.snapshot((address,)).gpus[0].codes == {}


def test_versions_that_are_not_told_leave_their_codes(node) -> None:
    node.code("nvmlSystemGetNVMLVersion", NvmlReturn.UNKNOWN)
    # Without libcuda this call says LIBRARY_NOT_FOUND: that is not NVML's own absence.
    node.code("nvmlSystemGetCudaDriverVersion_v2", NvmlReturn.LIBRARY_NOT_FOUND)
    snapshot = both(node)[0]
    assert snapshot.codes == {"nvml_version": 999, "cuda_driver_version": 12}
    assert (snapshot.nvml_version, snapshot.cuda_driver_version) == (None, None)
    assert snapshot.gpus[0].codes == {}


@pytest.mark.parametrize("code", [9, 12, 18])
def test_a_driver_that_is_not_there_is_a_state_of_the_node(node, backend_name: str, opened: Open, code: int) -> None:
    node.code("nvmlInitWithFlags", code)
    with pytest.raises(LibraryUnavailableError, match=f"\\({code}\\)") as caught:
        opened(node)
    assert caught.value.code == code
    assert str(node.library) in str(caught.value)


@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_goes_away_later_is_a_state_of_the_node_too(node, opened: Open, code: int) -> None:
    library = opened(node)
    node.code("nvmlSystemGetDriverVersion", code)
    node.code("nvmlDeviceGetCount_v2", code)
    with pytest.raises(LibraryUnavailableError):
        library.snapshot(ADDRESSES)
    with pytest.raises(LibraryUnavailableError):
        library.device_count()


def test_another_failure_to_initialise_is_an_error_with_its_code(node, opened: Open) -> None:
    node.code("nvmlInitWithFlags", NvmlReturn.NO_PERMISSION)
    with pytest.raises(NvmlError, match=r"nvmlInitWithFlags: NO_PERMISSION \(4\)"):
        opened(node)


def test_a_library_without_init_with_flags_is_initialised_the_old_way(make_node, opened: Open) -> None:
    assert opened(make_node(absent=("nvmlInitWithFlags",))).device_count() == 4


def test_a_backend_may_be_closed_twice_and_opened_again(node, opened: Open) -> None:
    library = opened(node)
    library.open()
    library.close()
    library.close()
    for call in (library.device_count, library.is_mock, library.addresses, lambda: library.snapshot(ADDRESSES)):
        with pytest.raises(NvmlError) as caught:
            call()
        assert caught.value.code == NvmlReturn.UNINITIALIZED
    assert library.progress() is None
    library.open()
    assert len(library.snapshot(None).gpus) == 4


def test_two_libraries_live_in_one_process_and_stay_apart(make_node, opened: Open) -> None:
    first, second = make_node(), make_node(gpus=("0000:99:00.0",))
    libraries = [opened(first), opened(second)]
    assert [library.addresses() for library in libraries] == [ADDRESSES, ("0000:99:00.0",)]
    libraries[0].close()
    assert libraries[1].addresses() == ("0000:99:00.0",)


def test_a_library_that_is_no_mock_does_not_say_so(node, opened: Open) -> None:
    assert opened(node).is_mock() is False


@pytest.mark.bug("B14")
def test_the_call_under_way_is_seen_from_another_thread_and_python_runs_on(node, opened: Open, until) -> None:
    library = opened(node)
    node.hang("nvmlDeviceGetSerial", ADDRESSES[2])
    results: list[NvmlSnapshot] = []
    thread = threading.Thread(target=lambda: results.append(library.snapshot(ADDRESSES)))
    thread.start()

    def hangs() -> bool:
        call = library.progress()
        return call is not None and call.call == "nvmlDeviceGetSerial" and call.address == ADDRESSES[2]

    until(hangs)
    seen = library.progress()
    assert seen == library.progress()
    node.mend()
    thread.join(20)
    assert library.progress() is None
    assert results[0].gpus[2].serial == "1650000000001"


def test_progress_names_a_gpu_reached_by_index_once_its_address_is_known(node, opened: Open, until) -> None:
    library = opened(node)
    node.hang("nvmlDeviceGetName", ADDRESSES[1])
    thread = threading.Thread(target=lambda: library.snapshot(None))
    thread.start()
    until(lambda: (call := library.progress()) is not None and call.call == "nvmlDeviceGetName")
    until(lambda: (call := library.progress()) is not None and call.address == ADDRESSES[1])
    node.mend()
    thread.join(20)
    assert not thread.is_alive()


def test_an_unchanged_gpu_keeps_its_frozen_value_and_a_changed_one_does_not(node) -> None:
    library = CffiNvml(node.library)
    library.open()
    before = library.snapshot(ADDRESSES)
    node.text("nvmlDeviceGetName", b"NVIDIA H200\0", ADDRESSES[1])
    after = library.snapshot(ADDRESSES)
    library.close()
    assert [new is old for new, old in zip(after.gpus, before.gpus, strict=True)] == [True, False, True, True]
    assert after.gpus[1].name == "NVIDIA H200"
