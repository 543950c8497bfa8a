"""A writer of the journal that is killed at any moment: what it said was written is there, once, and it goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from driver.journal import Record, read, replay

CHILD = Path(__file__).parent / "journal_child.py"
ROUNDS = 8


def life(folder: Path, start: int, lines: int) -> int:
    """One life of the writer; gives the last number that it said was in the file."""
    with subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), str(start)],
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        said = start - 1
        for _ in range(lines):
            said = int(process.stdout.readline())
        process.kill()
        for line in process.stdout:  # what it had said before it died
            if line.endswith("\n"):
                said = int(line)
    return said


def test_what_was_written_survives_kill_9_and_is_there_once(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    said: list[tuple[int, int]] = []
    start = 0
    for number in range(ROUNDS):
        last = life(folder, start, 7 + 41 * number)
        said.append((start, last))
        start = last + 100_000
    entries = list(read(folder))
    records = [entry for entry in entries if isinstance(entry, Record)]
    assert len(records) == len(entries), "no line that cannot be read is left in the middle"
    seqs = [record.seq for record in records]
    assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), "no number is missing or there twice"
    kept = [record.data["n"] for record in records if record.kind == "xid"]
    assert kept == sorted(set(kept))
    oldest = kept[0]
    for first, last in said:
        wanted = {number for number in range(first, last + 1) if number >= oldest}
        assert wanted <= set(kept), "what it said was in the file is there"
    gaps = [record.data["cause"] for record in records if record.kind == "gap"]
    assert gaps.count("killed") >= 1
    assert replay(records).agent == {}
