"""Every parser of bytes from outside, with inputs that nobody meant to write: the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.engine import Target, run
from tests.fuzz.fuzztable import TARGETS

COUNT = 120
SEED = 20261130


@pytest.mark.bug("B131")
@pytest.mark.bug("B04")
@pytest.mark.bug("B68")
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_only_documented_errors_come_out_in_bounded_time_and_memory(target: Target, tmp_path: Path) -> None:
    tried, taken = run(target, tmp_path, seed=SEED, count=COUNT)
    assert tried > COUNT
    assert taken >= len(target.corpus)
