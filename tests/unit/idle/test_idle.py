"""Who holds a GPU and does not use it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from driver.cli.main import main
from driver.idle import SAVE_SECONDS, IdleBook, read_book
from driver.model import Placement
from driver.prepare import ClaimRecord, ClaimRef, DeviceRecord, Phase
from driver.prepare.partition import Origin, PartitionRecord
from native.nvml.healthtypes import GpuHealth, GpuProcess

ADDRESS = "0000:1b:00.0"
BOOT = "boot-1"


class Desk:
    """A book and its clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.records: list[ClaimRecord] = []
        self.open()

    def open(self, boot: str | None = BOOT) -> None:
        self.book = IdleBook(600, boot, self.folder, wall=lambda: self.now + 1e9, boot=lambda: self.now)

    def claim(self, name: str = "c", gi: int | None = None, *, admin: bool = False) -> None:
        device = DeviceRecord("r", "pool", f"gpu-{name}", None, admin, ADDRESS, "GPU-1", "cdi")
        if gi is not None:
            part = PartitionRecord(19, "1g.10gb", Placement(0, 1), "GPU-1", Origin.MADE, None, gi, 0)
            device = device.with_partition(part, "MIG-1")
        self.records.append(ClaimRecord(ClaimRef("ns", name, f"uid-{name}"), Phase.PREPARED, (device,)))

    def sample(self, seconds: float = 0.0, **reading: Any) -> list[str]:
        self.now += seconds
        return [use.claim for use in self.book.sample({ADDRESS: GpuHealth(ADDRESS, **reading)}, self.records)]

    def unused(self) -> dict[str, float]:
        return {use.claim: use.seconds for use in self.book.uses()}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def process(gi: int | None = None) -> tuple[GpuProcess, ...]:
    return (GpuProcess(1, gi, None, 2**30),)


def test_a_gpu_that_computes_is_used_and_one_that_does_not_becomes_idle(desk: Desk) -> None:
    desk.claim()
    desk.sample(utilization=(80, 10))
    assert desk.sample(300, utilization=(0, 0)) == []
    assert desk.unused() == {"c": 300}
    assert desk.sample(300, utilization=(0, 0)) == ["c"]
    assert desk.book.uses()[0].idle
    assert desk.sample(10, utilization=(0, 0)) == [], "told once"
    assert desk.sample(10, utilization=(5, 0)) == ["c"]
    assert desk.unused() == {"c": 0}


def test_a_process_that_only_holds_memory_does_not_use_a_whole_gpu(desk: Desk) -> None:
    desk.claim()
    desk.sample(utilization=(0, 0), compute_processes=process())
    desk.sample(700, utilization=(0, 0), compute_processes=process(), memory_used=2**30)
    (use,) = desk.book.uses()
    assert (use.idle, use.processes, use.memory, use.ever) == (True, 1, 2**30, False)


def test_a_partition_is_used_while_a_process_is_on_it(desk: Desk) -> None:
    desk.claim("a", gi=1)
    desk.claim("b", gi=2)
    desk.sample(compute_processes=process(1))
    desk.sample(700, compute_processes=process(1))
    assert desk.unused() == {"b": 700, "a": 0}


def test_without_a_reading_nothing_is_counted(desk: Desk) -> None:
    desk.claim()
    desk.sample(utilization=(50, 0))
    desk.now += 5000
    desk.book.sample({}, desk.records)
    desk.sample(codes={"handle": 15})
    assert desk.unused() == {"c": 0}


def test_admin_access_and_claims_that_ended_are_not_in_the_book(desk: Desk) -> None:
    desk.claim("admin", admin=True)
    desk.claim()
    desk.sample(utilization=(0, 0))
    assert desk.unused() == {"c": 0}
    desk.records = []
    desk.sample(10)
    assert desk.unused() == {}


def test_a_restart_of_the_agent_goes_on_counting_and_a_reboot_begins_anew(desk: Desk) -> None:
    desk.claim()
    desk.sample(utilization=(1, 0))
    desk.sample(SAVE_SECONDS + 1, utilization=(0, 0))
    desk.open()
    desk.sample(100, utilization=(0, 0))
    assert desk.unused() == {"c": SAVE_SECONDS + 101}
    desk.open("boot-2")
    desk.sample(0, utilization=(0, 0))
    assert desk.unused() == {"c": 0}


def test_a_bad_file_is_no_fault(desk: Desk, tmp_path: Path) -> None:
    for bad in (b"", b"[]", b"\xff" * 50, b'{"version":2,"boot":null,"wall":0,"uses":[]}'):
        (tmp_path / "idle.json").write_bytes(bad)
        desk.open()
        assert read_book(tmp_path / "idle.json") is None
    (tmp_path / "idle.json").unlink()
    (tmp_path / "idle.json").mkdir()
    desk.open()
    desk.claim()
    desk.sample(utilization=(0, 0))
    assert desk.unused() == {"c": 0}


def test_the_verb_lists_who_is_longest_unused(desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk.claim("train")
    desk.sample(utilization=(30, 0))
    desk.claim("forgotten")
    desk.sample(SAVE_SECONDS * 70, utilization=(0, 0), memory_used=3 * 2**30)
    assert main(["idle", "--state-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["CLAIM", "DEVICE"]
    assert lines[1].split() == ["ns/train", "gpu-train", "1h10m", "1h10m", "ago", "0", "0", "%", "3.0", "GiB"]
    assert "never" in lines[2]
    assert main(["idle", "--state-dir", str(tmp_path), "--at-least", "1h", "-o", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["claim"], one["unusedSeconds"], one["idle"]) == ("train", 4200, True)
    assert main(["idle", "--state-dir", str(tmp_path), "--at-least", "3d"]) == 0
    assert "no claim" in capsys.readouterr().out


def test_the_verb_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["idle", "--state-dir", str(tmp_path)]) == 2
    assert "--state-dir" in capsys.readouterr().err
    assert main(["idle", "--state-dir", str(tmp_path), "--at-least", "soon"]) == 2
    assert "is no time" in capsys.readouterr().err
