"""The page about the journal names every kind and every cause of a gap."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.journal import Kind
from driver.journal.telling import _GAPS

PAGE = (Path(__file__).parents[3] / "docs" / "journal.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", list(Kind))
def test_a_kind_is_explained(kind: Kind) -> None:
    assert f"`{kind}`" in PAGE


@pytest.mark.parametrize("cause", sorted(_GAPS))
def test_a_cause_of_a_gap_is_explained(cause: str) -> None:
    assert f"`{cause}`" in PAGE


@pytest.mark.parametrize(
    "kind",
    [
        "slice.publish",
        "slice.lost",
        "device.taint",
        "device.health",
        "xid",
        "mig.create",
        "mig.destroy",
        "mig.reconcile",
        "claim.prepare",
        "claim.unprepare",
        "claim.error",
        "share.grant",
        "share.release",
        "plugin.register",
        "plugin.unregister",
        "agent.start",
        "agent.stop",
        "gap",
    ],
)
def test_what_a_scrape_misses_has_a_kind(kind: str) -> None:
    assert kind in set(Kind)
