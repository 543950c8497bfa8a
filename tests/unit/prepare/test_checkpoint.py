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

from driver.prepare import files
from driver.prepare.checkpoint import Checkpoint, Loaded
from driver.prepare.claims import ClaimRef
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import ClaimRecord, DeviceRecord, Phase, record_to_json
from driver.prepare.slots import SLOT_BYTES, SLOTS

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
    checkpoint.refresh(BOOT)
    return checkpoint


def newest(folder: Path) -> dict[str, Any]:
    """The newest line's data."""
    lines = [line for line in (folder / "checkpoint.json").read_bytes().split(b"\n") if line.strip()]
    documents: list[dict[str, Any]] = [json.loads(line)["data"] for line in lines]
    return max(documents, key=lambda document: int(document["sequence"]))


def place(folder: Path, number: int) -> int:
    """Where the line of this sequence stands."""
    return number % SLOTS * (folder / "checkpoint.json").stat().st_size // SLOTS


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
    outcome = Checkpoint(tmp_path).refresh(BOOT)
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
def test_each_line_is_json_with_a_checksum_over_the_bytes_of_its_data(folder: Path) -> None:
    lines = (folder / "checkpoint.json").read_bytes().split()
    for line in lines:
        data = line.split(b'"data":', 1)[1].removesuffix(b"}")
        assert json.loads(line)["checksum"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert [sorted(json.loads(line)["data"]["claims"]) for line in lines] == [["u1"], ["u1", "u2"]]
    assert newest(folder)["claims"]["u1"]["name"] == "c-u1"


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
    stored = newest(tmp_path)
    assert stored["futureField"] == data["futureField"]
    assert stored["claims"]["u1"]["laterClaimField"] == 1
    assert stored["claims"]["u1"]["devices"][0]["laterDeviceField"] is None


@pytest.mark.bug("B69")
@pytest.mark.bug("B121")
def test_a_form_that_is_too_new_is_refused_in_clear_words_and_left_as_it_is(tmp_path: Path) -> None:
    content = sealed(b'{"version":9,"minReader":9,"other":true}')
    (tmp_path / "checkpoint.json").write_bytes(content)
    with pytest.raises(ClaimError, match="written by a later version") as caught:
        Checkpoint(tmp_path).refresh(BOOT)
    assert caught.value.reason is Reason.STATE_UNAVAILABLE
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.json"]
    assert (tmp_path / "checkpoint.json").read_bytes() == content


@pytest.mark.bug("B71")
def test_a_file_without_a_boot_id_is_of_an_unknown_boot(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.json").write_bytes(sealed(b'{"version":1,"claims":{}}'))
    assert loaded(tmp_path).boot_id is None


def flip(path: Path, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
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
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"{"),
    "NULs": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "blanks": lambda path: path.write_bytes(b" " * path.stat().st_size),
    "a list": lambda path: path.write_bytes(b"[]"),
    "null": lambda path: path.write_bytes(b"null"),
    "a string": lambda path: path.write_bytes(b'"x"'),
    "sealed nonsense": lambda path: path.write_bytes(sealed(b"[]")),
    "sealed claims of the wrong kind": lambda path: path.write_bytes(sealed(b'{"claims":[]}')),
    "sealed with a path for a UID": lambda path: path.write_bytes(sealed(b'{"claims":{"../x":{}}}')),
    "sealed nesting": lambda path: path.write_bytes(sealed(b"[" * 100000)),
    "half of it": lambda path: os.truncate(path, path.stat().st_size // 2),
    "a byte missing": lambda path: os.truncate(path, path.stat().st_size - 1),
    "a folder": be_a_folder,
    "a link": be_a_link,
    "200 MB": be_huge,
}


@pytest.mark.bug("B68")
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_file_that_is_of_no_use_is_set_aside_and_the_start_goes_on(
    folder: Path, damage: Callable[[Path], object]
) -> None:
    damage(folder / "checkpoint.json")
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh(BOOT)
    assert outcome is not None
    assert not outcome.complete
    assert os.path.lexists(folder / "checkpoint.json.damaged-1")
    (problem,) = outcome.problems
    assert problem.subject == str(folder / "checkpoint.json")
    assert "kept as checkpoint.json.damaged-1" in problem.message
    assert not checkpoint.records
    commit(checkpoint, {"u3": record("u3", 3)})
    assert set(loaded(folder).records) == {"u3"}


IN_THE_NEWEST: dict[str, tuple[int, bytes]] = {
    "in its data": (220, b"~"),
    "in its checksum": (30, b"~"),
    "in its number": (98, b"0"),
    "NULs over its beginning": (0, b"\0" * 512),
    "NULs over all of it": (0, b"\0" * 4096),
    "another file's bytes": (0, os.urandom(512)),
}


@pytest.mark.bug("B68")
@pytest.mark.parametrize(("offset", "junk"), IN_THE_NEWEST.values(), ids=IN_THE_NEWEST.keys())
def test_a_damaged_newest_line_is_kept_aside_and_the_one_before_serves_in_doubt(
    folder: Path, offset: int, junk: bytes
) -> None:
    raw = overwrite(folder, place(folder, 2) + offset, junk)
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh(BOOT)
    assert outcome is not None
    assert not outcome.complete
    assert (folder / "checkpoint.json.damaged-1").read_bytes() == raw
    (problem,) = outcome.problems
    assert "kept as checkpoint.json.damaged-1" in problem.message
    assert set(checkpoint.records) == {"u1"}
    assert checkpoint.records["u1"].doubt
    assert checkpoint.records["u1"].hardware == record("u1", 1).hardware
    commit(checkpoint, {})
    assert loaded(folder).records["u1"].doubt


def overwrite(folder: Path, offset: int, junk: bytes) -> bytes:
    """Put bytes over the file's; gives what it is then."""
    with (folder / "checkpoint.json").open("r+b") as file:
        file.seek(offset)
        file.write(junk)
    return (folder / "checkpoint.json").read_bytes()


@pytest.mark.bug("B68")
@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("offset", [0, 30, 98, 220])
def test_damage_to_an_older_line_is_no_damage_to_the_newest(folder: Path, number: int, offset: int) -> None:
    checkpoint = loaded(folder)
    for uid in ("u3", "u4", "u5"):
        commit(checkpoint, {uid: record(uid, 3)})
    overwrite(folder, place(folder, number) + offset, b"~")
    again = Checkpoint(folder)
    outcome = again.refresh(BOOT)
    assert outcome is not None
    # Of a line whose beginning cannot be read only its place tells how old it is, and the oldest may be the newest.
    told = number == 3 or offset == 220
    assert outcome.complete is told
    assert set(again.records) == {"u1", "u2", "u3", "u4", "u5"}
    assert all(one.trusted is told for one in again.records.values())
    commit(again, {"u6": record("u6", 6)})
    assert set(loaded(folder).records) == {"u1", "u2", "u3", "u4", "u5", "u6"}


@pytest.mark.bug("B68")
def test_what_was_not_whole_when_an_earlier_boot_ended_leaves_no_doubt(folder: Path) -> None:
    overwrite(folder, place(folder, 2), b"\0" * 512)
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh("the next boot")
    assert outcome is not None
    assert outcome.complete
    assert "before this boot was not whole" in outcome.problems[0].message
    assert checkpoint.records["u1"].trusted
    assert not list(folder.glob("*.damaged-*"))


def test_a_process_killed_in_a_write_leaves_the_state_of_before_without_a_doubt(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With enough claims for a line of several pages, cut off behind each of its writes."""
    checkpoint = loaded(folder)
    many = {f"m{number}": record(f"m{number}", 3) for number in range(30)}
    commit(checkpoint, many)
    writes = []
    real = os.pwrite

    def cut(descriptor: int, data: bytes, offset: int) -> int:
        if writes:
            raise KeyboardInterrupt
        writes.append(len(data))
        return real(descriptor, data[: len(data) // 2], offset)

    for _ in range(4):  # every place in turn
        before = dict(checkpoint.records)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", cut)
            with pytest.raises(KeyboardInterrupt):
                commit(checkpoint, {"u3": record("u3", 3)})
        writes.clear()
        checkpoint = Checkpoint(folder)
        assert checkpoint.refresh(BOOT) == Loaded()
        assert checkpoint.records == before
        uid = f"n{len(before)}"
        commit(checkpoint, {uid: record(uid, 3)})


@pytest.mark.bug("B68")
def test_several_damaged_files_are_all_kept(folder: Path) -> None:
    for number in (2, 3, 4):
        overwrite(folder, place(folder, number), b"\0" * 512)
        commit(loaded(folder), {})
    assert sorted(path.name for path in folder.glob("*.damaged-*")) == [
        f"checkpoint.json.damaged-{number}" for number in (1, 2, 3)
    ]


@pytest.mark.bug("B75")
def test_one_bad_record_is_in_doubt_and_keeps_what_it_mentions_withheld(folder: Path) -> None:
    document = newest(folder)
    document["claims"]["u1"]["devices"][0].pop("cdiDevice")
    document["claims"]["u9"] = "potato"
    (folder / "checkpoint.json").write_bytes(sealed(json.dumps(document).encode()))
    checkpoint = Checkpoint(folder)
    outcome = checkpoint.refresh(BOOT)
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
    stored = newest(folder)["claims"]
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
            checkpoint.refresh(BOOT)
        assert caught.value.reason is Reason.STATE_UNAVAILABLE
        assert not caught.value.permanent
    assert (folder / "checkpoint.json").read_bytes() == before
    checkpoint.refresh(BOOT)
    assert set(checkpoint.records) == {"u1", "u2"}


@pytest.mark.bug("B64")
def test_a_useless_file_that_cannot_be_set_aside_stops_everything(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "checkpoint.json").write_bytes(b"{")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ClaimError, match="cannot be set aside: Read-only file system"):
        Checkpoint(folder).refresh(BOOT)


@pytest.mark.bug("B64")
def test_a_damaged_file_that_cannot_be_copied_stops_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = overwrite(folder, place(folder, 2), b"\0" * 512)

    def full(path: Path, data: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_new", full)
    with pytest.raises(ClaimError, match="cannot be set aside: No space left"):
        Checkpoint(folder).refresh(BOOT)
    assert (folder / "checkpoint.json").read_bytes() == raw


def test_a_change_by_another_process_is_seen(folder: Path) -> None:
    ours, theirs = loaded(folder), loaded(folder)
    commit(theirs, {"u3": record("u3", 3)})
    assert "u3" not in ours.records
    assert ours.refresh(BOOT) is not None
    assert "u3" in ours.records
    assert ours.refresh(BOOT) is None


def test_a_file_that_is_removed_while_the_driver_runs_is_written_again(folder: Path) -> None:
    checkpoint = loaded(folder)
    (folder / "checkpoint.json").unlink()
    outcome = checkpoint.refresh(BOOT)
    assert outcome is not None
    assert "was removed" in outcome.problems[0].message
    assert checkpoint.refresh(BOOT) is None
    commit(checkpoint, {"u3": record("u3", 3)})
    assert set(loaded(folder).records) == {"u1", "u2", "u3"}


@pytest.mark.bug("B63")
@pytest.mark.parametrize(
    ("call", "code"), [("pwrite", errno.ENOSPC), ("fdatasync", errno.EIO), ("pwrite", errno.EROFS)]
)
def test_a_write_that_fails_leaves_the_old_state_and_says_why(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    checkpoint = loaded(folder)
    commit(checkpoint, {})

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
    assert set(checkpoint.records) == {"u1", "u2"}
    commit(checkpoint, {"u4": record("u4", 4)})
    assert set(loaded(folder).records) == {"u1", "u2", "u4"}


@pytest.mark.bug("B63")
@pytest.mark.parametrize(
    ("call", "code"),
    [("write", errno.ENOSPC), ("fsync", errno.EIO), ("open", errno.EACCES), ("fchmod", errno.EPERM)],
)
def test_a_first_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    checkpoint = loaded(tmp_path)

    def fail(*arguments: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ClaimError, match=os.strerror(code)):
            commit(checkpoint, {"u3": record("u3", 3)})
    assert list(tmp_path.iterdir()) == []
    commit(checkpoint, {"u3": record("u3", 3)})
    assert set(loaded(tmp_path).records) == {"u3"}


@pytest.mark.bug("B63")
def test_on_a_full_disk_changes_that_free_something_find_their_place_and_those_that_need_a_larger_file_do_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = loaded(folder)
    size = checkpoint.path.stat().st_size
    many = {f"m{number}": record(f"m{number}", 3) for number in range(SLOT_BYTES // 200)}

    def full(path: Path, data: bytes, mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_new", full)
        with pytest.raises(ClaimError, match="free space"):
            commit(checkpoint, many)
        commit(checkpoint, {"u1": None}, frees=True)
        commit(checkpoint, {"u5": record("u5", 5)})
    assert set(loaded(folder).records) == {"u2", "u5"}
    commit(checkpoint, many)
    assert checkpoint.path.stat().st_size > size
    assert set(loaded(folder).records) == {"u2", "u5", *many}


def test_changes_of_many_threads_all_arrive_in_fewer_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = loaded(folder)
    writes: list[int] = []
    first_write, go_on = threading.Event(), threading.Event()
    original = os.pwrite

    def slow(descriptor: int, data: bytes, offset: int) -> int:
        if offset % SLOT_BYTES == 0:
            writes.append(len(data))
            first_write.set()
            assert go_on.wait(30)
        return original(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", slow)
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

    def fail(descriptor: int, data: bytes, offset: int) -> int:
        inside.set()
        assert go_on.wait(30)
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    failures: list[ClaimError] = []

    def attempt(uid: str) -> None:
        try:
            commit(checkpoint, {uid: record(uid, 3)})
        except ClaimError as error:
            failures.append(error)

    monkeypatch.setattr(os, "pwrite", fail)
    monkeypatch.setattr(files, "write_new", fail)
    threads = [threading.Thread(target=attempt, args=(f"t{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(30)
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert len(failures) == 4
    assert set(checkpoint.records) == {"u1", "u2"}
