"""Changing a node file under the eyes of the processes that have it mapped.

One number is written as it is. Whatever takes more (events, processes, rules) is written under the lock that the
library takes too, ``flock`` on the node file, and becomes visible through its last word (``native.mock.layout``).
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from native.mock import layout
from native.mock.layout import CI, EVENT, GI, GI_PROFILE, GPU, HEADER, PROCESS, RULE, Text
from native.mock.nodefile import encode_rules, position
from native.mock.profile import Failure

EVENT_TYPES: Final = {
    "single-bit-ecc": 0x1,
    "double-bit-ecc": 0x2,
    "pstate": 0x4,
    "xid": 0x8,
    "clock": 0x10,
    "power-source": 0x80,
    "mig-config": 0x100,
    "single-bit-ecc-storm": 0x200,
    "dram-retirement": 0x400,
    "dram-retirement-failure": 0x800,
    "nonfatal-poison": 0x1000,
    "fatal-poison": 0x2000,
    "gpu-unavailable": 0x4000,
    "recovery-action": 0x8000,
}
"""Names of the event types of nvml.h."""
PROCESS_KINDS: Final = {"compute": 0, "graphics": 1, "mps": 2}

NUMBERS: Final = frozenset(member.name for member in GPU.fields if member.kind == "i64" and member.count == 1)
"""The numbers of a GPU that can be set."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that uses a GPU. ``gi`` and ``ci`` say which MIG instance; None is the whole GPU."""

    pid: int
    name: str = "python3"
    memory_mib: int = 0
    kind: str = "compute"
    gi: int | None = None
    ci: int | None = None
    sm: int = 0
    memory: int = 0
    encoder: int = 0
    decoder: int = 0
    """Utilisation in percent, like ``sm`` and ``memory``."""


@dataclass(frozen=True, slots=True)
class ComputeInstance:
    """A compute instance that stands: its id, its place in compute slices, and the index of its MIG device."""

    id: int
    start: int
    size: int
    mig_index: int


@dataclass(frozen=True, slots=True)
class GpuInstance:
    """A GPU instance that stands: its id, profile name and place in memory slices."""

    id: int
    profile: str
    profile_id: int
    start: int
    size: int
    compute_instances: tuple[ComputeInstance, ...]


class NodeFile:
    """An existing node file. Setters write in place, so every process that has it mapped sees the change at once."""

    def __init__(self, path: Path, addresses: Sequence[str]) -> None:
        self.path = path
        self._addresses = tuple(addresses)

    def set_header(self, field: str, value: int) -> None:
        """Set a number of the node, a field of ``layout.HEADER``.

        Raises:
            KeyError: there is no such field.
        """
        self._write((HEADER.offset(field), struct.pack("=q", value)))

    def header(self, field: str) -> int:
        """A number of the node.

        Raises:
            KeyError: there is no such field.
        """
        return int(struct.unpack("=q", self._read(HEADER.offset(field), 8))[0])

    def set_number(self, address: str, field: str, value: int) -> None:
        """Set a number of one GPU, a field of ``layout.GPU``.

        Raises:
            ValueError: the node has no GPU at that address.
            KeyError: there is no such number.
        """
        self._write((self._gpu(address) + _number(field), struct.pack("=q", value)))

    def number(self, address: str, field: str) -> int:
        """A number of one GPU.

        Raises:
            ValueError: the node has no GPU at that address.
            KeyError: there is no such number.
        """
        return int(struct.unpack("=q", self._read(self._gpu(address) + _number(field), 8))[0])

    def set_text(self, address: str | None, field: str, text: Text) -> None:
        """Set what a string getter gives: of one GPU, or of the node (``driver_version``, ``nvml_version``).

        Raises:
            ValueError: the node has no GPU at that address, or the text is too long.
            KeyError: there is no such text.
        """
        record = HEADER if address is None else GPU
        if field not in {member.name for member in record.fields if member.kind == "text"}:
            raise KeyError(field)
        start = 0 if address is None else self._gpu(address)
        self._write((start + record.offset(field), layout.pack_text(text)))

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
        with self._locked():
            self._write(*pieces, (HEADER.offset("rule_count"), struct.pack("=q", len(given))))

    def rules(self) -> list[Failure]:
        """The failures that stand."""
        data = self._read(HEADER.size, RULE.size * layout.RULE_CAPACITY)
        places = (data[place * RULE.size : (place + 1) * RULE.size] for place in range(layout.RULE_CAPACITY))
        return [self._failure(record) for record in places if record[0]]

    def _failure(self, record: bytes) -> Failure:
        def number(name: str) -> int:
            return int(struct.unpack_from("=q", record, RULE.offset(name))[0])

        gpu, times, until = number("gpu"), number("times"), number("until_ns")
        return Failure(
            record[:64].rstrip(b"\0").decode(),
            number("code"),
            self._addresses[gpu] if gpu >= 0 else None,
            number("delay_ms"),
            after=number("after"),
            times=None if times < 0 else times,
            probability=number("probability") / 1_000_000,
            seed=number("seed"),
            sticky=number("sticky") == 1,
            seconds=max((until - time.time_ns()) / 1e9, 0.0) if until else None,
            version=number("version"),
        )

    def add_event(self, address: str, kind: int, data: int, gi: int | None, ci: int | None) -> None:
        """Let something happen on a GPU; whoever waits for it wakes.

        Raises:
            ValueError: the node has no GPU at that address.
        """
        gpu = position(address, self._addresses)
        with self._locked():
            sequence = struct.unpack("=Q", self._read(HEADER.offset("last_event"), 8))[0] + 1
            ids = {"gi": -1 if gi is None else gi, "ci": -1 if ci is None else ci}
            record = EVENT.pack({"sequence": sequence, "gpu": gpu, "type": kind, "data": data, **ids})
            start = HEADER.offset("events") + sequence % layout.EVENTS * EVENT.size
            assert EVENT.offset("sequence") == 0, "a record counts through its first word"
            pieces = [(start, bytes(8)), (start + 8, record[8:]), (start, record[:8])]
            self._write(*pieces, (HEADER.offset("last_event"), record[:8]))

    def set_processes(self, address: str, processes: Iterable[Process]) -> None:
        """Replace the processes of a GPU.

        Raises:
            ValueError: the node has no GPU at that address, too many processes, or a name too long.
            KeyError: no such kind of process.
        """
        records = [_process(process) for process in processes]
        if len(records) > layout.MAX_PROCESSES:
            raise ValueError(f"{len(records)} processes, at most {layout.MAX_PROCESSES} a GPU")
        records += [bytes(PROCESS.size)] * (layout.MAX_PROCESSES - len(records))
        start = self._gpu(address) + GPU.offset("processes")
        with self._locked():
            for place, record in enumerate(records):
                at = start + place * PROCESS.size
                self._write((at, bytes(8)), (at + 8, record[8:]), (at, record[:8]))

    def processes(self, address: str) -> list[int]:
        """The process ids that use a GPU or its MIG instances.

        Raises:
            ValueError: the node has no GPU at that address.
        """
        data = self._read(self._gpu(address) + GPU.offset("processes"), layout.MAX_PROCESSES * PROCESS.size)
        pids = (struct.unpack_from("=Q", data, place * PROCESS.size)[0] for place in range(layout.MAX_PROCESSES))
        return [int(pid) for pid in pids if pid]

    def instances(self, address: str) -> list[GpuInstance]:
        """The MIG instances of a GPU, by id.

        Raises:
            ValueError: the node has no GPU at that address.
        """
        base = self._gpu(address)
        data = self._read(base + GPU.offset("gis"), GI.size * layout.GI_IDS)
        found = []
        for number in range(layout.GI_IDS):
            tag, profile, start, size = struct.unpack_from("=Qqqq", data, number * GI.size)
            if tag:
                where = base + GPU.offset("gi_profiles") + profile * GI_PROFILE.size
                profile_id = struct.unpack("=q", self._read(where + GI_PROFILE.offset("id"), 8))[0]
                name = layout.unpack_text(self._read(where + GI_PROFILE.offset("name"), layout.TEXT_BYTES + 8))
                at = number * GI.size + GI.offset("cis")
                cis = _compute_instances(data[at : at + CI.size * layout.CI_IDS])
                found.append(GpuInstance(number, name.value.decode(errors="replace"), profile_id, start, size, cis))
        return found

    def forget_instances(self, address: str) -> None:
        """Drop all MIG instances of a GPU at once, as a reset does; the files of their capabilities are not touched.

        Raises:
            ValueError: the node has no GPU at that address.
        """
        start = self._gpu(address) + GPU.offset("gis")
        assert GI.offset("tag") == CI.offset("tag") == 0
        with self._locked():
            for gi in range(layout.GI_IDS):
                self._write((start + gi * GI.size, bytes(8)))
                cis = start + gi * GI.size + GI.offset("cis")
                self._write(*((cis + ci * CI.size, bytes(8)) for ci in range(layout.CI_IDS)))

    def _gpu(self, address: str) -> int:
        place = position(address, self._addresses)
        return HEADER.size + RULE.size * layout.RULE_CAPACITY + GPU.size * place

    @contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(descriptor, size, offset)
        finally:
            os.close(descriptor)

    def _write(self, *pieces: tuple[int, bytes]) -> None:
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            for offset, data in pieces:
                os.pwrite(descriptor, data, offset)
        finally:
            os.close(descriptor)


def _number(field: str) -> int:
    if field not in NUMBERS:
        raise KeyError(field)
    return GPU.offset(field)


def _process(process: Process) -> bytes:
    assert PROCESS.offset("pid") == 0, "a record counts through its first word"
    ids = {"gi": -1 if process.gi is None else process.gi, "ci": -1 if process.ci is None else process.ci}
    busy = {"sm": process.sm, "memory_use": process.memory, "encoder": process.encoder, "decoder": process.decoder}
    size = process.memory_mib * 1024 * 1024
    kind = PROCESS_KINDS[process.kind]
    return PROCESS.pack(
        {"pid": process.pid, "kind": kind, "memory": size, "name": process.name.encode(), **ids, **busy}
    )


def _compute_instances(data: bytes) -> tuple[ComputeInstance, ...]:
    found = []
    for number in range(layout.CI_IDS):
        tag, _, start, size, _, index = struct.unpack_from("=Qqqqqq", data, number * CI.size)
        if tag:
            found.append(ComputeInstance(number, start, size, index))
    return tuple(found)
