"""The machine starts anew, or gets another version of its driver."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from native.mock import MockNode, Process
from native.mock.tree import CDI_FILE, library_folder
from tests.support.nvmlcalls import Nvml

NEW = "580.126.9"


@pytest.fixture
def nvml(tmp_path: Path) -> Iterator[Nvml]:
    library = Nvml(MockNode.create(tmp_path / "root", "dgx-h100"))
    yield library
    assert library.close() == 0


def boot_id(node: MockNode) -> str:
    return (node.root / "proc/sys/kernel/random/boot_id").read_text().strip()


def version(nvml: Nvml) -> str | int:
    assert (nvml.close(), nvml.init()) == (0, 0)
    return nvml.text("nvmlSystemGetDriverVersion")


def test_a_reboot_ends_what_the_driver_had_and_gives_another_boot_id(nvml: Nvml) -> None:
    node = nvml.node
    first, second, third = (gpu.address for gpu in node.profile.gpus[:3])
    before, uuids = boot_id(node), node.nvidia_smi("-L")
    node.nvidia_smi("-i", first, "-mig", "1")
    node.nvidia_smi("mig", "-i", first, "-cgi", "19", "-C")
    node.set_processes(second, [Process(4711)])
    node.set_gpu_state(second, "lost")
    node.unplug(third)
    node.reboot()
    assert boot_id(node) != before
    assert node.instances(first) == []
    assert node.number(first, "mig_current") == 0
    assert node.nvidia_smi("--query-compute-apps=pid", "--format=csv,noheader").strip() == ""
    assert len(node.nvidia_smi("-L").splitlines()) == 7, "what is unplugged stays out"
    node.plug(third)
    assert node.nvidia_smi("-L") == uuids


def test_a_session_from_before_the_reboot_has_to_begin_anew(nvml: Nvml) -> None:
    gpu = nvml.gpu(0)
    nvml.node.reboot()
    assert nvml.number("nvmlDeviceGetMinorNumber", gpu) == -9
    assert (nvml.close(), nvml.init()) == (0, 0)
    assert nvml.number("nvmlDeviceGetCount_v2") == 8


def test_an_upgrade_replaces_libraries_texts_and_specification(nvml: Nvml) -> None:
    node = nvml.node
    old = node.profile.driver_version
    folder = node.root / library_folder(node.profile)
    names = sorted(path.name.replace(old, "V") for path in folder.iterdir())
    node.upgrade_driver(NEW)
    assert version(nvml) == NEW
    assert sorted(path.name.replace(NEW, "V") for path in folder.iterdir()) == names
    assert node.library.resolve().name == f"libnvidia-ml.so.{NEW}"
    assert f" {NEW} " in (node.root / "proc/driver/nvidia/version").read_text()
    assert (node.root / "sys/module/nvidia/version").read_text().strip() == NEW
    edits = json.loads((node.root / CDI_FILE).read_text())["containerEdits"]
    assert all(Path(mount["hostPath"]).exists() for mount in edits["mounts"])
    again = MockNode.open(node.root)
    assert (again.profile.driver_version, again.profile.gpus) == (NEW, node.profile.gpus)


def test_without_a_run_of_nvidia_ctk_the_specification_names_libraries_that_are_no_more(nvml: Nvml) -> None:
    node = nvml.node
    node.upgrade_driver(NEW, specification=False)

    def missing() -> list[str]:
        edits = json.loads((node.root / CDI_FILE).read_text())["containerEdits"]
        return [mount["hostPath"] for mount in edits["mounts"] if not Path(mount["hostPath"]).exists()]

    assert len(missing()) == 8
    node.write_specification()
    assert missing() == []


def test_a_gpu_that_is_out_during_the_upgrade_comes_back_to_the_new_driver(nvml: Nvml) -> None:
    node = nvml.node
    address = node.profile.gpus[2].address
    node.unplug(address)
    node.upgrade_driver(NEW)
    node.plug(address)
    assert version(nvml) == NEW
    assert nvml.number("nvmlDeviceGetCount_v2") == 8


@pytest.mark.parametrize("wrong", ["", "580", "580.x", "../580.1", "the same"])
def test_what_is_no_other_version_is_refused_and_changes_nothing(own_node: MockNode, wrong: str) -> None:
    kept = own_node.root / "run/gpudra-mock/profile.yaml"
    before = kept.read_text()
    with pytest.raises(ValueError, match=r"version|already"):
        own_node.upgrade_driver(own_node.profile.driver_version if wrong == "the same" else wrong)
    assert kept.read_text() == before
    assert own_node.nvidia_smi("-L"), "the driver is loaded"
