"""The compute mode that an administrator chose comes back when the claims that changed it are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from driver.prepare.sharing import modes
from native.smi import ComputeMode
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_node import claim, ref, result
from tests.unit.prepare.sharing_node import SharingNode, mps, share, slicing, uuid

DEFAULT, EXCLUSIVE, PROHIBITED = ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.PROHIBITED
WAYS = {"mps": (mps(), EXCLUSIVE), "slices": (slicing("Long"), DEFAULT)}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


@pytest.mark.parametrize("before", list(ComputeMode))
@pytest.mark.parametrize("way", WAYS)
def test_the_mode_is_what_it_was_before_the_claim(node: SharingNode, way: str, before: ComputeMode) -> None:
    config, during = WAYS[way]
    node.smi.modes[uuid(0)] = before
    preparer = node.start()
    prepare(preparer, claim("u1", result(0), configs=[config]))
    assert node.smi.modes[uuid(0)] is during
    assert preparer.unprepare([ref("u1")]) == {"u1": None}
    assert node.smi.modes[uuid(0)] is before


def test_of_several_claims_on_a_gpu_the_last_one_gives_the_mode_back(node: SharingNode) -> None:
    node.smi.modes[uuid(0)] = PROHIBITED
    preparer = node.start()
    for number in range(3):
        prepare(preparer, claim(f"u{number}", share(0, number, shares="1"), configs=[mps()]))
    for uid in ("u0", "u2"):
        preparer.unprepare([ref(uid)])
        assert node.smi.modes[uuid(0)] is EXCLUSIVE
    preparer.unprepare([ref("u1")])
    assert node.smi.modes[uuid(0)] is PROHIBITED


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_behind_the_change_forgets_nothing(node: SharingNode, way: str) -> None:
    config, _ = WAYS[way]
    node.smi.modes[uuid(0)] = PROHIBITED
    point = {"mps": "s2", "slices": "s1"}[way]

    def end(passed: str) -> None:
        if passed == point:
            raise Killed

    node.faults = end
    with pytest.raises(Killed):
        node.start().prepare({"u1": claim("u1", result(0), configs=[config])})
    assert node.smi.modes[uuid(0)] is not PROHIBITED
    node.faults = lambda _point: None
    node.start().recover()
    assert node.smi.modes[uuid(0)] is PROHIBITED


def test_a_daemon_that_is_started_again_for_a_prepared_claim_changes_nothing_of_that(node: SharingNode) -> None:
    node.smi.modes[uuid(0)] = PROHIBITED
    document = claim("u1", result(0), configs=[mps()])
    prepare(node.start(), document)
    node.daemons.running.clear()
    later = node.start()
    prepare(later, document)
    assert node.smi.modes[uuid(0)] is EXCLUSIVE
    later.unprepare([ref("u1")])
    assert node.smi.modes[uuid(0)] is PROHIBITED


def test_claims_that_an_earlier_version_prepared_leave_the_default(
    node: SharingNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(modes, "_with_former", lambda record, *_: record)  # it kept no mode, and set back to DEFAULT
        prepare(node.start(), claim("u1", share(0, 0, shares="1"), configs=[mps()]))
    later = node.start()
    prepare(later, claim("u2", share(0, 1, shares="1"), configs=[mps()]))
    for uid in ("u1", "u2"):
        later.unprepare([ref(uid)])
    assert node.smi.modes[uuid(0)] is DEFAULT


def test_nothing_is_read_or_written_more_than_once_for_a_mode_that_fits(node: SharingNode) -> None:
    node.smi.modes[uuid(0)] = EXCLUSIVE
    prepare(node.start(), claim("u1", result(0), configs=[mps()]))
    assert node.smi.calls == ["read mode"]
