"""Health, processes and NVML's topology through both backends and through the session."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from native.nvml import NvmlSession, make_backend
from native.nvml.errors import NvmlError, NvmlReturn
from native.nvml.healthtypes import GpuHealth, GpuProcess, NvmlTopology, RemappedRows, RetiredPages
from native.nvml.healthvalues import PROCESSES_AT_MOST, all_processes, topology
from native.nvml.protocol import Nvml

Open = Callable[..., Nvml]
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0", "0000:61:00.0")
GPU = ADDRESSES[1]

GETTERS = {
    "uuid": "nvmlDeviceGetUUID",
    "ecc_corrected_volatile": "nvmlDeviceGetTotalEccErrors/00",
    "ecc_uncorrected_volatile": "nvmlDeviceGetTotalEccErrors/10",
    "ecc_corrected_aggregate": "nvmlDeviceGetTotalEccErrors/01",
    "ecc_uncorrected_aggregate": "nvmlDeviceGetTotalEccErrors/11",
    "remapped_rows": "nvmlDeviceGetRemappedRows",
    "retired_pages": "nvmlDeviceGetRetiredPagesPendingStatus",
    "repair_pending": "nvmlDeviceGetRepairStatus",
    "recovery_action": "nvmlDeviceGetFieldValues",
    "clocks_event_reasons": "nvmlDeviceGetCurrentClocksEventReasons",
    "temperature": "nvmlDeviceGetTemperatureV",
    "utilization": "nvmlDeviceGetUtilizationRates",
    "memory_used": "nvmlDeviceGetMemoryInfo_v2",
    "compute_processes": "nvmlDeviceGetComputeRunningProcesses_v3",
    "graphics_processes": "nvmlDeviceGetGraphicsRunningProcesses_v3",
    "mps_processes": "nvmlDeviceGetMPSComputeRunningProcesses_v3",
}


def both(node, ask: Callable[[Nvml], object]) -> object:
    """The answer of both backends; equal, or the test fails here."""
    answers = []
    for name in ("cffi", "pynvml"):
        library = make_backend(node.library, name)
        library.open()
        answers.append(ask(library))
        library.close()
    assert answers[0] == answers[1]
    return answers[0]


def health(node) -> tuple[GpuHealth, ...]:
    found = both(node, lambda library: library.health(ADDRESSES))
    assert isinstance(found, tuple)
    return found


def lay_of(node) -> NvmlTopology:
    found = both(node, lambda library: library.topology(ADDRESSES))
    assert isinstance(found, NvmlTopology)
    return found


def test_a_healthy_gpu_tells_everything(node) -> None:
    gpu = health(node)[1]
    assert gpu.codes == {}
    assert all(getattr(gpu, name) is not None for name in GpuHealth.__struct_fields__)
    assert gpu.address == GPU
    assert (gpu.ecc_corrected_volatile, gpu.ecc_uncorrected_volatile) == (1, 11)
    assert (gpu.ecc_corrected_aggregate, gpu.ecc_uncorrected_aggregate) == (2, 12)
    assert gpu.remapped_rows == RemappedRows(3, 4, pending=True, failure=False)
    assert gpu.retired_pages == RetiredPages(single_bit=5, double_bit=6, pending=True)
    assert (gpu.repair_pending, gpu.recovery_action) == ((False, True), 2)
    assert (gpu.clocks_event_reasons, gpu.temperature, gpu.utilization) == (0x24, -3, (97, 12))
    assert gpu.memory_used == 12345


def test_processes_come_by_pid_with_their_instance(node) -> None:
    gpu = health(node)[0]
    assert gpu.compute_processes == (GpuProcess(1001, 7, 0, 1024), GpuProcess(1002, None, None, None))
    assert gpu.graphics_processes == (GpuProcess(1001, None, None, None),)
    assert gpu.mps_processes == ()


@pytest.mark.parametrize("running", [0, 64, 65, 700])
def test_any_number_of_processes_is_listed_whole(node, running: int) -> None:
    found = health(node.set("processes", running))[0].compute_processes
    assert found is not None
    assert len(found) == running
    assert [process.pid for process in found] == sorted(process.pid for process in found)


def test_a_list_of_processes_that_grows_without_end_is_given_up() -> None:
    rooms: list[int] = []

    def ask(room: int) -> tuple[int, int, list[GpuProcess]]:
        rooms.append(room)
        return NvmlReturn.INSUFFICIENT_SIZE, room + 1, []

    assert all_processes(ask) == (NvmlReturn.INSUFFICIENT_SIZE, ())
    assert rooms[-1] == PROCESSES_AT_MOST
    assert len(rooms) < 20


@pytest.mark.bug("B26")
@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.GPU_IS_LOST])
@pytest.mark.parametrize(("field", "call"), GETTERS.items())
def test_each_getter_may_fail_alone_and_its_code_is_kept(node, field: str, call: str, code: int) -> None:
    gpus = health(node.code(call, code, GPU))
    assert [gpu.codes for gpu in gpus] == [{}, {field: code}, {}, {}]
    assert getattr(gpus[1], field) is None


@pytest.mark.parametrize("counts", [(0, 0), (0, 1), (3, 0), (59, 5)])
def test_retired_pages_are_counted_by_cause_without_asking_for_their_addresses(node, counts: tuple[int, int]) -> None:
    gpu = health(node.set("retired0", counts[0]).set("retired1", counts[1]))[0]
    assert gpu.retired_pages == RetiredPages(*counts, pending=True)
    assert gpu.codes == {}


@pytest.mark.bug("B26")
@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.UNKNOWN])
@pytest.mark.parametrize("cause", [0, 1])
def test_retired_pages_of_one_cause_alone_are_no_answer(node, cause: int, code: int) -> None:
    gpus = health(node.code(f"nvmlDeviceGetRetiredPages/{cause}", code, GPU))
    assert [gpu.codes for gpu in gpus] == [{}, {"retired_pages": code}, {}, {}]
    assert gpus[1].retired_pages is None
    assert gpus[1].remapped_rows is not None


def test_a_library_that_counts_no_retired_pages_says_nothing_of_them(make_node) -> None:
    gpu = health(make_node(absent=("nvmlDeviceGetRetiredPages",)))[0]
    assert (gpu.retired_pages, gpu.codes) == (None, {"retired_pages": NvmlReturn.FUNCTION_NOT_FOUND})


def test_a_board_that_retires_no_pages_is_not_asked_how_many(node, backend_name: str) -> None:
    node.code("nvmlDeviceGetRetiredPagesPendingStatus", NvmlReturn.NOT_SUPPORTED)
    node.hang("nvmlDeviceGetRetiredPages/0").hang("nvmlDeviceGetRetiredPages/1")
    with NvmlSession(node.library, backend_name, call_timeout=5) as session:
        found = session.health(ADDRESSES, deadline=60)
        assert [dict(gpu.codes) for gpu in found] == [{"retired_pages": NvmlReturn.NOT_SUPPORTED}] * len(ADDRESSES)
        assert session.wedged == ()


@pytest.mark.parametrize(("field", "call"), [one for one in GETTERS.items() if "/" not in one[1]])
def test_a_call_that_an_old_library_lacks_reads_as_function_not_found_or_falls_back(
    make_node, field: str, call: str
) -> None:
    gpu = health(make_node(absent=(call,)))[0]
    if field == "clocks_event_reasons":
        assert gpu.clocks_event_reasons == 0x40
    elif field == "temperature":
        assert gpu.temperature == 41
    else:
        assert gpu.codes == {field: NvmlReturn.FUNCTION_NOT_FOUND}


def test_a_field_value_has_a_code_of_its_own(node) -> None:
    gpu = health(node.code("field", NvmlReturn.NOT_SUPPORTED))[0]
    assert gpu.recovery_action is None
    assert gpu.codes == {"recovery_action": NvmlReturn.NOT_SUPPORTED}


@pytest.mark.bug("B13")
def test_a_lost_gpu_does_not_hide_the_others(node) -> None:
    gpus = health(node.code("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.GPU_IS_LOST, GPU))
    assert gpus[1] == GpuHealth(GPU, codes={"handle": NvmlReturn.GPU_IS_LOST})
    assert [gpu.uuid is not None for gpu in gpus] == [True, False, True, True]


def test_distance_links_and_affinity_of_every_pair_are_told(node) -> None:
    lay = lay_of(node)
    assert lay.addresses == ADDRESSES
    assert lay.codes == {}
    assert lay.levels[ADDRESSES[1], ADDRESSES[0]] == 10
    assert lay.levels[ADDRESSES[0], ADDRESSES[2]] == 50
    assert len(lay.levels) == 12
    assert lay.nvlink[ADDRESSES[0], ADDRESSES[1]]
    assert not lay.nvlink[ADDRESSES[3], ADDRESSES[0]]
    assert lay.cpus[GPU] == {0, 63, 193}
    assert [lay.memory_nodes[address] for address in ADDRESSES] == [{0}, {0}, {1}, {1}]


@pytest.mark.bug("B22")
@pytest.mark.parametrize(
    ("call", "name"),
    [("nvmlDeviceGetCpuAffinity", "cpus"), ("nvmlDeviceGetMemoryAffinity", "memory_nodes")],
)
def test_an_affinity_that_is_not_supported_is_absent(node, call: str, name: str) -> None:
    lay = lay_of(node.code(call, NvmlReturn.NOT_SUPPORTED, GPU))
    assert GPU not in getattr(lay, name)
    assert lay.codes == {(name, GPU): NvmlReturn.NOT_SUPPORTED}


@pytest.mark.parametrize(
    ("call", "name"), [("nvmlDeviceGetTopologyCommonAncestor", "levels"), ("nvmlDeviceGetP2PStatus", "nvlink")]
)
def test_a_pair_that_is_not_told_is_absent_both_ways(node, call: str, name: str) -> None:
    lay = lay_of(node.code(call, NvmlReturn.UNKNOWN, ADDRESSES[2]))
    assert (ADDRESSES[3], ADDRESSES[2]) not in getattr(lay, name)
    assert lay.codes == {(name, ADDRESSES[2], ADDRESSES[3]): NvmlReturn.UNKNOWN}


@pytest.mark.bug("B13")
def test_a_lost_gpu_is_missing_from_the_topology_and_the_others_are_not(node) -> None:
    lay = lay_of(node.code("nvmlDeviceGetHandleByPciBusId_v2", NvmlReturn.GPU_IS_LOST, GPU))
    assert lay.codes["handle", GPU] == NvmlReturn.GPU_IS_LOST
    assert set(lay.cpus) == set(ADDRESSES) - {GPU}
    assert len(lay.levels) == 6


@pytest.mark.parametrize("asked", [(), ADDRESSES[:1]])
def test_few_gpus_have_a_topology_too(node, opened: Open, asked: tuple[str, ...]) -> None:
    assert opened(node).topology(asked).addresses == asked
    assert opened(node).topology(asked).levels == {}
    assert len(opened(node).health(asked)) == len(asked)


def test_a_topology_that_did_not_change_keeps_its_frozen_value(node) -> None:
    library = make_backend(node.library, "cffi")
    library.open()
    first = library.topology(ADDRESSES)
    assert library.topology(ADDRESSES) is first
    node.code("nvmlDeviceGetP2PStatus", NvmlReturn.UNKNOWN)
    assert library.topology(ADDRESSES) != first
    library.close()


def test_the_highest_cpus_are_counted_right() -> None:
    mask = (1 << (128 * 64 - 1)).to_bytes(1024, "little")
    lay = topology((GPU,), [(0, 0, 0, mask, b"\3")], [])
    assert lay.cpus[GPU] == {128 * 64 - 1}
    assert lay.memory_nodes[GPU] == {0, 1}


def test_a_library_that_is_not_open_says_so(node, backend_name: str) -> None:
    library = make_backend(node.library, backend_name)
    for ask in (lambda: library.health(()), lambda: library.topology(())):
        with pytest.raises(NvmlError) as caught:
            ask()
        assert caught.value.code == NvmlReturn.UNINITIALIZED


@pytest.mark.bug("B14")
@pytest.mark.parametrize("hanging", ["nvmlDeviceGetTotalEccErrors/00", "nvmlDeviceGetRetiredPages/1"])
def test_a_gpu_that_hangs_is_left_out_by_the_session(node, backend_name: str, hanging: str) -> None:
    with NvmlSession(node.library, backend_name, call_timeout=0.25) as session:
        node.hang(hanging, GPU)
        found = session.health(ADDRESSES, deadline=20)
        assert [dict(gpu.codes) for gpu in found] == [{}, {"handle": NvmlReturn.TIMEOUT}, {}, {}]
        assert session.wedged[0].call == hanging.split("/", maxsplit=1)[0]
        assert session.topology(ADDRESSES).addresses == (ADDRESSES[0], *ADDRESSES[2:])
        node.mend()
