"""What the disk is waited for, and what a machine that loses its power finds of it afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from driver.prepare import ClaimError, Preparer
from driver.prepare.records import Phase
from tests.unit.prepare.prepare_node import FakeNode, claim, ref, result


class Disk:
    """Keeps the state folder as it was at its last sync, which is the least that is there after a loss of power."""

    def __init__(self, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self._node = node
        self._safe = node.base / "safe"
        self.syncs = 0
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._synced(getattr(os, name)))

    def _synced(self, sync: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            sync(descriptor)
            self._keep(Path(f"/proc/self/fd/{descriptor}").readlink())

        return synced

    def _keep(self, path: Path) -> None:
        """A folder is synced last of what is new in it; the checkpoint by itself."""
        if path in (self._node.state_dir, self._node.state_dir / "checkpoint.json"):
            self.syncs += 1
            shutil.rmtree(self._safe, ignore_errors=True)
            shutil.copytree(self._node.state_dir, self._safe)

    def lose_power(self) -> Preparer:
        """What was not synced is gone; the machine starts again."""
        shutil.rmtree(self._node.state_dir)
        shutil.copytree(self._safe, self._node.state_dir)
        self._node.reboot()
        return self._node.start()


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    return FakeNode(tmp_path)


@pytest.fixture
def disk(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(node, monkeypatch)


def started(node: FakeNode) -> Preparer:
    preparer = node.start()
    preparer.recover()
    assert not isinstance(preparer.prepare({"by": claim("by", result(7))})["by"], ClaimError)
    return preparer


@pytest.mark.parametrize(
    "work",
    [
        lambda preparer: preparer.prepare({"u1": claim("u1", result(0))}),
        lambda preparer: preparer.prepare({f"u{n}": claim(f"u{n}", result(n)) for n in range(4)}),
        lambda preparer: preparer.unprepare([ref("by")]),
    ],
    ids=["prepare one", "prepare four", "unprepare"],
)
def test_a_call_waits_for_the_disk_once(node: FakeNode, disk: Disk, work: Callable[[Preparer], object]) -> None:
    preparer = started(node)
    disk.syncs = 0
    work(preparer)
    assert disk.syncs == 1


def test_what_is_about_to_be_prepared_is_on_the_disk_before_anything_is_done(node: FakeNode, disk: Disk) -> None:
    preparer = started(node)
    disk.syncs = 0
    seen: list[tuple[int, list[str]]] = []
    node.faults = lambda point: seen.append((disk.syncs, node.specs())) if point == "p1" else None
    preparer.prepare({"u1": claim("u1", result(0))})
    assert seen == [(1, ["by"])]


def test_a_claim_that_was_prepared_when_the_power_went_is_prepared_anew(node: FakeNode, disk: Disk) -> None:
    before = started(node).prepare({"u1": claim("u1", result(0))})
    preparer = disk.lose_power()
    report = preparer.recover()
    assert report.problems == []
    assert node.specs() == ["by"]
    assert preparer.prepare({"u1": claim("u1", result(0))}) == before
    assert node.specs() == ["by", "u1"]


def test_after_the_power_went_another_claim_can_have_the_gpu(node: FakeNode, disk: Disk) -> None:
    started(node).prepare({"u1": claim("u1", result(0))})
    preparer = disk.lose_power()
    preparer.recover()
    preparer.unprepare([ref("u1")])
    assert not isinstance(preparer.prepare({"u2": claim("u2", result(0))})["u2"], ClaimError)


def test_an_answered_unprepare_outlives_the_power(node: FakeNode, disk: Disk) -> None:
    started(node).unprepare([ref("by")])
    preparer = disk.lose_power()
    assert preparer.recover().problems == []
    assert preparer.prepared() == ()
    assert node.specs() == []


def test_an_unprepare_that_was_not_answered_is_found_as_if_it_had_not_begun(node: FakeNode, disk: Disk) -> None:
    preparer = started(node)
    preparer.prepare({"u1": claim("u1", result(0))})  # with its intent the other claim's result is synced

    class PowerLossError(Exception):
        """The end of the machine."""

    def fail(point: str) -> None:
        if point == "u3":
            raise PowerLossError

    node.faults = fail
    with pytest.raises(PowerLossError):
        preparer.unprepare([ref("by")])
    again = disk.lose_power()
    node.faults = lambda _point: None
    again.recover()
    assert [record.phase for record in again.prepared()] == [Phase.PREPARED]
    assert again.unprepare([ref("by")]) == {"by": None}
    assert (again.prepared(), node.specs()) == ((), [])
