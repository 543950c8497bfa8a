"""The writing end: never in anybody's way, and honest about what is missing."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from driver.journal import ClaimId, Journal, JournalState, Kind, replay
from driver.journal.ring import Ring
from driver.journal.writer import Draft

CLAIM = ClaimId("ns", "c", "uid-1")
WAIT = 20.0


def put(journal: Journal, number: int = 1) -> None:
    for index in range(number):
        journal.record(Kind.XID, device="gpu-0", data={"xid": 13, "n": index})


def test_records_are_numbered_in_their_order_behind_the_state(folder: Any) -> None:
    journal = folder.journal()
    put(journal, 3)
    assert journal.close()
    assert [(record.seq, record.kind) for record in folder.records()] == [
        (1, "state"), (2, "xid"), (3, "xid"), (4, "xid"),
    ]  # fmt: skip
    assert [record.data["n"] for record in folder.records("xid")] == [0, 1, 2]


def test_a_record_carries_the_time_at_which_it_was_recorded(folder: Any, boots: tuple[str, str]) -> None:
    journal = folder.journal()
    folder.hands.wall, folder.hands.mono = 1_767_323_045.25, 42_000_000_000
    put(journal)
    journal.close()
    (record,) = folder.records("xid")
    assert (record.wall, record.mono, record.boot) == ("2026-01-02T03:04:05.250000Z", 42_000_000_000, boots[0])


def test_folder_and_files_are_for_the_owner_only(folder: Any) -> None:
    before = os.umask(0)
    try:
        journal = folder.journal()
        put(journal)
        journal.close()
    finally:
        os.umask(before)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.path.iterdir()} == {0o600}


def test_numbers_go_on_over_a_restart_and_an_orderly_end_leaves_no_gap(folder: Any) -> None:
    journal = folder.journal()
    journal.record(Kind.AGENT_STOP)
    journal.close()
    journal = folder.journal()
    put(journal)
    journal.close()
    assert [record.seq for record in folder.records()] == [1, 2, 3]
    assert folder.gaps() == []


def test_an_end_without_a_word_leaves_a_gap(folder: Any, boots: tuple[str, str]) -> None:
    journal = folder.journal()
    put(journal)
    journal.close()
    journal = folder.journal()
    put(journal)
    journal.close()
    journal = folder.journal(boots[1])
    put(journal)
    journal.close()
    assert folder.gaps() == ["killed", "reboot"]


def test_after_a_gap_stands_what_really_holds(folder: Any) -> None:
    journal = folder.journal()
    journal.record(Kind.PREPARE, claim=CLAIM, data={"phase": "Preparing", "devices": ["gpu-0"]})
    journal.close()
    real = JournalState(claims={"uid-1": {"namespace": "ns", "name": "c", "phase": "Prepared", "devices": ["gpu-0"]}})
    journal = folder.journal(truth=lambda _known: real.copy())
    put(journal)
    journal.settled(WAIT)
    assert journal.state().claims == real.claims
    journal.close()
    assert replay(folder.records()).claims == real.claims


def test_what_finds_no_room_is_counted_and_told_when_there_is_room(folder: Any) -> None:
    hold, held = threading.Event(), threading.Event()

    def block(_state: JournalState) -> list[Draft]:
        held.set()
        hold.wait(WAIT)
        return []

    journal = folder.journal(queued=3)
    journal.compare(block)
    assert held.wait(WAIT)
    put(journal, 5)
    hold.set()
    assert journal.settled(WAIT)
    put(journal)
    journal.close()
    assert folder.lost == [("queue", 1)] * 3
    (gap,) = folder.records("gap")
    assert gap.data == {"cause": "dropped", "queue": 3}
    assert [record.data["n"] for record in folder.records("xid")] == [0, 1, 0]


def test_recording_never_waits_for_a_disk_that_does_not_answer(folder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hold, held = threading.Event(), threading.Event()
    append = Ring.append

    def slow(self: Ring, data: bytes) -> None:
        held.set()
        hold.wait(WAIT)
        append(self, data)

    monkeypatch.setattr(Ring, "append", slow)
    journal = folder.journal()
    put(journal)
    assert held.wait(WAIT)
    put(journal, 100)  # returns although the writer hangs
    hold.set()
    assert journal.close(WAIT)
    assert len(folder.records("xid")) == 101


@pytest.mark.bug("B63")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
def test_a_disk_that_takes_nothing_is_tried_again_and_nothing_is_lost(
    folder: Any, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    sick, failed = threading.Event(), threading.Event()
    write = os.write
    sick.set()

    def fail(descriptor: int, data: bytes) -> int:
        if threading.current_thread().name == "journal" and sick.is_set():
            if len(data) > 20:
                return write(descriptor, bytes(data[:20]))  # a torn write first
            failed.set()
            raise OSError(code, os.strerror(code))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", fail)
    journal = folder.journal()
    put(journal, 3)
    assert failed.wait(WAIT)
    sick.clear()
    assert journal.settled(WAIT)
    assert journal.problem is None
    journal.close()
    assert [record.data["n"] for record in folder.records("xid")] == [0, 1, 2]
    assert ("write", 1) in folder.lost
    seqs = [record.seq for record in folder.records()]
    assert seqs == sorted(set(seqs))


@pytest.mark.bug("B63")
def test_a_folder_that_cannot_be_made_is_a_problem_told_and_no_error(folder: Any, tmp_path: Path) -> None:
    folder.path.write_text("a file stands here")
    journal = folder.journal()
    put(journal)
    told = threading.Event()
    for _ in range(1000):
        if journal.problem:
            told.set()
            break
        threading.Event().wait(0.01)
    assert told.is_set()
    folder.path.unlink()
    assert journal.settled(WAIT)
    journal.close()
    assert len(folder.records("xid")) == 1


def test_a_link_in_the_place_of_the_folder_or_a_file_is_not_followed(folder: Any, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    folder.path.symlink_to(elsewhere)
    journal = folder.journal()
    put(journal)
    journal.close(0.2)
    assert list(elsewhere.iterdir()) == []
    folder.path.unlink()
    folder.path.mkdir()
    target = tmp_path / "target"
    target.write_text("")
    (folder.path / "journal-00000000000000000001.jsonl").symlink_to(target)
    journal = folder.journal()
    put(journal)
    journal.close(0.2)
    assert target.read_text() == ""


@pytest.mark.parametrize("step", [5.0, -5.0, 86400.0 * 365])
def test_a_jump_of_the_wall_clock_is_noted(folder: Any, step: float) -> None:
    journal = folder.journal()
    put(journal)
    folder.hands.advance(10)
    put(journal)
    folder.hands.wall += step
    put(journal)
    journal.close()
    (gap,) = folder.records("gap")
    assert gap.data == {"cause": "clock", "seconds": step}


def test_a_jump_while_no_agent_ran_is_noted_within_one_boot(folder: Any) -> None:
    journal = folder.journal()
    journal.record(Kind.AGENT_STOP)
    journal.close()
    folder.hands.wall -= 3600
    journal = folder.journal()
    put(journal)
    journal.close()
    assert folder.gaps() == ["clock"]


def test_the_ring_keeps_its_size_and_each_file_begins_with_the_state(folder: Any) -> None:
    journal = folder.journal(max_bytes=64 * 1024)
    journal.record(Kind.PREPARE, claim=CLAIM, data={"phase": "Prepared", "devices": ["gpu-0"]})
    for number in range(3000):
        journal.record(Kind.XID, device="gpu-0", data={"xid": 13, "n": number, "text": "x" * 100})
    journal.close(WAIT)
    assert sum(path.stat().st_size for path in folder.files()) <= 64 * 1024
    assert len(folder.files()) > 2
    for path in folder.files():
        assert path.read_bytes().split(b"\n")[0].count(b'"kind":"state"') == 1
    records = folder.records()
    assert records[0].seq > 1, "the oldest are gone"
    assert records[-1].data["n"] == 2999
    assert replay(records) == journal.state()
    assert "uid-1" in replay(records).claims


def test_many_short_lives_do_not_leave_many_files(folder: Any) -> None:
    for _ in range(5):
        journal = folder.journal()
        put(journal)
        journal.close()
    assert len(folder.files()) == 1


def test_two_agents_of_an_update_do_not_write_at_once(folder: Any) -> None:
    old = folder.journal()
    put(old)
    assert old.settled(WAIT)
    new = folder.journal()
    put(new, 2)
    assert not new.settled(0.1)
    old.record(Kind.AGENT_STOP)
    old.close()
    assert new.settled(WAIT)
    new.close()
    assert [record.kind for record in folder.records()] == ["state", "xid", "agent.stop", "xid", "xid"]


def test_the_same_sight_twice_leaves_one_record_also_over_a_restart(folder: Any) -> None:
    def look(state: JournalState) -> list[Draft]:
        known = state.devices.get("gpu-0", {}).get("state")
        return [Draft(Kind.DEVICE, "gpu-0", data={"before": known, "after": "ready"})] if known != "ready" else []

    for _ in range(2):
        journal = folder.journal()
        journal.compare(look)
        journal.compare(look)
        journal.record(Kind.AGENT_STOP)
        journal.close()
    assert len(folder.records("device.state")) == 1


def test_a_look_that_fails_costs_only_its_own_record(folder: Any) -> None:
    journal = folder.journal()
    journal.compare(lambda _state: {}["missing"])
    put(journal)
    journal.close()
    assert len(folder.records("xid")) == 1
    assert folder.lost == [("error", 1)]


def test_who_listens_is_told_of_each_record_once_it_is_written(folder: Any) -> None:
    heard: list[int] = []
    journal = folder.journal(written=lambda record: heard.append(record.seq))
    put(journal, 2)
    journal.close()
    assert heard == [1, 2, 3]


def test_a_state_of_any_size_is_whole_and_no_part_of_it(folder: Any) -> None:
    journal = folder.journal(max_bytes=1024 * 1024)
    for number in range(1500):
        claim = ClaimId("namespace-of-a-team", f"claim-with-a-long-name-{number}", f"uid-{number}")
        journal.record(Kind.PREPARE, claim=claim, data={"phase": "Prepared", "devices": ["gpu-0"]})
    for number in range(4000):
        journal.record(Kind.XID, device="gpu-0", data={"n": number, "text": "x" * 100})
    assert journal.close(WAIT)
    assert len(journal.state().claims) == 1500
    records = folder.records()
    assert records[0].seq > 1500, "only the state still tells of the claims"
    assert replay(records) == journal.state()
    again = folder.journal()
    put(again)
    again.settled(WAIT)
    assert len(again.state().claims) == 1500
