"""The publisher and a server that drops fields, refuses pools, is busy, fails or goes away; threads that end."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.client import ApiUnreachableError, KubeClient
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from tests.unit.publisher.publisher_pools import COUNTERS, POOL, SLICES, TAINT, content, pools, publish

# Dropped fields


@pytest.mark.bug("B35")
@pytest.mark.parametrize(
    ("gate", "wanted", "field"),
    [
        ("DRADeviceTaints", content("gpu-0", taints=[TAINT]), "devices[*].taints"),
        (
            "DRAConsumableCapacity",
            content("gpu-0", allowMultipleAllocations=True),
            "devices[*].allowMultipleAllocations",
        ),
        ("DRAPartitionableDevices", Slice(shared_counters=(COUNTERS,)), "sharedCounters"),
        (
            "DRADeviceBindingConditions",
            content("gpu-0", bindingConditions=["a"], bindingFailureConditions=["b"]),
            "devices[*].bindingConditions",
        ),
    ],
)
def test_fields_that_the_server_drops_are_reported_once_and_written_once(
    bench_class: Any, gate: str, wanted: Slice, field: str
) -> None:
    with EmbeddedApiServer(disabled_gates=frozenset({gate})) as server:
        bench = bench_class(server)
        publisher = publish(bench, wanted)
        for _ in range(2):
            publisher.update(pools(wanted))
            assert publisher.synced(10)
        (stored,) = bench.stored()
        bench.client.patch(f"{SLICES}/{stored['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}})
        bench.observer.wait_for(lambda: len(bench.observer.successes) >= 4)
        publisher.stop()

        (dropped,) = bench.observer.drops
        assert dropped.pool == POOL
        assert dropped.slice_index == 0
        assert field in dropped.fields
        assert dropped.feature_gates == (gate,)
        assert bench.writes() == ["POST", "PATCH"]


@pytest.mark.bug("B35")
def test_devices_that_overlap_are_never_published_without_their_counters(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    before = bench.stored()
    bench.server.set_gate("DRAPartitionableDevices", enabled=False)
    use = [{"counterSet": "set", "counters": {"memory": {"value": "40Gi"}}}]

    publisher.update(pools(Slice(shared_counters=(COUNTERS,)), content("mig-0", "mig-1", consumesCounters=use)))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))

    (failure,) = bench.observer.failures
    assert not failure.retryable
    assert "DRAPartitionableDevices is off" in failure.message
    assert [dropped.feature_gates for dropped in bench.observer.drops] == [("DRAPartitionableDevices",)]
    assert bench.stored() == before
    bench.server.set_gate("DRAPartitionableDevices", enabled=True)
    bench.watched()
    bench.server.faults.close_watches()
    bench.eventually(lambda: bench.devices() == [[], ["mig-0", "mig-1"]])


def test_fields_that_the_server_dropped_are_tried_again_after_it_was_away(bench: Any) -> None:
    bench.server.set_gate("DRADeviceTaints", enabled=False)
    publish(bench, content("gpu-0", taints=[TAINT]))
    assert "taints" not in bench.stored()[0]["spec"]["devices"][0]
    bench.server.set_gate("DRADeviceTaints", enabled=True)
    bench.watched()

    bench.server.faults.close_watches()

    bench.eventually(lambda: "taints" in bench.stored()[0]["spec"]["devices"][0])


# Refusals


def test_a_refused_pool_is_reported_and_not_tried_again(bench: Any) -> None:
    publisher = bench.publisher()
    publisher.update(pools(content("GPU_0")))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))
    assert not publisher.synced(0.3)

    (failure,) = bench.observer.failures
    assert (failure.pool, failure.status, failure.retryable) == (POOL, 422, False)
    assert "spec.devices[0].name: Invalid value" in failure.message
    publisher.update(pools(content("GPU_0")))
    assert not publisher.synced(0.2)
    assert bench.writes() == ["POST"]


def test_a_refused_pool_goes_out_as_soon_as_it_is_mended(bench: Any) -> None:
    publisher = bench.publisher()
    publisher.update(pools(content("GPU_0")))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))

    publisher.update(pools(content("gpu-0")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"]]


def test_a_refused_pool_is_offered_again_after_a_while(bench: Any) -> None:
    bench.server.faults.fail(422, "Invalid", methods=("POST",), path="resourceslices")
    publisher = bench.publisher(rejected_retry=0.1)
    publisher.update(pools(content("gpu-0")))

    assert publisher.synced(10)
    assert [failure.retryable for failure in bench.observer.failures] == [False]


@pytest.mark.parametrize("bad", [content("GPU_0"), content("gpu-0", "gpu-0")], ids=["by the server", "by us"])
def test_a_bad_pool_does_not_hold_up_the_others(bench: Any, bad: Slice) -> None:
    publisher = bench.publisher()
    publisher.update(DriverResources({"bad": Pool((bad,)), "good": Pool((content("gpu-1"),))}))

    bench.eventually(lambda: bench.devices("good") == [["gpu-1"]])
    bench.observer.wait_for(lambda: bool(bench.observer.failures))
    assert [failure.pool for failure in bench.observer.failures] == ["bad"]
    assert bench.devices("bad") == []


@pytest.mark.bug("B30")
def test_a_pool_that_is_refused_in_part_stays_as_it_was(bench: Any) -> None:
    names = [f"gpu-{index}" for index in range(65)]
    publisher = publish(bench, content("other"), content(*names))
    before = bench.stored()

    tainted = Slice(({"name": names[0], "taints": [TAINT]}, *({"name": name} for name in names[1:])))
    publisher.update(pools(content("another"), tainted))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))

    assert "Too many: 65: must have at most 64 items" in bench.observer.failures[0].message
    assert bench.stored() == before, "half of a change would make the scheduler ignore the whole pool"


# A server in trouble


def test_a_busy_server_is_asked_again_when_it_says(bench: Any) -> None:
    bench.server.faults.fail(429, "TooManyRequests", methods=("POST",), path="resourceslices", retry_after=1)
    began = time.monotonic()

    publish(bench, content("gpu-0"))

    assert 1.0 <= time.monotonic() - began < 4.0
    assert bench.writes() == ["POST", "POST"]


def test_an_error_of_the_server_is_retried(bench: Any) -> None:
    bench.server.faults.fail(500, "InternalError", methods=("POST",), path="resourceslices", times=2)

    publish(bench, content("gpu-0"))

    assert [(failure.status, failure.retryable) for failure in bench.observer.failures] == [(500, True)] * 2


def test_a_missing_permission_says_what_to_check(bench: Any) -> None:
    bench.server.faults.fail(403, "Forbidden", message="resourceslices is forbidden", methods=("POST",))
    publish(bench, content("gpu-0"))

    (failure,) = bench.observer.failures
    assert failure.retryable
    assert failure.message.startswith("resourceslices is forbidden: check the ClusterRole")


@pytest.mark.bug("B33")
def test_a_server_without_the_api_is_named_as_such(bench: Any) -> None:
    bench.server.faults.fail(404, "NotFound", message="the server could not find the requested resource", path=SLICES)
    publisher = bench.publisher()
    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)

    messages = [failure.message for failure in bench.observer.failures]
    assert all("Kubernetes 1.34 or newer is needed" in message for message in messages)


def test_a_conflict_is_read_again_and_solved(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    bench.server.faults.hold_watches()
    (stored,) = bench.stored()
    bench.client.patch(f"{SLICES}/{stored['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}})

    publisher.update(pools(content("gpu-1")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-1"]]
    assert bench.stored()[0]["metadata"]["labels"] == {"a": "b"}
    assert bench.observer.failures == []


@pytest.mark.parametrize("edit", ["changed", "deleted", "replaced"])
def test_a_slice_that_goes_is_read_again_when_others_were_at_it(bench: Any, edit: str) -> None:
    publisher = publish(bench, content("gpu-0"), content("gpu-1"))
    second = bench.stored()[1]
    where = f"{SLICES}/{second['metadata']['name']}"
    bench.server.faults.hold_watches()
    if edit == "changed":
        bench.client.patch(where, {"metadata": {"labels": {"a": "b"}}})
    else:
        bench.client.delete(where)
    if edit == "replaced":
        metadata = {key: second["metadata"][key] for key in ("name", "ownerReferences")}
        bench.client.create(SLICES, {"metadata": metadata, "spec": second["spec"]})

    publisher.update(pools(content("gpu-0")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"]]
    assert bench.observer.failures == []


def test_a_deletion_without_an_answer_is_tried_again(bench: Any) -> None:
    client: KubeClient = bench.server.client()
    publisher = bench.publisher(client)
    publisher.update(pools(content("gpu-0"), content("gpu-1")))
    assert publisher.synced(10)
    delete, lost = client.delete, [True]

    def without_an_answer(path: str, **options: Any) -> Any:
        answer = delete(path, **options)
        if lost and lost.pop():
            raise ApiUnreachableError("the answer was lost")
        return answer

    client.delete = without_an_answer  # type: ignore[method-assign] # a wire that loses an answer
    publisher.update(pools(content("gpu-0")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"]]
    assert bench.observer.failures[0].message == "the answer was lost"


def test_a_slice_that_vanished_unseen_is_made_again(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    bench.server.faults.hold_watches()
    (stored,) = bench.stored()
    bench.client.delete(f"{SLICES}/{stored['metadata']['name']}")

    publisher.update(pools(content("gpu-1")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-1"]]


def test_a_server_that_is_away_at_the_start_is_waited_for(bench: Any) -> None:
    port = int(bench.server.url.rpartition(":")[2])
    client = bench.server.client()
    bench.server.stop()
    publisher = bench.publisher(client)
    publisher.update(pools(content("gpu-0")))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))
    assert bench.observer.failures[0].status is None

    bench.server.start(port)

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"]]


def test_a_server_that_goes_away_in_between_is_served_again(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    port = int(bench.server.url.rpartition(":")[2])
    bench.server.stop()
    publisher.update(pools(content("gpu-1")))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))

    bench.server.start(port)

    assert publisher.synced(15)
    assert bench.devices() == [["gpu-1"]]


def test_a_server_that_ends_watches_at_once_is_not_asked_in_a_hot_loop(bench: Any) -> None:
    publish(bench, content("gpu-0"))
    seen = len(bench.server.requests)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:
        bench.server.faults.close_watches()
        threading.Event().wait(0.02)

    watches = [request for request in bench.server.requests[seen:] if request.query.get("watch")]
    assert 1 <= len(watches) <= 6


# Threads


def test_stopping_is_quick_and_deletes_nothing(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("publisher-")]
    assert len(threads) == 2
    assert all(thread.daemon for thread in threads)
    began = time.monotonic()

    publisher.stop()

    assert time.monotonic() - began < 2.0
    assert not any(thread.is_alive() for thread in threads)
    assert bench.devices() == [["gpu-0"]]


@pytest.mark.bug("B108")
def test_an_observer_that_fails_stops_nothing(bench: Any, caplog: pytest.LogCaptureFixture) -> None:
    def published(*_args: Any, **_kwargs: Any) -> None:
        raise RuntimeError("an observer's own fault")

    bench.observer.published = published
    publisher = publish(bench, content("gpu-0"))
    publisher.update(pools(content("gpu-1")))

    assert publisher.synced(10)
    assert bench.devices() == [["gpu-1"]]
    assert "the observer failed" in caplog.text


@pytest.mark.bug("B108")
def test_an_answer_that_makes_no_sense_stops_nothing(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client: KubeClient = bench.server.client()
    create, broken = client.create, [True]

    def odd(path: str, body: Any, **options: Any) -> Any:
        answer = create(path, body, **options)
        return {"nonsense": 1} if broken and broken.pop() else answer

    monkeypatch.setattr(client, "create", odd)
    publisher = bench.publisher(client)
    publisher.update(pools(content("gpu-0")))

    bench.eventually(lambda: bench.devices() == [["gpu-0"]])
    assert publisher.synced(10)
