"""``gpudra slices`` prints what would be published, and refuses what cannot be."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from driver.cli import slices
from driver.cli.main import build_parser, main
from driver.cli.node import node_name
from driver.inventory import build_inventory
from driver.model import NodeInventory
from native.nvml.errors import NvmlReturn
from native.nvml.migtypes import GpuInstanceProfile, MigState, Placement
from tests.support.hosttree import HostTree
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu

A, B = address(0), address(1)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> NodeInventory:
    lost = nvml_gpu(B, codes={"handle": NvmlReturn.GPU_IS_LOST})
    inventory = build_inventory(nvml(nvml_gpu(A), lost), host(pci_gpu(A), pci_gpu(B)), mock=False)
    monkeypatch.setattr(slices, "read_node", lambda _args, mig: inventory)
    return inventory


@pytest.fixture
def divisible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that partitions can be made of, which is known only where that was asked for."""

    def read(_args: object, mig: bool) -> NodeInventory:
        halves = (Placement(0, 4), Placement(4, 4))
        gpu = nvml_gpu(A, mig=MigState((half(placements=halves),), (), ()) if mig else None)
        return build_inventory(nvml(gpu), host(pci_gpu(A)), mock=False)

    monkeypatch.setattr(slices, "read_node", read)


def half(**changes: Any) -> GpuInstanceProfile:
    numbers = dict.fromkeys(("copy_engine_count", "decoder_count", "encoder_count", "jpeg_count", "ofa_count"), 1)
    values = {"slice_count": 3, "instance_count": 2, "multiprocessor_count": 60, "memory_mib": 40448, **numbers}
    return GpuInstanceProfile(2, 9, "3g.40gb", p2p=False, graphics=False, **(values | changes))


@pytest.mark.usefixtures("divisible")
@pytest.mark.parametrize(
    ("flags", "names", "sets"),
    [
        ([], ["gpu-0000-10-00-0"], 0),
        (["--mig", "off"], ["gpu-0000-10-00-0"], 0),
        (
            ["--mig", "dynamic"],
            ["gpu-0000-10-00-0-mig-3g-40gb-9-4", "gpu-0000-10-00-0-mig-3g-40gb-9-0", "gpu-0000-10-00-0"],
            1,
        ),
    ],
)
def test_partitions_are_shown_as_the_agents_flag_would_publish_them(
    capsys: pytest.CaptureFixture[str], flags: list[str], names: list[str], sets: int
) -> None:
    assert main(["slices", "-o", "json", "--node-name", "node-a", *flags]) == 0

    specs = [item["spec"] for item in json.loads(capsys.readouterr().out)["items"]]
    assert [device["name"] for spec in specs for device in spec.get("devices", [])] == names
    assert len([counters for spec in specs for counters in spec.get("sharedCounters", [])]) == sets


@pytest.mark.usefixtures("node")
def test_json_is_a_list_of_whole_objects(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slices", "-o", "json", "--node-name", "node-a"]) == 0

    printed = capsys.readouterr()
    listed = json.loads(printed.out)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "List")
    (item,) = listed["items"]
    assert item["spec"]["pool"]["name"] == "node-a/gpu.nvidia.com"
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-0000-10-00-0"]
    assert printed.err.startswith("not published: gpu-0000-20-00-0: nvmlDeviceGetHandleByPciBusId_v2 for GPU")


@pytest.mark.usefixtures("node")
def test_yaml_says_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    yaml = pytest.importorskip("yaml")
    main(["slices", "-o", "json", "--node-name", "node-a"])
    as_json = json.loads(capsys.readouterr().out)["items"]

    assert main(["slices", "--node-name", "node-a"]) == 0

    assert list(yaml.safe_load_all(capsys.readouterr().out)) == as_json


@pytest.mark.usefixtures("node")
def test_the_agents_settings_about_what_is_offered_can_be_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slices", "-o", "json", "--node-name", "node-a", "--shares", '{"index=0": 4}']) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert item["spec"]["devices"][0]["allowMultipleAllocations"] is True

    assert main(["slices", "-o", "json", "--node-name", "node-a", "--passthrough-devices", "index=0"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert [device["name"] for device in item["spec"]["devices"]] == ["gpu-0000-10-00-0-vfio"]

    assert main(["slices", "-o", "json", "--node-name", "node-a", "--deny-devices", "index=0"]) == 0
    assert "not published: gpu-0000-10-00-0: setting denyDevices names it (index=0)" in capsys.readouterr().err

    assert main(["slices", "--node-name", "node-a", "--allow-devices", "H100"]) == 2
    assert "'H100' names no GPUs" in capsys.readouterr().err


@pytest.mark.usefixtures("node")
def test_without_pyyaml_the_other_form_is_offered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert main(["slices", "--node-name", "node-a"]) == 2
    assert "install gpudra[cli], or ask for -o json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [(["--node-name", "Node_A"], "node name 'Node_A'"), (["--driver-name", "gpu nvidia"], "driver name 'gpu nvidia'")],
)
def test_a_name_that_cannot_be_is_told_before_the_node_is_read(
    arguments: list[str], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(_args: object) -> NodeInventory:
        pytest.fail("the node was read")

    monkeypatch.setattr(slices, "read_node", never)

    assert main(["slices", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_a_profile_that_does_not_exist_is_an_error_that_lists_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["slices", "--mock-profile", "dgx-h900"]) == 2

    message = capsys.readouterr().err
    assert "--mock-profile dgx-h900" in message
    assert "dgx-h100" in message


@pytest.fixture
def dead_machine(tmp_path: Path) -> list[str]:
    """Flags of a machine whose bus shows a GPU and that has no driver."""
    tree = HostTree(tmp_path)
    tree.add(["pci0000:10", "0000:10:01.0", "0000:11:00.0"], driver=None)
    roots = {"--sys-root": tree.sys, "--proc-root": tree.proc, "--driver-root": tmp_path / "empty"}
    return [str(part) for pair in roots.items() for part in pair]


def test_without_a_driver_there_are_no_slices_to_show(
    dead_machine: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["slices", "--node-name", "node-a", *dead_machine]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert "libnvidia-ml.so.1" in printed.err


def test_without_a_driver_the_bus_is_still_shown(dead_machine: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topology", "--node-name", "node-a", *dead_machine]) == 1

    text = capsys.readouterr().out
    assert "GPU 0000:11:00.0  model unknown  UNBOUND" in text
    assert "no kernel driver is bound to GPU 0000:11:00.0; load NVIDIA's kernel module" in text


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--node-name", "node-a", "--mock-profile", "gb200"], "node-a"),
        (["--mock-profile", "gb200"], "gb200"),
        (["--mock-profile", "/tmp/My-Node.yaml"], "my-node"),
    ],
)
def test_the_node_is_called_as_asked_or_like_the_profile(arguments: list[str], name: str) -> None:
    assert node_name(build_parser(["slices"]).parse_args(["slices", *arguments])) == name


@pytest.mark.parametrize("verb", ["topology", "slices"])
def test_the_help_of_each_verb_has_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])

    assert ended.value.code == 0
    assert f"examples:\n  gpudra {verb}" in capsys.readouterr().out
