"""One NVML snapshot and one reading of the host, joined by PCI address into a ``NodeInventory``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from driver.inventory import words
from driver.inventory.memory import memory_of
from driver.inventory.mig import GpuMig, mig_of
from driver.inventory.nvlink import fabric_of, groups_of, links_of
from driver.inventory.states import CALLS, duplicate_uuid, judge
from driver.inventory.unread import ORDINARY, unread_of
from driver.inventory.words import word
from driver.model import EccMode, Gpu, GpuState, MigMode, Nic, NodeInventory, NumaNode, PciAddress, Problem
from native.capabilities import InstanceMinors
from native.nvml.errors import NvmlReturn, code_name
from native.nvml.types import GpuSnapshot, NvmlSnapshot
from native.sysfs import HostTopology, PciDevice

_NO_MINORS: InstanceMinors = {}


def build_inventory(
    snapshot: NvmlSnapshot | None, host: HostTopology, *, mock: bool, minors: InstanceMinors = _NO_MINORS
) -> NodeInventory:
    """What the node has. Never raises for what the two readings hold; what is odd stands in ``problems``.

    Args:
        snapshot: None where NVML gives none (no driver, or one that is loading): every GPU is then one of the bus's
            alone, UNBOUND or UNREADABLE.
        host: the PCI tree, NUMA nodes and memory of the same machine.
        mock: the library behind ``snapshot`` is a look-alike.
        minors: by which device nodes the kernel opens MIG instances.
    """
    problems = [Problem(problem.subject, problem.message) for problem in host.problems]
    read = _by_address(snapshot.gpus if snapshot else (), problems)
    on_bus = {PciAddress.parse(device.address): device for device in host.gpus}
    switches = frozenset(PciAddress.parse(device.address) for device in host.nvswitches)
    known = frozenset(on_bus) | frozenset(read)
    troubled = frozenset(problem.subject for problem in host.problems)
    gpus = []
    for address in sorted(known):
        device, gpu = on_bus.get(address), read.get(address)
        state, reason = judge(str(address), device, gpu, nvml_answers=snapshot is not None)
        built = _placed(Gpu(address, state, reason), device)
        if gpu is not None and state is GpuState.READY:
            built = _described(built, gpu, host, problems)
            built = replace(built, nvlinks=links_of(gpu.nvlinks, known, switches), fabric=fabric_of(gpu.fabric))
            built = _divided(built, mig_of(gpu, minors), problems)
            unread = unread_of(built, gpu, troubled=str(address) in troubled)
            built = replace(built, unread=unread, partitions_known="partitions" not in unread)
        elif not _is_elsewhere(built):
            built = replace(built, partitions_known=False)
        gpus.append(built)
    gpus = _without_clones(gpus)
    usable = [gpu for gpu in gpus if gpu.state is GpuState.READY]
    groups = groups_of({gpu.address: gpu.nvlinks for gpu in usable}, {gpu.address: gpu.fabric for gpu in usable})
    group_of = {member: group.index for group in groups for member in group.members}
    problems.extend(_node_problems(snapshot, host))
    return NodeInventory(
        driver_version=snapshot.driver_version if snapshot else None,
        cuda_driver_version=_cuda_version(snapshot.cuda_driver_version if snapshot else None),
        nvml_version=snapshot.nvml_version if snapshot else None,
        gpus=tuple(replace(gpu, index=i, nvlink_group=group_of.get(gpu.address)) for i, gpu in enumerate(gpus)),
        nics=tuple(_nic(device) for device in host.nics),
        numa_nodes=tuple(NumaNode(n.index, n.cpulist, n.memory_bytes, n.distances) for n in host.numa_nodes),
        nvlink_groups=groups,
        problems=tuple(problems),
        mock=mock,
        boot_id=host.boot_id,
        gpus_known=host.complete and all(gpu.address is not None for gpu in (snapshot.gpus if snapshot else ())),
    )


def _is_elsewhere(gpu: Gpu) -> bool:
    """Whether another driver has it: NVIDIA's took all partitions away when it let go of the GPU."""
    return gpu.state is GpuState.UNBOUND and gpu.driver is not None


def _by_address(gpus: Iterable[GpuSnapshot], problems: list[Problem]) -> Mapping[PciAddress, GpuSnapshot]:
    found: dict[PciAddress, GpuSnapshot] = {}
    for position, gpu in enumerate(gpus):
        index = position if gpu.index is None else gpu.index
        if gpu.address is None:
            code = gpu.codes.get("handle", gpu.codes.get("address", NvmlReturn.UNKNOWN))
            message = (
                f"NVML's GPU {index} does not say its PCI address ({code_name(code)}) and is left out; "
                "see the kernel log for NVRM lines"
            )
            problems.append(Problem("node", message))
            continue
        address = PciAddress.parse(gpu.address)
        if address in found:
            problems.append(Problem(str(address), f"NVML lists this address twice; its GPU {index} is left out"))
            continue
        found[address] = gpu
    return found


def _placed(gpu: Gpu, device: PciDevice | None) -> Gpu:
    """With what the bus knows; it knows it of dead GPUs too."""
    if device is None:
        return gpu
    return replace(
        gpu,
        pci_device_id=_packed(device.device, device.vendor),
        pci_subsystem_id=_packed(device.subsystem_device, device.subsystem_vendor),
        driver=device.driver,
        pcie_root=device.pcie_root,
        switch_path=tuple(PciAddress.parse(bridge) for bridge in device.bridges),
        numa_node=device.numa_node,
        local_cpulist=device.local_cpulist,
        iommu_group=device.iommu_group,
        drm_nodes=device.drm_nodes,
        pcie_link_generation=device.link_generation,
        pcie_link_width=device.link_width,
    )


def _described(gpu: Gpu, read: GpuSnapshot, host: HostTopology, problems: list[Problem]) -> Gpu:
    """With what NVML knows; where both know a thing, NVML's word counts and the bus's fills its gaps."""
    memory = memory_of(read, host.memory_bytes)
    if memory.remark:
        problems.append(Problem(str(gpu.address), memory.remark))
    problems.extend(_field_problems(gpu.address, read))
    return replace(
        gpu,
        uuid=read.uuid,
        product_name=read.name,
        brand=word(words.BRANDS, read.brand),
        architecture=word(words.ARCHITECTURES, read.architecture),
        serial=read.serial,
        board_part_number=read.board_part_number,
        vbios_version=read.vbios_version,
        pci_device_id=gpu.pci_device_id if read.pci_device_id is None else read.pci_device_id,
        pci_subsystem_id=gpu.pci_subsystem_id if read.pci_subsystem_id is None else read.pci_subsystem_id,
        minor=read.minor_number,
        module_id=read.module_id,
        cuda_compute_capability=read.cuda_compute_capability,
        memory_bytes=memory.total_bytes,
        memory_kind=memory.kind,
        memory_numa_node=read.memory_numa_node,
        addressing_mode=word(words.ADDRESSING_MODES, read.addressing_mode),
        ecc=None if read.ecc_mode is None else EccMode(*read.ecc_mode),
        mig=None if read.mig_mode is None else MigMode(*read.mig_mode),
        compute_mode=word(words.COMPUTE_MODES, read.compute_mode),
        persistence_mode=read.persistence_mode,
        virtualization_mode=word(words.VIRTUALIZATION_MODES, read.virtualization_mode),
        pcie_link_generation=read.pcie_link_generation or gpu.pcie_link_generation,
        pcie_link_width=read.pcie_link_width or gpu.pcie_link_width,
    )


def _divided(gpu: Gpu, mig: GpuMig, problems: list[Problem]) -> Gpu:
    problems.extend(Problem(str(gpu.address), remark) for remark in mig.remarks)
    return replace(
        gpu,
        mig_profiles=mig.profiles,
        partitions=mig.partitions,
        partitions_known=mig.known,
        mig_settled=mig.settled,
    )


def _field_problems(address: PciAddress, read: GpuSnapshot) -> Iterable[Problem]:
    for field, code in read.codes.items():
        if code not in ORDINARY:
            call = CALLS.get(field, field)
            yield Problem(str(address), f"{call}: {code_name(code)}; {field} is as it was known before, or unknown")
    if read.fabric is not None and read.fabric.state == words.FABRIC_COMPLETED and read.fabric.status:
        yield Problem(
            str(address),
            f"joining the NVLink fabric failed: {code_name(read.fabric.status)}; see the fabric manager's log",
        )


def _without_clones(gpus: list[Gpu]) -> list[Gpu]:
    """GPUs that share a UUID are taken out of use, all of them: Prepare could not tell which one it got."""
    holders: defaultdict[str, list[str]] = defaultdict(list)
    for gpu in gpus:
        if gpu.state is GpuState.READY and gpu.uuid is not None:
            holders[gpu.uuid].append(str(gpu.address))
    result = []
    for gpu in gpus:
        clones = holders.get(gpu.uuid or "", [])
        if gpu.uuid is None or len(clones) < 2:
            result.append(gpu)
        else:
            result.append(replace(gpu, state=GpuState.UNREADABLE, reason=duplicate_uuid(gpu.uuid, clones)))
    return result


def _node_problems(snapshot: NvmlSnapshot | None, host: HostTopology) -> Iterable[Problem]:
    if snapshot is None:
        if not host.gpus:
            return
        loaded = host.kernel_driver_version
        state = f"the kernel module is {loaded}" if loaded else "NVIDIA's kernel module is not loaded"
        yield Problem("node", f"NVML gives no answer ({state}); GPUs are offered once the driver is up")
        return
    for field, code in snapshot.codes.items():
        yield Problem("node", f"NVML does not tell the {field.replace('_', ' ')}: {code_name(code)}")
    if host.kernel_driver_version and snapshot.driver_version not in (None, host.kernel_driver_version):
        yield Problem(
            "node",
            f"NVML speaks of driver {snapshot.driver_version}, the loaded kernel module is "
            f"{host.kernel_driver_version}; point the driver root at the same driver, reload the module or reboot",
        )


def _nic(device: PciDevice) -> Nic:
    return Nic(
        address=PciAddress.parse(device.address),
        interfaces=device.net_interfaces,
        rdma_devices=device.rdma_devices,
        pcie_root=device.pcie_root,
        switch_path=tuple(PciAddress.parse(bridge) for bridge in device.bridges),
        numa_node=device.numa_node,
        is_virtual_function=device.physfn is not None,
    )


def _packed(device: int | None, vendor: int | None) -> int | None:
    return None if device is None or vendor is None else device << 16 | vendor


def _cuda_version(packed: int | None) -> tuple[int, int] | None:
    """NVML packs 1000 * major + 10 * minor."""
    return None if not packed or packed < 0 else (packed // 1000, packed % 1000 // 10)
