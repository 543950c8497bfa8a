"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import hypothesis
import pytest

# How long an example takes says nothing on a machine that is busy with other things: only results count here.
# The default tries the same examples each time, so that a change is judged by what it changed;
# "pytest --hypothesis-profile=search" looks for new ones.
hypothesis.settings.register_profile(
    "search", deadline=None, print_blob=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("same", hypothesis.settings.get_profile("search"), derandomize=True)
hypothesis.settings.load_profile("same")

_ENVIRONMENT = dict(os.environ)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Commands that run in this process set variables for good, as they may; the next file starts without them."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path != item.path:
            for name in os.environ.keys() - _ENVIRONMENT.keys():
                del os.environ[name]
            os.environ.update(_ENVIRONMENT)
