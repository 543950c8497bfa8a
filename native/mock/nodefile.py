"""Writing the node file, and changing it under the eyes of the processes that have it mapped."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from native.mock import boards, layout
from native.mock.boards import Gpu, Link
from native.mock.layout import GI, GI_PROFILE, GPU, HEADER, RULE, Text, Value
from native.mock.migtables import MigBoard
from native.mock.profile import Failure, Host, Profile, parse_cpus
from native.pci import canonical_address

_P2P_OK = 0
_P2P_NOT_SUPPORTED = 5


def encode(profile: Profile) -> bytes:
    """The node file of a profile.

    Raises:
        ValueError: more failures than the file has room for.
    """
    count = len(profile.gpus)
    rule_offset = HEADER.size
    gpu_offset = rule_offset + RULE.size * layout.RULE_CAPACITY
    levels = gpu_offset + GPU.size * count
    size = levels + 3 * count * count
    size += -size % 8
    header = HEADER.pack(
        {
            "magic": layout.MAGIC,
            "layout": layout.fingerprint(),
            "generation": 0,
            "size": size,
            "driver_loaded": 1,
            "driver_generation": 1,
            "version_mismatch": 0,
            "cuda_version": profile.cuda_version,
            "gpu_count": count,
            "gpu_offset": gpu_offset,
            "rule_capacity": layout.RULE_CAPACITY,
            "rule_count": len(profile.failures),
            "rule_offset": rule_offset,
            "level_offset": levels,
            "p2p_offset": levels + count * count,
            "nvlink_p2p_offset": levels + 2 * count * count,
            "driver_version": Text(profile.driver_version.encode()),
            "nvml_version": Text(profile.nvml_version.encode()),
            "profile": Text(profile.name.encode()),
        }
    )
    rules = b"".join(encode_rules(profile.failures, [gpu.address for gpu in profile.gpus]))
    body = header + rules + b"".join(_gpu(gpu, profile) for gpu in profile.gpus) + _matrices(profile.gpus)
    return body.ljust(size, b"\0")


def encode_rules(failures: Iterable[Failure], addresses: Sequence[str]) -> list[bytes]:
    """One record per place of the table, the unused ones empty.

    Raises:
        ValueError: too many, or one names a GPU that the node does not have.
    """
    records = [_rule(failure, addresses) for failure in failures]
    if len(records) > layout.RULE_CAPACITY:
        raise ValueError(f"{len(records)} failures, at most {layout.RULE_CAPACITY} at a time")
    return records + [bytes(RULE.size)] * (layout.RULE_CAPACITY - len(records))


def _rule(failure: Failure, addresses: Sequence[str]) -> bytes:
    gpu = -1
    if failure.address is not None:
        address = canonical_address(failure.address)
        if address not in addresses:
            raise ValueError(f"the node has no GPU at {address}: {', '.join(addresses)}")
        gpu = addresses.index(address)
    values: dict[str, Value] = {"gpu": gpu, "code": failure.code, "delay_ms": failure.delay_ms, "calls": 0, "fired": 0}
    values |= {"after": 0, "times": -1, "probability": 1_000_000, "seed": 0, "sticky": 0, "until_ns": 0, "version": 0}
    return RULE.pack(values | {"function": failure.function.encode()})


def _gpu(gpu: Gpu, profile: Profile) -> bytes:
    numa = gpu.device.numa_node
    values: dict[str, Value] = {
        **gpu.texts,
        **gpu.numbers,
        "clocks": gpu.clocks,
        "max_clocks": gpu.max_clocks,
        "cpus": _bits(near_cpus(profile.host, numa), layout.CPU_WORDS),
        "socket_cpus": _bits(_socket_cpus(profile.host, numa), layout.CPU_WORDS),
        "memory_nodes": _bits(_near_nodes(profile.host, numa), layout.NODE_WORDS),
        "fabric_cluster": gpu.cluster,
        "platform_guid": gpu.platform_guid,
        "platform_chassis": gpu.chassis,
        "links": [_link(link) for link in gpu.links],
        "gi_profiles": _gi_profiles(gpu.mig),
        "gis": [GI.pack({})] * layout.GI_IDS,
    }
    return GPU.pack(values)


def _gi_profiles(board: MigBoard | None) -> list[bytes]:
    """One record an index of nvml.h, holes included."""
    records = [GI_PROFILE.pack({})] * layout.GI_PROFILES
    for profile in board.profiles if board is not None else ():
        numbers = ("id", "slices", "instances", "memory_mib", "multiprocessors", "copy", "decoder", "encoder", "jpeg")
        values: dict[str, Value] = {name: getattr(profile, name) for name in (*numbers, "ofa", "size", "starts")}
        gfx = int("+gfx" in profile.name)
        # no public capture shows P2P between MIG devices
        values |= {"p2p": 0, "gfx": gfx, "start_count": len(profile.starts), "name": Text(profile.name.encode())}
        records[profile.index] = GI_PROFILE.pack(values)
    return records


def _link(link: Link) -> bytes:
    values: dict[str, Value] = {
        "state": int(link.active),
        "version": link.version,
        "remote_type": link.remote_type,
        "speed_mbps": link.speed_mbps,
        "remote_link": link.remote_link,
        "remote_pci_id": link.remote_pci_id,
        "remote_subsystem_id": 0,
    }
    if link.remote_address is not None:
        domain, bus, rest = link.remote_address.split(":")
        parts = (domain, bus, rest.split(".")[0])
        names = ("remote_domain", "remote_bus", "remote_device")
        values |= {name: int(part, 16) for name, part in zip(names, parts, strict=True)}
    return layout.LINK.pack(values)


def near_cpus(host: Host, numa: int) -> frozenset[int]:
    """CPUs of a NUMA node; all of the machine where the node is unknown, as the kernel and NVML do."""
    known = [node for node in host.numa if numa in (node.node, -1)]
    return frozenset().union(*(parse_cpus(node.cpus) for node in known))


def _socket_cpus(host: Host, numa: int) -> frozenset[int]:
    sockets = {node.socket for node in host.numa if numa in (node.node, -1)}
    return frozenset().union(*(parse_cpus(node.cpus) for node in host.numa if node.socket in sockets))


def _near_nodes(host: Host, numa: int) -> frozenset[int]:
    return frozenset(node.node for node in host.numa if numa in (node.node, -1) and node.cpus)


def _bits(numbers: Iterable[int], words: int) -> tuple[int, ...]:
    mask = sum(1 << number for number in numbers)
    return struct.unpack(f"={words}Q", mask.to_bytes(words * 8, "little")) if mask else (0,) * words


def _matrices(gpus: Sequence[Gpu]) -> bytes:
    levels = bytes(boards.topology_level(one, other) for one in gpus for other in gpus)
    p2p = bytes(max(one.p2p, other.p2p) for one in gpus for other in gpus)
    nvlink = bytes(_P2P_OK if boards.linked(one, other) else _P2P_NOT_SUPPORTED for one in gpus for other in gpus)
    return levels + p2p + nvlink


class NodeFile:
    """An existing node file. Setters write in place, so every process that has it mapped sees the change at once."""

    def __init__(self, path: Path, addresses: Sequence[str]) -> None:
        self.path = path
        self._addresses = tuple(addresses)

    def set_driver_loaded(self, loaded: bool) -> None:
        """Whether calls find a driver; without one they return DRIVER_NOT_LOADED."""
        self._write((HEADER.offset("driver_loaded"), struct.pack("=q", int(loaded))))

    def set_number(self, address: str, field: str, value: int) -> None:
        """Set a number of one GPU, a field of ``layout.GPU``.

        Raises:
            ValueError: the node has no GPU at that address.
            KeyError: there is no such field.
        """
        self._write((self._gpu(address) + GPU.offset(field), struct.pack("=q", value)))

    def set_rules(self, failures: Iterable[Failure]) -> None:
        """Replace all failures.

        Raises:
            ValueError: too many, or one names a GPU that the node does not have.
        """
        assert RULE.offset("function") == 0, "a place is emptied through its first byte"
        given = list(failures)
        pieces: list[tuple[int, bytes]] = []
        for place, record in enumerate(encode_rules(given, self._addresses)):
            start = HEADER.size + place * RULE.size
            # readers skip a place while it is half written
            pieces += [(start, b"\0"), (start + 1, record[1:]), (start, record[:1])]
        self._write(*pieces, (HEADER.offset("rule_count"), struct.pack("=q", len(given))))

    def _gpu(self, address: str) -> int:
        canonical = canonical_address(address)
        if canonical not in self._addresses:
            raise ValueError(f"the node has no GPU at {canonical}: {', '.join(self._addresses)}")
        index = self._addresses.index(canonical)
        return HEADER.size + RULE.size * layout.RULE_CAPACITY + GPU.size * index

    def _write(self, *pieces: tuple[int, bytes]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in pieces:
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)
