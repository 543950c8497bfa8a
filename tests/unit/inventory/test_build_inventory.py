"""NVML's reading and the bus's are joined by PCI address; one GPU's fault never touches another."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.inventory import build_inventory
from driver.inventory.states import CALLS
from driver.model import EccMode, Gpu, GpuState, MemoryKind, MigMode, NodeInventory, PciAddress
from native.nvml.errors import NvmlReturn
from native.nvml.types import GpuSnapshot, NvmlSnapshot
from native.sysfs import HostProblem, HostTopology
from tests.support.nodes import BOOT_ID, H100_BYTES, address, host, nvml, nvml_gpu, pci_gpu

A, B, C = address(0), address(1), address(2)


def build(snapshot: NvmlSnapshot | None, topology: HostTopology) -> NodeInventory:
    return build_inventory(snapshot, topology, mock=False)


def single(snapshot: NvmlSnapshot | None, topology: HostTopology) -> Gpu:
    (gpu,) = build(snapshot, topology).gpus
    return gpu


def test_a_healthy_gpu_has_what_both_readings_know() -> None:
    gpu = single(nvml(nvml_gpu(A)), host(pci_gpu(A)))

    assert gpu.state is GpuState.READY
    assert gpu.reason is None
    assert gpu.name == "gpu-0000-10-00-0"
    assert gpu.uuid == "GPU-00000000-0000-0000-0000-000000010000"
    assert (gpu.product_name, gpu.brand, gpu.architecture) == ("NVIDIA H100 80GB HBM3", "Nvidia", "Hopper")
    assert gpu.cuda_compute_capability == (9, 0)
    assert (gpu.memory_bytes, gpu.memory_kind) == (H100_BYTES, MemoryKind.DEDICATED)
    assert (gpu.ecc, gpu.mig) == (EccMode(True, True), MigMode(False, False))
    assert (gpu.addressing_mode, gpu.compute_mode, gpu.virtualization_mode) == ("HMM", "Default", "None")
    assert gpu.pcie_root == "pci0000:10"
    assert [str(bridge) for bridge in gpu.switch_path] == ["0000:10:1c.0", "0000:10:1d.0", "0000:10:1e.0"]
    assert (gpu.numa_node, gpu.local_cpulist, gpu.iommu_group, gpu.driver) == (0, "0-55", 7, "nvidia")
    assert gpu.drm_nodes == ("card1", "renderD129")
    assert (gpu.pci_device_id, gpu.pci_subsystem_id) == (0x233010DE, 0x16C110DE)


def test_the_node_has_versions_numa_nodes_and_boot_id() -> None:
    node = build_inventory(nvml(nvml_gpu(A)), host(pci_gpu(A)), mock=True)

    assert (node.driver_version, node.cuda_driver_version, node.nvml_version) == (
        "580.105.08",
        (13, 0),
        "13.580.105.08",
    )
    assert [(numa.index, numa.cpulist, numa.distances) for numa in node.numa_nodes] == [
        (0, "0-55", (10, 21)),
        (1, "56-111", (21, 10)),
    ]
    assert (node.boot_id, node.mock) == (BOOT_ID, True)
    assert node.problems == ()


@pytest.mark.bug("B20")
@pytest.mark.parametrize("canonical", ["0000:3b:00.0", "000f:01:00.0", "10000:01:00.0", "3f8cfdd:00:00.0"])
def test_the_readings_meet_at_any_width_of_domain(canonical: str) -> None:
    gpu = single(nvml(nvml_gpu(canonical)), host(pci_gpu(canonical, numa_node=1)))

    assert gpu.address == PciAddress.parse(canonical)
    assert (gpu.state, gpu.numa_node) == (GpuState.READY, 1)


def test_gpus_come_in_the_order_of_their_addresses_whatever_order_nvml_has() -> None:
    node = build(nvml(nvml_gpu(C), nvml_gpu(A), nvml_gpu(B)), host(pci_gpu(B), pci_gpu(C), pci_gpu(A)))

    assert [str(gpu.address) for gpu in node.gpus] == [A, B, C]


@pytest.mark.bug("B09")
def test_names_stay_when_a_sibling_goes_and_indices_and_minors_shift() -> None:
    before = build(
        nvml(nvml_gpu(A, index=0, minor_number=0), nvml_gpu(B, index=1, minor_number=1)), host(pci_gpu(A), pci_gpu(B))
    )
    after = build(nvml(nvml_gpu(B, index=0, minor_number=0)), host(pci_gpu(B)))

    assert after.gpus[0].name == before.gpus[1].name
    assert after.gpus[0].uuid == before.gpus[1].uuid


@pytest.mark.bug("B13")
def test_a_lost_gpu_is_lost_with_call_code_and_remedy_and_the_others_stay() -> None:
    gone = nvml_gpu(B, codes={"handle": NvmlReturn.GPU_IS_LOST})
    node = build(nvml(nvml_gpu(A), gone, nvml_gpu(C)), host(pci_gpu(A), pci_gpu(B), pci_gpu(C)))

    first, lost, third = node.gpus
    assert (first.state, third.state) == (GpuState.READY, GpuState.READY)
    assert lost.state is GpuState.LOST
    assert lost.reason == (
        "nvmlDeviceGetHandleByPciBusId_v2 for GPU 0000:20:00.0: GPU_IS_LOST (15); "
        "look for XID 79 in the kernel log, then reset the GPU or reboot the node"
    )
    assert lost.pcie_root == "pci0000:20"
    assert lost.uuid is None


@pytest.mark.bug("B13")
def test_a_gpu_that_dies_in_the_middle_of_a_reading_is_lost() -> None:
    dying = nvml_gpu(A, codes={"memory_total": NvmlReturn.GPU_IS_LOST, "ecc_mode": NvmlReturn.UNKNOWN})

    gpu = single(nvml(dying), host(pci_gpu(A)))

    assert gpu.state is GpuState.LOST
    assert gpu.reason is not None
    assert gpu.reason.startswith("nvmlDeviceGetMemoryInfo for GPU")


def test_a_call_that_does_not_come_back_makes_its_gpu_wedged() -> None:
    gpu = single(nvml(nvml_gpu(A, codes={"handle": NvmlReturn.TIMEOUT})), host(pci_gpu(A)))

    assert gpu.state is GpuState.WEDGED
    assert gpu.reason is not None
    assert "TIMEOUT (10)" in gpu.reason


@pytest.mark.bug("B24")
@pytest.mark.parametrize(
    ("driver", "part"),
    [("vfio-pci", "is bound to vfio-pci, not to NVIDIA's driver"), (None, "no kernel driver is bound")],
)
def test_a_gpu_without_nvidias_driver_is_unbound(driver: str | None, part: str) -> None:
    refused = nvml_gpu(A, codes={"handle": NvmlReturn.NOT_FOUND})
    for snapshot in (nvml(refused), nvml(), None):
        gpu = single(snapshot, host(pci_gpu(A, driver=driver)))
        assert gpu.state is GpuState.UNBOUND
        assert gpu.reason is not None
        assert part in gpu.reason


@pytest.mark.bug("B19")
def test_a_missing_driver_link_is_outweighed_by_an_answer_of_nvml() -> None:
    assert single(nvml(nvml_gpu(A)), host(pci_gpu(A, driver=None))).state is GpuState.READY


def test_a_gpu_that_was_just_bound_elsewhere_is_not_ready_though_nvml_answered() -> None:
    assert single(nvml(nvml_gpu(A)), host(pci_gpu(A, driver="vfio-pci"))).state is GpuState.UNBOUND


def test_a_bound_gpu_that_nvml_does_not_list_is_unreadable() -> None:
    gpu = single(nvml(), host(pci_gpu(A)))

    assert gpu.state is GpuState.UNREADABLE
    assert gpu.reason is not None
    assert f"nvidia-smi drain -p {A} -q" in gpu.reason


@pytest.mark.parametrize("code", [NvmlReturn.NO_PERMISSION, NvmlReturn.RESET_REQUIRED, NvmlReturn.UNKNOWN, 77])
def test_any_other_failure_to_reach_a_gpu_names_call_code_and_remedy(code: int) -> None:
    gpu = single(nvml(nvml_gpu(A, codes={"handle": code})), host(pci_gpu(A)))

    assert gpu.state is GpuState.UNREADABLE
    assert gpu.reason is not None
    assert "nvmlDeviceGetHandleByPciBusId_v2" in gpu.reason
    assert str(int(code)) in gpu.reason
    assert "; " in gpu.reason


@pytest.mark.bug("B23")
def test_a_gpu_without_uuid_is_unreadable_and_takes_nothing_from_its_neighbour() -> None:
    nameless = nvml_gpu(B, codes={"uuid": NvmlReturn.UNKNOWN})
    node = build(nvml(nvml_gpu(A), nameless), host(pci_gpu(A), pci_gpu(B)))

    assert node.gpus[0].state is GpuState.READY
    assert (node.gpus[1].state, node.gpus[1].uuid) == (GpuState.UNREADABLE, None)
    assert node.gpus[1].reason is not None
    assert node.gpus[1].reason.startswith("nvmlDeviceGetUUID for GPU 0000:20:00.0: UNKNOWN (999)")


@pytest.mark.bug("B28")
def test_gpus_with_one_uuid_are_all_taken_out_and_name_each_other() -> None:
    node = build(
        nvml(nvml_gpu(A, uuid="GPU-same"), nvml_gpu(B, uuid="GPU-same"), nvml_gpu(C)),
        host(pci_gpu(A), pci_gpu(B), pci_gpu(C)),
    )

    assert [gpu.state for gpu in node.gpus] == [GpuState.UNREADABLE, GpuState.UNREADABLE, GpuState.READY]
    assert node.gpus[0].reason == node.gpus[1].reason
    assert node.gpus[0].reason is not None
    assert f"GPUs {A}, {B} all report UUID GPU-same" in node.gpus[0].reason


def test_an_address_listed_twice_counts_once() -> None:
    node = build(nvml(nvml_gpu(A, index=0), nvml_gpu(A, index=1, uuid="GPU-other")), host(pci_gpu(A)))

    assert len(node.gpus) == 1
    assert node.gpus[0].uuid != "GPU-other"
    assert "lists this address twice" in node.problems[0].message


def test_a_gpu_that_does_not_say_its_address_is_reported_and_harms_nobody() -> None:
    mute = nvml_gpu(None, index=3, codes={"handle": NvmlReturn.GPU_IS_LOST})
    node = build(nvml(nvml_gpu(A), mute), host(pci_gpu(A)))

    assert [gpu.state for gpu in node.gpus] == [GpuState.READY]
    assert "NVML's GPU 3 does not say its PCI address (GPU_IS_LOST (15))" in node.problems[0].message


def test_without_nvml_every_gpu_of_the_bus_is_there_but_none_is_ready() -> None:
    node = build(None, host(pci_gpu(A), pci_gpu(B), kernel_driver_version=None))

    assert [gpu.state for gpu in node.gpus] == [GpuState.UNREADABLE, GpuState.UNREADABLE]
    assert (node.driver_version, node.cuda_driver_version) == (None, None)
    assert "NVIDIA's kernel module is not loaded" in node.problems[0].message


def test_a_gpu_that_only_nvml_sees_is_usable_without_a_place() -> None:
    gpu = single(nvml(nvml_gpu(A)), host())

    assert gpu.state is GpuState.READY
    assert (gpu.pcie_root, gpu.switch_path, gpu.numa_node, gpu.driver) == (None, (), None, None)
    assert gpu.pci_device_id == 0x233010DE


def test_the_bus_fills_what_nvml_does_not_tell() -> None:
    silent = ("pci_device_id", "pci_subsystem_id", "pcie_link_generation", "pcie_link_width")
    read = nvml_gpu(A, codes=dict.fromkeys(silent, NvmlReturn.NOT_SUPPORTED))

    gpu = single(nvml(read), host(pci_gpu(A)))

    assert (gpu.pci_device_id, gpu.pci_subsystem_id) == (0x233010DE, 0x16C110DE)
    assert (gpu.pcie_link_generation, gpu.pcie_link_width) == (5, 16)


_OPTIONAL = (
    "name",
    "serial",
    "brand",
    "architecture",
    "cuda_compute_capability",
    "vbios_version",
    "minor_number",
    "pcie_link_generation",
    "ecc_mode",
    "memory_total",
    "mig_mode",
    "fabric",
    "addressing_mode",
    "nvlinks",
    "compute_mode",
    "persistence_mode",
)


@pytest.mark.bug("B27")
@pytest.mark.parametrize("code", [NvmlReturn.NOT_SUPPORTED, NvmlReturn.FUNCTION_NOT_FOUND, NvmlReturn.UNKNOWN])
@pytest.mark.parametrize("field", _OPTIONAL)
def test_only_the_uuid_is_needed(field: str, code: NvmlReturn) -> None:
    node = build(nvml(nvml_gpu(A, codes={field: code})), host(pci_gpu(A)))

    assert node.gpus[0].state is GpuState.READY
    told = [problem.message for problem in node.problems if code_is_told(problem.message)]
    assert bool(told) == (code is NvmlReturn.UNKNOWN)


def code_is_told(message: str) -> bool:
    return "UNKNOWN (999)" in message


@pytest.mark.bug("B27")
def test_numbers_that_no_table_knows_are_unknown_and_not_an_error() -> None:
    newer = nvml_gpu(A, brand=99, architecture=0xFFFFFFFF, addressing_mode=9, compute_mode=9, virtualization_mode=9)

    gpu = single(nvml(newer), host(pci_gpu(A)))

    assert gpu.state is GpuState.READY
    assert (gpu.brand, gpu.architecture, gpu.addressing_mode) == (None, None, None)
    assert (gpu.compute_mode, gpu.virtualization_mode) == (None, None)


def test_library_and_kernel_module_of_different_versions_are_reported() -> None:
    node = build(nvml(nvml_gpu(A)), host(pci_gpu(A), kernel_driver_version="570.86.15"))

    assert "NVML speaks of driver 580.105.08, the loaded kernel module is 570.86.15" in node.problems[0].message


def test_problems_of_the_host_and_of_the_library_reach_the_inventory() -> None:
    snapshot = nvml(nvml_gpu(A), cuda_driver_version=None, codes={"cuda_driver_version": NvmlReturn.UNKNOWN})
    node = build(snapshot, host(pci_gpu(A), problems=(HostProblem(A, "cannot read vendor"),)))

    assert [problem.message for problem in node.problems] == [
        "cannot read vendor",
        "NVML does not tell the cuda driver version: UNKNOWN (999)",
    ]
    assert node.cuda_driver_version is None


def test_nics_are_taken_over_with_their_place() -> None:
    nic = pci_gpu("0000:18:00.0", vendor=0x15B3, class_code=0x020700, rdma_devices=("mlx5_0",), net_interfaces=("ib0",))
    virtual = pci_gpu("0000:18:00.1", vendor=0x15B3, class_code=0x020000, physfn="0000:18:00.0")

    first, second = build(nvml(), host(nic, virtual)).nics

    assert (first.rdma_devices, first.interfaces, first.is_virtual_function) == (("mlx5_0",), ("ib0",), False)
    assert first.pcie_root == "pci0000:18"
    assert second.is_virtual_function


_CODES = st.sampled_from([*NvmlReturn, 77])
_FIELDS = st.sampled_from(["handle", "uuid", *_OPTIONAL])


@given(
    st.lists(st.dictionaries(_FIELDS, _CODES, max_size=4), min_size=1, max_size=4),
    st.lists(st.sampled_from(["nvidia", "vfio-pci", None]), min_size=4, max_size=4),
)
def test_whatever_fails_each_gpu_of_the_bus_is_there_once_with_a_reason_unless_ready(
    codes: list[dict[str, int]], drivers: list[str | None]
) -> None:
    addresses = [address(number) for number in range(len(codes))]
    snapshot = nvml(*(nvml_gpu(at, codes=fault) for at, fault in zip(addresses, codes, strict=True)))
    topology = host(*(pci_gpu(at, driver=driver) for at, driver in zip(addresses, drivers, strict=False)))

    node = build(snapshot, topology)

    assert [str(gpu.address) for gpu in node.gpus] == addresses
    for gpu in node.gpus:
        assert (gpu.state is GpuState.READY) == (gpu.reason is None)
        assert gpu.state is not GpuState.READY or gpu.uuid
        assert gpu.memory_bytes is None or gpu.memory_bytes > 0
    assert build(snapshot, topology) == node


@given(st.sets(st.integers(0, 7), max_size=7))
def test_the_loss_of_some_gpus_changes_nothing_about_the_others(lost: set[int]) -> None:
    def node(gone: set[int]) -> NodeInventory:
        readings = (
            nvml_gpu(address(n), codes={"handle": NvmlReturn.GPU_IS_LOST} if n in gone else None) for n in range(8)
        )
        return build(nvml(*readings), host(*(pci_gpu(address(n)) for n in range(8))))

    before, after = node(set()), node(lost)

    for number in set(range(8)) - lost:
        assert after.gpus[number] == before.gpus[number]


def test_every_field_that_can_fail_has_a_call_to_name() -> None:
    # MIG has codes of its own, a list each.
    fields = set(GpuSnapshot.__struct_fields__) - {"address", "codes", "mig"}

    assert set(CALLS) == fields | {"handle"}


def test_an_empty_uuid_is_no_uuid() -> None:
    gpu = single(nvml(nvml_gpu(A, uuid="")), host(pci_gpu(A)))

    assert gpu.state is GpuState.UNREADABLE
    assert gpu.reason is not None
    assert gpu.reason.startswith("nvmlDeviceGetUUID gave an empty UUID for GPU 0000:10:00.0")


@pytest.mark.parametrize("code", [NvmlReturn.GPU_IS_LOST, NvmlReturn.TIMEOUT, NvmlReturn.UNKNOWN])
def test_what_stands_on_a_gpu_that_does_not_answer_is_not_known(code: NvmlReturn) -> None:
    gpu = single(nvml(nvml_gpu(A, codes={"handle": code})), host(pci_gpu(A)))
    assert gpu.state is not GpuState.READY
    assert not gpu.partitions_known


@pytest.mark.parametrize(("driver", "known"), [("vfio-pci", True), (None, False)])
def test_another_driver_takes_a_gpu_without_partitions(driver: str | None, known: bool) -> None:
    gpu = single(nvml(nvml_gpu(A, codes={"handle": NvmlReturn.NOT_FOUND})), host(pci_gpu(A, driver=driver)))
    assert gpu.state is GpuState.UNBOUND
    assert gpu.partitions_known is known


def test_a_node_knows_its_gpus_where_the_bus_was_read_whole_and_each_gpu_says_its_address() -> None:
    def known(*gpus: GpuSnapshot, **bus: Any) -> bool:
        return build_inventory(nvml(*gpus), host(pci_gpu(A), **bus), mock=False).gpus_known

    assert known(nvml_gpu(A))
    assert not known(nvml_gpu(A), complete=False)
    assert not known(nvml_gpu(A), nvml_gpu(None, codes={"handle": NvmlReturn.UNKNOWN}))
