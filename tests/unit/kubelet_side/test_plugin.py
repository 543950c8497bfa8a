"""One plugin from start to stop: two sockets, the kubelet's word, and nothing left behind."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubeletplugin import endpoint
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.sockets import SocketError
from tests.unit.kubelet_side.fakes import DRIVER, NODE, Node, prepare_request, ref, unprepare_request


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def get_info(node: Node, timeout: float = 1.0) -> registration_v1_pb2.PluginInfo:
    with grpc.insecure_channel(f"unix:{node.registration_socket}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        return stub.GetInfo(registration_v1_pb2.InfoRequest(), timeout=timeout)


def notify(node: Node, *, ok: bool, error: str = "") -> None:
    with grpc.insecure_channel(f"unix:{node.registration_socket}") as channel:
        stub = registration_v1_pb2_grpc.RegistrationStub(channel)
        status = registration_v1_pb2.RegistrationStatus(plugin_registered=ok, error=error)
        stub.NotifyRegistrationStatus(status, timeout=5)


def test_the_plugin_says_who_it_is(node: Node) -> None:
    with node.plugin():
        info = get_info(node)
    assert info.type == "DRAPlugin"
    assert info.name == DRIVER
    assert info.endpoint == str(node.dra_socket)
    assert list(info.supported_versions) == ["v1.DRAPlugin", "v1beta1.DRAPlugin"], (
        "the kubelet takes the first it knows"
    )


def test_the_service_is_bound_before_the_socket_that_the_kubelet_finds_it_by(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not as Go's helper, which serves both in any order: a kubelet calls what it has registered at once."""
    bind = endpoint.bind_server
    bound = []

    def look(server: grpc.Server, path: Path) -> Any:
        bound.append((path, node.dra_socket.exists(), node.registration_socket.exists()))
        return bind(server, path)

    monkeypatch.setattr(endpoint, "bind_server", look)
    with node.plugin():
        assert bound == [(node.dra_socket, False, False), (node.registration_socket, True, False)]
        get_info(node)
        with node.stub() as dra:
            dra.NodePrepareResources(prepare_request(), timeout=5)


def test_a_registration_socket_that_cannot_be_bound_leaves_no_other_behind(node: Node) -> None:
    node.registration_socket.parent.mkdir(parents=True)
    node.registration_socket.write_text("in the way")
    plugin = node.plugin()
    with pytest.raises(SocketError, match="is not a socket"):
        plugin.start()
    assert not node.dra_socket.exists()
    node.registration_socket.unlink()
    plugin.start()
    plugin.stop()
    assert not node.registration_socket.exists()


def test_registration_is_answered_while_every_worker_is_blocked(node: Node, aside: ThreadPoolExecutor) -> None:
    gates = []
    for number in range(1, 13):
        node.api.add_claim(ref(number))
        gates.append(node.driver.hold(f"uid-{number}"))
    with node.plugin(workers=2), node.stub() as dra:
        calls = [aside.submit(dra.NodePrepareResources, prepare_request(ref(n)), timeout=40) for n in range(1, 13)]
        while sum(event.is_set() for event in node.driver.entered.values()) < 2:
            threading.Event().wait(0.002)
        assert get_info(node, timeout=1.0).name == DRIVER
        for gate in gates:
            gate.set()
        assert all(not entry.error for call in calls for entry in call.result().claims.values())


def test_the_kubelets_word_is_kept_and_passed_on(node: Node) -> None:
    with node.plugin() as plugin:
        assert plugin.registered.status is None
        assert not plugin.registered.wait(0)
        notify(node, ok=False, error="plugin validation failed")
        assert plugin.registered.wait_answer(10) is not None
        assert not plugin.registered.is_set()
        assert plugin.readiness() == "the kubelet refused the plugin: plugin validation failed"
        notify(node, ok=True)
        assert plugin.registered.wait(10)
        assert plugin.readiness() is None
    assert node.observer.words == [(False, "plugin validation failed"), (True, "")]


@pytest.mark.bug("B116")
def test_a_kubelet_that_never_comes_is_a_reason_that_names_the_folder(node: Node) -> None:
    with node.plugin() as plugin:
        reason = plugin.readiness()
    assert reason is not None
    assert f"has not come to the registration socket in {node.registry_dir}" in reason
    assert "k0s, microk8s" in reason


@pytest.mark.bug("B116")
def test_any_kubelet_root_will_do(node: Node) -> None:
    other = node.root / "var/snap/microk8s/kubelet"
    with node.plugin(plugins_dir=other / "plugins", registry_dir=other / "plugins_registry") as plugin:
        assert plugin.liveness() is None
    assert (other / "plugins_registry").is_dir()


@pytest.mark.bug("B133")
def test_sockets_and_folders_are_closed_to_other_users(node: Node) -> None:
    previous = os.umask(0)
    try:
        with node.plugin():
            modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (node.dra_socket, node.registration_socket)}
            assert set(modes.values()) == {0o600}
            assert stat.S_IMODE(node.dra_socket.parent.stat().st_mode) == 0o750
    finally:
        os.umask(previous)


def test_two_instances_with_uids_live_side_by_side(node: Node) -> None:
    node.api.add_claim(ref())
    old = node.plugin(instance_uid="pod-old")
    new = node.plugin(instance_uid="pod-new")
    old.start()
    new.start()
    assert len(list(node.registry_dir.iterdir())) == 2
    old.stop()
    assert [path.name for path in node.registry_dir.iterdir()] == [f"{DRIVER}-pod-new-reg.sock"]
    assert [path.name for path in node.dra_socket.parent.iterdir()] == ["dra-pod-new.sock"]
    assert new.liveness() is None
    new.stop()


def test_an_instance_that_was_replaced_leaves_the_new_ones_sockets(node: Node) -> None:
    old, new = node.plugin(), node.plugin()
    old.start()
    new.start()
    old.stop()
    assert new.liveness() is None
    assert get_info(node).name == DRIVER
    new.stop()
    assert list(node.registry_dir.iterdir()) == []


@pytest.mark.bug("B66")
def test_stop_lets_running_calls_end_and_refuses_new_ones(node: Node, aside: ThreadPoolExecutor) -> None:
    node.api.add_claim(ref(1))
    gate = node.driver.hold("uid-1")
    plugin = node.plugin()
    plugin.start()
    with node.stub() as dra:
        running = aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=40)
        assert node.driver.entered["uid-1"].wait(10)
        stopping = aside.submit(plugin.stop, 30)
        while not refused(dra):
            threading.Event().wait(0.002)
        assert not stopping.done()
        gate.set()
        assert running.result().claims["uid-1"].error == ""
        stopping.result(10)
    assert not node.dra_socket.exists()
    assert not node.registration_socket.exists()


def refused(dra: object) -> bool:
    try:
        dra.NodeUnprepareResources(unprepare_request(), timeout=5)  # type: ignore[attr-defined]
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
    return False


@pytest.mark.bug("B66")
def test_stop_does_not_wait_longer_than_its_grace(
    node: Node, aside: ThreadPoolExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    node.api.add_claim(ref(1))
    gate = node.driver.hold("uid-1")
    plugin = node.plugin()
    plugin.start()
    with node.stub() as dra:
        running = aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=40)
        assert node.driver.entered["uid-1"].wait(10)
        plugin.stop(0.1)
        assert "a handler call still runs" in caplog.text
        assert not node.registration_socket.exists()
        gate.set()
        with pytest.raises(grpc.RpcError):
            running.result()


@pytest.mark.bug("B66")
def test_stopping_twice_and_without_start_is_safe(node: Node) -> None:
    never = node.plugin()
    never.stop()
    never.stop()
    plugin = node.plugin()
    plugin.start()
    plugin.stop()
    plugin.stop()
    assert plugin.liveness() == "the plugin is stopped"


def test_a_plugin_is_started_once(node: Node) -> None:
    with node.plugin() as plugin, pytest.raises(RuntimeError, match="can be started once"):
        plugin.start()
    with pytest.raises(RuntimeError, match="can be started once"):
        plugin.start()


@pytest.mark.bug("B66")
def test_a_failed_start_raises_and_leaves_nothing(node: Node) -> None:
    node.registry_dir.mkdir()
    node.registration_socket.write_text("in the way")
    plugin = node.plugin()
    with pytest.raises(SocketError, match="is not a socket"):
        plugin.start()
    assert list(node.dra_socket.parent.iterdir()) == []
    assert list(node.registry_dir.iterdir()) == [node.registration_socket]
    assert plugin.liveness() == "the plugin is not started"
    node.registration_socket.unlink()
    plugin.start()
    assert plugin.liveness() is None
    plugin.stop()


@pytest.mark.bug("B66")
@pytest.mark.parametrize("socket", ["dra_socket", "registration_socket"])
def test_a_socket_that_somebody_removed_is_noticed(node: Node, socket: str) -> None:
    with node.plugin() as plugin:
        assert plugin.liveness() is None
        getattr(node, socket).unlink()
        reason = plugin.liveness(timeout=2)
        assert reason is not None
        assert str(getattr(node, socket)) in reason


def test_a_plugin_that_is_busy_is_alive_and_one_whose_socket_is_gone_is_not(
    node: Node, aside: ThreadPoolExecutor
) -> None:
    node.api.add_claim(ref(1))
    gate = node.driver.hold("uid-1")
    with node.plugin(workers=1) as plugin, node.stub() as dra:
        calls = [aside.submit(dra.NodePrepareResources, prepare_request(ref(1)), timeout=40) for _ in range(4)]
        assert node.driver.entered["uid-1"].wait(10)
        while answers(dra):  # until all four threads of the server are taken
            pass
        assert plugin.liveness(timeout=2) is None
        node.dra_socket.unlink()
        assert plugin.liveness(timeout=2) is not None
        gate.set()
        for call in calls:
            call.result()


def answers(dra: object) -> bool:
    try:
        dra.NodePrepareResources(prepare_request(), timeout=0.2)  # type: ignore[attr-defined]
    except grpc.RpcError:
        return False
    return True


def test_liveness_before_the_start_says_so(node: Node) -> None:
    assert node.plugin().liveness() == "the plugin is not started"


@pytest.mark.bug("B58")
def test_unprepare_works_without_api_server_from_the_first_moment(node: Node) -> None:
    def fail(_path: str) -> None:
        raise AssertionError("the API server was asked")

    node.api.before_get = fail
    with node.plugin(), node.stub() as dra:
        assert dra.NodeUnprepareResources(unprepare_request(ref(5)), timeout=10).claims["uid-5"].error == ""


def http2_frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags, 0, 0, 0, 0]) + payload


SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1


@pytest.mark.bug("B61")
def test_a_kubelet_that_pings_an_idle_connection_is_never_sent_away(node: Node) -> None:
    with node.plugin(), socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.settimeout(10)
        kubelet.connect(str(node.dra_socket))
        stream = kubelet.makefile("rb")
        kubelet.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + http2_frame(SETTINGS))
        for number in range(20):
            kubelet.sendall(http2_frame(PING, number.to_bytes(8)))
            answer = b""
            while answer != number.to_bytes(8):
                header = stream.read(9)
                assert header, "the server closed the connection"
                payload = stream.read(int.from_bytes(header[:3]))
                assert header[3] != GOAWAY, payload
                answer = payload if header[3] == PING and header[4] & ACK else b""
        stream.close()


@pytest.mark.parametrize("name", ["", "UPPER.example.com", "a" * 64, "net_example", "-a", "a/../b", "a..b"])
def test_a_driver_name_that_kubernetes_refuses_is_refused(node: Node, name: str) -> None:
    with pytest.raises(ValueError, match="is not a lower-case DNS subdomain"):
        Plugin(name, NODE, node.driver, client=node.api)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [0, -1, 45, 60])
def test_a_deadline_beyond_the_kubelets_is_refused(node: Node, seconds: float) -> None:
    with pytest.raises(ValueError, match="must be below the kubelet's 45"):
        node.plugin(call_deadline=seconds)


class FakePublisher:
    """Stands in for the publisher: its own tests are elsewhere."""

    made: list[FakePublisher] = []  # noqa: RUF012 - shared on purpose, reset by the test

    def __init__(self, client: object, **settings: object) -> None:
        self.client, self.settings, self.log = client, settings, []
        self.made.append(self)

    def start(self) -> None:
        self.log.append("start")

    def update(self, resources: object) -> None:
        self.log.append(resources)

    def stop(self) -> None:
        self.log.append("stop")


def test_slices_are_published_once_there_are_some_and_left_at_the_end(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakePublisher.made = []
    monkeypatch.setattr("kubeletplugin.publisher.Publisher", FakePublisher)
    with node.plugin() as plugin:
        assert FakePublisher.made == [], "an earlier instance's slices must not be touched before there are new ones"
        plugin.publish("first")  # type: ignore[arg-type]
        plugin.publish("second")  # type: ignore[arg-type]
    (publisher,) = FakePublisher.made
    assert publisher.client is node.api
    assert publisher.settings == {"driver_name": DRIVER, "node_name": NODE, "observer": node.observer}
    assert publisher.log == ["start", "first", "second", "stop"]
    with pytest.raises(RuntimeError, match="the plugin is stopped"):
        plugin.publish("third")  # type: ignore[arg-type]
