"""What a publication lacks is told when that changes."""

from __future__ import annotations

import logging

import pytest

from driver.lacks import Lacks
from driver.publish import PoolDocument, Withheld

LOST = Withheld("gpu-0000-1b-00-0", "it fell off the bus")
BUSY = Withheld("gpu-0000-1b-00-0", "another driver has it")
OTHER = Withheld("gpu-0000-43-00-0", "its memory is unknown")


def pool(*withheld: Withheld) -> PoolDocument:
    return PoolDocument("node-a/gpu.nvidia.com", ((),), withheld)


def test_a_gpu_that_is_withheld_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    lacks = Lacks()
    for _ in range(3):
        lacks.tell(pool(LOST), uncounted=False)
    assert caplog.messages == [f"not published: {LOST.device}: {LOST.reason}"]


def test_another_gpu_and_another_reason_are_told(caplog: pytest.LogCaptureFixture) -> None:
    lacks = Lacks()
    for withheld in ((LOST,), (LOST, OTHER), (BUSY, OTHER)):
        lacks.tell(pool(*withheld), uncounted=False)
    assert [text.partition(": ")[2] for text in caplog.messages] == [
        f"{each.device}: {each.reason}" for each in (LOST, OTHER, BUSY)
    ]


def test_the_end_of_it_is_told_and_a_relapse_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    lacks = Lacks()
    for withheld in ((LOST,), (), (), (LOST,)):
        lacks.tell(pool(*withheld), uncounted=False)
    assert [text.split(":")[0] for text in caplog.messages] == [
        "not published",
        f"{LOST.device} is withheld no longer",
        "not published",
    ]


def test_a_server_without_counters_is_told_once_and_again_after_one_that_keeps_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lacks = Lacks()
    for uncounted in (True, True, False, True):
        lacks.tell(pool(), uncounted=uncounted)
    assert len(caplog.messages) == 2
    assert all("DRAPartitionableDevices" in text for text in caplog.messages)
