"""The publisher against an API server that others edit, that drops, refuses, stalls and goes away."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.client import ApiError, ApiUnreachableError, KubeClient
from kubeletplugin.testing.apiserver import EmbeddedApiServer

DRIVER = "gpu.example.com"
NODE = "node-a"
POOL = "node-a/gpu.example.com"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
TAINT = {"key": "example.com/lost", "effect": "NoSchedule"}
COUNTERS = {"name": "set", "counters": {"memory": {"value": "80Gi"}}}


def content(*names: str, **fields: Any) -> Slice:
    return Slice(tuple({"name": name, **fields} for name in names))


def pools(*slices: Slice, name: str = POOL) -> DriverResources:
    return DriverResources({name: Pool(slices)})


def publish(bench: Any, *slices: Slice, **options: Any) -> Any:
    publisher = bench.publisher(**options)
    publisher.update(pools(*slices))
    assert publisher.synced(10)
    return publisher


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


# Any sequence


names = st.lists(st.sampled_from("abcdefgh"), max_size=4, unique=True)
states = st.dictionaries(st.sampled_from(["one", "two"]), st.lists(names, min_size=1, max_size=3), max_size=2)
edits = st.sampled_from(
    ["delete one", "delete all", "edit", "generation", "duplicate", "break watch", "expire", "node"]
)
troubles = st.sampled_from(["fail", "lose answers", "restart"])
steps = st.lists(
    st.one_of(
        states.map(lambda state: ("want", state)),
        edits.map(lambda edit: ("edit", edit)),
        troubles.map(lambda trouble: ("trouble", trouble)),
    ),
    max_size=7,
)


def disturb_at_last(bench: Any, edit: str) -> None:
    """The server's troubles meet administrators too, who try again."""
    last: Exception | None = None
    for _ in range(20):  # more than the troubles of all steps together
        try:
            return disturb(bench, edit)
        except (ApiError, ApiUnreachableError) as error:
            last = error
    raise AssertionError(f"the administrator gave up: {last}")


def disturb(bench: Any, edit: str) -> None:
    """What an administrator, a kubelet or another driver may do."""
    stored = bench.client.get(SLICES)["items"]
    if edit == "break watch":
        bench.server.faults.close_watches()
    elif edit == "expire":
        bench.server.faults.expire_watches()
    elif edit == "delete all":
        bench.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE}"})
    elif edit == "node":
        if bench.client.get("/api/v1/nodes")["items"]:  # not so after a first try whose answer was lost
            bench.client.delete(f"/api/v1/nodes/{NODE}")
        bench.make_node()
    elif stored:
        disturb_slice(bench, edit, stored[0])


def disturb_slice(bench: Any, edit: str, stored: dict[str, Any]) -> None:
    where = f"{SLICES}/{stored['metadata']['name']}"
    if edit == "delete one":
        bench.client.delete(where)
    elif edit == "edit":
        bench.client.patch(where, {"spec": {"devices": [{"name": "foreign"}]}})
    elif edit == "generation":
        bench.client.patch(where, {"spec": {"pool": {"generation": stored["spec"]["pool"]["generation"] + 3}}})
    else:
        metadata = {
            "generateName": stored["metadata"]["name"][:6],
            "ownerReferences": stored["metadata"]["ownerReferences"],
        }
        bench.client.create(SLICES, {"metadata": metadata, "spec": stored["spec"]})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, last=states)
def test_any_sequence_of_states_foreign_edits_failures_and_restarts_converges(
    bench_class: Any, steps: Any, last: Any
) -> None:
    def resources(state: dict[str, list[list[str]]]) -> DriverResources:
        """Names are made unique in their pool; every slice has at least one device of its own."""
        return DriverResources(
            {
                pool: Pool(
                    tuple(
                        content(*(f"{name}-{index}" for name in ["s", *slice_])) for index, slice_ in enumerate(slices)
                    )
                )
                for pool, slices in state.items()
            }
        )

    with EmbeddedApiServer() as server:
        bench = bench_class(server)
        try:
            publisher = bench.publisher(repair_delay=0.005)
            for kind, what in steps:
                if kind == "want":
                    publisher.update(resources(what))
                elif kind == "edit":
                    disturb_at_last(bench, what)
                elif what == "fail":
                    server.faults.fail(500, "InternalError", path="/resourceslices", times=2)
                elif what == "lose answers":
                    server.faults.lose_answers(times=2)
                else:  # another instance goes on where this one was
                    publisher.stop()
                    publisher = bench.publisher(repair_delay=0.005)
            server.faults.clear()
            wanted = resources(last)
            publisher.update(wanted)
            bench.eventually(lambda: converged(bench, wanted), timeout=20)
        finally:
            bench.stop()


def converged(bench: Any, wanted: DriverResources) -> bool:
    """Exactly the wanted devices, one generation and the right count in each pool, owned by the Node as it is."""
    stored = bench.client.get(SLICES)["items"]
    uid = bench.client.get(f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
    by_pool: dict[str, list[dict[str, Any]]] = {}
    for item in stored:
        by_pool.setdefault(item["spec"]["pool"]["name"], []).append(item)
    if by_pool.keys() != wanted.pools.keys():
        return False
    return all(
        [tuple(item["spec"]["devices"]) for item in by_pool[name]] == [piece.devices for piece in pool.slices]
        and len({item["spec"]["pool"]["generation"] for item in by_pool[name]}) == 1
        and {item["spec"]["pool"]["resourceSliceCount"] for item in by_pool[name]} == {len(pool.slices)}
        and all(item["metadata"]["ownerReferences"][0]["uid"] == uid for item in by_pool[name])
        for name, pool in wanted.pools.items()
    )
