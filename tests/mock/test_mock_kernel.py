"""GPUs that go to vfio-pci and come back: what the bus, the device nodes, NVML and nvidia-smi say meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from native.commands import Deadline
from native.mock import MockNode, Process
from native.sysfs import read_host
from native.vfio import Nodes, VfioBus, VfioError
from tests.support.nvmlcalls import Nvml


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> MockNode:
    """A DGX H100; every test gives its GPU back."""
    return MockNode.create(tmp_path_factory.mktemp("kernel") / "root", "dgx-h100")


@pytest.fixture
def bus(node: MockNode) -> VfioBus:
    return VfioBus(node.root / "sys", node.root / "dev", node.kernel.write)


def address(node: MockNode, index: int = 3) -> str:
    return node.profile.gpus[index].address


def soon() -> Deadline:
    return Deadline(20)


def test_a_gpu_goes_to_vfio_and_comes_back(node: MockNode, bus: VfioBus) -> None:
    gpu = address(node)
    minor = node.root / "dev" / f"nvidia{node.profile.gpu(gpu).numbers['minor']}"
    assert bus.obstacle(gpu) is None
    bus.bind(gpu, soon())
    assert (bus.driver(gpu), node.kernel.driver(gpu)) == ("vfio-pci", "vfio-pci")
    group = bus.group(gpu)
    assert bus.nodes(gpu, iommufd=True) == Nodes(f"/dev/vfio/{group}", "/dev/vfio/vfio")
    assert (node.root / "dev/vfio" / str(group)).exists()
    assert (node.root / "dev/vfio/vfio").exists()
    assert not minor.exists()
    assert not (node.root / "proc/driver/nvidia/gpus" / gpu).exists()
    assert node.nvidia_smi("-L").count("GPU ") == 7
    by_address = {device.address: device.driver for device in read_host(node.root / "sys", node.root / "proc").gpus}
    assert by_address.pop(gpu) == "vfio-pci"
    assert set(by_address.values()) == {"nvidia"}

    bus.restore(gpu, "nvidia", soon())
    assert bus.driver(gpu) == "nvidia"
    assert minor.exists()
    assert not (node.root / "dev/vfio" / str(group)).exists()
    assert not (node.root / "sys/bus/pci/devices" / gpu / "vfio-dev").exists()
    assert node.nvidia_smi("-L").count("GPU ") == 8


def test_with_iommufd_a_function_has_a_node_of_its_own(node: MockNode, bus: VfioBus) -> None:
    gpu = address(node, 4)
    iommu = node.root / "dev/iommu"
    iommu.touch()
    try:
        bus.bind(gpu, soon())
        nodes = bus.nodes(gpu, iommufd=True)
        assert nodes.api == "/dev/iommu"
        assert (node.root / nodes.device.lstrip("/")).exists()
        bus.restore(gpu, "nvidia", soon())
        assert not (node.root / nodes.device.lstrip("/")).exists()
    finally:
        iommu.unlink()


def test_handles_from_before_are_of_a_gpu_that_is_gone(node: MockNode, bus: VfioBus) -> None:
    gpu = address(node, 5)
    nvml = Nvml(node)
    before = nvml.gpu(5)
    bus.bind(gpu, soon())
    assert nvml.number("nvmlDeviceGetMinorNumber", before) == -15
    bus.restore(gpu, "nvidia", soon())
    assert nvml.number("nvmlDeviceGetMinorNumber", before) == -15
    assert nvml.close() == 0
    again = Nvml(node)
    assert again.number("nvmlDeviceGetMinorNumber", again.gpu(5)) == node.profile.gpus[5].numbers["minor"]
    assert again.close() == 0


def test_unbinding_waits_for_who_uses_the_gpu(node: MockNode, bus: VfioBus) -> None:
    gpu = address(node, 6)
    node.set_processes(gpu, [Process(4711)])
    with pytest.raises(VfioError, match="has not taken"):
        bus.bind(gpu, Deadline(0.2))
    node.set_processes(gpu, [])
    free = threading.Event()
    while bus.driver(gpu) is not None:  # the write that was left to the kernel comes through
        free.wait(0.01)
    bus.restore(gpu, "nvidia", soon())
    assert bus.driver(gpu) == "nvidia"


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("drivers/nvidia/unbind", "0000:ff:00.0", errno.ENODEV),
        ("drivers/vfio-pci/unbind", None, errno.ENODEV),
        ("drivers/vfio-pci/bind", None, errno.EBUSY),
        ("drivers/nouveau/bind", None, errno.ENOENT),
        ("devices", None, errno.EINVAL),
    ],
)
def test_the_kernel_refuses_what_cannot_be(name: str, text: str | None, code: int, node: MockNode) -> None:
    with pytest.raises(OSError, match=os.strerror(code)) as caught:
        node.kernel.write(node.root / "sys/bus/pci" / name, text or address(node, 0))
    assert caught.value.errno == code
    assert node.kernel.driver(address(node, 0)) == "nvidia"


def test_a_driver_takes_only_what_it_knows_or_is_told_of(node: MockNode) -> None:
    kernel, gpu, pci = node.kernel, address(node, 7), node.root / "sys/bus/pci"
    kernel.write(pci / "drivers/nvidia/unbind", gpu)
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        kernel.write(pci / "drivers/vfio-pci/bind", gpu)
    kernel.write(pci / "devices" / gpu / "driver_override", "vfio-pci")
    kernel.write(pci / "drivers/vfio-pci/bind", gpu)
    assert kernel.driver(gpu) == "vfio-pci"
    kernel.write(pci / "devices" / gpu / "driver_override", "\n")
    kernel.write(pci / "drivers/vfio-pci/unbind", gpu)
    kernel.write(pci / "drivers_probe", gpu)
    assert kernel.driver(gpu) == "nvidia"


def test_a_gpu_that_vfio_holds_can_be_unplugged_and_comes_back_to_nobody(tmp_path: Path) -> None:
    node = MockNode.create(tmp_path / "root", "t4")
    gpu = address(node, 0)
    VfioBus(node.root / "sys", node.root / "dev", node.kernel.write).bind(gpu, soon())
    node.hide(gpu)
    assert read_host(node.root / "sys", node.root / "proc").gpus == ()
    node.show(gpu)
    assert [device.driver for device in read_host(node.root / "sys", node.root / "proc").gpus] == ["vfio-pci"]
