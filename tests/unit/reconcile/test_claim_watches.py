"""Claims are watched one by one: what a stream tells, how many there are, and the pace at which a server is tried."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from driver.prepare import ClaimRef
from driver.reconcile.watches import FIRM_SECONDS, REFUSED_SECONDS, ClaimWatches
from kubeletplugin.apierrors import ApiError, ApiUnreachableError
from kubeletplugin.client import KubeClient, WatchEvent
from kubeletplugin.testing.apiserver import EmbeddedApiServer

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
WAIT = 20.0


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    pause = threading.Event()
    while not (value := condition()):
        assert time.monotonic() < deadline
        pause.wait(0.01)
    return value


class Heard:
    """What watches tell."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []
        """(claim's name, UID of what is there now or None)."""

    def __call__(self, ref: ClaimRef, document: Mapping[str, Any] | None) -> None:
        self.seen.append((ref.name, None if document is None else document["metadata"]["uid"]))


def create(client: KubeClient, name: str, namespace: str = "default") -> ClaimRef:
    requests = [{"name": "r", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]
    made = client.create(
        CLAIMS.format(namespace),
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"devices": {"requests": requests}},
        },
    )
    return ClaimRef(namespace, name, made["metadata"]["uid"])


@pytest.fixture
def server() -> Iterator[EmbeddedApiServer]:
    with EmbeddedApiServer(bookmark_seconds=0.05) as running:
        yield running


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def watches(server: EmbeddedApiServer, heard: Heard) -> Iterator[ClaimWatches]:
    made = ClaimWatches(server.client(), heard, lambda: None, limit=2)
    yield made
    made.stop()
    until(lambda: server.open_watches == 0)


def test_a_claim_s_end_and_what_is_made_under_its_name_are_told(
    server: EmbeddedApiServer, watches: ClaimWatches, heard: Heard
) -> None:
    client = server.client()
    one = create(client, "one")
    watches.follow([one])
    until(lambda: server.open_watches == 1)
    assert heard.seen == [("one", one.uid)]
    create(client, "another")
    client.delete(f"{CLAIMS.format('default')}/one")
    anew = create(client, "one")
    until(lambda: len(heard.seen) == 3)
    assert heard.seen == [("one", one.uid), ("one", None), ("one", anew.uid)], "bookmarks and other claims are no news"


def test_a_claim_that_ended_before_it_was_watched_is_told_too(
    server: EmbeddedApiServer, watches: ClaimWatches, heard: Heard
) -> None:
    watches.follow([ClaimRef("default", "gone", "uid-1")])
    until(lambda: heard.seen)
    assert heard.seen == [("gone", None)]
    assert server.requests[0].query == {"fieldSelector": "metadata.name=gone", "resourceVersion": "0"}


@pytest.mark.bug("B128")
def test_only_single_claims_are_asked_for_by_name_and_namespace(
    server: EmbeddedApiServer, watches: ClaimWatches
) -> None:
    client = server.client()
    made = [create(client, "one", "team-a"), create(client, "two", "team-b")]
    watches.follow(made)
    until(lambda: server.open_watches == 2)
    asked = [request for request in server.requests if request.method == "GET"]
    assert {(request.path, request.query["fieldSelector"]) for request in asked} == {
        (CLAIMS.format("team-a"), "metadata.name=one"),
        (CLAIMS.format("team-b"), "metadata.name=two"),
    }


def test_there_are_no_more_streams_than_the_limit_and_one_that_ends_makes_room(
    server: EmbeddedApiServer, watches: ClaimWatches
) -> None:
    client = server.client()
    made = [create(client, name) for name in ("one", "two", "three")]
    watches.follow(made)
    until(lambda: server.open_watches == 2)
    assert watches.watched == {made[0].uid, made[1].uid}
    assert watches.due() is None, "there is nothing to try again"
    watches.follow(made[1:])
    until(lambda: watches.watched == {made[1].uid, made[2].uid} and server.open_watches == 2)


@pytest.mark.bug("B131")
def test_a_claim_without_a_name_or_with_a_hostile_one_is_not_asked_about(
    server: EmbeddedApiServer, watches: ClaimWatches
) -> None:
    watches.follow([ClaimRef("", "", "uid-1"), ClaimRef("ns", "../../pods/x", "uid-2"), ClaimRef("ns", "c", "a/b")])
    assert (server.requests, watches.watched, watches.due()) == ([], frozenset(), None)


class Server:
    """An API server whose answers and time are the test's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.error: Exception | None = None
        self.asked: list[str] = []
        self.turns = 0
        self.condition = threading.Condition()
        self.end = threading.Event()
        self.watches = ClaimWatches(self, lambda _ref, _document: None, self.turned, limit=16, clock=lambda: self.now)

    def turned(self) -> None:
        with self.condition:
            self.turns += 1
            self.condition.notify_all()

    def get(self, path: str, *, query: Mapping[str, str] | None = None, timeout: float | None = None) -> dict[str, Any]:
        assert query is not None
        self.asked.append(query["fieldSelector"].removeprefix("metadata.name="))
        if self.error is not None:
            raise self.error
        return {"metadata": {"resourceVersion": "7"}, "items": []}

    def watch(
        self,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        stop: threading.Event | None = None,
        timeout_seconds: float = 300.0,
    ) -> Iterator[WatchEvent]:
        assert query is not None
        assert query["resourceVersion"] == "7"
        assert stop is not None
        while not (stop.is_set() or self.end.is_set()):
            stop.wait(0.01)
        yield from ()

    def interrupt(self, stop: threading.Event) -> None:
        stop.set()

    def follow(self, *names: str, turns: int) -> list[str]:
        """Follow these claims until the streams have turned so often; gives whom the server was asked about."""
        self.asked.clear()
        with self.condition:
            self.turns = 0
        self.watches.follow([ClaimRef("ns", name, f"uid-{name}") for name in names])
        with self.condition:
            assert self.condition.wait_for(lambda: self.turns >= turns, WAIT)
        return list(self.asked)

    def due(self, *names: str) -> float | None:
        """When these are to be followed again, after a call that is too early to ask anybody."""
        assert self.follow(*names, turns=0) == []
        return self.watches.due()


@pytest.fixture
def fake() -> Iterator[Server]:
    made = Server()
    yield made
    made.watches.stop()


@pytest.mark.bug("B110")
def test_a_server_that_is_away_is_tried_by_one_stream_at_a_time_at_growing_distances(fake: Server) -> None:
    fake.error = ApiUnreachableError("refused")
    assert sorted(fake.follow("a", "b", "c", turns=3)) == ["a", "b", "c"]
    pauses = []
    for _ in range(12):
        due = fake.due("a", "b", "c")
        assert due is not None
        pauses.append(due - fake.now)
        fake.now = due
        assert len(fake.follow("a", "b", "c", turns=1)) == 1
    assert all(0.5 <= pause <= 60 for pause in pauses)
    assert pauses[-1] >= 30


def test_once_one_stream_stands_firm_the_others_follow(fake: Server, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fake.error = ApiUnreachableError("refused")
    fake.follow("a", "b", "c", turns=3)
    fake.error = None
    fake.now += 60
    assert len(fake.follow("a", "b", "c", turns=1)) == 1
    assert fake.watches.due() == fake.now + FIRM_SECONDS
    assert fake.follow("a", "b", "c", turns=0) == []
    fake.now += FIRM_SECONDS
    assert len(fake.follow("a", "b", "c", turns=2)) == 2
    assert fake.watches.due() is None
    assert [record.message for record in caplog.records][1:] == ["claims are watched again"]


def test_one_claim_that_cannot_be_watched_keeps_no_other_from_it_and_makes_no_haste(fake: Server) -> None:
    fake.follow("a", turns=1)
    fake.now += FIRM_SECONDS
    asked = 0
    fake.error = ApiError(500, "InternalError", "odd")
    asked += len(fake.follow("a", "b", turns=1))
    for _ in range(20):
        due = fake.due("a", "b")
        assert due is not None
        assert due > fake.now, "a stream that stands for another claim is no reason to hurry"
        fake.now = due
        asked += len(fake.follow("a", "b", turns=1))
    assert asked == 21
    assert fake.now > 600
    fake.error = None
    fake.now += 60
    assert fake.follow("a", "b", "c", turns=1) == ["c"], "the one that did not fail last"


@pytest.mark.bug("B128")
def test_without_the_right_to_watch_it_is_tried_seldom_and_said_once(
    fake: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    fake.error = ApiError(403, "Forbidden", "resourceclaims is forbidden: cannot list")
    fake.follow("a", turns=1)
    for _ in range(3):
        due = fake.due("a")
        assert due is not None
        assert due - fake.now >= REFUSED_SECONDS
        fake.now = due
        fake.follow("a", turns=1)
    (said,) = [record.message for record in caplog.records]
    assert "the look at all claims goes on" in said
    assert "cannot list" in said


def test_a_server_that_ends_each_stream_at_once_is_not_asked_in_a_hot_loop(fake: Server) -> None:
    fake.end.set()
    fake.follow("a", turns=2)
    due = fake.due("a")
    assert due is not None
    assert due >= fake.now + 0.5


def test_a_stream_that_ends_in_its_time_is_opened_anew_at_once(fake: Server) -> None:
    fake.follow("a", turns=1)
    fake.now += 1500
    fake.end.set()
    with fake.condition:
        assert fake.condition.wait_for(lambda: fake.turns >= 2, WAIT)
    fake.end.clear()
    assert fake.follow("a", turns=1) == ["a"]


def test_after_the_end_nothing_is_opened(fake: Server) -> None:
    fake.watches.stop()
    assert fake.follow("a", turns=0) == []
