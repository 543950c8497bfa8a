"""MIG on the look-alike, case by case: what the captures and nvml.h say. Sequences are in test_mock_mig_model.py."""

from __future__ import annotations

import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from native.mock import MockNode, Process, migtables
from tests.support.mocknodes import Ask, Node
from tests.support.nvmlcalls import Nvml

CYCLES = int(os.environ.get("GPUDRA_MOCK_CYCLES", "200"))
CALLS = int(os.environ.get("GPUDRA_MOCK_CALLS", "20000"))
Open = Callable[..., Nvml]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Open]:
    """Begin a session on a new node of a profile."""
    opened: list[Nvml] = []

    def begin(profile: str | Path = "dgx-h100", *, mig: bool = True) -> Nvml:
        nvml = Nvml(MockNode.create(tmp_path / f"root{len(opened)}", profile))
        opened.append(nvml)
        if mig:
            assert nvml.set_mig_mode(nvml.gpu(), 1) == (0, 0)
        return nvml

    yield begin
    for nvml in opened:
        assert nvml.close() == 0


def variant(tmp_path: Path, base: str, old: str, new: str) -> Path:
    """A profile with one thing changed."""
    from native.mock import profiles

    text = profiles.text(base)
    assert old in text
    path = tmp_path / "variant.yaml"
    path.write_text(text.replace(old, new, 1))
    return path


def test_the_index_of_a_profile_is_not_its_id(start: Open) -> None:
    nvml = start()
    info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    seen: dict[int, object] = {}
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT + 1):
        info.version = pynvml.nvmlGpuInstanceProfileInfo_v2
        code = nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", nvml.gpu(), index, ctypes.byref(info))
        seen[index] = (info.id, info.name) if code == 0 else code
    assert seen[0] == (19, "MIG 1g.10gb")
    assert seen[4] == (0, "MIG 7g.80gb")
    assert seen[7] == (20, "MIG 1g.10gb+me")
    assert seen[5] == 3, "a hole in the enumeration is NOT_SUPPORTED"
    assert seen[0x12] == 2, "the end of the enumeration is INVALID_ARGUMENT"


def test_profiles_of_the_three_struct_versions_agree(start: Open) -> None:
    nvml = start("rtx-pro-6000")
    old, second = pynvml.c_nvmlGpuInstanceProfileInfo_t(), pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
    second.version = pynvml.nvmlGpuInstanceProfileInfo_v2
    third = (ctypes.c_uint * 38)()
    third[0] = 152 | 3 << 24
    for function, place in (
        ("nvmlDeviceGetGpuInstanceProfileInfo", old),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", second),
        ("nvmlDeviceGetGpuInstanceProfileInfoV", third),
    ):
        assert nvml.code(function, nvml.gpu(), 0xA, ctypes.byref(place)) == 0
    assert old.id == second.id == third[1] == 47
    assert old.memorySizeMB == second.memorySizeMB == 24192
    assert third[36] == 2, "capabilities of v3: graphics, no P2P"
    second.version = pynvml.nvmlGpuInstanceProfileInfo_v2 + 1
    assert nvml.code("nvmlDeviceGetGpuInstanceProfileInfoV", nvml.gpu(), 0xA, ctypes.byref(second)) == 25


@pytest.mark.parametrize("name", migtables.boards())
def test_a_table_of_a_board_is_consistent(name: str) -> None:
    board = migtables.boards()[name]
    assert len({profile.index for profile in board.profiles}) == len({profile.id for profile in board.profiles})
    for profile in board.profiles:
        assert profile.starts[-1] + profile.size <= board.memory_slices
        assert list(profile.starts) == sorted(profile.starts)
        gaps = [after - before for before, after in zip(profile.starts, profile.starts[1:], strict=False)]
        assert all(gap >= profile.size for gap in gaps), "one profile's placements do not overlap each other"
        assert profile.instances <= len(profile.starts)
        assert profile.source in ("captured", "documented", "derived")
    whole = next(profile for profile in board.profiles if profile.id == 0)
    assert (whole.size, whole.slices) == (board.memory_slices, board.compute_slices)


def test_instances_get_the_ids_of_the_h100_nvl_capture(start: Open) -> None:
    nvml = start()
    made = [nvml.gi_info(nvml.create_gi(nvml.gpu(), profile)[1]) for profile in (9, 15, 19)]
    assert [info[0] for info in made] == [1, 5, 13]
    assert [info[2] for info in made] == [4, 2, 1], "packed from the end"


def test_seven_small_instances_get_the_ids_of_the_user_guide(start: Open) -> None:
    nvml = start("dgx-a100")
    made = [nvml.gi_info(nvml.create_gi(nvml.gpu(), 19)[1]) for _ in range(7)]
    assert [info[0] for info in made] == [7, 8, 9, 11, 12, 13, 14]
    assert nvml.create_gi(nvml.gpu(), 19)[0] == 23


def test_an_occupied_place_is_insufficient_resources_and_an_illegal_one_invalid(start: Open) -> None:
    nvml = start()
    assert nvml.create_gi(nvml.gpu(), 9, 4, 4)[0] == 0
    assert nvml.create_gi(nvml.gpu(), 9, 4, 4)[0] == 23
    assert nvml.create_gi(nvml.gpu(), 9, 2, 4)[0] == 2
    assert nvml.create_gi(nvml.gpu(), 9, 0, 3)[0] == 2
    assert nvml.create_gi(nvml.gpu(), 99)[0] == 2


def test_engines_run_out_before_memory_does(start: Open) -> None:
    nvml = start("rtx-pro-6000")
    assert nvml.create_gi(nvml.gpu(), 65)[0] == 0, "1g.24gb+me.all takes every media engine"
    assert nvml.create_gi(nvml.gpu(), 14)[0] == 23, "a plain 1g needs a decoder"
    assert nvml.create_gi(nvml.gpu(), 67)[0] == 0, "one without media does not"


def test_a_mig_device_answers_as_a_device_of_its_own(start: Open) -> None:
    nvml = start()
    _, gi = nvml.create_gi(nvml.gpu(), 9)
    _, ci = nvml.create_ci(gi, 1)
    device = nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", nvml.gpu(), 0)[1]
    assert ctypes.cast(nvml.ci_info(ci).device, ctypes.c_void_p).value == device.value
    assert nvml.text("nvmlDeviceGetName", device) == "NVIDIA H100 80GB HBM3 MIG 2c.3g.40gb"
    uuid = nvml.text("nvmlDeviceGetUUID", device)
    assert isinstance(uuid, str)
    assert uuid.startswith("MIG-")
    assert nvml.handle("nvmlDeviceGetHandleByUUID", uuid.encode())[1].value == device.value
    assert nvml.number("nvmlDeviceIsMigDeviceHandle", device) == 1
    assert nvml.number("nvmlDeviceIsMigDeviceHandle", nvml.gpu()) == 0
    assert nvml.handle("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", device)[1].value == nvml.gpu().value
    attributes = pynvml.c_nvmlDeviceAttributes()
    assert nvml.code("nvmlDeviceGetAttributes_v2", device, ctypes.byref(attributes)) == 0
    assert (attributes.multiprocessorCount, attributes.gpuInstanceSliceCount) == (32, 3)
    assert (attributes.computeInstanceSliceCount, attributes.memorySizeMB) == (2, 40448)
    assert nvml.code("nvmlDeviceGetAttributes_v2", nvml.gpu(), ctypes.byref(attributes)) == 2
    memory = pynvml.c_nvmlMemory_t()
    assert nvml.code("nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory)) == 0
    assert memory.total == 40448 << 20


@pytest.mark.parametrize("function", ["nvmlDeviceGetMinorNumber", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetModuleId"])
def test_what_is_about_gpus_refuses_the_handle_of_a_mig_device(function: str, start: Open) -> None:
    nvml = start()
    nvml.create_ci(nvml.create_gi(nvml.gpu(), 19)[1], 0)
    device = nvml.mig_devices(nvml.gpu())[0]
    assert nvml.number(function, device) == -3
    assert nvml.number(function, nvml.gpu()) >= 0


def test_the_index_of_mig_devices_has_holes(start: Open) -> None:
    nvml = start()
    made = [nvml.create_ci(nvml.create_gi(nvml.gpu(), 19)[1], 0)[1] for _ in range(3)]
    assert nvml.code("nvmlComputeInstanceDestroy", made[1]) == 0
    assert list(nvml.mig_devices(nvml.gpu())) == [0, 2]
    assert nvml.handle("nvmlDeviceGetMigDeviceHandleByIndex", nvml.gpu(), 7)[0] == 2


def test_a_handle_is_dead_once_its_instance_is_gone_even_if_another_takes_its_place(start: Open) -> None:
    nvml = start()
    _, gi = nvml.create_gi(nvml.gpu(), 0)
    _, ci = nvml.create_ci(gi, 4)
    device = nvml.mig_devices(nvml.gpu())[0]
    first = nvml.text("nvmlDeviceGetUUID", device)
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 19, "first the compute instance"
    assert nvml.code("nvmlComputeInstanceDestroy", ci) == 0
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 0
    _, again = nvml.create_gi(nvml.gpu(), 0)
    nvml.create_ci(again, 4)
    assert nvml.text("nvmlDeviceGetUUID", device) == -2
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 2
    assert nvml.text("nvmlDeviceGetUUID", nvml.mig_devices(nvml.gpu())[0]) != first


def test_the_same_steps_give_the_same_uuids(start: Open) -> None:
    def uuids(nvml: Nvml) -> list[str | int]:
        nvml.create_ci(nvml.create_gi(nvml.gpu(), 9)[1], 2)
        return [nvml.text("nvmlDeviceGetUUID", device) for device in nvml.mig_devices(nvml.gpu()).values()]

    assert uuids(start()) == uuids(start())


def test_an_instance_with_a_process_is_in_use(start: Open) -> None:
    nvml = start()
    address = nvml.node.profile.gpus[0].address
    _, gi = nvml.create_gi(nvml.gpu(), 19)
    _, ci = nvml.create_ci(gi, 0)
    nvml.node.set_processes(address, [Process(77, gi=nvml.gi_info(gi)[0], ci=0)])
    assert nvml.code("nvmlComputeInstanceDestroy", ci) == 19
    assert nvml.set_mig_mode(nvml.gpu(), 0) == (0, 19)
    nvml.node.set_processes(address, [])
    assert nvml.code("nvmlComputeInstanceDestroy", ci) == 0


def test_a_mode_that_cannot_come_about_stays_pending_though_the_call_succeeds(start: Open) -> None:
    nvml = start(mig=False)
    nvml.node.set_number(nvml.node.profile.gpus[0].address, "mig_activation", 19)
    assert nvml.set_mig_mode(nvml.gpu(), 1) == (0, 19)
    assert nvml.mig_mode(nvml.gpu()) == (0, 1)
    assert nvml.create_gi(nvml.gpu(), 19)[0] == 3, "not while the mode is only pending"


def test_in_a_virtual_machine_an_a100_wants_a_reset(start: Open, tmp_path: Path) -> None:
    nvml = start(
        variant(
            tmp_path, "dgx-a100", "  addressing_mode: hmm", "  virtualization: passthrough\n  addressing_mode: hmm"
        ),
        mig=False,
    )
    assert nvml.set_mig_mode(nvml.gpu(), 1) == (0, 16)


def test_a_profile_can_begin_with_mig_on_and_refuse_queries_while_it_is_off(start: Open, tmp_path: Path) -> None:
    on = start(variant(tmp_path, "dgx-h100", "mig: false", "mig: {mode: on}"), mig=False)
    assert on.mig_mode(on.gpu()) == (1, 1)
    blind = start(variant(tmp_path, "dgx-h100", "mig: false", "mig: {mode: off, query: false}"), mig=False)
    info = pynvml.c_nvmlGpuInstanceProfileInfo_t()
    assert blind.code("nvmlDeviceGetGpuInstanceProfileInfo", blind.gpu(), 0, ctypes.byref(info)) == 3
    assert blind.set_mig_mode(blind.gpu(), 1) == (0, 0)
    assert blind.code("nvmlDeviceGetGpuInstanceProfileInfo", blind.gpu(), 0, ctypes.byref(info)) == 0


def test_a_divided_gpu_shows_neither_nvlink_nor_utilisation(start: Open) -> None:
    nvml = start()
    rates = pynvml.c_nvmlUtilization_t()
    assert nvml.number("nvmlDeviceGetNvLinkState", nvml.gpu(0), 0) == -3
    assert nvml.number("nvmlDeviceGetNvLinkState", nvml.gpu(1), 0) == 1
    assert nvml.code("nvmlDeviceGetUtilizationRates", nvml.gpu(0), ctypes.byref(rates)) == 3


def test_all_processes_see_one_machine(start: Open, ask: Ask) -> None:
    nvml = start()
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)
answer = pynvml.nvmlDeviceGetUUID(device)
gi = pynvml.nvmlDeviceCreateGpuInstance(h, 19)
"""
    nvml.create_ci(nvml.create_gi(nvml.gpu(), 19)[1], 0)
    assert ask(nvml.node, code) == nvml.text("nvmlDeviceGetUUID", nvml.mig_devices(nvml.gpu())[0])
    assert len(nvml.node.instances(nvml.node.profile.gpus[0].address)) == 2


def test_whoever_may_only_read_the_node_may_not_change_it(start: Open, ask: Ask) -> None:
    nvml = start()
    if os.geteuid() == 0 and not _can_drop_rights():
        pytest.skip("root here is refused nothing, and cannot become somebody else")
    code = """
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = [call(pynvml.nvmlDeviceCreateGpuInstance, h, 19), call(pynvml.nvmlDeviceSetPersistenceMode, h, 0),
          call(pynvml.nvmlDeviceGetGpuInstanceById, h, 1),
          call(pynvml.nvmlDeviceGetGpuInstanceRemainingCapacity, h, 19), call(pynvml.nvmlDeviceGetMigMode, h),
          pynvml.nvmlDeviceGetGpuInstanceProfileInfo(h, 0).id]
"""
    # the folders of pytest are closed to everybody else
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(nvml.node.environment["GPUDRA_MOCK_NODE"], folder / "node")
        (folder / "node").chmod(0o444)
        for minor in range(8):
            (folder / f"nvidia{minor}").touch()
        got = ask(nvml.node, code, GPUDRA_MOCK_NODE=str(folder / "node"), GPUDRA_MOCK_DEV=name)
    assert got == [*[{"code": 4}] * 4, [1, 1], 19]


def _can_drop_rights() -> bool:
    done = subprocess.run([sys.executable, "-c", "import os; os.setresuid(65534, 65534, 65534)"], check=False)
    return done.returncode == 0


def test_a_process_that_is_killed_with_the_lock_leaves_no_lock(start: Open) -> None:
    nvml = start()
    path = nvml.node.environment["GPUDRA_MOCK_NODE"]
    code = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.3; kill -9 {holder.pid}"])
        began = time.monotonic()
        assert nvml.create_gi(nvml.gpu(), 19)[0] == 0
        assert time.monotonic() - began > 0.1, "it had to wait"
        assert killer.wait() == 0
        assert holder.wait() == -signal.SIGKILL


def test_two_processes_that_race_for_one_place_do_not_both_get_it(start: Open) -> None:
    nvml = start()
    code = """
import ctypes, os, sys
n = ctypes.CDLL(sys.argv[1]); n.nvmlInit_v2()
h, gi = ctypes.c_void_p(), ctypes.c_void_p()
n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))
print(sum(n.nvmlDeviceCreateGpuInstance(h, 19, ctypes.byref(gi)) == 0 for _ in range(7)))
"""
    environment = {**os.environ, **nvml.node.environment, "GPUDRA_MOCK_QUIET": "1"}
    command = [sys.executable, "-c", code, str(nvml.node.library)]
    racers = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(2)]
    assert sum(int(racer.communicate()[0]) for racer in racers) == 7


def test_nothing_leaks_over_many_instances_and_calls(start: Open) -> None:
    nvml = start()

    def cycle(count: int) -> None:
        for _ in range(count):
            _, gi = nvml.create_gi(nvml.gpu(), 19)
            _, ci = nvml.create_ci(gi, 0)
            assert nvml.code("nvmlComputeInstanceDestroy", ci) == 0
            assert nvml.code("nvmlGpuInstanceDestroy", gi) == 0

    gpu, out = nvml.gpu(), ctypes.c_uint()
    cycle(50)
    before = _resident()
    cycle(CYCLES)
    for _ in range(CALLS):
        nvml.library.nvmlDeviceGetMinorNumber(gpu, ctypes.byref(out))
    assert _resident() - before < 1 << 20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_the_capability_files_of_a_bystander_stay(start: Open, node_of: Node) -> None:
    nvml = start()
    assert nvml.set_mig_mode(nvml.gpu(3), 1) == (0, 0)
    nvml.create_ci(nvml.create_gi(nvml.gpu(3), 19)[1], 0)
    base = nvml.node.root / "proc/driver/nvidia/capabilities"
    before = sorted(base.rglob("access"))
    _, gi = nvml.create_gi(nvml.gpu(0), 19)
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 0
    assert sorted(base.rglob("access")) == before
    assert len(before) == 2
    assert before[0].read_text().splitlines()[0] == f"DeviceFileMinor: {3 + 135 * 3 + 9 * 7}"


CHURN = """
import ctypes, random, sys
n = ctypes.CDLL(sys.argv[1]); n.nvmlInit_v2()
h, gi, ci = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
n.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(h))
pick = random.Random(int(sys.argv[2]))
print("begun", flush=True)
while True:
    if n.nvmlDeviceCreateGpuInstance(h, pick.choice([19, 14, 9]), ctypes.byref(gi)) == 0:
        n.nvmlGpuInstanceCreateComputeInstance(gi, 0, ctypes.byref(ci))
    for number in range(15):
        if n.nvmlDeviceGetGpuInstanceById(h, number, ctypes.byref(gi)) == 0 and pick.random() < 0.3:
            for which in range(8):
                if n.nvmlGpuInstanceGetComputeInstanceById(gi, which, ctypes.byref(ci)) == 0:
                    n.nvmlComputeInstanceDestroy(ci)
            n.nvmlGpuInstanceDestroy(gi)
"""


@pytest.mark.parametrize("seed", range(4))
def test_a_process_that_is_killed_while_it_changes_instances_leaves_a_whole_state(seed: int, start: Open) -> None:
    nvml = start()
    environment = {**os.environ, **nvml.node.environment, "GPUDRA_MOCK_QUIET": "1"}
    command = [sys.executable, "-c", CHURN, str(nvml.node.library), str(seed)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as churning:
        assert churning.stdout is not None
        assert churning.stdout.readline() == b"begun\n"
        moment = time.monotonic() + 0.05 + seed * 0.037
        while time.monotonic() < moment:
            pass  # a sleep would end at a tick, and so always at the same point of a cycle
        churning.kill()
    instances = nvml.node.instances(nvml.node.profile.gpus[0].address)
    slices = [at for gi in instances for at in range(gi.start, gi.start + gi.size)]
    assert len(slices) == len(set(slices))
    for gi in instances:
        code, handle = nvml.handle("nvmlDeviceGetGpuInstanceById", nvml.gpu(), gi.id)
        assert code == 0
        for ci in gi.compute_instances:
            _, inner = nvml.handle("nvmlGpuInstanceGetComputeInstanceById", handle, ci.id)
            assert nvml.code("nvmlComputeInstanceDestroy", inner) == 0
        assert nvml.code("nvmlGpuInstanceDestroy", handle) == 0
    _, last = nvml.create_gi(nvml.gpu(), 0)
    assert nvml.code("nvmlGpuInstanceDestroy", last) == 0
    base = nvml.node.root / "proc/driver/nvidia/capabilities"
    assert list(base.rglob("access")) == [], "what the dead one left undone, the next change puts right"
    assert sorted(path.name for path in (nvml.node.root / "dev/nvidia-caps").iterdir()) == [
        "nvidia-cap1",
        "nvidia-cap2",
    ]
