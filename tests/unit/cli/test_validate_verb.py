"""``gpudra validate`` names every fault with file, document and field, and passes over what is not its business."""

from __future__ import annotations

import io
import json
import re
import sys
import textwrap
from pathlib import Path

import pytest

from driver.cli.main import main

GOOD = """\
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: good, namespace: team-a}
spec:
  spec:
    devices:
      requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}]
      config:
      - opaque:
          driver: gpu.nvidia.com
          parameters:
            apiVersion: resource.nvidia.com/v1beta1
            kind: GpuConfig
            sharing: {strategy: TimeSlicing, timeSlicingConfig: {interval: Long}}
"""
BAD = GOOD.replace("interval: Long", "intervall: Long").replace("name: good", "name: bad")
OTHER = "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "claims.yaml"


def test_good_files_are_told_so_in_one_line(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{GOOD}---\n{OTHER}---\n")
    assert main(["validate", str(file)]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "1 checked, 0 fault(s)\n")


def test_a_fault_is_told_with_file_document_object_and_field(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(f"{OTHER}---\n{GOOD}---\n{BAD}")
    assert main(["validate", str(file)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line == (
        f"{file}: document 3 (ResourceClaimTemplate team-a/bad): "
        "spec.spec.devices.config[0].opaque.parameters.sharing.timeSlicingConfig.intervall: "
        'is no field of this kind; did you mean "interval"?'
    )


def test_several_files_and_standard_input_as_json(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(GOOD)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(BAD.encode())))
    assert main(["validate", "-o", "json", str(file), "-"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["checked"] == 2
    (fault,) = answer["faults"]
    assert (fault["file"], fault["document"], fault["object"]) == (
        "standard input",
        1,
        "ResourceClaimTemplate team-a/bad",
    )
    assert fault["path"].endswith("timeSlicingConfig.intervall")


def test_json_and_lists_are_looked_into(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device_class = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "shared"},
        "spec": {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}}]},
    }
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [device_class]}))
    assert main(["validate", str(file)]) == 1
    line = capsys.readouterr().out
    assert "(DeviceClass shared): items[0].spec.config[0].opaque.parameters.apiVersion: is missing" in line


@pytest.mark.bug("B131")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"kind": "a", "kind": "b"}', "the key 'kind' twice"),
        ("kind: a\nkind: b\n", "the key 'kind' twice"),
        ("a: [1\n", "is no YAML"),
        ("a: !!python/object/apply:os.system [id]\n", "is no YAML"),
        ("\tkind: a", "is no YAML"),
        ("[" * 5000, "is nested"),
    ],
)
def test_what_two_parsers_would_read_differently_is_a_fault(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    file.write_text(text)
    assert main(["validate", str(file)]) == 1
    assert problem in capsys.readouterr().out


def test_a_file_in_another_encoding_is_a_fault_and_does_not_hide_others(
    tmp_path: Path, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(b"\xff\xfe")
    other = tmp_path / "other.yaml"
    other.write_text(BAD)
    assert main(["validate", str(file), str(other)]) == 1
    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{file}: is not UTF-8 (byte 0)"
    assert "intervall" in second


def test_a_file_that_is_not_there_cannot_be_judged(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(file)]) == 2
    assert "No such file" in capsys.readouterr().err


def test_without_pyyaml_json_is_still_read(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file.write_text("{}")
    assert main(["validate", str(file)]) == 0
    file.write_text(GOOD)
    assert main(["validate", str(file)]) == 2
    assert "gpudra[cli]" in capsys.readouterr().err


def test_the_examples_of_the_page_are_sound(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[3] / "docs/configuration.md").read_text()
    blocks = re.findall(r"(?:^    .*\n)+", page, re.MULTILINE)
    examples = [textwrap.dedent(block) for block in blocks if block.startswith("    apiVersion: resource.k8s.io/")]
    file.write_text("---\n".join(examples))
    assert main(["validate", str(file)]) == 0
    assert capsys.readouterr().err == "2 checked, 0 fault(s)\n"
