"""Prepare and Unprepare as the real kubelet calls them: failing, hanging, while it restarts, for pods that go."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.cluster import lifecycle
from hack.cluster.layout import NODE_NAME, Layout
from hack.cluster.scene import Container, Namespace, phase
from kubeletplugin.testing.handler import PREPARE, UNPREPARE, FaultyHandler
from tests.kubelet.scene_driver import SHOW, WAIT, Driver, claim_of, environment, force_delete, request

pytestmark = pytest.mark.usefixtures("errors_expected")
GONE = "gone"


def gone(namespace: Namespace, pod: str = "p") -> None:
    namespace.wait_pod(pod, lambda found: found is None, GONE, WAIT)


# Prepare


def test_a_pod_made_while_no_kubelet_ran_is_prepared(driver: Driver, cluster: Layout, namespace: Namespace) -> None:
    driver.started()
    lifecycle.restart_kubelet(cluster, lambda: driver.run(namespace, script=SHOW))
    namespace.succeeded("p", WAIT)
    assert driver.handler.count(PREPARE) == 1


def test_a_pod_stays_pending_while_prepare_hangs_and_runs_after(driver: Driver, namespace: Namespace) -> None:
    driver.started(call_deadline=3.0)
    with driver.handler.held(PREPARE):
        driver.run(namespace)
        namespace.wait_event("p", "prepare still runs and goes on")
        # The kubelet asks again, and is told again; the work itself is not begun twice.
        namespace.wait_event("p", "still works on claim")
        assert phase(namespace.api.get("pods", namespace.name, "p")) == "Pending"
        assert driver.handler.count(PREPARE) == 1
    namespace.running("p", WAIT)


@pytest.mark.parametrize(
    "fault", [FaultyHandler.fail, FaultyHandler.fail_afterwards, FaultyHandler.forget, FaultyHandler.crash]
)
def test_a_pod_runs_after_prepare_failed_and_then_succeeds(
    driver: Driver, namespace: Namespace, fault: Callable[..., None]
) -> None:
    driver.started()
    fault(driver.handler, PREPARE)
    driver.run(namespace)
    namespace.wait_event("p", "Failed to prepare dynamic resources")
    assert phase(namespace.api.get("pods", namespace.name, "p")) == "Pending"
    failed = driver.handler.count(PREPARE)
    driver.handler.heal()
    namespace.running("p", WAIT)
    assert driver.handler.count(PREPARE) > failed


def test_a_prepare_that_failed_is_tried_again_after_a_restart_of_the_kubelet(
    driver: Driver, cluster: Layout, namespace: Namespace
) -> None:
    driver.started()
    driver.handler.fail(PREPARE)
    driver.run(namespace, script=SHOW)
    assert driver.handler.wait_called(PREPARE, timeout=WAIT)
    lifecycle.restart_kubelet(cluster, driver.handler.heal)
    namespace.succeeded("p", WAIT)


@pytest.mark.parametrize("kind", [PREPARE, UNPREPARE])
def test_a_call_in_progress_is_repeated_after_a_restart_of_the_kubelet(
    driver: Driver, cluster: Layout, namespace: Namespace, kind: str
) -> None:
    driver.started()
    if kind == UNPREPARE:
        driver.run(namespace)
        namespace.running("p", WAIT)
    with driver.handler.held(kind):
        if kind == PREPARE:
            driver.run(namespace)
        else:
            namespace.api.delete("pods", namespace.name, "p")
        assert driver.handler.wait_hanging(timeout=WAIT)
        lifecycle.restart_kubelet(cluster)
    assert driver.handler.wait_called(kind, 2, timeout=WAIT)
    if kind == PREPARE:
        namespace.running("p", WAIT)
    else:
        gone(namespace)


def test_prepare_is_not_called_for_a_pod_that_was_deleted_while_no_kubelet_ran(
    driver: Driver, cluster: Layout, namespace: Namespace
) -> None:
    driver.started()
    with driver.handler.held(PREPARE):
        driver.run(namespace)
        assert driver.handler.wait_hanging(timeout=WAIT)
        lifecycle.stop_component(cluster, "kubelet")
        namespace.api.delete("pods", namespace.name, "p")
    called = driver.handler.count(PREPARE)
    lifecycle.start_component(cluster, "kubelet")
    gone(namespace)
    # A pod that comes later is prepared and run: by then the first one's turn would have come.
    driver.run(namespace, "later")
    namespace.running("later", WAIT)
    assert driver.handler.count(PREPARE) == called + 1


def test_a_pod_whose_claim_is_not_allocated_does_not_run(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.claim("open", device_class=driver.name)
    namespace.pod("p", claim="open", node=NODE_NAME)
    namespace.wait_event("p", "Failed to prepare dynamic resources")
    assert phase(namespace.api.get("pods", namespace.name, "p")) == "Pending"
    assert driver.handler.count(PREPARE) == 0


def test_a_claim_that_no_container_uses_is_prepared_all_the_same(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.claim("unused", device_class=driver.name)
    namespace.pod("p", claim="unused", containers=[Container("main", "exec sleep 2147483647", claims=())])
    namespace.running("p", WAIT)
    assert driver.prepared_names() == namespace.allocated("unused")


# Unprepare


def test_a_pod_that_ended_is_unprepared_although_that_failed_at_first(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    driver.handler.fail(UNPREPARE)
    driver.run(namespace, script=SHOW)
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    driver.handler.heal()
    namespace.succeeded("p", WAIT)
    assert driver.handler.wait_called(UNPREPARE, 2, timeout=WAIT)
    driver.wait_prepared()


def test_an_unprepare_that_failed_is_tried_again_after_a_restart_of_the_kubelet(
    driver: Driver, cluster: Layout, namespace: Namespace
) -> None:
    driver.started()
    driver.handler.fail(UNPREPARE)
    driver.run(namespace, script=SHOW)
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    lifecycle.stop_component(cluster, "kubelet")
    failed = driver.handler.count(UNPREPARE)
    driver.handler.heal()
    lifecycle.start_component(cluster, "kubelet")
    assert driver.handler.wait_called(UNPREPARE, failed + 1, timeout=WAIT)
    namespace.succeeded("p", WAIT)
    driver.wait_prepared()


def test_unprepare_goes_on_until_it_succeeds_although_the_pod_is_deleted(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    driver.handler.fail(UNPREPARE)
    driver.run(namespace, script=SHOW)
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    namespace.api.delete("pods", namespace.name, "p")
    assert driver.handler.wait_called(UNPREPARE, driver.handler.count(UNPREPARE) + 1, timeout=WAIT)
    failed = driver.handler.count(UNPREPARE)
    driver.handler.heal()
    assert driver.handler.wait_called(UNPREPARE, failed + 1, timeout=WAIT)
    gone(namespace)
    driver.wait_prepared()


def test_a_pod_deleted_while_prepare_fails_is_unprepared(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    driver.handler.fail_afterwards(PREPARE)
    driver.run(namespace)
    assert driver.handler.wait_called(PREPARE, timeout=WAIT)
    namespace.api.delete("pods", namespace.name, "p")
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    gone(namespace)
    driver.wait_prepared()


def test_a_force_deleted_pod_is_unprepared(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    force_delete(namespace)
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)


def test_a_pod_deleted_while_no_kubelet_ran_is_unprepared(
    driver: Driver, cluster: Layout, namespace: Namespace
) -> None:
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    lifecycle.restart_kubelet(cluster, lambda: namespace.api.delete("pods", namespace.name, "p"))
    assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)
    gone(namespace)


def test_a_new_pod_waits_until_the_force_deleted_one_of_its_name_is_unprepared(
    driver: Driver, namespace: Namespace
) -> None:
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    (old,) = driver.driver.prepared
    driver.handler.fail(UNPREPARE)
    force_delete(namespace)
    namespace.api.delete("resourceclaims", namespace.name, "p-claim")
    namespace.api.wait("resourceclaims", namespace.name, "p-claim", lambda claim: claim is None, "old claim gone")
    driver.run(namespace)
    namespace.wait_event("p", f"old ResourceClaim with same name p-claim and different UID {old} still exists")
    assert list(driver.driver.prepared) == [old]
    driver.handler.heal()
    namespace.running("p", WAIT)
    new = namespace.api.get("resourceclaims", namespace.name, "p-claim")["metadata"]["uid"]
    assert list(driver.driver.prepared) == [new]


# What reaches the containers


def test_configs_and_devices_reach_the_right_containers(install: Callable[..., Driver], namespace: Namespace) -> None:
    driver = install(devices=[f"eth{number}" for number in range(9)])
    driver.started()
    requests = [request(name, driver.name) for name in ("req0", "req1", "req2")]
    for claim in ("all", "first", "second"):
        parameters = [({}, 0), ({"requests": ["req1"]}, 1), ({"requests": ["req2"]}, 2)]
        config = [
            {**which, "opaque": {"driver": driver.name, "parameters": {f"user_{claim}_config{number}": "true"}}}
            for which, number in parameters
        ]
        claim_of(namespace, claim, requests, config)
    containers = [
        Container("first", f"{SHOW}; exec sleep 2147483647", claims=("all", "first")),
        Container("second", f"{SHOW}; exec sleep 2147483647", claims=("all", "second/req1")),
    ]
    namespace.pod("p", claims={name: name for name in ("all", "first", "second")}, containers=containers)
    namespace.running("p", WAIT)

    def of(claim: str, *numbers: int) -> set[str]:
        return {f"user_{claim}_config{number}" for number in numbers}

    def requested(claim: str, *numbers: int) -> set[str]:
        return {f"claim_{claim}_req{number}" for number in numbers}

    shown = {name: {key for key in environment(namespace, "p", name) if not key.startswith("device_")}
             for name in ("first", "second")}  # fmt: skip
    everything = of("all", 0, 1, 2) | requested("all", 0, 1, 2)
    assert shown["first"] == everything | of("first", 0, 1, 2) | requested("first", 0, 1, 2)
    assert shown["second"] == everything | of("second", 0, 1) | requested("second", 1)


def test_parameters_of_the_class_reach_the_container_beside_those_of_the_claim(
    driver: Driver, namespace: Namespace
) -> None:
    opaque = {"driver": driver.name, "parameters": {"class_x": "y"}}
    driver.api.patch("deviceclasses", None, driver.name, {"spec": {"config": [{"opaque": opaque}]}})
    driver.started()
    namespace.template("nics", device_class=driver.name, parameters={"user_a": "b"}, driver=driver.name)
    namespace.pod("p", template="nics", containers=[Container("main", SHOW)])
    namespace.succeeded("p", WAIT)
    shown = environment(namespace, "p")
    assert (shown["class_x"], shown["user_a"]) == ("y", "b")


def test_init_and_other_containers_of_two_pods_share_a_claim(driver: Driver, namespace: Namespace) -> None:
    driver.started()
    namespace.claim("shared", device_class=driver.name)
    sleep = f"{SHOW}; exec sleep 2147483647"
    for pod in ("left", "right"):
        namespace.pod(
            pod,
            claim="shared",
            init=[Container("init", SHOW)],
            containers=[Container("a", sleep), Container("b", sleep)],
        )
    shown = []
    for pod in ("left", "right"):
        namespace.running(pod, WAIT)
        shown += [environment(namespace, pod, container) for container in ("init", "a", "b")]
    (device,) = namespace.allocated("shared")
    assert shown == [{"claim_shared_gpu": "true", f"device_{device}": "true"}] * 6
    assert driver.prepared_names() == [device]
