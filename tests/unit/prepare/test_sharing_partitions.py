"""MPS on MIG devices: a daemon of their own, and the mode of the GPU, which others divide, is left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver.model import NodeInventory, Placement
from driver.prepare.claims import ClaimRef
from driver.prepare.config import MigDeviceConfig, MpsConfig, Sharing, Strategy
from driver.prepare.errors import ClaimError
from driver.prepare.partition import Origin, PartitionRecord
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase
from driver.prepare.sharing.debts import Debts
from driver.prepare.sharing.modes import GpuModes
from driver.prepare.sharing.mps import MpsStep
from driver.prepare.sharing.rules import SharingRulesStep
from driver.prepare.sharing.timeslicing import TimeSliceStep
from driver.prepare.steps import Work
from tests.unit.prepare.prepare_node import gpu
from tests.unit.prepare.sharing_node import FakeDaemons, FakeSmi


def partition(start: int, uuid: str) -> DeviceRecord:
    name = f"{gpu(0).name}-mig-1g-10gb-19-{start}"
    device = DeviceRecord("r", "p", name, None, False, str(gpu(0).address), "", f"cdi-{start}")
    made = PartitionRecord(19, "1g.10gb", Placement(start, 1), gpu(0).uuid or "", Origin.FOUND)
    return device.with_partition(made, uuid)


def work(uid: str, *devices: DeviceRecord, strategy: Strategy, mps: MpsConfig | None = None) -> Work:
    record = ClaimRecord(ClaimRef("ns", uid, uid), Phase.PREPARING, devices)
    config = MigDeviceConfig(Sharing(strategy, None, mps))
    node = NodeInventory("580.1", (13, 0), "13", (gpu(0),))
    return Work(record, node, lambda _record: None, configs={device.cdi_device: config for device in devices})


@pytest.fixture
def smi() -> FakeSmi:
    return FakeSmi()


@pytest.fixture
def daemons(tmp_path: Path) -> FakeDaemons:
    return FakeDaemons(tmp_path)


def modes(smi: Any, folder: Path) -> GpuModes:
    return GpuModes(smi, Debts(folder / "debts.json", lambda: "boot-1"))


def step(smi: Any, daemons: Any) -> MpsStep:
    return MpsStep(modes(smi, daemons.base), daemons)


@pytest.mark.bug("B103")
def test_a_partition_gets_a_daemon_and_its_gpu_keeps_its_mode(smi: FakeSmi, daemons: FakeDaemons) -> None:
    mps = MpsConfig(40, None, (("0", "1Gi"), ("MIG-b", "2Gi")))
    one = work("u1", partition(0, "MIG-a"), partition(1, "MIG-b"), strategy=Strategy.MPS, mps=mps)
    made = step(smi, daemons)
    made.check(one)
    made.do(one)
    (settings,) = daemons.running.values()
    assert settings.uuids == ("MIG-a", "MIG-b")
    assert dict(settings.limits) == {"MIG-a": 1024, "MIG-b": 2048}
    assert made.is_done(one)
    made.undo(one.record, ())
    assert daemons.running == {}
    assert smi.calls == []


def test_a_uuid_cannot_name_a_partition_that_is_still_to_be_made(smi: FakeSmi, daemons: FakeDaemons) -> None:
    mps = MpsConfig(None, None, (("MIG-b", "2Gi"),))
    with pytest.raises(ClaimError, match="has no UUID beforehand: use an index"):
        step(smi, daemons).check(work("u1", partition(0, ""), strategy=Strategy.MPS, mps=mps))


def test_partitions_of_one_gpu_need_not_agree(smi: FakeSmi, daemons: FakeDaemons) -> None:
    first = work("u1", partition(0, "MIG-a"), strategy=Strategy.MPS)
    step(smi, daemons).check(first)
    second = work("u2", partition(1, "MIG-b"), strategy=Strategy.TIME_SLICING)
    second.others = [first.record]
    SharingRulesStep().check(second)


def test_time_slices_of_a_partition_change_nothing(smi: Any, tmp_path: Path) -> None:
    one = work("u1", partition(0, "MIG-a"), strategy=Strategy.TIME_SLICING)
    made = TimeSliceStep(modes(smi, tmp_path))
    made.check(one)
    made.do(one)
    made.undo(one.record, ())
    assert smi.calls == []
