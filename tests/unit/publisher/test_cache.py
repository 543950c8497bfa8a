"""What is believed about the server: lists, events and own writes, in any order in which they may arrive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.client import WatchEvent
from kubeletplugin.clock import Clock
from kubeletplugin.publisher.cache import Change, SliceCache
from kubeletplugin.publisher.queue import PoolQueue, RepairPace


def document(uid: str, version: int, pool: str = "p") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": uid, "resourceVersion": str(version)}, "spec": {"pool": {"name": pool}}}


def event(kind: str, uid: str, version: int, pool: str = "p") -> WatchEvent:
    return WatchEvent(kind, document(uid, version, pool))


def known(cache: SliceCache, pool: str = "p") -> dict[str, int]:
    return {entry["metadata"]["uid"]: int(entry["metadata"]["resourceVersion"]) for entry in cache.pool(pool)}


def test_an_own_write_is_known_before_the_watch_shows_it_and_is_no_news_then() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))

    assert known(cache) == {"a": 5}
    assert cache.apply(event("ADDED", "a", 5)) == Change()


def test_an_own_write_survives_a_list_that_is_older() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))

    assert cache.replace([], "4") == Change()
    assert known(cache) == {"a": 5}


def test_what_a_newer_list_does_not_have_is_gone() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))

    assert cache.replace([], "6") == Change(frozenset({"p"}), lost=True)
    assert known(cache) == {}


def test_an_own_deletion_is_not_undone_by_late_events_and_lists() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))
    cache.deleted(document("a", 5))

    assert cache.apply(event("MODIFIED", "a", 6)) == Change()
    assert cache.replace([document("a", 6)], "6") == Change()
    assert cache.apply(event("DELETED", "a", 7)) == Change()
    assert known(cache) == {}


def test_the_event_of_an_own_deletion_is_no_news_even_before_the_answer() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))
    cache.deleting(document("a", 5))

    assert cache.apply(event("DELETED", "a", 6)) == Change()
    cache.deleted(document("a", 5))
    assert known(cache) == {}


def test_a_deletion_that_failed_leaves_the_next_one_news() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))
    cache.deleting(document("a", 5))
    cache.kept(document("a", 5))

    assert cache.apply(event("DELETED", "a", 6)) == Change(frozenset({"p"}), lost=True)


def test_an_older_event_changes_nothing() -> None:
    cache = SliceCache()
    cache.stored(document("a", 10))

    assert cache.apply(event("MODIFIED", "a", 9)) == Change()
    assert known(cache) == {"a": 10}


def test_versions_are_numbers_not_texts() -> None:
    cache = SliceCache()
    cache.stored(document("a", 9))

    assert cache.apply(event("MODIFIED", "a", 10)) == Change(frozenset({"p"}))


def test_a_foreign_deletion_is_a_loss() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5))

    assert cache.apply(event("DELETED", "a", 6)) == Change(frozenset({"p"}), lost=True)


def test_the_late_answer_to_an_own_write_does_not_bring_back_what_was_deleted_meanwhile() -> None:
    cache = SliceCache()
    assert cache.apply(event("ADDED", "a", 5)).pools == {"p"}
    assert cache.apply(event("DELETED", "a", 6)) == Change(frozenset({"p"}), lost=True)
    cache.stored(document("a", 5))

    assert known(cache) == {}, "the slice would be missing until the next list, minutes later"


def test_the_late_answer_to_an_own_write_does_not_bring_back_what_a_list_has_no_more() -> None:
    cache = SliceCache()
    cache.apply(event("ADDED", "a", 5))
    cache.replace([], "7")
    cache.stored(document("a", 5))

    assert known(cache) == {}


def test_a_slice_that_changes_its_pool_touches_both() -> None:
    cache = SliceCache()
    cache.stored(document("a", 5, "old"))

    assert cache.apply(event("MODIFIED", "a", 6, "new")) == Change(frozenset({"old", "new"}))
    assert cache.pools() == {"new"}


def test_bookmarks_change_nothing() -> None:
    assert SliceCache().apply(WatchEvent("BOOKMARK", {"metadata": {"resourceVersion": "9"}})) == Change()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=20), st.data())
def test_however_late_the_events_come_the_end_is_the_same(history: list[tuple[str, bool]], data: st.DataObject) -> None:
    """A history of own writes (new UID each time a name is made again), and its events delivered at any later time."""
    cache, alive, events, counts = SliceCache(), {}, [], dict.fromkeys("abc", 0)
    for version, (name, wants) in enumerate(history, start=1):
        if wants:
            kind = "MODIFIED" if name in alive else "ADDED"
            counts[name] += name not in alive
            uid = f"{name}{counts[name]}"
            alive[name] = uid
            cache.stored(document(uid, version))
        elif name in alive:
            kind, uid = "DELETED", alive.pop(name)
            cache.deleted(document(uid, version))
        else:
            continue
        events.append(event(kind, uid, version))
        for _ in range(data.draw(st.integers(0, len(events)))):
            assert cache.apply(events.pop(0)) == Change()
        assert set(known(cache)) == set(alive.values())
    for late in events:
        assert cache.apply(late) == Change()
    assert set(known(cache)) == set(alive.values())


class Still(Clock):
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_earliest_time_counts_and_a_name_is_there_once() -> None:
    clock = Still()
    queue = PoolQueue(clock)
    queue.add("later", 5.0)
    queue.add("now")
    queue.add("later", 3.0)
    queue.add("later", 9.0)

    assert queue.take() == "now"
    queue.done()
    clock.now = 3.0
    assert queue.take() == "later"
    assert queue.busy()
    queue.done()
    assert not queue.busy()


def test_a_closed_queue_gives_nothing() -> None:
    queue = PoolQueue()
    queue.add("x")
    queue.close()

    assert queue.take() is None
    assert not queue.wait_for(lambda: False, None)


def test_waiting_ends_in_time() -> None:
    assert not PoolQueue().wait_for(lambda: False, 0.01)


def test_repairs_of_one_pool_slow_down_and_recover() -> None:
    clock = Still()
    pace = RepairPace(0.5, clock)
    delays = []
    for _ in range(14):
        delays.append(pace.delay("p"))
        pace.count("p")

    assert delays[:7] == [0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0]
    assert delays[-1] == RepairPace.CAP
    assert pace.delay("other") == 0.5
    clock.now = 61.0
    assert pace.delay("p") == pytest.approx(0.5)
