"""The publisher: what it writes, in which order, what it repairs, and what it does when the Node is made anew."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.unit.publisher.publisher_pools import DRIVER, NODE, POOL, SLICES, TAINT, content, pools, publish

# Publishing


def test_what_the_driver_wants_is_published(bench: Any) -> None:
    publish(bench, content("gpu-0"), content("gpu-1"))

    assert bench.devices() == [["gpu-0"], ["gpu-1"]]
    assert bench.generations() == {1}
    owners = [item["metadata"]["ownerReferences"] for item in bench.stored()]
    owner = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": bench.node_uid, "controller": True}
    assert owners == [[owner], [owner]]
    assert bench.observer.successes[-1] == (POOL, 2, 2)


def test_nothing_is_written_or_deleted_before_the_first_update(bench: Any) -> None:
    publish(bench, content("gpu-0")).stop()
    before = bench.writes()

    bench.publisher().synced(0.3)

    assert bench.writes() == before
    assert bench.devices() == [["gpu-0"]]


def test_a_new_instance_takes_over_what_the_earlier_one_published(bench: Any) -> None:
    publish(bench, content("gpu-0"), content("gpu-1")).stop()
    before = bench.writes()

    publish(bench, content("gpu-0"), content("gpu-1"))

    assert bench.writes() == before
    assert bench.observer.successes[-1] == (POOL, 2, 0)


def test_pools_that_are_not_wanted_any_more_are_deleted(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    publisher.stop()
    again = bench.publisher()
    again.update(pools(content("gpu-1"), name="node-a/other"))

    assert again.synced(10)
    assert bench.devices() == []
    assert bench.devices("node-a/other") == [["gpu-1"]]
    assert (POOL, 0, 1) in bench.observer.successes


def test_slices_of_other_drivers_and_nodes_are_left_alone(bench: Any) -> None:
    def foreign(name: str, driver: str, node: str) -> None:
        spec = {"driver": driver, "nodeName": node, "pool": {"name": POOL, "generation": 9, "resourceSliceCount": 1}}
        bench.client.create(SLICES, {"metadata": {"name": name}, "spec": spec})

    foreign("other-driver", "nic.example.com", NODE)
    foreign("other-node", DRIVER, "node-b")

    publish(bench, content("gpu-0"))

    names = {item["metadata"]["name"] for item in bench.stored()}
    assert {"other-driver", "other-node"} < names
    assert len(names) == 3


def test_obsolete_slices_go_first_and_new_ones_come_last(bench: Any) -> None:
    publish(bench, content("a"), content("b"), content("c"))
    first, second, third = bench.stored()
    bench.client.patch(f"{SLICES}/{first['metadata']['name']}", {"spec": {"pool": {"generation": 2}}})
    bench.eventually(lambda: len(bench.stored()) == 3 and bench.generations() == {3})

    real = [request.method for request in bench.server.writes()][4:]
    assert real == ["DELETE", "DELETE", "PUT", "POST", "POST"]
    kept = {item["metadata"]["uid"] for item in bench.stored()}
    assert first["metadata"]["uid"] in kept
    assert not {second["metadata"]["uid"], third["metadata"]["uid"]} & kept


@pytest.mark.bug("B29")
def test_many_devices_go_out_in_several_slices(bench: Any) -> None:
    names = [f"gpu-{index}" for index in range(133)]

    publish(bench, *(content(*names[start : start + 64]) for start in range(0, 133, 64)))

    assert [len(devices) for devices in bench.devices()] == [64, 64, 5]
    assert [name for devices in bench.devices() for name in devices] == names
    assert {item["spec"]["pool"]["resourceSliceCount"] for item in bench.stored()} == {3}


@pytest.mark.bug("B43")
def test_a_taint_can_be_in_the_very_first_slice(bench: Any) -> None:
    publish(bench, content("gpu-0", taints=[TAINT]))

    (taint,) = bench.stored()[0]["spec"]["devices"][0]["taints"]
    assert taint["key"] == "example.com/lost"
    assert [request.method for request in bench.server.writes()] == ["POST"]


def test_quantities_in_another_spelling_are_not_written_again(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0", capacity={"memory": {"value": "81920Mi"}}))
    assert bench.stored()[0]["spec"]["devices"][0]["capacity"]["memory"]["value"] == "80Gi"

    publisher.update(pools(content("gpu-0", capacity={"memory": {"value": "80Gi"}})))

    assert publisher.synced(10)
    assert bench.writes() == ["POST"]


@pytest.mark.bug("B35")
def test_a_taint_that_stays_keeps_its_time(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0", taints=[TAINT]))
    (stored,) = bench.stored()
    stored["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2020-01-01T00:00:00Z"
    bench.client.update(f"{SLICES}/{stored['metadata']['name']}", stored)

    publisher.update(pools(content("gpu-0", taints=[{"key": "example.com/new", "effect": "None"}, TAINT])))

    assert publisher.synced(10)
    new, old = bench.stored()[0]["spec"]["devices"][0]["taints"]
    assert old["timeAdded"] == "2020-01-01T00:00:00Z"
    assert new["timeAdded"] > "2020"


# Repair


@pytest.mark.bug("B34")
def test_a_deleted_slice_is_back_at_once_every_time(bench: Any) -> None:
    publish(bench, content("gpu-0"))
    for _ in range(3):
        (stored,) = bench.stored()
        bench.client.delete(f"{SLICES}/{stored['metadata']['name']}")
        began = time.monotonic()
        bench.eventually(
            lambda uid=stored["metadata"]["uid"]: [s["metadata"]["uid"] for s in bench.stored()] not in ([], [uid])
        )
        assert time.monotonic() - began < 2.0


@pytest.mark.bug("B34")
def test_all_slices_come_back_after_the_kubelet_wiped_them(bench: Any) -> None:
    publisher = publish(bench, content("a"), content("b"), content("c"))

    bench.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE}"})

    bench.eventually(lambda: bench.devices() == [["a"], ["b"], ["c"]])
    assert publisher.synced(10)
    assert len(bench.generations()) == 1


@pytest.mark.bug("B34")
def test_a_slice_that_was_deleted_while_the_watch_was_down_is_back(bench: Any) -> None:
    publish(bench, content("gpu-0"))
    (stored,) = bench.stored()
    bench.server.faults.hold_watches()
    bench.client.delete(f"{SLICES}/{stored['metadata']['name']}")

    bench.server.faults.expire_watches()
    bench.server.faults.clear()

    bench.eventually(lambda: bench.devices() == [["gpu-0"]])


def test_a_foreign_edit_is_undone(bench: Any) -> None:
    publish(bench, content("gpu-0"))
    (stored,) = bench.stored()

    bench.client.patch(f"{SLICES}/{stored['metadata']['name']}", {"spec": {"devices": [{"name": "gpu-7"}]}})

    bench.eventually(lambda: bench.devices() == [["gpu-0"]])


def test_labels_of_others_are_left_and_cause_no_write(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    (stored,) = bench.stored()
    bench.client.patch(f"{SLICES}/{stored['metadata']['name']}", {"metadata": {"labels": {"a": "b"}}})

    assert not publisher.synced(0) or publisher.synced(10)
    bench.observer.wait_for(lambda: bench.observer.successes[-1] == (POOL, 1, 0))
    assert bench.writes() == ["POST", "PATCH"]
    assert bench.stored()[0]["metadata"]["labels"] == {"a": "b"}


def test_a_slow_watch_does_not_make_a_second_slice(bench: Any) -> None:
    publisher = publish(bench, content("gpu-0"))
    bench.server.faults.hold_watches()
    for count in range(2, 6):
        publisher.update(pools(*(content(f"gpu-{index}") for index in range(count))))
        assert publisher.synced(10)
        assert len(bench.stored()) == count

    bench.server.faults.clear()

    publisher.update(pools(content("gpu-0")))
    assert publisher.synced(10)
    assert bench.devices() == [["gpu-0"]]


def test_two_who_insist_on_different_states_do_not_heat_up_the_server(bench: Any) -> None:
    publish(bench, content("gpu-0"), repair_delay=0.02)
    writes_before = len(bench.writes())
    for _ in range(40):
        (stored,) = bench.stored() or [None]
        if stored is not None and stored["spec"]["devices"][0]["name"] == "gpu-0":
            bench.client.patch(f"{SLICES}/{stored['metadata']['name']}", {"spec": {"devices": [{"name": "gpu-7"}]}})
        threading.Event().wait(0.03)

    ours = [request for request in bench.server.writes()[writes_before:] if request.method == "PUT"]
    assert 1 <= len(ours) <= 12, "each further repair has to wait longer"


# The Node


@pytest.mark.bug("B38")
def test_slices_follow_a_node_that_is_made_anew(bench: Any) -> None:
    publish(bench, content("a"), content("b"))
    bench.client.delete(f"/api/v1/nodes/{NODE}")
    uid = bench.make_node()

    bench.eventually(lambda: bench.devices() == [["a"], ["b"]])
    owners = {item["metadata"]["ownerReferences"][0]["uid"] for item in bench.stored()}
    assert owners == {uid}


@pytest.mark.bug("B38")
def test_without_a_node_nothing_is_published_until_there_is_one(bench: Any) -> None:
    bench.client.delete(f"/api/v1/nodes/{NODE}")
    publisher = bench.publisher()
    publisher.update(pools(content("gpu-0")))
    bench.observer.wait_for(lambda: bool(bench.observer.failures))
    assert bench.stored() == []
    assert bench.observer.failures[0].message == f'nodes "{NODE}" not found'
    assert bench.observer.failures[0].retryable

    uid = bench.make_node()

    assert publisher.synced(10)
    assert bench.stored()[0]["metadata"]["ownerReferences"][0]["uid"] == uid
