"""What is read of a machine, and that nothing missing or broken there takes anything else with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from native.sysfs import HostTopology, read_host
from tests.support.hosttree import BOOT_ID, HostTree

SWITCH = ["pci0000:66", "0000:66:00.0", "0000:67:00.0"]
GPU = [*SWITCH, "0000:68:04.0", "0000:75:00.0"]
NIC = [*SWITCH, "0000:68:03.0", "0000:73:00.0"]


def read(host: HostTree) -> HostTopology:
    return read_host(host.sys, host.proc)


def test_a_gpu_is_read_with_all_that_the_kernel_knows_of_it(host: HostTree) -> None:
    folder = host.add(
        GPU,
        device="0x2901",
        numa_node="1",
        files={
            "local_cpulist": "0-55,112-167",
            "max_link_speed": "64.0 GT/s PCIe",
            "max_link_width": "16",
            "drm/card5/uevent": "",
            "drm/renderD132/uevent": "",
            "drm/version": "",
        },
    )
    group = host.sys / "kernel/iommu_groups/42"
    group.mkdir(parents=True)
    (folder / "iommu_group").symlink_to(group)

    gpu = read(host).gpus[0]

    assert gpu.address == "0000:75:00.0"
    assert (gpu.vendor, gpu.device, gpu.class_code) == (0x10DE, 0x2901, 0x030200)
    assert (gpu.subsystem_vendor, gpu.subsystem_device) == (0x10DE, 0x16C1)
    assert gpu.pcie_root == "pci0000:66"
    assert gpu.bridges == ("0000:66:00.0", "0000:67:00.0", "0000:68:04.0")
    assert gpu.numa_node == 1
    assert gpu.local_cpulist == "0-55,112-167"
    assert gpu.iommu_group == 42
    assert gpu.driver == "nvidia"
    assert gpu.drm_nodes == ("card5", "renderD132")
    assert (gpu.link_generation, gpu.link_width) == (6, 16)
    assert gpu.physfn is None


def test_a_network_device_is_read_with_its_interfaces_and_its_physical_function(host: HostTree) -> None:
    host.add(NIC, vendor="0x15b3", class_code="0x020700", driver="mlx5_core", files={"infiniband/mlx5_0/node_guid": ""})
    virtual = host.add(
        [*NIC[:-1], "0000:73:00.1"], vendor="0x15b3", class_code="0x020000", files={"net/eth0/address": ""}
    )
    (virtual / "physfn").symlink_to("../0000:73:00.0")

    physical, function = read(host).nics

    assert (physical.rdma_devices, physical.net_interfaces, physical.physfn) == (("mlx5_0",), (), None)
    assert (function.net_interfaces, function.physfn) == (("eth0",), "0000:73:00.0")


def test_classes_tell_gpus_switches_and_nics_apart_and_the_rest_is_left_out(host: HostTree) -> None:
    host.add([*SWITCH, "0000:68:00.0", "0000:70:00.0"], class_code="0x030000")
    host.add([*SWITCH, "0000:68:01.0", "0000:71:00.0"], class_code="0x068000")
    host.add([*SWITCH, "0000:68:00.0", "0000:70:00.1"], class_code="0x040300")  # the audio function of a board
    host.add([*SWITCH, "0000:68:02.0", "0000:72:00.0"], vendor="0x1a03")  # the server's own graphics
    host.add([*SWITCH, "0000:68:03.0", "0000:73:00.0"], vendor="0x144d", class_code="0x010802")

    topology = read(host)

    assert [device.address for device in topology.gpus] == ["0000:70:00.0"]
    assert [device.address for device in topology.nvswitches] == ["0000:71:00.0"]
    assert len(topology.devices) == 2


def test_a_virtual_function_of_a_gpu_is_not_a_gpu(host: HostTree) -> None:
    host.add(GPU)
    virtual = host.add([*GPU[:-1], "0000:75:00.4"])
    (virtual / "physfn").symlink_to("../0000:75:00.0")

    assert [gpu.address for gpu in read(host).gpus] == ["0000:75:00.0"]


def test_devices_come_in_the_order_of_their_numbers_and_not_of_their_text(host: HostTree) -> None:
    for root, address in (
        ("pci10000:00", "10000:01:00.0"),
        ("pci000f:00", "000f:01:00.0"),
        ("pci0000:e0", "0000:e1:00.0"),
    ):
        host.add([root, address])

    assert [gpu.address for gpu in read(host).gpus] == ["0000:e1:00.0", "000f:01:00.0", "10000:01:00.0"]


@pytest.mark.bug("B20")
@pytest.mark.parametrize(
    ("path", "root", "bridges"),
    [
        (["pci000f:00", "000f:00:00.0", "000f:01:00.0"], "pci000f:00", ("000f:00:00.0",)),
        (
            ["pci0000:64", "0000:64:00.5", "pci10000:00", "10000:00:02.0", "10000:01:00.0"],
            "pci0000:64",
            ("0000:64:00.5", "10000:00:02.0"),
        ),
        (["LNXSYSTM:00", "LNXSYBUS:00", "ACPI0004:00", "VMBUS:01", "pci0001:00", "0001:00:00.0"], "pci0001:00", ()),
        (
            ["platform", "bus@0", "14160000.pcie", "pci0004:00", "0004:00:00.0", "0004:01:00.0"],
            "pci0004:00",
            ("0004:00:00.0",),
        ),
        (["pci3f8cfdd:00", "3f8cfdd:00:00.0"], "pci3f8cfdd:00", ()),
    ],
    ids=["arm", "vmd", "hyper-v", "device-tree", "wide-domain"],
)
def test_the_root_complex_is_found_wherever_the_kernel_hangs_it(
    host: HostTree, path: list[str], root: str, bridges: tuple[str, ...]
) -> None:
    host.add(path)

    gpu = read(host).gpus[0]

    assert gpu.address == path[-1]
    assert (gpu.pcie_root, gpu.bridges) == (root, bridges)


@pytest.mark.bug("B22")
@pytest.mark.parametrize(("content", "expected"), [("-1", None), (None, None), ("", None), ("3", 3), ("garbage", None)])
def test_an_unknown_numa_node_is_none_and_never_minus_one(
    host: HostTree, content: str | None, expected: int | None
) -> None:
    host.add(GPU, numa_node=content)

    assert read(host).gpus[0].numa_node == expected


@pytest.mark.bug("B19")
@pytest.mark.parametrize(
    "name", ["device", "subsystem_vendor", "subsystem_device", "numa_node", "local_cpulist", "max_link_speed", "driver"]
)
def test_a_missing_file_costs_its_own_value_only(host: HostTree, name: str) -> None:
    folder = host.add(GPU, files={"local_cpulist": "0-7", "max_link_speed": "32.0 GT/s PCIe"})
    (folder / name).unlink()

    topology = read(host)

    assert topology.gpus[0].pcie_root == "pci0000:66"
    assert topology.problems == ()
    value = {"max_link_speed": "link_generation"}.get(name, name)
    assert getattr(topology.gpus[0], value) is None


@pytest.mark.bug("B19")
@pytest.mark.parametrize("name", ["device", "numa_node", "max_link_width", "local_cpulist", "subsystem_device"])
def test_a_directory_in_place_of_a_file_is_reported_and_harms_nothing_else(host: HostTree, name: str) -> None:
    folder = host.add(GPU)
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()

    topology = read(host)

    assert len(topology.gpus) == 1
    assert [problem.subject for problem in topology.problems] == ["0000:75:00.0"]
    assert name in topology.problems[0].message


def test_rubbish_in_a_number_is_reported_with_the_file_and_its_content(host: HostTree) -> None:
    host.add(GPU, device="zzz")

    topology = read(host)

    assert topology.gpus[0].device is None
    assert "device holds 'zzz' where a number is expected" in topology.problems[0].message


def test_bytes_that_are_no_text_do_not_break_the_reading(host: HostTree) -> None:
    (host.add(GPU) / "local_cpulist").write_bytes(b"\xff\xfe0-7")

    assert read(host).gpus[0].local_cpulist == "\ufffd\ufffd0-7"


@pytest.mark.parametrize("name", ["vendor", "class"])
def test_a_function_without_vendor_or_class_is_skipped_and_the_others_stay(host: HostTree, name: str) -> None:
    host.add(GPU)
    (host.add([*SWITCH, "0000:68:00.0", "0000:70:00.0"]) / name).unlink()

    assert [gpu.address for gpu in read(host).gpus] == ["0000:75:00.0"]


@pytest.mark.parametrize("name", ["vendor", "class"])
def test_a_function_that_does_not_say_what_it_is_may_be_a_gpu_and_one_that_left_meanwhile_is_none(
    host: HostTree, name: str
) -> None:
    host.add(GPU)
    folder = host.add([*SWITCH, "0000:68:00.0", "0000:70:00.0"])
    (folder / name).unlink()
    assert read(host).complete
    (folder / name).mkdir()  # reading it fails
    assert not read(host).complete


def test_a_bus_that_cannot_be_listed_may_have_more_than_is_seen_and_one_that_is_not_there_has_not(
    tmp_path: Path, host: HostTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_host(tmp_path / "nothing", host.proc).complete
    host.add(GPU)

    def refuse(_path: object) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("native.sysfs.os.listdir", refuse)
    assert not read(host).complete


def test_an_entry_that_is_no_address_is_reported_and_skipped(host: HostTree) -> None:
    host.add(GPU)
    (host.sys / "bus/pci/devices/not-a-device").mkdir()

    topology = read(host)

    assert len(topology.gpus) == 1
    assert topology.problems[0].subject == "not-a-device"


def test_a_device_that_is_no_link_keeps_its_values_but_has_no_place(host: HostTree) -> None:
    folder = host.sys / "bus/pci/devices/0000:75:00.0"
    for name, text in {"vendor": "0x10de", "class": "0x030200", "numa_node": "1"}.items():
        host.write(folder / name, text)

    topology = read(host)

    gpu = topology.gpus[0]
    assert (gpu.pcie_root, gpu.bridges, gpu.numa_node) == (None, (), 1)
    assert "its PCIe position is unknown" in topology.problems[0].message


def test_the_link_is_as_good_as_its_weaker_end(host: HostTree) -> None:
    folder = host.add(GPU, files={"max_link_speed": "64.0 GT/s PCIe", "max_link_width": "16"})
    host.write(folder.parent / "max_link_speed", "16.0 GT/s PCIe")
    host.write(folder.parent / "max_link_width", "8")

    gpu = read(host).gpus[0]

    assert (gpu.link_generation, gpu.link_width) == (4, 8)


@pytest.mark.parametrize(("speed", "width"), [("Unknown", "255"), ("", "0"), ("7.5 GT/s", "")])
def test_a_link_that_says_nothing_useful_is_unknown(host: HostTree, speed: str, width: str) -> None:
    host.add(GPU, files={"max_link_speed": speed, "max_link_width": width})

    gpu = read(host).gpus[0]

    assert (gpu.link_generation, gpu.link_width) == (None, None)


def test_numa_nodes_have_cpus_memory_and_distances_and_may_be_of_memory_only(host: HostTree) -> None:
    host.numa_node(10, "", 100, "80 20 10")
    host.numa_node(0, "0-71", 2048, "10 40 80")
    host.numa_node(2, "72-143", 1024, "40 10 20")
    host.write(host.sys / "devices/system/node/possible", "0-33")

    first, second, third = read(host).numa_nodes

    assert (first.index, first.cpulist, first.memory_bytes, first.distances) == (0, "0-71", 2048 * 1024, (10, 40, 80))
    assert (second.index, third.index) == (2, 10)
    assert third.cpulist == ""


def test_broken_distances_are_unknown_and_reported(host: HostTree) -> None:
    host.add(GPU)
    host.numa_node(0, "0-3", 0, "10 x")

    topology = read(host)

    assert topology.numa_nodes[0].distances == ()
    assert topology.numa_nodes[0].memory_bytes is None
    assert topology.problems[0].subject == "NUMA node0"


def test_the_host_tells_boot_id_memory_and_kernel_driver(host: HostTree) -> None:
    host.write(
        host.proc / "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 12.3.0",
    )

    topology = read(host)

    assert topology.boot_id == BOOT_ID
    assert topology.memory_bytes == 131072000 * 1024
    assert topology.kernel_driver_version == "580.105.08"


def test_a_machine_of_which_nothing_is_visible_is_read_as_nothing_with_a_hint(tmp_path: Path) -> None:
    topology = read_host(tmp_path / "sys", tmp_path / "proc")

    assert (topology.devices, topology.numa_nodes, topology.boot_id, topology.memory_bytes) == ((), (), None, None)
    assert "is the host's /sys mounted" in topology.problems[0].message


def test_this_machine_is_readable() -> None:
    topology = read_host(Path("/sys"), Path("/proc"))

    assert topology.boot_id
    assert topology.memory_bytes
    assert topology.memory_bytes > 2**20
