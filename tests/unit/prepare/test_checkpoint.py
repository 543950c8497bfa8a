"""The checkpoint file: what is committed, what a line looks like, other versions, other writers, failing writes."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
from pathlib import Path

import pytest

from driver.prepare import files
from driver.prepare.checkpoint import Checkpoint
from driver.prepare.errors import ClaimError, Reason
from driver.prepare.records import record_to_json
from driver.prepare.slots import SLOT_BYTES
from tests.unit.prepare.checkpoint_lines import BOOT, commit, loaded, newest, record, sealed


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
