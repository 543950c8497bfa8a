"""The checkpoint: whole or as it was, never lost, never trusted when damaged, readable across versions."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from driver.prepare import envelope, files
from driver.prepare.checkpoint import Checkpoint
from driver.prepare.claims import ClaimRef
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase, record_from_json, record_to_json
from tests.unit.prepare.test_claims import JSON

BOOT = "6a0c0f3e-boot"


def record(uid: str, index: int = 0, **changes: Any) -> ClaimRecord:
    device = DeviceRecord(
        "req",
        "node-a",
        f"gpu-0000-1{index}-00-0",
        None,
        False,
        f"0000:1{index}:00.0",
        f"GPU-{index:08}",
        f"{uid}_req_gpu",
    )
    made = ClaimRecord(ClaimRef("ns", f"c-{uid}", uid), Phase.PREPARED, (device,), BOOT, "abc")
    return msgspec.structs.replace(made, **changes)


def loaded(folder: Path) -> Checkpoint:
    checkpoint = Checkpoint(folder)
    checkpoint.refresh()
    return checkpoint


def commit(checkpoint: Checkpoint, changes: Mapping[str, ClaimRecord | None], **options: Any) -> None:
    checkpoint.commit(changes, boot_id=BOOT, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpoint = loaded(tmp_path)
    commit(checkpoint, {"u1": record("u1", 1)})
    commit(checkpoint, {"u2": record("u2", 2)})
    return tmp_path


def test_what_was_committed_is_there_after_a_restart(folder: Path) -> None:
    checkpoint = loaded(folder)
    assert checkpoint.records == {"u1": record("u1", 1), "u2": record("u2", 2)}
    assert checkpoint.boot_id == BOOT
    commit(checkpoint, {"u1": None})
    assert loaded(folder).records == {"u2": record("u2", 2)}


def test_a_first_start_has_no_records_and_no_problem(tmp_path: Path) -> None:
    outcome = Checkpoint(tmp_path).refresh()
    assert outcome is not None
    assert not outcome.problems


def test_records_are_a_value_that_later_changes_leave_alone(folder: Path) -> None:
    checkpoint = loaded(folder)
    before = checkpoint.records
    commit(checkpoint, {"u1": None})
    assert set(before) == {"u1", "u2"}


def test_the_file_is_for_root_alone(folder: Path) -> None:
    assert (folder / "checkpoint.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.bug("B70")
def test_the_checksum_is_over_the_bytes_on_disk_and_the_file_is_plain_json(folder: Path) -> None:
    raw = (folder / "checkpoint.json").read_bytes()
    data = raw.split(b'"data":', 1)[1].removesuffix(b"}\n")
    assert json.loads(raw)["checksum"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert json.loads(raw)["data"]["claims"]["u1"]["name"] == "c-u1"


def sealed(data: bytes) -> bytes:
    return b'{"checksum":"sha256:%s","data":%s}\n' % (hashlib.sha256(data).hexdigest().encode(), data)


@pytest.mark.bug("B70")
@pytest.mark.bug("B53")
def test_fields_order_and_spelling_of_another_version_are_read_and_unknown_fields_survive_a_rewrite(
    tmp_path: Path,
) -> None:
    data = {
        "futureField": {"a": [1, 2.5, "ü"]},
        "claims": {
            "u1": {
                "laterClaimField": 1,
                "devices": [{**record_to_json(record("u1", 1))["devices"][0], "laterDeviceField": None}],  # type: ignore[index]
                "phase": "Prepared",
                "name": "c-u1",
                "namespace": "ns",
            }
        },
        "version": 2,
        "minReader": 1,
    }
    (tmp_path / "checkpoint.json").write_bytes(sealed(json.dumps(data, indent=1).encode()))
    checkpoint = loaded(tmp_path)
    assert checkpoint.records["u1"].trusted
    commit(checkpoint, {"u2": record("u2", 2)})
    stored = json.loads((tmp_path / "checkpoint.json").read_bytes())["data"]
    assert stored["futureField"] == data["futureField"]
    assert stored["claims"]["u1"]["laterClaimField"] == 1
    assert stored["claims"]["u1"]["devices"][0]["laterDeviceField"] is None


@pytest.mark.bug("B69")
def test_files_of_every_released_form_are_read() -> None:
    golden = Path(__file__).parent / "data" / "checkpoint-v1.json"
    state = envelope.decode(golden.read_bytes())
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
    assert envelope.encode(state) == golden.read_bytes()


@pytest.mark.bug("B69")
@pytest.mark.bug("B121")
def test_a_form_that_is_too_new_is_refused_in_clear_words_and_left_as_it_is(tmp_path: Path) -> None:
    content = sealed(b'{"version":9,"minReader":9,"other":true}')
    (tmp_path / "checkpoint.json").write_bytes(content)
    with pytest.raises(ClaimError, match="written by a later version") as caught:
        Checkpoint(tmp_path).refresh()
    assert caught.value.reason is Reason.STATE_UNAVAILABLE
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]
    assert (tmp_path / "checkpoint.json").read_bytes() == content


@pytest.mark.bug("B71")
def test_a_file_without_a_boot_id_is_of_an_unknown_boot(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_bytes(sealed(b'{"version":1,"claims":{}}'))
    assert loaded(tmp_path).boot_id is None


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(bytes(raw))


def be_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("x")


def be_a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def be_huge(path: Path) -> None:
    os.truncate(path, 200 * 1024 * 1024)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"{"),
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "the last byte missing": lambda path: os.truncate(path, path.stat().st_size - 1),
    "NULs": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "a string": lambda path: path.write_bytes(b'"x"'),
    "sealed nonsense": lambda path: path.write_bytes(sealed(b"[]")),
    "sealed claims of the wrong kind": lambda path: path.write_bytes(sealed(b'{"claims":[]}')),
    "sealed with a path for a UID": lambda path: path.write_bytes(sealed(b'{"claims":{"../x":{}}}')),
    "sealed nesting": lambda path: path.write_bytes(sealed(b"[" * 100000)),
    "a folder": be_a_folder,
    "a link": be_a_link,
    "200 MB": be_huge,
}


@pytest.mark.bug("B68")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_set_aside_and_the_copy_before_it_serves_in_doubt(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(folder / "checkpoint.json")
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh()
    assert outcome is not None
    assert not outcome.complete
    assert os.path.lexists(folder / "checkpoint.json.damaged-1")
    (problem,) = outcome.problems
    assert problem.subject == str(folder / "checkpoint.json")
    assert "kept as checkpoint.json.damaged-1" in problem.message
    assert set(checkpoint.records) == {"u1"}
    assert checkpoint.records["u1"].doubt
    assert checkpoint.records["u1"].hardware == record("u1", 1).hardware
    commit(checkpoint, {})
    assert loaded(folder).records["u1"].doubt


@pytest.mark.bug("B68")
def test_several_damaged_files_are_all_kept(folder: Path) -> None:
    for _ in range(3):
        flip(folder / "checkpoint.json")
        commit(loaded(folder), {})
    assert sorted(path.name for path in folder.glob("*.damaged-*")) == [
        f"checkpoint.json.damaged-{number}" for number in (1, 2, 3)
    ]


@pytest.mark.bug("B68")
def test_with_both_copies_damaged_the_start_still_goes_on(folder: Path) -> None:
    flip(folder / "checkpoint.json")
    flip(folder / "checkpoint.json.previous")
    outcome = Checkpoint(folder).refresh()
    assert outcome is not None
    assert not outcome.complete
    assert "of no use either" in outcome.problems[0].message


@pytest.mark.bug("B68")
def test_a_missing_file_with_an_earlier_copy_is_no_first_start(folder: Path) -> None:
    (folder / "checkpoint.json").unlink()
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh()
    assert outcome is not None
    assert not outcome.complete
    assert checkpoint.records["u1"].doubt


@pytest.mark.bug("B75")
def test_one_bad_record_is_in_doubt_and_keeps_what_it_mentions_withheld(folder: Path) -> None:
    document = json.loads((folder / "checkpoint.json").read_bytes())["data"]
    document["claims"]["u1"]["devices"][0].pop("cdiDevice")
    document["claims"]["u9"] = "potato"
    (folder / "checkpoint.json").write_bytes(sealed(json.dumps(document).encode()))
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh()
    assert outcome is not None
    assert outcome.complete
    assert len(outcome.problems) == 2
    assert checkpoint.records["u2"].trusted
    bad = checkpoint.records["u1"]
    assert bad.doubt
    assert "claims.u1.devices[0].cdiDevice" in bad.doubt
    assert bad.hardware == record("u1", 1).hardware
    assert (bad.ref.namespace, bad.ref.name) == ("ns", "c-u1")
    commit(checkpoint, {})
    stored = json.loads((folder / "checkpoint.json").read_bytes())["data"]["claims"]
    assert stored["u9"]["unreadable"] == "potato"


@pytest.mark.bug("B64")
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EPERM])
def test_a_file_that_cannot_be_read_stops_everything_and_is_not_touched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    before = (folder / "checkpoint.json").read_bytes()

    def refuse(path: Path, limit: int) -> bytes:
        raise OSError(code, os.strerror(code), str(path))

    checkpoint = Checkpoint(folder)
    with monkeypatch.context() as patch:
        patch.setattr(files, "read_regular", refuse)
        with pytest.raises(ClaimError, match=os.strerror(code)) as caught:
            checkpoint.refresh()
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        assert not caught.value.permanent
    assert (folder / "checkpoint.json").read_bytes() == before
    checkpoint.refresh()
    assert set(checkpoint.records) == {"u1", "u2"}


@pytest.mark.bug("B64")
def test_a_damaged_file_that_cannot_be_set_aside_stops_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(folder / "checkpoint.json")
    checkpoint = Checkpoint(folder)

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ClaimError, match="cannot be set aside: Read-only file system"):
        checkpoint.refresh()


def test_a_change_by_another_process_is_seen(folder: Path) -> None:
    ours, theirs = loaded(folder), loaded(folder)
    commit(theirs, {"u3": record("u3", 3)})
    assert "u3" not in ours.records
    assert ours.refresh() is not None
    assert "u3" in ours.records
    assert ours.refresh() is None


def test_a_file_that_is_removed_while_the_driver_runs_is_written_again(folder: Path) -> None:
    checkpoint = loaded(folder)
    (folder / "checkpoint.json").unlink()
    outcome = checkpoint.refresh()
    assert outcome is not None
    assert "was removed" in outcome.problems[0].message
    assert checkpoint.refresh() is None
    commit(checkpoint, {"u3": record("u3", 3)})
    assert set(loaded(folder).records) == {"u1", "u2", "u3"}


@pytest.mark.bug("B63")
@pytest.mark.parametrize(
    ("call", "code"),
    [("write", errno.ENOSPC), ("fsync", errno.EIO), ("open", errno.EACCES), ("fchmod", errno.EPERM)],
)
def test_a_write_that_fails_leaves_the_old_state_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    checkpoint = loaded(folder)
    before = (folder / "checkpoint.json").read_bytes()

    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ClaimError) as caught:
            commit(checkpoint, {"u3": record("u3", 3)})
    assert caught.value.reason is Reason.WRITE_FAILED
    assert not caught.value.permanent
    assert os.strerror(code) in str(caught.value)
    assert str(folder / "checkpoint.json") in str(caught.value)
    assert (folder / "checkpoint.json").read_bytes() == before
    assert set(checkpoint.records) == {"u1", "u2"}
    assert not list(folder.glob("*.tmp"))
    commit(checkpoint, {"u3": record("u3", 3)})
    assert "u3" in loaded(folder).records


def test_changes_go_into_two_files_in_turn_and_the_second_copy_is_the_state_before(folder: Path) -> None:
    checkpoint = loaded(folder)
    inodes = set()
    before = checkpoint.path.read_bytes()
    for number in range(6):
        commit(checkpoint, {"u3": record("u3", 3) if number % 2 else None})
        previous = folder / "checkpoint.json.previous"
        assert previous.read_bytes() == before
        before = checkpoint.path.read_bytes()
        inodes |= {checkpoint.path.stat().st_ino, previous.stat().st_ino}
    assert len(inodes) == 2
    assert loaded(folder).records == checkpoint.records


def test_a_write_that_was_cut_short_is_written_again_from_scratch(folder: Path) -> None:
    (folder / "checkpoint.json.previous").rename(folder / "checkpoint.json.tmp")
    (folder / "checkpoint.json.tmp").write_bytes(b"half")
    checkpoint = loaded(folder)
    assert set(checkpoint.records) == {"u1", "u2"}
    commit(checkpoint, {"u3": record("u3", 3)})
    assert set(loaded(folder).records) == {"u1", "u2", "u3"}
    assert not (folder / "checkpoint.json.tmp").exists()


@pytest.mark.bug("B63")
def test_on_a_full_disk_changes_that_free_something_use_the_reserve_and_others_do_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = loaded(folder)
    reserve = folder / "checkpoint.json.reserve"
    assert reserve.stat().st_blocks > 0

    def full(path: Path, data: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_over", full)
        with pytest.raises(ClaimError, match="free space"):
            commit(checkpoint, {"u3": record("u3", 3)})
        commit(checkpoint, {"u1": None}, frees=True)
    assert set(loaded(folder).records) == {"u2"}
    assert reserve.stat().st_blocks > 0


def test_changes_of_many_threads_all_arrive_in_fewer_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = loaded(folder)
    writes: list[int] = []
    first_write, go_on = threading.Event(), threading.Event()
    original = files.write_over

    def slow(path: Path, data: bytes, mode: int) -> None:
        writes.append(len(data))
        first_write.set()
        assert go_on.wait(30)
        original(path, data, mode)

    monkeypatch.setattr(files, "write_over", slow)
    threads = [threading.Thread(target=commit, args=(checkpoint, {f"t{n}": record(f"t{n}", 3)})) for n in range(9)]
    threads[0].start()
    assert first_write.wait(30)
    for thread in threads[1:]:
        thread.start()
    while len(checkpoint._queue) < 8:
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert {f"t{n}" for n in range(9)} <= set(loaded(folder).records)
    assert len(writes) == 2


def test_one_failed_write_fails_every_change_that_was_in_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = loaded(folder)
    inside, go_on = threading.Event(), threading.Event()

    def fail(path: Path, data: bytes, mode: int) -> None:
        inside.set()
        assert go_on.wait(30)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    failures: list[ClaimError] = []

    def attempt(uid: str) -> None:
        try:
            commit(checkpoint, {uid: record(uid, 3)})
        except ClaimError as error:
            failures.append(error)

    monkeypatch.setattr(files, "write_over", fail)
    threads = [threading.Thread(target=attempt, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(failures) == 4
    assert set(checkpoint.records) == {"u1", "u2"}


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


@pytest.mark.bug("B68")
def test_the_second_copy_is_kept_until_there_is_a_sound_first_one(folder: Path) -> None:
    previous = (folder / "checkpoint.json.previous").read_bytes()
    (folder / "checkpoint.json").unlink()
    checkpoint = loaded(folder)
    assert (folder / "checkpoint.json.previous").read_bytes() == previous
    commit(checkpoint, {})
    commit(checkpoint, {"u3": record("u3", 3)})
    assert envelope.decode((folder / "checkpoint.json.previous").read_bytes()).records.keys() == {"u1"}
    assert envelope.decode((folder / "checkpoint.json").read_bytes()).records.keys() == {"u1", "u3"}
