"""``gpudra topology``: the node as a tree of NUMA nodes, PCIe roots, switches, GPUs and network devices."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

from driver.cli.node import add_name_arguments, add_node_arguments, as_json, node_name, read_node
from driver.cli.tree import Branch, show
from driver.model import Gpu, GpuState, MemoryKind, MigPartition, Nic, NodeInventory, NumaNode, PciAddress

_DESCRIPTION = """\
Show what this node has, as the agent sees it: NUMA nodes with their CPUs and memory, PCIe root complexes, switches,
GPUs and network devices under them, NVLink groups, and what is wrong.

GPUs under one switch reach each other and the network devices beside them without crossing the root complex; a claim
asks for that with matchAttribute on gpu.nvidia.com/pcieSwitch, on resource.kubernetes.io/pcieRoot for one level more,
and on resource.kubernetes.io/numaNode for the next.

Exit code 1: a GPU of the node cannot be given out; the tree says why.
"""

_EXAMPLES = """\
examples:
  gpudra topology                              this node
  gpudra topology --mock-profile gb200         a GB200 node that is not here
  gpudra topology --matrix                     the distances, as nvidia-smi topo -m shows them
  gpudra topology --json | jq '.gpus[].name'   for programs
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the verb."""
    parser = subparsers.add_parser(
        "topology",
        help="the node as a tree: NUMA nodes, PCIe switches, GPUs, NICs, NVLink",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything that was read, and the distances, as JSON")
    form.add_argument("--matrix", action="store_true", help="the distance between each two devices, as a table")
    add_name_arguments(parser)
    add_node_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the node; 1 where a GPU cannot be given out."""
    inventory = read_node(args, without_driver=True)
    if args.json:
        print(json.dumps(document(inventory), indent=2, ensure_ascii=False))
    elif args.matrix:
        print("\n".join(matrix(inventory)))
    else:
        show(tree(inventory, node_name(args)))
    return int(any(gpu.state is not GpuState.READY for gpu in inventory.gpus))


def document(inventory: NodeInventory) -> dict[str, Any]:
    """The whole inventory as JSON, with names and the distance from each GPU to each other device."""
    result: dict[str, Any] = as_json(inventory)
    devices: list[Gpu | Nic] = [*inventory.gpus, *_physical(inventory)]
    for gpu, value in zip(inventory.gpus, result["gpus"], strict=True):
        value["name"] = gpu.name
        value["paths"] = {_key(other): _distance(gpu, other) for other in devices if other is not gpu}
    return result


def tree(inventory: NodeInventory, name: str) -> Branch:
    """The node as it is printed."""
    root = Branch(_headline(inventory, name), "bold")
    devices: list[Gpu | Nic] = [*inventory.gpus, *_physical(inventory)]
    for numa in inventory.numa_nodes:
        branch = root.add(_numa_line(numa, inventory), "bold cyan")
        _hang(branch, [device for device in devices if device.numa_node == numa.index], inventory)
    listed = {numa.index for numa in inventory.numa_nodes}
    strays = [device for device in devices if device.numa_node not in listed]
    if strays:
        _hang(root.add("without a NUMA node", "bold cyan"), strays, inventory)
    if inventory.nvlink_groups:
        groups = root.add("NVLink", "bold cyan")
        for group in inventory.nvlink_groups:
            groups.add(f"group {group.index}: {', '.join(str(member) for member in group.members)}")
    problems = [(gpu.address, gpu.reason) for gpu in inventory.gpus if gpu.reason]
    lines = [reason for _, reason in problems] + [f"{item.subject}: {item.message}" for item in inventory.problems]
    if lines:
        branch = root.add("problems", "bold red")
        for line in lines:
            branch.add(str(line), "red")
    return root


def matrix(inventory: NodeInventory) -> list[str]:
    """Rows of the table of distances: NV<n> for n NVLinks within a group, else the class of the PCIe path."""
    gpus, nics = inventory.gpus, _physical(inventory)
    labels = [f"GPU{index}" for index in range(len(gpus))] + [f"NIC{index}" for index in range(len(nics))]
    devices: list[Gpu | Nic] = [*gpus, *nics]
    cells = [[label, *(_cell(one, other) for other in devices)] for label, one in zip(labels, devices, strict=True)]
    rows = [["", *labels], *cells]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    legend = [f"  {label}: {device.address}{_nic_names(device)}" for label, device in zip(labels, devices, strict=True)]
    return [*table, "", *legend]


def _cell(one: Gpu | Nic, other: Gpu | Nic) -> str:
    if one is other:
        return "X"
    if isinstance(one, Gpu) and isinstance(other, Gpu):
        together = one.nvlink_group is not None and one.nvlink_group == other.nvlink_group
        links = _links_between(one, other) if together else 0
        if links:
            return f"NV{links}"
    return _distance(one, other)


def _links_between(one: Gpu, other: Gpu) -> int:
    """Direct links between the two, or through switches as many as the one with fewer has."""
    direct = sum(link.active and link.remote == other.address for link in one.nvlinks)
    to_switches = [sum(link.active and link.remote_kind == "switch" for link in gpu.nvlinks) for gpu in (one, other)]
    return direct or min(to_switches)


def _headline(inventory: NodeInventory, name: str) -> str:
    models = Counter(gpu.product_name or "GPU" for gpu in inventory.gpus)
    parts = [f"{count} x {model}" for model, count in models.items()] or ["no GPU"]
    if inventory.driver_version:
        parts.append(f"driver {inventory.driver_version}")
    if inventory.cuda_driver_version:
        parts.append("CUDA " + ".".join(str(part) for part in inventory.cuda_driver_version))
    mock = "  (a mock node)" if inventory.mock else ""
    return f"{name}: {', '.join(parts)}{mock}"


def _numa_line(numa: NumaNode, inventory: NodeInventory) -> str:
    owner = next((gpu for gpu in inventory.gpus if gpu.memory_numa_node == numa.index), None)
    parts = [f"NUMA {numa.index}"]
    if numa.cpulist:
        parts.append(f"CPUs {numa.cpulist}")
    elif owner is not None:
        parts.append(f"memory of GPU {owner.address}")
    else:
        parts.append("no CPUs")
    if numa.memory_bytes:
        parts.append(_size(numa.memory_bytes))
    if len(numa.distances) > 1:
        parts.append("distances " + " ".join(str(distance) for distance in numa.distances))
    return "  ".join(parts)


def _hang(branch: Branch, devices: Iterable[Gpu | Nic], inventory: NodeInventory) -> None:
    """Hang devices below their roots and switches; a switch is named by its upstream port."""
    places: dict[tuple[str | PciAddress, ...], Branch] = {(): branch}
    for device in sorted(devices, key=lambda device: (device.pcie_root or "", device.switch_path, device.address)):
        path: tuple[str | PciAddress, ...] = (device.pcie_root or "", *device.switch_path[1:-1:2])
        for depth in range(len(path)):
            if path[: depth + 1] not in places:
                text = f"switch {path[depth]}" if depth else f"{path[0] or 'PCIe position unknown'}"
                places[path[: depth + 1]] = places[path[:depth]].add(text, "dim")
        if isinstance(device, Gpu):
            line = places[path].add(_gpu_line(device), "green" if device.state is GpuState.READY else "red")
            for partition in device.partitions:
                line.add(_partition_line(partition))
        else:
            places[path].add(_nic_line(device))


def _gpu_line(gpu: Gpu) -> str:
    parts = [f"GPU {gpu.address}", gpu.product_name or "model unknown"]
    if gpu.memory_bytes:
        shared = " shared with the host" if gpu.memory_kind is MemoryKind.UNIFIED else ""
        parts.append(_size(gpu.memory_bytes) + shared)
    if gpu.nvlink_count:
        version = next((link.version for link in gpu.nvlinks if link.active and link.version), None)
        group = "" if gpu.nvlink_group is None else f", group {gpu.nvlink_group}"
        parts.append(f"{gpu.nvlink_count} x NVLink{f' {version}' if version else ''}{group}")
    if gpu.fabric is not None:
        parts.append(f"clique {gpu.fabric.clique_id}")
    if gpu.mig is not None and gpu.mig.current:
        parts.append("MIG mode on" if gpu.partitions else "MIG mode on, no partition")
    if gpu.state is not GpuState.READY:
        parts.append(gpu.state.value.upper())
    return "  ".join(parts)


def _partition_line(partition: MigPartition) -> str:
    place = partition.placement
    slices = f"slice {place.start}" if place.size == 1 else f"slices {place.start} to {place.end - 1}"
    parts = [f"MIG {partition.profile}", slices]
    if partition.memory_bytes:
        parts.append(_size(partition.memory_bytes))
    parts.append(partition.uuid or "without a compute instance")
    return "  ".join(parts)


def _nic_line(nic: Nic) -> str:
    return f"NIC {nic.address}{_nic_names(nic)}"


def _nic_names(device: Gpu | Nic) -> str:
    names = () if isinstance(device, Gpu) else (*device.rdma_devices, *device.interfaces)
    return f"  {', '.join(names)}" if names else ""


def _physical(inventory: NodeInventory) -> list[Nic]:
    """Network devices without their virtual functions, of which there may be hundreds in the same place."""
    return [nic for nic in inventory.nics if not nic.is_virtual_function]


def _key(device: Gpu | Nic) -> str:
    return device.name if isinstance(device, Gpu) else str(device.address)


def _distance(one: Gpu | Nic, other: Gpu | Nic) -> str:
    from driver.inventory import path_between

    return path_between(one, other).name


def _size(size: int) -> str:
    """Memory for people: GiB."""
    gib = size / 2**30
    return f"{gib:.0f} GiB" if gib >= 100 else f"{gib:.1f} GiB"
