"""The reference pages say what the tables in the code say."""

from __future__ import annotations

import pytest

from hack.docs import FOLDER, PAGES


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_reference_page_is_fresh(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run: python -m hack.docs"
