"""Device nodes: a container gets those of its GPU, by path, and a missing one is an error that says what makes it."""

from __future__ import annotations

import pytest

from driver.prepare.cdi import CdiDeviceNode
from driver.prepare.devices import DeviceNodes
from driver.prepare.errors import ClaimError, Reason
from tests.unit.prepare.prepare_node import FakeDeviceNodes, FakeStatus, gpu


@pytest.fixture
def root() -> FakeDeviceNodes:
    return FakeDeviceNodes()


def test_a_gpu_has_its_own_node_and_the_drm_nodes_that_are_there(root: FakeDeviceNodes) -> None:
    nodes = DeviceNodes(root)
    assert nodes.of_gpu(gpu(2)) == (CdiDeviceNode("/dev/nvidia2"), CdiDeviceNode("/dev/dri/card2"))
    del root.nodes["/dev/dri/card2"]
    assert nodes.of_gpu(gpu(2)) == (CdiDeviceNode("/dev/nvidia2"),)


def test_control_nodes_are_common_and_optional_ones_may_be_missing(root: FakeDeviceNodes) -> None:
    nodes = DeviceNodes(root)
    assert [node.path for node in nodes.control()] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
        "/dev/nvidia-modeset",
    ]
    del root.nodes["/dev/nvidia-modeset"], root.nodes["/dev/nvidia-uvm-tools"]
    assert [node.path for node in nodes.control()] == ["/dev/nvidiactl", "/dev/nvidia-uvm"]


@pytest.mark.bug("B77")
@pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0"])
def test_a_missing_node_is_retryable_and_the_error_says_what_makes_it(root: FakeDeviceNodes, path: str) -> None:
    del root.nodes[path]
    nodes = DeviceNodes(root, "/run/nvidia/driver")
    with pytest.raises(ClaimError) as caught:
        nodes.of_gpu(gpu(0)), nodes.control()
    assert caught.value.reason is Reason.DEVICE_NOT_READY
    assert not caught.value.permanent
    assert f"/run/nvidia/driver{path} " in str(caught.value)
    assert "nvidia-modprobe" in str(caught.value)
    assert "nvidia-smi" in str(caught.value)


@pytest.mark.bug("B77")
def test_what_is_no_device_does_not_pass_for_one(root: FakeDeviceNodes) -> None:
    root.nodes["/dev/nvidia0"] = FakeStatus("folder")
    root.nodes["/dev/dri/card0"] = FakeStatus("regular file")
    with pytest.raises(ClaimError, match="is a folder, not a character device"):
        DeviceNodes(root).of_gpu(gpu(0))
    root.nodes["/dev/nvidia0"] = FakeStatus()
    assert [node.path for node in DeviceNodes(root).of_gpu(gpu(0))] == ["/dev/nvidia0"]


def test_a_mock_node_may_have_plain_files(root: FakeDeviceNodes) -> None:
    root.nodes = {path: FakeStatus("regular file") for path in root.nodes}
    nodes = DeviceNodes(root, require_devices=False)
    assert [node.path for node in nodes.of_gpu(gpu(0))] == ["/dev/nvidia0", "/dev/dri/card0"]
    assert len(nodes.control()) == 4


def test_a_device_root_elsewhere_shows_in_the_host_path(root: FakeDeviceNodes) -> None:
    (node, _) = DeviceNodes(root, "/run/nvidia/driver/").of_gpu(gpu(1))
    assert node == CdiDeviceNode("/dev/nvidia1", "/run/nvidia/driver/dev/nvidia1")


def test_a_gpu_without_a_minor_number_is_not_ready(root: FakeDeviceNodes) -> None:
    with pytest.raises(ClaimError, match="no minor number"):
        DeviceNodes(root).of_gpu(gpu(0, minor=None))


def test_a_node_that_cannot_be_looked_at_is_a_claim_error() -> None:
    def refuse(path: str, /) -> FakeStatus:
        raise PermissionError(13, "Permission denied", path)

    with pytest.raises(ClaimError, match="cannot look at device node /dev/nvidiactl: Permission denied"):
        DeviceNodes(refuse).control()


# partitions


def capabilities(gpu_minor: int, gpu_instance: int, compute_instance: int | None) -> int | None:
    """GPU instance 3 of the GPU with minor 1, and its first compute instance."""
    known = {(1, 3, None): 165, (1, 3, 0): 166}
    return known.get((gpu_minor, gpu_instance, compute_instance))


def partition_paths(nodes: DeviceNodes, graphics: bool = False) -> list[str]:
    return [node.path for node in nodes.of_partition(gpu(1), 3, 0, graphics=graphics)]


@pytest.mark.bug("B79")
@pytest.mark.bug("B114")
def test_a_partition_has_its_gpus_node_and_those_of_both_its_instances() -> None:
    root = FakeDeviceNodes()
    root.nodes.update({f"/dev/nvidia-caps/nvidia-cap{number}": FakeStatus() for number in (165, 166, 175)})
    nodes = DeviceNodes(root, capabilities=capabilities)
    assert partition_paths(nodes) == [
        "/dev/nvidia1",
        "/dev/nvidia-caps/nvidia-cap165",
        "/dev/nvidia-caps/nvidia-cap166",
    ]
    assert "/dev/dri/card1" in partition_paths(nodes, graphics=True)
    assert nodes.has_instance(gpu(1), 3, 0)
    assert not nodes.has_instance(gpu(1), 3, 1)
    assert not nodes.has_instance(gpu(1, minor=None), 3, 0)


@pytest.mark.bug("B79")
def test_a_capability_node_that_nobody_made_is_made() -> None:
    root = FakeDeviceNodes()
    root.nodes["/dev/nvidia-caps/nvidia-cap166"] = FakeStatus()
    asked: list[int] = []

    def make(number: int) -> None:
        asked.append(number)
        root.nodes[f"/dev/nvidia-caps/nvidia-cap{number}"] = FakeStatus()

    nodes = DeviceNodes(root, capabilities=capabilities, make_capability=make)
    assert len(partition_paths(nodes)) == 3
    assert asked == [165]


def test_where_it_cannot_be_made_the_program_that_could_is_named() -> None:
    def make(number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    nodes = DeviceNodes(FakeDeviceNodes(), capabilities=capabilities, make_capability=make)
    with pytest.raises(ClaimError, match=r"nvidia-cap165 does not exist and cannot be made.*nvidia-modprobe -f /proc"):
        partition_paths(nodes)
    with pytest.raises(ClaimError, match=r"nvidia-cap165 does not exist; run `nvidia-modprobe -f /proc"):
        partition_paths(DeviceNodes(FakeDeviceNodes(), capabilities=capabilities))


def test_what_the_kernel_says_and_cannot_be_read_is_told() -> None:
    def unreadable(gpu_minor: int, gpu_instance: int, compute_instance: int | None) -> int | None:
        raise ValueError("access names no DeviceFileMinor")

    nodes = DeviceNodes(FakeDeviceNodes(), capabilities=unreadable)
    with pytest.raises(ClaimError, match="names no DeviceFileMinor"):
        partition_paths(nodes)
    assert not nodes.has_instance(gpu(1), 3, 0)
