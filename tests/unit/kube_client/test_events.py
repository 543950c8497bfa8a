"""Events are counted, limited, cut, and never hold anybody up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from kubeletplugin.events import BURST_PER_OBJECT, MAX_QUEUED, EventRecorder, Regarding
from kubeletplugin.testing.apiserver import EmbeddedApiServer

NODE = Regarding("Node", "node-a", "uid-1")
EVENTS = "/api/v1/namespaces/default/events"


@pytest.fixture
def server() -> Iterator[EmbeddedApiServer]:
    with EmbeddedApiServer() as server:
        yield server


def recorder(server: EmbeddedApiServer, **options: Any) -> EventRecorder:
    return EventRecorder(server.client(), component="gpu.example.com", host="node-a", **options)


def events(server: EmbeddedApiServer, collection: str = EVENTS) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = server.client().get(collection)["items"]
    return items


def test_an_event_says_who_reports_what_about_whom(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    events_.record(NODE, "Warning", "SliceRefused", "a slice was refused")
    events_.stop()

    (event,) = events(server)
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"}
    assert (event["type"], event["reason"], event["message"]) == ("Warning", "SliceRefused", "a slice was refused")
    assert event["source"] == {"component": "gpu.example.com", "host": "node-a"}
    assert event["count"] == 1
    assert event["firstTimestamp"] == event["lastTimestamp"]


def test_the_object_may_be_given_as_a_reference(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    reference = {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1"}
    events_.record(reference, "Normal", "Published", "x")
    events_.record(NODE, "Normal", "Published", "x")
    events_.stop()

    (event,) = events(server)
    assert event["involvedObject"] == reference
    assert event["count"] == 2


def test_an_event_about_a_namespaced_object_lives_beside_it(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    claim = Regarding("ResourceClaim", "claim", "uid-2", "team-a", "resource.k8s.io/v1")
    events_.record(claim, "Normal", "Prepared", "ready")
    events_.stop()

    (event,) = events(server, "/api/v1/namespaces/team-a/events")
    assert event["involvedObject"]["apiVersion"] == "resource.k8s.io/v1"
    assert event["involvedObject"]["namespace"] == "team-a"


def test_the_same_event_is_counted_and_another_is_not(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    for _ in range(3):
        events_.record(NODE, "Warning", "SliceRefused", "same")
    events_.record(NODE, "Warning", "SliceRefused", "other")
    events_.stop()

    assert sorted((event["message"], event["count"]) for event in events(server)) == [("other", 1), ("same", 3)]


def test_an_event_that_expired_begins_anew(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    events_.record(NODE, "Normal", "Published", "x")
    wait_for_events(server, 1)
    server.client().delete(EVENTS)
    events_.record(NODE, "Normal", "Published", "x")
    events_.stop()

    (event,) = events(server)
    assert event["count"] == 1


def wait_for_events(server: EmbeddedApiServer, count: int) -> None:
    end = time.monotonic() + 10
    while len(events(server)) < count:
        with server.store.changed:
            assert time.monotonic() < end
            server.store.changed.wait(0.05)


def test_one_object_gets_no_more_than_its_share(server: EmbeddedApiServer) -> None:
    dropped: list[str] = []
    events_ = recorder(server, on_drop=dropped.append)
    for number in range(BURST_PER_OBJECT + 7):
        events_.record(NODE, "Normal", "Noise", str(number))
    events_.record(Regarding("Node", "node-b"), "Normal", "Quiet", "heard")
    events_.stop()

    assert dropped == ["rate"] * 7
    assert len(events(server)) == BURST_PER_OBJECT + 1


def test_a_server_that_hangs_holds_nobody_up(server: EmbeddedApiServer, caplog: pytest.LogCaptureFixture) -> None:
    dropped: list[str] = []
    server.faults.delay(30.0)
    events_ = recorder(server, on_drop=dropped.append)
    began = time.monotonic()
    for number in range(MAX_QUEUED + 20):
        events_.record(Regarding("Node", f"node-{number}"), "Normal", "Noise", "x")

    assert time.monotonic() - began < 1.0
    assert dropped.count("queue") >= 19
    assert "is dropped: queue is full" in caplog.text
    events_.stop(timeout=0.1)
    assert dropped.count("queue") >= MAX_QUEUED


def test_a_refused_event_is_logged_and_the_next_one_goes_out(
    server: EmbeddedApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    dropped: list[str] = []
    server.faults.fail(403, "Forbidden", message="events is forbidden", path="/events")
    events_ = recorder(server, on_drop=dropped.append)
    events_.record(NODE, "Normal", "First", "x")
    events_.record(NODE, "Normal", "Second", "x")
    events_.stop()

    assert [event["reason"] for event in events(server)] == ["Second"]
    assert dropped == ["error"]
    assert "event First about node-a is lost: events is forbidden" in caplog.text


@pytest.mark.bug("B108")
def test_a_fault_of_our_own_loses_one_event_and_no_thread(
    server: EmbeddedApiServer, caplog: pytest.LogCaptureFixture
) -> None:
    events_ = recorder(server)
    events_.record(Regarding("Node", "node-a", uid=object()), "Normal", "Odd", "x")  # type: ignore[arg-type] # no JSON
    events_.record(NODE, "Normal", "Next", "x")
    events_.stop()

    assert [event["reason"] for event in events(server)] == ["Next"]
    assert "event Odd about node-a is lost" in caplog.text


def test_a_long_message_is_cut_between_characters(server: EmbeddedApiServer) -> None:
    events_ = recorder(server)
    events_.record(NODE, "Normal", "Long", "x" + "ä" * 2000)
    events_.stop()

    message = events(server)[0]["message"]
    assert len(message.encode()) == 1023
    assert message == "x" + "ä" * 511


def test_a_type_that_kubernetes_does_not_know_is_refused(server: EmbeddedApiServer) -> None:
    with pytest.raises(ValueError, match="Normal or Warning"):
        recorder(server).record(NODE, "Error", "x", "x")


def test_nothing_is_posted_after_the_end(server: EmbeddedApiServer) -> None:
    before = threading.active_count()
    events_ = recorder(server)
    events_.record(NODE, "Normal", "Timely", "x")
    events_.stop()
    events_.record(NODE, "Normal", "Late", "x")

    assert [event["reason"] for event in events(server)] == ["Timely"]
    assert not [thread for thread in threading.enumerate() if thread.name == "events" and thread.is_alive()][before:]
