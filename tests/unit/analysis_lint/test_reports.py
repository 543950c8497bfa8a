"""A report as text, JSON and SARIF."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from driver.analysis.documents import Collection, read_text
from driver.analysis.lint import RULES, Report, as_json, lint, sarif, text
from tests.support import dradocs as dra


@pytest.fixture
def report() -> Report:
    bodies: list[Any] = [
        dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()])),
        dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()]), node="node-b"),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": "c"},
            "spec": {"selectors": 7},
        },
    ]
    return lint(read_text("\n".join(json.dumps(body, indent=1) for body in bodies), "a folder/dump.json"))


def test_the_text_names_finding_place_reason_and_remedy_once(report: Report) -> None:
    lines = list(text(report))

    assert lines[0] == (
        "unreadable: DeviceClass c (a folder/dump.json, document 3): spec.selectors: must be array, is int"
    )
    assert lines[1].startswith("warning A08 no-taints-on-samples: node node-a has 1 tainted device")
    assert lines[2] == (
        "    at ResourceSlice 00000-gpu.nvidia.com-node-a-1 (a folder/dump.json, document 1): spec.devices[0].taints"
    )
    assert sum(line.startswith("    why: ") for line in lines) == 1
    assert sum(line.startswith("    remedy: ") for line in lines) == 1
    assert lines[-1] == f"2 documents, {len(RULES)} rules: 2 warnings, 1 unreadable"


def test_the_brief_text_has_neither_reason_nor_remedy(report: Report) -> None:
    assert not any(line.startswith("    why: ") for line in text(report, explain=False))


def test_of_a_fault_on_many_nodes_the_first_are_shown_and_the_rest_is_counted() -> None:
    slices = [dra.resource_slice(dra.device("gpu-0", taints=[dra.taint()]), node=f"node-{n}") for n in range(30)]
    report = lint(dra.collection(*slices))

    short, whole = list(text(report, limit=20)), list(text(report))

    assert sum(line.startswith("warning A08") for line in short) == 20
    assert short[-2] == "A08: 10 more like these"
    assert sum(line.startswith("warning A08") for line in whole) == 30
    assert short[-1] == whole[-1]


def test_a_report_without_findings_says_so() -> None:
    assert list(text(lint(Collection()))) == [f"0 documents, {len(RULES)} rules: nothing found"]


def test_the_json_has_what_a_program_needs(report: Report) -> None:
    document = json.loads(json.dumps(as_json(report)))

    first = document["findings"][0]
    assert (first["id"], first["severity"], first["path"]) == ("A08", "warning", "spec.devices[0].taints")
    assert first["object"] == {"kind": "ResourceSlice", "name": "00000-gpu.nvidia.com-node-a-1"}
    assert (first["origin"], first["line"]) == ("a folder/dump.json", 1)
    assert first["evidence"] == ["gpu-0"]
    assert document["problems"][0]["path"] == "spec.selectors"
    assert document["rules"] == [rule.id for rule in RULES]


def test_the_sarif_log_points_to_rules_files_lines_and_fields(report: Report) -> None:
    log = sarif(report, version="1.2.3")

    (run,) = log["runs"]
    assert run["tool"]["driver"]["version"] == "1.2.3"
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    second = run["results"][1]["locations"][0]
    assert second["physicalLocation"]["artifactLocation"]["uri"] == "a%20folder/dump.json"
    assert second["physicalLocation"]["region"]["startLine"] > 1
    assert second["logicalLocations"][0]["fullyQualifiedName"].endswith("#spec.devices[0].taints")
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    assert len(invocation["toolExecutionNotifications"]) == 1
    assert len({result["partialFingerprints"]["object/v1"] for result in run["results"]}) == 2


def _text(name: str) -> dict[str, Any]:
    return {"required": [name], "properties": {name: {"type": "string", "minLength": 1}}}


LEVEL = {"enum": ["none", "note", "warning", "error"]}
LOCATION = {
    "additionalProperties": False,
    "properties": {
        "physicalLocation": {
            "required": ["artifactLocation"],
            "properties": {
                "artifactLocation": {"properties": {"uri": {"type": "string", "pattern": r"^[^\s#]+$"}}},
                "region": {"properties": {"startLine": {"type": "integer", "minimum": 1}}},
            },
        },
        "logicalLocations": {"type": "array", "items": _text("fullyQualifiedName")},
    },
}
WHAT_IS_USED = {
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "$schema": {"type": "string", "format": "uri"},
        "runs": {
            "items": {
                "required": ["tool"],
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                **_text("name"),
                                "properties": {
                                    "rules": {
                                        "uniqueItems": True,
                                        "items": {
                                            "required": ["id"],
                                            "properties": {
                                                "shortDescription": _text("text"),
                                                "fullDescription": _text("text"),
                                                "help": _text("text"),
                                                "defaultConfiguration": {"properties": {"level": LEVEL}},
                                            },
                                        },
                                    }
                                },
                            }
                        },
                    },
                    "invocations": {
                        "items": {
                            "required": ["executionSuccessful"],
                            "properties": {
                                "toolExecutionNotifications": {
                                    "items": {
                                        "required": ["message"],
                                        "properties": {
                                            "level": LEVEL,
                                            "message": _text("text"),
                                            "locations": {"items": LOCATION},
                                        },
                                    }
                                }
                            },
                        }
                    },
                    "results": {
                        "items": {
                            "required": ["message"],
                            "properties": {
                                "ruleIndex": {"type": "integer", "minimum": 0},
                                "level": LEVEL,
                                "message": _text("text"),
                                "locations": {"items": LOCATION},
                                "partialFingerprints": {"additionalProperties": {"type": "string"}},
                            },
                        }
                    },
                },
            }
        },
    },
}
"""What SARIF 2.1.0 asks of the parts that are written here."""


def _schemas() -> list[dict[str, Any]]:
    """Ours, and OASIS' own where the variable names a copy of it (its terms keep it out of this repository)."""
    named = os.environ.get("GPUDRA_SARIF_SCHEMA")
    return [WHAT_IS_USED, *([json.loads(Path(named).read_text(encoding="utf-8"))] if named else [])]


def test_the_sarif_log_is_valid(report: Report) -> None:
    for schema in _schemas():
        jsonschema.Draft7Validator(schema).validate(sarif(report, version="1.2.3"))
        jsonschema.Draft7Validator(schema).validate(sarif(lint(Collection()), version="0"))
