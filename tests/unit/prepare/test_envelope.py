"""The checkpoint's form on disk: read back as it was written, any damage noticed, older forms read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import envelope
from driver.prepare.claims import ClaimRef
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase, record_from_json
from tests.unit.prepare.test_claims import JSON

DATA = Path(__file__).parent / "data"


@pytest.mark.bug("B69")
@pytest.mark.parametrize("name", ["checkpoint-v1.json", "checkpoint-v1-numbered.json"])
def test_files_of_every_form_are_read(name: str) -> None:
    state = envelope.decode((DATA / name).read_bytes())
    assert state.boot_id == "1f0c2a11-0d6f-4b6d-9a6e-3f0e6a0e0f3a"
    assert state.sequence == 7
    assert [(uid, str(item.phase)) for uid, item in state.records.items()] == [
        ("u1", "Prepared"),
        ("u2", "Preparing"),
        ("u3", "Unpreparing"),
    ]
    first = state.records["u1"]
    assert first.ref == ClaimRef("ns", "claim-u1", "u1")
    assert [(d.request, d.share_id, d.admin_access) for d in first.devices] == [
        ("a", None, False),
        ("b/big", "3f0e6a0e-0f3a-4b6d-9a6e-0d6f1f0c2a11", True),
    ]


@pytest.mark.bug("B69")
def test_the_present_form_is_written_byte_for_byte() -> None:
    stored = (DATA / "checkpoint-v1-numbered.json").read_bytes()
    assert envelope.encode(envelope.decode(stored)) + b"\n" == stored


def test_an_object_tells_its_number_although_its_data_is_damaged() -> None:
    raw = bytearray(envelope.encode(envelope.State(sequence=41)))
    raw[-3] ^= 1
    with pytest.raises(envelope.DamagedError, match="checksum does not match"):
        envelope.decode(bytes(raw))
    assert envelope.number_of(bytes(raw)) == 41
    assert envelope.number_of(bytes(raw[:120])) == 41


@given(st.integers(0, 2**60), st.data())
def test_a_number_with_any_flipped_byte_before_it_is_none(sequence: int, data: st.DataObject) -> None:
    raw = bytearray(envelope.encode(envelope.State(sequence=sequence)))
    end = raw.index(b'","data"')
    raw[data.draw(st.integers(0, end - 1))] ^= data.draw(st.integers(1, 255))
    assert envelope.number_of(bytes(raw)) is None


def test_what_has_no_number_has_none() -> None:
    assert envelope.number_of((DATA / "checkpoint-v1.json").read_bytes()) is None
    assert envelope.number_of(b"") is None


TEXT = st.text(max_size=12)
HARDWARE = st.frozensets(TEXT, max_size=3)
UNKNOWN = st.dictionaries(TEXT.map(lambda key: f"x{key}"), st.integers(-9, 9) | TEXT | st.none(), max_size=2)
STEP_DATA = st.dictionaries(TEXT.map(lambda name: f"step {name}"), UNKNOWN, max_size=2)
DEVICES = st.builds(
    DeviceRecord, TEXT, TEXT, TEXT, st.none() | TEXT, st.booleans(), TEXT, TEXT, TEXT, STEP_DATA, UNKNOWN
)
UIDS = st.from_regex(r"\A[A-Za-z0-9]([A-Za-z0-9-]{0,20}[A-Za-z0-9])?\Z")


@st.composite
def states(draw: st.DrawFn) -> envelope.State:
    records = {}
    for uid in draw(st.lists(UIDS, max_size=4, unique=True)):
        records[uid] = ClaimRecord(
            ClaimRef(draw(TEXT), draw(TEXT), uid),
            draw(st.sampled_from(Phase)),
            tuple(draw(st.lists(DEVICES, max_size=2))),
            draw(st.none() | TEXT),
            draw(st.none() | TEXT),
            draw(st.none() | TEXT),
            draw(HARDWARE),
            draw(STEP_DATA),
            draw(UNKNOWN),
            draw(st.none() | TEXT),
        )
    return envelope.State(
        records,
        draw(st.none() | TEXT),
        draw(st.integers(0, 2**60)),
        dict[str, object](draw(UNKNOWN)) | {"minReader": 1},
    )


@given(states())
def test_what_is_encoded_is_decoded_again(state: envelope.State) -> None:
    assert envelope.decode(envelope.encode(state)) == state


@given(states(), st.data())
def test_any_flipped_byte_is_noticed(state: envelope.State, data: st.DataObject) -> None:
    raw = bytearray(envelope.encode(state))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(envelope.DamagedError):
        envelope.decode(bytes(raw))


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_as_damaged(raw: bytes) -> None:
    with pytest.raises(envelope.DamagedError):
        envelope.decode(raw)


@given(JSON)
def test_any_stored_value_is_a_record_or_a_record_in_doubt(value: Any) -> None:
    assert record_from_json("u1", value).doubt
    assert not record_from_json("u1", value).trusted
