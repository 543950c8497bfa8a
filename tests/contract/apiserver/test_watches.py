"""Watches: what they begin with, which events they show, how selections and versions work, how they end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kubeletplugin.client import ApiError, WatchEvent
from tests.contract.apiserver.api_calls import CLAIMS, SLICES


class Watcher:
    """Collects the events of one stream in a thread."""

    def __init__(self, api: Any, query: dict[str, str]) -> None:
        self.stop = threading.Event()
        self.events: list[WatchEvent] = []
        self._client = api.client
        self._more = threading.Condition()
        self._thread = threading.Thread(target=self._run, args=(query,), daemon=True)
        self._thread.start()

    def _run(self, query: dict[str, str]) -> None:
        for event in self._client.watch(SLICES, query=query, stop=self.stop, timeout_seconds=30):
            if event.type != "BOOKMARK":
                with self._more:
                    self.events.append(event)
                    self._more.notify_all()

    def first(self, count: int) -> list[tuple[str, str]]:
        with self._more:
            assert self._more.wait_for(lambda: len(self.events) >= count, 10), f"only {len(self.events)} events came"
            return [(event.type, event.object["metadata"]["name"].partition("-")[2]) for event in self.events]

    def end(self) -> None:
        self._client.interrupt(self.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()


@contextmanager
def watching(api: Any, **query: str) -> Iterator[Watcher]:
    watcher = Watcher(api, api.mine | query)
    try:
        yield watcher
    finally:
        watcher.end()


def version(api: Any) -> str:
    return str(api.client.get(SLICES, query=api.mine)["metadata"]["resourceVersion"])


def test_a_watch_goes_on_where_a_list_ended(api: Any) -> None:
    api.client.create(SLICES, api.slice(f"{api.tag}-before"))
    with watching(api, resourceVersion=version(api)) as watcher:
        stored = api.client.create(SLICES, api.slice(f"{api.tag}-after"))
        stored["spec"]["pool"]["generation"] = 2
        api.client.update(f"{SLICES}/{api.tag}-after", stored)
        api.client.delete(f"{SLICES}/{api.tag}-after")

        assert watcher.first(3) == [("ADDED", "after"), ("MODIFIED", "after"), ("DELETED", "after")]

    versions = [int(event.resource_version) for event in watcher.events]
    assert versions == sorted(set(versions))
    assert watcher.events[0].object["kind"] == "ResourceSlice"


def test_a_watch_shows_what_happened_since_the_version_it_names(api: Any) -> None:
    start = version(api)
    api.client.create(SLICES, api.slice(f"{api.tag}-a"))
    api.client.delete(f"{SLICES}/{api.tag}-a")

    with watching(api, resourceVersion=start) as watcher:
        assert watcher.first(2) == [("ADDED", "a"), ("DELETED", "a")]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}], ids=["no version", "version 0"])
def test_a_watch_from_nowhere_begins_with_what_there_is(api: Any, query: dict[str, str]) -> None:
    api.client.create(SLICES, api.slice(f"{api.tag}-a"))

    with watching(api, **query) as watcher:
        assert watcher.first(1) == [("ADDED", "a")]


def test_the_last_version_of_a_deleted_object_is_that_of_its_deletion(api: Any) -> None:
    stored = api.client.create(SLICES, api.slice(f"{api.tag}-a"))
    with watching(api, resourceVersion=version(api)) as watcher:
        api.client.delete(f"{SLICES}/{api.tag}-a")
        watcher.first(1)

    assert int(watcher.events[0].resource_version) > int(stored["metadata"]["resourceVersion"])


def test_a_watch_shows_only_what_is_selected(api: Any) -> None:
    selector = f"spec.driver={api.driver},spec.nodeName={api.node}"
    with watching(api, fieldSelector=selector, resourceVersion=version(api)) as watcher:
        api.client.create(SLICES, api.slice(f"{api.tag}-elsewhere", nodeName="elsewhere"))
        api.client.create(SLICES, api.slice(f"{api.tag}-here"))

        assert watcher.first(1) == [("ADDED", "here")]


def test_a_collection_delete_is_one_event_for_each_object(api: Any) -> None:
    api.client.create(SLICES, api.slice(f"{api.tag}-a"))
    api.client.create(SLICES, api.slice(f"{api.tag}-b"))
    with watching(api, resourceVersion=version(api)) as watcher:
        api.client.delete(SLICES, query=api.mine)

        assert sorted(watcher.first(2)) == [("DELETED", "a"), ("DELETED", "b")]


def test_a_watch_ends_in_time_with_a_bookmark(api: Any) -> None:
    api.client.create(SLICES, api.slice())

    events = list(api.client.watch(SLICES, query=api.mine, timeout_seconds=1))

    assert [event.type for event in events] == ["ADDED", "BOOKMARK"]
    assert int(events[1].resource_version) >= int(events[0].resource_version)
    assert set(events[1].object) >= {"kind", "apiVersion", "metadata"}


def test_a_version_that_is_no_number_ends_the_watch(api: Any) -> None:
    with pytest.raises(ApiError) as caught:
        list(api.client.watch(SLICES, query={"resourceVersion": "abc"}, timeout_seconds=1))

    assert caught.value.status == 500
    assert 'resourceVersion: Invalid value: "abc"' in caught.value.message


def test_an_unsupported_selector_is_refused_before_the_stream_begins(api: Any) -> None:
    with pytest.raises(ApiError) as caught:
        list(api.client.watch(SLICES, query={"fieldSelector": "spec.bogus=1"}, timeout_seconds=1))

    assert caught.value.status == 400


def test_one_claim_is_listed_and_watched_by_its_name_and_namespace(api: Any) -> None:
    """What driver.reconcile.watches builds upon: one name in one namespace, from the server's memory, to its end."""
    one, another = api.claim("one"), api.claim("another")
    name = one["metadata"]["name"]
    stored = api.client.create(CLAIMS, one)
    query = {"fieldSelector": f"metadata.name={name}"}
    deadline = time.monotonic() + 10
    listed = api.client.get(CLAIMS, query={**query, "resourceVersion": "0"})
    while not listed["items"]:  # memory may lag behind
        assert time.monotonic() < deadline
        listed = api.client.get(CLAIMS, query={**query, "resourceVersion": "0"})
    assert [item["metadata"]["uid"] for item in listed["items"]] == [stored["metadata"]["uid"]]

    api.client.create(CLAIMS, another)
    api.client.patch(f"{CLAIMS}/{name}", {"metadata": {"labels": {"a": "b"}}})
    api.client.delete(f"{CLAIMS}/{name}")
    anew = api.client.create(CLAIMS, one)
    stop = threading.Event()
    seen = []
    version = listed["metadata"]["resourceVersion"]
    for event in api.client.watch(CLAIMS, query={**query, "resourceVersion": version}, stop=stop, timeout_seconds=30):
        if event.type != "BOOKMARK":
            seen.append((event.type, event.object["metadata"]["uid"]))
        if event.type == "ADDED":
            api.client.interrupt(stop)

    uid = stored["metadata"]["uid"]
    assert seen == [("MODIFIED", uid), ("DELETED", uid), ("ADDED", anew["metadata"]["uid"])]
    for made in (one, another):
        api.client.delete(f"{CLAIMS}/{made['metadata']['name']}")


def test_a_claim_that_is_not_there_is_an_empty_list_by_name_also_in_a_namespace_that_is_not_there(api: Any) -> None:
    elsewhere = f"/apis/resource.k8s.io/v1/namespaces/{api.tag}-nowhere/resourceclaims"
    for collection in (CLAIMS, elsewhere):
        query = {"fieldSelector": f"metadata.name={api.tag}-nobody", "resourceVersion": "0"}
        assert api.client.get(collection, query=query)["items"] == []
        with pytest.raises(ApiError) as caught:
            api.client.get(f"{collection}/{api.tag}-nobody")
        assert (caught.value.status, caught.value.details["kind"]) == (404, "resourceclaims")
