from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from native.mock import ProfileError, pcie, profiles
from native.mock.boards import topology_level
from native.mock.profile import Failure, parse, parse_cpus

DATA = Path(__file__).parent / "data"
CAPTURES = json.loads((DATA / "captures.json").read_text())["nodes"]
CAPTURED = {"dgx-a100": "a100", "dgx-h100": "h100", "b200": "b200", "gb200": "gb200", "l40s": "l40s", "t4": "t4"}
BARE_METAL = {"dgx-a100", "dgx-h100"}
"""Profiles of bare metal whose identity was captured in virtual machines: the captured addresses are not theirs."""
MIB = 1024 * 1024


def document(name: str = "t4") -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(profiles.text(name))
    return loaded


def refused(change: dict[str, Any], at: tuple[Any, ...] = ()) -> str:
    """The complaint about the T4 profile with some keys changed in the mapping at a path."""
    changed = copy.deepcopy(document())
    target: Any = changed
    for key in at:
        target = target[key]
    target.update(change)
    with pytest.raises(ProfileError) as caught:
        parse(changed)
    return str(caught.value)


def test_the_boards_that_the_project_speaks_of_have_profiles() -> None:
    assert profiles.names() == sorted(
        [
            "dgx-a100",
            "dgx-h100",
            "h200",
            "b200",
            "gb200",
            "l40s",
            "t4",
            "gb10",
            "rtx-pro-6000",
            "a30",
            "a100-80",
            "h100-nvl",
        ]
    )


@pytest.mark.parametrize("name", profiles.names())
def test_a_profile_states_the_source_of_every_section_and_has_no_identity_twice(name: str) -> None:
    profile = profiles.load(name)
    assert profile.name == name
    assert all(profile.sources[section] for section in ("driver", "host", "gpu", "gpus", "nvlink", "pcie"))
    assert len({gpu.uuid for gpu in profile.gpus}) == len(profile.gpus)
    assert len({gpu.numbers["minor"] for gpu in profile.gpus}) == len(profile.gpus)
    serials = [gpu.texts["serial"].value for gpu in profile.gpus if not gpu.texts["serial"].absent]
    expected = len(serials) // 2 if name == "gb200" else len(serials)
    assert len(set(serials)) == expected, "two GPUs of a GB200 module share a serial, no others do"


@pytest.mark.parametrize(("name", "capture"), CAPTURED.items())
def test_a_profile_agrees_with_the_capture_of_its_board(name: str, capture: str) -> None:
    profile, captured = profiles.load(name), CAPTURES[capture]
    assert profile.driver_version == captured["driver_version"]
    assert f"{profile.cuda_version // 1000}.{profile.cuda_version % 1000 // 10}" == captured["cuda_version"]
    for index, gpu in enumerate(profile.gpus):
        real = captured["gpus"][index if len(captured["gpus"]) > 1 else 0]
        words = {"Enabled": 1, "Disabled": 0, "N/A": -1, "None": 0, "HMM": 1, "ATS": 2, "Completed": 3}
        assert gpu.texts["name"].value.decode() == real["name"]
        assert gpu.texts["vbios_version"].value.decode() == real["vbios"]
        assert gpu.numbers["addressing_mode"] == words[real["addressing_mode"]]
        assert gpu.numbers["mig_current"] == words[real["mig"]]
        assert gpu.numbers["ecc_current"] == words[real["ecc"]]
        assert gpu.numbers["fabric_state"] == words[real["fabric_state"]]
        assert gpu.numbers["memory_total"] == int(real["memory_total"].split()[0]) * MIB
        assert gpu.numbers["memory_reserved"] == int(real["memory_reserved"].split()[0]) * MIB
        assert gpu.numbers["bar1_total"] == int(real["bar1_total"].split()[0]) * MIB
        assert gpu.numbers["pci_device_id"] == int(real["pci_device_id"], 16)
        assert gpu.numbers["pci_subsystem_id"] == int(real["pci_subsystem_id"], 16)
        assert gpu.numbers["pcie_generation"] == int(real["pcie_generation"])
        assert gpu.numbers["pcie_width"] == int(real["pcie_width"].rstrip("x"))
        assert gpu.numbers["power_limit_mw"] == float(real["power_limit"].split()[0]) * 1000
        assert gpu.numbers["power_min_mw"] == float(real["power_min"].split()[0]) * 1000
        assert gpu.max_clocks[0] == int(real["graphics_clock"].split()[0])
        assert gpu.max_clocks[2] == int(real["memory_clock"].split()[0])
        if len(captured["gpus"]) > 1:
            assert gpu.numbers["module_id"] == int(real["module_id"])
        if name not in BARE_METAL:
            assert f"0000{gpu.address}".upper() == real["bus_id"]
            assert gpu.numbers["board_id"] == int(real["board_id"], 16)


def test_the_dgx_h100_has_four_gpus_a_numa_node_and_a_pair_under_one_pcie_root() -> None:
    profile = profiles.load("dgx-h100")
    nodes = [gpu.device.numa_node for gpu in profile.gpus]
    assert nodes == [0, 0, 0, 0, 1, 1, 1, 1]
    roots = [gpu.device.path[0] for gpu in profile.gpus]
    assert sorted(roots.count(root) for root in set(roots)) == [1, 1, 1, 1, 2, 2]
    nearest = [
        sum(1 for nic in profile.devices if nic.kind == "nic" and pcie.level(gpu.device, nic) is pcie.Level.PIX)
        for gpu in profile.gpus
    ]
    assert nearest == [1] * 8, "each GPU has one ConnectX-7 behind its own switch"


@pytest.mark.parametrize(
    ("change", "at", "complaint"),
    [
        ({"schema": "v0"}, (), "schema: only gpudra.mock/v1 is known"),
        ({"colour": "green"}, (), "colour: is unknown here"),
        ({"arhcitecture": "turing"}, ("gpu",), "gpu 0000:00:1e.0.arhcitecture: is unknown here"),
        ({"version": 595.91}, ("driver",), "driver.version: 595.91 is not a string (put it in quotes)"),
        ({"cuda": "13"}, ("driver",), "driver.cuda: '13' is not a version such as 13.0"),
        ({"absent": ["mps.start"]}, ("driver",), "driver.absent: 'mps.start' is not the name of an NVML function"),
        ({"fails": {"cuInit": "UNKNOWN"}}, ("driver",), "driver.fails: 'cuInit' is not the name of an NVML function"),
        ({"absent": ["cuInit"]}, ("driver",), "driver.absent: 'cuInit' is not the name of an NVML function"),
        ({"fails": {"nvmlDeviceGetName": "TIRED"}}, ("driver",), "driver.fails.nvmlDeviceGetName: 'TIRED' is none of"),
        ({"memory": {"total_mib": -1}}, ("gpu",), "gpu 0000:00:1e.0.memory.total_mib: -1 is not a whole number"),
        ({"memory": {"total_mib": 1, "used_mib": 2}}, ("gpu",), "gpu 0000:00:1e.0.memory: more reserved and used"),
        ({"compute_capability": "9"}, ("gpu",), 'gpu 0000:00:1e.0.compute_capability: expected for example "9.0"'),
        ({"name": {"hex": "zz"}}, ("gpu",), "gpu 0000:00:1e.0.name.hex: 'zz' is not hexadecimal"),
        ({"name": "x" * 121}, ("gpu",), "gpu 0000:00:1e.0.name: 121 bytes, at most 120"),
        ({"address": "0000:77:00.0"}, ("gpus", 0), "gpus: 0000:77:00.0 is no gpu of the pcie tree"),
        ({"address": "bus 7"}, ("gpus", 0), "gpus: 'bus 7' is not a PCI address"),
        ({"gpus": []}, (), "pcie: 0000:00:1e.0 is a gpu, but gpus does not list it"),
        ({"cpus": "3-0"}, ("host", "numa", 0), "host.numa[0].cpus: '3-0' is not a CPU list"),
        ({"distances": [10, 20]}, ("host", "numa", 0), "host.numa: node 0 states 2 distances, not 1"),
        ({"tree": {"1e:00": "gpu"}}, ("pcie", 0), "pcie[0].tree[1e:00]: '1e:00' is not a PCI address"),
        ({"tree": {"00:1e.0": "tpu"}}, ("pcie", 0), "pcie[0].tree[00:1e.0]: 'tpu' is no kind of device"),
        ({"root": "pci0000:00"}, ("pcie", 0), "pcie[0].root: 'pci0000:00' is not a root complex"),
        ({"nvlink": {"version": "4.0", "speed_mbps": 1, "peers": [[0, 0, 1]]}}, (), "nvlink.peers: [0, 0, 1] does not"),
    ],
)
def test_a_wrong_profile_is_refused_and_the_field_is_named(
    change: dict[str, Any], at: tuple[Any, ...], complaint: str
) -> None:
    assert refused(change, at).startswith(complaint)


def test_a_profile_without_a_source_for_a_section_is_refused() -> None:
    changed = document()
    del changed["sources"]["gpu"]
    with pytest.raises(ProfileError, match=r"sources\.gpu: is missing"):
        parse(changed)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match="dgx-a100, dgx-h100"):
        profiles.load("dgx-h1000")


def test_failures_may_name_a_code_a_delay_or_one_gpu() -> None:
    changed = document()
    changed["driver"]["fails"] = {"nvmlDeviceGetName": {"delay_ms": 5}, "nvmlDeviceGetSerial": "NOT_SUPPORTED"}
    changed["driver"]["fails"] |= {"mps.start": "UNKNOWN", "nvidia-smi": {"delay_ms": -1}}
    changed["gpus"][0]["fails"] = {"nvmlDeviceGetUUID": {"code": "UNKNOWN", "delay_ms": -1}}
    assert parse(changed).failures == (
        Failure("nvmlDeviceGetName", -1, None, 5),
        Failure("nvmlDeviceGetSerial", 3),
        Failure("mps.start", 999),
        Failure("nvidia-smi", -1, None, -1),
        Failure("nvmlDeviceGetUUID", 999, "0000:00:1e.0", -1),
    )


@given(st.sets(st.integers(0, 2047)))
def test_a_cpu_list_gives_the_cpus_it_was_made_of(cpus: set[int]) -> None:
    assert parse_cpus(",".join(map(str, sorted(cpus)))) == cpus


@given(st.integers(0, 2047), st.integers(0, 2047))
def test_a_cpu_range_counts_both_its_ends(one: int, other: int) -> None:
    low, high = min(one, other), max(one, other)
    assert parse_cpus(f"{low}-{high}") == frozenset(range(low, high + 1))


@given(st.text(max_size=12))
def test_text_that_is_no_cpu_list_is_refused(text: str) -> None:
    if re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*|", text, re.ASCII):
        text += "-"
    with pytest.raises(ProfileError, match="cpus"):
        parse_cpus(text)


@pytest.mark.parametrize("name", profiles.names())
def test_the_class_of_a_pair_does_not_depend_on_the_order(name: str) -> None:
    gpus = profiles.load(name).gpus
    for one in gpus:
        assert topology_level(one, one) == 0
        for other in gpus:
            assert topology_level(one, other) == topology_level(other, one)


def device(*path: str, numa: int = 0) -> pcie.PciDevice:
    return pcie.PciDevice(path[-1], "gpu", path, numa)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (device("pci0000:00", "p", "u", "d1", "a"), device("pci0000:00", "p", "u", "d2", "b"), "PIX"),
        (device("pci0000:00", "p", "u", "d1", "a.0"), device("pci0000:00", "p", "u", "d1", "a.1"), "PIX"),
        (device("pci0000:00", "p", "u", "d1", "a"), device("pci0000:00", "p", "u", "d2", "u2", "d3", "b"), "PXB"),
        (device("pci0000:00", "p1", "a"), device("pci0000:00", "p2", "b"), "PHB"),
        (device("pci0000:00", "a"), device("pci0000:00", "b"), "PHB"),
        (device("pci0000:00", "a"), device("pci0000:40", "b"), "NODE"),
        (device("pci0000:00", "a"), device("pci0000:40", "b", numa=1), "SYS"),
        (device("pci0000:00", "a", numa=-1), device("pci0000:40", "b", numa=-1), "SYS"),
    ],
)
def test_the_class_of_a_pair_counts_the_switches_between_them(
    one: pcie.PciDevice, other: pcie.PciDevice, expected: str
) -> None:
    assert pcie.level(one, other).name == expected
