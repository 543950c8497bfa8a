"""Fixtures of the kubelet's side."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.kubelet_side.fakes import Node


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder with a short path: pytest's own are too long for unix sockets on some machines."""
    folder = Path(tempfile.mkdtemp(prefix="k", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def node(root: Path) -> Node:
    return Node(root)
