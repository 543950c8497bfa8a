"""A mock node made for one look: what it leaves behind in the process that looked."""

from __future__ import annotations

import os

import pytest

from driver.cli.main import build_parser
from driver.cli.node import read_node


@pytest.mark.parametrize("set_before", [False, True])
def test_a_node_of_the_moment_leaves_the_environment_as_it_was(
    monkeypatch: pytest.MonkeyPatch, set_before: bool
) -> None:
    for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV", "GPUDRA_MOCK_QUIET"):
        monkeypatch.delenv(name, raising=False)
        if set_before:
            monkeypatch.setenv(name, "/elsewhere")
    before = dict(os.environ)

    node = read_node(build_parser(["lint"]).parse_args(["lint", "--mock-profile", "gb10"]))

    assert node.mock
    assert len(node.gpus) == 1
    assert dict(os.environ) == before
