"""The benchmark's own parts against a driver of a few lines: what it counts is an answer, and what is none stops it."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from kubeletplugin import api
from kubeletplugin.client import KubeClient
from kubeletplugin.plugin import Plugin
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from native.mock import MockNode
from tests.bench import cluster, floors
from tests.bench.candidate import NODE_NAME, Candidate, CandidateError
from tests.bench.kubelet import CallError, Kubelet, endpoint

DRIVER = "bench.example.com"


class Driver:
    """Prepares whatever it is asked for; ``answers`` takes the place of its answers."""

    def __init__(self) -> None:
        self.answers: Mapping[str, api.PrepareResult] | None = None
        self.refused: Mapping[str, api.PrepareError | None] = {}
        self.calls: list[int] = []

    def prepare(self, claims: Sequence[api.Claim]) -> Mapping[str, api.PrepareResult]:
        self.calls.append(len(claims))
        if self.answers is not None:
            return self.answers
        device = api.PreparedDevice(("gpu",), "pool", "dev-0", ("bench.example.com/claim=x",))
        return {claim.ref.uid: [device] for claim in claims}

    def unprepare(self, claims: Sequence[api.ClaimRef]) -> Mapping[str, api.PrepareError | None]:
        return {ref.uid: self.refused.get(ref.uid) for ref in claims}


@pytest.fixture
def client() -> Iterator[KubeClient]:
    with EmbeddedApiServer() as server, server.client() as client:
        cluster.create_node(client, NODE_NAME)
        yield client


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def calls(client: KubeClient, driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubelet]:
    folder = tmp_path_factory.mktemp("b")
    plugin = Plugin(
        DRIVER, NODE_NAME, driver, client=client, plugins_dir=folder / "p", registry_dir=folder / "registry"
    )
    with plugin:
        (registration,) = (folder / "registry").iterdir()
        socket = endpoint(registration)
        assert plugin.registered.wait(10), "the stand-in for the kubelet gives its word"
        with Kubelet(socket) as kubelet:
            yield kubelet


def claims(client: KubeClient, count: int) -> list[api.ClaimRef]:
    return cluster.create_claims(client, DRIVER, [("pool", "dev-0"), ("pool", "dev-1")], count)


def test_claims_are_allocated_in_turn_and_reserved(client: KubeClient) -> None:
    refs = claims(client, 3)
    stored = [client.get(f"{cluster.CLAIMS}/{ref.name}") for ref in refs]
    results = [claim["status"]["allocation"]["devices"]["results"][0] for claim in stored]
    assert [result["device"] for result in results] == ["dev-0", "dev-1", "dev-0"]
    assert all(claim["status"]["reservedFor"] for claim in stored)
    cluster.delete_claims(client, refs)
    assert client.get(cluster.CLAIMS)["items"] == []


def test_every_way_of_calling_prepares_all_claims(client: KubeClient, calls: Kubelet, driver: Driver) -> None:
    refs = claims(client, 8)
    for prepare, unprepare in ((calls.prepare, calls.unprepare), (calls.prepare_each, calls.unprepare_each)):
        assert prepare(refs) > 0
        assert unprepare(refs) > 0
    assert driver.calls == [8, *[1] * 8]


def test_an_error_in_an_answer_stops_the_benchmark(client: KubeClient, calls: Kubelet, driver: Driver) -> None:
    (ref,) = claims(client, 1)
    driver.answers = {ref.uid: api.PrepareError("no such thing", reason="Test")}
    with pytest.raises(CallError, match="no such thing"):
        calls.prepare([ref])
    with pytest.raises(CallError, match="no such thing"):
        calls.prepare_each([ref])
    driver.refused = {ref.uid: api.PrepareError("it stays", reason="Test")}
    with pytest.raises(CallError, match="it stays"):
        calls.unprepare([ref])


def test_an_answer_without_a_device_stops_the_benchmark(client: KubeClient, calls: Kubelet, driver: Driver) -> None:
    (ref,) = claims(client, 1)
    driver.answers = {ref.uid: []}
    with pytest.raises(CallError, match="no device with a CDI name"):
        calls.prepare([ref])


def test_floors_are_measured_in_milliseconds(client: KubeClient, calls: Kubelet, tmp_path: Path) -> None:
    found = {
        **floors.of_calls(calls, 3),
        **floors.of_reads(client, claims(client, 1)[0], 3),
        **floors.of_writes(tmp_path, 3),
        **floors.of_interpreter(1),
        **floors.of_idleness(0.1),
    }
    assert all(value > 0 for value in found.values())
    assert list(tmp_path.iterdir()) == []


def test_the_first_slice_of_the_driver_is_seen_and_no_other(client: KubeClient) -> None:
    def publish(driver: str) -> None:
        pool = {"name": driver, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": NODE_NAME, "pool": pool, "devices": [{"name": "dev-0"}]}
        document = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": driver}}
        client.create(cluster.SLICES, {**document, "spec": spec})

    publish("other.example.com")
    with cluster.FirstSlice(client, DRIVER) as first:
        with pytest.raises(TimeoutError):
            first.wait(0.05)
        publish(DRIVER)
        assert first.wait(10) > 0
    assert cluster.devices(client, DRIVER, 1) == [(DRIVER, "dev-0")]
    with pytest.raises(LookupError, match="offers 1 devices, 2 are needed"):
        cluster.devices(client, DRIVER, 2)
    cluster.delete_slices(client, DRIVER)
    assert [item["spec"]["driver"] for item in client.get(cluster.SLICES)["items"]] == ["other.example.com"]


def candidate(folder: Path, command: str) -> Candidate:
    node = MockNode.create(folder / "node", "t4")
    made = Candidate("it", command, DRIVER, folder, folder / "cdi", folder / "kubeconfig", node)
    made.clean()
    return made


def python(program: str) -> str:
    return shlex.join([sys.executable, "-c", program])


def test_a_driver_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    dying = candidate(tmp_path, python("raise SystemExit('I had enough')"))
    with (
        dying.started() as running,
        pytest.raises(CandidateError, match=r"ended with 1 before it had registered:\nI had"),
    ):
        running.wait_registration()


def test_folders_are_filled_in_and_the_first_socket_counts(tmp_path: Path) -> None:
    program = (
        "import socket, sys, signal; socket.socket(socket.AF_UNIX).bind(sys.argv[1] + '/x-reg.sock'); signal.pause()"
    )
    bound = candidate(tmp_path, f"{python(program)} {{registry}}")
    with bound.started() as running:
        assert running.wait_registration() == bound.registry / "x-reg.sock"
    assert running.process.returncode == -signal.SIGTERM
