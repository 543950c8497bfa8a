"""Partitions behind reboots, losses and beside other instances: they stand again in their places, or are taken back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from driver.prepare import ClaimError, Reason
from tests.support.mignodes import Make, MigNode, listed, maker, uuids


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A node of a profile with a driver on it that has looked at it once."""
    return maker(tmp_path, monkeypatch)


@pytest.mark.bug("B72")
def test_after_a_reboot_partitions_are_made_again_in_their_places(make: Make, tmp_path: Path) -> None:
    node = make()
    names = [node.name("1g.18gb", 6), node.name("3g.71gb", 0)]
    for number, name in enumerate(names):
        node.prepared(f"u{number}", name)
    before = [uuids(node, "u0"), uuids(node, "u1")]
    node.reboot()
    assert node.instances() == []
    node.start()
    node.read()
    report = node.preparer.recover()
    assert report.problems == []
    assert report.remade == ["u0", "u1"]
    assert node.instances() == [("3g.71gb", 0), ("1g.18gb", 6)]
    assert [uuids(node, "u0"), uuids(node, "u1")] != before, "the mock gives each partition a UUID of its own"
    assert uuids(node, "u0")[0] in listed(node, "u0", tmp_path)[1]
    assert node.preparer.recover().remade == []
    for uid in ("u0", "u1"):
        assert node.unprepare(uid) is None
    node.nothing_left()


@pytest.mark.bug("B72")
def test_after_a_reboot_a_claim_that_is_gone_is_undone_without_a_look_at_the_gpu(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    node.reboot()
    node.start()
    node.node.set_driver_loaded(False)
    assert node.unprepare("u1") is None
    node.node.set_driver_loaded(True)
    node.nothing_left()


@pytest.mark.bug("B94")
def test_a_partition_that_somebody_destroyed_is_made_again(make: Make) -> None:
    node = make()
    address = node.node.profile.gpus[0].address
    node.prepared("u1", node.name("1g.18gb", 6))
    (mine,) = node.node.instances(address)
    node.node.nvidia_smi("mig", "-i", address, "-dci", "-gi", str(mine.id))
    node.node.nvidia_smi("mig", "-i", address, "-dgi", "-gi", str(mine.id))
    node.read()
    assert node.preparer.recover().remade == ["u1"]
    assert node.instances() == [("1g.18gb", 6)]
    assert node.unprepare("u1") is None
    node.nothing_left()


@pytest.mark.bug("B59")
def test_claims_come_and_go_on_one_gpu_from_several_threads(make: Make) -> None:
    node = make()
    names = [node.name("1g.18gb", start) for start in range(4)]
    failures: list[object] = []

    def storm(number: int) -> None:
        for turn in range(4):
            uid = f"u{number}-{turn}"
            answer = node.prepare(uid, names[number])
            failures.extend([answer] if isinstance(answer, ClaimError) else [])
            failures.extend([error] if (error := node.unprepare(uid)) is not None else [])

    threads = [threading.Thread(target=storm, args=(number,)) for number in range(len(names))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    node.nothing_left()


@pytest.mark.bug("B96")
def test_an_instance_that_starts_touches_nothing_that_the_old_one_is_making(make: Make) -> None:
    node = make()
    made, go_on = threading.Event(), threading.Event()

    def hold(point: str) -> None:
        if point == "gi-made":
            made.set()
            assert go_on.wait(30)

    node.faults = hold
    with ThreadPoolExecutor(1) as pool:
        making = pool.submit(node.prepared, "u1", node.name("1g.18gb", 6))
        try:
            assert made.wait(30)
            successor = MigNode(node.node, node.base, patience=0.2)
            (problem,) = successor.preparer.recover().problems
            assert "another instance of the driver is still at work" in problem.message
            assert node.instances() == [("1g.18gb", 6)]
        finally:
            go_on.set()
        making.result(30)
    assert successor.unprepare("u1") is None
    assert node.instances() == []


def lose_the_checkpoint(node: MigNode) -> None:
    for path in (node.base / "state").glob("checkpoint*"):
        path.unlink()
    node.start()
    assert node.unprepare("nobody") is None
    node.read()
    node.preparer.recover()


@pytest.mark.bug("B68")
def test_with_the_checkpoint_lost_a_partition_is_known_by_its_file_and_goes_with_its_claim(make: Make) -> None:
    node = make()
    node.prepared("u1", node.name("1g.18gb", 6))
    lose_the_checkpoint(node)
    assert node.refused("u2", node.name("3g.71gb", 4)).reason is Reason.DEVICE_IN_USE
    node.prepared("u3", node.name("4g.71gb", 0))
    assert node.instances() == [("4g.71gb", 0), ("1g.18gb", 6)]
    assert node.unprepare("u1") is None
    assert node.unprepare("u3") is None
    node.nothing_left()


@pytest.mark.bug("B68")
def test_with_the_checkpoint_lost_a_repeated_prepare_leaves_the_partition_standing(make: Make) -> None:
    node = make()
    name = node.name("2g.35gb", 2)
    before = node.prepared("u1", name)
    told = uuids(node, "u1")
    lose_the_checkpoint(node)
    assert node.prepared("u1", name) == before
    assert uuids(node, "u1") == told
    assert [record.trusted for record in node.preparer.prepared()] == [True]
    assert node.unprepare("u1") is None
    node.nothing_left()
