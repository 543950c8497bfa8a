"""``gpudra topology`` shows where everything is, and says what is wrong."""

from __future__ import annotations

import argparse
import io
import json
from typing import Any

import pytest

from driver.cli import topology
from driver.cli.topology import document, matrix, tree
from driver.cli.tree import Branch, plain, show
from driver.inventory import build_inventory
from driver.model import NodeInventory
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import ComputeInstance, GpuInstance, GpuInstanceProfile, MigState
from native.nvml.migtypes import Placement as Slices
from native.nvml.types import FabricInfo, NvLink
from native.sysfs import HostNumaNode
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu, switch_links

A, B, C = address(0), address(1), address(2)


def nic(at: str, **changes: Any) -> Any:
    return pci_gpu(at, vendor=0x15B3, class_code=0x020700, rdma_devices=("mlx5_0",), net_interfaces=("ib0",), **changes)


@pytest.fixture
def node() -> NodeInventory:
    stem = ("0000:10:1c.0", "0000:10:1d.0")
    return build_inventory(
        nvml(
            nvml_gpu(A, nvlinks=switch_links(18)),
            nvml_gpu(B, nvlinks=switch_links(17)),
            nvml_gpu(C, codes={"handle": NvmlReturn.GPU_IS_LOST}),
        ),
        host(
            pci_gpu(A, bridges=(*stem, "0000:10:1e.0")),
            pci_gpu(B, numa_node=1),
            pci_gpu(C, numa_node=None),
            nic("0000:18:00.0", pcie_root="pci0000:10", bridges=(*stem, "0000:10:1f.0")),
            nic("0000:18:00.1", pcie_root="pci0000:10", bridges=(*stem, "0000:10:1f.0"), physfn="0000:18:00.0"),
        ),
        mock=True,
    )


def test_the_tree_shows_the_node_at_a_glance(node: NodeInventory) -> None:
    assert list(plain(tree(node, "node-a"))) == [
        "node-a: 2 x NVIDIA H100 80GB HBM3, 1 x GPU, driver 580.105.08, CUDA 13.0  (a mock node)",
        "├─ NUMA 0  CPUs 0-55  1024 GiB  distances 10 21",
        "│  └─ pci0000:10",
        "│     └─ switch 0000:10:1d.0",
        "│        ├─ GPU 0000:10:00.0  NVIDIA H100 80GB HBM3  79.6 GiB  18 x NVLink 4.0, group 0",
        "│        └─ NIC 0000:18:00.0  mlx5_0, ib0",
        "├─ NUMA 1  CPUs 56-111  1024 GiB  distances 21 10",
        "│  └─ pci0000:20",
        "│     └─ switch 0000:20:1d.0",
        "│        └─ GPU 0000:20:00.0  NVIDIA H100 80GB HBM3  79.6 GiB  17 x NVLink 4.0, group 0",
        "├─ without a NUMA node",
        "│  └─ pci0000:30",
        "│     └─ switch 0000:30:1d.0",
        "│        └─ GPU 0000:30:00.0  model unknown  LOST",
        "├─ NVLink",
        "│  └─ group 0: 0000:10:00.0, 0000:20:00.0",
        "└─ problems",
        f"   └─ {node.gpus[2].reason}",
    ]


def test_memory_nodes_cliques_mig_mode_and_shared_memory_are_named() -> None:
    fabric = FabricInfo(3, 0, "2e9eb4a5-9d5e-4d2f-8d9a-6b6c2a3d1f00", 7, 0)
    numa_nodes = (HostNumaNode(0, "0-3", None, ()), HostNumaNode(2, "", 2**37, ()), HostNumaNode(3, "", None, ()))
    inventory = build_inventory(
        nvml(
            nvml_gpu(A, memory_numa_node=2, fabric=fabric, mig_mode=(True, True)),
            nvml_gpu(B, codes={"memory_total": NvmlReturn.NOT_SUPPORTED}),
        ),
        host(
            pci_gpu(A),
            pci_gpu(B, pcie_root=None, bridges=()),
            numa_nodes=numa_nodes,
        ),
        mock=False,
    )
    lines = "\n".join(plain(tree(inventory, "n")))

    assert "NUMA 2  memory of GPU 0000:10:00.0  128 GiB" in lines
    assert "NUMA 3  no CPUs" in lines
    assert "clique 7  MIG mode on" in lines
    assert "2048 GiB shared with the host" in lines
    assert "PCIe position unknown" in lines


def test_partitions_hang_below_their_gpu() -> None:
    profiles = (
        GpuInstanceProfile(2, 9, "3g.40gb", 3, 2, 60, 3, 3, 0, 3, 0, 40448, False, False, (Slices(4, 4),)),
        GpuInstanceProfile(0, 19, "1g.10gb", 1, 7, 16, 1, 1, 0, 1, 0, 9984, False, False, (Slices(0, 1),)),
    )
    half = GpuInstance(2, 9, Slices(4, 4), (ComputeInstance(2, 0, 2, Slices(0, 3), "MIG-a"),))
    empty = GpuInstance(7, 19, Slices(0, 1), ())
    made = MigState(profiles, (half, empty), ())
    inventory = build_inventory(nvml(nvml_gpu(A, mig_mode=(True, True), mig=made)), host(pci_gpu(A)), mock=False)

    lines = [line.strip("│ ├└─") for line in plain(tree(inventory, "n"))]

    (place,) = [number for number, line in enumerate(lines) if line.startswith("GPU 0000:10:00.0")]
    assert lines[place].endswith("MIG mode on")
    assert lines[place + 1 : place + 3] == [
        "MIG 1g.10gb  slice 0  9.8 GiB  without a compute instance",
        "MIG 3g.40gb  slices 4 to 7  39.5 GiB  MIG-a",
    ]


def test_a_node_without_gpus_is_shown_as_such() -> None:
    lines = list(plain(tree(build_inventory(None, host(), mock=False), "n")))

    assert lines[0] == "n: no GPU"
    assert not any("problems" in line for line in lines)


def test_the_matrix_shows_nvlink_before_pcie_and_a_legend(node: NodeInventory) -> None:
    assert matrix(node) == [
        "      GPU0  GPU1  GPU2  NIC0",
        "GPU0  X     NV17  SYS   PIX",
        "GPU1  NV17  X     SYS   SYS",
        "GPU2  SYS   SYS   X     SYS",
        "NIC0  PIX   SYS   SYS   X",
        "",
        "  GPU0: 0000:10:00.0",
        "  GPU1: 0000:20:00.0",
        "  GPU2: 0000:30:00.0",
        "  NIC0: 0000:18:00.0  mlx5_0, ib0",
    ]


def test_the_matrix_counts_direct_links_and_not_those_of_a_neighbour() -> None:
    def links(*ends: int) -> tuple[NvLink, ...]:
        return tuple(NvLink(index, True, 4, address(end), 0) for index, end in enumerate(ends))

    inventory = build_inventory(
        nvml(nvml_gpu(A, nvlinks=links(1, 1)), nvml_gpu(B, nvlinks=links(0, 0, 2)), nvml_gpu(C, nvlinks=links(1))),
        host(pci_gpu(A), pci_gpu(B), pci_gpu(C)),
        mock=False,
    )

    assert [row.split()[1:] for row in matrix(inventory)[1:4]] == [
        ["X", "NV2", "NODE"],
        ["NV2", "X", "NV1"],
        ["NODE", "NV1", "X"],
    ]


def test_the_document_has_everything_and_the_distances(node: NodeInventory) -> None:
    value = json.loads(json.dumps(document(node)))

    first = value["gpus"][0]
    assert (first["name"], first["address"], first["state"]) == ("gpu-0000-10-00-0", A, "ready")
    assert first["switchPath"] == ["0000:10:1c.0", "0000:10:1d.0", "0000:10:1e.0"]
    assert first["ecc"] == {"current": True, "pending": True}
    assert first["paths"] == {"gpu-0000-20-00-0": "SYS", "gpu-0000-30-00-0": "SYS", "0000:18:00.0": "PIX"}
    assert value["nvlinkGroups"] == [{"index": 0, "members": [A, B]}]
    assert (value["mock"], value["driverVersion"]) == (True, "580.105.08")
    assert [nic["isVirtualFunction"] for nic in value["nics"]] == [False, True]


@pytest.mark.parametrize(("form", "part"), [("json", '"gpu-0000-10-00-0"'), ("matrix", "GPU0  X"), ("", "├─ NUMA 0")])
def test_a_gpu_that_cannot_be_given_out_is_exit_code_1_in_every_form(
    node: NodeInventory, form: str, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(topology, "read_node", lambda _args, without_driver: node)
    parser = argparse.ArgumentParser()
    topology.add_parser(parser.add_subparsers())
    args = parser.parse_args(["topology", *([f"--{form}"] if form else [])])

    assert args.run(args) == 1
    assert part in capsys.readouterr().out


class Stream(io.TextIOWrapper):
    """A stream of a given encoding, that may claim to be a terminal."""

    def __init__(self, encoding: str, *, terminal: bool) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, write_through=True)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def text(self) -> str:
        return self.bytes.getvalue().decode(self.encoding)


def small_tree() -> Branch:
    root = Branch("node", "bold")
    root.add("first – ok", "green").add("below")
    root.add("last [red]" + "x" * 200)
    return root


def test_a_stream_without_box_characters_gets_plain_ones() -> None:
    stream = Stream("ascii", terminal=False)

    show(small_tree(), stream)

    assert stream.text().splitlines()[:3] == ["node", "|- first ? ok", "|  `- below"]


def test_a_terminal_gets_the_same_lines_uncut_and_without_markup() -> None:
    pytest.importorskip("rich")
    stream = Stream("utf-8", terminal=True)

    show(small_tree(), stream)

    text = stream.text()
    assert "first – ok" in text
    assert "last [red]" + "x" * 200 in text


def test_a_terminal_without_rich_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    stream = Stream("utf-8", terminal=True)

    show(small_tree(), stream)

    assert stream.text().splitlines()[:3] == ["node", "├─ first – ok", "│  └─ below"]
