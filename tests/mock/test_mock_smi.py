"""The mock nvidia-smi: NVIDIA's format, and no need of anything but the node file and device nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from native.mock import Failure, MockNode, Process, pcie
from native.mock.boards import linked, topology_level
from tests.support.mocknodes import Node


def smi(node: MockNode, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**node.environment, **environment}
    return subprocess.run([node.smi, *arguments], env=variables, capture_output=True, text=True, check=False)


def test_the_list_is_nvidias(node_of: Node) -> None:
    node = node_of("dgx-h100")
    done = smi(node, "-L")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: {gpu.uuid})" for index, gpu in enumerate(node.profile.gpus)
    ]
    assert "this is not hardware" in done.stderr
    assert smi(node, "--list-gpus", GPUDRA_MOCK_QUIET="1").stderr == ""


def frame(node: MockNode) -> list[str]:
    """The summary without the line that says when."""
    first, *lines = smi(node).stdout.splitlines()
    assert re.fullmatch(r"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4} {7}", first)
    return lines


def test_the_summary_is_the_frame_that_everybody_knows(node_of: Node) -> None:
    assert frame(node_of("t4")) == [
        "+-----------------------------------------------------------------------------------------+",
        "| NVIDIA-SMI 595.91.07              Driver Version: 595.91.07      CUDA Version: 13.2     |",
        "+-----------------------------------------+------------------------+----------------------+",
        "| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |",
        "| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |",
        "|                                         |                        |               MIG M. |",
        "|=========================================+========================+======================|",
        "|   0  Tesla T4                        On |   00000000:00:1E.0 Off |                    0 |",
        "| N/A   33C    P0             13W /   70W |       0MiB /  15360MiB |      0%      Default |",
        "|                                         |                        |                  N/A |",
        "+-----------------------------------------+------------------------+----------------------+",
        "",
        "+-----------------------------------------------------------------------------------------+",
        "| Processes:                                                                              |",
        "|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |",
        "|        ID   ID                                                               Usage      |",
        "|=========================================================================================|",
        "|  No running processes found                                                             |",
        "+-----------------------------------------------------------------------------------------+",
    ]


@pytest.mark.parametrize("name", ["dgx-h100", "rtx-pro-6000", "gb10"])
def test_the_summary_is_straight_on_every_board(name: str, node_of: Node) -> None:
    node = node_of(name)
    lines = frame(node)
    assert {len(line) for line in lines} == {91, 0}
    assert sum("Default" in line for line in lines) == len(node.profile.gpus)


def test_the_summary_shows_mig_devices_and_processes(mig_node: MockNode) -> None:
    mig_node.nvidia_smi("mig", "-i", "0", "-cgi", "9,19", "-C")
    mig_node.set_processes("0000:1b:00.0", [Process(4711, "train", 256, gi=1, ci=0)])
    mig_node.set_processes("0000:43:00.0", [Process(4712, "serve", 64)])
    lines = frame(mig_node)
    assert {len(line) for line in lines} == {91, 0}
    assert "|  0    1   0   0  |            256MiB /    40448MiB  | 60      0 |  3   0    3    0    3 |" in lines
    assert "|    0    1    0             4711      C   train                                   256MiB |" in lines
    assert "|    1   N/A  N/A            4712      C   serve                                    64MiB |" in lines


def test_what_a_board_does_not_have_is_not_made_up(node_of: Node) -> None:
    assert "N/A /" in re.sub(r" +", " ", smi(node_of("gb10")).stdout)


def test_versions_are_told(node_of: Node) -> None:
    assert "DRIVER version      : 595.91.07\n" in smi(node_of("t4"), "--version").stdout


def test_an_unknown_option_is_refused_with_the_usage(node_of: Node) -> None:
    assert smi(node_of("t4"), "--help").returncode == 0
    for arguments in (("-z",), ("-L", "-x")):
        done = smi(node_of("t4"), *arguments)
        assert (done.returncode, "--list-gpus" in done.stderr) == (2, True)


def test_without_a_driver_it_says_what_nvidias_says(own_node: MockNode) -> None:
    own_node.set_driver_loaded(False)
    done = smi(own_node, "-L")
    assert done.returncode == 9
    assert "couldn't communicate with the NVIDIA driver" in done.stdout


def test_a_lost_gpu_does_not_hide_the_others(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "rtx-pro-6000")
    node.set_gpu_state(node.profile.gpus[0].address, "lost")
    done = smi(node, "-L")
    assert done.returncode == 15
    assert "gpu 0: GPU is lost" in done.stdout
    assert node.profile.gpus[1].uuid in done.stdout
    assert "GPU is lost" in smi(node).stdout


def test_a_getter_that_fails_shows_as_not_available(own_node: MockNode) -> None:
    own_node.set_failures([Failure("nvmlDeviceGetUUID", 999)])
    assert smi(own_node, "-L").stdout == "GPU 0: Tesla T4 (UUID: N/A)\n"


def test_no_gpu_at_all_is_said(own_node: MockNode, tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert smi(own_node, "-L", GPUDRA_MOCK_DEV=str(tmp_path / "dev")).stdout == "No devices found.\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root folder of a process")
@pytest.mark.skipif("-fsanitize" in os.environ.get("GPUDRA_MOCK_CFLAGS", ""), reason="the sanitizers need a libc")
def test_a_container_without_a_libc_sees_just_the_gpu_it_got(node_of: Node, tmp_path: Path) -> None:
    node = node_of("dgx-h100")
    (tmp_path / "dev").mkdir()
    (tmp_path / "run/gpudra-mock").mkdir(parents=True)
    shutil.copy(node.smi, tmp_path / "nvidia-smi")
    shutil.copy(node.root / "run/gpudra-mock/node", tmp_path / "run/gpudra-mock/node")
    (tmp_path / "dev/nvidia6").touch()
    done = subprocess.run(
        ["chroot", tmp_path, "/nvidia-smi", "-L"],
        env={"GPUDRA_MOCK_NODE": "/run/gpudra-mock/node", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == f"GPU 0: NVIDIA H100 80GB HBM3 (UUID: {node.profile.gpus[6].uuid})\n", done.stderr


def lines(node: MockNode, *arguments: str) -> list[str]:
    return node.nvidia_smi(*arguments).splitlines()


@pytest.fixture
def mig_node(tmp_path: Path) -> MockNode:
    """An H100 node of the test's own; GPU 0 is divided."""
    node = MockNode.create(tmp_path / "root", "dgx-h100")
    assert lines(node, "-mig", "1", "-i", "0")[0] == "Enabled MIG Mode for GPU 00000000:1B:00.0"
    return node


def test_mig_instances_are_made_and_destroyed_in_nvidias_words(mig_node: MockNode) -> None:
    assert lines(mig_node, "mig", "-i", "0", "-cgi", "9,MIG 1g.10gb,1g.10gb+me:0", "-C") == [
        "Successfully created GPU instance ID  1 on GPU  0 using profile MIG 3g.40gb (ID  9)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID  1 using profile MIG 3g.40gb (ID  2)",
        "Successfully created GPU instance ID 11 on GPU  0 using profile MIG 1g.10gb (ID 19)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID 11 using profile MIG 1g.10gb (ID  0)",
        "Successfully created GPU instance ID 12 on GPU  0 using profile MIG 1g.10gb+me (ID 20)",
        "Successfully created compute instance ID  0 on GPU  0 GPU instance ID 12 using profile MIG 1g.10gb+me (ID  0)",
    ]
    listed = "\n".join(lines(mig_node, "mig", "-lgi"))
    for row in ("MIG 3g.40gb            9        1          4:4", "MIG 1g.10gb+me        20       12          0:1"):
        assert row in listed
    assert "|   0      1       MIG 3g.40gb            2         0          0:3     |" in lines(mig_node, "mig", "-lci")
    done = smi(mig_node, "mig", "-dgi", "-i", "0", "-gi", "11")
    assert (done.returncode, done.stdout) == (
        19,
        "Unable to destroy GPU instance ID 11 from GPU  0: In use by another client\n",
    )
    mig_node.nvidia_smi("mig", "-dci", "-i", "0", "-gi", "11", "-ci", "0")
    assert lines(mig_node, "mig", "-dgi", "-i", "0", "-gi", "11") == [
        "Successfully destroyed GPU instance ID 11 from GPU  0"
    ]
    assert [instance.id for instance in mig_node.instances("0000:1b:00.0")] == [1, 12]


def test_mig_devices_are_listed_below_their_gpu(mig_node: MockNode) -> None:
    mig_node.nvidia_smi("mig", "-i", "0", "-cgi", "9,19", "-C")
    listed = lines(mig_node, "-L")
    assert re.fullmatch(r"  MIG 3g\.40gb     Device  0: \(UUID: MIG-[0-9a-f-]{36}\)", listed[1])
    assert re.fullmatch(r"  MIG 1g\.10gb     Device  1: \(UUID: MIG-[0-9a-f-]{36}\)", listed[2])
    assert listed[3].startswith("GPU 1: ")


def test_profiles_and_placements_are_those_of_the_captured_board(node_of: Node) -> None:
    board = node_of("rtx-pro-6000")
    table = lines(board, "mig", "-lgip", "-i", "0")
    assert {len(line) for line in table} == {81}
    assert any(re.search(r"MIG 1g\.24gb\+me\.all +65 +0/1 +23\.62 +No +46 +4 +4", line) for line in table)
    places = lines(board, "mig", "-lgipp", "-i", "0")
    assert "GPU  0 Profile ID 14 Placements: {0,3,6,9}:3" in places
    assert "GPU  0 Profile ID  0 Placement : {0}:12" in places


def test_a_mode_that_stays_pending_is_a_warning(mig_node: MockNode) -> None:
    mig_node.set_number("0000:43:00.0", "mig_activation", 19)
    assert lines(mig_node, "-mig", "1", "-i", "1")[0] == (
        "Warning: MIG mode is in pending enable state for GPU 00000000:43:00.0:In use by another client"
    )


def test_fields_are_queried_as_csv_with_and_without_units(node_of: Node) -> None:
    node = node_of("dgx-h100")
    fields = "--query-gpu=index, name,memory.total,pci.bus_id,mig.mode.current,compute_cap,fan.speed"
    full = lines(node, fields, "--format=csv", "-i", "1")
    assert full == [
        "index, name, memory.total [MiB], pci.bus_id, mig.mode.current, compute_cap, fan.speed",
        "1, NVIDIA H100 80GB HBM3, 81559 MiB, 00000000:43:00.0, Disabled, 9.0, [N/A]",
    ]
    bare = lines(node, "--query-gpu=memory.total,power.draw", "--format=csv,noheader,nounits")
    assert bare == ["81559, 68.00"] * 8
    assert smi(node, "--query-gpu=nonsense", "--format=csv").stdout.startswith('Field "nonsense" is not a valid')


@pytest.mark.parametrize("selection", ["2", "00000000:52:00.0", "52:00.0"])
def test_a_gpu_is_named_by_index_bus_id_or_uuid(selection: str, node_of: Node) -> None:
    node = node_of("dgx-h100")
    uuid = node.profile.gpus[2].uuid
    for chosen in (selection, uuid):
        assert lines(node, "--query-gpu=uuid", "--format=csv,noheader", "-i", chosen) == [uuid]
    assert smi(node, "--query-gpu=uuid", "--format=csv", "-i", "99").returncode != 0


CAPTURES = {"dgx-h100": "h100", "dgx-a100": "a100", "b200": "b200", "gb200": "gb200", "l40s": "l40s", "t4": "t4"}


@pytest.mark.parametrize("name", CAPTURES)
def test_the_xml_has_the_values_of_the_board(name: str, node_of: Node) -> None:
    node = node_of(name)
    root = ET.fromstring(node.nvidia_smi("-q", "-x"))
    assert root.findtext("attached_gpus") == str(len(node.profile.gpus))
    assert root.findtext("driver_version") == node.profile.driver_version
    for element, gpu in zip(root.findall("gpu"), node.profile.gpus, strict=True):
        numbers = gpu.numbers
        domain = int(gpu.address.split(":")[0], 16)
        assert element.get("id") == f"{domain:08X}:{gpu.address.split(':', 1)[1].upper()}"
        assert element.findtext("uuid") == gpu.uuid
        assert element.findtext("product_name") == gpu.texts["name"].value.decode()
        assert element.findtext("fb_memory_usage/total") == f"{numbers['memory_total'] >> 20} MiB"
        assert element.findtext("pci/pci_device_id") == f"{numbers['pci_device_id']:08X}"
        assert element.findtext("board_id") == f"{numbers['board_id']:#x}"
        assert element.findtext("bar1_memory_usage/total") == f"{numbers['bar1_total'] >> 20} MiB"
        assert element.findtext("temperature/gpu_temp") == f"{numbers['temperature']} C"
        assert (
            element.findtext("mig_mode/current_mig") == {-1: "N/A", 0: "Disabled", 1: "Enabled"}[numbers["mig_current"]]
        )


def test_the_xml_shows_mig_devices_and_processes(mig_node: MockNode) -> None:
    mig_node.nvidia_smi("mig", "-i", "0", "-cgi", "9", "-C")
    mig_node.set_processes("0000:1b:00.0", [Process(4711, "a<b&c", 256, gi=1, ci=0)])
    gpu = ET.fromstring(mig_node.nvidia_smi("-q", "-x", "-i", "0")).find("gpu")
    assert gpu is not None
    mig = gpu.find("mig_devices/mig_device")
    assert mig is not None
    assert [mig.findtext(name) for name in ("index", "gpu_instance_id", "compute_instance_id")] == ["0", "1", "0"]
    assert mig.findtext("device_attributes/shared/multiprocessor_count") == "60"
    assert [mig.findtext(f"fb_memory_usage/{name}") for name in ("total", "used")] == ["40448 MiB", "256 MiB"]
    info = gpu.find("processes/process_info")
    assert info is not None
    assert [info.findtext(name) for name in ("pid", "process_name", "gpu_instance_id")] == ["4711", "a<b&c", "1"]


@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "h200", "gb200", "rtx-pro-6000", "gb10", "t4", "a100-80"])
def test_the_matrix_agrees_with_the_tree_and_the_links(name: str, node_of: Node) -> None:
    node = node_of(name)
    rows = [line.split("\t") for line in lines(node, "topo", "-m") if line.startswith("GPU")]
    words = {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
    for row, gpu in zip(rows, node.profile.gpus, strict=True):
        for cell, other in zip(row[1:], node.profile.gpus, strict=False):
            if other is gpu:
                assert cell == " X "
            elif linked(gpu, other):
                assert re.fullmatch(r"NV\d+", cell)
            else:
                assert cell == words[topology_level(gpu, other)]
    nics = [device for device in node.profile.devices if device.infiniband]
    for row, gpu in zip(rows, node.profile.gpus, strict=True):
        cells = dict(zip(sorted(nics, key=_natural), row[1 + len(rows) :], strict=False))
        assert all(cell == words[int(pcie.level(gpu.device, nic))] for nic, cell in cells.items())


def _natural(device: pcie.PciDevice) -> list[object]:
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(device.infiniband))]


def test_the_processes_of_all_gpus_are_queried_as_csv(mig_node: MockNode) -> None:
    mig_node.set_processes("0000:43:00.0", [Process(41, "train", 512), Process(42, "Xorg", 8, "graphics")])
    mig_node.set_processes("0000:52:00.0", [Process(43, "serve", 64)])
    fields = "--query-compute-apps=pid,process_name,used_memory,gpu_uuid"
    first, second = (mig_node.profile.gpus[index].uuid for index in (1, 2))
    assert lines(mig_node, fields, "--format=csv") == [
        "pid, process_name, used_memory [MiB], gpu_uuid",
        f"41, train, 512 MiB, {first}",
        f"43, serve, 64 MiB, {second}",
    ]
    assert lines(mig_node, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits", "-i", "2") == [
        "43, 64"
    ]
    assert smi(mig_node, "--query-compute-apps=shoe_size", "--format=csv").returncode == 2
