"""The fake root, read the way a driver reads a real one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from native.mock import MockNode, ProfileError, nodefile, pcie, profiles
from native.mock.tree import make_node
from native.sysfs import read_host
from native.uevents import UeventWatcher
from tests.support.mocknodes import Node

MATRICES = json.loads((Path(__file__).parent / "data" / "topo.json").read_text())["matrices"]
CLAIMED = [name for name in profiles.names() if profiles.load(name).topology_matrix]


def components(node: MockNode, address: str) -> list[str]:
    """The path of a device from its root complex on, read from the link in /sys/bus/pci/devices."""
    link = node.root / "sys/bus/pci/devices" / address
    parts = Path(os.path.normpath(link.parent / link.readlink())).relative_to(node.root / "sys").parts
    assert parts[0] == "devices"
    assert parts[1].startswith("pci")
    assert parts[-1] == address
    return list(parts[1:])


def read(node: MockNode, address: str, name: str) -> str:
    return (node.root / "sys/bus/pci/devices" / address / name).read_text().strip()


def path_class(node: MockNode, one: str, other: str) -> str:
    """What ``nvidia-smi topo -m`` says of a pair, from sysfs alone: by the ports that only one of the two passes."""
    left, right = components(node, one), components(node, other)
    pairs = enumerate(zip(left, right, strict=False))
    shared = next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
    if shared == 0:
        nodes = {int(read(node, address, "numa_node")) for address in (one, other)}
        return "NODE" if len(nodes) == 1 and -1 not in nodes else "SYS"
    if shared == 1:
        return "PHB"
    own_ports = [len(path) - 1 - shared for path in (left, right)]
    return "PIX" if max(own_ports) <= 1 else "PXB"


def test_five_profiles_or_more_are_held_to_a_public_matrix_or_a_capture() -> None:
    assert set(CLAIMED) == {"dgx-a100", "h200", "gb10", "rtx-pro-6000"}


@pytest.mark.parametrize("name", CLAIMED)
def test_the_tree_gives_every_cell_of_the_public_topology_matrix(name: str, node_of: Node) -> None:
    node = node_of(name)
    matrix: dict[str, Any] = MATRICES[node.profile.topology_matrix or ""]
    places = {f"GPU{index}": gpu.address for index, gpu in enumerate(node.profile.gpus)}
    infiniband = node.root / "sys/class/infiniband"
    if infiniband.is_dir():
        nics = {nic.name: (nic / "device").resolve().name for nic in infiniband.iterdir()}
        places |= nics | {name.replace("mlx5_", "NIC"): address for name, address in nics.items()}
    for pair, cell in matrix["cells"].items():
        one, other = pair.split()
        if cell.startswith("NV"):
            links = node.profile.gpus[int(one.removeprefix("GPU"))].links
            assert len([link for link in links if link.active]) == int(cell.removeprefix("NV")), pair
        else:
            assert path_class(node, places[one], places[other]) == cell, pair


@pytest.mark.parametrize("name", CLAIMED)
def test_the_tree_gives_the_affinity_columns_of_the_matrix(name: str, node_of: Node) -> None:
    node = node_of(name)
    matrix = MATRICES[node.profile.topology_matrix or ""]
    for gpu, cpus, numa in zip(node.profile.gpus, matrix["cpus"], matrix["numa"], strict=True):
        assert read(node, gpu.address, "local_cpulist") == cpus
        assert read(node, gpu.address, "numa_node") == str(numa)
        assert (node.root / f"sys/devices/system/node/node{numa}/cpulist").read_text().strip() == cpus


@pytest.mark.parametrize("name", profiles.names())
def test_a_gpu_looks_in_sysfs_as_nvml_describes_it(name: str, node_of: Node) -> None:
    node = node_of(name)
    for gpu in node.profile.gpus:
        ids, subsystem = gpu.numbers["pci_device_id"], gpu.numbers["pci_subsystem_id"]
        assert int(read(node, gpu.address, "vendor"), 16) == 0x10DE
        assert int(read(node, gpu.address, "device"), 16) << 16 | 0x10DE == ids
        assert int(read(node, gpu.address, "subsystem_device"), 16) << 16 | 0x10DE == subsystem
        assert read(node, gpu.address, "class") in ("0x030000", "0x030200")
        home = node.root / "sys/bus/pci/devices" / gpu.address
        assert (home / "driver").resolve().name == "nvidia"
        assert (home / "iommu_group").is_symlink() == node.profile.host.iommu
        assert f"PCI_SLOT_NAME={gpu.address}" in read(node, gpu.address, "uevent")
        config = (home / "config").read_bytes()
        assert int.from_bytes(config[0:4], "little") == (ids & 0xFFFF) | ids >> 16 << 16
        assert min(path.name for path in (home / "drm").iterdir()).startswith("card")


def test_bridges_are_root_upstream_and_downstream_ports(node_of: Node) -> None:
    node = node_of("dgx-h100")
    chain = components(node, node.profile.gpus[0].address)
    devices = node.root / "sys/bus/pci/devices"
    types = [(devices / bridge / "config").read_bytes()[0x42] >> 4 for bridge in chain[1:]]
    assert types == [4, 5, 6, 0], "root port, upstream port, downstream port, endpoint"
    assert {read(node, bridge, "class") for bridge in chain[1:-1]} == {"0x060400"}


def test_every_link_of_the_tree_leads_somewhere_inside_it(node_of: Node) -> None:
    node = node_of("dgx-h100")
    for folder, folders, files in os.walk(node.root):
        for name in folders + files:
            path = Path(folder, name)
            if path.is_symlink():
                assert path.resolve(strict=True).is_relative_to(node.root), path


@pytest.mark.bug("B22")
def test_changing_the_numa_node_of_one_device_changes_no_other(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "rtx-pro-6000")
    one, other = (gpu.address for gpu in node.profile.gpus)
    (node.root / "sys/bus/pci/devices" / one / "numa_node").write_text("-1\n")
    assert (read(node, one, "numa_node"), read(node, other, "numa_node")) == ("-1", "0")


def test_proc_says_what_the_driver_says(node_of: Node) -> None:
    node = node_of("dgx-h100")
    proc, gpu = node.root / "proc", node.profile.gpus[2]
    assert f"  {node.profile.driver_version}  " in (proc / "driver/nvidia/version").read_text()
    information = (proc / "driver/nvidia/gpus" / gpu.address / "information").read_text()
    assert f"GPU UUID: \t {gpu.uuid}".replace(" \t ", "        ") in information
    assert "Device Minor:    2\n" in information
    assert "195 nvidia\n" in (proc / "devices").read_text()
    assert (proc / "meminfo").read_text().startswith("MemTotal:       2113435648 kB\n")
    assert "DeviceFileMinor: 1\n" in (proc / "driver/nvidia/capabilities/mig/config").read_text()
    assert (proc / "driver/nvidia/capabilities/gpu2/mig").is_dir()
    assert len((proc / "sys/kernel/random/boot_id").read_text().strip()) == 36


def test_a_board_without_mig_has_no_capability_folder(node_of: Node) -> None:
    assert not (node_of("l40s").root / "proc/driver/nvidia/capabilities/gpu0").exists()


def test_device_nodes_carry_nvidias_numbers_where_they_can_be_made(node_of: Node) -> None:
    dev = node_of("dgx-h100").root / "dev"
    expected = {f"nvidia{minor}": (195, minor) for minor in range(8)} | {
        "nvidiactl": (195, 255),
        "nvidia-uvm": (510, 0),
    }
    for name, numbers in expected.items():
        facts = (dev / name).stat()
        if os.geteuid() == 0 and stat.S_ISCHR((dev / "nvidia0").stat().st_mode):
            assert (os.major(facts.st_rdev), os.minor(facts.st_rdev)) == numbers
        assert stat.S_IMODE(facts.st_mode) == 0o666


def test_a_device_node_is_a_plain_file_where_the_kernel_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mknod", refuse)
    make_node(tmp_path / "nvidia0", 195, 0)
    assert stat.S_ISREG((tmp_path / "nvidia0").stat().st_mode)


def test_the_driver_lies_where_a_driver_root_is_searched(node_of: Node) -> None:
    node = node_of("gb200")
    folder = node.root / "usr/lib/aarch64-linux-gnu"
    version = node.profile.driver_version
    assert (folder / "libcuda.so.1").resolve() == folder / f"libcuda.so.{version}"
    assert {path.name.removesuffix(f".so.{version}") for path in folder.glob(f"*.so.{version}")} == {
        *("libnvidia-ml", "libcuda", "libcudadebugger", "libnvidia-ptxjitcompiler"),
        *("libnvidia-nvvm", "libnvidia-opencl", "libnvidia-encode", "libnvcuvid"),
    }
    assert os.access(node.smi, os.X_OK)


def test_the_cdi_spec_carries_all_that_a_container_needs(node_of: Node) -> None:
    node = node_of("dgx-h100")
    spec = json.loads((node.root / "etc/cdi/nvidia.json").read_text())
    assert (spec["kind"], spec["cdiVersion"]) == ("nvidia.com/gpu", "0.5.0")
    assert [device["name"] for device in spec["devices"]] == [*map(str, range(8)), "all"]
    common = spec["containerEdits"]
    assert "GPUDRA_MOCK_NODE=/run/gpudra-mock/node" in common["env"]
    assert "GPUDRA_MOCK_DEV=/dev" in common["env"]
    mounts = {mount["containerPath"]: mount["hostPath"] for mount in common["mounts"]}
    assert {"/usr/bin/nvidia-smi", "/run/gpudra-mock/node"} <= mounts.keys()
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in mounts
    nodes = [entry for device in spec["devices"] for entry in device["containerEdits"]["deviceNodes"]]
    for host in [*mounts.values(), *(entry["hostPath"] for entry in nodes + common["deviceNodes"])]:
        assert Path(host).exists(), host
        assert Path(host).is_relative_to(node.root)


def test_a_node_is_opened_again_and_removed(own_node: MockNode) -> None:
    again = MockNode.open(own_node.root)
    assert again.profile == own_node.profile
    assert (again.library, again.environment) == (own_node.library, own_node.environment)
    own_node.remove()
    assert not own_node.root.exists()
    with pytest.raises(FileNotFoundError, match="holds no mock node"):
        MockNode.open(own_node.root)


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(FileExistsError, match="is not empty"):
        MockNode.create(tmp_path, "t4")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_wrong_profile_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    path.write_text("schema: gpudra.mock/v1\nname: [")
    with pytest.raises(ProfileError, match="is not YAML"):
        MockNode.create(tmp_path / "root", path)
    assert not (tmp_path / "root").exists()


def test_a_disk_that_is_full_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(nodefile, "encode", full)
    with pytest.raises(OSError, match="No space left"):
        MockNode.create(tmp_path / "root", "t4")
    assert not (tmp_path / "root").exists()


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_a_process_that_may_not_make_device_nodes_makes_and_uses_a_node(tmp_path: Path) -> None:
    program = """
import pathlib, subprocess, sys
from native.mock import MockNode
node = MockNode.create(pathlib.Path(sys.argv[1]), "t4")
print((node.root / "dev/nvidia0").is_file())
print(subprocess.run([node.smi, "-L"], env=node.environment, capture_output=True, text=True).stdout, end="")
"""
    command = ["setpriv", "--bounding-set=-mknod", sys.executable, "-c", program, str(tmp_path / "root")]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("True\nGPU 0: Tesla T4 (UUID: GPU-"), done.stderr


def test_activating_a_node_sets_the_environment_of_this_process(node_of: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node = node_of("t4")
    for name in node.environment:
        monkeypatch.setenv(name, "before")
    node.activate()
    assert {name: os.environ[name] for name in node.environment} == node.environment


def with_functions(count: object, tmp_path: Path) -> Path:
    """A T4 profile whose machine has a NIC with virtual functions."""
    document = yaml.safe_load(profiles.text("t4"))
    document["pcie"].append(
        {"root": "0000:70", "numa": 0, "tree": {"70:01.0": {"71:00.0": {"nic": "mlx5_0", "net": "eth1", "vfs": count}}}}
    )
    path = tmp_path / "profile.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_nic_has_virtual_functions_that_know_their_physical_one(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", with_functions(7, tmp_path))
    host = read_host(node.root / "sys", node.root / "proc")
    functions = {device.address: device for device in host.nics if device.address.startswith("0000:71")}
    assert list(functions) == ["0000:71:00.0", *(f"0000:71:00.{n}" for n in range(2, 8)), "0000:71:01.0"]
    assert {device.physfn for device in functions.values()} == {None, "0000:71:00.0"}
    assert functions["0000:71:00.0"].physfn is None
    assert len({device.bridges for device in functions.values()}) == 1
    physical = node.root / "sys/bus/pci/devices/0000:71:00.0"
    assert (physical / "sriov_numvfs").read_text() == "7\n"
    assert (physical / "virtfn6").resolve().name == "0000:71:01.0"
    assert host.problems == ()


@pytest.mark.parametrize(("count", "message"), [(-1, "vfs: -1"), (129, "vfs: 129"), ("many", "vfs: 'many'")])
def test_a_wrong_number_of_virtual_functions_is_refused(count: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=message):
        profiles.load(with_functions(count, tmp_path))


def test_a_gpu_has_virtual_functions_on_the_bus_that_nvml_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "vgpu.yaml"
    path.write_text(re.sub(r'("00:1e\.0"): gpu', r"\1: {gpu: {vfs: 3}}", profiles.text("t4")))
    node = MockNode.create(tmp_path / "root", path)
    (gpu,) = node.profile.gpus
    home = node.root.joinpath("sys/devices", *gpu.device.path)
    assert sorted(link.name for link in home.glob("virtfn*")) == ["virtfn0", "virtfn1", "virtfn2"]
    first = (home / "virtfn0").resolve()
    assert (first / "physfn").resolve() == home
    assert (first / "device").read_text() == (home / "device").read_text()
    assert (first / "class").read_text() == (home / "class").read_text()
    host = read_host(node.root / "sys", node.root / "proc")
    assert [device.address for device in host.gpus] == [gpu.address]
    assert [device.physfn for device in host.devices if device.vendor == 0x10DE] == [None] + [gpu.address] * 3
    assert node.nvidia_smi("-L").count("GPU ") == 1

    node.unplug(gpu.address)
    assert not any(device.vendor == 0x10DE for device in read_host(node.root / "sys", node.root / "proc").devices)
    node.plug(gpu.address)
    assert len([device for device in read_host(node.root / "sys", node.root / "proc").devices if device.physfn]) == 3


@pytest.mark.parametrize(
    "leaf", ["{gpu: 3}", "{gpu: {vfs: 2, name: x}}", "{gpu: {vfs: 129}}", "{gpu: {vfs: 1}, nic: x}"]
)
def test_a_gpu_leaf_that_is_wrong_is_refused(leaf: str) -> None:
    tree = [{"root": "0000:00", "tree": {"00:1e.0": yaml.safe_load(leaf)}}]
    with pytest.raises(ProfileError, match=r"^pcie\[0\]\.tree\[00:1e\.0\]"):
        pcie.read(tree)


@pytest.mark.bug("B11")
def test_who_watches_the_tree_hears_of_hot_plug(own_node: MockNode) -> None:
    called = threading.Semaphore(0)
    watcher = UeventWatcher(called.release, settle_seconds=0.01, sys_root=own_node.root / "sys")
    assert watcher.start()
    try:
        own_node.unplug(own_node.profile.gpus[0].address)
        assert called.acquire(timeout=20)
        own_node.plug(own_node.profile.gpus[0].address)
        assert called.acquire(timeout=20)
    finally:
        watcher.stop()
