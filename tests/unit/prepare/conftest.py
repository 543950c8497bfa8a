"""What the tests of prepare share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.prepare.prepare_node import FakeNode


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Eight GPUs, ready."""
    return FakeNode(tmp_path)
