"""What the tests of prepare share."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from tests.unit.prepare.prepare_node import FakeNode

# How long an example takes says nothing on a machine that is busy with other things: only results count here.
hypothesis.settings.register_profile("patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("patient")


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """Eight GPUs, ready."""
    return FakeNode(tmp_path)
