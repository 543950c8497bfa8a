"""Events, processes and the numbers that a test drives."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from native.mock import MockNode, Process
from native.mock.control import EVENT_TYPES
from native.mock.layout import EVENTS
from tests.support.mocknodes import Ask
from tests.support.nvmlcalls import Nvml

WHOLE_GPU = 0xFFFFFFFF


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[Nvml]:
    library = Nvml(MockNode.create(tmp_path / "root", "dgx-h100"))
    yield library
    assert library.close() == 0


@pytest.fixture
def addresses(nvml: Nvml) -> list[str]:
    return [gpu.address for gpu in nvml.node.profile.gpus]


def test_an_xid_is_about_the_whole_gpu_unless_it_says_otherwise(nvml: Nvml, addresses: list[str]) -> None:
    events = nvml.listen(nvml.gpu(2), 8)
    nvml.node.xid(addresses[2], 79)
    nvml.node.xid(addresses[2], 43, gi=3, ci=0)
    first, second = nvml.wait(events, 0), nvml.wait(events, 0)
    assert (first.eventType, first.eventData) == (8, 79)
    assert (first.gpuInstanceId, first.computeInstanceId) == (WHOLE_GPU, WHOLE_GPU)
    assert (second.eventData, second.gpuInstanceId, second.computeInstanceId) == (43, 3, 0)
    assert nvml.wait(events, 0) == 10
    assert nvml.code("nvmlEventSetFree", events) == 0


def test_a_set_hears_what_it_asked_for_and_nothing_else(nvml: Nvml, addresses: list[str]) -> None:
    xids = nvml.listen(nvml.gpu(0), EVENT_TYPES["xid"])
    errors = nvml.listen(nvml.gpu(0), EVENT_TYPES["double-bit-ecc"])
    nvml.node.ecc(addresses[0], double=3)
    nvml.node.xid(addresses[1], 31)
    nvml.node.xid(addresses[0], 48)
    assert nvml.wait(xids, 0).eventData == 48
    assert nvml.wait(xids, 0) == 10
    assert nvml.wait(errors, 0).eventType == 2
    assert nvml.wait(errors, 0) == 10
    for events in (xids, errors):
        assert nvml.code("nvmlEventSetFree", events) == 0


def test_what_happened_before_the_registration_is_not_told(nvml: Nvml, addresses: list[str]) -> None:
    nvml.node.xid(addresses[0], 13)
    events = nvml.listen(nvml.gpu(0), 8)
    nvml.node.xid(addresses[0], 31)
    assert nvml.wait(events, 0).eventData == 31
    assert nvml.code("nvmlEventSetFree", events) == 0


def test_a_wait_wakes_when_something_happens(nvml: Nvml, addresses: list[str]) -> None:
    events = nvml.listen(nvml.gpu(0), 8)
    timer = threading.Timer(0.2, nvml.node.xid, (addresses[0], 94))
    timer.start()
    began = time.monotonic()
    assert nvml.wait(events, 30_000).eventData == 94
    assert 0.1 < time.monotonic() - began < 10
    timer.join()
    assert nvml.code("nvmlEventSetFree", events) == 0


def test_a_mask_with_a_type_that_the_board_lacks_is_refused(tmp_path: Path) -> None:
    nvml = Nvml(MockNode.create(tmp_path / "root", "t4"))
    _, events = nvml.handle("nvmlEventSetCreate")
    assert nvml.code("nvmlDeviceRegisterEvents", nvml.gpu(), ctypes.c_ulonglong(0x8008), events) == 3
    assert nvml.code("nvmlEventSetFree", events) == 0
    assert nvml.code("nvmlEventSetFree", None) == 2
    assert nvml.close() == 0


def test_a_lost_gpu_ends_every_wait_of_its_set_but_first_comes_what_was_reported(
    nvml: Nvml, addresses: list[str]
) -> None:
    its = nvml.listen(nvml.gpu(0), 8)
    others = nvml.listen(nvml.gpu(1), 8)
    nvml.node.xid(addresses[0], 79)
    nvml.node.set_gpu_state(addresses[0], "lost")
    assert nvml.wait(its, 1000).eventData == 79
    assert [nvml.wait(its, 1000), nvml.wait(its, 1000)] == [15, 15]
    assert nvml.wait(others, 10) == 10
    for events in (its, others):
        assert nvml.code("nvmlEventSetFree", events) == 0


def test_a_set_that_looks_away_too_long_loses_the_oldest(nvml: Nvml, addresses: list[str]) -> None:
    events = nvml.listen(nvml.gpu(0), 8)
    for number in range(EVENTS + 10):
        nvml.node.xid(addresses[0], number)
    got = []
    while not isinstance(event := nvml.wait(events, 0), int):
        got.append(event.eventData)
    assert got == list(range(10, EVENTS + 10))
    assert nvml.code("nvmlEventSetFree", events) == 0


def test_a_wait_ends_when_the_driver_goes(nvml: Nvml) -> None:
    events = nvml.listen(nvml.gpu(0), 8)
    timer = threading.Timer(0.1, nvml.node.set_driver_loaded, (False,))
    timer.start()
    assert nvml.wait(events, 30_000) == 9
    timer.join()
    nvml.node.set_driver_loaded(True)
    assert nvml.code("nvmlEventSetFree", events) == 0


def watches() -> int:
    """How many inotify descriptors this process has: each set has one."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(link.readlink().name == "anon_inode:inotify" for link in links if link.is_symlink())


def test_a_set_that_could_not_be_freed_goes_with_the_last_session(tmp_path: Path) -> None:
    before = watches()
    nvml = Nvml(MockNode.create(tmp_path / "root", "dgx-h100"))
    freed, left = nvml.listen(nvml.gpu(0), 8), nvml.listen(nvml.gpu(1), 8)
    assert watches() == before + 2
    assert nvml.code("nvmlEventSetFree", freed) == 0
    assert nvml.code("nvmlEventSetFree", freed) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    nvml.node.set_driver_loaded(False)
    assert nvml.code("nvmlEventSetFree", left) == pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert watches() == before + 1
    assert nvml.close() == 0
    assert watches() == before


_LEFT = """
import os, pathlib, pynvml
from native.mock import MockNode
node = MockNode.open(pathlib.Path(os.environ["GPUDRA_TEST_ROOT"]))
pynvml.nvmlInit()
pynvml.nvmlEventSetCreate()
node.set_driver_loaded(False)
pynvml.nvmlShutdown()
links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
print(sum(os.readlink(link) == "anon_inode:inotify" for link in links if os.path.islink(link)))
"""


def test_a_set_begins_without_waiters_whatever_its_memory_was_before(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    library = {"LD_LIBRARY_PATH": str(node.library.parent), "GPUDRA_TEST_ROOT": str(node.root)}
    dirty = {"MALLOC_PERTURB_": "165", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}  # the tcache clears a field
    environment = {**os.environ, **node.environment, **library, **dirty, "GPUDRA_MOCK_QUIET": "1"}
    command = [sys.executable, "-W", "ignore", "-c", _LEFT]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parents[2])
    assert done.stdout.strip() == b"0"


def test_errors_are_counted_and_can_be_cleared_since_boot_only(nvml: Nvml, addresses: list[str], ask: Ask) -> None:
    nvml.node.ecc(addresses[0], single=5, double=1)
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
counts = lambda: [pynvml.nvmlDeviceGetTotalEccErrors(h, e, c) for e in (0, 1) for c in (0, 1)]
answer = [counts()]
pynvml.nvmlDeviceClearEccErrorCounts(h, 0)
answer += [counts(), pynvml.nvmlDeviceGetMemoryErrorCounter(h, 0, 1, 2)]
"""
    assert ask(nvml.node, code) == [[5, 5, 1, 1], [0, 5, 0, 1], 5]


def test_a_test_drives_load_and_health(nvml: Nvml, addresses: list[str], ask: Ask) -> None:
    values = {"utilization_gpu": 87, "utilization_memory": 40, "throttle_reasons": 0x40, "remap_pending": 1}
    for field, value in {**values, "remap_uncorrectable": 2, "recovery_action": 4, "utilization_encoder": 9}.items():
        nvml.node.set_number(addresses[0], field, value)
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
rates = pynvml.nvmlDeviceGetUtilizationRates(h)
answer = [rates.gpu, rates.memory, pynvml.nvmlDeviceGetCurrentClocksEventReasons(h),
          pynvml.nvmlDeviceGetRemappedRows(h), pynvml.nvmlDeviceGetFieldValues(h, [230])[0].value.uiVal,
          pynvml.nvmlDeviceGetEncoderUtilization(h)[0]]
"""
    assert ask(nvml.node, code) == [87, 40, 0x40, [0, 2, 1, 0], 4, 9]


def test_an_older_board_retires_pages_until_its_driver_is_loaded_anew(own_node: MockNode, ask: Ask) -> None:
    address = own_node.profile.gpus[0].address
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
pages = [pynvml.nvmlDeviceGetRetiredPages(h, cause) for cause in (0, 1)]
answer = [[len(one) for one in pages], len({page for one in pages for page in one}),
          [page["timestamp"] > 0 for page in pynvml.nvmlDeviceGetRetiredPages_v2(h, 1)],
          pynvml.nvmlDeviceGetRetiredPagesPendingStatus(h), call(pynvml.nvmlDeviceGetRemappedRows, h)]
"""
    assert ask(own_node, code) == [[0, 0], 0, [], 0, {"code": 3}]
    for field, value in (("retired_single", 3), ("retired_double", 2), ("retired_pending", 1)):
        own_node.set_number(address, field, value)
    assert ask(own_node, code) == [[3, 2], 5, [True, True], 1, {"code": 3}]
    own_node.reload_driver()
    assert ask(own_node, code) == [[3, 2], 5, [True, True], 0, {"code": 3}]


def test_a_list_of_retired_pages_that_is_too_short_is_told_its_length(own_node: MockNode, ask: Ask) -> None:
    own_node.set_number(own_node.profile.gpus[0].address, "retired_double", 2)
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
pages = pynvml.nvmlLib.nvmlDeviceGetRetiredPages
def asked(cause, room, addresses):
    count = ctypes.c_uint(room)
    return [pages(h, cause, ctypes.byref(count), addresses), count.value]
answer = [asked(1, 0, None), asked(1, 1, (ctypes.c_ulonglong * 1)()), asked(1, 2, (ctypes.c_ulonglong * 2)()),
          asked(0, 0, None), asked(1, 2, None)[0], asked(2, 0, None)[0], pages(h, 0, None, None)]
"""
    assert ask(own_node, code) == [[7, 2], [7, 2], [0, 2], [0, 0], 2, 2, 2]


def test_a_board_that_remaps_rows_retires_no_pages(nvml: Nvml, ask: Ask) -> None:
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = [call(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, h), call(pynvml.nvmlDeviceGetRetiredPages, h, 0),
          call(pynvml.nvmlDeviceGetRetiredPages_v2, h, 1), call(pynvml.nvmlDeviceGetRemappedRows, h)]
"""
    assert ask(nvml.node, code) == [{"code": 3}, {"code": 3}, {"code": 3}, [0, 0, 0, 0]]


def test_processes_are_listed_where_they_run(nvml: Nvml, addresses: list[str], ask: Ask) -> None:
    assert nvml.set_mig_mode(nvml.gpu(1), 1) == (0, 0)
    _, gi = nvml.create_gi(nvml.gpu(1), 19)
    nvml.create_ci(gi, 0)
    number = nvml.gi_info(gi)[0]
    nvml.node.set_processes(addresses[0], [Process(41, "python3", 1024, sm=50), Process(42, "Xorg", 8, "graphics")])
    nvml.node.set_processes(addresses[1], [Process(43, "train", 512, gi=number, ci=0), Process(44, gi=9, ci=0)])
    code = """
pynvml.nvmlInit()
a, b = (pynvml.nvmlDeviceGetHandleByIndex(i) for i in (0, 1))
mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(b, 0)
show = lambda ps: [[p.pid, p.usedGpuMemory >> 20, p.gpuInstanceId] for p in ps]
answer = [show(pynvml.nvmlDeviceGetComputeRunningProcesses(a)), show(pynvml.nvmlDeviceGetGraphicsRunningProcesses(a)),
          show(pynvml.nvmlDeviceGetComputeRunningProcesses(mig)), len(pynvml.nvmlDeviceGetComputeRunningProcesses(b)),
          pynvml.nvmlSystemGetProcessName(42), [u.smUtil for u in pynvml.nvmlDeviceGetProcessUtilization(a, 0)],
          pynvml.nvmlDeviceGetMemoryInfo(mig).used >> 20]
"""
    got = ask(nvml.node, code)
    assert got[0] == [[41, 1024, 0xFFFFFFFF]]
    assert got[1] == [[42, 8, 0xFFFFFFFF]]
    assert got[2] == [[43, 512, number]]
    assert got[3:5] == [2, "Xorg"]
    assert sorted(got[5]) == [0, 50]
    assert got[6] == 512


def test_a_list_that_is_too_short_is_told_its_length(nvml: Nvml, addresses: list[str]) -> None:
    nvml.node.set_processes(addresses[0], [Process(pid) for pid in range(1, 6)])
    count, room = ctypes.c_uint(2), (pynvml.c_nvmlProcessInfo_v2_t * 2)()
    assert nvml.code("nvmlDeviceGetComputeRunningProcesses_v3", nvml.gpu(), ctypes.byref(count), room) == 7
    assert (count.value, [info.pid for info in room]) == (5, [1, 2])


def test_what_the_controls_do_not_know_they_refuse(nvml: Nvml, addresses: list[str]) -> None:
    with pytest.raises(ValueError, match="no event"):
        nvml.node.event(addresses[0], "meteor")
    with pytest.raises(ValueError, match=r"no GPU at 0000:00:00\.0"):
        nvml.node.xid("0000:00:00.0", 79)
    with pytest.raises(KeyError):
        nvml.node.set_number(addresses[0], "uuid", 1)
    with pytest.raises(ValueError, match="at most 32"):
        nvml.node.set_processes(addresses[0], [Process(pid) for pid in range(1, 40)])


def test_settings_are_kept_for_all(nvml: Nvml) -> None:
    assert nvml.code("nvmlDeviceSetComputeMode", nvml.gpu(), 3) == 0
    assert nvml.code("nvmlDeviceSetComputeMode", nvml.gpu(), 1) == 3
    assert nvml.code("nvmlDeviceSetPersistenceMode", nvml.gpu(), 0) == 0
    assert nvml.code("nvmlDeviceSetPowerManagementLimit", nvml.gpu(), 300_000) == 0
    assert nvml.code("nvmlDeviceSetPowerManagementLimit", nvml.gpu(), 1) == 2
    got = [nvml.number(f"nvmlDeviceGet{what}", nvml.gpu()) for what in ("ComputeMode", "PersistenceMode")]
    assert [*got, nvml.number("nvmlDeviceGetPowerManagementLimit", nvml.gpu())] == [3, 0, 300_000]
