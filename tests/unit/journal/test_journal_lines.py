"""A record and its line: JSON for everybody, and a checksum that tells a cut-off or changed line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.journal.records import (
    MAX_LINE_BYTES,
    MAX_TEXT,
    ClaimId,
    Kind,
    LineError,
    Record,
    decode,
    encode,
    plain,
)

CLAIM = ClaimId("team-a", "train", "uid-1")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def record(**data: object) -> Record:
    return Record(7, "2026-01-02T03:04:05.000006Z", 123, "boot", Kind.PREPARE.value, None, CLAIM, plain(data))


def test_a_line_is_a_json_object_with_the_checksum_last() -> None:
    line = encode(record(phase="Prepared"))
    document = json.loads(line)
    assert line.endswith(b"\n")
    assert list(document)[-1] == "crc"
    assert document["claim"] == {"namespace": "team-a", "name": "train", "uid": "uid-1"}
    assert document["data"] == {"phase": "Prepared"}
    assert "device" not in document, "what does not apply is left out"


@given(VALUES)
def test_what_is_written_is_read_again(value: object) -> None:
    made = record(value=value)
    assert decode(encode(made)[:-1]) == made


@given(st.integers(0, 400), st.integers(0, 255))
def test_no_changed_byte_goes_unnoticed(place: int, byte: int) -> None:
    line = bytearray(encode(record(message="x" * 200))[:-1])
    place %= len(line)
    if line[place] == byte:
        return
    line[place] = byte
    with pytest.raises(LineError):
        decode(bytes(line))


@given(st.data())
def test_no_cut_off_line_is_taken_for_a_record(data: st.DataObject) -> None:
    line = encode(record(message="something"))[:-1]
    cut = data.draw(st.integers(0, len(line) - 1))
    with pytest.raises(LineError):
        decode(line[:cut])


@pytest.mark.bug("B131")
@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_with_a_reason(line: bytes) -> None:
    with pytest.raises(LineError, match="it "):
        decode(line)


def test_a_line_of_a_later_version_with_more_fields_is_read() -> None:
    import zlib

    body = encode(record())[: -len(',"crc":"00000000"}\n')] + b',"later":{"a":1}'
    assert decode(body + b',"crc":"%08x"}' % zlib.crc32(body)) == record()


def test_long_texts_are_cut_and_a_line_is_never_longer_than_its_bound() -> None:
    assert len(plain("x" * 10_000)) == MAX_TEXT
    assert plain("x" * 10_000).endswith("...")
    huge = record(items=["y" * 2000] * 400)
    line = encode(huge)
    assert len(line) <= MAX_LINE_BYTES
    assert "left out" in decode(line[:-1]).data["cut"]


@pytest.mark.bug("B131")
def test_deep_and_odd_values_become_text_instead_of_an_error() -> None:
    deep: object = "end"
    for _ in range(100):
        deep = [deep]
    assert isinstance(plain(deep), list)
    assert plain({"big": 2**80, "bytes": b"\xff", "lone": "\ud800", "set": {"b", "a"}}) == {
        "big": str(2**80),
        "bytes": "b'\\xff'",
        "lone": "?",
        "set": ["a", "b"],
    }


@pytest.mark.bug("B131")
def test_control_characters_cannot_break_a_line() -> None:
    line = encode(record(message="a\nb\x00c\x1b[31m"))
    assert line.count(b"\n") == 1
    assert b"\x1b" not in line
    assert decode(line[:-1]).data["message"] == "a\nb\x00c\x1b[31m"
