"""The journal: an append-only account of everything that changed on the node, for what a scraped metric misses."""

from __future__ import annotations

from driver.journal.reader import Damage, Entry, follow, read
from driver.journal.records import ClaimId, Kind, Record
from driver.journal.state import JournalState, replay
from driver.journal.writer import Journal

__all__ = [
    "ClaimId",
    "Damage",
    "Entry",
    "Journal",
    "JournalState",
    "Kind",
    "Record",
    "follow",
    "read",
    "replay",
]
