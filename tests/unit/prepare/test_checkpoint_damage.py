"""A damaged checkpoint: what is set aside, what still serves, what is in doubt, and when everything stops."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.prepare import files
from driver.prepare.checkpoint import Checkpoint, Loaded
from driver.prepare.errors import ClaimError, Reason
from tests.unit.prepare.checkpoint_lines import BOOT, commit, loaded, newest, place, record, sealed


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


@pytest.mark.bug("B68")
@pytest.mark.parametrize("slot", range(4))
def test_a_file_that_was_cut_short_is_never_taken_for_all_there_was(folder: Path, slot: int) -> None:
    """An old line that is whole is left of it: claims that came and went since are not in it."""
    checkpoint = loaded(folder)
    for number in range(8):
        commit(checkpoint, {"u9": record("u9", 3) if number % 2 == slot % 2 else None})
    raw = (folder / "checkpoint.json").read_bytes()
    for end in _cuts(raw, slot):
        (folder / "checkpoint.json").write_bytes(raw[:end])
        again = Checkpoint(folder)
        outcome = again.refresh(BOOT)
        assert outcome is not None
        assert not outcome.complete, end
        assert not [one for one in again.records.values() if one.trusted], end


def _cuts(raw: bytes, slot: int) -> list[int]:
    """Ends within a slot, at its line's end and around it."""
    size = len(raw) // 4
    line = slot * size + len(raw[slot * size :][:size].rstrip(b" \n"))
    return [line - 1, line, line + 1, line + 2, line + 512, (slot + 1) * size - 1, *([(slot + 1) * size] * (slot < 3))]


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
