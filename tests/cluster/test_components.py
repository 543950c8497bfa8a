"""The cluster itself, before anything of ours runs on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hack.cluster import access, lifecycle, processes
from hack.cluster.api import Api, path
from hack.cluster.layout import AGENT_NAMESPACE, NODE_NAME, Layout
from hack.cluster.processes import Process
from hack.cluster.scene import Container, Namespace

REPOSITORY = Path(__file__).parents[2]


def test_every_component_runs_in_namespaces_of_its_own(cluster: Layout) -> None:
    mine = Path("/proc/self/ns/net").readlink()
    inside = {Path(f"/proc/{lifecycle.component(cluster, name).pid}/ns/net").readlink() for name in ("etcd", "kubelet")}
    assert len(inside) == 1
    assert mine not in inside


def test_nothing_of_the_node_is_mounted_on_the_machine(cluster: Layout, namespace: Namespace) -> None:
    namespace.pod("web", containers=[Container("main", "exec sleep 2147483647", claims=())])
    namespace.running("web")  # its token is a tmpfs below the kubelet's folder, its root an overlay
    assert str(cluster.root) not in Path("/proc/self/mountinfo").read_text()


def test_a_pod_without_a_claim_runs_and_its_log_can_be_read(namespace: Namespace) -> None:
    namespace.pod("hello", containers=[Container("main", "echo hello from busybox", claims=())])
    namespace.succeeded("hello")
    assert namespace.log_lines("hello") == ["hello from busybox"]


def test_a_pod_talks_to_the_api_server_with_its_own_token(cluster: Layout, namespace: Namespace) -> None:
    kubectl = Path(cluster.load().binaries) / "kubectl"
    script = "/host/kubectl auth whoami -o jsonpath='{.status.userInfo.username}'; echo"
    namespace.pod(
        "caller",
        containers=[Container("main", script, claims=())],
        volumes=[({"hostPath": {"path": str(kubectl)}}, {"mountPath": "/host/kubectl", "readOnly": True})],
    )
    namespace.succeeded("caller")
    assert namespace.log_lines("caller") == [f"system:serviceaccount:{namespace.name}:default"]


def test_the_machine_s_files_stay_out_of_the_node(namespace: Namespace) -> None:
    namespace.pod("look", containers=[Container("main", "ls /machine", claims=())],
                  volumes=[({"hostPath": {"path": "/var/lib"}}, {"mountPath": "/machine"})])  # fmt: skip
    namespace.succeeded("look")
    assert "dpkg" in {path.name for path in Path("/var/lib").iterdir()}
    inside = namespace.log_lines("look")
    assert "kubelet" in inside
    assert "dpkg" not in inside


def test_the_plain_agent_s_token_names_its_node_and_carries_the_daemonset_s_rights(cluster: Layout, api: Api) -> None:
    agent = Api(cluster, "agent")
    review = agent.call("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                        {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})  # fmt: skip
    user = review["status"]["userInfo"]
    assert user["username"] == f"system:serviceaccount:{AGENT_NAMESPACE}:{access.AGENT_ACCOUNT}"
    assert user["extra"]["authentication.kubernetes.io/node-name"] == [NODE_NAME]
    assert agent.request("GET", path("nodes", None, NODE_NAME))[0] == 200
    for forbidden in (path("pods"), path("secrets", "kube-system"), path("nodes"), path("deviceclasses")):
        assert agent.request("GET", forbidden)[0] == 403, forbidden
    agent.close()


def test_up_leaves_a_running_cluster_alone(cluster: Layout) -> None:
    before = lifecycle.component(cluster, "kubelet").pid
    lifecycle.up(cluster, cluster.load().version, report=lambda _: None)
    assert lifecycle.component(cluster, "kubelet").pid == before


@pytest.fixture
def other(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Room for a second cluster beside the first."""
    layout = Layout(Path("/var/tmp/gpudra-second"))
    lifecycle.down(layout)
    return layout


def run(verb: str, layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hack.cluster", verb, *arguments],
        cwd=REPOSITORY,
        env=os.environ | {"GPUDRA_CLUSTER_DIR": str(layout.root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_end_of_its_owner_ends_a_cluster_whatever_ends_the_owner(cluster: Layout, other: Layout) -> None:
    owner = subprocess.Popen(["sleep", "2147483647"])
    started = run("up", other, "--owner", str(owner.pid), "--k8s", cluster.load().version)
    assert "is ready" in started.stdout, started.stderr
    assert "export KUBECONFIG=" in started.stdout
    guard, init = Process.load(other.pid_file("guard")), Process.load(other.pid_file("init"))
    kubelet = lifecycle.component(other, "kubelet")
    assert guard is not None
    assert init is not None
    link = other.load().link
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert processes.wait_gone(guard, 30), "the guard is still at work"
    assert not init.alive()
    assert not kubelet.alive()
    assert not other.root.exists()
    assert not Path(f"/sys/class/net/{link}").exists()
    assert lifecycle.is_running(cluster)


def test_down_is_right_when_nothing_runs(cluster: Layout, other: Layout) -> None:
    assert run("down", other).returncode == 0
    assert run("down", other).returncode == 0
    assert run("status", other).returncode == 3


def test_down_leaves_a_folder_of_somebody_else_alone(other: Layout) -> None:
    other.root.mkdir()
    (other.root / "precious").write_text("data")
    try:
        done = run("down", other)
        assert done.returncode == 1
        assert "left alone" in done.stderr
        assert (other.root / "precious").read_text() == "data"
    finally:
        (other.root / "precious").unlink()
        other.root.rmdir()


def test_a_pid_file_of_a_former_process_ends_nobody(other: Layout) -> None:
    stranger = subprocess.Popen(["sleep", "2147483647"])
    try:
        other.pids.mkdir(parents=True)
        (other.root / "gpudra-cluster").touch()
        Process("init", stranger.pid, 1, ()).save(other.pid_file("init"))
        assert run("down", other).returncode == 0
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
