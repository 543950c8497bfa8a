"""A journal of the test's own, and a clock that the test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.journal import Journal, Record, read
from driver.journal.writer import Clock

BOOT = "11111111-1111-1111-1111-111111111111"
OTHER_BOOT = "22222222-2222-2222-2222-222222222222"


class Hands:
    """The hands of a clock."""

    def __init__(self) -> None:
        self.wall = 1_800_000_000.0
        self.mono = 1_000_000_000

    def advance(self, seconds: float) -> None:
        self.wall += seconds
        self.mono += int(seconds * 1e9)

    def clock(self) -> Clock:
        return Clock(lambda: self.wall, lambda: self.mono)


class Folder:
    """A folder with a journal that can be opened again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.hands = Hands()
        self.lost: list[tuple[str, int]] = []
        self.open: list[Journal] = []

    def journal(self, boot: str | None = BOOT, **options: Any) -> Journal:
        made = Journal(
            self.path,
            boot_id=boot,
            clock=self.hands.clock(),
            lost=lambda cause, count: self.lost.append((cause, count)),
            **{"retry_seconds": 0.02, **options},
        )
        self.open.append(made)
        made.start()
        return made

    def records(self, *kinds: str) -> list[Record]:
        """What can be read; every line must be sound."""
        entries = list(read(self.path))
        assert all(isinstance(entry, Record) for entry in entries), entries
        return [entry for entry in entries if isinstance(entry, Record) and (not kinds or entry.kind in kinds)]

    def gaps(self) -> list[Any]:
        return [record.data["cause"] for record in self.records("gap")]

    def files(self) -> list[Path]:
        return sorted(self.path.glob("journal-*.jsonl"))


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path / "journal")
    yield made
    for journal in made.open:
        journal.close()


@pytest.fixture
def boots() -> tuple[str, str]:
    """This boot's id and another one."""
    return BOOT, OTHER_BOOT


Make = Callable[..., Journal]
