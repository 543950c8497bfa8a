"""nvidia-smi -q and dmon of the mock: the text that people grep, held to the XML and to published output."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from native.mock import MockNode, Process
from tests.support.mocknodes import Node

Labels = tuple[str, ...]


def smi(node: MockNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [node.smi, *arguments]
    return subprocess.run(command, env={"GPUDRA_MOCK_QUIET": "1"}, capture_output=True, text=True, check=False)


def read(text: str) -> list[tuple[Labels, str]]:
    """Every value with the labels above it; the indentation says what is in what."""
    found: list[tuple[Labels, str]] = []
    above: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("="):
            continue
        depth = (len(line) - len(line.lstrip())) // 4
        label, colon, value = line.strip().partition(" : ")
        label = label.removesuffix(" :").strip()
        above = [*above[:depth], label]
        if colon or line.rstrip().endswith(":"):
            assert line.index(":") == 42 or ":" in label, line
            found.append((tuple(above), value))
    return found


@pytest.mark.parametrize("name", ["dgx-h100", "t4", "gb10"])
def test_the_text_says_what_the_xml_says(name: str, node_of: Node) -> None:
    node = node_of(name)
    values = read(smi(node, "-q", "-i", "0").stdout)
    gpu = ET.fromstring(smi(node, "-q", "-x", "-i", "0").stdout).find("gpu")
    assert gpu is not None
    told = {
        ("Product Name",): "product_name",
        ("GPU UUID",): "uuid",
        ("MIG Mode", "Current"): "mig_mode/current_mig",
        ("PCI", "Bus Id"): "pci/pci_bus_id",
        ("PCI", "GPU Link Info", "PCIe Generation", "Device Max"): (
            "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen"
        ),
        ("FB Memory Usage", "Total"): "fb_memory_usage/total",
        ("Compute Mode",): "compute_mode",
        ("ECC Mode", "Current"): "ecc_mode/current_ecc",
        ("Temperature", "GPU Current Temp"): "temperature/gpu_temp",
        ("GPU Power Readings", "Max Power Limit"): "gpu_power_readings/max_power_limit",
        ("Max Clocks", "SM"): "max_clocks/sm_clock",
        ("Fabric", "CliqueId"): "fabric/cliqueId",
    }
    by_path = {path[1:]: value for path, value in values}
    for path, element in told.items():
        assert by_path[path] == gpu.findtext(element), path
    text = {value for _, value in values}
    assert {leaf.text.strip() for leaf in gpu.iter() if leaf.text and leaf.text.strip()} - text <= {
        leaf.text for leaf in gpu.find("pci") or ()
    }
    assert by_path["PCI", "Bus"] == f"0x{gpu.findtext('pci/pci_bus')}"


def test_it_begins_as_nvidias_does(node_of: Node) -> None:
    lines = smi(node_of("t4"), "-q").stdout.splitlines()
    assert lines[:3] == ["", "==============NVSMI LOG==============", ""]
    assert re.fullmatch(r"Timestamp {33}: \w{3} \w{3} \d\d \d\d:\d\d:\d\d \d{4}", lines[3])
    assert lines[4:9] == [
        "Driver Version                            : 595.91.07",
        "CUDA Version                              : 13.2",
        "",
        "Attached GPUs                             : 1",
        "GPU 00000000:00:1E.0",
    ]


@pytest.fixture
def divided(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    node = MockNode.create(tmp_path_factory.mktemp("a30") / "root", "a30")
    node.nvidia_smi("-mig", "1", "-i", "0")
    node.nvidia_smi("mig", "-cgi", "14", "-C", "-i", "0")
    address = node.profile.gpus[0].address
    node.set_processes(address, [Process(4711, "train", 256, gi=node.instances(address)[0].id, ci=0)])
    return node


def test_mig_devices_and_processes_stand_where_people_look_for_them(divided: MockNode) -> None:
    values = read(smi(divided, "-q", "-i", "0").stdout)
    mig = {path[2:]: value for path, value in values if path[1:2] == ("MIG Device",)}
    assert mig["Index",] == "0"
    assert mig["Device Attributes", "Shared", "Multiprocessor count"] == "14"
    assert mig["FB Memory Usage", "Used"] == "256 MiB"
    processes = {path[2:]: value for path, value in values if path[1:2] == ("Processes",)}
    assert processes["Process ID",] == "4711"
    assert processes["Process ID", "Name"] == "train"
    assert processes["Process ID", "Used GPU Memory"] == "256 MiB"


def test_a_display_type_shows_its_sections_only(divided: MockNode) -> None:
    values = read(smi(divided, "-q", "-d", "memory,PIDS").stdout)
    assert {path[1] for path, _ in values if len(path) > 1} == {
        "FB Memory Usage",
        "BAR1 Memory Usage",
        "Conf Compute Protected Memory Usage",
        "Processes",
    }
    assert smi(divided, "-q", "--display=UTILIZATION").returncode == 0
    assert smi(divided, "-q", "-d", "WEATHER").returncode == 2


def test_without_processes_it_says_none(node_of: Node) -> None:
    text = smi(node_of("t4"), "-q", "-d", "PIDS").stdout
    assert "    Processes                             : None\n" in text


def test_dmon_prints_the_columns_of_its_groups(divided: MockNode) -> None:
    lines = smi(divided, "dmon", "-c", "1").stdout.splitlines()
    assert lines[:2] == [
        "# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa   mclk   pclk ",
        "# Idx      W      C      C      %      %      %      %      %      %    MHz    MHz ",
    ]
    assert len(lines) == 2 + len(divided.profile.gpus)
    assert {len(line) for line in lines} == {len(lines[0])}
    assert lines[2].split()[3:6] == ["-", "-", "-"]  # MIG: no utilisation of the whole
    memory = smi(divided, "dmon", "-s", "m", "-c", "1", "-i", "0").stdout.splitlines()
    assert memory[0] == "# gpu     fb   bar1   ccpm "
    assert memory[2].split() == ["0", "256", "0", "0"]


@pytest.mark.parametrize("arguments", [("-s", "x"), ("-c", "0"), ("-c",), ("-d", "soon"), ("-s", "")])
def test_dmon_refuses_what_it_does_not_know(arguments: tuple[str, ...], node_of: Node) -> None:
    assert smi(node_of("t4"), "dmon", *arguments).returncode == 2


def test_dmon_without_a_count_goes_on_until_nobody_reads(node_of: Node) -> None:
    process = subprocess.Popen([node_of("t4").smi, "dmon", "-d", "1"], stdout=-1, env={}, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(4)]
    process.stdout.close()
    process.terminate()
    assert process.wait(20) != 0
    assert lines[2].split()[0] == lines[3].split()[0] == "0"
