"""The command's outside: verbs, help, exit codes."""

from __future__ import annotations

import argparse
import re

import pytest

from driver.cli import agent
from driver.cli.main import build_parser, main
from driver.settings import FIELDS, flag


def test_every_verb_is_described_and_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for verb in ("agent", "topology", "slices", "demo"):
        assert re.search(rf"^    {verb} ", text, re.MULTILINE), verb
    assert "examples:" in text


@pytest.mark.parametrize("verb", ["agent", "topology", "slices", "demo"])
def test_each_verb_has_a_help_of_its_own(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    assert f"usage: gpudra {verb}" in capsys.readouterr().out


def test_without_a_verb_it_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 2
    assert "VERB" in capsys.readouterr().err


def test_the_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert re.fullmatch(r"gpudra \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_every_setting_has_a_flag_with_help_and_no_flag_is_without_a_setting() -> None:
    verbs = next(a for a in build_parser(["agent"])._actions if isinstance(a, argparse._SubParsersAction))
    options = {action.dest: action for action in verbs.choices["agent"]._actions}
    # What only a mock node needs is set by --mock-root, not by hand.
    wanted = set(FIELDS) - {"plain_device_nodes"}
    assert wanted <= set(options)
    assert set(options) - wanted == {"help", "config", "mock_profile", "mock_root"}
    for name in wanted:
        assert options[name].option_strings == [flag(name)]
        assert options[name].help


def test_a_setting_that_cannot_be_used_is_exit_code_2_with_the_flags_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--node-name", "n", "--metrics-port", "http"]) == 2
    assert "--metrics-port: 'http' cannot be used" in capsys.readouterr().err


def test_a_mock_profile_needs_a_place_to_stand(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "--mock-profile", "dgx-h100"]) == 2
    assert "--mock-root" in capsys.readouterr().err


def test_the_agents_flags_fall_into_groups_that_cover_each_once() -> None:
    named = [name for fields in agent.GROUPS.values() for name in fields]
    assert len(named) == len(set(named))
