"""An agent that dies at any point of a sharing claim's life leaves nothing that the next one does not undo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from driver.prepare import Phase
from native.smi import ComputeMode
from tests.unit.prepare.prepare_calls import prepare_one as prepare
from tests.unit.prepare.prepare_node import claim, ref, result
from tests.unit.prepare.sharing_node import SharingNode, mps, share, slicing, uuid


class Killed(BaseException):
    """The process ends here."""


CLAIMS = {
    "time slices": claim("u1", result(0), configs=[slicing("Long")]),
    "MPS": claim("u1", result(0), result(1), configs=[mps(defaultActiveThreadPercentage=50)]),
    "shares with MPS": claim("u1", share(0, 1, shares="1"), configs=[mps()]),
}
PREPARE = ["p1", "p2", "s5", "s0", "s1", "s2", "s3", "p3", "p4", "p5"]
UNPREPARE = ["u1", "u3", "v3", "v2", "v1", "v0", "v5", "u2", "u4"]


def kill_at(node: SharingNode, wanted: str) -> None:
    def pass_point(point: str) -> None:
        if point == wanted:
            raise Killed

    node.faults = pass_point


def revive(node: SharingNode) -> Any:
    node.faults = lambda _point: None
    return node.start()


def assert_clean(node: SharingNode) -> None:
    assert node.daemons.running == {}
    assert set(node.smi.slices.values()) <= {0}
    assert set(node.smi.modes.values()) <= {ComputeMode.DEFAULT}
    assert node.specs() == []


@pytest.fixture
def node(tmp_path: Path) -> SharingNode:
    return SharingNode(tmp_path)


def test_the_points_are_those_of_the_table(node: SharingNode) -> None:
    plan = node.start().plan
    assert sorted(plan.prepare_points) == sorted(PREPARE)
    assert sorted(plan.unprepare_points) == sorted(UNPREPARE)


@pytest.mark.bug("B98")
@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("point", PREPARE)
def test_killed_in_prepare_it_is_finished_or_undone(node: SharingNode, kind: str, point: str) -> None:
    kill_at(node, point)
    with pytest.raises(Killed):
        node.start().prepare({"u1": CLAIMS[kind]})
    later = revive(node)
    later.recover()
    if not [record for record in later.prepared() if record.phase is Phase.PREPARED]:
        assert_clean(node)
    prepare(later, CLAIMS[kind])
    assert node.specs() == ["u1"]
    assert later.unprepare([ref("u1")]) == {"u1": None}
    assert_clean(node)


@pytest.mark.parametrize("kind", CLAIMS)
@pytest.mark.parametrize("point", UNPREPARE)
def test_killed_in_unprepare_it_is_finished(node: SharingNode, kind: str, point: str) -> None:
    prepare(node.start(), CLAIMS[kind])
    kill_at(node, point)
    with pytest.raises(Killed):
        node.start().unprepare([ref("u1")])
    later = revive(node)
    later.recover()
    assert later.prepared() == ()
    assert_clean(node)


@pytest.mark.parametrize("point", PREPARE)
def test_killed_beside_another_claim_on_the_gpu_the_other_keeps_its_settings(node: SharingNode, point: str) -> None:
    prepare(node.start(), claim("u2", share(0, 2), configs=[mps()]))
    kill_at(node, point)
    with pytest.raises(Killed):
        node.start().prepare({"u1": claim("u1", share(0, 1), configs=[mps()])})
    later = revive(node)
    later.recover()
    later.unprepare([ref("u1")])
    assert len(node.daemons.running) == 1
    assert node.smi.modes == {uuid(0): ComputeMode.EXCLUSIVE_PROCESS}
    later.unprepare([ref("u2")])
    assert_clean(node)
