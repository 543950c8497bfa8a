"""The page of the rules is made from their table."""

from __future__ import annotations

from pathlib import Path

from driver.analysis.lint import RULES
from driver.analysis.lint.docs import page

PAGE = Path(__file__).parents[3] / "docs" / "lint.md"


def test_the_page_is_fresh() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m hack.docs"


def test_every_rule_has_a_section_that_the_table_leads_to() -> None:
    text = page()
    for rule in RULES:
        assert f"[{rule.id}](#{rule.id.lower()}-{rule.name})" in text
        assert f"### {rule.id} {rule.name}" in text
