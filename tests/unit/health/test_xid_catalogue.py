"""The table of XIDs, row by row against what NVIDIA publishes; what is judged otherwise is so on purpose."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from driver.health.findings import of_health
from driver.health.xids import DIFFERENCES, XIDS, Severity, describe
from native.nvml.healthtypes import GpuHealth

CATALOGUE = json.loads((Path(__file__).parent / "data" / "xid-catalogue.json").read_text())
NVML = Path(__file__).parents[3] / "native" / "csrc" / "vendor" / "nvml.h"

A, G, D, F = Severity.APPLICATION, Severity.DEGRADED, Severity.DEVICE, Severity.FATAL
FOLLOWS: dict[str, set[Severity]] = {
    "RESTART_APP": {A},
    "IGNORE": {A, G},
    "RESET_GPU": {F},
    "RESTART_BM": {F},
    "RESTART_VM": {F},
    "CONTACT_SUPPORT": {D},
    "CHECK_MECHANICALS": {D},
    "CHECK_UVM": {D},
    "UPDATE_SWFW": {D},
    "": {D},
    # Workflows: what they come to without the details that only the kernel's log has.
    "WORKFLOW_XID_45": {A},  # the error before it decides
    "WORKFLOW_XID_48": {F},  # a reset in each of its branches
    "WORKFLOW_NVLINK_ERR": {D},
    "WORKFLOW_NVLINK5_ERR": {D},
    "XID_154": {A},  # the recovery action decides, which the probe reads
}
"""Immediate action of the catalogue -> severities that follow from it."""
ROWS = {int(code): action for code, action in CATALOGUE["immediateAction"].items()}
ON_PURPOSE = {code for one in DIFFERENCES for code in one.codes}


@pytest.mark.bug("B104")
@pytest.mark.parametrize("code", sorted(ROWS))
def test_a_row_follows_from_the_catalogue_or_differs_for_a_reason_that_is_given(code: int) -> None:
    follows = describe(code).severity in FOLLOWS[ROWS[code]]
    assert follows != (code in ON_PURPOSE), f"XID {code} is {describe(code).severity.name}, NVIDIA says {ROWS[code]!r}"


def test_the_catalogue_is_whole_and_our_table_names_no_code_that_it_lacks() -> None:
    assert sorted(ROWS) == list(range(1, 173))
    assert XIDS.keys() - ROWS.keys() == {999}


def test_every_code_that_the_catalogue_gives_an_action_of_its_own_has_a_name_here() -> None:
    assert {code for code, action in ROWS.items() if action != "CONTACT_SUPPORT"} <= XIDS.keys()


def test_what_says_reset_or_reboot_is_told_to_be_reset_or_rebooted() -> None:
    for code, action in ROWS.items():
        if describe(code).severity is F:
            assert re.search("reset|reboot|restart", describe(code).action), code
        if action == "RESTART_APP":
            assert "restart the application" in describe(code).action


@pytest.mark.bug("B104")
def test_what_nvidia_s_kubernetes_drivers_pass_over_keeps_nobody_from_the_gpu_here_either() -> None:
    assert {describe(code).severity for code in CATALOGUE["passedOverByKubernetesDrivers"]} == {A}


def test_every_recovery_action_of_nvml_is_known() -> None:
    actions: dict[str, int] = {
        name: int(number)
        for name, number in re.findall(r"NVML_GPU_RECOVERY_ACTION_(\w+) *= (\d+)", NVML.read_text(encoding="utf-8"))
    }
    assert actions.pop("NONE") == 0

    def said(action: int) -> Any:
        (found,) = of_health(GpuHealth("0000:1b:00.0", recovery_action=action))
        return found

    severities = {name: said(number).severity for name, number in actions.items()}
    assert severities == {
        "GPU_RESET": F,
        "NODE_REBOOT": F,
        "DRAIN_P2P": D,
        "DRAIN_AND_RESET": D,
        "RECOVER_IMEX_DOMAIN": D,
        "BUS_RESET": F,
        "SYSTEM_REBOOT": F,
    }
    assert all("see nvidia-smi" not in said(number).message for number in actions.values())
    assert "see nvidia-smi" in said(99).message
