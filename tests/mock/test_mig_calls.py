"""What claims cost in NVML: a reading of the GPU before and after, and the calls that make or destroy the partition."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from driver.model import MigSupport
from native.mock import MockNode
from tests.support.mignodes import MigNode


class Calls:
    """Counts what goes through the door to NVML."""

    def __init__(self, node: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
        assert node.reader is not None
        session = node.reader.session
        self.looks: list[Any] = []
        self.changes: list[str] = []
        snapshot, change = session.snapshot, session.change

        def looked(addresses: Any, *rest: Any, **options: Any) -> Any:
            self.looks.append(addresses)
            return snapshot(addresses, *rest, **options)

        def changed(address: str, work: Any, *rest: Any, **options: Any) -> Any:
            return change(address, lambda nvml: work(Told(nvml, self.changes)), *rest, **options)

        monkeypatch.setattr(session, "snapshot", looked)
        monkeypatch.setattr(session, "change", changed)


class Told:
    """A backend that writes down the names of its methods as they are called."""

    def __init__(self, nvml: Any, log: list[str]) -> None:
        self._nvml = nvml
        self._log = log

    def __getattr__(self, name: str) -> Any:
        self._log.append(name)
        return getattr(self._nvml, name)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MigNode]:
    monkeypatch.setenv("GPUDRA_MOCK_QUIET", "1")
    for name in ("GPUDRA_MOCK_NODE", "GPUDRA_MOCK_DEV"):
        monkeypatch.setenv(name, "")
    made = MigNode(MockNode.create(tmp_path / "node", "h200"), tmp_path)
    made.read()
    yield made
    if made.reader is not None:
        made.reader.close()


def test_a_partition_costs_two_looks_at_its_gpu_and_the_calls_that_make_it(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(node, monkeypatch)
    node.prepared("u1", node.name("1g.18gb", 6))
    address = node.node.profile.gpus[0].address
    assert calls.looks == [[address]] * 2
    making = ["create_gpu_instance", "compute_instance_profiles", "create_compute_instance"]
    assert calls.changes == ["set_mig_mode", *making]

    calls.looks.clear()
    calls.changes.clear()
    node.prepared("u2", node.name("1g.18gb", 5))
    assert len(calls.looks) == 2
    assert calls.changes == making, "the mode is on"

    calls.looks.clear()
    calls.changes.clear()
    node.prepared("u2", node.name("1g.18gb", 5))
    assert (calls.looks, calls.changes) == ([], []), "a repeated Prepare is answered from the record"


def test_the_end_of_a_partition_is_looked_at_before_and_after(node: MigNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.prepared("u1", node.name("1g.18gb", 6))
    calls = Calls(node, monkeypatch)
    assert node.unprepare("u1") is None
    assert len(calls.looks) == 2
    assert calls.changes == ["destroy_compute_instance", "destroy_gpu_instance", "set_mig_mode"]


def test_a_whole_gpu_costs_one_look_where_its_mode_is_switched_and_none_elsewhere(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(node, monkeypatch)
    node.prepared("u1", node.gpu().name)
    assert (len(calls.looks), calls.changes) == (1, [])
    node.mig = MigSupport.STATIC
    node.start()
    calls = Calls(node, monkeypatch)
    node.prepared("u2", node.gpu(1).name)
    assert node.unprepare("u2") is None
    assert (calls.looks, calls.changes) == ([], [])


def test_recovery_looks_at_no_gpu_while_the_last_reading_shows_all_partitions(
    node: MigNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.prepared("u1", node.name("1g.18gb", 6))
    node.read()
    calls = Calls(node, monkeypatch)
    assert node.preparer.recover().problems == []
    assert (calls.looks, calls.changes) == ([], [])
