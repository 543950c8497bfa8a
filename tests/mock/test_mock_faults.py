"""Everything that can go wrong with a driver, at will: rules, strings, versions, hot plug, reload, silence."""

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
import yaml

from native.mock import Failure, MockNode, ProfileError, Text, profile, profiles
from native.sysfs import read_host
from tests.support.nvmlcalls import Nvml

NAME, MINOR, SERIAL = "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial"


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[Nvml]:
    library = Nvml(MockNode.create(tmp_path / "root", "dgx-h100"))
    yield library
    library.node.set_failures([])
    assert library.close() == 0


@pytest.fixture
def addresses(nvml: Nvml) -> list[str]:
    return [gpu.address for gpu in nvml.node.profile.gpus]


def minors(nvml: Nvml, count: int, index: int = 0) -> list[int]:
    return [min(nvml.number(MINOR, nvml.gpu(index)), 0) for _ in range(count)]


def test_the_nth_call_fails(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure(MINOR, 999, after=2, times=1)])
    assert minors(nvml, 5) == [0, 0, -999, 0, 0]


def test_a_rule_is_about_one_gpu_or_about_all(nvml: Nvml, addresses: list[str]) -> None:
    nvml.node.set_failures([Failure(MINOR, 15, addresses[3])])
    assert minors(nvml, 1, 3) == [-15]
    assert minors(nvml, 1, 2) == [0]


def test_a_star_stands_for_every_function_that_begins_so(nvml: Nvml, addresses: list[str]) -> None:
    nvml.node.set_failures([Failure("nvmlDeviceGet*", 999, addresses[1])])
    assert nvml.handle("nvmlDeviceGetHandleByIndex_v2", 1)[0] == 999
    assert nvml.handle("nvmlDeviceGetHandleByIndex_v2", 0)[0] == 0


def test_chance_is_the_same_each_time_it_is_rolled(nvml: Nvml) -> None:
    def roll(seed: int) -> list[int]:
        nvml.node.set_failures([Failure(MINOR, 19, probability=0.3, seed=seed)])
        return minors(nvml, 200)

    first = roll(1)
    assert roll(1) == first
    assert roll(2) != first
    assert 30 < first.count(-19) < 90


def test_a_sticky_rule_holds_on_once_it_has_fired(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure(MINOR, 15, after=3, sticky=True)])
    assert minors(nvml, 3) == [0, 0, 0]
    assert minors(nvml, 50) == [-15] * 50


def test_a_rule_ends_by_itself(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure(MINOR, 27, seconds=0.2)])
    assert minors(nvml, 1) == [-27]
    deadline = time.monotonic() + 10
    while minors(nvml, 1) != [0]:
        assert time.monotonic() < deadline


def test_a_rule_can_only_delay(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure("nvmlGpuInstanceDestroy", delay_ms=150)])
    assert nvml.set_mig_mode(nvml.gpu(), 1) == (0, 0)
    _, gi = nvml.create_gi(nvml.gpu(), 19)
    began = time.monotonic()
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 0
    assert time.monotonic() - began >= 0.15


def test_a_call_about_an_instance_is_a_call_about_its_gpu(nvml: Nvml, addresses: list[str]) -> None:
    assert nvml.set_mig_mode(nvml.gpu(4), 1) == (0, 0)
    _, gi = nvml.create_gi(nvml.gpu(4), 19)
    nvml.node.set_failures([Failure("nvmlGpuInstanceDestroy", 19, addresses[4])])
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 19
    nvml.node.set_failures([Failure("nvmlGpuInstanceDestroy", 19, addresses[5])])
    assert nvml.code("nvmlGpuInstanceDestroy", gi) == 0


def test_one_struct_version_can_be_refused(nvml: Nvml) -> None:
    nvml.node.set_failures([Failure("nvmlDeviceGetGpuFabricInfoV", 25, version=3)])
    third, second = pynvml.c_nvmlGpuFabricInfo_v3_t(), pynvml.c_nvmlGpuFabricInfo_v2_t()
    assert nvml.code("nvmlDeviceGetGpuFabricInfoV", nvml.gpu(), ctypes.byref(third)) == 25
    assert nvml.code("nvmlDeviceGetGpuFabricInfoV", nvml.gpu(), ctypes.byref(second)) == 0


@pytest.mark.parametrize("field", ["name", "uuid", "serial", "vbios_version", "board_part_number"])
def test_every_string_can_be_foreign_and_endless(field: str, nvml: Nvml, addresses: list[str]) -> None:
    function = {
        "name": NAME,
        "uuid": "nvmlDeviceGetUUID",
        "serial": SERIAL,
        "vbios_version": "nvmlDeviceGetVbiosVersion",
    }
    nvml.node.set_text(addresses[0], field, Text(b"\xff\xfe", unterminated=True))
    room = ctypes.create_string_buffer(b"\0" * 95)
    call = function.get(field, "nvmlDeviceGetBoardPartNumber")
    assert nvml.code(call, nvml.gpu(0), room, 96) == 0
    assert room.raw == b"\xff\xfe" * 48
    assert nvml.code(call, nvml.gpu(1), room, 96) == 0
    assert b"\0" in room.raw


def test_the_strings_of_the_node_can_change_too(nvml: Nvml) -> None:
    nvml.node.set_text(None, "driver_version", "999.1")
    assert nvml.text("nvmlSystemGetDriverVersion") == "999.1"
    with pytest.raises(KeyError):
        nvml.node.set_text(None, "name", "x")


def test_a_gpu_that_does_not_answer_holds_its_callers_and_no_others(nvml: Nvml, addresses: list[str]) -> None:
    gpu = nvml.gpu(0)
    nvml.node.set_gpu_state(addresses[0], "silent")
    answers: list[int] = []
    thread = threading.Thread(target=lambda: answers.append(nvml.number(MINOR, gpu)))
    thread.start()
    assert minors(nvml, 1, 1) == [0]
    thread.join(0.2)
    assert thread.is_alive()
    nvml.node.set_gpu_state(addresses[0], "lost")
    thread.join(10)
    assert answers == [-15]


@pytest.mark.parametrize("first", ["nvml", "sysfs"])
def test_a_gpu_is_unplugged_and_plugged_in_again(first: str, nvml: Nvml, addresses: list[str]) -> None:
    before = {str(path.relative_to(nvml.node.root)) for path in nvml.node.root.rglob("*")}
    old = nvml.gpu(2)
    nvml.node.unplug(addresses[2], first=first)
    host = read_host(nvml.node.root / "sys", nvml.node.root / "proc")
    assert addresses[2] not in {device.address for device in host.devices}
    assert not (nvml.node.root / "dev/nvidia2").exists()
    assert nvml.number(MINOR, old) == -15
    assert nvml.number("nvmlDeviceGetCount_v2") == 8, "a session goes on counting it"
    assert (nvml.close(), nvml.init()) == (0, 0)
    assert nvml.number("nvmlDeviceGetCount_v2") == 7
    with pytest.raises(FileNotFoundError, match="unplugged already"):
        nvml.node.hide(addresses[2])
    nvml.node.plug(addresses[2], first=first)
    assert {str(path.relative_to(nvml.node.root)) for path in nvml.node.root.rglob("*")} - {
        "run/gpudra-mock/unplugged"
    } == before
    assert nvml.number("nvmlDeviceGetCount_v2") == 7, "a session does not notice what is new"
    assert (nvml.close(), nvml.init()) == (0, 0)
    assert minors(nvml, 1, 2) == [0]


def test_a_handle_from_before_stays_lost_when_the_gpu_is_back(nvml: Nvml, addresses: list[str]) -> None:
    old = nvml.gpu(0)
    nvml.node.unplug(addresses[0])
    nvml.node.plug(addresses[0])
    assert nvml.number(MINOR, old) == -15


@pytest.mark.parametrize("name", ["gb200", "l40s", "rtx-pro-6000"])
def test_any_gpu_of_any_tree_can_be_unplugged(name: str, tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", name)
    for gpu in node.profile.gpus:
        node.unplug(gpu.address)
    assert not list((node.root / "proc/driver/nvidia/gpus").iterdir())
    for gpu in node.profile.gpus:
        node.plug(gpu.address)
    found = {str(device.address) for device in read_host(node.root / "sys", node.root / "proc").devices}
    assert {gpu.address for gpu in node.profile.gpus} <= found


def test_a_reloaded_driver_knows_no_session_from_before_and_no_instances(nvml: Nvml, addresses: list[str]) -> None:
    assert nvml.set_mig_mode(nvml.gpu(), 1) == (0, 0)
    nvml.create_ci(nvml.create_gi(nvml.gpu(), 19)[1], 0)
    gpu = nvml.gpu()
    nvml.node.reload_driver()
    assert nvml.number(MINOR, gpu) == -9
    assert (nvml.close(), nvml.init()) == (0, 0)
    assert minors(nvml, 1) == [0]
    assert nvml.mig_mode(nvml.gpu()) == (0, 0), "since Hopper the mode does not outlive the driver"
    assert nvml.node.instances(addresses[0]) == []
    assert not list((nvml.node.root / "proc/driver/nvidia/capabilities").glob("gpu*/mig/gi*"))


def test_in_the_middle_of_an_upgrade_library_and_driver_do_not_fit(nvml: Nvml) -> None:
    nvml.node.set_version_mismatch(True)
    assert nvml.number("nvmlDeviceGetCount_v2") == -18
    nvml.node.set_version_mismatch(False)
    assert nvml.number("nvmlDeviceGetCount_v2") == 8


_RETRIES = """
import ctypes, os
close = ctypes.CDLL(None).dlclose
close.argtypes = [ctypes.c_void_p]

def attempt():
    library = ctypes.CDLL(os.environ["GPUDRA_TEST_LIBRARY"])
    code = library.nvmlInit_v2()
    if code == 0:
        assert library.nvmlShutdown() == 0
    close(library._handle)
    return code

def of_node(word):
    found, ours = 0, False
    for line in open("/proc/self/smaps"):
        if "-" in line.split()[0]:
            ours = line.rstrip().endswith(os.environ["GPUDRA_MOCK_NODE"])
            found += ours and word == "mappings"
        elif ours and line.startswith(word):
            found += int(line.split()[1])
    return found

codes = {attempt() for _ in range(40)}
print(*codes, of_node("mappings"), of_node("Rss:"))
"""


@pytest.mark.parametrize("loaded", [False, True], ids=["the driver is gone", "the driver is there"])
def test_a_library_that_is_loaded_again_and_again_holds_no_memory(tmp_path: Path, loaded: bool) -> None:
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    node.set_driver_loaded(loaded)
    environment = {**os.environ, **node.environment, "GPUDRA_TEST_LIBRARY": str(node.library)}
    done = subprocess.run([sys.executable, "-c", _RETRIES], env=environment, stdout=subprocess.PIPE, check=True)
    code, mappings, resident = map(int, done.stdout.split())
    assert code == (0 if loaded else 9)
    assert resident == 0
    assert loaded or mappings == 0, "of sessions that never began nothing is left, not even address space"


def test_rules_can_stand_in_the_profile(tmp_path: Path) -> None:
    document = yaml.safe_load(profiles.text("t4"))
    document["driver"]["fails"] = {MINOR: {"code": "UNKNOWN", "after": 1, "times": 2}}
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    nvml = Nvml(MockNode.create(tmp_path / "root", path))
    assert minors(nvml, 4) == [0, -999, -999, 0]
    assert nvml.close() == 0


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"probability": 2}, r"probability: 2 is not a number from 0 to 1"),
        ({"seconds": "soon"}, r"seconds: 'soon' is not a number of seconds"),
        ({"code": "OOPS"}, r"code: 'OOPS' is none of"),
        ({"never": True}, r"never"),
    ],
)
def test_a_wrong_rule_names_its_field(rule: dict[str, object], message: str) -> None:
    document = yaml.safe_load(profiles.text("t4"))
    document["driver"]["fails"] = {MINOR: rule}
    with pytest.raises(ProfileError, match=message):
        profile.parse(document)
