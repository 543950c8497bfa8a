"""Two instances of a driver on one node: the new one beside the old, one call at a time, and nothing lost between."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubeletplugin.api import DriverResources, Pool, Slice
from kubeletplugin.instancelock import LOCK_FILE, InstanceBusyError, InstanceLock
from kubeletplugin.plugin import Plugin
from kubeletplugin.proto import dra_v1_pb2_grpc
from kubeletplugin.testing.apiserver import EmbeddedApiServer
from kubeletplugin.testing.handler import PREPARE, UNPREPARE, FaultyHandler
from kubeletplugin.testing.kubelet import Kubelet
from tests.unit.kubelet_side.fakes import DRIVER, NODE, Node, claim_document, prepare_request, ref, unprepare_request

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def aside() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def stub_of(node: Node, uid: str) -> tuple[grpc.Channel, dra_v1_pb2_grpc.DRAPluginStub]:
    channel = grpc.insecure_channel(f"unix:{node.plugins_dir / DRIVER / f'dra-{uid}.sock'}")
    return channel, dra_v1_pb2_grpc.DRAPluginStub(channel)


# One call at a time


def test_calls_of_two_instances_exclude_each_other(node: Node, aside: ThreadPoolExecutor) -> None:
    for number in (1, 2):
        node.api.add_claim(ref(number))
    old, new = FaultyHandler(), FaultyHandler()
    with (
        node.plugin(handler=old, instance_uid="old", exclusive=True),
        node.plugin(handler=new, instance_uid="new", exclusive=True),
    ):
        old_channel, to_old = stub_of(node, "old")
        new_channel, to_new = stub_of(node, "new")
        with old_channel, new_channel:
            with old.held(PREPARE):
                first = aside.submit(to_old.NodePrepareResources, prepare_request(ref(1)), timeout=20)
                assert old.wait_hanging()
                second = aside.submit(to_new.NodeUnprepareResources, unprepare_request(ref(2)), timeout=20)
                assert not new.wait_called(UNPREPARE, timeout=0.3), "the other instance is at work"
            assert second.result().claims["uid-2"].error == ""
            assert first.result().claims["uid-1"].error == ""
    assert (node.plugins_dir / DRIVER / LOCK_FILE).stat().st_mode & 0o777 == 0o600


def test_calls_about_different_claims_of_one_instance_exclude_each_other_too(
    node: Node, aside: ThreadPoolExecutor
) -> None:
    handler = FaultyHandler()
    with node.plugin(handler=handler, exclusive=True), node.stub() as dra:
        with handler.held(UNPREPARE):
            calls = [aside.submit(dra.NodeUnprepareResources, unprepare_request(ref(n)), timeout=20) for n in (1, 2)]
            assert handler.wait_hanging()
            assert not handler.wait_hanging(2, timeout=0.3)
        for call in calls:
            call.result()
        assert handler.count(UNPREPARE) == 2


def test_without_being_asked_for_claims_run_side_by_side(node: Node, aside: ThreadPoolExecutor) -> None:
    handler = FaultyHandler()
    with node.plugin(handler=handler), node.stub() as dra, handler.held(UNPREPARE):
        for number in (1, 2):
            aside.submit(dra.NodeUnprepareResources, unprepare_request(ref(number)), timeout=20)
        assert handler.wait_hanging(2)
        handler.heal()
    assert not (node.plugins_dir / DRIVER / LOCK_FILE).exists()


def test_a_call_that_waits_too_long_for_the_other_instance_says_so(node: Node) -> None:
    handler = FaultyHandler()
    plugin = node.plugin(handler=handler, exclusive=True, call_deadline=0.5)
    with plugin, node.stub() as dra:
        with InstanceLock(node.plugins_dir / DRIVER).hold(lambda: 5.0):
            error = dra.NodeUnprepareResources(unprepare_request(ref()), timeout=20).claims["uid-1"].error
            assert "unprepare still runs" in error or f"holds {node.plugins_dir / DRIVER / LOCK_FILE}" in error
        assert handler.calls == []
        assert dra.NodeUnprepareResources(unprepare_request(ref()), timeout=20).claims["uid-1"].error == ""


@pytest.mark.bug("B59")
def test_the_lock_of_a_killed_instance_is_free(root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from kubeletplugin.instancelock import InstanceLock\n"
        "with InstanceLock(Path(sys.argv[1])).hold(lambda: 5.0):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(root)], cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        lock = InstanceLock(root)
        with pytest.raises(InstanceBusyError), lock.hold(lambda: 0.0):
            pytest.fail("two hold the lock")
        holder.kill()
        with lock.hold(lambda: 10.0):
            pass


def test_closing_ends_the_wait_for_the_lock(root: Path, aside: ThreadPoolExecutor) -> None:
    lock = InstanceLock(root)

    def wait() -> None:
        with lock.hold(lambda: 60.0):
            pytest.fail("two hold the lock")

    with InstanceLock(root).hold(lambda: 5.0):
        waiting = aside.submit(wait)
        threading.Event().wait(0.1)
        lock.close()
        with pytest.raises(InstanceBusyError):
            waiting.result(5)


# The update


class Cluster:
    """An API server and a kubelet, and as many instances as a test wants."""

    def __init__(self, root: Path, server: EmbeddedApiServer) -> None:
        self.root, self.server = root, server
        self.client = server.client()
        self.client.create("/api/v1/nodes", {"metadata": {"name": NODE}})
        self.handler = FaultyHandler()
        self.kubelet = Kubelet(
            root / "plugins_registry", node_name=NODE, client=self.client, poll=0.02, wiping_delay=1.0
        )

    def instance(self, uid: str | None, driver: str = DRIVER) -> Plugin:
        return Plugin(
            driver,
            NODE,
            self.handler,
            client=self.client,
            plugins_dir=self.root / "plugins",
            registry_dir=self.root / "plugins_registry",
            instance_uid=uid,
        )

    def claim(self, name: str = "claim-1") -> None:
        path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
        request = {"name": "nic", "exactly": {"deviceClassName": "nic"}}
        created = self.client.create(path, {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}})
        status = claim_document(ref())["status"]
        status["reservedFor"] = [{"resource": "pods", "name": "pod", "uid": "pod-1"}]
        self.client.update(f"{path}/{name}/status", created | {"status": status})

    def publish(self, plugin: Plugin) -> None:
        plugin.publish(DriverResources({f"{NODE}/{DRIVER}": Pool((Slice(({"name": "eth1"},)),))}))
        wait_until(lambda: bool(self.slices()))

    def slices(self) -> list[dict[str, Any]]:
        return list(self.client.get(SLICES)["items"])

    def sockets(self) -> list[str]:
        return sorted(path.name for path in self.root.rglob("*") if path.is_socket() and not path.name.startswith("."))


@pytest.fixture
def cluster(root: Path) -> Iterator[Cluster]:
    with EmbeddedApiServer() as server:
        cluster = Cluster(root, server)
        with cluster.kubelet:
            yield cluster


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        threading.Event().wait(0.005)
    pytest.fail("the condition never came true")


@pytest.mark.parametrize("driver", [DRIVER, f"{'long-' * 11}name"], ids=["short", "long driver name"])
def test_a_rolling_update_leaves_slices_as_they_are_to_the_byte(cluster: Cluster, driver: str) -> None:
    old = cluster.instance("a" * 8 + "-old", driver)
    old.start()
    assert old.registered.wait(10)
    cluster.publish(old)
    before = cluster.slices()
    new = cluster.instance("b" * 8 + "-new", driver)
    new.start()
    cluster.publish(new)
    assert new.registered.wait(10)
    assert len(cluster.sockets()) == 4
    old.stop()
    assert len(cluster.sockets()) == 2
    assert cluster.kubelet.plugins.plugin(driver)
    threading.Event().wait(1.2)  # the kubelet's patience with a driver that is gone
    assert cluster.slices() == before
    new.stop()
    assert cluster.sockets() == []
    assert cluster.slices() == before, "an end deletes nothing; the kubelet does, later"


def test_what_the_old_one_prepared_the_new_one_undoes(cluster: Cluster) -> None:
    cluster.claim()
    old = cluster.instance("old")
    old.start()
    assert old.registered.wait(10)
    cluster.kubelet.prepare_pod("pod-1", "default", ["claim-1"])
    new = cluster.instance("new")
    new.start()
    assert new.registered.wait(10)
    old.stop()
    cluster.kubelet.unprepare_pod("pod-1")
    assert [call.kind for call in cluster.handler.calls] == [PREPARE, UNPREPARE]
    new.stop()


def test_a_new_one_that_dies_at_its_start_harms_nothing(cluster: Cluster) -> None:
    cluster.claim()
    old = cluster.instance("old")
    old.start()
    assert old.registered.wait(10)
    cluster.publish(old)
    before, sockets = cluster.slices(), cluster.sockets()
    program = (
        "import os, sys; from pathlib import Path; from kubeletplugin.plugin import Plugin\n"
        "from kubeletplugin.client import KubeClient; from kubeletplugin.testing.handler import FaultyHandler\n"
        "root = Path(sys.argv[1])\n"
        f"plugin = Plugin({DRIVER!r}, {NODE!r}, FaultyHandler(), client=KubeClient(sys.argv[2]),\n"
        "    plugins_dir=root / 'plugins', registry_dir=root / 'plugins_registry', instance_uid='dying')\n"
        "plugin.start()\n"
        "plugin.registered.wait(10)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    died = subprocess.run(
        [sys.executable, "-c", program, str(cluster.root), cluster.server.url],
        cwd=ROOT,
        env=dict(os.environ),
        check=False,
    )
    assert died.returncode == -9
    assert len(cluster.sockets()) == len(sockets) + 2, "nobody was there to take its sockets away"
    cluster.kubelet.prepare_pod("pod-1", "default", ["claim-1"])
    cluster.kubelet.unprepare_pod("pod-1")
    assert [call.kind for call in cluster.handler.calls] == [PREPARE, UNPREPARE], "the old one still has the calls"
    assert cluster.slices() == before
    third = cluster.instance("third")
    third.start()
    assert third.registered.wait(10)
    old.stop()
    third.stop()


def test_a_new_one_that_cannot_bind_leaves_the_old_one_alone(cluster: Cluster) -> None:
    old = cluster.instance("old")
    old.start()
    assert old.registered.wait(10)
    (cluster.root / "plugins" / DRIVER / "dra-new.sock").write_text("in the way")
    from kubeletplugin.sockets import SocketError

    with pytest.raises(SocketError):
        cluster.instance("new").start()
    assert old.liveness() is None
    assert cluster.kubelet.plugins.plugin(DRIVER).endpoint.name == "dra-old.sock"
    old.stop()


@pytest.mark.bug("B119")
def test_a_late_wipe_of_the_kubelet_takes_what_is_fresh_and_it_is_back_at_once(cluster: Cluster) -> None:
    first = cluster.instance(None)
    first.start()
    assert first.registered.wait(10)
    cluster.publish(first)
    first.stop()
    second = cluster.instance(None)
    second.start()
    assert second.registered.wait(10)
    cluster.publish(second)
    (before,) = cluster.slices()
    # What the timer of the lost connection does when it comes after the new instance has published.
    cluster.client.delete(SLICES, query={"fieldSelector": f"spec.nodeName={NODE},spec.driver={DRIVER}"})
    wait_until(lambda: [item["metadata"]["uid"] for item in cluster.slices()] not in ([], [before["metadata"]["uid"]]))
    assert [item["spec"] for item in cluster.slices()] == [before["spec"]]
    second.stop()


def test_instances_one_after_the_other_keep_the_slices_if_they_are_quick(cluster: Cluster) -> None:
    first = cluster.instance(None)
    first.start()
    assert first.registered.wait(10)
    cluster.publish(first)
    before = cluster.slices()
    for _ in range(3):
        first.stop()
        first = cluster.instance(None)
        first.start()
        cluster.publish(first)
        assert first.registered.wait(10)
    assert cluster.slices() == before
    first.stop()
    wait_until(lambda: cluster.slices() == [])
