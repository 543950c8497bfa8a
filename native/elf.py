"""The SONAME of a shared library, from its ELF dynamic section (System V ABI, chapters 4 and 5). Reads no more."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_MAGIC = b"\x7fELF"
_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_STRTAB = 5
_DT_SONAME = 14
_MAX_ENTRIES = 4096
_MAX_NAME = 256


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


def soname(path: Path) -> str | None:
    """The SONAME of the library at ``path``; None where the file is no 64-bit ELF library, or has none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            return _read(file)
        except (struct.error, UnicodeDecodeError):
            # Cut short, or its tables point outside of it: no library that a loader would take either.
            return None


def _read(file: BinaryIO) -> str | None:
    header = file.read(64)
    if header[:4] != _MAGIC or header[4:5] != b"\x02":
        return None
    order = "<" if header[5] == 1 else ">"
    table, entry, count = (
        struct.unpack_from(f"{order}Q", header, 32)[0],
        *struct.unpack_from(f"{order}HH", header, 54),
    )
    segments = list(_segments(file, order, table, entry, count))
    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    if dynamic is None:
        return None
    tags = dict(_tags(file, order, dynamic))
    strings = _file_offset(segments, tags.get(_DT_STRTAB))
    if strings is None or _DT_SONAME not in tags:
        return None
    file.seek(strings + tags[_DT_SONAME])
    name = file.read(_MAX_NAME).split(b"\0", 1)[0].decode()
    return name if name and "/" not in name else None


def _segments(file: BinaryIO, order: str, table: int, entry: int, count: int) -> Iterator[_Segment]:
    for index in range(count):
        file.seek(table + index * entry)
        kind, _flags, offset, address, _physical, size = struct.unpack(f"{order}IIQQQQ", file.read(40))
        yield _Segment(kind, offset, address, size)


def _tags(file: BinaryIO, order: str, dynamic: _Segment) -> Iterator[tuple[int, int]]:
    file.seek(dynamic.offset)
    for _ in range(min(dynamic.size // 16, _MAX_ENTRIES)):
        tag, value = struct.unpack(f"{order}QQ", file.read(16))
        if tag == _DT_NULL:
            return
        yield tag, value


def _file_offset(segments: list[_Segment], address: int | None) -> int | None:
    """Where in the file a virtual address lies."""
    if address is None:
        return None
    for segment in segments:
        if segment.kind == _PT_LOAD and segment.address <= address < segment.address + segment.size:
            return address - segment.address + segment.offset
    return None
