"""A scribe at a journal, for tests of what it puts down."""

from __future__ import annotations

from typing import Any

from driver.journal import Journal
from driver.journal.scribe import Scribe
from driver.prepare import ClaimRecord

WAIT = 20.0


class Desk:
    """A scribe at a journal that can be left and taken up again."""

    def __init__(self, folder: Any) -> None:
        self.folder = folder
        self.records: tuple[ClaimRecord, ...] = ()
        self.open()

    def open(self) -> None:
        self.journal: Journal = self.folder.journal()
        self.scribe = Scribe(self.journal, lambda: self.records)

    def hold(self, *records: ClaimRecord) -> None:
        """The checkpoint has these claims now; looked at twice, and once more after a restart."""
        self.records = records
        self.scribe.claims()
        self.scribe.claims()
        self.journal.close()
        self.open()
        self.scribe.claims()

    def told(self, *kinds: str) -> list[tuple[str, str | None, dict[str, Any]]]:
        assert self.journal.settled(WAIT)
        return [(one.kind, one.device, dict(one.data)) for one in self.folder.records(*kinds)]

    def written(self, *kinds: str) -> list[tuple[str | None, dict[str, Any]]]:
        assert self.journal.settled(WAIT)
        return [(record.device, dict(record.data)) for record in self.folder.records(*kinds)]
