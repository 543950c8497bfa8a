"""pynvml, unchanged, on the look-alike: every value of every profile, and every way to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from native.mock import Failure, MockNode, profiles
from native.mock.boards import Gpu, linked, topology_level
from native.mock.nodefile import near_cpus
from tests.support.mocknodes import Ask, Node

READ = """
def device(h):
    n = pynvml
    pci = n.nvmlDeviceGetPciInfo(h)
    ext = n.nvmlPciInfoExt_v1_t(); ext.version = n.nvmlPciInfoExt_v1
    ext_code = n.nvmlLib.nvmlDeviceGetPciInfoExt(h, ctypes.byref(ext))
    fabric = n.c_nvmlGpuFabricInfo_v3_t()
    fabric_code = n.nvmlLib.nvmlDeviceGetGpuFabricInfoV(h, ctypes.byref(fabric))
    platform = n.c_nvmlPlatformInfo_v2_t(); platform.version = n.nvmlPlatformInfo_v2
    platform_code = n.nvmlLib.nvmlDeviceGetPlatformInfo(h, ctypes.byref(platform))
    v2 = call(lambda: n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2))
    v1 = call(n.nvmlDeviceGetMemoryInfo, h)
    bar1 = call(n.nvmlDeviceGetBAR1MemoryInfo, h)
    links = []
    for link in range(n.NVML_NVLINK_MAX_LINKS):
        state = call(n.nvmlDeviceGetNvLinkState, h, link)
        if isinstance(state, dict):
            links.append(state["code"])
            continue
        far = call(n.nvmlDeviceGetNvLinkRemotePciInfo, h, link)
        kind = call(n.nvmlDeviceGetNvLinkRemoteDeviceType, h, link)
        links.append([state, n.nvmlDeviceGetNvLinkVersion(h, link), kind,
                      far if isinstance(far, dict) else far.busId, n.nvmlDeviceGetNvLinkCapability(h, link, 5)])
    fields = n.nvmlDeviceGetFieldValues(h, [91, 90, (164, 0), (165, 0), 82])
    return {
        "name": call(n.nvmlDeviceGetName, h), "uuid": call(n.nvmlDeviceGetUUID, h),
        "serial": call(n.nvmlDeviceGetSerial, h),
        "part": call(n.nvmlDeviceGetBoardPartNumber, h), "vbios": call(n.nvmlDeviceGetVbiosVersion, h),
        "brand": n.nvmlDeviceGetBrand(h), "architecture": n.nvmlDeviceGetArchitecture(h),
        "cc": n.nvmlDeviceGetCudaComputeCapability(h), "minor": call(n.nvmlDeviceGetMinorNumber, h),
        "module": call(n.nvmlDeviceGetModuleId, h), "index": n.nvmlDeviceGetIndex(h),
        "board": n.nvmlDeviceGetBoardId(h),
        "bus": pci.busId, "legacy": pci.busIdLegacy, "ids": [pci.pciDeviceId, pci.pciSubSystemId],
        "ext": [ext_code, ext.busId if isinstance(ext.busId, str) else ext.busId.decode(), ext.baseClass, ext.subClass],
        "memory": v2 if isinstance(v2, dict) else [v2.total, v2.reserved, v2.used, v2.free],
        "memory1": v1 if isinstance(v1, dict) else [v1.total, v1.used, v1.free],
        "bar1": bar1 if isinstance(bar1, dict) else bar1.bar1Total,
        "addressing": call(n.nvmlDeviceGetAddressingMode, h), "ecc": call(n.nvmlDeviceGetEccMode, h),
        "mig": call(n.nvmlDeviceGetMigMode, h), "compute": n.nvmlDeviceGetComputeMode(h),
        "persistence": n.nvmlDeviceGetPersistenceMode(h), "virtualization": n.nvmlDeviceGetVirtualizationMode(h),
        "pcie": [n.nvmlDeviceGetMaxPcieLinkGeneration(h), n.nvmlDeviceGetMaxPcieLinkWidth(h)],
        "numa": call(n.nvmlDeviceGetNumaNodeId, h), "power": call(n.nvmlDeviceGetPowerUsage, h),
        "limits": call(n.nvmlDeviceGetPowerManagementLimitConstraints, h),
        "clock": call(n.nvmlDeviceGetMaxClockInfo, h, 0), "temperature": n.nvmlDeviceGetTemperatureV(h, 0),
        "processes": n.nvmlDeviceGetComputeRunningProcesses(h), "links": links,
        "fields": [[f.nvmlReturn, f.value.uiVal if f.nvmlReturn == 0 else None] for f in fields],
        "fabric": [fabric_code, fabric.state & 0xff, bytes(fabric.clusterUuid).hex(), fabric.cliqueId],
        "platform": [platform_code, *bytes(platform)[36:41]],  # pynvml declares the numbers as characters
        "cpus": list(n.nvmlDeviceGetCpuAffinity(h, 4)), "events": call(n.nvmlDeviceGetSupportedEventTypes, h),
        "levels": [n.nvmlDeviceGetTopologyCommonAncestor(h, o) for o in handles],
        "p2p": [None if o.value == h.value else n.nvmlDeviceGetP2PStatus(h, o, 2) for o in handles],
    }
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
for h in handles:
    h.value = ctypes.cast(h, ctypes.c_void_p).value
answer = {"driver": pynvml.nvmlSystemGetDriverVersion(), "nvml": pynvml.nvmlSystemGetNVMLVersion(),
          "cuda": pynvml.nvmlSystemGetCudaDriverVersion(), "gpus": [device(h) for h in handles]}
pynvml.nvmlShutdown()
"""
NOT_SUPPORTED = {"code": 3}


def value(number: int) -> Any:
    """What a getter gives for a number of the node file."""
    return NOT_SUPPORTED if number < 0 else number


def text(gpu: Gpu, name: str) -> Any:
    stored = gpu.texts[name]
    return NOT_SUPPORTED if stored.absent else stored.value.decode()


@pytest.mark.parametrize("name", profiles.names())
def test_pynvml_reads_from_the_library_what_the_profile_says(name: str, node_of: Node, ask: Ask) -> None:
    node = node_of(name)
    answer, profile = ask(node, READ), node.profile
    assert answer["driver"] == profile.driver_version
    assert answer["nvml"] == profile.nvml_version
    assert answer["cuda"] == profile.cuda_version
    assert len(answer["gpus"]) == len(profile.gpus)
    for index, (got, gpu) in enumerate(zip(answer["gpus"], profile.gpus, strict=True)):
        numbers = gpu.numbers
        assert got["index"] == index
        assert got["bus"] == f"{int(gpu.address.split(':')[0], 16):08x}:{gpu.address.split(':', 1)[1]}".upper()
        assert got["legacy"] == gpu.address.upper()
        assert got["ext"] == [0, got["bus"], numbers["pci_base_class"], numbers["pci_sub_class"]]
        assert got["ids"] == [numbers["pci_device_id"], numbers["pci_subsystem_id"]]
        assert [got[key] for key in ("name", "uuid", "serial", "part", "vbios")] == [
            text(gpu, key) for key in ("name", "uuid", "serial", "board_part_number", "vbios_version")
        ]
        for key, field in {
            "brand": "brand",
            "architecture": "architecture",
            "minor": "minor",
            "module": "module_id",
            "board": "board_id",
            "compute": "compute_mode",
            "persistence": "persistence",
            "virtualization": "virtualization",
            "numa": "memory_numa_node",
            "power": "power_usage_mw",
            "temperature": "temperature",
            "bar1": "bar1_total",
            "events": "event_types",
        }.items():
            assert got[key] == value(numbers[field]), key
        assert got["cc"] == [numbers["cc_major"], numbers["cc_minor"]]
        assert got["pcie"] == [numbers["pcie_generation"], numbers["pcie_width"]]
        missing = "nvmlDeviceGetAddressingMode" in profile.absent
        assert got["addressing"] == ({"code": 13} if missing else value(numbers["addressing_mode"]))
        assert got["clock"] == value(gpu.max_clocks[0])
        for key, field in {"ecc": "ecc_current", "mig": "mig_current"}.items():
            assert got[key] == (NOT_SUPPORTED if numbers[field] < 0 else [numbers[field]] * 2)
        assert got["processes"] == []
        check_memory(got, numbers)
        check_links(got, gpu)
        fabric = numbers["fabric_state"]
        cluster = gpu.cluster.hex()
        assert got["fabric"] == ([3, 0, cluster, 0] if fabric < 0 else [0, fabric, cluster, numbers["fabric_clique"]])
        place = [numbers[f"platform_{key}"] for key in ("slot", "tray", "host", "peer_type")]
        assert got["platform"] == ([3] + [0] * 5 if place[2] < 0 else [0, *place, numbers["module_id"]])
        assert got["levels"] == [topology_level(gpu, other) for other in profile.gpus]
        assert got["p2p"] == [None if other is gpu else (0 if linked(gpu, other) else 5) for other in profile.gpus]
        cpus = near_cpus(profile.host, gpu.device.numa_node)
        assert {64 * word + bit for word in range(4) for bit in range(64) if got["cpus"][word] >> bit & 1} == cpus


def check_memory(got: dict[str, Any], numbers: dict[str, int]) -> None:
    total, reserved = numbers["memory_total"], numbers["memory_reserved"]
    if total < 0:
        assert got["memory"] == got["memory1"] == NOT_SUPPORTED
        return
    assert got["memory"] == [total, reserved, 0, total - reserved]
    assert got["memory1"] == [total, reserved, total - reserved], "v1 counts the reserved memory as used"


def check_links(got: dict[str, Any], gpu: Gpu) -> None:
    if gpu.numbers["mig_current"] == 1:
        assert set(got["links"]) == {3}, "MIG hides the links"
        return
    for position, link in enumerate(gpu.links):
        domain, rest = (link.remote_address or "0:").split(":", 1)
        far = f"{int(domain, 16):08X}:{rest.upper()}"
        assert got["links"][position] == [1, link.version, link.remote_type, far, 1]
    assert set(got["links"][len(gpu.links) :]) <= {3}, "beyond the last link: not supported"
    count = [0, len(gpu.links)]
    speed = [0, gpu.links[0].speed_mbps] if gpu.links else [3, None]
    state = [0, 1] if gpu.links else [3, None]
    assert got["fields"] == [count, speed, speed, state, [3, None]]


@pytest.mark.bug("B01")
def test_the_gb10_has_no_memory_of_its_own_and_stands_in_domain_000f(node_of: Node, ask: Ask) -> None:
    got = ask(node_of("gb10"), READ)["gpus"][0]
    assert got["memory"] == NOT_SUPPORTED
    assert got["bus"] == "0000000F:01:00.0"
    assert len(near_cpus(node_of("gb10").profile.host, 0)) == 20


LOOKUPS = """
pynvml.nvmlInit()
answer = {}
for i in range(pynvml.nvmlDeviceGetCount()):
    h = call(pynvml.nvmlDeviceGetHandleByIndex, i)
    answer[f"index {i}"] = h["code"] if isinstance(h, dict) else 0
for way, given in KEYS:
    function = getattr(pynvml, "nvmlDeviceGetHandleBy" + way)
    h = call(function, given)
    answer[given] = h["code"] if isinstance(h, dict) else pynvml.nvmlDeviceGetIndex(h)
"""


def lookups(*keys: tuple[str, str]) -> str:
    return f"KEYS = {keys!r}\n{LOOKUPS}"


def test_a_gpu_is_found_by_any_spelling_of_its_address_by_uuid_and_by_serial(node_of: Node, ask: Ask) -> None:
    node = node_of("gb10")
    gpu = node.profile.gpus[0]
    answer = ask(
        node,
        lookups(
            ("PciBusId", "000f:01:00.0"),
            ("PciBusId", "0000000F:01:00.0"),
            ("PciBusId", "f:1:0"),
            ("PciBusId", "0000:01:00.0"),
            ("PciBusId", "01:00.0"),
            ("PciBusId", "gpu"),
            ("UUID", gpu.uuid),
            ("UUID", gpu.uuid.upper()),
            ("UUID", "GPU-0"),
        ),
    )
    assert list(answer.values()) == [0, 0, 0, 0, 6, 6, 2, 0, 0, 6]


def test_a_gpu_is_found_by_a_uuid_in_text_and_in_bytes(node_of: Node, ask: Ask) -> None:
    code = """
import uuid
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(1)
text = pynvml.nvmlDeviceGetUUID(h)
answer = []
for version, kind, value in ((1, 1, text.encode()), (1, 2, uuid.UUID(text[4:]).bytes), (1, 2, bytes(16)), (1, 3, b""),
                             (2, 1, text.encode())):
    room = (ctypes.c_char * 52)()
    ctypes.memmove(room, (ctypes.c_uint * 2)(52 | version << 24, kind), 8)
    ctypes.memmove(ctypes.byref(room, 8), value, len(value))
    found = ctypes.c_void_p()
    code = pynvml.nvmlLib.nvmlDeviceGetHandleByUUIDV(room, ctypes.byref(found))
    answer.append([code, found.value == ctypes.cast(h, ctypes.c_void_p).value])
"""
    assert ask(node_of("rtx-pro-6000"), code) == [[0, True], [0, True], [6, False], [2, False], [25, False]]


@pytest.mark.bug("B13")
def test_one_lost_gpu_is_lost_alone_but_breaks_the_lookup_by_uuid(tmp_path: Path, ask: Ask) -> None:
    node = MockNode.create(tmp_path / "root", "rtx-pro-6000")
    dead, alive = node.profile.gpus
    node.set_gpu_state(dead.address, "lost")
    keys = lookups(("PciBusId", dead.address), ("PciBusId", alive.address), ("UUID", alive.uuid))
    assert ask(node, keys) == {"index 0": 15, "index 1": 0, dead.address: 15, alive.address: 1, alive.uuid: 15}
    node.set_gpu_state(dead.address, "ok")
    assert ask(node, keys) == {"index 0": 0, "index 1": 0, dead.address: 0, alive.address: 1, alive.uuid: 1}


def test_losing_a_gpu_reaches_a_process_that_holds_its_handle(own_node: MockNode, ask: Ask) -> None:
    code = """
from pathlib import Path
from native.mock import MockNode
node = MockNode.open(Path(os.environ["ROOT"]))
address = node.profile.gpus[0].address
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = [call(pynvml.nvmlDeviceGetMinorNumber, h)]
node.set_gpu_state(address, "lost"); answer.append(call(pynvml.nvmlDeviceGetMinorNumber, h))
node.set_gpu_state(address, "ok"); answer.append(call(pynvml.nvmlDeviceGetMinorNumber, h))
node.set_driver_loaded(False); answer.append(call(pynvml.nvmlDeviceGetMinorNumber, h))
pynvml.nvmlShutdown(); answer.append(call(pynvml.nvmlInit))
node.set_driver_loaded(True); answer.append(call(pynvml.nvmlInit))
"""
    lost, gone = {"code": 15}, {"code": 9}
    assert ask(own_node, code, ROOT=str(own_node.root)) == [0, lost, 0, gone, gone, None]


def test_functions_fail_by_rule_for_all_gpus_or_one_until_the_rules_are_taken_away(tmp_path: Path, ask: Ask) -> None:
    node = MockNode.create(tmp_path / "root", "rtx-pro-6000")
    second = node.profile.gpus[1].address
    node.set_failures([Failure("nvmlDeviceGetSerial", 3), Failure("nvmlDeviceGetUUID", 999, second)])
    code = """
pynvml.nvmlInit()
answer = []
for i in range(2):
    h = pynvml.nvmlDeviceGetHandleByIndex(i)
    answer.append([isinstance(call(f, h), str) for f in (pynvml.nvmlDeviceGetSerial, pynvml.nvmlDeviceGetUUID)])
"""
    assert ask(node, code) == [[False, True], [False, False]]
    node.set_failures([Failure("nvmlDeviceGetHandleByIndex_v2", 15, second)])
    reach = "pynvml.nvmlInit(); answer = [call(pynvml.nvmlDeviceGetHandleByIndex, i) == {'code': 15} for i in range(2)]"
    assert ask(node, reach) == [False, True]
    node.set_failures([])
    assert ask(node, code) == [[True, True], [True, True]]


def test_a_call_that_hangs_comes_back_when_its_rule_is_taken_away(own_node: MockNode, ask: Ask) -> None:
    own_node.set_failures([Failure("nvmlDeviceGetName", delay_ms=-1), Failure("nvmlDeviceGetUUID", delay_ms=120)])
    code = """
import threading, time
from pathlib import Path
from native.mock import MockNode
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
start = time.monotonic(); pynvml.nvmlDeviceGetUUID(h); slow = time.monotonic() - start
names = []
thread = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(h))); thread.start()
thread.join(0.2)
hung = thread.is_alive()
MockNode.open(Path(os.environ["ROOT"])).set_failures([])
thread.join(10)
answer = [slow >= 0.12, hung, names]
"""
    assert ask(own_node, code, ROOT=str(own_node.root)) == [True, True, ["Tesla T4"]]


def test_a_call_under_way_survives_the_shutdown_of_the_session_and_the_next_one(own_node: MockNode, ask: Ask) -> None:
    own_node.set_failures([Failure("nvmlDeviceGetName", delay_ms=-1)])
    code = """
import threading
from pathlib import Path
from native.mock import MockNode
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
names = []
thread = threading.Thread(target=lambda: names.append(pynvml.nvmlDeviceGetName(h))); thread.start()
thread.join(0.2)
pynvml.nvmlShutdown()
answer = [call(pynvml.nvmlDeviceGetUUID, h)]
pynvml.nvmlInit()
answer.append(len(pynvml.nvmlDeviceGetUUID(h)))
pynvml.nvmlShutdown()
MockNode.open(Path(os.environ["ROOT"])).set_failures([])
thread.join(10)
answer.append(names)
"""
    assert ask(own_node, code, ROOT=str(own_node.root)) == [{"code": 1}, 40, ["Tesla T4"]]


@pytest.mark.parametrize("code", [9, 18, 999])
def test_starting_and_ending_fail_by_rule_too(own_node: MockNode, ask: Ask, code: int) -> None:
    own_node.set_failures([Failure("nvmlInitWithFlags", code), Failure("nvmlShutdown", code)])
    both = "answer = [call(pynvml.nvmlInit), pynvml.nvmlLib.nvmlInit_v2(), pynvml.nvmlLib.nvmlShutdown()]"
    assert ask(own_node, both) == [{"code": code}, 0, code]


def test_a_lookup_serves_the_delay_of_its_rule_once(own_node: MockNode, ask: Ask) -> None:
    own_node.set_failures([Failure("nvmlDeviceGetHandleByIndex_v2", delay_ms=700)])
    code = """
import time
pynvml.nvmlInit()
start = time.monotonic(); pynvml.nvmlDeviceGetHandleByIndex(0); answer = time.monotonic() - start
"""
    assert 0.7 <= ask(own_node, code) < 1.4


def test_the_rules_have_room_for_64_and_name_only_gpus_that_exist(own_node: MockNode) -> None:
    with pytest.raises(ValueError, match="65 failures, at most 64"):
        own_node.set_failures([Failure("nvmlDeviceGetName", 3)] * 65)
    with pytest.raises(ValueError, match=r"no GPU at 0000:99:00\.0: 0000:00:1e\.0"):
        own_node.set_failures([Failure("nvmlDeviceGetName", 3, "0000:99:00.0")])
    with pytest.raises(ValueError, match="'sad' is no state of a GPU"):
        own_node.set_gpu_state("0000:00:1e.0", "sad")


@pytest.mark.bug("B04")
def test_a_string_can_be_foreign_bytes_or_lack_its_nul(tmp_path: Path, ask: Ask) -> None:
    document = yaml.safe_load(profiles.text("t4"))
    document["gpu"]["name"] = {"hex": "f8 f8 41"}
    document["gpu"]["board_part_number"] = {"text": "AB", "unterminated": True}
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump(document))
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = []
for function, size in (("nvmlDeviceGetName", 8), ("nvmlDeviceGetBoardPartNumber", 7), ("nvmlDeviceGetVbiosVersion", 4)):
    room = (ctypes.c_char * 9)(*[b"~"] * 9)
    code = getattr(pynvml.nvmlLib, function)(h, room, size)
    answer.append([code, bytes(room).hex(" ")])
"""
    assert ask(MockNode.create(tmp_path / "root", path), code) == [
        [0, "f8 f8 41 00 7e 7e 7e 7e 7e"],
        [0, "41 42 41 42 41 42 41 7e 7e"],
        [7, "7e 7e 7e 7e 7e 7e 7e 7e 7e"],
    ]


def test_structs_of_another_version_are_refused(node_of: Node, ask: Ask) -> None:
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
answer = []
for function, size in (("nvmlDeviceGetMemoryInfo_v2", 40), ("nvmlDeviceGetGpuFabricInfoV", 40),
                       ("nvmlDeviceGetGpuFabricInfoV", 36),
                       ("nvmlDeviceGetPlatformInfo", 44), ("nvmlDeviceGetPciInfoExt", 64)):
    for version in (0, 1, 2, 3, 9):
        room = (ctypes.c_uint * 32)(size | version << 24)
        answer.append(getattr(pynvml.nvmlLib, function)(h, room))
"""
    mismatch = 25
    assert ask(node_of("gb200"), code) == [
        *[mismatch, mismatch, 0, mismatch, mismatch],
        *[mismatch, mismatch, mismatch, 0, mismatch],
        *[mismatch, mismatch, 0, mismatch, mismatch],
        *[mismatch, 0, 0, mismatch, mismatch],
        *[mismatch, 0, mismatch, mismatch, mismatch],
    ]


def test_event_sets_take_what_the_board_supports_and_a_wait_lasts_its_timeout(node_of: Node, ask: Ask) -> None:
    code = """
import time
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(0)
s = pynvml.nvmlEventSetCreate()
supported = pynvml.nvmlDeviceGetSupportedEventTypes(h)
answer = [call(pynvml.nvmlDeviceRegisterEvents, h, supported, s), call(pynvml.nvmlDeviceRegisterEvents, h, 1 << 40, s)]
start = time.monotonic()
answer += [call(pynvml.nvmlEventSetWait_v2, s, 60), time.monotonic() - start >= 0.06, call(pynvml.nvmlEventSetFree, s)]
"""
    assert ask(node_of("dgx-h100"), code) == [None, {"code": 3}, {"code": 10}, True, None]


def test_the_nearest_gpus_are_those_at_exactly_one_level(node_of: Node, ask: Ask) -> None:
    code = """
pynvml.nvmlInit()
h = pynvml.nvmlDeviceGetHandleByIndex(2)
answer = {level: [pynvml.nvmlDeviceGetIndex(o) for o in pynvml.nvmlDeviceGetTopologyNearestGpus(h, level)]
          for level in (10, 20, 30, 40, 50)}
"""
    assert ask(node_of("dgx-h100"), code) == {"10": [], "20": [], "30": [3], "40": [0, 1], "50": [4, 5, 6, 7]}
