"""Functions are bound to vfio-pci and given back; what is in the way is told, and nothing waits past its deadline."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from native.commands import Deadline
from native.vfio import Nodes, VfioBus, VfioError
from tests.unit.native_vfio.fake_kernel import AUDIO, BRIDGE, GPU, NIC, Kernel, machine


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return machine(tmp_path)


@pytest.fixture
def bus(kernel: Kernel) -> VfioBus:
    return VfioBus(kernel.sys, kernel.dev, kernel.write)


def test_a_function_goes_to_vfio_and_back(kernel: Kernel, bus: VfioBus) -> None:
    bus.bind(GPU, Deadline(10))
    assert bus.driver(GPU) == "vfio-pci"
    assert [path.rpartition("/")[2] for path, _ in kernel.writes] == ["driver_override", "unbind", "drivers_probe"]
    bus.restore(GPU, "nvidia", Deadline(10))
    assert bus.driver(GPU) == "nvidia"
    assert (kernel.devices / GPU / "driver_override").read_text() == "(null)"


def test_what_is_done_is_not_done_again(kernel: Kernel, bus: VfioBus) -> None:
    bus.bind(GPU, Deadline(10))
    kernel.writes.clear()
    bus.bind(GPU, Deadline(10))
    assert kernel.writes == []
    bus.restore(GPU, "nvidia", Deadline(10))
    bus.restore(GPU, "nvidia", Deadline(10))
    assert bus.driver(GPU) == "nvidia"


def test_a_function_without_a_driver_gets_none_back(kernel: Kernel, bus: VfioBus) -> None:
    bus.bind(GPU, Deadline(10))
    bus.restore(GPU, None, Deadline(10))
    assert bus.driver(GPU) is None
    bus.bind(GPU, Deadline(10))
    assert bus.driver(GPU) == "vfio-pci"


def test_a_function_that_was_unplugged_needs_nothing(bus: VfioBus) -> None:
    bus.restore("0000:99:00.0", "nvidia", Deadline(10))


def test_its_group_and_its_board_are_known(bus: VfioBus) -> None:
    assert bus.group(GPU) == 7
    assert [function.address for function in bus.functions(GPU)] == [BRIDGE, GPU, AUDIO]
    assert [function.address for function in bus.board(GPU)] == [GPU, AUDIO]
    assert [function.address for function in bus.board(AUDIO)] == [AUDIO, GPU]


def test_a_group_of_its_own_board_is_viable(bus: VfioBus) -> None:
    assert bus.obstacle(GPU) is None


@pytest.mark.parametrize(("driver", "viable"), [("mlx5_core", False), ("vfio-pci", True), (None, True)])
def test_a_stranger_in_the_group_must_be_free(kernel: Kernel, bus: VfioBus, driver: str | None, viable: bool) -> None:
    kernel.add("0000:3e:00.0", driver, 7, "0x020000")
    reason = bus.obstacle(GPU)
    if viable:
        assert reason is None
    else:
        assert reason is not None
        assert "0000:3e:00.0 in its IOMMU group 7 is bound to mlx5_core" in reason


@pytest.mark.bug("B19")
def test_what_the_machine_lacks_is_told_without_an_exception(kernel: Kernel, bus: VfioBus, tmp_path: Path) -> None:
    kernel.add("0000:70:00.0", "nvidia", None)
    assert "no IOMMU group: turn the IOMMU on" in str(bus.obstacle("0000:70:00.0"))
    assert "no PCI function" in str(bus.obstacle("0000:71:00.0"))
    (kernel.devices / GPU / "sriov_numvfs").write_text("4\n")
    assert "4 SR-IOV virtual functions" in str(bus.obstacle(GPU))
    (kernel.devices / GPU / "sriov_numvfs").write_text("0\n")
    assert bus.obstacle(GPU) is None
    (kernel.pci / "drivers/vfio-pci").rename(tmp_path / "gone")
    assert "modprobe vfio-pci" in str(bus.obstacle(GPU))
    assert "no PCI function" in str(VfioBus(tmp_path / "none", tmp_path / "none").obstacle(GPU))


def test_a_kernel_that_refuses_is_told_by_file(kernel: Kernel, bus: VfioBus) -> None:
    kernel.refused["driver_override"] = errno.EROFS
    with pytest.raises(VfioError, match=r"driver_override cannot be written: refused; is sysfs mounted writable"):
        bus.bind(GPU, Deadline(10))
    assert bus.driver(GPU) == "nvidia"


def test_a_kernel_that_does_not_come_back_holds_nobody(kernel: Kernel, bus: VfioBus) -> None:
    kernel.held.clear()
    try:
        with pytest.raises(VfioError, match=r"has not taken 'vfio-pci' for .* in time"):
            bus.bind(GPU, Deadline(0.1))
    finally:
        kernel.held.set()


def test_what_the_kernel_still_holds_is_settled_before_the_function_is_given_back(kernel: Kernel, bus: VfioBus) -> None:
    """It happens later, when nobody looks: a GPU that was given back before would be without a driver afterwards."""
    kernel.held.clear()
    try:
        with pytest.raises(VfioError, match="in time"):
            bus.bind(GPU, Deadline(0.05))
        with pytest.raises(VfioError, match="still holds an earlier change of the driver"):
            bus.restore(GPU, "nvidia", Deadline(0.05))
        with pytest.raises(VfioError, match="still holds an earlier change of the driver"):
            bus.bind(GPU, Deadline(0.05))
    finally:
        kernel.held.set()
    bus.restore(GPU, "nvidia", Deadline(10))
    assert bus.driver(GPU) == "nvidia"


def test_a_driver_that_does_not_take_it_is_told(kernel: Kernel, bus: VfioBus) -> None:
    (kernel.pci / "drivers/vfio-pci").rmdir()
    with pytest.raises(VfioError, match="is bound to no driver"):
        bus.bind(GPU, Deadline(10))
    kernel.natural[GPU] = "gone"
    with pytest.raises(VfioError, match=r"was to go back to nvidia .* is the module loaded"):
        bus.restore(GPU, "nvidia", Deadline(10))


def test_the_nodes_are_those_of_the_group_or_of_iommufd(kernel: Kernel, bus: VfioBus) -> None:
    bus.bind(GPU, Deadline(10))
    group = Nodes("/dev/vfio/7", "/dev/vfio/vfio")
    assert bus.nodes(GPU, iommufd=False) == group
    assert (bus.nodes(GPU, iommufd=True), bus.has_iommufd) == (group, False)
    (kernel.dev / "iommu").touch()
    assert bus.nodes(GPU, iommufd=True) == Nodes("/dev/vfio/devices/vfio3", "/dev/iommu")
    assert bus.nodes(GPU, iommufd=False) == group
    assert bus.nodes(NIC, iommufd=True) == Nodes("/dev/vfio/8", "/dev/vfio/vfio")
    kernel.add("0000:70:00.0", None, None)
    with pytest.raises(VfioError, match="no IOMMU group"):
        bus.nodes("0000:70:00.0", iommufd=False)


def test_a_real_file_is_written_in_one_piece_and_never_made(tmp_path: Path) -> None:
    from native.vfio import write_file

    file = tmp_path / "driver_override"
    with pytest.raises(FileNotFoundError):
        write_file(file, "vfio-pci")
    file.touch()
    write_file(file, "vfio-pci")
    assert file.read_text() == "vfio-pci"
