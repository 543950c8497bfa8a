"""The GPUs of a profile: one entry with everything NVML says of it, and the NVLinks between them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from native.mock import layout, migtables, pcie
from native.mock.fields import Fields
from native.mock.layout import Text
from native.mock.migtables import MigBoard
from native.mock.pcie import PciDevice, ProfileError
from native.nvml.errors import NvmlReturn
from native.pci import canonical_address

MIB: Final = 1024 * 1024
BRANDS: Final = {"unknown": 0, "quadro": 1, "tesla": 2, "geforce": 5, "titan": 6, "nvidia": 14, "nvidia-rtx": 12}
ARCHITECTURES: Final = {"turing": 6, "ampere": 7, "ada": 8, "hopper": 9, "blackwell": 10, "rubin": 13}
ADDRESSING_MODES: Final = {"none": 0, "hmm": 1, "ats": 2}
COMPUTE_MODES: Final = {"default": 0, "prohibited": 2, "exclusive-process": 3}
VIRTUALIZATION: Final = {"none": 0, "passthrough": 1, "vgpu": 2, "host-vgpu": 3, "host-vsga": 4}
FABRIC_STATES: Final = {"not-supported": 0, "not-started": 1, "in-progress": 2, "completed": 3}
HEALTH_SUMMARIES: Final = {"not-supported": 0, "healthy": 1, "unhealthy": 2, "limited-capacity": 3}
PEER_TYPES: Final = {"direct": 0, "switch": 1}
NVLINK_VERSIONS: Final = {"1.0": 1, "2.0": 2, "2.2": 3, "3.0": 4, "3.1": 5, "4.0": 6, "5.0": 7, "6.0": 8}
"""nvmlNvlinkVersion_t: the enum is not the generation."""
EVENT_TYPES: Final = {"turing": 0x9F, "ampere": 0xC9F}
"""Supported event masks by architecture; every later one has ``LATER_EVENT_TYPES`` (nvml.h, nvmlEventType*)."""
LATER_EVENT_TYPES: Final = 0xFC9F

_TEXTS: Final = ("board_part_number", "gpu_part_number", "vbios_version", "inforom_image_version")


@dataclass(frozen=True, slots=True)
class Link:
    """One NVLink of a GPU."""

    active: bool
    version: int
    speed_mbps: int
    remote_address: str | None
    remote_type: int
    """nvmlIntNvLinkDeviceType_t: 0 GPU, 2 switch, 255 unknown."""
    remote_link: int
    remote_pci_id: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, resolved. ``numbers`` and ``texts`` are fields of ``layout.GPU`` in NVML's own units and enums."""

    address: str
    device: PciDevice
    uuid: str
    """As NVML spells it; empty where the profile gives foreign bytes."""
    numbers: dict[str, int]
    texts: dict[str, Text]
    clocks: tuple[int, ...]
    max_clocks: tuple[int, ...]
    cluster: bytes
    platform_guid: bytes
    chassis: bytes
    p2p: int
    """nvmlGpuP2PStatus_t over PCIe with every other GPU."""
    links: tuple[Link, ...] = ()
    mig: MigBoard | None = None
    """What MIG can make of it; None for a board that it cannot divide."""


def address_of(entry: dict[str, Any]) -> str:
    """The canonical address of a GPU entry.

    Raises:
        ProfileError: it has none, or it is not one.
    """
    try:
        return canonical_address(str(entry.get("address")))
    except ValueError as error:
        raise ProfileError("gpus", str(error)) from error


def read(entries: Sequence[dict[str, Any]], devices: Sequence[PciDevice], profile: str) -> tuple[Gpu, ...]:
    """The GPUs in index order.

    Raises:
        ProfileError: names the field; also when ``pcie`` and ``gpus`` do not name the same GPUs.
    """
    places = {device.address: device for device in devices if device.kind == "gpu"}
    listed = [address_of(entry) for entry in entries]
    for address in listed:
        if address not in places:
            raise ProfileError("gpus", f"{address} is no gpu of the pcie tree")
    for address in places.keys() - set(listed):
        raise ProfileError("pcie", f"{address} is a gpu, but gpus does not list it")
    gpus = tuple(
        _gpu(Fields(entry, f"gpu {address}"), places[address], index, profile)
        for index, (entry, address) in enumerate(zip(entries, listed, strict=True))
    )
    _distinct(gpus)
    return gpus


def _distinct(gpus: Sequence[Gpu]) -> None:
    for what, values in (("address", [gpu.address for gpu in gpus]), ("minor", [gpu.numbers["minor"] for gpu in gpus])):
        known = [value for value in values if value != -1]
        if len(set(known)) != len(known):
            raise ProfileError("gpus", f"two GPUs have one {what}")


def _gpu(entry: Fields, device: PciDevice, index: int, profile: str) -> Gpu:
    entry.take("address")
    unique = stable_uuid(profile, device.address)
    texts = {name: entry.string(name, None) for name in _TEXTS}
    texts["name"] = entry.string("name")
    texts["uuid"] = entry.string("uuid", f"GPU-{unique}")
    texts["serial"] = entry.string("serial", f"1{unique.int % 10**12:012d}")
    texts["gsp_firmware_version"] = entry.string("gsp_firmware_version", None)
    numbers = _identity(entry, device, index) | _memory(entry) | _modes(entry) | _power(entry) | _fabric(entry)
    numbers |= _counters(numbers)
    mig = _mig(entry, numbers)
    guid, chassis = _platform(entry, numbers)
    clocks, max_clocks = _clocks(entry)
    cluster = _cluster(entry)
    p2p = entry.number("p2p_status", 0, high=6)
    entry.done()
    spelled = texts["uuid"].value.decode(errors="replace")
    board = replace(device, device=numbers["pci_device_id"] >> 16)
    return Gpu(device.address, board, spelled, numbers, texts, clocks, max_clocks, cluster, guid, chassis, p2p, (), mig)


def _identity(entry: Fields, device: PciDevice, index: int) -> dict[str, int]:
    domain, bus, rest = device.address.split(":")
    words = entry.text("compute_capability").split(".")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() for word in words):
        raise ProfileError(entry.where("compute_capability"), 'expected for example "9.0"')
    architecture = entry.text("architecture")
    if architecture not in ARCHITECTURES:
        raise ProfileError(entry.where("architecture"), f"{architecture!r} is none of {', '.join(ARCHITECTURES)}")
    pci_class = entry.number("pci_class", 0x030200, high=0xFFFFFF)
    return {
        "minor": entry.number("minor", index, high=255),
        "module_id": entry.number("module_id", None),
        "pci_domain": int(domain, 16),
        "pci_bus": int(bus, 16),
        "pci_device": int(rest.split(".")[0], 16),
        "pci_device_id": entry.number("pci_device_id", high=0xFFFFFFFF),
        "pci_subsystem_id": entry.number("pci_subsystem_id", high=0xFFFFFFFF),
        "pci_base_class": pci_class >> 16,
        "pci_sub_class": pci_class >> 8 & 0xFF,
        "brand": entry.choice("brand", BRANDS, "nvidia"),
        "architecture": ARCHITECTURES[architecture],
        "cc_major": int(words[0]),
        "cc_minor": int(words[1]),
        # nvidia-smi shows the bus in the second byte of the id, the domain above it (0x80600 is 0008:06)
        "board_id": int(domain, 16) << 16 | int(bus, 16) << 8 | (int(rest.split(".")[0], 16)),
        "event_types": entry.number("event_types", EVENT_TYPES.get(architecture, LATER_EVENT_TYPES)),
        "numa_node": device.numa_node,
    }


def _memory(entry: Fields) -> dict[str, int]:
    found = {"memory_total": -1, "memory_reserved": -1, "memory_used": -1}
    if entry.peek("memory") is not None:
        section = entry.section("memory")
        found = {f"memory_{key}": section.number(f"{key}_mib", 0) * MIB for key in ("reserved", "used")}
        found["memory_total"] = section.number("total_mib") * MIB
        section.done()
        if found["memory_total"] < found["memory_reserved"] + found["memory_used"]:
            raise ProfileError(section.path, "more reserved and used than there is")
    else:
        entry.take("memory")
    bar1 = entry.number("bar1_mib", None)
    numa = entry.number("memory_numa_node", None, high=255)
    return found | {
        "bar1_total": bar1 * MIB if bar1 >= 0 else -1,
        "bar1_used": min(bar1, 1) * MIB,
        "memory_numa_node": numa,
    }


def _modes(entry: Fields) -> dict[str, int]:
    ecc = entry.flag("ecc", None)
    pcie_link = entry.section("pcie", {"generation": None, "width": None})
    generation = pcie_link.number("generation", high=16)
    found = {
        "pcie_generation": generation,
        "pcie_device_generation": pcie_link.number("device_generation", generation if generation >= 0 else None),
        "pcie_width": pcie_link.number("width", high=32),
    }
    pcie_link.done()
    return found | {
        "state": 0,
        "plugged": 1,
        "addressing_mode": entry.choice("addressing_mode", ADDRESSING_MODES, None),
        "ecc_current": ecc,
        "ecc_pending": ecc,
        "compute_mode": entry.choice("compute_mode", COMPUTE_MODES, "default"),
        "persistence": entry.flag("persistence", False),
        "virtualization": entry.choice("virtualization", VIRTUALIZATION, "none"),
        "c2c": entry.flag("c2c", None),
        "performance_state": entry.number("performance_state", 0, high=32),
        "fan_speed": entry.number("fan_percent", None, high=100),
        "fans": entry.number("fans", 0, high=16),
    }


def _mig(entry: Fields, numbers: dict[str, int]) -> MigBoard | None:
    """``mig``: null (cannot), false, true, or ``{mode, board, query, reset, activation}``."""
    given = entry.take("mig", None)
    if given is None:
        numbers |= {"mig_current": -1, "mig_pending": -1}
        return None
    section = Fields(given if isinstance(given, Mapping) else {"mode": given}, entry.where("mig"))
    mode = section.flag("mode")
    device = numbers["pci_device_id"] >> 16
    known = migtables.of_pci_device(device)
    name = section.take("board", known.name if known else None)
    board = migtables.boards().get(name)
    if board is None:
        raise ProfileError(
            section.where("board"),
            f"no MIG profiles are known for PCI device {device:04x}: name one of {', '.join(migtables.boards())}"
            if name is None
            else f"{name!r} is none of {', '.join(migtables.boards())}",
        )
    numbers |= {
        "mig_current": mode,
        "mig_pending": mode,
        "mig_memory_slices": board.memory_slices,
        "mig_compute_slices": board.compute_slices,
        "mig_query": section.flag("query", True),
        # A100 and A30 are reset when the mode changes, later boards are not (nvidia-smi documentation, MIG user guide)
        "mig_reset": section.flag("reset", numbers["architecture"] == ARCHITECTURES["ampere"]),
        "mig_activation": section.choice("activation", {code.name: int(code) for code in NvmlReturn}, "SUCCESS"),
        "mig_instances_made": 0,
    }
    section.done()
    return board


def _counters(numbers: dict[str, int]) -> dict[str, int]:
    """Everything that counts or accuses, as it stands on a healthy board."""
    ecc = 0 if numbers["ecc_current"] == 1 else -1
    # pages are retired before Ampere, rows are remapped since (nvml.h, nvmlDeviceGetRemappedRows)
    remaps = numbers["architecture"] >= ARCHITECTURES["ampere"]
    remap, retired = (ecc, -1) if remaps else (-1, ecc)
    return {
        "throttle_reasons": 1,
        **{f"ecc_{kind}": ecc for kind in ("single", "double", "single_total", "double_total")},
        **{f"remap_{kind}": remap for kind in ("correctable", "uncorrectable", "pending", "failure")},
        "remap_banks": {6: -1, 7: 640, 9: 2560, 10: 3840}.get(numbers["architecture"], -1) if remap == 0 else -1,
        **{f"retired_{kind}": retired for kind in ("single", "double", "pending")},
        "recovery_action": 0,
        "timeslice": 0,
        "channel_repair_pending": remap,
        "tpc_repair_pending": remap,
    }


def _power(entry: Fields) -> dict[str, int]:
    power = entry.section("power_w", {"usage": None})
    heat = entry.section("temperature_c", {"now": None})
    found: dict[str, int] = {}
    for key in ("usage", "limit", "default", "min", "max"):
        watts = power.number(key, None)
        found[f"power_{key}_mw"] = watts * 1000 if watts >= 0 else -1
    found["energy_mj"] = 0 if found["power_usage_mw"] >= 0 else -1
    found["temperature"] = heat.number("now")
    found["temperature_slowdown"] = heat.number("slowdown", None)
    found["temperature_shutdown"] = heat.number("shutdown", None)
    power.done()
    heat.done()
    busy = entry.section("utilization", {})
    found |= {
        "utilization_gpu": busy.number("gpu", 0, high=100),
        "utilization_memory": busy.number("memory", 0, high=100),
        "utilization_encoder": busy.number("encoder", 0, high=100),
        "utilization_decoder": busy.number("decoder", 0, high=100),
    }
    busy.done()
    return found


def _clocks(entry: Fields) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(now, most) in MHz in the order of nvmlClockType_t."""
    section = entry.section("clocks_mhz", {})
    pairs = []
    for key in ("graphics", "sm", "memory", "video"):
        pair = section.sequence(key, [-1, -1])
        if len(pair) != 2 or not all(isinstance(value, int) for value in pair):
            raise ProfileError(section.where(key), "expected [now, most] in MHz")
        pairs.append(pair)
    section.done()
    return tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)


def _fabric(entry: Fields) -> dict[str, int]:
    names = ("state", "status", "clique", "health_mask", "health_summary")
    if entry.peek("fabric") is None:
        return {f"fabric_{name}": -1 for name in names}
    section = Fields(entry.peek("fabric"), entry.where("fabric"))
    section.take("cluster_uuid")
    found = {
        "fabric_state": section.choice("state", FABRIC_STATES),
        "fabric_status": section.number("status", 0, high=999),
        "fabric_clique": section.number("clique", 0, high=0xFFFFFFFF),
        "fabric_health_mask": section.number("health_mask", 0, high=0xFFFFFFFF),
        "fabric_health_summary": section.choice("health_summary", HEALTH_SUMMARIES, "not-supported"),
    }
    section.done()
    return found


def _cluster(entry: Fields) -> bytes:
    fabric = entry.take("fabric", None)
    if fabric is None:
        return bytes(16)
    try:
        return uuid.UUID(str(fabric["cluster_uuid"])).bytes
    except ValueError as error:
        raise ProfileError(entry.where("fabric.cluster_uuid"), f"{fabric['cluster_uuid']!r} is not a UUID") from error


def _platform(entry: Fields, numbers: dict[str, int]) -> tuple[bytes, bytes]:
    if entry.peek("platform") is None:
        entry.take("platform", None)
        numbers |= dict.fromkeys(("platform_slot", "platform_tray", "platform_host", "platform_peer_type"), -1)
        return bytes(16), bytes(16)
    section = entry.section("platform")
    # nvidia-smi shows N/A for a slot or tray of 255
    numbers |= {f"platform_{key}": section.number(key, 255, high=255) for key in ("slot", "tray", "host")}
    numbers["platform_peer_type"] = section.choice("peer_type", PEER_TYPES)
    guid = section.number("guid", 0, high=2**63 - 1).to_bytes(8, "big")
    chassis = section.text("chassis", "").encode()
    section.done()
    return guid.ljust(16, b"\0"), chassis[:16].ljust(16, b"\0")


def connect(gpus: tuple[Gpu, ...], section: Fields, devices: Sequence[PciDevice]) -> tuple[Gpu, ...]:
    """Give the GPUs their NVLinks.

    ``switches``: address -> links that each GPU has to it. ``peers``: ``[index, index, links]`` each, direct.
    ``inactive``: indexes of GPUs whose links are all down; ``links``: how many links a GPU has at least (the rest are
    down), for a board whose bridge is missing.

    Raises:
        ProfileError: names the field.
    """
    if not section.names():
        return gpus
    version = section.choice("version", NVLINK_VERSIONS)
    speed = section.number("speed_mbps")
    switches = section.take("switches", {})
    peers = section.sequence("peers", [])
    inactive = set(section.sequence("inactive", []))
    least = section.number("links", 0, high=layout.MAX_LINKS)
    external = section.flag("external_switches", False) == 1
    section.done()
    known = {device.address: device for device in devices}
    wires: list[list[Link]] = [[] for _ in gpus]
    for address, count in switches.items():
        switch = canonical_address(address)
        if switch not in known and not external:
            raise ProfileError("nvlink.switches", f"{switch} is not in the pcie tree")
        model = known[switch].device if switch in known else 0x22A3
        for index, links in enumerate(wires):
            links += [
                Link(True, version, speed, switch, 2, index * count + at, model << 16 | 0x10DE) for at in range(count)
            ]
    _wire_peers(wires, peers, gpus, version, speed)
    down = Link(False, version, speed, None, 255, -1, -1)
    for index, links in enumerate(wires):
        links.extend([down] * (least - len(links)))
        if len(links) > layout.MAX_LINKS:
            raise ProfileError("nvlink", f"{len(links)} links on one GPU, at most {layout.MAX_LINKS}")
        if index in inactive:
            wires[index] = [down] * len(links)
    return tuple(replace(gpu, links=tuple(links)) for gpu, links in zip(gpus, wires, strict=True))


def _wire_peers(wires: list[list[Link]], peers: list[Any], gpus: tuple[Gpu, ...], version: int, speed: int) -> None:
    for peer in peers:
        if not (isinstance(peer, list) and len(peer) == 3 and all(isinstance(value, int) for value in peer)):
            raise ProfileError("nvlink.peers", f"{peer!r} is not [index, index, links]")
        one, other, count = peer
        if one == other or not (0 <= one < len(gpus) and 0 <= other < len(gpus)):
            raise ProfileError("nvlink.peers", f"{peer!r} does not name two GPUs of this node")
        starts = len(wires[one]), len(wires[other])
        for at in range(count):
            for index, far, start in ((one, other, starts[1]), (other, one, starts[0])):
                target = gpus[far]
                wires[index].append(
                    Link(True, version, speed, target.address, 0, start + at, target.numbers["pci_device_id"])
                )


def stable_uuid(*parts: str) -> uuid.UUID:
    """A UUID that depends on nothing but its parts, so that a profile gives the same node each time."""
    return uuid.uuid5(uuid.UUID("3b6f0f0e-8f0b-5d53-9d0a-6770756472a1"), "/".join(parts))


def linked(one: Gpu, other: Gpu) -> bool:
    """Whether two GPUs reach each other over NVLink: directly, or through a switch that both have a live link to."""
    far = {link.remote_address for link in one.links if link.active}
    if other.address in far:
        return True
    switches = {link.remote_address for link in other.links if link.active and link.remote_type == 2}
    return bool(far & switches)


def topology_level(one: Gpu, other: Gpu) -> int:
    """nvmlGpuTopologyLevel_t of a pair."""
    return int(pcie.level(one.device, other.device))
