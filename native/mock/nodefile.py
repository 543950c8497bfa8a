"""Writing the node file; ``native.mock.control`` changes it later."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence

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


def position(address: str, addresses: Sequence[str]) -> int:
    """The place of a GPU in the file.

    Raises:
        ValueError: it is no address, or the node has no GPU there.
    """
    canonical = canonical_address(address)
    if canonical not in addresses:
        raise ValueError(f"the node has no GPU at {canonical}: {', '.join(addresses)}")
    return addresses.index(canonical)


def _rule(failure: Failure, addresses: Sequence[str]) -> bytes:
    gpu = -1 if failure.address is None else position(failure.address, addresses)
    until = time.time_ns() + int(failure.seconds * 1e9) if failure.seconds is not None else 0
    values: dict[str, Value] = {"gpu": gpu, "code": failure.code, "delay_ms": failure.delay_ms, "calls": 0, "fired": 0}
    values |= {"after": failure.after, "times": -1 if failure.times is None else failure.times}
    values |= {"probability": round(failure.probability * 1_000_000), "seed": failure.seed}
    values |= {"sticky": int(failure.sticky), "until_ns": until, "version": failure.version}
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
