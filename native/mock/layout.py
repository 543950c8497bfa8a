"""The node file: one flat binary record of a mock node that every process maps. This table is its only definition.

The C header ``csrc/node_layout.h`` is generated from it (``python -m native.mock.generate``), so that Python, which
writes the file, and C, which reads it through mmap, cannot disagree. Every number is a signed 64-bit integer in the
machine's byte order and -1 means "this board does not have it" (NVML_ERROR_NOT_SUPPORTED); every record is a
multiple of eight bytes, so there is no padding to get wrong.

    header | rules[rule_capacity] | gpus[gpu_count] | levels[n*n] | p2p[n*n] | nvlink_p2p[n*n]

The three matrices hold one byte a pair: nvmlGpuTopologyLevel_t, and nvmlGpuP2PStatus_t over PCIe and over NVLink.
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
        *_numbers("gpu", "code", "delay_ms", "calls", "reserved"),
    ),
)
"""A function that fails or is slow: ``gpu`` -1 is all; a ``code`` of -1 only delays; ``delay_ms`` -1 waits until the
rule is gone. ``calls`` counts, ``reserved`` waits for probabilities and nth calls."""

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
            "state",  # 0 working, 1 lost
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
            "compute_mode",
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
        Field("reserved", "i64", 32),  # a robust mutex and event rings find room here
    ),
)

RECORDS: Final = {record.name: record for record in (LINK, RULE, GPU, HEADER)}
_UNIT: Final = {"i64": 8, "u64": 8, "byte": 1, "text": TEXT_BYTES + 8}


def _size(member: Field) -> int:
    unit = _UNIT[member.kind] if member.kind in _UNIT else RECORDS[member.kind].size
    return unit * member.count


def _pack(member: Field, value: Value | None) -> bytes:
    if member.kind == "text":
        return _pack_text(value if isinstance(value, Text) else Text(absent=value is None))
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


def _pack_text(text: Text) -> bytes:
    if len(text.value) > TEXT_BYTES:
        raise ValueError(f"a text of {len(text.value)} bytes, at most {TEXT_BYTES}")
    length = -1 if text.absent else len(text.value)
    return struct.pack(f"=ii{TEXT_BYTES}s", length, int(text.unterminated), text.value)


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
