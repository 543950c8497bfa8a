"""What the settings make of a node: offered GPUs, shares, passthrough that is remembered, daemons that are swept."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.model import Gpu, GpuState, NodeInventory, Passthrough
from driver.offering import Offering
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase
from driver.prepare.sharing.lazy import LazyStep
from driver.prepare.steps import Plan, Work
from driver.settings import Settings, SettingsError
from tests.unit.prepare.prepare_node import gpu

NODE = NodeInventory("580.1", (13, 0), "13", tuple(gpu(index) for index in range(4)))


def offering(tmp_path: Path, **settings: Any) -> Offering:
    made = Settings(
        node_name="node-a",
        plugins_dir=str(tmp_path / "plugins"),
        mps_dir=str(tmp_path / "mps"),
        sys_root=str(tmp_path / "sys"),
        proc_root=str(tmp_path / "proc"),
        dev_root=str(tmp_path / "dev"),
        **settings,
    )
    return Offering(made, lambda: NODE, lambda: None)


def record(device: str, of: Gpu, data: dict[str, Any] | None = None) -> ClaimRecord:
    made = DeviceRecord("r", "p", device, None, False, str(of.address), of.uuid or "", "cdi", data or {})
    return ClaimRecord(ClaimRef("ns", "c", "u1"), Phase.PREPARED, (made,))


def test_without_settings_everything_is_offered_as_it_is(tmp_path: Path) -> None:
    assert offering(tmp_path).offered(NODE, ()) is NODE


def test_what_is_withheld_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    made = offering(tmp_path, deny_devices="index=1")
    for _ in range(3):
        assert len(made.offered(NODE, ()).gpus) == 3
    said = [text for text in caplog.messages if "not offered" in text]
    assert said == [f"not offered: {gpu(1).name}: setting denyDevices names it (index=1)"]


def test_shares_are_counted_for_gpus_and_their_devices(tmp_path: Path) -> None:
    made = offering(tmp_path, shares='{"index=2": 4}')
    assert [one.shares for one in made.offered(NODE, ()).gpus] == [None, None, 4, None]
    assert made.share_count(gpu(2).name, NODE) == 4
    assert made.share_count(gpu(1).name, NODE) is None
    assert made.share_count("nonsense", NODE) is None


def test_a_gpu_that_a_machine_has_stays_offered_though_nvml_knows_it_no_more(tmp_path: Path) -> None:
    made = offering(tmp_path, passthrough_devices="model=*H100*")
    before = made.offered(NODE, ()).gpus[0]
    assert before.passthrough == Passthrough("NVIDIA H100 80GB HBM3", False)
    lost = replace(gpu(0), state=GpuState.UNBOUND, uuid=None, product_name=None)
    vfio = {"former": [{"address": str(lost.address), "driver": "nvidia"}], "iommuFD": False, "apiDevice": False}
    claim = record(f"{lost.name}-vfio", lost, {"vfio": {**vfio, "productName": "NVIDIA H100 80GB HBM3"}})
    after = made.offered(replace(NODE, gpus=(lost, *NODE.gpus[1:])), [claim]).gpus[0]
    assert after.passthrough == before.passthrough
    assert offering(tmp_path).offered(replace(NODE, gpus=(lost,)), [claim]).gpus[0].passthrough is not None


def test_iommufd_is_told_where_the_kernel_has_it(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/iommu").touch()
    found = offering(tmp_path, passthrough_devices="index=0").offered(NODE, ()).gpus
    assert found[0].passthrough == Passthrough("NVIDIA H100 80GB HBM3", True)
    assert found[1].passthrough is None


def hold(tmp_path: Path, pid: int, name: str, node: str) -> None:
    folder = tmp_path / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    (folder / "comm").write_text(name)
    (folder / "fd/3").symlink_to(node)


def test_gpus_that_the_host_uses_are_withheld_but_not_for_claims_or_watchers(tmp_path: Path) -> None:
    hold(tmp_path, 8, "game", "/dev/nvidia0")
    hold(tmp_path, 9, "python", "/dev/nvidia1")
    hold(tmp_path, 10, "nv-hostengine", "/dev/nvidia2")
    claim = record(gpu(1).name, gpu(1))
    made = offering(tmp_path, held_gpus="withhold")
    assert [one.minor for one in made.offered(NODE, [claim]).gpus] == [1, 2, 3]
    assert [one.minor for one in offering(tmp_path).offered(NODE, [claim]).gpus] == [0, 1, 2, 3]


def test_gpus_with_a_monitor_are_withheld(tmp_path: Path) -> None:
    (tmp_path / "sys/class/drm/card1-DP-1").mkdir(parents=True)
    (tmp_path / "sys/class/drm/card1-DP-1/status").write_text("connected\n")
    made = offering(tmp_path, display_gpus="withhold")
    assert [one.minor for one in made.offered(NODE, ()).gpus] == [0, 2, 3]


def test_the_steps_are_those_of_the_ways_of_sharing(tmp_path: Path) -> None:
    plan = Plan(offering(tmp_path).steps())
    assert (plan.strategies, plan.kinds) == ({"TimeSlicing", "MPS"}, frozenset())
    assert Plan(offering(tmp_path, sharing="MPS").steps()).strategies == {"MPS"}
    assert Plan(offering(tmp_path, sharing="").steps()).strategies == frozenset()
    assert Plan(offering(tmp_path, passthrough_devices="*").steps()).kinds == {"vfio"}


def test_each_step_is_what_it_stands_for(tmp_path: Path) -> None:
    """Where they differed, the crash points or data of one version would mean something else to another."""
    for lazy in offering(tmp_path, passthrough_devices="*").steps():
        assert isinstance(lazy, LazyStep)
        real = lazy.step()
        for attribute in ("name", "subject", "do_points", "undo_points", "kinds", "strategies"):
            assert getattr(lazy, attribute) == getattr(real, attribute), (lazy.name, attribute)


def test_a_claim_that_shares_nothing_loads_nothing(tmp_path: Path) -> None:
    work = Work(record(gpu(0).name, gpu(0)), NODE, lambda _record: None)
    steps = offering(tmp_path).steps()
    for step in steps:
        step.check(work)
        step.do(work)
        assert step.is_done(work)
        assert step.serves(work.record)
        assert step.edits(work.record, NODE) == {}
        step.undo(work.record, ())
        assert step.is_undone(work.record)
    assert [step.made for step in steps if isinstance(step, LazyStep)] == [None] * 5


def test_steps_that_remember_settings_take_note_of_each_reading_and_others_are_not_loaded_for_it(
    tmp_path: Path,
) -> None:
    made = offering(tmp_path)
    steps = {step.name: step for step in made.steps()}

    def swept(inventory: NodeInventory) -> None:
        for step in steps.values():
            assert list(step.sweep(tuple, inventory, lambda _address: contextlib.nullcontext(True))) == []

    before = made.sightings.of(str(gpu(0).address))
    swept(replace(NODE, gpus=(gpu(0, state=GpuState.LOST),)))
    assert made.sightings.of(str(gpu(0).address)) == before, "nobody shares anything"
    for name in ("mps", "timeSlice"):
        step = steps[name]
        assert isinstance(step, LazyStep)
        step.step()
        before = made.sightings.of(str(gpu(0).address))
        swept(NODE)
        swept(replace(NODE, gpus=(gpu(0, state=GpuState.LOST), *NODE.gpus[1:])))
        assert made.sightings.of(str(gpu(0).address)).losses == before.losses + 1
    assert [step.name for step in steps.values() if isinstance(step, LazyStep) and step.made] == ["mps", "timeSlice"]


def test_daemons_of_no_claim_are_swept_and_others_stay(tmp_path: Path) -> None:
    made = offering(tmp_path)
    made.recovered(list)
    made.steps()
    made.recovered(list)
    for name in ("0123456789ab", "ffffffffffff"):
        (tmp_path / "mps/gpu.nvidia.com" / name).mkdir(parents=True)
        (tmp_path / "mps/other.example.com" / name).mkdir(parents=True)
    claim = record(gpu(0).name, gpu(0), {"mps": {"daemon": "0123456789ab"}})
    made.recovered(lambda: [claim])
    assert [entry.name for entry in (tmp_path / "mps/gpu.nvidia.com").iterdir()] == ["0123456789ab"]
    assert len(list((tmp_path / "mps/other.example.com").iterdir())) == 2
    made.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"sharing": "MPS,Timeslicing"}, "'Timeslicing' is none of TimeSlicing, MPS"),
        ({"shares": "4"}, "shares: must be a JSON object"),
        ({"allow_devices": "L4"}, "allowDevices: 'L4' names no GPUs"),
        ({"deny_devices": "gpu0"}, "denyDevices: 'gpu0' names no GPUs"),
        ({"passthrough_devices": "x"}, "passthroughDevices: 'x' names no GPUs"),
        ({"display_gpus": "no"}, "displayGpus 'no' is none of offer, withhold"),
        ({"mps_dir": "run"}, "mpsDir 'run' is not an absolute path"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Settings(node_name="node-a", **settings)
    assert problem in str(caught.value)
