"""Sharing from the claim to the hardware: the agent as a process, the mock's own programs, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.journal import Record, read
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.kubelet import KubeletError
from native.mock import Failure, MockNode
from tests.support.agents import CLAIMS, DRIVER, POOL, Scene

SHARES = tuple(f"{number:08x}-0f3a-4b6d-9a6e-0d6f1f0c2a11" for number in range(3))


@pytest.fixture
def scene() -> Iterator[Scene]:
    folder = Path(tempfile.mkdtemp(prefix="s"))  # sockets of MPS daemons lie deep in it
    with EmbeddedApiServer() as server:
        made = Scene(folder, server, MockNode.create(folder / "node", "dgx-h100"))
        try:
            made.kubelet.start()
            yield made
        finally:
            made.close()
            shutil.rmtree(folder, ignore_errors=True)


def running(scene: Scene, devices: int = 8, **flags: object) -> None:
    scene.start(**{"mps_dir": scene.folder / "mps", **flags})
    scene.registered()
    scene.until(lambda: len(scene.devices()) == devices, f"{devices} devices")


def sharing(strategy: str, **fields: object) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": "GpuConfig"}
    return {**parameters, "sharing": {"strategy": strategy, **fields}}


def uuid_of(scene: Scene, claim: dict[str, Any]) -> str:
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    found = next(device for device in scene.devices() if device["name"] == result["device"])
    uuid: str = found["attributes"]["uuid"]["string"]
    return uuid


def shown(scene: Scene, uuid: str) -> tuple[str, str]:
    """(time slice, compute mode) in nvidia-smi's words."""
    slice_line = scene.node.nvidia_smi("compute-policy", "-i", uuid, "-l")
    mode = scene.node.nvidia_smi("-i", uuid, "--query-gpu=compute_mode", "--format=csv,noheader")
    return slice_line.split()[-1], mode.split()[-1]


def daemons(scene: Scene) -> list[Path]:
    folder = scene.folder / "mps" / DRIVER
    return sorted(folder.iterdir()) if folder.exists() else []


def test_a_time_slice_lasts_as_long_as_its_claim(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("c", config=sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"}))
    scene.prepare("c")
    assert shown(scene, uuid_of(scene, claim)) == ("Long", "Default")
    scene.unprepare("c")
    assert shown(scene, uuid_of(scene, claim)) == ("Default", "Default")


def test_an_mps_daemon_outlives_an_agent_and_ends_with_its_claim(scene: Scene) -> None:
    running(scene)
    mps = {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "2Gi"}
    claim = scene.claim("c", config=sharing("MPS", mpsConfig=mps))
    scene.prepare("c")
    uuid = uuid_of(scene, claim)
    assert shown(scene, uuid)[1] == "Exclusive_Process"
    (folder,) = daemons(scene)
    pid = (folder / "pipe/nvidia-cuda-mps-control.pid").read_text()
    (spec,) = scene.specs()
    assert str(folder / "pipe") in spec.read_text()

    scene.end(signal.SIGKILL)
    assert Path(f"/proc/{pid.strip()}").exists()
    running(scene)
    scene.until(lambda: scene.logged(f"MPS control daemon {pid.strip()} of claim"), "the daemon to be found")
    assert (folder / "pipe/nvidia-cuda-mps-control.pid").read_text() == pid

    scene.unprepare("c")
    assert daemons(scene) == []
    assert not Path(f"/proc/{pid.strip()}/exe").exists()
    assert shown(scene, uuid)[1] == "Default"
    assert scene.specs() == []


def test_a_daemon_that_died_with_its_agent_is_started_again_in_the_same_place(scene: Scene) -> None:
    running(scene)
    scene.claim("c", config=sharing("MPS"))
    ids = scene.prepare("c")
    (spec,) = scene.specs()
    before = spec.read_text()
    (folder,) = daemons(scene)
    pid_file = folder / "pipe/nvidia-cuda-mps-control.pid"
    pid = int(pid_file.read_text())
    scene.end(signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    running(scene)
    scene.until(lambda: pid_file.exists() and int(pid_file.read_text() or 0) not in (0, pid), "another daemon")
    assert scene.prepare("c") == ids
    assert spec.read_text() == before
    scene.unprepare("c")
    assert daemons(scene) == []


def test_a_daemon_that_crashes_is_counted_when_it_runs_again(scene: Scene) -> None:
    running(scene, metrics_port=0, metrics_address="127.0.0.1")
    scene.claim("c", config=sharing("MPS"))
    scene.prepare("c")
    (folder,) = daemons(scene)
    os.kill(int((folder / "pipe/nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    scene.until(lambda: restarts(scene) == 1, "the restart in the metrics")
    scene.unprepare("c")
    assert daemons(scene) == []


def restarts(scene: Scene) -> float | None:
    """What the agent's metrics say of MPS daemons; None before they are served."""
    served = scene.logged("metrics are served")
    if not served:
        return None
    with urllib.request.urlopen(f"http://127.0.0.1:{served[-1]['port']}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith("gpudra_mps_daemon_restarts_total "))


@pytest.fixture
def keeper(scene: Scene) -> Iterator[subprocess.Popen[bytes]]:
    """``gpudra mps`` as a process, for the scene's agent."""
    command = [sys.executable, "-m", "driver.cli.main", "mps", f"--driver-root={scene.node.root}"]
    environment = {**os.environ, **scene.node.environment, "GPUDRA_PLAIN_DEVICE_NODES": "true"}
    process = subprocess.Popen([*command, f"--mps-dir={scene.folder / 'mps'}"], env=environment)
    yield process
    process.kill()
    process.wait()


def test_with_a_keeper_the_end_of_the_agent_touches_no_daemon(scene: Scene, keeper: subprocess.Popen[bytes]) -> None:
    running(scene, mps_daemons="pod")
    scene.until((scene.folder / "mps" / DRIVER / "keeper.sock").exists, "the keeper's socket")
    claim = scene.claim("c", config=sharing("MPS", mpsConfig={"defaultActiveThreadPercentage": 50}))
    ids = scene.prepare("c")
    (folder,) = [found for found in daemons(scene) if found.name != "libraries" and found.is_dir()]
    pid = (folder / "pipe/nvidia-cuda-mps-control.pid").read_text()
    assert f"PPid:\t{keeper.pid}\n" in Path(f"/proc/{pid.strip()}/status").read_text()
    (spec,) = scene.specs()
    assert str(folder / "pipe") in spec.read_text()
    assert scene.end() == 0
    running(scene, mps_daemons="pod")
    assert scene.prepare("c") == ids
    assert (folder / "pipe/nvidia-cuda-mps-control.pid").read_text() == pid
    scene.unprepare("c")
    assert not folder.exists()
    assert shown(scene, uuid_of(scene, claim)) == ("Default", "Default")


def test_without_the_keeper_a_claim_with_mps_waits_and_says_for_what(scene: Scene) -> None:
    running(scene, mps_daemons="pod")
    claim = scene.claim("c", config=sharing("MPS"))
    with pytest.raises(KubeletError, match="is the DaemonSet gpudra-mps on this node"):
        scene.prepare("c")
    assert shown(scene, uuid_of(scene, claim)) == ("Default", "Default")
    assert scene.specs() == []


def test_a_mistake_is_told_to_the_kubelet_and_nothing_is_touched(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("c", config=sharing("MPS", mpsConfig={"defaultPerDevicePinnedMemoryLimit": {"1": "1Gi"}}))
    with pytest.raises(KubeletError, match=r"defaultPerDevicePinnedMemoryLimit\[1\].*indices go from 0 to 0"):
        scene.prepare("c")
    assert shown(scene, uuid_of(scene, claim)) == ("Default", "Default")
    assert daemons(scene) == []


@pytest.mark.bug("B99")
def test_a_daemon_that_cannot_start_fails_the_claim_leaves_nothing_and_is_tried_again(scene: Scene) -> None:
    running(scene)
    scene.node.set_failures([Failure("mps.start", 999)])
    claim = scene.claim("c", config=sharing("MPS"))
    with pytest.raises(KubeletError, match=r"the control daemon ended at once: .+"):
        scene.prepare("c")
    assert daemons(scene) == []
    assert shown(scene, uuid_of(scene, claim)) == ("Default", "Default")
    assert scene.specs() == []
    scene.node.set_failures([])
    scene.prepare("c")
    assert len(daemons(scene)) == 1


def test_ways_of_sharing_can_be_turned_off(scene: Scene) -> None:
    running(scene, sharing="TimeSlicing")
    scene.claim("c", config=sharing("MPS"))
    with pytest.raises(KubeletError, match="MPS is turned off on this node"):
        scene.prepare("c")


def test_gpus_that_are_denied_are_not_published_and_the_log_says_why(scene: Scene) -> None:
    denied = scene.node.profile.gpus[2]
    running(scene, devices=6, deny_devices=f"{denied.uuid},index=0")
    assert denied.uuid not in json.dumps(scene.devices())
    assert len(scene.logged("setting denyDevices names it")) == 2


def allocate(scene: Scene, name: str, *shares: tuple[str, str], config: object = None) -> None:
    """A claim with shares of one GPU, as a scheduler would allocate it."""
    device = scene.devices()[0]["name"]
    common = {"request": "gpus", "driver": DRIVER, "pool": POOL, "device": device}
    results = [
        {**common, "shareID": share, "consumedCapacity": {"shares": "1", "memory": memory}} for share, memory in shares
    ]
    entry = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": config}}
    made = scene.client.create(
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
        },
    )
    allocation = {"devices": {"results": results, **({"config": [entry]} if config is not None else {})}}
    made["status"] = {
        "allocation": allocation,
        "reservedFor": [{"resource": "pods", "name": name, "uid": f"pod-{name}"}],
    }
    scene.client.update(f"{CLAIMS}/{name}/status", made)


def test_shares_of_a_gpu_go_to_several_claims_with_one_daemon(scene: Scene) -> None:
    running(scene, shares=json.dumps({"index=0": 4}))
    first = scene.devices()[0]
    assert first["allowMultipleAllocations"] is True
    assert first["capacity"]["shares"]["value"] == "4"
    uuid = first["attributes"]["uuid"]["string"]
    for number, name in enumerate(("a", "b")):
        allocate(scene, name, (SHARES[number], "20Gi"), config=sharing("MPS"))
        assert len(scene.prepare(name)) == 1
    assert len(daemons(scene)) == 1
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25" in scene.specs()[0].read_text()
    scene.unprepare("a")
    assert len(daemons(scene)) == 1
    assert shown(scene, uuid)[1] == "Exclusive_Process"
    scene.unprepare("b")
    assert daemons(scene) == []
    assert shown(scene, uuid)[1] == "Default"


def test_two_shares_in_one_claim_are_two_cdi_devices_and_told_in_its_status(scene: Scene) -> None:
    running(scene, shares=json.dumps({"*": 4}))
    allocate(scene, "a", (SHARES[0], "10Gi"), (SHARES[1], "10Gi"))
    ids = scene.prepare("a")
    assert len(set(ids)) == 2
    said = scene.until(lambda: scene.client.get(f"{CLAIMS}/a")["status"].get("devices"), "the claim's status")
    assert [entry["shareID"] for entry in said] == list(SHARES[:2])


def test_a_gpu_for_virtual_machines_is_published_as_such_and_a_kernel_that_does_not_bind_it_is_told(
    scene: Scene,
) -> None:
    running(scene, devices=9, passthrough_devices="index=0")
    (device,) = [device for device in scene.devices() if device["name"].endswith("-vfio")]
    assert device["attributes"]["type"] == {"string": "vfio"}
    (twin,) = [other for other in scene.devices() if f"{other['name']}-vfio" == device["name"]]
    assert twin["consumesCounters"] == device["consumesCounters"]
    common = {"request": "gpus", "driver": DRIVER, "pool": POOL, "device": device["name"]}
    made = scene.client.create(
        CLAIMS,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "vm", "namespace": "default"},
            "spec": {"devices": {"requests": [{"name": "gpus", "exactly": {"deviceClassName": DRIVER}}]}},
        },
    )
    made["status"] = {
        "allocation": {"devices": {"results": [common]}},
        "reservedFor": [{"resource": "pods", "name": "vm", "uid": "pod-vm"}],
    }
    scene.client.update(f"{CLAIMS}/vm/status", made)
    # No kernel stands behind the mock's sysfs: what is written there does not happen, and that is noticed.
    with pytest.raises(KubeletError, match="was to be bound to vfio-pci and is bound to nvidia"):
        scene.prepare("vm")
    assert scene.specs() == []
    scene.until(lambda: len(scene.devices()) == 9, "NVML to be asked again")


@pytest.mark.bug("B72")
def test_a_reset_under_a_time_slice_is_noticed_as_soon_as_the_gpu_is_back(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("c", config=sharing("TimeSlicing", timeSlicingConfig={"interval": "Long"}))
    scene.prepare("c")
    uuid = uuid_of(scene, claim)
    scene.node.reload_driver()  # so quickly that no reading need find it away
    scene.until(lambda: shown(scene, uuid) == ("Long", "Default"), "the time slice to be set again")
    assert scene.logged("has time slice 0, not 3: it was reset, or somebody changed it; it is set again")
    scene.unprepare("c")
    assert shown(scene, uuid) == ("Default", "Default")


@pytest.mark.bug("B72")
def test_a_gpu_that_is_lost_under_mps_has_its_mode_and_a_new_daemon_when_it_is_back(scene: Scene) -> None:
    running(scene)
    claim = scene.claim("c", config=sharing("MPS"))
    scene.prepare("c")
    uuid = uuid_of(scene, claim)
    gpu = next(gpu for gpu in scene.node.profile.gpus if gpu.uuid == uuid)
    (folder,) = daemons(scene)
    pid_file = folder / "pipe/nvidia-cuda-mps-control.pid"
    pid = int(pid_file.read_text())
    scene.node.set_gpu_state(gpu.address, "lost")
    scene.until(lambda: scene.logged(f"GPU {gpu.address} is lost now"), "the loss")
    scene.node.reload_driver()
    scene.node.set_gpu_state(gpu.address, "ok")
    scene.until(lambda: shown(scene, uuid)[1] == "Exclusive_Process", "the compute mode to be set again")
    scene.until(lambda: pid_file.exists() and int(pid_file.read_text() or 0) not in (0, pid), "another daemon")
    assert scene.logged("a GPU that it serves was lost to it")
    scene.unprepare("c")
    assert (daemons(scene), shown(scene, uuid)) == ([], ("Default", "Default"))


def test_a_pipe_folder_that_is_emptied_under_a_claim_is_made_right_and_journalled(scene: Scene) -> None:
    running(scene)
    scene.claim("c", config=sharing("MPS"))
    ids = scene.prepare("c")
    (folder,) = daemons(scene)
    pid_file = folder / "pipe/nvidia-cuda-mps-control.pid"
    pid = int(pid_file.read_text())
    for entry in (folder / "pipe").iterdir():
        entry.unlink()
    scene.until(lambda: pid_file.exists() and int(pid_file.read_text() or 0) not in (0, pid), "another daemon")
    scene.until(lambda: not Path(f"/proc/{pid}").exists(), "the end of the daemon that nobody reaches")
    assert scene.logged("so that no program can reach it; it is ended and started anew")
    (said,) = scene.until(lambda: scene.logged("made prepared claims right again"), "the word of it")
    assert list(said["lacked"].values()) == ["its MPS control daemon"]
    folder_of_journal = scene.plugins / DRIVER / "gpudra" / "journal"
    scene.until(
        lambda: (
            [
                one.data["what"]
                for one in read(folder_of_journal)
                if isinstance(one, Record) and (one.kind, one.data.get("outcome")) == ("claim.recover", "remade")
            ]
            == ["its MPS control daemon"]
        ),
        "the journal's word",
    )
    assert scene.prepare("c") == ids
    scene.unprepare("c")
    assert daemons(scene) == []
