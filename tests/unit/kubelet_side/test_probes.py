"""Probes over TCP, as the kubelet makes them, and what else is tried at their port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from kubeletplugin.doors import Doors
from kubeletplugin.health import HealthBoard
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import probe_pb2
from kubeletplugin.sockets import SocketError
from tests.unit.kubelet_side.fakes import Node, prepare_request, ref

Probe = Callable[[str], int]


@contextmanager
def probing(plugin: Plugin) -> Iterator[Probe]:
    with grpc.insecure_channel(f"127.0.0.1:{plugin.probe_port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=probe_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=probe_pb2.HealthCheckResponse.FromString,
        )
        yield lambda service: check(probe_pb2.HealthCheckRequest(service=service), timeout=5).status


@contextmanager
def serving(node: Node, **checks: Callable[[], str | None]) -> Iterator[Probe]:
    with node.plugin(probe_address="127.0.0.1:0", checks=checks) as plugin, probing(plugin) as probe:
        yield probe


def refusal(probe: Probe, service: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        probe(service)
    return caught.value.code(), caught.value.details()  # type: ignore[attr-defined]


def test_a_service_that_is_well_serves(node: Node) -> None:
    with serving(node, liveness=lambda: None, readiness=lambda: None) as probe:
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        assert probe("") == probe_pb2.HealthCheckResponse.SERVING


def test_the_reason_why_not_reaches_the_prober(node: Node) -> None:
    with serving(node, liveness=lambda: None, readiness=lambda: "NVML has no driver") as probe:
        assert refusal(probe, "readiness") == (grpc.StatusCode.UNAVAILABLE, "readiness: NVML has no driver")
        assert refusal(probe, "") == (grpc.StatusCode.UNAVAILABLE, "readiness: NVML has no driver")
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING


def test_a_service_of_another_name_is_not_found_and_the_known_ones_are_named(node: Node) -> None:
    with serving(node, liveness=lambda: None, readiness=lambda: None) as probe:
        code, text = refusal(probe, "livenes")
    assert code is grpc.StatusCode.NOT_FOUND
    assert text == "no service 'livenes' here, only liveness, readiness"


def test_a_check_that_fails_itself_is_a_failure(node: Node) -> None:
    with serving(node, liveness=lambda: str(1 // 0)) as probe:
        code, text = refusal(probe, "liveness")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("liveness: the check itself failed: ZeroDivisionError")


def test_changes_are_logged_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str | None] = ["down", "down", None, None]
    caplog.set_level("INFO")
    with serving(node, liveness=lambda: answers.pop(0)) as probe:
        for _ in range(2):
            refusal(probe, "liveness")
        for _ in range(2):
            probe("liveness")
    lines = [record.getMessage() for record in caplog.records if record.name == "kubeletplugin.probes"]
    assert lines == ["health of liveness: down", "health of liveness: well"]


def test_a_port_in_use_is_named_with_advice_and_nothing_is_left_behind(node: Node) -> None:
    with node.plugin(probe_address="127.0.0.1:0", instance_uid="one") as first:
        taken = f"127.0.0.1:{first.probe_port}"
        second = node.plugin(probe_address=taken, instance_uid="two")
        before = sorted(node.root.rglob("*"))
        with pytest.raises(SocketError, match=rf"{taken} cannot be bound.*choose another"):
            second.start()
        assert sorted(node.root.rglob("*")) == before
        assert second.probe_port is None


def test_without_an_address_there_is_no_port(node: Node) -> None:
    with node.plugin() as plugin:
        assert plugin.probe_port is None


def test_an_ended_plugin_answers_no_probe(node: Node) -> None:
    plugin = node.plugin(probe_address="127.0.0.1:0")
    plugin.start()
    with probing(plugin) as probe:
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        plugin.stop()
        assert refusal(probe, "liveness")[0] is grpc.StatusCode.UNAVAILABLE


def test_probes_are_answered_while_every_thread_of_prepare_is_taken(node: Node) -> None:
    claims = [ref(number) for number in range(6)]
    for claim in claims:
        node.api.add_claim(claim)
    gates = [node.driver.hold(claim.uid) for claim in claims]
    with node.plugin(probe_address="127.0.0.1:0", workers=1) as plugin, probing(plugin) as probe, node.stub() as dra:
        calls = [dra.NodePrepareResources.future(prepare_request(claim)) for claim in claims]
        assert any(node.driver.entered[claim.uid].wait(1) for claim in claims)
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        for gate in gates:
            gate.set()
        assert [entry.error for call in calls for entry in call.result().claims.values()] == [""] * 6


@pytest.mark.bug("B66")
def test_liveness_goes_through_the_kubelets_sockets(node: Node) -> None:
    with serving(node) as probe:
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        assert "has not come to the registration socket" in refusal(probe, "readiness")[1]
        node.registration_socket.unlink()
        assert str(node.registration_socket) in refusal(probe, "liveness")[1]


LOCAL = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    "pluginregistration.Registration/GetInfo",
    "pluginregistration.Registration/NotifyRegistrationStatus",
    "v1.DRAResourceHealth/NodeWatchResources",
    "v1alpha1.DRAResourceHealth/NodeWatchResources",
    "kubeletplugin.Instance/Describe",
)


@pytest.mark.parametrize("method", LOCAL)
def test_what_serves_the_kubelet_does_not_exist_for_the_network(
    node: Node, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.add_claim(ref())
    request = prepare_request(ref()).SerializeToString()
    with node.plugin(probe_address="127.0.0.1:0", health=HealthBoard()) as plugin:
        with grpc.insecure_channel(f"127.0.0.1:{plugin.probe_port}") as channel:
            for _ in range(2):
                with pytest.raises(grpc.RpcError) as caught:
                    list(channel.unary_stream(f"/{method}")(request, timeout=5))
                assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined]
        assert plugin.registered.status is None
    assert node.driver.log == []
    assert sum(f"refused a call of /{method} by ipv4:127.0.0.1" in line for line in caplog.messages) == 1


def test_a_method_that_takes_a_stream_is_let_in_by_no_door() -> None:
    """No service of the kubelet has one; a guard that was never tried would be none."""
    method = grpc.stream_unary_rpc_method_handler(lambda requests, _context: next(requests))
    doors = Doors([grpc.method_handlers_generic_handler("a.Service", {"Take": method})])
    with pytest.raises(TypeError, match=r"/a\.Service/Take takes a stream"):
        doors.service(Details("/a.Service/Take"))


class Details(grpc.HandlerCallDetails):
    """What gRPC knows of a call before it is answered."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.invocation_metadata = ()
