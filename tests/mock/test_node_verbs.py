"""The commands on every mock node: through the library, the bus and the join to documents that the API takes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from kubeletplugin.validation import validate_slice
from native.mock import profiles


def gpudra(*arguments: str) -> Any:
    """What the command prints, read as JSON."""
    command = [sys.executable, "-m", "driver.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stderr == ""
    return json.loads(done.stdout)


WHOLE = [name for name in profiles.names() if profiles.load(name).gpus[0].numbers["mig_current"] != 1]
"""Profiles whose GPUs are given out as a whole: MIG is off."""


@pytest.mark.parametrize("profile", WHOLE)
def test_every_gpu_of_a_profile_is_published_in_slices_that_the_api_takes(profile: str) -> None:
    items = gpudra("slices", "-o", "json", "--mock-profile", profile)["items"]

    assert [fault for item in items for fault in validate_slice(item["spec"])] == []
    devices = [device for item in items for device in item["spec"]["devices"]]
    assert len(devices) == len(profiles.load(profile).gpus)
    assert len({device["attributes"]["uuid"]["string"] for device in devices}) == len(devices)
    assert len({frozenset(device["attributes"]) for device in devices}) == 1
    assert all(device["capacity"]["memory"]["value"] not in {"0", "0Mi"} for device in devices)


@pytest.mark.parametrize("profile", profiles.names())
def test_every_gpu_of_a_profile_is_ready_and_has_its_place(profile: str) -> None:
    node = gpudra("topology", "--json", "--mock-profile", profile)

    assert node["mock"] is True
    assert len(node["gpus"]) == len(profiles.load(profile).gpus)
    for gpu in node["gpus"]:
        assert (gpu["state"], gpu["reason"]) == ("ready", None)
        assert gpu["pcieRoot"].startswith("pci")
        assert gpu["numaNode"] in {None, *(numa["index"] for numa in node["numaNodes"])}
        assert set(gpu["paths"].values()) <= {"PIX", "PXB", "PHB", "NODE", "SYS"}


def test_both_backends_lead_to_the_same_slices() -> None:
    arguments = ["slices", "-o", "json", "--mock-profile", "dgx-h100", "--nvml-backend"]

    assert gpudra(*arguments, "cffi") == gpudra(*arguments, "pynvml")


def test_a_dgx_h100_has_four_gpus_on_each_numa_node_a_pair_on_one_root_and_a_nic_beside_each() -> None:
    node = gpudra("topology", "--json", "--mock-profile", "dgx-h100")

    numa = [gpu["numaNode"] for gpu in node["gpus"]]
    roots = [gpu["pcieRoot"] for gpu in node["gpus"]]
    assert sorted(numa) == [0] * 4 + [1] * 4
    assert len(set(roots)) < len(roots)
    assert all("PIX" in gpu["paths"].values() for gpu in node["gpus"])
    assert [len(group["members"]) for group in node["nvlinkGroups"]] == [8]
