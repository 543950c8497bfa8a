"""More public `nvidia-smi topo -m` matrices: trees made to fit them, read back by sysfs, by NVML and by nvidia-smi.

The matrices that profiles claim are in test_mock_tree. Here a tree is made for each of the others, the way such
machines are built: a root complex for every GPU, a NIC at PIX on the same switch, at PXB on a second one above it, at
PHB on another root port, at NODE on a root complex of its own near the same CPUs.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from driver.inventory import build_inventory
from native.mock import MockNode, profiles
from native.nvml import open_library
from native.pcipath import PathClass, path_class
from native.sysfs import HostTopology, read_host

MATRICES: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "matrices.json").read_text())["matrices"]
GPUS = 8


def numa_of(matrix: dict[str, Any], index: int) -> int:
    number = matrix["numa"][index]
    return -1 if number is None else int(number)


def nic_home(matrix: dict[str, Any], nic: int) -> tuple[str, int]:
    """The nearest class of a NIC, and the GPU that it has it with."""
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    cells = [row[nic] for row in matrix["gpu_nic"]]
    best = min(cells, key=order.index)
    return best, cells.index(best)


def leaf(name: str) -> dict[str, str]:
    return {"nic": name, "net": f"eth-{name.lower()}"}


def tree_of(matrix: dict[str, Any]) -> list[dict[str, Any]]:
    """The ``pcie`` section of a profile whose machine has this matrix."""
    homes = [nic_home(matrix, nic) for nic in range(len(matrix["nics"]))]
    roots = []
    for index in range(GPUS):
        bus = f"{0x10 + 0x10 * index:02x}"
        places = {
            place: [nic for nic, home in enumerate(homes) if home == (place, index)] for place in ("PIX", "PXB", "PHB")
        }
        # a switch below the switch where a NIC is two switches away
        gpu: Any = "gpu"
        below: dict[str, Any] = {f"{bus[0]}2:00.0": {f"{bus[0]}3:00.0": {f"{bus[0]}5:00.0": gpu}}}
        switch = below[f"{bus[0]}2:00.0"]
        for number, nic in enumerate(places["PIX"]):
            switch[f"{bus[0]}3:{number + 1:02x}.0"] = {f"{bus[0]}6:{number:02x}.0": leaf(matrix["nics"][nic])}
        if places["PXB"]:
            outer = {f"{bus[0]}1:00.0": below}
            for number, nic in enumerate(places["PXB"]):
                outer[f"{bus[0]}1:{number + 1:02x}.0"] = {f"{bus[0]}7:{number:02x}.0": leaf(matrix["nics"][nic])}
            below = {f"{bus[0]}0:1f.0": outer}
        ports: dict[str, Any] = {f"{bus[0]}0:01.0": below}
        for number, nic in enumerate(places["PHB"]):
            ports[f"{bus[0]}0:{number + 2:02x}.0"] = {f"{bus[0]}8:{number:02x}.0": leaf(matrix["nics"][nic])}
        roots.append({"root": f"0000:{bus[0]}0", "numa": numa_of(matrix, index), "tree": ports})
    for nic, (place, index) in enumerate(homes):
        if place in ("NODE", "SYS"):
            numa = numa_of(matrix, index) if place == "NODE" else -1
            bus = f"{0xA0 + nic:02x}"
            tree = {f"{bus}:01.0": {f"{bus}:02.0": leaf(matrix["nics"][nic])}}
            roots.append({"root": f"0000:{bus}", "numa": numa, "tree": tree})
    return roots


def profile_of(matrix: dict[str, Any]) -> dict[str, Any]:
    linked = matrix["nvlink"].startswith("NV")
    document: dict[str, Any] = yaml.safe_load(profiles.text("dgx-h100" if linked else "l40s"))
    document["pcie"] = tree_of(matrix)
    document["gpus"] = [{"address": f"0000:{index + 1:x}5:00.0", "module_id": index} for index in range(GPUS)]
    nodes = sorted(
        {(numa, cpus) for numa, cpus in zip(matrix["numa"], matrix["cpus"], strict=True) if numa is not None}
    )
    if nodes:
        document["host"]["numa"] = [
            {"node": numa, "cpus": cpus, "memory_mib": 1024, "distances": [10 if n == numa else 20 for n, _ in nodes]}
            for numa, cpus in nodes
        ]
    if linked:
        alone = {gpu for gpu in range(GPUS) if sum(str(gpu) in pair.split("-") for pair in matrix["peers"]) == GPUS - 1}
        document["nvlink"] |= {"inactive": sorted(alone), "external_switches": True}
    return document


@pytest.fixture(params=MATRICES)
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], MockNode]:
    matrix = MATRICES[request.param]
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(profile_of(matrix)))
    node = MockNode.create(tmp_path / "root", path)
    for name, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(name, value)
    return matrix, node


def host_of(node: MockNode) -> HostTopology:
    return read_host(node.root / "sys", node.root / "proc")


def cell_of(matrix: dict[str, Any], one: int, other: int) -> str:
    return str(matrix["peers"].get(f"{one}-{other}", matrix["nvlink"]))


def test_sysfs_gives_every_cell(machine: tuple[dict[str, Any], MockNode]) -> None:
    matrix, node = machine
    host = host_of(node)
    places = {device.address: device.place for device in host.devices}
    gpus = [places[gpu.address] for gpu in node.profile.gpus]
    nics = {device.rdma_devices[0]: device.place for device in host.nics if device.rdma_devices}
    for gpu, row in zip(gpus, matrix["gpu_nic"], strict=True):
        for name, cell in zip(matrix["nics"], row, strict=True):
            assert path_class(gpu, nics[name]).name == cell, (gpu.address, name)
    for one, other in itertools.combinations(range(GPUS), 2):
        cell = cell_of(matrix, one, other)
        if not cell.startswith("NV"):
            assert path_class(gpus[one], gpus[other]).name == cell, (one, other)
    for gpu, cpus, numa in zip(host.gpus, matrix["cpus"], matrix["numa"], strict=True):
        assert gpu.numa_node == numa
        assert cpus is None or gpu.local_cpulist == cpus


@pytest.mark.parametrize("backend", ["cffi", "pynvml"])
def test_nvml_agrees_with_sysfs(machine: tuple[dict[str, Any], MockNode], backend: str) -> None:
    _, node = machine
    places = {device.address: device.place for device in host_of(node).gpus}
    library = open_library(node.library, backend)
    try:
        lay = library.topology(list(places))
    finally:
        library.close()
    assert len(lay.levels) == GPUS * (GPUS - 1)
    for (one, other), level in lay.levels.items():
        assert PathClass(level) is path_class(places[one], places[other]), (one, other)


def test_nvidia_smi_prints_the_matrix(machine: tuple[dict[str, Any], MockNode]) -> None:
    matrix, node = machine
    rows = [line.split("\t") for line in node.nvidia_smi("topo", "-m").splitlines() if line.startswith("GPU")]
    assert len(rows) == GPUS
    for index, row in enumerate(rows):
        cells = [cell.strip() for cell in row[1:]]
        expected = [
            "X" if other == index else cell_of(matrix, min(index, other), max(index, other)) for other in range(GPUS)
        ]
        assert cells[: GPUS + len(matrix["nics"])] == [*expected, *matrix["gpu_nic"][index]], row[0]
        if matrix["cpus"][index] is not None:
            assert cells[GPUS + len(matrix["nics"]) :][:2] == [matrix["cpus"][index], str(matrix["numa"][index])]


def test_nvlink_groups_are_those_of_the_matrix(machine: tuple[dict[str, Any], MockNode]) -> None:
    matrix, node = machine
    library = open_library(node.library, "cffi")
    try:
        snapshot = library.snapshot([gpu.address for gpu in node.profile.gpus])
    finally:
        library.close()
    inventory = build_inventory(snapshot, host_of(node), mock=True)
    together = {
        frozenset((one, other))
        for one, other in itertools.combinations(range(GPUS), 2)
        if cell_of(matrix, one, other).startswith("NV")
    }
    places = {gpu.address: index for index, gpu in enumerate(node.profile.gpus)}
    found = {
        frozenset((places[str(one)], places[str(other)]))
        for group in inventory.nvlink_groups
        for one, other in itertools.combinations(group.members, 2)
    }
    assert found == together
