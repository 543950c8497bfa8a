"""What the server keeps decides what is published, and is asked again when the server is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.client import ApiError
from kubeletplugin.publisher.diff import gates_of
from kubeletplugin.publisher.features import PROBES, SPEC_PROBES, Features, detect_features
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.gates import DEFAULT_GATES

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = "node-a/gpu.example.com"
ALL = frozenset(PROBES) | frozenset(SPEC_PROBES)


@pytest.mark.parametrize("gate", sorted(ALL))
def test_each_gate_is_found_out_by_itself(gate: str) -> None:
    with EmbeddedApiServer(disabled_gates=DEFAULT_GATES) as server:
        assert detect_features(server.client(), DRIVER, NODE).gates == frozenset()
        server.set_gate(gate, enabled=True)
        # Compatibility groups stand inside of what consumes counters.
        needed = {"DRAPartitionableDevices"} if gate == "DRADeviceCompatibilityGroups" else set()
        for one in needed:
            server.set_gate(one, enabled=True)
        assert detect_features(server.client(), DRIVER, NODE).gates == {gate} | needed


def test_the_defaults_are_those_of_the_server() -> None:
    with EmbeddedApiServer() as server:
        features = detect_features(server.client(), DRIVER, NODE)
    assert features.gates == DEFAULT_GATES
    assert features.server == "v1.37.0-embedded"
    assert (features.taints, features.partitionable, features.consumable_capacity) == (True, True, True)
    assert not features.list_attributes


def test_a_refusal_names_the_gate_that_is_off(old: Any) -> None:
    """A list attribute is not dropped but leaves an attribute without a value, which the server calls invalid."""
    publisher = old.publisher()
    numa = {"numa": {"ints": [0, 1]}}
    publisher.update(DriverResources({POOL: Pool((Slice(({"name": "gpu-0", "attributes": numa},)),))}))
    old.observer.wait_for(lambda: bool(old.observer.failures))
    (failure,) = old.observer.failures
    assert (failure.status, failure.retryable) == (422, False)
    assert failure.message.endswith("(feature gates that are off: DRAListTypeAttributes)")


def test_a_refusal_for_another_reason_names_no_gate(old: Any) -> None:
    publisher = old.publisher()
    publisher.update(DriverResources({POOL: Pool((Slice(({"name": "NOT A NAME"},)),))}))
    old.observer.wait_for(lambda: bool(old.observer.failures))
    assert "feature gates" not in old.observer.failures[0].message


@pytest.mark.parametrize(
    ("device", "gates"),
    [
        ({"name": "taints"}, set()),
        ({"name": "a", "attributes": {"taints": {"string": "ints"}}}, set()),
        ({"name": "a", "taints": []}, set()),
        ({"name": "a", "taints": [{"key": "k", "effect": "NoSchedule"}]}, {"DRADeviceTaints"}),
        ({"name": "a", "attributes": {"x": {"strings": ["a"]}}}, {"DRAListTypeAttributes"}),
        ({"name": "a", "allowMultipleAllocations": True}, {"DRAConsumableCapacity"}),
        ({"name": "a", "consumesCounters": [{"counterSet": "s"}]}, {"DRAPartitionableDevices"}),
    ],
)
def test_the_gates_of_a_content_are_those_of_the_fields_that_it_uses(device: Any, gates: set[str]) -> None:
    assert gates_of(Slice((device,))) == gates


def test_the_gates_of_a_whole_slice_are_known_too() -> None:
    assert gates_of(Slice(per_device_node_selection=True)) == {"DRAPartitionableDevices"}
    assert gates_of(Slice(skip_node_operations=("*",))) == {"DRAOptionalNodeOperations"}
    assert gates_of(Slice(partition_type_attribute="a/b")) == {"DRAPartitionableDevicesType"}
    assert gates_of(Slice(shared_counters=({"name": "s"},))) == {"DRAPartitionableDevices"}


def test_nothing_is_stored_by_asking() -> None:
    with EmbeddedApiServer() as server:
        detect_features(server.client(), DRIVER, NODE)
        assert server.writes() == []


def test_a_server_that_does_not_let_us_ask_is_not_taken_for_one_without_features() -> None:
    with EmbeddedApiServer() as server:
        server.faults.fail(403, "Forbidden", methods=("POST",))
        with pytest.raises(ApiError):
            detect_features(server.client(), DRIVER, NODE)


# In the publisher


class Careful:
    """A driver that publishes partitions only where their counters are kept, and lists only where those are."""

    def __init__(self) -> None:
        self.asked: list[Features] = []

    def __call__(self, features: Features) -> DriverResources:
        self.asked.append(features)
        numa = {"ints": [0, 1]} if features.list_attributes else {"int": 0}
        whole = {"name": "gpu-0", "attributes": {"numa": numa}}
        if not features.partitionable:
            return DriverResources({POOL: Pool((Slice((whole,)),))})
        consumes = [{"counterSet": "set", "counters": {"memory": {"value": "1"}}}]
        counters = Slice(shared_counters=({"name": "set", "counters": {"memory": {"value": "2"}}},))
        parts = Slice(tuple({"name": f"part-{number}", "consumesCounters": consumes} for number in range(2)))
        return DriverResources({POOL: Pool((counters, parts))})


@pytest.fixture
def old(bench_class: Any) -> Iterator[Any]:
    """A server of a version that does not know partitions."""
    with EmbeddedApiServer(disabled_gates=frozenset({"DRAPartitionableDevices"})) as server:
        bench = bench_class(server)
        yield bench
        for publisher in bench.publishers:
            publisher.stop()


@pytest.mark.bug("B32")
def test_only_what_is_kept_is_published(old: Any) -> None:
    driver = Careful()
    publisher = old.publisher()
    publisher.update(driver)
    assert publisher.synced(10)
    assert old.devices() == [["gpu-0"]]
    assert old.observer.drops == []
    assert old.observer.failures == []


@pytest.mark.bug("B32")
def test_an_upgrade_that_ends_watches_without_an_error_is_noticed(old: Any) -> None:
    driver = Careful()
    publisher = old.publisher()
    publisher.update(driver)
    assert publisher.synced(10)
    old.watched()
    old.server.upgrade("v1.38.0", enable=frozenset({"DRAPartitionableDevices"}))
    old.eventually(lambda: old.devices() == [[], ["part-0", "part-1"]])
    assert publisher.synced(10)
    assert driver.asked[-1].server == "v1.38.0"
    assert len(old.generations()) == 1


def test_fields_that_an_older_server_dropped_come_after_its_upgrade_without_a_word_from_the_driver(
    bench_class: Any,
) -> None:
    with EmbeddedApiServer(disabled_gates=frozenset({"DRADeviceTaints"})) as server:
        bench = bench_class(server)
        publisher = bench.publisher()
        taint = {"key": "lost", "effect": "NoSchedule"}
        publisher.update(DriverResources({POOL: Pool((Slice(({"name": "gpu-0", "taints": [taint]},)),))}))
        assert publisher.synced(10)
        assert "taints" not in bench.stored()[0]["spec"]["devices"][0]
        bench.watched()
        server.upgrade("v1.38.0", enable=frozenset({"DRADeviceTaints"}))
        bench.eventually(lambda: "taints" in bench.stored()[0]["spec"]["devices"][0])
        publisher.stop()


def test_a_watch_that_ends_at_the_same_version_asks_for_nothing_again(old: Any) -> None:
    driver = Careful()
    publisher = old.publisher()
    publisher.update(driver)
    assert publisher.synced(10)
    asked, watches = len(driver.asked), old.server.requests
    old.watched()
    before = len([one for one in watches if one.query.get("watch")])
    old.server.faults.end_watches()
    old.eventually(lambda: len([one for one in watches if one.query.get("watch")]) > before)
    assert len(driver.asked) == asked


def test_a_server_that_cannot_be_asked_yet_is_asked_again(old: Any) -> None:
    old.server.faults.fail(500, "InternalError", methods=("POST",), times=1)
    publisher = old.publisher()
    publisher.update(Careful())
    assert publisher.synced(10)
    assert old.devices() == [["gpu-0"]]
    (failure,) = old.observer.failures
    assert (failure.pool, failure.status, failure.retryable) == ("", 500, True)


def test_a_driver_that_fails_leaves_what_is_published_and_is_asked_again(old: Any, caplog: Any) -> None:
    publisher = old.publisher()
    publisher.update(DriverResources({POOL: Pool((Slice(({"name": "before"},)),))}))
    assert publisher.synced(10)
    failing = [True]

    def moody(features: Features) -> DriverResources:
        if failing and failing.pop():
            raise RuntimeError("not now")
        return Careful()(features)

    publisher.update(moody)
    old.observer.wait_for(lambda: any("not now" in one.message for one in old.observer.failures))
    assert old.devices() == [["before"]]
    assert publisher.synced(10)
    assert old.devices() == [["gpu-0"]]
    assert "what is published stays" in caplog.text


def test_a_fixed_wish_takes_the_place_of_a_function(old: Any) -> None:
    publisher = old.publisher()
    publisher.update(Careful())
    assert publisher.synced(10)
    publisher.update(DriverResources({POOL: Pool((Slice(({"name": "fixed"},)),))}))
    assert publisher.synced(10)
    seen = len(old.server.requests)
    old.server.upgrade("v1.38.0")
    old.eventually(lambda: any(request.query.get("watch") for request in old.server.requests[seen:]))
    assert publisher.synced(10)
    assert old.devices() == [["fixed"]]
