"""``gpudra mock``: what a person types, and what the programs on the node then see."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from driver.cli import main as command
from native.mock import MockNode, capture, profile, profiles
from native.mock.boards import linked
from native.nvml.opening import make_backend
from native.sysfs import read_host
from tests.support.nvmlcalls import Nvml

VERBS = ("up", "down", "set", "fault", "xid", "unplug", "plug", "mig", "profiles", "capture")


def gpudra(*arguments: str) -> int:
    return command.main(["mock", *arguments])


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MockNode:
    """A node that the shell points at, as `up` says."""
    root = tmp_path / "node"
    assert gpudra("up", "--profile", "dgx-h100", "--root", str(root)) == 0
    monkeypatch.setenv("GPUDRA_MOCK_ROOT", str(root))
    return MockNode.open(root)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_teaches_how_it_is_used(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        gpudra(verb, "--help")
    text = capsys.readouterr().out
    assert len(text.splitlines()) > 6
    assert "--root" in text or verb in ("profiles", "capture")


def test_up_prints_what_a_shell_needs(tmp_path: Path) -> None:
    script = f"""
eval "$({sys.executable} -m driver.cli.main mock up --profile t4 --root '{tmp_path}/a node')"
export GPUDRA_MOCK_QUIET=1
{sys.executable} -c 'import ctypes, os
n = ctypes.CDLL(os.environ["GPUDRA_MOCK_LIBRARY"]); print(n.nvmlInit_v2())'
{sys.executable} -m driver.cli.main mock down
"""
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
    assert not (tmp_path / "a node").exists()


def test_numbers_states_and_the_driver_are_set(node: MockNode) -> None:
    assert gpudra("set", "0", "temperature=88", "throttle_reasons=0x40", "--state", "ok") == 0
    nvml = Nvml(node)
    assert nvml.number("nvmlDeviceGetTemperature", nvml.gpu(), 0) == 88
    assert gpudra("set", node.profile.gpus[1].address, "--state", "lost") == 0
    assert nvml.handle("nvmlDeviceGetHandleByIndex_v2", 1)[0] == 15
    assert gpudra("set", "--driver", "unloaded") == 0
    assert nvml.number("nvmlDeviceGetCount_v2") == -9
    assert gpudra("set", "--driver", "loaded") == 0
    assert nvml.close() == 0


def test_faults_add_up_until_they_are_cleared(node: MockNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpudra("fault", "nvmlDeviceGetSerial", "--code", "UNKNOWN", "--times", "1") == 0
    assert gpudra("fault", "nvmlDeviceGet*", "--gpu", "3", "--delay", "5") == 0
    capsys.readouterr()
    assert gpudra("fault") == 0
    assert capsys.readouterr().out.splitlines() == [
        "nvmlDeviceGetSerial code=999 times=1",
        f"nvmlDeviceGet* address={node.profile.gpus[3].address} delay_ms=5",
    ]
    nvml = Nvml(node)
    assert nvml.text("nvmlDeviceGetSerial", nvml.gpu()) == -999
    assert gpudra("fault", "--clear") == 0
    assert node.failures() == []
    assert nvml.close() == 0


def test_an_xid_reaches_who_listens(node: MockNode) -> None:
    nvml = Nvml(node)
    events = nvml.listen(nvml.gpu(3), 8)
    assert gpudra("xid", "3", "79") == 0
    assert nvml.wait(events, 1000).eventData == 79
    assert nvml.code("nvmlEventSetFree", events) == 0
    assert nvml.close() == 0


def test_a_gpu_goes_and_comes(node: MockNode) -> None:
    assert gpudra("unplug", "2", "--first", "sysfs") == 0
    assert node.nvidia_smi("-L").count("GPU ") == 7
    assert gpudra("plug", node.profile.gpus[2].address) == 0
    assert node.nvidia_smi("-L").count("GPU ") == 8


def test_mig_is_what_nvidia_smi_makes_of_it(node: MockNode, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpudra("mig", "--", "on", "-i", "0") == 0
    assert gpudra("mig", "--", "-i", "0", "-cgi", "9,19:0", "-C") == 0
    assert [instance.profile for instance in node.instances(node.profile.gpus[0].address)] == ["3g.40gb", "1g.10gb"]
    capsys.readouterr()
    assert gpudra("mig", "--", "-i", "0", "-dgi") == 1
    assert "In use by another client" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["set", "0", "warmth=3"], "a GPU has no number 'warmth', but "),
        (["set", "0", "temperature=hot"], "a whole number is expected"),
        (["set"], "nothing to set"),
        (["set", "8", "temperature=1"], "no GPU 8, only 0 to 7"),
        (["xid", "0000:ff:00.0", "79"], "no GPU at 0000:ff:00.0"),
        (["fault", "malloc", "--code", "UNKNOWN"], "not the name of an NVML function"),
        (["fault", "nvmlInit_v2", "--code", "OOPS"], "'OOPS' is no code"),
        (["plug", "0"], "is not unplugged"),
        (["set", "--root", "/nonexistent", "0", "temperature=1"], "holds no mock node"),
        (["up", "--root", "/nonexistent/x", "--profile", "pdp-11"], "neither a file nor a known profile"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(
    arguments: list[str], message: str, node: MockNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gpudra(*arguments) == 2
    assert message in capsys.readouterr().err


def test_profiles_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpudra("profiles") == 0
    listed = capsys.readouterr().out
    assert all(re.search(rf"^{name} +\S", listed, re.MULTILINE) for name in profiles.names())
    assert gpudra("profiles", "gb200") == 0
    assert capsys.readouterr().out == profiles.text("gb200")


TAKEN = ("minor", "module_id", "brand", "architecture", "cc_major", "cc_minor", "pci_device_id", "pci_subsystem_id")
TAKEN += ("memory_total", "memory_reserved", "bar1_total", "addressing_mode", "ecc_current", "mig_current", "numa_node")
TAKEN += ("compute_mode", "persistence", "virtualization", "pcie_generation", "memory_numa_node", "fabric_clique")


@pytest.mark.parametrize("name", profiles.names())
def test_a_captured_machine_is_the_machine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = MockNode.create(tmp_path / "root", name)
    for key, value in {**node.environment, "GPUDRA_MOCK_QUIET": "1"}.items():
        monkeypatch.setenv(key, value)
    backend = make_backend(node.library)
    backend.open()
    try:
        snapshot = backend.snapshot()
    finally:
        backend.close()
    host = read_host(node.root / "sys", node.root / "proc")
    found = capture.document(snapshot, host, name="copy", identities=True)
    copy, original = profile.parse(yaml.safe_load(yaml.safe_dump(found))), node.profile
    assert copy.driver_version == original.driver_version
    assert [gpu.uuid for gpu in copy.gpus] == [gpu.uuid for gpu in original.gpus]
    unknown = {"addressing_mode"} if "nvmlDeviceGetAddressingMode" in original.absent else set()
    for one, other in zip(copy.gpus, original.gpus, strict=True):
        assert {key: one.numbers[key] for key in TAKEN if key not in unknown} == {
            key: other.numbers[key] for key in TAKEN if key not in unknown
        }
        assert one.device.path == other.device.path
        assert (one.texts["name"], one.texts["serial"]) == (other.texts["name"], other.texts["serial"])
        if other.numbers["mig_current"] != 1:  # MIG hides the links
            assert [linked(one, far) for far in copy.gpus] == [linked(other, far) for far in original.gpus]
    assert {d.path for d in copy.devices if d.infiniband} == {d.path for d in original.devices if d.infiniband}
    assert MockNode.create(tmp_path / "copy", _written(tmp_path, found)).profile.gpus == copy.gpus


def _written(folder: Path, found: dict[str, object]) -> Path:
    path = folder / "copy.yaml"
    path.write_text(yaml.safe_dump(found))
    return path


def test_a_capture_leaves_out_who_the_machine_is(node: MockNode, capsys: pytest.CaptureFixture[str]) -> None:
    roots = [
        "--driver-root",
        str(node.root),
        "--sys-root",
        str(node.root / "sys"),
        "--proc-root",
        str(node.root / "proc"),
    ]
    node.activate()
    capsys.readouterr()
    assert gpudra("capture", *roots) == 0
    text = capsys.readouterr().out
    assert node.profile.gpus[0].uuid not in text
    assert "captured by gpudra with driver 580.105.08" in text


def test_without_a_driver_there_is_nothing_to_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpudra("capture", "--driver-root", str(tmp_path)) == 2
    assert "libnvidia-ml.so.1" in capsys.readouterr().err
