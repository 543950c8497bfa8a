"""What watches beside the agent's work: before it begins, and what it passes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from driver.bridge import AgentObserver
from driver.journal import Kind, Record
from driver.later import Later
from driver.lookout import Lookout, Surroundings, given
from driver.metrics import Deferred
from driver.model import Gpu, GpuState, NodeInventory, PciAddress
from driver.settings import Settings, SettingsError


def settings(folder: Path, **values: Any) -> Settings:
    return Settings(node_name="node-a", plugins_dir=str(folder), **values)


def lookout(folder: Path, **values: Any) -> Lookout:
    metrics = Deferred()
    nothing: Any = None
    about = Surroundings(
        settings(folder, **values),
        "pool",
        "boot",
        metrics,
        AgentObserver(metrics),
        lambda: (),
        lambda: None,
        lambda: None,
        nothing,
        nothing,
    )
    return Lookout(about, Later())


def node(state: GpuState = GpuState.READY) -> NodeInventory:
    return NodeInventory("580.1", (13, 0), "13", (Gpu(PciAddress(0, 0x1B, 0, 0), state, "gone"),))


def test_the_journal_is_told_the_settings_that_differ_and_no_secret(tmp_path: Path) -> None:
    told = given(settings(tmp_path, evict="fatal", webhook_url="https://hooks.example.com/secret"))
    assert told == {"nodeName": "node-a", "pluginsDir": str(tmp_path), "evict": "fatal", "webhookUrl": "set"}


def test_the_way_to_the_first_slice_of_a_well_node_loads_nothing_of_health() -> None:
    code = """
import sys, pathlib
import driver.lookout
from tests.unit.agent.test_lookout import lookout, node
before = set(sys.modules)
import tempfile
made = lookout(pathlib.Path(tempfile.mkdtemp()))
inventory = node()
assert made.view(inventory) == (inventory, {})
print([name for name in set(sys.modules) - before if name.startswith(("driver.", "kubeletplugin.", "native."))])
import driver.agent
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_the_agent_s_way_to_its_registration_loads_no_journal_and_no_health() -> None:
    code = """
import sys
import driver.agent
parts = ("driver.journal", "driver.health", "driver.watch", "driver.watching", "driver.reconcile", "driver.idle",
         "kubeletplugin.health", "kubeletplugin.healthservice", "kubeletplugin.webhook")
print([name for name in sys.modules if name in parts or name.startswith(("driver.journal.", "driver.health."))])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[3],
        timeout=60,
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_sick_gpu_is_tainted_in_the_first_publication_already(tmp_path: Path) -> None:
    made = lookout(tmp_path)
    made._agent.settings.state_dir.mkdir(parents=True)
    shown, taints = made.view(node(GpuState.LOST))
    assert [gpu.state for gpu in shown.gpus] == [GpuState.LOST], "never seen well: there is nothing to show instead"
    assert taints == {}, "and nothing is published of it"


def test_a_gpu_that_was_never_read_whole_is_held_back_in_the_first_publication(tmp_path: Path) -> None:
    made = lookout(tmp_path)
    made._agent.settings.state_dir.mkdir(parents=True)
    (gpu,) = node().gpus
    shown, taints = made.view(replace(node(), gpus=(replace(gpu, unread=("mig", "partitions")),)))
    assert [(one.state, "has not told mig, partitions" in str(one.reason)) for one in shown.gpus] == [
        (GpuState.UNREADABLE, True)
    ]
    assert taints == {}
    shown, taints = made.view(node())
    assert (shown, taints) == (node(), {}), "and offered, without a taint, once it was"


def test_a_gpu_that_fell_ill_between_the_first_slice_and_the_first_look_stays_in_view(tmp_path: Path) -> None:
    made = lookout(tmp_path)
    made._agent.settings.state_dir.mkdir(parents=True)
    well = node()
    assert made.view(well) == (well, {})
    shown, _ = made.view(node(GpuState.LOST))
    assert shown.gpus == well.gpus


def test_the_watch_that_is_made_behind_the_first_slice_knows_what_is_published(tmp_path: Path) -> None:
    made = lookout(tmp_path)
    made._agent.settings.state_dir.mkdir(parents=True)
    made.view(node())
    unavailable = {"gpu-0000-1b-00-0": [{"key": "gpu.nvidia.com/driver-unavailable", "effect": "NoSchedule"}]}
    made.published([{"name": "gpu-0000-1b-00-0"}, {"name": "gpu-0000-1b-00-0-mig-1g-10gb-19-0"}], unavailable)
    watch = made._made()
    assert {target.device for target in watch._targets()} == set(made._devices)
    assert watch.present() == (None, unavailable)


def test_metadata_is_what_a_device_is_published_with(tmp_path: Path) -> None:
    made = lookout(tmp_path)
    assert made.metadata("gpu-0") is None
    made.published([{"name": "gpu-0", "attributes": {"uuid": {"string": "GPU-1"}}}], {})
    found = made.metadata("gpu-0")
    assert found is not None
    assert found.attributes == {"uuid": {"string": "GPU-1"}}


def test_only_chosen_kinds_are_posted(tmp_path: Path) -> None:
    made = lookout(tmp_path, webhook_kinds="device.,claim.error")
    posted: list[str] = []

    class Hook:
        def post(self, text: str) -> None:
            posted.append(text)

    made._webhook = Hook()  # type: ignore[assignment] # all that is used of it
    for kind in (Kind.HEALTH, Kind.PREPARE, Kind.ERROR, Kind.XID):
        made._post(Record(1, "2026-01-01T00:00:00Z", 0, "b", kind, "gpu-0"))
    assert [text.split()[2] for text in posted] == ["device.health", "claim.error"]


@pytest.mark.bug("B104")
@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"ignore_xids": "13, x, 99"}, "'x' is not the number of an XID"),
        ({"ignore_causes": "heat"}, "'heat' is none of"),
        ({"evict": "always"}, "none of never, fatal, device"),
        ({"journal_bytes": 100}, "at least 1048576"),
        ({"webhook_url": "ftp://x"}, "not an http or https URL"),
        ({"metadata_versions": "v1"}, "'v1' is none of"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        settings(tmp_path, **values)
