"""The checkpoint's form on disk: one JSON object whose checksum covers the bytes of its data as they stand there.

    {"checksum":"sha256:<64 hex digits>","number":"7-<8 hex digits>","data":{"version":1,"minReader":1,"sequence":7,
    "bootID":"...","claims":{...}}}

``number`` is the sequence with a checksum of its own (CRC-32 of the checksum and the sequence), so that it can be told
how new an object is whose data is damaged; the first versions wrote none. The other checksum is over stored bytes,
never over an object that was serialised again: a field that one version adds or writes in another order cannot make the
file look corrupt to another version. ``minReader`` is the oldest version of the form that may read it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from driver.prepare.claims import is_claim_uid
from driver.prepare.document import Cursor, DocumentError
from driver.prepare.records import ClaimRecord, record_from_json, record_to_json

VERSION = 1
_HEAD = b'{"checksum":"sha256:'
_MIDDLE = b'","data":'
_TAIL = b"}"
_DIGEST_LENGTH = 64
_NUMBER = re.compile(rb'\A\{"checksum":"sha256:([0-9a-f]{64})","number":"([0-9]{1,20})-([0-9a-f]{8})')


class DamagedError(Exception):
    """The bytes are not those that were written."""


class TooNewError(Exception):
    """A later version wrote this, in a form that this version must not touch."""


class State(msgspec.Struct, frozen=True):
    """All records, as one value."""

    records: Mapping[str, ClaimRecord] = msgspec.field(default_factory=dict)
    boot_id: str | None = None
    """The boot in which it was written; None: unknown."""
    sequence: int = 0
    """Counts the writes."""
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Fields of later versions."""


def encode(state: State) -> bytes:
    """One line, without a newline."""
    document: dict[str, object] = {"minReader": 1, **state.extra}
    document.update(
        version=VERSION,
        sequence=state.sequence,
        bootID=state.boot_id,
        claims={uid: record_to_json(record) for uid, record in state.records.items()},
    )
    data = msgspec.json.encode(document)
    digest, number = hashlib.sha256(data).hexdigest().encode(), b"%d" % state.sequence
    return b"".join((_HEAD, digest, b'","number":"', number, b"-", _crc(digest, number), _MIDDLE, data, _TAIL))


def number_of(raw: bytes) -> int | None:
    """The sequence that stands at the beginning of an object, whatever the rest is like; None: none that is sound."""
    found = _NUMBER.match(raw)
    if found is None or _crc(found[1], found[2]) != found[3]:
        return None
    return int(found[2])


def _crc(digest: bytes, number: bytes) -> bytes:
    return b"%08x" % zlib.crc32(digest + b"-" + number)


def decode(raw: bytes) -> State:
    """Read an object's bytes. A record that cannot be read alone is kept in doubt and spoils no other.

    Raises:
        DamagedError: not what any version wrote.
        TooNewError: sound, but not for this version.
    """
    data = _checked(raw)
    try:
        root = Cursor(msgspec.json.decode(data), "checkpoint")
        oldest = root.find("minReader")
        if oldest is not None and oldest.integer() > VERSION:
            raise TooNewError(
                f"it was written by a later version of the driver (form {root.get('version').integer()}, readable from "
                f"form {oldest.integer()} on; this version knows form {VERSION})"
            )
        boot_id, sequence = root.find("bootID"), root.find("sequence")
        records = {uid: record_from_json(uid, item.value) for uid, item in root.get("claims").members()}
        bad = [uid for uid in records if not is_claim_uid(uid)]
        if bad:
            raise DamagedError(f"it has a claim under the key {bad[0][:64]!a}, which is no UID")
        known = {"version", "sequence", "bootID", "claims"}
        return State(
            records=MappingProxyType(records),
            boot_id=boot_id.text() if boot_id else None,
            sequence=sequence.integer() if sequence else 0,
            extra={key: value for key, value in root.as_object().items() if key not in known},
        )
    except (msgspec.DecodeError, DocumentError, RecursionError) as error:
        raise DamagedError(f"its content is not that of a checkpoint: {error}") from error


def _checked(raw: bytes) -> bytes:
    if not raw:
        raise DamagedError("it is empty")
    raw = raw.rstrip(b" \n")
    digest_end = len(_HEAD) + _DIGEST_LENGTH
    numbered = _NUMBER.match(raw)
    middle = numbered.end() if numbered else digest_end
    data_start = middle + len(_MIDDLE)
    if not raw.startswith(_HEAD) or raw[middle:data_start] != _MIDDLE or not raw.endswith(_TAIL):
        raise DamagedError(f"it is not a checkpoint, or only part of one ({len(raw)} bytes)")
    if numbered and number_of(raw) is None:
        raise DamagedError("the checksum of its number does not match")
    data = raw[data_start : -len(_TAIL)]
    if not hmac.compare_digest(hashlib.sha256(data).hexdigest().encode(), raw[len(_HEAD) : digest_end]):
        raise DamagedError("its checksum does not match its content")
    return data
