"""Probes over TCP, as the kubelet makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest

from kubeletplugin.healthserver import HealthServer
from kubeletplugin.proto import probe_pb2
from kubeletplugin.sockets import SocketError
from tests.unit.kubelet_side.fakes import Node

Probe = Callable[[str], int]


@contextmanager
def serving(**checks: Callable[[], str | None]) -> Iterator[Probe]:
    server = HealthServer("127.0.0.1:0", checks)
    port = server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=probe_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=probe_pb2.HealthCheckResponse.FromString,
        )
        yield lambda service: check(probe_pb2.HealthCheckRequest(service=service), timeout=5).status
    server.stop()
    server.stop()


def refusal(probe: Probe, service: str) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        probe(service)
    return caught.value.code(), caught.value.details()  # type: ignore[attr-defined]


def test_a_service_that_is_well_serves() -> None:
    with serving(liveness=lambda: None) as probe:
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        assert probe("") == probe_pb2.HealthCheckResponse.SERVING


def test_the_reason_why_not_reaches_the_prober() -> None:
    with serving(liveness=lambda: None, readiness=lambda: "NVML has no driver") as probe:
        assert refusal(probe, "readiness") == (grpc.StatusCode.UNAVAILABLE, "readiness: NVML has no driver")
        assert refusal(probe, "") == (grpc.StatusCode.UNAVAILABLE, "readiness: NVML has no driver")
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING


def test_a_service_of_another_name_is_not_found_and_the_known_ones_are_named() -> None:
    with serving(liveness=lambda: None, readiness=lambda: None) as probe:
        code, text = refusal(probe, "livenes")
    assert code is grpc.StatusCode.NOT_FOUND
    assert text == "no service 'livenes' here, only liveness, readiness"


def test_a_check_that_fails_itself_is_a_failure() -> None:
    with serving(liveness=lambda: str(1 // 0)) as probe:
        code, text = refusal(probe, "liveness")
    assert code is grpc.StatusCode.UNAVAILABLE
    assert text.startswith("liveness: the check itself failed: ZeroDivisionError")


def test_changes_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    answers: list[str | None] = ["down", "down", None, None]
    caplog.set_level("INFO")
    with serving(liveness=lambda: answers.pop(0)) as probe:
        for _ in range(2):
            refusal(probe, "liveness")
        for _ in range(2):
            probe("liveness")
    lines = [record.getMessage() for record in caplog.records if record.name == "kubeletplugin.healthserver"]
    assert lines == ["health of liveness: down", "health of liveness: well"]


def test_a_port_in_use_is_named_with_advice() -> None:
    first = HealthServer("127.0.0.1:0", {})
    port = first.start()
    with pytest.raises(SocketError, match=rf"127\.0\.0\.1:{port} cannot be bound.*choose another"):
        HealthServer(f"127.0.0.1:{port}", {}).start()
    first.stop()


@pytest.mark.bug("B66")
def test_liveness_goes_through_the_kubelets_sockets(node: Node) -> None:
    with node.plugin() as plugin, serving(liveness=plugin.liveness, readiness=plugin.readiness) as probe:
        assert probe("liveness") == probe_pb2.HealthCheckResponse.SERVING
        assert "has not come to the registration socket" in refusal(probe, "readiness")[1]
        node.registration_socket.unlink()
        assert str(node.registration_socket) in refusal(probe, "liveness")[1]
