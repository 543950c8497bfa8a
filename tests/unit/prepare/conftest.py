"""What the tests of prepare share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.prepare.checkpoint_lines import commit, loaded, record
from tests.unit.prepare.prepare_node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Eight GPUs, ready."""
    return FakeNode(tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder whose checkpoint holds the claims u1 and u2."""
    checkpoint = loaded(tmp_path)
    commit(checkpoint, {"u1": record("u1", 1)})
    commit(checkpoint, {"u2": record("u2", 2)})
    return tmp_path
