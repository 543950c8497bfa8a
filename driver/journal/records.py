"""One record of the journal and the line that it is stored as.

A line is a JSON object, so that ``jq`` and ``grep`` read a journal too. Its last member is ``crc``: the CRC-32 of the
line's bytes before ``,"crc"``, eight hexadecimal digits. A line that was cut off by a crash, or changed since, is
known by it.
"""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Mapping
from typing import Any

import msgspec

MAX_LINE_BYTES = 64 * 1024
MAX_STATE_BYTES = 8 * 1024 * 1024
"""Of a ``state`` record's line: a part of it would be a wrong state."""
MAX_TEXT = 2048
"""Characters of one string in ``data``: messages come from drivers, servers and users."""
_MAX_ITEMS = 512
_MAX_DEPTH = 6
_SEAL = b',"crc":"'
_SEAL_BYTES = len(_SEAL) + 8 + len(b'"}')


class Kind(enum.StrEnum):
    """What a record is about. New kinds may come; readers pass over those that they do not know."""

    AGENT_START = "agent.start"
    AGENT_STOP = "agent.stop"
    SETTINGS = "agent.settings"
    """Settings differ from those of the agent before."""
    REGISTER = "plugin.register"
    """The kubelet took the plugin, or refused it."""
    UNREGISTER = "plugin.unregister"
    """The registration socket was taken away, upon which the kubelet forgets the plugin."""
    DRIVER = "node.driver"
    """NVIDIA's driver came, went, or is another version."""
    DEVICE = "device.state"
    """A GPU appeared, vanished, or is in another state."""
    HEALTH = "device.health"
    TAINT = "device.taint"
    XID = "xid"
    """An event that NVML reported by itself; repeats within a short time are one record with a count."""
    PUBLISH = "slice.publish"
    REFUSED = "slice.refused"
    DROPPED = "slice.dropped"
    """The API server did not keep fields."""
    LOST = "slice.lost"
    """Slices were not as published last and were written again without a change of the node."""
    PREPARE = "claim.prepare"
    UNPREPARE = "claim.unprepare"
    ERROR = "claim.error"
    """Prepare or Unprepare of a claim failed."""
    RECOVER = "claim.recover"
    """Found after a start or a change of the driver: undone, made again, or an orphan's file removed."""
    SWEEP = "claim.sweep"
    """A claim that the API server no longer has was unprepared."""
    IDLE = "claim.idle"
    """A claim's device has not been used for a while, or is used again."""
    MIG_CREATE = "mig.create"
    """A MIG partition stands that did not stand at the last look, whoever made it."""
    MIG_DESTROY = "mig.destroy"
    MIG_RECONCILE = "mig.reconcile"
    """A partition of a claim was made again, or taken back, because a crash or a reboot had come in between."""
    SHARE_GRANT = "share.grant"
    """A claim has a share of a GPU."""
    SHARE_RELEASE = "share.release"
    STATE = "state"
    """Everything that holds at this moment: first in each file, so that a reader needs no older one."""
    GAP = "gap"
    """Something may be missing before this record, or times before and after it do not compare; ``cause`` says why."""


class ClaimId(msgspec.Struct, frozen=True, omit_defaults=True):
    """The claim that a record is about."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry."""

    seq: int
    """Counts up by one from record to record, over restarts and reboots."""
    wall: str
    """RFC 3339, UTC, microseconds. May jump; a jump is told by a ``gap`` with cause ``clock``."""
    mono: int
    """Nanoseconds since the boot (CLOCK_BOOTTIME): compares within one boot id."""
    boot: str
    """The boot id; empty where unknown."""
    kind: str
    device: str | None = None
    """Device name, for records about one."""
    claim: ClaimId | None = None
    data: Mapping[str, Any] = msgspec.field(default_factory=dict)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Record)


class LineError(ValueError):
    """A line is no record; the message says what is wrong with it."""


def encode(record: Record) -> bytes:
    """The line of a record, with its newline. One that would be too long keeps all but its data."""
    line = _seal(_encoder.encode(record))
    if len(line) <= (MAX_STATE_BYTES if record.kind == Kind.STATE else MAX_LINE_BYTES):
        return line
    short = msgspec.structs.replace(record, data={"cut": f"{len(line)} bytes of data were left out"})
    return _seal(_encoder.encode(short))


def _seal(body: bytes) -> bytes:
    payload = body[:-1]
    return b'%s%s%08x"}\n' % (payload, _SEAL, zlib.crc32(payload))


def decode(line: bytes) -> Record:
    """Read a line (without its newline).

    Raises:
        LineError: it is cut off or damaged, or no record.
    """
    payload, seal = line[:-_SEAL_BYTES], line[-_SEAL_BYTES:]
    if not seal.startswith(_SEAL) or not seal.endswith(b'"}'):
        raise LineError("it does not end with a checksum")
    if seal[len(_SEAL) : -2] != b"%08x" % zlib.crc32(payload):
        raise LineError("its checksum does not match")
    try:
        return _decoder.decode(payload + b"}")
    except (msgspec.MsgspecError, RecursionError) as error:
        raise LineError(f"it is no record: {error}") from error


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON can hold it: strings and lists cut, whatever else turned into text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, str):
        text = value.encode("utf-8", "replace").decode()  # a lone surrogate cannot be written
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
    if depth < _MAX_DEPTH:
        if isinstance(value, Mapping):
            return {str(plain(str(key))): plain(one, depth + 1) for key, one in list(value.items())[:_MAX_ITEMS]}
        if isinstance(value, list | tuple | set | frozenset):
            items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
            return [plain(one, depth + 1) for one in list(items)[:_MAX_ITEMS]]
    return plain(str(value))
