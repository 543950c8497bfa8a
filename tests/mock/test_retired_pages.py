"""A board before Ampere under a running agent: pages that wait to be retired, and too many that are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from driver.journal import Record, read
from native.mock import MockNode
from native.nvml import make_backend
from native.nvml.errors import NvmlReturn
from native.nvml.healthtypes import GpuHealth, RetiredPages
from tests.support.agents import DRIVER, Scene, open_scene
from tests.support.mocknodes import Node

QUICK = {"health_seconds": 0.2, "health_recovery_seconds": 1.0, "rescan_seconds": 60}


@pytest.fixture
def t4(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with open_scene(tmp_path_factory.mktemp("s"), "t4") as made:
        yield made


def begin(scene: Scene, **flags: object) -> str:
    """An agent that offers the one GPU; gives its address."""
    scene.start(**{**QUICK, **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == 1, "the device")
    return scene.node.profile.gpus[0].address


def taints(scene: Scene) -> list[str]:
    (device,) = scene.devices()
    return [f"{one['key']}={one.get('value', '')}:{one['effect']}" for one in device.get("taints", ())]


def told(scene: Scene) -> list[dict[str, Any]]:
    """What the journal says of the device's health, oldest first."""
    folder = scene.plugins / DRIVER / "gpudra" / "journal"
    entries = [entry for entry in read(folder) if isinstance(entry, Record)] if folder.exists() else []
    return [dict(entry.data) for entry in entries if entry.kind == "device.health"]


def reading(node: MockNode, environment: pytest.MonkeyPatch) -> GpuHealth:
    """What both backends say of the first GPU; the same, or the test fails here."""
    for key, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        environment.setenv(key, value)
    found = []
    for name in ("cffi", "pynvml"):
        library = make_backend(node.library, name)
        library.open()
        found += library.health([node.profile.gpus[0].address])
        library.close()
    assert found[0] == found[1]
    return found[0]


def test_both_backends_read_the_same_of_a_board_that_retires_pages(
    own_node: MockNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = own_node.profile.gpus[0].address
    for single, double, pending in ((0, 0, 0), (3, 2, 1), (64, 0, 0)):
        for field, value in (("single", single), ("double", double), ("pending", pending)):
            own_node.set_number(address, f"retired_{field}", value)
        found = reading(own_node, monkeypatch)
        assert found.retired_pages == RetiredPages(single, double, bool(pending))
        assert found.codes["remapped_rows"] == NvmlReturn.NOT_SUPPORTED


@pytest.mark.parametrize("name", ["a30", "gb10"])
def test_both_backends_say_that_a_newer_board_retires_no_pages(
    name: str, node_of: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reading(node_of(name), monkeypatch)
    assert (found.retired_pages, found.codes["retired_pages"]) == (None, NvmlReturn.NOT_SUPPORTED)


def test_a_page_that_waits_keeps_new_pods_away_where_that_is_wanted_until_the_driver_is_loaded_anew(t4: Scene) -> None:
    address = begin(t4, degraded_taints=True)
    t4.node.set_number(address, "retired_single", 1)
    t4.node.set_number(address, "retired_pending", 1)
    t4.until(lambda: taints(t4) == ["gpu.nvidia.com/degraded=page-retirement-pending:NoSchedule"], "the taint")
    t4.node.reload_driver()
    t4.until(lambda: taints(t4) == [], "the end of the taint")


def test_a_board_with_sixty_retired_pages_is_tainted_and_a_reading_that_fails_changes_nothing(t4: Scene) -> None:
    address = begin(t4, degraded_taints=True)
    t4.node.set_number(address, "retired_single", 50)
    t4.node.set_number(address, "retired_double", 10)
    pages, heat = (
        "gpu.nvidia.com/unhealthy=pages-retired:NoSchedule",
        "gpu.nvidia.com/degraded=thermal-slowdown:NoSchedule",
    )
    t4.until(lambda: taints(t4) == [pages], "the taint")
    t4.until(lambda: told(t4) and told(t4)[-1].get("cause") == "pages-retired", "the journal's word")
    assert "60 memory pages are retired, 10 of them" in told(t4)[-1]["message"]
    changes = len(told(t4))
    t4.node.set_number(address, "retired_pending", -1)  # NOT_SUPPORTED from here on
    t4.node.set_number(address, "throttle_reasons", 0x40)
    t4.until(lambda: taints(t4) == [pages, heat], "a fault that comes later")
    t4.node.set_number(address, "throttle_reasons", 1)
    t4.until(lambda: taints(t4) == [pages], "its passing, which takes as long as any")
    assert len(told(t4)) == changes
