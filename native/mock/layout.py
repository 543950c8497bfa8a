"""The node file: one flat binary record of a mock node that every process maps. This table is its only definition.

The C header ``csrc/node_layout.h`` is generated from it (``python -m native.mock.generate``), so that Python, which
writes the file, and C, which reads it through mmap, cannot disagree. Every number is a signed 64-bit integer in the
machine's byte order and -1 means "this board does not have it" (NVML_ERROR_NOT_SUPPORTED); every record is a
multiple of eight bytes, so there is no padding to get wrong.

    header | rules[rule_capacity] | gpus[gpu_count] | levels[n*n] | p2p[n*n] | nvlink_p2p[n*n]

The three matrices hold one byte a pair: nvmlGpuTopologyLevel_t, and nvmlGpuP2PStatus_t over PCIe and over NVLink.

Whoever changes more than one number (MIG instances, events, processes) holds ``flock`` on the node file meanwhile, on a
description of its own: the kernel lets go of it when a process dies, so nobody can leave it locked. A record counts
only while its ``tag`` (or ``sequence``) is set, which is written last and taken away first, and everything else
(occupied slices, engine pools) is derived from the records that count: a process killed half way leaves no half state.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

MAGIC: Final = b"GPUDRAMK"
TEXT_BYTES: Final = 120
RULE_CAPACITY: Final = 64
MAX_LINKS: Final = 36
CPU_WORDS: Final = 32
NODE_WORDS: Final = 4
GI_PROFILES: Final = 18
"""NVML_GPU_INSTANCE_PROFILE_COUNT of the vendored header."""
GI_IDS: Final = 15
"""GPU instance ids form a heap: 0 the whole, 1-2 halves, 3-6 quarters, 7-14 eighths."""
CI_IDS: Final = 8
MAX_STARTS: Final = 8
MAX_PROCESSES: Final = 32
EVENTS: Final = 256
"""How many events the ring keeps: a set that looks away for longer loses the oldest."""


@dataclass(frozen=True, slots=True)
class Text:
    """What a string getter gives. ``unterminated``: it fills the caller's whole buffer and writes no NUL."""

    value: bytes = b""
    unterminated: bool = False
    absent: bool = False
    """The getter answers NOT_SUPPORTED."""


Value = int | bytes | Text | tuple[int, ...] | list[bytes]


@dataclass(frozen=True, slots=True)
class Field:
    """One member of a record: ``kind`` is ``i64``, ``u64``, ``byte``, ``text`` or the name of another record."""

    name: str
    kind: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class Record:
    """A C struct and the way to write one."""

    name: str
    fields: tuple[Field, ...]

    @property
    def size(self) -> int:
        """Size in bytes; a multiple of eight."""
        return sum(_size(member) for member in self.fields)

    def offset(self, name: str) -> int:
        """Where a field starts, in bytes from the start of the record.

        Raises:
            KeyError: the record has no such field.
        """
        position = 0
        for member in self.fields:
            if member.name == name:
                return position
            position += _size(member)
        raise KeyError(name)

    def pack(self, values: Mapping[str, Value]) -> bytes:
        """The record's bytes; a field that ``values`` lacks is 0, or -1 for a signed number.

        Raises:
            KeyError: a value for a field that the record does not have.
            ValueError: a value that does not fit its field.
        """
        unknown = values.keys() - {member.name for member in self.fields}
        if unknown:
            raise KeyError(f"{self.name} has no field {', '.join(sorted(unknown))}")
        return b"".join(_pack(member, values.get(member.name)) for member in self.fields)


def _numbers(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "i64") for name in names)


def _texts(*names: str) -> tuple[Field, ...]:
    return tuple(Field(name, "text") for name in names)


LINK: Final = Record(
    "mock_link",
    _numbers(
        "state",  # -1: the GPU has no such link; 0 inactive, 1 active
        "version",
        "remote_type",
        "remote_domain",
        "remote_bus",
        "remote_device",
        "remote_pci_id",
        "remote_subsystem_id",
        "speed_mbps",
        "remote_link",
    ),
)

RULE: Final = Record(
    "mock_rule",
    (
        Field("function", "byte", 64),
        *_numbers(
            "gpu",
            "code",
            "delay_ms",
            "calls",  # counted by the library
            "fired",  # counted by the library
            "after",
            "times",  # -1: without end
            "probability",  # of 1,000,000
            "seed",
            "sticky",
            "until_ns",  # CLOCK_REALTIME; 0: without end
            "version",  # 0: any; else only a struct of this version is refused
        ),
    ),
)
"""A function (or a prefix and ``*``) that fails or is slow: ``gpu`` -1 is all; a ``code`` of -1 only delays;
``delay_ms`` -1 waits until the rule is gone. See ``native.mock.profile.Failure`` for the rest."""

GI_PROFILE: Final = Record(
    "mock_gi_profile",
    (
        *_numbers(
            "id",  # -1: the board has no profile of this index
            "slices",
            "instances",
            "memory_mib",
            "multiprocessors",
            "copy",
            "decoder",
            "encoder",
            "jpeg",
            "ofa",
            "p2p",
            "gfx",
            "size",  # in memory slices
            "start_count",
        ),
        Field("starts", "i64", MAX_STARTS),
        *_texts("name"),
    ),
)

CI: Final = Record(
    "mock_ci", (Field("tag", "u64"), *_numbers("profile", "start", "size", "multiprocessors", "mig_index"))
)
"""A compute instance; its place in the array is its id. ``tag`` 0: there is none."""

GI: Final = Record(
    "mock_gi",
    (Field("tag", "u64"), *_numbers("profile", "start", "size"), Field("cis", "mock_ci", CI_IDS)),
)
"""A GPU instance; its place in the array is its id. ``tag`` 0: there is none; ``profile`` is an index, not an id."""

PROCESS: Final = Record(
    "mock_process",
    (
        Field("pid", "u64"),  # 0: no process
        *_numbers("kind", "memory", "gi", "ci", "sm", "memory_use", "encoder", "decoder"),
        Field("name", "byte", 64),
    ),
)
"""``kind`` 0 compute, 1 graphics, 2 MPS; ``gi`` and ``ci`` -1: the whole GPU; ``memory`` in bytes; the rest percent."""

EVENT: Final = Record("mock_event", (Field("sequence", "u64"), *_numbers("gpu", "type", "data", "gi", "ci")))
"""``sequence`` counts from 1 and is the place in the ring modulo its size; 0: none."""

GPU: Final = Record(
    "mock_gpu",
    (
        *_texts(
            "uuid",
            "name",
            "serial",
            "board_part_number",
            "gpu_part_number",
            "vbios_version",
            "inforom_image_version",
            "gsp_firmware_version",
        ),
        *_numbers(
            "state",  # 0 working, 1 lost, 2 unplugged, 3 does not answer
            "plugged",  # counts how often the GPU was plugged in: handles from before are lost
            "minor",
            "module_id",
            "pci_domain",
            "pci_bus",
            "pci_device",
            "pci_device_id",
            "pci_subsystem_id",
            "pci_base_class",
            "pci_sub_class",
            "brand",
            "architecture",
            "cc_major",
            "cc_minor",
            "board_id",
            "memory_total",
            "memory_reserved",
            "memory_used",
            "bar1_total",
            "bar1_used",
            "addressing_mode",
            "ecc_current",
            "ecc_pending",
            "mig_current",
            "mig_pending",
            "mig_memory_slices",
            "mig_compute_slices",
            "mig_query",  # 1: profiles can be read while MIG is off
            "mig_reset",  # 1: changing the mode resets the board
            "mig_activation",  # what activating a change of mode gives, 0: it works
            "mig_instances_made",  # the source of tags
            "compute_mode",
            "timeslice",  # of compute-policy: 0 default, 1 short, 2 medium, 3 long
            "persistence",
            "virtualization",
            "pcie_generation",
            "pcie_device_generation",
            "pcie_width",
            "memory_numa_node",
            "numa_node",
            "power_usage_mw",
            "power_limit_mw",
            "power_default_mw",
            "power_min_mw",
            "power_max_mw",
            "energy_mj",
            "temperature",
            "temperature_slowdown",
            "temperature_shutdown",
            "utilization_gpu",
            "utilization_memory",
            "utilization_encoder",
            "utilization_decoder",
            "throttle_reasons",
            "ecc_single",
            "ecc_double",
            "ecc_single_total",
            "ecc_double_total",
            "remap_correctable",
            "remap_uncorrectable",
            "remap_pending",
            "remap_failure",
            "remap_banks",
            "retired_single",  # pages retired before Ampere, those that wait included
            "retired_double",
            "retired_pending",
            "recovery_action",
            "channel_repair_pending",
            "tpc_repair_pending",
            "performance_state",
            "fan_speed",
            "fans",
            "event_types",
            "c2c",
            "fabric_state",
            "fabric_status",
            "fabric_clique",
            "fabric_health_mask",
            "fabric_health_summary",
            "platform_slot",
            "platform_tray",
            "platform_host",
            "platform_peer_type",
        ),
        Field("clocks", "i64", 4),
        Field("max_clocks", "i64", 4),
        Field("cpus", "u64", CPU_WORDS),
        Field("socket_cpus", "u64", CPU_WORDS),
        Field("memory_nodes", "u64", NODE_WORDS),
        Field("fabric_cluster", "byte", 16),
        Field("platform_guid", "byte", 16),
        Field("platform_chassis", "byte", 16),
        Field("links", "mock_link", MAX_LINKS),
        Field("gi_profiles", "mock_gi_profile", GI_PROFILES),
        Field("gis", "mock_gi", GI_IDS),
        Field("processes", "mock_process", MAX_PROCESSES),
    ),
)

HEADER: Final = Record(
    "mock_node",
    (
        Field("magic", "byte", 8),
        Field("layout", "u64"),
        Field("generation", "u64"),
        *_numbers(
            "size",
            "driver_loaded",
            "driver_generation",  # counts reloads: a session from before must be opened anew
            "version_mismatch",  # 1: library and kernel module are of different versions
            "cuda_version",
            "gpu_count",
            "gpu_offset",
            "rule_capacity",
            "rule_count",  # places from the first on that may hold a rule: a healthy node is not searched
            "rule_offset",
            "level_offset",
            "p2p_offset",
            "nvlink_p2p_offset",
        ),
        *_texts("driver_version", "nvml_version", "profile"),
        Field("last_event", "u64"),  # its sequence; 0: none yet
        Field("events", "mock_event", EVENTS),
    ),
)

RECORDS: Final = {record.name: record for record in (LINK, RULE, GI_PROFILE, CI, GI, PROCESS, EVENT, GPU, HEADER)}
_UNIT: Final = {"i64": 8, "u64": 8, "byte": 1, "text": TEXT_BYTES + 8}


def _size(member: Field) -> int:
    unit = _UNIT[member.kind] if member.kind in _UNIT else RECORDS[member.kind].size
    return unit * member.count


def _pack(member: Field, value: Value | None) -> bytes:
    if member.kind == "text":
        return pack_text(value if isinstance(value, Text) else Text(absent=value is None))
    if member.kind == "byte":
        data = value if isinstance(value, bytes) else b""
        if len(data) > member.count:
            raise ValueError(f"{member.name}: {len(data)} bytes, at most {member.count}")
        return data.ljust(member.count, b"\0")
    if member.kind in RECORDS:
        record = RECORDS[member.kind]
        given = list(value) if isinstance(value, list) else []
        return b"".join([*given, *[record.pack({})] * (member.count - len(given))])
    missing = 0 if member.kind == "u64" else -1
    numbers = value if isinstance(value, tuple) else (value if isinstance(value, int) else missing,)
    filled = [*numbers, *[missing] * (member.count - len(numbers))]
    return struct.pack(f"={member.count}{'Q' if member.kind == 'u64' else 'q'}", *filled)


def pack_text(text: Text) -> bytes:
    """The bytes of a text field.

    Raises:
        ValueError: more bytes than it has room for.
    """
    if len(text.value) > TEXT_BYTES:
        raise ValueError(f"a text of {len(text.value)} bytes, at most {TEXT_BYTES}")
    length = -1 if text.absent else len(text.value)
    return struct.pack(f"=ii{TEXT_BYTES}s", length, int(text.unterminated), text.value)


def unpack_text(data: bytes) -> Text:
    """The text that the bytes of a text field hold."""
    length, unterminated, room = struct.unpack(f"=ii{TEXT_BYTES}s", data)
    return Text(room[: max(length, 0)], unterminated=bool(unterminated), absent=length < 0)


def _c_member(member: Field) -> str:
    kinds = {"i64": "int64_t", "u64": "uint64_t", "byte": "unsigned char", "text": "struct mock_text"}
    kind = kinds.get(member.kind, f"struct {member.kind}")
    array = f"[{member.count}]" if member.count > 1 else ""
    return f"    {kind} {member.name}{array};"


def fingerprint() -> int:
    """A 63-bit hash of the layout: a library refuses a node file that another layout wrote."""
    text = "\n".join(_c_member(member) for record in RECORDS.values() for member in record.fields)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def c_header() -> str:
    """The text of ``csrc/node_layout.h``."""
    lines = [
        "/* Generated by native/mock/generate.py from native/mock/layout.py. Do not edit. */",
        "#ifndef GPUDRA_MOCK_NODE_LAYOUT_H",
        "#define GPUDRA_MOCK_NODE_LAYOUT_H",
        "",
        "#include <stdint.h>",
        "",
        f'#define MOCK_MAGIC "{MAGIC.decode()}"',
        f"#define MOCK_LAYOUT UINT64_C({fingerprint()})",
        f"#define MOCK_MAX_LINKS {MAX_LINKS}",
        f"#define MOCK_CPU_WORDS {CPU_WORDS}",
        f"#define MOCK_NODE_WORDS {NODE_WORDS}",
        f"#define MOCK_TEXT_BYTES {TEXT_BYTES}",
        f"#define MOCK_RULES {RULE_CAPACITY}",
        f"#define MOCK_GI_PROFILES {GI_PROFILES}",
        f"#define MOCK_GI_IDS {GI_IDS}",
        f"#define MOCK_CI_IDS {CI_IDS}",
        f"#define MOCK_MAX_STARTS {MAX_STARTS}",
        f"#define MOCK_MAX_PROCESSES {MAX_PROCESSES}",
        f"#define MOCK_EVENTS {EVENTS}",
        "",
        "/* length -1: the getter is not supported */",
        "struct mock_text {",
        "    int32_t length;",
        "    int32_t unterminated;",
        "    char bytes[MOCK_TEXT_BYTES];",
        "};",
        "",
    ]
    for record in RECORDS.values():
        lines += [f"struct {record.name} {{", *map(_c_member, record.fields), "};"]
        lines += [f'_Static_assert(sizeof(struct {record.name}) == {record.size}, "{record.name}");', ""]
    return "\n".join([*lines, "#endif"]) + "\n"
