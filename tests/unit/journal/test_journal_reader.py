"""The reading end: whole, from a number on, or along with the writer."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from driver.journal import Damage, Journal, Kind, Record, follow, read, replay

WAIT = 20.0


def write(folder: Any, count: int, **options: Any) -> Journal:
    journal: Journal = folder.journal(**options)
    for number in range(count):
        journal.record(Kind.XID, device="gpu-0", data={"n": number, "text": "x" * 50})
    assert journal.settled(WAIT)
    return journal


def test_a_journal_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read(tmp_path / "none"))


def test_reading_starts_at_the_wanted_number(folder: Any) -> None:
    write(folder, 300, max_bytes=64 * 1024)
    assert len(folder.files()) > 3
    assert [record.seq for record in read(folder.path, since=250)] == list(range(250, folder.records()[-1].seq + 1))


def test_a_damaged_line_is_told_and_the_rest_is_read(folder: Any) -> None:
    write(folder, 5).close()
    (path,) = folder.files()
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b'"n":1', b'"n":7')
    path.write_bytes(b"\n".join(lines))
    entries = list(read(folder.path))
    told = [entry for entry in entries if isinstance(entry, Damage)]
    assert [(one.file, one.line) for one in told] == [(path.name, 3), (path.name, 4)]
    assert "checksum" in told[0].reason
    assert "1 records" in told[1].reason
    assert [entry.data["n"] for entry in entries if isinstance(entry, Record) and entry.kind == "xid"] == [0, 2, 3, 4]


@pytest.mark.bug("B68")
@given(cut=st.integers(0, 4000), junk=st.binary(max_size=40))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_cut_off_at_any_byte_it_is_taken_up_again_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, cut: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("j") / "journal"
    journal = Journal(path, boot_id="b")
    journal.start()
    for number in range(8):
        journal.record(Kind.DEVICE, device=f"gpu-{number}", data={"after": "ready"})
    journal.close()
    (file,) = path.glob("*.jsonl")
    data = file.read_bytes()
    cut = min(cut, len(data))
    file.write_bytes(data[:cut] + junk.replace(b"\n", b""))
    again = Journal(path, boot_id="b")
    again.start()
    again.record(Kind.DEVICE, device="later", data={"after": "ready"})
    assert again.close()
    entries = list(read(path))
    records = [entry for entry in entries if isinstance(entry, Record)]
    assert len(records) == len(entries), "no line is left that cannot be read"
    seqs = [record.seq for record in records]
    assert seqs == sorted(set(seqs))
    whole = data[:cut].count(b"\n")
    assert len([one for one in records if one.kind == "device.state"]) == max(0, whole - 1) + 1
    assert replay(records) == again.state()
    if whole:
        assert [one.data["cause"] for one in records if one.kind == "gap"][-1] == "killed"


def test_following_gives_what_was_there_and_what_comes(folder: Any) -> None:
    journal = write(folder, 3)
    stop = threading.Event()
    seen: list[Any] = []
    came = threading.Event()

    def run() -> None:
        for entry in follow(folder.path, stop, poll_seconds=0.01):
            seen.append(entry)
            if isinstance(entry, Record) and entry.data.get("last"):
                came.set()
                return

    reader = threading.Thread(target=run)
    reader.start()
    journal.record(Kind.XID, data={"last": True})
    assert came.wait(WAIT)
    stop.set()
    reader.join(WAIT)
    assert [entry.seq for entry in seen] == [1, 2, 3, 4, 5]


def test_following_goes_on_through_a_ring_that_turns(folder: Any) -> None:
    stop, came = threading.Event(), threading.Event()
    seen: list[int] = []

    def run() -> None:
        for entry in follow(folder.path, stop, poll_seconds=0.001):
            if isinstance(entry, Record) and entry.kind == "xid":
                seen.append(entry.data["n"])
                if entry.data["n"] == 499:
                    came.set()
                    return

    reader = threading.Thread(target=run)
    reader.start()  # before there is a folder
    write(folder, 500, max_bytes=256 * 1024)
    assert came.wait(WAIT)
    reader.join(WAIT)
    assert seen == list(range(500))


def test_an_unfinished_line_is_no_damage_but_one_that_is_being_written(folder: Any) -> None:
    write(folder, 1).close()
    (path,) = folder.files()
    with path.open("ab") as file:
        file.write(b'{"seq":99')
    assert [type(entry) for entry in read(folder.path)] == [Record, Record]


def test_what_is_no_file_of_a_journal_is_passed_over(folder: Any, tmp_path: Path) -> None:
    write(folder, 1).close()
    (folder.path / "journal-99999999999999999999.jsonl").mkdir()
    (folder.path / "notes.jsonl").write_text("x")
    assert [record.kind for record in read(folder.path)] == ["state", "xid"]
