"""What needs a mock node needs a C compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

_WITHOUT_A_MOCK = frozenset({"test_killed_journal.py", "test_killed_prepare.py"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Say so instead of failing everywhere."""
    from native.mock import build

    try:
        build.compiler()
    except build.BuildError as error:
        for item in items:
            if Path(__file__).parent in item.path.parents and item.path.name not in _WITHOUT_A_MOCK:
                item.add_marker(pytest.mark.skip(reason=str(error)))
