"""The kubelet stand-in against real plugins: it accepts what the kubelet accepts, and refuses the rest as it does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubeletplugin.api import Claim, ClaimRef, PrepareError, PrepareResult
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import dra_v1_pb2, dra_v1_pb2_grpc, registration_v1_pb2, registration_v1_pb2_grpc
from kubeletplugin.testing.kubelet import Kubelet, KubeletError
from tests.unit.kubelet_side.fakes import DRIVER, NODE, Driver, Node, claim_document, ref


def kubelet_of(node: Node, **options: object) -> Kubelet:
    settings: dict[str, object] = {"node_name": NODE, "client": node.api, "poll": 0.02}
    return Kubelet(node.registry_dir, **(settings | options))  # type: ignore[arg-type]


@pytest.fixture
def kubelet(node: Node) -> Iterator[Kubelet]:
    for number in range(1, 4):
        node.api.add_claim(ref(number))
    with kubelet_of(node) as kubelet:
        yield kubelet


class Impostor(registration_v1_pb2_grpc.RegistrationServicer):
    """A plugin that says what it is told to, or nothing."""

    def __init__(self, info: registration_v1_pb2.PluginInfo, *, silent: threading.Event | None = None) -> None:
        self.info = info
        self.silent = silent
        self.words: list[tuple[bool, str]] = []

    def GetInfo(self, request: object, context: grpc.ServicerContext) -> registration_v1_pb2.PluginInfo:
        if self.silent is not None:
            self.silent.wait(30)
        return self.info

    def NotifyRegistrationStatus(
        self, request: registration_v1_pb2.RegistrationStatus, context: grpc.ServicerContext
    ) -> registration_v1_pb2.RegistrationStatusResponse:
        self.words.append((request.plugin_registered, request.error))
        return registration_v1_pb2.RegistrationStatusResponse()


@pytest.fixture
def serve(node: Node) -> Iterator[Callable[[Impostor], Path]]:
    servers = []

    def start(impostor: Impostor) -> Path:
        node.registry_dir.mkdir(exist_ok=True)
        path = node.registry_dir / "impostor.sock"
        server = grpc.server(ThreadPoolExecutor(2))
        registration_v1_pb2_grpc.add_RegistrationServicer_to_server(impostor, server)
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return path

    yield start
    for server in servers:
        server.stop(0).wait()


def test_a_plugin_is_registered_and_told_so(node: Node, kubelet: Kubelet) -> None:
    with node.plugin() as plugin:
        registered = kubelet.plugins.wait_registered(DRIVER)
        assert plugin.registered.wait(10)
    assert registered.service == "v1.DRAPlugin"
    assert registered.endpoint == node.dra_socket


def test_a_plugin_that_starts_before_the_kubelet_is_found(node: Node) -> None:
    with node.plugin() as plugin, kubelet_of(node):
        assert plugin.registered.wait(10)


def test_a_stopped_plugin_is_deregistered(node: Node, kubelet: Kubelet) -> None:
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
    assert kubelet.plugins.wait_gone(DRIVER)
    with pytest.raises(KubeletError, match=r"DRA driver net\.example\.com is not registered"):
        kubelet.plugins.plugin(DRIVER)


def test_a_plugin_that_only_knows_v1beta1_is_spoken_to_in_it(node: Node) -> None:
    node.api.add_claim(ref())
    with node.plugin() as plugin:
        info = registration_v1_pb2.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=str(node.dra_socket), supported_versions=["v1beta1.DRAPlugin"]
        )
        kubelet = kubelet_of(node)
        accepted = kubelet.plugins._accept(info, node.registration_socket)
        assert accepted.service == "v1beta1.DRAPlugin"
        reply = accepted.prepare([ref()])
        assert reply.claims["uid-1"].devices[0].device_name == "eth1"
        assert not reply.claims["uid-1"].devices[0].HasField("share_id")
        assert accepted.unprepare([ref()]).claims["uid-1"].error == ""
        accepted.channel.close()
        assert plugin.liveness() is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"type": "CSIPlugin"}, "no handler registered for plugin type: CSIPlugin"),
        ({"name": "Net.Example.com"}, "driver name 'Net.Example.com' is invalid"),
        ({"name": "../x"}, "driver name '../x' is invalid"),
        ({"endpoint": "/somewhere/else/dra.sock"}, "is not inside"),
        ({"endpoint": "plugins/dra.sock"}, "is not inside"),
        ({"endpoint": "{root}/plugins/../../x.sock"}, "is not inside"),
        ({"endpoint": "{root}/" + "x" * 107}, "longer than a unix socket may be"),
        ({"supported_versions": []}, "none of services supported by the plugin"),
        ({"supported_versions": ["1.0.0", "v1.Other"]}, "none of services supported by the plugin"),
    ],
)
def test_a_plugin_that_no_kubelet_accepts_is_refused_and_told_why(
    node: Node, serve: Callable[[Impostor], Path], changes: dict[str, object], text: str
) -> None:
    good = {"type": "DRAPlugin", "name": DRIVER, "endpoint": "{root}/dra.sock", "supported_versions": ["v1.DRAPlugin"]}
    values = good | changes
    values["endpoint"] = str(values["endpoint"]).replace("{root}", str(node.root))
    impostor = Impostor(registration_v1_pb2.PluginInfo(**values))  # type: ignore[arg-type]
    path = serve(impostor)
    with pytest.raises(KubeletError, match=text):
        kubelet_of(node).plugins.register(path)
    ((ok, error),) = impostor.words
    assert not ok
    assert text in error


def test_getinfo_has_one_second(node: Node, serve: Callable[[Impostor], Path]) -> None:
    silent = threading.Event()
    path = serve(Impostor(registration_v1_pb2.PluginInfo(), silent=silent))
    with pytest.raises(KubeletError, match=r"failed to get plugin info using RPC GetInfo .* DEADLINE_EXCEEDED"):
        kubelet_of(node).plugins.register(path)
    silent.set()


def test_one_endpoint_is_registered_once(node: Node) -> None:
    with node.plugin():
        kubelet = kubelet_of(node)
        kubelet.plugins.register(node.registration_socket)
        with pytest.raises(KubeletError, match="already registered for DRA driver"):
            kubelet.plugins.register(node.registration_socket)
        kubelet.stop()


@pytest.mark.bug("B66")
def test_a_killed_plugins_sockets_keep_nobody_from_registering(node: Node) -> None:
    node.registry_dir.mkdir()
    node.dra_socket.parent.mkdir(parents=True)
    for path in (node.dra_socket, node.registration_socket, node.registry_dir / "another-reg.sock"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
    with kubelet_of(node) as kubelet:
        while len(kubelet.plugins.errors) < 2:
            threading.Event().wait(0.005)
        assert all("connection refused" in error for error in kubelet.plugins.errors)
        with node.plugin() as plugin:
            assert plugin.registered.wait(10)
            assert plugin.liveness() is None


def test_a_claim_goes_through_a_pods_life(node: Node, kubelet: Kubelet) -> None:
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1", "claim-2"])
        assert kubelet.container_devices("default", "claim-1") == [f"{DRIVER}/claim=uid-1"]
        assert kubelet.container_devices("default", "claim-1", "nic") == [f"{DRIVER}/claim=uid-1"]
        assert kubelet.container_devices("default", "claim-1", "other") == []
        kubelet.unprepare_pod("pod-1")
    assert node.driver.log == [
        ("prepare", "uid-1"),
        ("prepare", "uid-2"),
        ("unprepare", "uid-1"),
        ("unprepare", "uid-2"),
    ]
    with pytest.raises(KubeletError, match="unable to get claim info"):
        kubelet.container_devices("default", "claim-1")


def test_a_claim_of_two_pods_is_prepared_once_and_undone_with_the_last(node: Node, kubelet: Kubelet) -> None:
    node.api.add_claim(ref(), claim_document(ref(), pods=("pod-1", "pod-2")))
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        kubelet.prepare_pod("pod-2", "default", ["claim-1"])
        kubelet.unprepare_pod("pod-1")
        assert node.driver.log == [("prepare", "uid-1")]
        kubelet.unprepare_pod("pod-2")
    assert node.driver.log == [("prepare", "uid-1"), ("unprepare", "uid-1")]


def test_after_a_restart_claims_are_prepared_again(node: Node, kubelet: Kubelet) -> None:
    with node.plugin() as plugin:
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        kubelet.restart()
        assert kubelet.prepared_claims() == []
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        assert kubelet.prepared_claims() == [ref(1)]
        assert plugin.registered.is_set()
    assert node.driver.log == [("prepare", "uid-1"), ("prepare", "uid-1")]


def test_a_claim_that_fails_is_tried_again_with_the_others(node: Node, kubelet: Kubelet) -> None:
    node.driver.answers["uid-2"] = PrepareError("no such mode", reason="InvalidConfig")
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        with pytest.raises(KubeletError, match="NodePrepareResources failed for ResourceClaim claim-2: no such mode"):
            kubelet.prepare_pod("pod-1", "default", ["claim-1", "claim-2"])
        del node.driver.answers["uid-2"]
        kubelet.prepare_pod("pod-1", "default", ["claim-1", "claim-2"])
    assert kubelet.prepared_claims() == [ref(1), ref(2)]


@pytest.mark.bug("B57")
def test_a_pod_whose_prepare_failed_can_be_ended(node: Node, kubelet: Kubelet) -> None:
    node.driver.answers["uid-1"] = PrepareError("no such mode", reason="InvalidConfig")
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        with pytest.raises(KubeletError):
            kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        kubelet.unprepare_pod("pod-1")
    assert node.driver.log[-1] == ("unprepare", "uid-1")


def test_an_unprepare_that_fails_keeps_the_claim_for_the_next_try(node: Node, kubelet: Kubelet) -> None:
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        node.driver.answers["un-uid-1"] = PrepareError("device is busy", reason="DeviceBusy")
        with pytest.raises(
            KubeletError, match="NodeUnprepareResources failed for ResourceClaim claim-1: device is busy"
        ):
            kubelet.unprepare_pod("pod-1")
        with pytest.raises(KubeletError, match="ResourceClaim claim-1 is being unprepared"):
            kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        del node.driver.answers["un-uid-1"]
        kubelet.unprepare_pod("pod-1")
    assert kubelet.prepared_claims() == []


@pytest.mark.bug("B55")
def test_a_replaced_claim_is_refused_as_long_as_the_old_one_is_held(node: Node, kubelet: Kubelet) -> None:
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        new = ClaimRef(namespace="default", name="claim-1", uid="uid-new")
        node.api.add_claim(ref(), claim_document(new, pods=("pod-2",)))
        with pytest.raises(KubeletError, match="old ResourceClaim with same name claim-1 and different UID uid-1"):
            kubelet.prepare_pod("pod-2", "default", ["claim-1"])
        kubelet.unprepare_pod("pod-1")
        kubelet.prepare_pod("pod-2", "default", ["claim-1"])
    assert node.driver.prepared == {"uid-new"}


@pytest.mark.parametrize(
    ("pod", "claim", "text"),
    [
        ("pod-1", "claim-9", "fetch ResourceClaim claim-9: .*not found"),
        ("pod-9", "claim-1", r"pod \(pod-9\) is not allowed to use ResourceClaim claim-1"),
        ("pod-1", "claim-3", "ResourceClaim claim-3: not allocated"),
    ],
)
def test_a_pod_that_may_not_use_the_claim_reaches_no_driver(
    node: Node, kubelet: Kubelet, pod: str, claim: str, text: str
) -> None:
    document = claim_document(ref(3))
    document["status"]["allocation"] = None
    node.api.add_claim(ref(3), document)
    with node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        with pytest.raises(KubeletError, match=text):
            kubelet.prepare_pod(pod, "default", [claim])
    assert node.driver.log == []


def test_without_the_driver_nothing_is_remembered(kubelet: Kubelet) -> None:
    with pytest.raises(KubeletError, match="is not registered"):
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
    kubelet.unprepare_pod("pod-1")


def test_a_call_that_takes_too_long_is_a_failure_that_names_what_still_runs(node: Node) -> None:
    node.api.add_claim(ref())
    gate = node.driver.hold("uid-1")
    with kubelet_of(node, call_timeout=4) as kubelet, node.plugin():
        kubelet.plugins.wait_registered(DRIVER)
        with pytest.raises(KubeletError, match="claim-1: prepare still runs and goes on"):
            kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        gate.set()
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])


class Careless(dra_v1_pb2_grpc.DRAPluginServicer):
    """A driver without the library, which breaks the kubelet's rules."""

    def __init__(self, answer: dict[str, str]) -> None:
        self.answer = answer

    def NodePrepareResources(self, request: object, context: object) -> dra_v1_pb2.NodePrepareResourcesResponse:
        entries = {uid: dra_v1_pb2.NodePrepareResourceResponse(error=text) for uid, text in self.answer.items()}
        return dra_v1_pb2.NodePrepareResourcesResponse(claims=entries)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({}, "NodePrepareResources skipped 1 ResourceClaims"),
        ({"uid-1": "", "uid-7": ""}, "returned result for unknown claim UID uid-7"),
    ],
)
def test_an_answer_that_breaks_the_rules_is_refused(node: Node, answer: dict[str, str], text: str) -> None:
    node.api.add_claim(ref())
    node.dra_socket.parent.mkdir(parents=True)
    server = grpc.server(ThreadPoolExecutor(1))
    dra_v1_pb2_grpc.add_DRAPluginServicer_to_server(Careless(answer), server)
    server.add_insecure_port(f"unix:{node.dra_socket}")
    server.start()
    kubelet = kubelet_of(node)
    info = registration_v1_pb2.PluginInfo(
        type="DRAPlugin", name=DRIVER, endpoint=str(node.dra_socket), supported_versions=["v1.DRAPlugin"]
    )
    kubelet.plugins._accept(info, node.registration_socket)
    with pytest.raises(KubeletError, match=text):
        kubelet.prepare_pod("pod-1", "default", ["claim-1"])
    kubelet.stop()
    server.stop(0).wait()


def test_slices_are_wiped_at_the_start_and_after_a_driver_is_gone(node: Node) -> None:
    everything, ours = f"spec.nodeName={NODE}", f"spec.nodeName={NODE},spec.driver={DRIVER}"
    with kubelet_of(node, wiping_delay=0.2) as kubelet:
        assert node.api.wait_deleted(everything)
        with node.plugin():
            kubelet.plugins.wait_registered(DRIVER)
            assert ours not in node.api.deleted
        assert node.api.wait_deleted(ours)


def test_a_driver_that_comes_back_in_time_keeps_its_slices(node: Node) -> None:
    ours = f"spec.nodeName={NODE},spec.driver={DRIVER}"
    with kubelet_of(node, wiping_delay=1.0) as kubelet:
        with node.plugin():
            kubelet.plugins.wait_registered(DRIVER)
        assert kubelet.plugins.wait_gone(DRIVER)
        with node.plugin():
            kubelet.plugins.wait_registered(DRIVER)
            assert not node.api.wait_deleted(ours, timeout=1.3)


def test_an_upgrade_side_by_side_is_never_without_a_plugin(node: Node, kubelet: Kubelet) -> None:
    with node.plugin(instance_uid="pod-new") as new:
        with node.plugin(instance_uid="pod-old") as old:
            assert old.registered.wait(10)
            assert new.registered.wait(10)
            kubelet.prepare_pod("pod-1", "default", ["claim-1"])
        kubelet.plugins.plugin(DRIVER)
        kubelet.unprepare_pod("pod-1")
    assert node.driver.log == [("prepare", "uid-1"), ("unprepare", "uid-1")]


class Foreign(Driver):
    """Prepares what is its own, and takes claims of others as nothing to do."""

    def prepare(self, claims: list[Claim]) -> dict[str, PrepareResult]:
        return {claim.ref.uid: [] for claim in claims}


@pytest.mark.bug("B52")
def test_every_driver_of_a_claim_is_called_and_their_devices_are_joined(node: Node, kubelet: Kubelet) -> None:
    document = claim_document(ref())
    other = {"request": "gpu", "driver": "gpu.example.com", "pool": "other", "device": "gpu-0"}
    document["status"]["allocation"]["devices"]["results"].append(other)
    node.api.add_claim(ref(), document)
    with node.plugin():
        second = Plugin(
            "gpu.example.com",
            NODE,
            Foreign(),
            client=node.api,  # type: ignore[arg-type]
            plugins_dir=node.plugins_dir,
            registry_dir=node.registry_dir,
        )
        with second:
            kubelet.plugins.wait_registered(DRIVER)
            kubelet.plugins.wait_registered("gpu.example.com")
            kubelet.prepare_pod("pod-1", "default", ["claim-1"])
            assert kubelet.container_devices("default", "claim-1") == [f"{DRIVER}/claim=uid-1"]
            kubelet.unprepare_pod("pod-1")
