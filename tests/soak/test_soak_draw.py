"""That all which can happen is in the draw, and that the worlds have every kind of device between them."""

from __future__ import annotations

import inspect
import random
from types import SimpleNamespace
from typing import cast

import pytest

from driver.health.findings import of_health
from driver.health.verdicts import UNHEALTHY_TAINT, XID_TAINT
from driver.health.xids import Severity, describe
from driver.prepare.config import decode
from driver.prepare.document import DocumentError
from native.mock import profiles
from native.nvml.healthtypes import GpuHealth, RemappedRows
from tests.soak import soakevents, soakfaults, soaktroubles
from tests.soak.soakevents import EVENTS
from tests.soak.soakmodel import Config
from tests.soak.soaknode import SoakNode
from tests.soak.soakrun import WORLDS, Run
from tests.support.ownfiles import OWN


def test_every_event_is_drawn_once() -> None:
    written = {
        function
        for module in (soakevents, soakfaults, soaktroubles)
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
    }
    assert {event.happen for event in EVENTS} == written
    assert len({event.name for event in EVENTS}) == len(EVENTS) == len(written)
    assert all(event.weight > 0 for event in EVENTS)


def test_files_of_every_purpose_can_fail_but_those_without_which_no_agent_starts() -> None:
    assert {one.name for one in OWN} > soaktroubles._AT_START


def test_the_worlds_have_every_kind_of_device() -> None:
    assert {world.flags["mig"] for world in WORLDS.values()} == {"static", "dynamic"}
    assert any("shares" in world.flags for world in WORLDS.values())
    assert any(world.partitions is not None for world in WORLDS.values())
    assert any(world.machines for world in WORLDS.values())


def test_the_gpus_for_machines_are_those_that_the_agent_is_told_of() -> None:
    for world in WORLDS.values():
        told = str(world.flags.get("passthrough_devices", "")).split(",")
        gpus = profiles.load(world.profile).gpus
        assert tuple(gpus[int(one.removeprefix("index="))].address for one in told if one) == world.machines


def test_a_gpu_of_virtual_machines_or_of_an_administrator_is_not_lost() -> None:
    for world in WORLDS.values():
        hardware = SimpleNamespace(node=SimpleNamespace(profile=profiles.load(world.profile)))
        run = Run(world, cast("SoakNode", hardware), random.Random(1))
        drawn = {run.gpu() for _ in range(200)}
        spared = {*world.machines, *(world.partitions or ())[:1]}
        assert drawn == {gpu.address for gpu in hardware.node.profile.gpus} - spared


def test_xids_and_faults_of_every_severity_are_drawn() -> None:
    assert {describe(code).severity for code in soaktroubles._XIDS} == set(Severity)
    assert {XID_TAINT, UNHEALTHY_TAINT} == {key for fault in soakfaults.FAULTS for key in fault.taints}
    assert len({fault.name for fault in soakfaults.FAULTS}) == len(soakfaults.FAULTS)


@pytest.mark.parametrize("fault", soakfaults.FAULTS, ids=lambda fault: fault.name)
def test_a_fault_that_has_a_taint_is_one_for_as_long_as_it_lasts_and_one_without_is_not(
    fault: soakfaults.Fault,
) -> None:
    numbers = fault.numbers
    health = GpuHealth(
        address="0000:43:00.0",
        ecc_uncorrected_volatile=numbers.get("ecc_double", 0),
        remapped_rows=RemappedRows(0, 0, "remap_pending" in numbers, "remap_failure" in numbers),
        recovery_action=numbers.get("recovery_action", 0),
    )
    worst = max((one.severity for one in of_health(health)), default=Severity.APPLICATION)
    assert (worst >= Severity.DEVICE) == bool(fault.taints)
    assert numbers, "it lasts"


@pytest.mark.parametrize("text", soakevents._WRONG_CONFIGS)
def test_each_wrong_configuration_is_one(text: str) -> None:
    with pytest.raises(DocumentError):
        decode(Config("", text=text).parameters(partition=False))
