"""Names and configurations that were written to do harm: refused in clear words, and nothing of them gets anywhere."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from driver.journal.telling import printable
from driver.logs import JsonFormatter
from driver.prepare import ClaimError, ClaimRef
from driver.prepare.specfolder import SpecFolder
from kubeletplugin.api import ClaimRef as ApiRef
from kubeletplugin.api import PrepareError
from kubeletplugin.calls import _sort_out
from kubeletplugin.dra import _error_text
from tests.unit.prepare.prepare_node import DRIVER, FakeNode, claim, config, gpu_config, result

LONG = "x" * 10_240
PATHS = [
    "../../etc",
    "/etc/passwd",
    "..",
    ".",
    "a/b",
    "a\0b",
    "",
    " ",
    "*",
    "?",
    "[a-z]",
    "a\nb",
    "\x1b[2J",
    LONG,
    "\u202e",
    "é",
]


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.bug("B131")
@pytest.mark.parametrize("uid", PATHS)
def test_a_uid_that_could_be_a_path_is_refused_before_a_path_is_made_of_it(node: FakeNode, uid: str) -> None:
    preparer = node.start()
    before = everything(node.base)
    answer = preparer.prepare({uid: claim(uid, result(0))})[uid]
    assert isinstance(answer, ClaimError)
    assert answer.permanent
    assert preparer.unprepare([ClaimRef("ns", "c", uid)]) == {uid: None}, "what was never prepared is no failure"
    assert everything(node.base) == before
    with pytest.raises(ValueError, match="no claim UID"):
        SpecFolder(node.cdi_dir, DRIVER).path(uid)


@pytest.mark.bug("B131")
@pytest.mark.parametrize("word", PATHS)
@pytest.mark.parametrize("part", ["namespace", "name", "uid"])
def test_the_kubelets_words_are_checked_each_and_a_good_claim_beside_them_is_served(part: str, word: str) -> None:
    good = ApiRef("default", "train", "0f3c6d1a-5a0e-4c6e-9d0c-2f1f6a3b7c55")
    bad = ApiRef(**{"namespace": "default", "name": "c", "uid": "1f3c6d1a", part: word})
    outcomes, accepted = _sort_out([bad, good])
    assert list(accepted.values()) == [good]
    refusal = outcomes[bad.uid]
    assert isinstance(refusal, PrepareError)
    assert refusal.permanent
    assert part.upper() in str(refusal).upper()
    assert str(refusal).isprintable()
    assert len(str(refusal)) < 600


@pytest.mark.bug("B131")
@pytest.mark.parametrize("word", [word for word in PATHS if word not in ("", "a/b")])  # a/b is a subrequest
@pytest.mark.parametrize("field", ["request", "device", "shareID"])
def test_a_result_whose_words_could_leave_their_place_is_refused(node: FakeNode, field: str, word: str) -> None:
    document = claim("u1", {**result(0), field: word})
    answer = node.start().prepare({"u1": document})["u1"]
    assert isinstance(answer, ClaimError)
    assert str(answer).isprintable()
    assert len(str(answer)) < 1000
    assert node.specs() == []


BOMBS: list[Any] = [
    gpu_config(
        sharing={"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0; touch /pwn": "1Gi"}}}
    ),
    gpu_config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1Gi\nX=1"}}),
    gpu_config(sharing={"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "$(reboot)"}}),
    gpu_config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 10**400}}),
    gpu_config(sharing={"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": float("inf")}}),
    gpu_config(sharing={"strategy": LONG}),
    gpu_config(Sharing={"strategy": "MPS"}),
    gpu_config(**{"\x1b[31m": 1}),
    gpu_config(**{LONG: 1}),
    [],
    "x" * 10_240,
    None,
]


@pytest.mark.bug("B131")
@pytest.mark.parametrize("parameters", BOMBS, ids=range(len(BOMBS)))
def test_a_configuration_that_is_no_configuration_is_refused_and_says_which_field(
    node: FakeNode, parameters: Any
) -> None:
    answer = node.start().prepare({"u1": claim("u1", result(0), configs=[config(parameters)])})["u1"]
    assert isinstance(answer, ClaimError)
    assert answer.permanent
    assert "config[0]" in str(answer)
    assert str(answer).isprintable()
    assert len(str(answer)) < 2000
    assert node.specs() == []


@pytest.mark.bug("B131")
def test_a_configuration_of_five_thousand_levels_is_an_error_and_no_crash(node: FakeNode) -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"sharing": deep}
    answer = node.start().prepare({"u1": claim("u1", result(0), configs=[config({**gpu_config(), **deep})])})["u1"]
    assert isinstance(answer, ClaimError)
    assert node.specs() == []


def test_what_reaches_the_kubelet_is_never_empty_and_bounded() -> None:
    assert _error_text(PrepareError("", reason="Why")) == "Why"
    assert len(_error_text(PrepareError("x" * 1_000_000, reason="Why"))) < 5000
    _error_text(PrepareError("\ud800", reason="Why")).encode()


FORGED = 'c\n{"level":"error","message":"the node was read"}\r\x1b[2J\u2028\ud800'


def test_a_line_of_the_log_stays_one_line_whatever_a_name_holds() -> None:
    record = logging.LogRecord("driver", logging.WARNING, __file__, 1, "claim %s", (FORGED,), None)
    record.claims = [FORGED]
    line = JsonFormatter(lambda: FORGED).format(record)
    assert len(line.splitlines()) == 1 or "\n" not in line
    assert "\x1b" not in line
    assert "\r" not in line
    assert json.loads(line)["message"].startswith("claim c")
    line.encode()


def test_what_the_journal_shows_cannot_steer_a_terminal() -> None:
    assert printable(FORGED).isprintable()
    assert "\\x1b[2J" in printable(FORGED)
