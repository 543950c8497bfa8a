"""Which writes turn the slices of a pool into what is wanted, in which order and under which generation."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeletplugin.api import Pool, Slice
from kubeletplugin.publisher.plan import Owner, Plan, plan_pool, pool_problem

OWNER = Owner("gpu.example.com", "node-a", "uid-1")
NAME = "pool"


def content(*names: str) -> Slice:
    return Slice(tuple({"name": name} for name in names))


def after(plan: Plan, stored: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the server holds when the plan is carried out."""
    gone = {document["metadata"]["uid"] for document in plan.deletes}
    kept = {document["metadata"]["uid"]: document for document in stored if document["metadata"]["uid"] not in gone}
    for write in plan.updates:
        assert write.document["metadata"]["uid"] in kept
        kept[write.document["metadata"]["uid"]] = copy.deepcopy(write.document)
    for write in plan.creates:
        document = copy.deepcopy(write.document)
        uid = f"{plan.generation}-{write.index}"
        document["metadata"] |= {
            "name": document["metadata"]["generateName"] + "xxxxx",
            "uid": uid,
            "resourceVersion": "1",
        }
        kept[uid] = document
    return list(kept.values())


def published(*slices: Slice, generation: int | None = None) -> list[dict[str, Any]]:
    return after(plan_pool(NAME, Pool(slices, generation), [], OWNER), [])


def shape(plan: Plan) -> tuple[int, int, int, int]:
    return plan.generation, len(plan.deletes), len(plan.updates), len(plan.creates)


def test_a_new_pool_begins_with_generation_one() -> None:
    plan = plan_pool(NAME, Pool((content("a"), content("b"))), [], OWNER)

    assert shape(plan) == (1, 0, 0, 2)
    first, second = (write.document for write in plan.creates)
    assert first["metadata"]["generateName"] == "00000-gpu.example.com-node-a-"
    assert second["metadata"]["generateName"] == "00001-gpu.example.com-node-a-"
    assert first["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "node-a", "uid": "uid-1", "controller": True}
    ]
    assert first["spec"] == {
        "driver": "gpu.example.com",
        "nodeName": "node-a",
        "pool": {"name": NAME, "generation": 1, "resourceSliceCount": 2},
        "devices": [{"name": "a"}],
    }


def test_a_pool_as_wanted_needs_nothing() -> None:
    stored = published(content("a"), content("b"))

    assert plan_pool(NAME, Pool((content("a"), content("b"))), stored, OWNER).writes == 0


def test_an_empty_slice_has_neither_devices_nor_counters() -> None:
    (write,) = plan_pool(NAME, Pool((Slice(),)), [], OWNER).creates

    assert not {"devices", "sharedCounters"} & write.document["spec"].keys()


def test_counters_stand_in_a_slice_without_devices() -> None:
    (write,) = plan_pool(NAME, Pool((Slice(shared_counters=({"name": "s"},)),)), [], OWNER).creates

    assert write.document["spec"]["sharedCounters"] == [{"name": "s"}]
    assert "devices" not in write.document["spec"]


def test_one_changed_slice_is_updated_under_its_generation() -> None:
    stored = published(content("a"), content("b"))

    plan = plan_pool(NAME, Pool((content("a"), content("c"))), stored, OWNER)

    assert shape(plan) == (1, 0, 1, 0)
    assert plan.updates[0].index == 1


def test_two_changed_slices_take_all_to_the_next_generation() -> None:
    stored = published(content("a"), content("b"), content("c"))

    plan = plan_pool(NAME, Pool((content("x"), content("y"), content("c"))), stored, OWNER)

    assert shape(plan) == (2, 0, 3, 0)
    assert {write.document["spec"]["pool"]["generation"] for write in plan.updates} == {2}


def test_a_new_slice_takes_all_to_the_next_generation() -> None:
    plan = plan_pool(NAME, Pool((content("a"), content("b"))), published(content("a")), OWNER)

    assert shape(plan) == (2, 0, 1, 1)
    assert {write.document["spec"]["pool"]["resourceSliceCount"] for write in (*plan.updates, *plan.creates)} == {2}


@pytest.mark.bug("B40")
def test_a_slice_too_many_is_deleted_and_the_count_corrected() -> None:
    plan = plan_pool(NAME, Pool((content("a"),)), published(content("a"), content("b")), OWNER)

    assert shape(plan) == (1, 1, 1, 0)
    assert plan.deletes[0]["spec"]["devices"] == [{"name": "b"}]
    assert plan.updates[0].document["spec"]["pool"]["resourceSliceCount"] == 1


@pytest.mark.bug("B40")
def test_slices_of_an_older_generation_are_deleted() -> None:
    old, new = published(content("a"), content("b"))
    new["spec"]["pool"]["generation"] = 3

    plan = plan_pool(NAME, Pool((content("a"), content("b"))), [old, new], OWNER)

    assert shape(plan) == (4, 1, 1, 1)
    assert plan.deletes == (old,)


def test_slices_named_by_another_scheme_are_replaced() -> None:
    stored = published(content("a"), content("b"), content("c"))
    for document in stored:
        document["metadata"]["name"] = f"node-a-gpu.example.com-{document['metadata']['uid']}"

    assert shape(plan_pool(NAME, Pool((content("a"), content("b"), content("c"))), stored, OWNER)) == (2, 3, 0, 3)


def test_of_two_slices_at_one_position_one_goes() -> None:
    (first,) = published(content("a"))
    second = copy.deepcopy(first)
    second["metadata"] |= {"name": first["metadata"]["name"] + "z", "uid": "other"}

    assert shape(plan_pool(NAME, Pool((content("a"),)), [second, first], OWNER)) == (1, 1, 0, 0)


def test_a_higher_generation_of_the_driver_is_taken() -> None:
    assert shape(plan_pool(NAME, Pool((content("a"),), 7), published(content("a")), OWNER)) == (7, 0, 1, 0)


def test_a_lower_generation_of_the_driver_is_overtaken() -> None:
    stored = published(content("a"), content("b"), generation=9)

    plan = plan_pool(NAME, Pool((content("x"), content("y")), 7), stored, OWNER)

    assert shape(plan) == (10, 0, 2, 0)


@pytest.mark.bug("B38")
def test_slices_of_an_earlier_node_are_given_to_the_present_one() -> None:
    stored = published(content("a"), content("b"))

    plan = plan_pool(NAME, Pool((content("a"), content("b"))), stored, Owner("gpu.example.com", "node-a", "uid-2"))

    assert shape(plan) == (1, 0, 2, 0)
    assert all(write.document["metadata"]["ownerReferences"][0]["uid"] == "uid-2" for write in plan.updates)
    assert all(len(write.document["metadata"]["ownerReferences"]) == 1 for write in plan.updates)


def test_a_foreign_edit_of_any_field_is_undone() -> None:
    (document,) = published(content("a"))
    document["spec"]["devices"][0]["attributes"] = {"odd": {"int": 1}}
    document["metadata"]["labels"] = {"kept": "yes"}

    (write,) = plan_pool(NAME, Pool((content("a"),)), [document], OWNER).updates

    assert write.document["spec"]["devices"] == [{"name": "a"}]
    assert write.document["metadata"]["labels"] == {"kept": "yes"}
    assert write.document["metadata"]["resourceVersion"] == "1"


@pytest.mark.parametrize(
    ("slices", "text"),
    [
        ((content("a"), content("a")), "device 'a' is there twice"),
        ((Slice(shared_counters=({"name": "s"},)),) * 2, "counter set 's' is there twice"),
        (
            (Slice(({"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"c": {}}}]},)),),
            "device 'a' consumes counter set 's', which the pool does not have",
        ),
        (
            (
                Slice(shared_counters=({"name": "s", "counters": {"d": {}}},)),
                Slice(({"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"c": {}}}]},)),
            ),
            "device 'a' consumes counter 'c', which counter set 's' does not have",
        ),
    ],
)
def test_what_the_scheduler_would_refuse_is_named(slices: tuple[Slice, ...], text: str) -> None:
    problem = pool_problem(Pool(slices))

    assert problem is not None
    assert text in problem


def test_a_pool_whose_references_hold_has_no_problem() -> None:
    counters = Slice(shared_counters=({"name": "s", "counters": {"c": {}}},))
    devices = Slice(({"name": "a", "consumesCounters": [{"counterSet": "s", "counters": {"c": {}}}]},))

    assert pool_problem(Pool((devices, counters))) is None


contents = st.lists(
    st.lists(st.sampled_from("abcdef"), max_size=3, unique=True).map(lambda names: content(*names)), max_size=4
)


@given(st.lists(contents, min_size=1, max_size=5))
def test_any_sequence_of_states_ends_in_one_whole_pool(states: list[list[Slice]]) -> None:
    stored: list[dict[str, Any]] = []
    for state in states:
        before = max((document["spec"]["pool"]["generation"] for document in stored), default=0)
        plan = plan_pool(NAME, Pool(tuple(state)), stored, OWNER)
        rewritten = {write.document["metadata"]["uid"] for write in plan.updates}
        untouched = {d["metadata"]["uid"] for d in stored} - rewritten - {d["metadata"]["uid"] for d in plan.deletes}
        stored = after(plan, stored)

        assert plan_pool(NAME, Pool(tuple(state)), stored, OWNER).writes == 0
        assert {document["spec"]["pool"]["resourceSliceCount"] for document in stored} <= {len(state)}
        assert {document["spec"]["pool"]["generation"] for document in stored} <= {plan.generation}
        assert len(stored) == len(state)
        assert plan.generation >= before
        # Two contents never share a generation, or a scheduler could combine them.
        if len(plan.updates) + len(plan.creates) > 1:
            assert plan.generation > before
            assert not untouched
