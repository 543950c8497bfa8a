"""The path class agrees with what nvidia-smi shows on known machines, and is a sound distance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from native.pcipath import PathClass, PciPlace, path_class
from native.sysfs import read_host
from tests.support.hosttree import HostTree

TREES = sorted((Path(__file__).parents[2] / "data/pcie").glob("*.json"))


@pytest.mark.parametrize("file", TREES, ids=[file.stem for file in TREES])
def test_every_pair_of_a_known_machine_has_the_class_that_nvidia_smi_shows(file: Path, host: HostTree) -> None:
    data = json.loads(file.read_text())
    for spec in data["functions"].values():
        numa_node = "-1" if spec["numa_node"] is None else str(spec["numa_node"])
        host.add(spec["path"], vendor=spec["vendor"], class_code=spec["class"], numa_node=numa_node)
    places = {device.address: device.place for device in read_host(host.sys, host.proc).devices}
    address = {name: spec["path"][-1] for name, spec in data["functions"].items()}

    wrong = []
    for a, b, expected in data["classes"]:
        found = path_class(places[address[a]], places[address[b]])
        if found.name != expected:
            wrong.append((a, b, expected, found.name))

    assert data["classes"] or len(data["functions"]) == 1
    assert wrong == []


AFFINE = [file for file in TREES if "affinity" in json.loads(file.read_text())]


def numbers(cpulist: str) -> set[int]:
    """``0-2,8`` as a set."""
    ends = [part.split("-") for part in cpulist.split(",")]
    return {number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)}


@pytest.mark.bug("B22")
@pytest.mark.parametrize("file", AFFINE, ids=[file.stem for file in AFFINE])
def test_every_gpu_of_a_known_machine_has_the_cpus_and_the_numa_node_that_nvidia_smi_shows(
    file: Path, host: HostTree
) -> None:
    data = json.loads(file.read_text())
    shown = {data["functions"][name]["path"][-1]: facts for name, facts in data["affinity"].items()}
    for spec in data["functions"].values():
        host.add(spec["path"], vendor=spec["vendor"], class_code=spec["class"], numa_node=str(spec["numa_node"]))
    for node, cpus in {facts["numa_node"]: facts["cpus"] for facts in shown.values()}.items():
        host.numa_node(node, cpus, 1 << 28, "10")

    found = read_host(host.sys, host.proc)

    cpus_of = {node.index: numbers(node.cpulist) for node in found.numa_nodes}
    gpus = {device.address: device for device in found.gpus}
    assert set(gpus) == set(shown)
    for address, facts in shown.items():
        assert gpus[address].numa_node == facts["numa_node"]
        assert cpus_of[facts["numa_node"]] == numbers(facts["cpus"])


def test_six_captures_or_more_say_the_affinity_of_their_gpus() -> None:
    assert len(AFFINE) >= 6


def place(address: str, root: str | None, *bridges: str, numa: int | None = 0) -> PciPlace:
    return PciPlace(address, root, bridges, numa)


def test_functions_of_one_card_under_a_root_port_are_pix() -> None:
    a = place("0000:01:00.0", "pci0000:00", "0000:00:01.0")
    b = place("0000:01:00.1", "pci0000:00", "0000:00:01.0")
    assert path_class(a, b) is PathClass.PIX


def test_root_ports_of_one_root_complex_are_phb() -> None:
    a = place("0000:01:00.0", "pci0000:00", "0000:00:01.0")
    b = place("0000:02:00.0", "pci0000:00", "0000:00:02.0")
    assert path_class(a, b) is PathClass.PHB


def test_devices_on_the_root_bus_itself_are_phb() -> None:
    assert path_class(place("0000:00:03.0", "pci0000:00"), place("0000:00:04.0", "pci0000:00")) is PathClass.PHB


def test_a_vmd_domain_counts_as_a_root_complex_and_not_as_a_switch() -> None:
    a = place("10000:01:00.0", "pci0000:64", "0000:64:00.5", "10000:00:02.0")
    b = place("10000:02:00.0", "pci0000:64", "0000:64:00.5", "10000:00:03.0")
    assert path_class(a, b) is PathClass.PHB


@pytest.mark.bug("B22")
def test_without_numa_nodes_different_roots_are_as_far_as_can_be() -> None:
    a = place("0000:01:00.0", "pci0000:00", "0000:00:01.0", numa=None)
    b = place("0000:41:00.0", "pci0000:40", "0000:40:01.0", numa=None)
    assert path_class(a, b) is PathClass.SYS


def test_without_a_known_root_the_numa_node_decides() -> None:
    unknown = place("0000:01:00.0", None, numa=1)
    assert path_class(unknown, place("0000:02:00.0", None, numa=1)) is PathClass.NODE
    assert path_class(unknown, place("0000:02:00.0", "pci0000:00", numa=0)) is PathClass.SYS


_BRIDGES = st.lists(st.sampled_from(["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]), max_size=6)
_PLACES = st.builds(
    PciPlace,
    st.sampled_from(["0000:81:00.0", "0000:82:00.0"]),
    st.sampled_from(["pci0000:00", "pci0000:40", None]),
    _BRIDGES.map(tuple),
    st.sampled_from([None, 0, 1]),
)


@given(_PLACES, _PLACES)
def test_the_class_is_symmetric(a: PciPlace, b: PciPlace) -> None:
    assert path_class(a, b) is path_class(b, a)


@given(_PLACES, _PLACES)
def test_a_class_within_a_root_complex_needs_a_shared_root_complex(a: PciPlace, b: PciPlace) -> None:
    inside = path_class(a, b) <= PathClass.PHB
    assert inside == (a.root is not None and a.root == b.root)


@given(_PLACES, st.sampled_from(["0000:04:00.0", "0000:05:00.0"]))
def test_a_switch_put_between_never_brings_two_functions_nearer(a: PciPlace, port: str) -> None:
    near = PciPlace("0000:91:00.0", a.root, a.bridges, a.numa_node)
    far = PciPlace("0000:91:00.0", a.root, (*a.bridges, port, "0000:06:00.0"), a.numa_node)
    assert path_class(a, near) <= path_class(a, far)
