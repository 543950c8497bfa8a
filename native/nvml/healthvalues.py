"""From NVML's numbers to ``GpuHealth`` and ``NvmlTopology``: what both backends share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from types import MappingProxyType

from native.nvml.errors import NvmlReturn
from native.nvml.eventtypes import WHOLE
from native.nvml.healthtypes import GpuHealth, GpuProcess, NvmlTopology
from native.nvml.values import SUCCESS, Fields

NO_MEMORY_VALUE = 0xFFFFFFFFFFFFFFFF
"""NVML_VALUE_NOT_AVAILABLE."""
PROCESSES_FIRST = 64
PROCESSES_AT_MOST = 65536
CPU_WORDS = 128
NODE_WORDS = 16
P2P_OK = 0

ListProcesses = Callable[[int], tuple[int, int, Iterable[GpuProcess]]]
"""(how many fit) -> code, how many there are, and those that came."""


Pair = tuple[int, int, int, int]
"""What NVML says of two GPUs: code and level, code and state of NVLink between them."""


Affinity = tuple[int, int, int, bytes, bytes]
"""What NVML says of one GPU and the host: codes of handle, CPUs and nodes, then the bits of the two, in little-endian
bytes, as both supported machines have them."""


def gpu_process(pid: int, used_memory: int, gpu_instance: int, compute_instance: int) -> GpuProcess:
    """A process from the fields of nvmlProcessInfo_t."""
    return GpuProcess(
        pid=pid,
        gpu_instance=None if gpu_instance == WHOLE else gpu_instance,
        compute_instance=None if compute_instance == WHOLE else compute_instance,
        used_memory=None if used_memory == NO_MEMORY_VALUE else used_memory,
    )


def all_processes(ask: ListProcesses) -> tuple[int, tuple[GpuProcess, ...]]:
    """Code and processes, asked with ever more room while NVML says that it does not suffice."""
    room = PROCESSES_FIRST
    while True:
        code, count, processes = ask(room)
        if code != NvmlReturn.INSUFFICIENT_SIZE or room >= PROCESSES_AT_MOST:
            return code, tuple(sorted(processes, key=_order)) if code == SUCCESS else ()
        # More may have started since they were counted.
        room = min(max(2 * room, count + PROCESSES_FIRST), PROCESSES_AT_MOST)


def _order(process: GpuProcess) -> tuple[int, int, int]:
    instance = -1 if process.gpu_instance is None else process.gpu_instance
    return process.pid, instance, -1 if process.compute_instance is None else process.compute_instance


def unreachable_health(address: str, code: int) -> GpuHealth:
    """A GPU of which nothing is known but why."""
    return GpuHealth(address, codes=MappingProxyType({"handle": int(code)}))


def gpu_health(address: str, fields: Fields) -> GpuHealth:
    """The GPU that the fields make."""
    return GpuHealth(address=address, **fields.values, codes=MappingProxyType(fields.codes))


def topology(addresses: Sequence[str], affinities: Iterable[Affinity], pairs: Iterable[Pair]) -> NvmlTopology:
    """From one ``Affinity`` a GPU and one ``Pair`` for each two, (0, 1), (0, 2), ..., (1, 2), ..."""
    codes: dict[tuple[str, ...], int] = {}
    cpus: dict[str, frozenset[int]] = {}
    nodes: dict[str, frozenset[int]] = {}
    levels: dict[tuple[str, str], int] = {}
    nvlink: dict[tuple[str, str], bool] = {}
    masks = _Masks()
    for address, (handle_code, cpus_code, nodes_code, cpu_bits, node_bits) in zip(addresses, affinities, strict=True):
        if handle_code != SUCCESS:
            codes["handle", address] = int(handle_code)
            continue
        if cpus_code == SUCCESS:
            cpus[address] = masks.numbers(cpu_bits)
        else:
            codes["cpus", address] = int(cpus_code)
        if nodes_code == SUCCESS:
            nodes[address] = masks.numbers(node_bits)
        else:
            codes["memory_nodes", address] = int(nodes_code)
    for there, (level_code, level, nvlink_code, state) in zip(itertools.combinations(addresses, 2), pairs, strict=True):
        back = there[::-1]
        if level_code == SUCCESS:
            levels[there] = levels[back] = level
        else:
            codes["levels", *there] = int(level_code)
        if nvlink_code == SUCCESS:
            nvlink[there] = nvlink[back] = state == P2P_OK
        else:
            codes["nvlink", *there] = int(nvlink_code)
    return NvmlTopology(
        tuple(addresses),
        MappingProxyType(levels),
        MappingProxyType(nvlink),
        MappingProxyType(cpus),
        MappingProxyType(nodes),
        MappingProxyType(codes),
    )


class _Masks:
    """Masks of one reading. GPUs of one NUMA node share theirs; to compare a kilobyte is cheap, to hash it is not."""

    def __init__(self) -> None:
        self._known: list[tuple[bytes, frozenset[int]]] = []

    def numbers(self, mask: bytes) -> frozenset[int]:
        for known, found in self._known:
            if known == mask:
                return found
        found = _numbers(mask)
        self._known.append((mask, found))
        return found


def _numbers(mask: bytes) -> frozenset[int]:
    """The bits that are set, run by run, of which CPU masks have few."""
    left, place, found = int.from_bytes(mask, "little"), 0, list[int]()
    while left:
        zeros = (left & -left).bit_length() - 1
        left >>= zeros
        ones = (~left & (left + 1)).bit_length() - 1
        left >>= ones
        found += range(place + zeros, place + zeros + ones)
        place += zeros + ones
    return frozenset(found)
