from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.hosttree import HostTree


@pytest.fixture
def host(tmp_path: Path) -> HostTree:
    return HostTree(tmp_path)
