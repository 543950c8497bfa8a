"""A claim of two drivers on the real kubelet: each is asked, and the trouble of one leaves the other's work."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hack.cluster import lifecycle
from hack.cluster.layout import Layout
from hack.cluster.scene import Container, Namespace
from kubeletplugin.testing.handler import PREPARE, UNPREPARE
from tests.kubelet.scene_driver import SHOW, WAIT, Driver, claim_of, environment, request

Pair = tuple[Driver, Driver]


@pytest.fixture
def pair(install: Callable[..., Driver]) -> Pair:
    """Two drivers that the kubelet knows."""
    first, second = install("one.example.com", ["a0"]), install("two.example.com", ["b0"])
    first.started()
    second.started()
    return first, second


def run(namespace: Namespace, pair: Pair) -> None:
    """A pod that ends, with a claim of a device of each."""
    claim_of(namespace, "both", [request(f"from{n}", driver.name) for n, driver in enumerate(pair)])
    namespace.pod("p", claim="both", containers=[Container("main", SHOW)])


def test_a_claim_of_both_is_prepared_and_unprepared_by_both(pair: Pair, namespace: Namespace) -> None:
    run(namespace, pair)
    namespace.succeeded("p", WAIT)
    assert environment(namespace, "p") == {
        "claim_both_from0": "true", "device_a0": "true", "claim_both_from1": "true", "device_b0": "true",
    }  # fmt: skip
    for driver in pair:
        assert driver.handler.count(PREPARE) == 1
        assert driver.handler.wait_called(UNPREPARE, timeout=WAIT)


def test_a_pod_with_several_claims_of_both_runs(install: Callable[..., Driver], namespace: Namespace) -> None:
    drivers = install("one.example.com", ["a0", "a1"]), install("two.example.com", ["b0", "b1"])
    claims = {f"{driver.name[:3]}{n}": driver for driver in drivers for n in range(2)}
    for name, driver in claims.items():
        namespace.claim(name, device_class=driver.name)
    for driver in drivers:
        driver.started()
    namespace.pod("p", claims={name: name for name in claims}, containers=[Container("main", SHOW, tuple(claims))])
    namespace.succeeded("p", WAIT)
    assert {f"claim_{name}_gpu" for name in claims} <= environment(namespace, "p").keys()


def test_a_pod_runs_after_prepare_of_one_failed_and_then_succeeds(
    pair: Pair, namespace: Namespace, errors_expected: None
) -> None:
    pair[1].handler.fail(PREPARE)
    run(namespace, pair)
    assert pair[1].handler.wait_called(PREPARE, timeout=WAIT)
    namespace.wait_event("p", "Failed to prepare dynamic resources")
    pair[1].handler.heal()
    namespace.succeeded("p", WAIT)
    assert len(environment(namespace, "p")) == 4


def test_a_pod_ends_after_unprepare_of_one_failed_and_then_succeeds(
    pair: Pair, namespace: Namespace, errors_expected: None
) -> None:
    pair[1].handler.fail(UNPREPARE)
    run(namespace, pair)
    assert pair[1].handler.wait_called(UNPREPARE, timeout=WAIT)
    pair[1].handler.heal()
    assert pair[1].handler.wait_called(UNPREPARE, 2, timeout=WAIT)
    namespace.succeeded("p", WAIT)
    for driver in pair:
        driver.wait_prepared()


def test_a_pod_runs_although_the_kubelet_restarted_while_one_was_at_work(
    pair: Pair, cluster: Layout, namespace: Namespace, errors_expected: None
) -> None:
    with pair[0].handler.held(PREPARE):
        run(namespace, pair)
        assert pair[0].handler.wait_hanging(timeout=WAIT)
        lifecycle.restart_kubelet(cluster)
    namespace.succeeded("p", WAIT)
    assert pair[1].handler.count(PREPARE) >= 1
    assert len(environment(namespace, "p")) == 4


def test_unprepare_is_called_again_when_the_kubelet_restarted_while_one_was_at_work(
    pair: Pair, cluster: Layout, namespace: Namespace, errors_expected: None
) -> None:
    with pair[1].handler.held(UNPREPARE):
        run(namespace, pair)
        assert pair[1].handler.wait_hanging(timeout=WAIT)
        lifecycle.restart_kubelet(cluster)
    assert pair[1].handler.wait_called(UNPREPARE, 2, timeout=WAIT)
    namespace.succeeded("p", WAIT)
    for driver in pair:
        driver.wait_prepared()


def test_one_request_can_have_devices_of_both_and_each_ones_metadata(
    install: Callable[..., Driver], namespace: Namespace
) -> None:
    drivers = install("one.example.com", ["a0"]), install("two.example.com", ["b0"])
    either = " || ".join(f'device.driver == "{driver.name}"' for driver in drivers)
    for driver in drivers:
        spec = {"selectors": [{"cel": {"expression": either}}]}
        driver.api.patch("deviceclasses", None, driver.name, {"spec": spec})
        driver.started()
    namespace.claim("mixed", device_class=drivers[0].name, count=2)
    folder = "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/mixed/gpu"
    namespace.pod("p", claim="mixed", containers=[Container("main", f"{SHOW}; ls {folder}")])
    namespace.succeeded("p", WAIT)
    lines = namespace.log_lines("p")
    assert lines[lines.index("END") + 1 :] == [f"{driver.name}-metadata.json" for driver in drivers]
    assert {"device_a0=true", "device_b0=true"} <= set(lines)
