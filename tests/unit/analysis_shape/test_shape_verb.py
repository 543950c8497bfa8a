"""``gpudra shape``: export, instantiate and diff from the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from driver.cli import documents
from driver.cli.main import main
from driver.inventory import build_inventory
from tests.support import dradocs as dra
from tests.support.nodes import address, host, nvml, nvml_gpu, pci_gpu

Capture = pytest.CaptureFixture[str]
GROUP: dict[str, Any] = {"node.kubernetes.io__instance-type": "p5.48xlarge"}


def gpus(count: int, node: str, model: str = "H200") -> dict[str, Any]:
    devices = [dra.device(f"gpu-{n}", {"productName": model, "uuid": f"{node}-{n}"}) for n in range(count)]
    return dra.resource_slice(*devices, node=node)


def write(path: Path, *bodies: Any) -> str:
    path.write_text(json.dumps(list(bodies)), encoding="utf-8")
    return str(path)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> None:
    inventory = build_inventory(nvml(nvml_gpu(address(0))), host(pci_gpu(address(0))), mock=False)
    monkeypatch.setattr(documents, "read_node", lambda _args, **_flags: inventory)


@pytest.mark.usefixtures("node")
def test_the_shape_of_this_machine_is_the_default(capsys: Capture) -> None:
    assert main(["shape", "export", "--node-name", "node-a", "--label", "a=b"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["identity"]["labels"] == {"a": "b"}
    (pool,) = document["pools"]
    (device,) = pool["slices"][0]["devices"]
    assert device["name"] == "gpu-0000-10-00-0"
    assert {"uuid", "resource.kubernetes.io/pciBusID"} <= set(device["assigned"])


@pytest.mark.usefixtures("node")
def test_slices_of_other_drivers_are_merged_with_those_of_this_machine(tmp_path: Path, capsys: Capture) -> None:
    nic = dra.resource_slice(dra.device("mlx5-0"), driver="nic.example.com", pool="nics")

    assert main(["shape", "export", write(tmp_path / "nic.json", nic), "--node", "--node-name", "node-a"]) == 0

    assert [pool["driver"] for pool in json.loads(capsys.readouterr().out)["pools"]] == [dra.DRIVER, "nic.example.com"]


def test_one_node_of_many_is_exported_with_its_label(tmp_path: Path, capsys: Capture) -> None:
    file = write(tmp_path / "all.json", gpus(2, "node-a"), gpus(4, "node-b"), dra.node("node-b", **GROUP))

    assert main(["shape", "export", file, "--of", "node-b"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert len(document["pools"][0]["slices"][0]["devices"]) == 4
    assert document["identity"]["labels"] == {"node.kubernetes.io/instance-type": "p5.48xlarge"}


def test_export_instantiate_export_ends_where_it_began(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["shape", "export", write(tmp_path / "a.json", gpus(2, "node-a"))]) == 0
    first = capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO(first))

    assert main(["shape", "instantiate", "-", "--as", "fake-0", "--node-uid", "u"]) == 0
    made = capsys.readouterr().out
    (tmp_path / "made.json").write_text(made)
    assert main(["shape", "export", str(tmp_path / "made.json")]) == 0

    assert capsys.readouterr().out == first
    (item,) = json.loads(made)["items"]
    assert item["spec"]["nodeName"] == "fake-0"
    assert item["metadata"]["ownerReferences"][0]["uid"] == "u"


def test_instantiated_slices_come_as_yaml_too(tmp_path: Path, capsys: Capture) -> None:
    yaml = pytest.importorskip("yaml")
    main(["shape", "export", write(tmp_path / "a.json", gpus(1, "node-a"))])
    (tmp_path / "shape.json").write_text(capsys.readouterr().out)

    assert main(["shape", "instantiate", str(tmp_path / "shape.json"), "--as", "fake", "-o", "yaml"]) == 0

    (body,) = yaml.safe_load_all(capsys.readouterr().out)
    assert body["kind"] == "ResourceSlice"


@pytest.mark.parametrize(
    ("form", "key"),
    [
        ("slices", 0),
        ("karpenter", "resourceSliceTemplates"),
        ("kwok", 0),
        ("configmap", "data"),
        ("cluster-api", "metadata"),
    ],
)
def test_every_form_is_json_and_warnings_go_to_standard_error(
    form: str, key: Any, tmp_path: Path, capsys: Capture
) -> None:
    assert main(["shape", "export", write(tmp_path / "a.json", gpus(2, "node-a")), "--format", form]) == 0

    printed = capsys.readouterr()
    assert json.loads(printed.out)[key]
    assert all(line.startswith("warning: ") for line in printed.err.splitlines())


def test_the_annotations_are_tried_on_the_classes_that_are_given(tmp_path: Path, capsys: Capture) -> None:
    reading = dra.device_class("h200", "device.attributes['gpu.nvidia.com'].productName == 'H200'")
    file = write(tmp_path / "a.json", gpus(2, "node-a"), reading)

    assert main(["shape", "export", file, "--format", "cluster-api"]) == 0

    assert "DeviceClass h200 fails on such a node (no such key: productName)" in capsys.readouterr().err


def test_the_hash_alone_can_be_asked_for(tmp_path: Path, capsys: Capture) -> None:
    for name in ("node-a", "node-b"):
        assert main(["shape", "export", write(tmp_path / "a.json", gpus(2, name)), "--format", "hash"]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other
    assert one.startswith("sha256:")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["export", "{half}"], "has 1 of 2 slices: take the shape when"),
        (["export", "{two}"], "name the one that is meant"),
        (["export", "{two}", "--of", "node-z"], "no slices of node node-z were given"),
        (["export", "{one}", "--label", "x"], "--label 'x' is not KEY=VALUE"),
        (["instantiate", "{one}", "--as", "x"], "is no gpudra.dev/v1alpha1 NodeShape"),
        (["instantiate", "{missing}", "--as", "x"], "No such file"),
        (["diff", "{one}"], "nothing to compare node-a with"),
        (["diff", "{two}", "--of", "node-a", "--of", "node-z"], "no slices of node node-z"),
        (["diff", "{one}", "{empty}"], "holds neither a shape nor slices of a node"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: list[str], part: str, tmp_path: Path, capsys: Capture) -> None:
    files = {
        "one": write(tmp_path / "one.json", gpus(1, "node-a")),
        "two": write(tmp_path / "two.json", gpus(1, "node-a"), gpus(1, "node-b")),
        "half": write(tmp_path / "half.json", dra.resource_slice(count=2)),
        "empty": write(tmp_path / "empty.json"),
        "missing": str(tmp_path / "missing.json"),
    }

    assert main(["shape", *(argument.format(**files) for argument in arguments)]) == 2
    assert part in capsys.readouterr().err


class TestDiff:
    def test_two_nodes_of_one_shape(self, tmp_path: Path, capsys: Capture) -> None:
        file = write(tmp_path / "two.json", gpus(2, "node-a"), gpus(2, "node-b"))

        assert main(["shape", "diff", file]) == 0
        assert capsys.readouterr().out.startswith("node-a and node-b: the same shape, sha256:")

    def test_two_files(self, tmp_path: Path, capsys: Capture) -> None:
        one, other = (
            write(tmp_path / "a.json", gpus(2, "node-a")),
            write(tmp_path / "b.json", gpus(3, "node-b", "H100")),
        )

        assert main(["shape", "diff", one, other]) == 1
        printed = capsys.readouterr().out
        assert "gpu.nvidia.com devices: 2 against 3" in printed
        assert "gpu.nvidia.com device 0 gpu.nvidia.com/productName: H200 against H100" in printed

    def test_a_shape_and_slices(self, tmp_path: Path, capsys: Capture) -> None:
        main(["shape", "export", write(tmp_path / "a.json", gpus(2, "node-a"))])
        (tmp_path / "shape.json").write_text(capsys.readouterr().out)

        assert main(["shape", "diff", str(tmp_path / "shape.json"), write(tmp_path / "b.json", gpus(2, "node-b"))]) == 0

    def test_a_node_and_its_group(self, tmp_path: Path, capsys: Capture) -> None:
        nodes = [dra.node(f"node-{name}", **GROUP) for name in "abc"]
        stranger = dra.node("node-d", **{"node.kubernetes.io__instance-type": "g6"})
        slices = [gpus(2, "node-a"), gpus(2, "node-b"), gpus(1, "node-c"), gpus(9, "node-d")]
        file = write(tmp_path / "all.json", *nodes, stranger, *slices)

        assert main(["shape", "diff", file, "--of", "node-a"]) == 1

        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith("node-a and node-b: the same shape")
        assert lines[1:] == ["node-a and node-c differ:", "  gpu.nvidia.com devices: 2 against 1"]

    def test_versions_count_only_where_they_are_asked_for(self, tmp_path: Path) -> None:
        files = []
        for name, version in (("node-a", "580.1.0"), ("node-b", "590.1.0")):
            device = dra.device("gpu-0", {"driverVersion": {"version": version}})
            files.append(write(tmp_path / f"{name}.json", dra.resource_slice(device, node=name)))

        assert main(["shape", "diff", *files]) == 0
        assert main(["shape", "diff", *files, "--software"]) == 1

    @pytest.mark.parametrize("others", [1, 2])
    def test_what_cannot_be_read_is_told_and_the_rest_is_compared(
        self, others: int, tmp_path: Path, capsys: Capture
    ) -> None:
        file = write(tmp_path / "all.json", gpus(2, "node-a"), gpus(others, "node-b"), {"kind": "ResourceSlice"})

        assert main(["shape", "diff", file]) == 2

        out, err = capsys.readouterr()
        assert ("same shape" in out) is (others == 2)
        assert "unreadable: " in err
        assert "apiVersion: is missing" in err

    def test_of_two_files_one_may_hold_more_that_cannot_be_read(self, tmp_path: Path, capsys: Capture) -> None:
        sound = write(tmp_path / "a.json", gpus(2, "node-a"))
        other = write(tmp_path / "b.json", gpus(2, "node-b"), {"kind": "ResourceSlice", "apiVersion": "v9"})
        damaged = write(tmp_path / "c.json", gpus(2, "node-b"), {"apiVersion": "resource.k8s.io/v1"})

        assert main(["shape", "diff", sound, other]) == 0  # a kind that nobody here looks at
        assert main(["shape", "diff", sound, damaged]) == 2
        assert "kind: is missing" in capsys.readouterr().err

    def test_a_damaged_shape_among_the_files_is_named(self, tmp_path: Path, capsys: Capture) -> None:
        main(["shape", "export", write(tmp_path / "a.json", gpus(2, "node-a"))])
        document = json.loads(capsys.readouterr().out)
        document["pools"][0]["slices"][0]["devices"][1]["name"] = 7
        (tmp_path / "shape.json").write_text(json.dumps(document))

        assert main(["shape", "diff", str(tmp_path / "shape.json"), str(tmp_path / "a.json")]) == 2
        assert "pools[0].slices[0].devices[1].name: must be str, is int" in capsys.readouterr().err
