#!/usr/bin/env python3
"""Takes the tables of Kubernetes' own tests as data: tests/data/upstream.

    .venv/bin/python hack/upstream_tables.py

Needs Go and, in its module cache, k8s.io/dynamic-resource-allocation and k8s.io/kubernetes of the versions below (the
cluster of ``make test-cluster`` puts them there). slices.json is what the table of TestControllerSyncPool evaluates to;
names.json holds the names of the scenarios of test/e2e_node/dra_test.go and test/e2e/dra/dra.go, in their order. Both
are facts about Kubernetes (Apache-2.0); none of its code is kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/data/upstream"
LIBRARY = "k8s.io/dynamic-resource-allocation@v0.37.2"
KUBERNETES = "k8s.io/kubernetes@v1.37.2"
SCENARIOS = ("test/e2e_node/dra_test.go", "test/e2e/dra/dra.go")

LOOP = "\tfor name, test := range testCases {\n\t\tt.Run(name, func(t *testing.T) {\n\t\t\t_, ctx := ktesting"
DUMP = """
	tables := map[string]any{}
	for name, test := range testCases {
		disabled := []string{}
		for gate, off := range map[string]bool{
			"DRADeviceBindingConditions": test.features.disableBindingConditions,
			"DRADeviceTaints": test.features.disableDeviceTaints,
			"DRAPartitionableDevices": test.features.disablePartitionableDevices,
			"DRAConsumableCapacity": test.features.disableConsumableCapacity,
			"DRAOptionalNodeOperations": test.features.disableOptionalNodeOperations,
			"DRADeviceCompatibilityGroups": test.features.disableCompatibilityGroups,
		} {
			if off {
				disabled = append(disabled, gate)
			}
		}
		tables[name] = map[string]any{
			"disabled": disabled, "nodeUID": test.nodeUID, "noOwner": test.noOwner,
			"reconcilePoolWithName": test.reconcilePoolWithName, "existing": test.initialObjects,
			"resources": test.inputDriverResources, "expected": test.expectedResourceSlices,
			"stats": test.expectedStats, "errors": test.expectedErrors,
		}
	}
	dumped, err := json.Marshal(tables)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(os.Getenv("DUMP_TO"), dumped, 0o644))
	return

"""


def module(name: str) -> Path:
    """Where Go keeps a module."""
    cache = subprocess.run(["go", "env", "GOMODCACHE"], check=True, capture_output=True, text=True).stdout.strip()
    folder = Path(cache, name)
    if not folder.is_dir():
        raise SystemExit(f"{folder} is not there; `go mod download {name}` gets it")
    return folder


def slice_cases() -> dict[str, object]:
    """The table of TestControllerSyncPool, evaluated by Go in a copy of the module whose test writes it down."""
    with tempfile.TemporaryDirectory() as temporary:
        copy, dump = Path(temporary, "module"), Path(temporary, "dump.json")
        shutil.copytree(module(LIBRARY), copy, copy_function=shutil.copyfile)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        test = copy / "resourceslice/resourceslicecontroller_test.go"
        text = test.read_text()
        if LOOP not in text:
            raise SystemExit(f"{test.name} has changed: the loop over its cases was not found")
        text = text.replace(LOOP, DUMP + LOOP, 1).replace("import (", 'import (\n\t"encoding/json"\n\t"os"', 1)
        # The same table each time.
        test.write_text(text.replace("time.Now().Round(time.Second)", "time.Unix(1700000000, 0).UTC()"))
        command = ["go", "test", "./resourceslice", "-run", "TestControllerSyncPool$", "-vet=off"]
        environment = os.environ | {"DUMP_TO": str(dump), "GOFLAGS": "-mod=mod", "GOPROXY": "off"}
        subprocess.run(command, cwd=copy, env=environment, check=True)
        cases: dict[str, object] = json.loads(dump.read_text())
    return cases


TEXT = r'\(\s*(?:fmt\.Sprintf\()?"((?:[^"\\]|\\.)*)"'


def scenario_names(path: Path) -> list[str]:
    """The names of all scenarios in a Ginkgo file, in order; those of a table as "table: entry"."""
    names, table = [], ""
    for kind, text in re.findall(r"\b(It|ConformanceIt|DescribeTable|Entry)" + TEXT, path.read_text()):
        name = text.replace('\\"', '"')
        if kind == "DescribeTable":
            table = name
        else:
            names.append(f"{table}: {name}" if kind == "Entry" else name)
    return names


def main() -> None:
    """Entry point."""
    OUT.mkdir(parents=True, exist_ok=True)
    names = {scenario: scenario_names(module(KUBERNETES) / scenario) for scenario in SCENARIOS}
    for name, content in (("slices.json", slice_cases()), ("names.json", names)):
        (OUT / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
        sys.stdout.write(f"{OUT / name}\n")


if __name__ == "__main__":
    main()
