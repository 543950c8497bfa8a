"""The scenarios of this folder run on the fixtures of the real cluster."""

from __future__ import annotations

import pytest

from tests.cluster.conftest import agent, api, cluster, errors_expected, mock_node, namespace, quiet_components

__all__ = ["agent", "api", "cluster", "errors_expected", "mock_node", "namespace", "quiet_components"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here needs the cluster."""
    for item in items:
        item.add_marker(pytest.mark.cluster)
