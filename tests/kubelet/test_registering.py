"""The real kubelet finds the plugin, whatever starts, ends or fails when, and speaks the version that both know."""

from __future__ import annotations

import threading
from typing import Any

import grpc
import pytest

import kubeletplugin.plugin
from hack.cluster import lifecycle
from hack.cluster.layout import Layout
from hack.cluster.scene import Namespace
from kubeletplugin.dra import DraService, DraServiceV1beta1
from kubeletplugin.registration import RegistrationService
from kubeletplugin.testing.handler import PREPARE
from tests.kubelet.scene_driver import WAIT, Driver, environment


def test_it_registers_again_after_a_restart_of_the_kubelet(driver: Driver, cluster: Layout) -> None:
    plugin = driver.started()
    words = threading.Event()
    plugin.registered.set = lambda status: words.set()  # type: ignore[method-assign] # the next word of the kubelet
    lifecycle.restart_kubelet(cluster)
    assert words.wait(60)


def test_it_registers_again_after_a_restart_of_the_plugin(driver: Driver) -> None:
    driver.started()
    driver.stop()
    driver.started()


@pytest.mark.parametrize("method", ["GetInfo", "NotifyRegistrationStatus"])
def test_it_registers_after_a_call_of_the_registration_failed(
    driver: Driver,
    cluster: Layout,
    version: tuple[int, int],
    errors_expected: None,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    if method == "NotifyRegistrationStatus" and version < (1, 36):
        pytest.skip("an old kubelet takes a plugin for registered although it could not tell it so")
    working = getattr(RegistrationService, method)
    failing, failed = threading.Event(), threading.Event()

    def faulty(self: RegistrationService, request: Any, context: grpc.ServicerContext) -> Any:
        if failing.is_set():
            failed.set()
            context.abort(grpc.StatusCode.INTERNAL, "injected failure")
        return working(self, request, context)

    monkeypatch.setattr(RegistrationService, method, faulty)
    plugin = driver.started()
    words = threading.Event()
    plugin.registered.set = lambda status: words.set()  # type: ignore[method-assign] # the next word of the kubelet
    failing.set()
    lifecycle.restart_kubelet(cluster)
    assert failed.wait(60)
    assert not words.is_set()
    failing.clear()
    assert words.wait(60)


def test_a_pod_that_was_there_before_the_driver_runs_once_there_is_one(
    driver: Driver, namespace: Namespace, errors_expected: None
) -> None:
    """The scheduler may be quicker than the kubelet, which looks for plugins once a second: it asks again then."""
    driver.run(namespace)
    namespace.unschedulable("p")
    driver.started()
    namespace.running("p", WAIT)
    assert environment(namespace, "p")["claim_p_claim_gpu"] == "true"


@pytest.mark.parametrize(
    ("services", "spoken"),
    [
        (("v1.DRAPlugin", "v1beta1.DRAPlugin"), "v1"),
        (("v1.DRAPlugin",), "v1"),
        (("v1beta1.DRAPlugin",), "v1beta1"),
    ],
    ids=["both", "v1 alone", "v1beta1 alone"],
)
def test_the_newest_version_that_both_know_is_spoken(
    driver: Driver,
    namespace: Namespace,
    monkeypatch: pytest.MonkeyPatch,
    services: tuple[str, ...],
    spoken: str,
) -> None:
    heard: list[str] = []

    def counted(service: type, name: str) -> None:
        working = service.NodePrepareResources  # type: ignore[attr-defined] # both have it

        def method(self: Any, request: Any, context: grpc.ServicerContext) -> Any:
            heard.append(name)
            return working(self, request, context)

        monkeypatch.setattr(service, "NodePrepareResources", method)

    counted(DraService, "v1")
    counted(DraServiceV1beta1, "v1beta1")
    monkeypatch.setattr(kubeletplugin.plugin, "SERVICES", services)
    driver.started()
    driver.run(namespace)
    namespace.running("p", WAIT)
    assert heard[0] == spoken
    assert driver.handler.count(PREPARE) == 1
