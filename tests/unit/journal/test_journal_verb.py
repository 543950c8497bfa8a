"""``gpudra journal``: what people see of a journal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from driver.cli.main import main
from driver.journal import ClaimId, Kind, Record
from driver.journal.telling import Query, QueryError, kind_matches, line, parse_time

CLAIM = ClaimId("team-a", "train", "uid-1")
NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture
def state_dir(folder: Any) -> Path:
    journal = folder.journal()
    folder.hands.wall = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC).timestamp()
    journal.record(Kind.AGENT_START, data={"version": "1.2"})
    journal.record(Kind.PREPARE, claim=CLAIM, data={"phase": "Prepared", "devices": ["gpu-a"], "seconds": 0.25})
    folder.hands.advance(3600)
    journal.record(
        Kind.HEALTH,
        device="gpu-a",
        data={"before": "healthy", "after": "unhealthy", "cause": "xid-79", "message": "off"},
    )
    journal.record(
        Kind.TAINT, device="gpu-b", data={"key": "gpu.nvidia.com/xid", "before": None, "after": "79:NoSchedule"}
    )
    journal.close()
    path: Path = folder.path.parent
    return path


def shown(capsys: pytest.CaptureFixture[str], state_dir: Path, *arguments: str) -> list[str]:
    assert main(["journal", "--state-dir", str(state_dir), *arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_record_is_a_line_that_says_what_happened(capsys: pytest.CaptureFixture[str], state_dir: Path) -> None:
    assert shown(capsys, state_dir)[1:] == [
        "2026-01-02 03:04:05.000  agent.start       version 1.2",
        "2026-01-02 03:04:05.000  claim.prepare     claim team-a/train: Prepared with gpu-a in 0.25 s",
        "2026-01-02 04:04:05.000  device.health     gpu-a: healthy -> unhealthy: xid-79: off",
        "2026-01-02 04:04:05.000  device.taint      gpu-b: gpu.nvidia.com/xid=79:NoSchedule",
    ]


@pytest.mark.parametrize(
    ("arguments", "kinds"),
    [
        (["--device", "gpu-a"], ["claim.prepare", "device.health"]),
        (["--device", "gpu-*"], ["claim.prepare", "device.health", "device.taint"]),
        (["--claim", "train"], ["claim.prepare"]),
        (["--claim", "team-a/train"], ["claim.prepare"]),
        (["--claim", "uid-1"], ["claim.prepare"]),
        (["--claim", "team-b/*"], []),
        (["--kind", "device"], ["device.health", "device.taint"]),
        (["--kind", "device.taint,agent"], ["agent.start", "device.taint"]),
        (["--since", "2026-01-02T03:30:00Z"], ["device.health", "device.taint"]),
        (["--until", "2026-01-02T03:30:00"], ["agent.start", "claim.prepare"]),
        (["--kind", "device", "--device", "gpu-b"], ["device.taint"]),
    ],
)
def test_what_was_asked_for_is_shown(
    capsys: pytest.CaptureFixture[str], state_dir: Path, arguments: list[str], kinds: list[str]
) -> None:
    lines = shown(capsys, state_dir, "-o", "json", *arguments)
    assert [json.loads(one)["kind"] for one in lines if json.loads(one)["kind"] != "state"] == kinds


def test_the_state_is_what_the_records_add_up_to(capsys: pytest.CaptureFixture[str], state_dir: Path) -> None:
    (text,) = shown(capsys, state_dir, "--state", "-o", "json")
    state = json.loads(text)
    assert state["claims"]["uid-1"]["phase"] == "Prepared"
    assert state["taints"] == {"gpu-b": {"gpu.nvidia.com/xid": "79:NoSchedule"}}
    assert any("train" in one for one in shown(capsys, state_dir, "--state"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kind", "nonsense"], "no such kind"),
        (["--since", "yesterday"], "is no time"),
        (["--until", "99999999999d"], "is no time"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_what_would_be(
    capsys: pytest.CaptureFixture[str], state_dir: Path, arguments: list[str], words: str
) -> None:
    assert main(["journal", "--state-dir", str(state_dir), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_folder_without_a_journal_is_named_with_the_remedy(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["journal", "--state-dir", str(tmp_path)]) == 2
    assert "--state-dir" in capsys.readouterr().err


def test_damage_is_told_and_counts(capsys: pytest.CaptureFixture[str], folder: Any, state_dir: Path) -> None:
    (path,) = folder.files()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"garbage\n", *lines[1:]]))
    assert main(["journal", "--state-dir", str(state_dir)]) == 1
    shown = capsys.readouterr()
    assert f"{path.name}:2:" in shown.err
    assert "gpu-b" in shown.out


@pytest.mark.bug("B131")
def test_nothing_in_a_record_can_steer_a_terminal() -> None:
    claim = ClaimId("ns", "\x1b]0;gotcha\x07", "u")
    record = Record(1, "2026-01-01T00:00:00Z", 0, "b", Kind.ERROR, None, claim, {"error": "a\x1b[2Jb\u202e\n\x9b"})
    assert line(record).isprintable()
    assert "\\x1b[2J" in line(record)


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_has_a_line_also_with_no_data_or_odd_data(kind: Kind) -> None:
    for data in ({}, {"before": [1], "after": {"a": None}, "cause": 7, "devices": "x", "step": None, "count": []}):
        assert kind in line(Record(1, "2026-01-01T00:00:00Z", 0, "b", kind, None, None, data))


def test_times_are_moments_or_ages() -> None:
    assert parse_time("90s", NOW) == NOW - timedelta(seconds=90)
    assert parse_time("3d", NOW) == NOW - timedelta(days=3)
    assert parse_time("2026-01-02T13:00:00+01:00", NOW) == NOW
    assert parse_time("2026-01-02T12:00:00", NOW) == NOW
    with pytest.raises(QueryError):
        parse_time("", NOW)


def test_kinds_match_whole_words() -> None:
    assert kind_matches("claim.prepare", ["claim"])
    assert kind_matches("claim.prepare", ["claim."])
    assert not kind_matches("claims.prepare", ["claim"])


def test_a_gap_is_shown_whatever_is_asked_for() -> None:
    gap = Record(1, "2026-01-02T00:00:00Z", 0, "b", Kind.GAP, data={"cause": "killed"})
    assert Query(devices=("x",), kinds=("xid",)).wants(gap)
    assert not Query(since=NOW).wants(gap)


def test_following_shows_what_comes_and_ends_on_an_interrupt(folder: Any) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "driver.cli.main", "journal", "--state-dir", str(folder.path.parent), "--follow"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert process.stdout is not None
    killer = threading.Timer(60, process.kill)
    killer.start()
    try:
        journal = folder.journal()
        journal.record(Kind.XID, device="gpu-a", data={"message": "XID 31"})
        assert "nothing known" in process.stdout.readline()
        assert "XID 31" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        killer.cancel()
        process.kill()
        process.stdout.close()
        process.wait()
