"""The SONAME of a shared library, from its ELF dynamic section (System V ABI, chapters 4 and 5). Reads no more."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

_MAGIC = b"\x7fELF"
_CLASS_64 = b"\x02"
_PT_LOAD = 1
_PT_DYNAMIC = 2
_DT_NULL = 0
_DT_STRTAB = 5
_DT_SONAME = 14
_MAX_SEGMENTS = 256
_MAX_ENTRIES = 4096
_MAX_NAME = 256


class _Segment(NamedTuple):
    kind: int
    offset: int
    address: int
    size: int


class _NoLibraryError(Exception):
    """Cut short, or its tables point outside of it: no library that a loader would take either."""


def soname(path: Path) -> str | None:
    """The SONAME of the library at ``path``; None where the file is no 64-bit ELF library, or has none.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        try:
            return _read(file)
        except _NoLibraryError:
            return None


def _read(file: BinaryIO) -> str | None:
    if _bytes(file, 0, 5) != _MAGIC + _CLASS_64:
        return None
    order = "<" if _bytes(file, 5, 1) == b"\x01" else ">"
    (table,) = _numbers(file, f"{order}Q", 32)
    entry, count = _numbers(file, f"{order}HH", 54)
    segments = list(_segments(file, order, table, entry, count))
    dynamic = next((segment for segment in segments if segment.kind == _PT_DYNAMIC), None)
    tags = dict(_tags(file, order, dynamic)) if dynamic is not None else {}
    strings = _file_offset(segments, tags.get(_DT_STRTAB))
    if strings is None or _DT_SONAME not in tags:
        return None
    return _name(file, strings + tags[_DT_SONAME])


def _name(file: BinaryIO, offset: int) -> str | None:
    available = os.fstat(file.fileno()).st_size - offset
    raw = _bytes(file, offset, min(_MAX_NAME, available)).split(b"\0", 1)[0]
    name = raw.decode("ascii", errors="replace")
    return name if name and name.isprintable() and name.isascii() and "/" not in name else None


def _bytes(file: BinaryIO, offset: int, size: int) -> bytes:
    if size <= 0 or offset < 0 or offset + size > os.fstat(file.fileno()).st_size:
        raise _NoLibraryError
    file.seek(offset)
    return file.read(size)


def _numbers(file: BinaryIO, form: str, offset: int) -> tuple[int, ...]:
    numbers: tuple[int, ...] = struct.unpack(form, _bytes(file, offset, struct.calcsize(form)))
    return numbers


def _segments(file: BinaryIO, order: str, table: int, entry: int, count: int) -> Iterator[_Segment]:
    for index in range(min(count, _MAX_SEGMENTS)):
        kind, _flags, offset, address, _physical, size = _numbers(file, f"{order}IIQQQQ", table + index * entry)
        yield _Segment(kind, offset, address, size)


def _tags(file: BinaryIO, order: str, dynamic: _Segment) -> Iterator[tuple[int, int]]:
    for index in range(min(dynamic.size // 16, _MAX_ENTRIES)):
        tag, value = _numbers(file, f"{order}QQ", dynamic.offset + index * 16)
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
