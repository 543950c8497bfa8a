"""``gpudra lint`` and ``gpudra shape`` ask a real API server; the agent keeps its node's shape there, if it may."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hack.cluster import access
from hack.cluster.agent import Agent
from hack.cluster.api import Api
from hack.cluster.layout import AGENT_NAMESPACE, NODE_NAME, Layout
from hack.cluster.scene import Namespace

JSON = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
READER = "looker"
SHAPES = {"labelSelector": "app.kubernetes.io/managed-by=gpudra"}
SELECTS_ONE = "device.attributes['gpu.nvidia.com'].uuid == 'GPU-00000000-0000-0000-0000-000000000000'"


def gpudra(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """A ``gpudra`` command, ended."""
    command = [str(Path(sys.executable).with_name("gpudra")), *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)


def printed(*arguments: str, stdin: str | None = None) -> str:
    """What a command prints that ends well."""
    done = gpudra(*arguments, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def kubeconfig(cluster: Layout) -> Iterator[str]:
    """Of somebody who has the role for readers and no other right."""
    access.kubectl(cluster, "apply", "--server-side", "-f", str(DEPLOY / "reader.yaml"))
    access.kubectl(cluster, "create", "serviceaccount", READER, "-n", "default")
    access.kubectl(
        cluster,
        "create",
        "clusterrolebinding",
        READER,
        "--clusterrole=gpudra-reader",
        f"--serviceaccount=default:{READER}",
    )
    token = access.kubectl(cluster, "create", "token", READER, "-n", "default").strip()
    access.write_kubeconfig(cluster, cluster.load(), READER, token)
    yield str(cluster.kubeconfig(READER))
    access.kubectl(cluster, "delete", f"clusterrolebinding/{READER}")
    access.kubectl(cluster, "delete", f"serviceaccount/{READER}", "-n", "default")


def linted(kubeconfig: str, *more: str) -> tuple[int, JSON]:
    """Exit code and report about the cluster as it is."""
    done = gpudra("lint", "--cluster", "--kubeconfig", kubeconfig, "-o", "json", *more)
    return done.returncode, json.loads(done.stdout)


def worse_than_notes(report: JSON) -> set[str]:
    return {finding["id"] for finding in report["findings"] if finding["severity"] != "note"}


@pytest.mark.usefixtures("agent")
def test_a_cluster_with_this_driver_is_clean_and_is_read_with_the_readers_role(kubeconfig: str) -> None:
    code, report = linted(kubeconfig)

    assert report["problems"] == []
    assert worse_than_notes(report) == set()
    assert code == 0
    assert report["documents"] >= 4  # the node, its slices, the classes


@pytest.mark.usefixtures("agent")
def test_what_is_wrong_in_a_namespace_is_found_where_it_lies(namespace: Namespace, kubeconfig: str) -> None:
    namespace.claim("one-of-a-kind", cel=[SELECTS_ONE])
    namespace.claim("no-such-class", device_class="gpu.nvidia.con")

    code, report = linted(kubeconfig)

    own = {
        finding["id"]: finding
        for finding in report["findings"]
        if finding["object"]["name"].startswith(f"{namespace.name}/")
    }
    assert code == 1
    assert {"A09", "A30"} <= own.keys()
    assert own["A09"]["object"] == {"kind": "ResourceClaim", "name": f"{namespace.name}/one-of-a-kind"}
    assert own["A09"]["path"] == "spec.devices.requests[0].exactly.selectors[0].cel.expression"
    assert linted(kubeconfig, "--select", "A09", "--fail-on", "error")[0] == 0


@pytest.mark.usefixtures("agent")
def test_somebody_without_the_role_is_told_what_could_not_be_listed(cluster: Layout) -> None:
    token = access.kubectl(cluster, "create", "token", "default", "-n", "default").strip()
    access.write_kubeconfig(cluster, cluster.load(), "nobody", token)

    code, report = linted(str(cluster.kubeconfig("nobody")))

    assert code == 2
    missing = {problem["document"] for problem in report["problems"]}
    assert {"resourceslices", "deviceclasses", "resourceclaims", "pods", "nodes"} <= missing
    assert all("status 403" in problem["message"] for problem in report["problems"])


@pytest.mark.usefixtures("agent")
def test_the_shape_of_a_node_in_the_cluster_is_that_of_its_machine(kubeconfig: str, tmp_path: Path, api: Api) -> None:
    text = printed("shape", "export", "--cluster", "--kubeconfig", kubeconfig, "--of", NODE_NAME)
    shape = json.loads(text)
    expected = printed("shape", "export", "--mock-profile", "dgx-h100", "--format", "hash").strip()
    assert shape["identity"]["hash"] == expected

    # What is made of it is accepted by the server, and has the same shape there.
    made = json.loads(printed("shape", "instantiate", "-", "--as", "imaginary", stdin=text))
    for body in made["items"]:
        api.create("resourceslices", None, body)
    try:
        file = tmp_path / "shape.json"
        file.write_text(text)
        again = printed("shape", "export", "--cluster", "--kubeconfig", kubeconfig, "--of", "imaginary")
        assert {**json.loads(again), "dropped": []} == {**shape, "dropped": []}
        same = gpudra("shape", "diff", "--cluster", "--kubeconfig", kubeconfig, "--of", NODE_NAME, "--of", "imaginary")
        assert (same.returncode, expected in same.stdout) == (0, True), same.stdout + same.stderr
    finally:
        for body in made["items"]:
            api.delete("resourceslices", None, body["metadata"]["name"])


@pytest.fixture
def shapes_gone(api: Api) -> Iterator[None]:
    """No shape is kept before and after."""

    def clear() -> None:
        for body in api.items("configmaps", AGENT_NAMESPACE, **SHAPES):
            api.delete("configmaps", AGENT_NAMESPACE, body["metadata"]["name"])

    clear()
    yield
    clear()


@pytest.fixture
def keeping(agent: Agent, shapes_gone: None) -> Iterator[Agent]:
    """The agent, not running; one that was told otherwise does not outlive the test."""
    agent.stop()
    yield agent
    agent.stop()


def asked_for(layout: Layout, offset: int) -> list[int]:
    """Status codes of the agent's requests about ConfigMaps since the audit log had this size."""
    with layout.audit_log.open("rb") as log:
        log.seek(offset)
        events = [json.loads(line) for line in log.read().splitlines()]
    about = [event for event in events if event.get("objectRef", {}).get("resource") == "configmaps"]
    return [event["responseStatus"]["code"] for event in about]


def test_the_agent_keeps_its_shape_where_the_manifest_gives_the_right(
    keeping: Agent, cluster: Layout, api: Api, kubeconfig: str
) -> None:
    manifest = str(DEPLOY / "shape-publishing.yaml")
    access.kubectl(cluster, "apply", "--server-side", "-f", manifest)
    try:
        keeping.start(f"--shape-namespace={AGENT_NAMESPACE}")
        keeping.wait_message("the node's shape is written")
    finally:
        access.kubectl(cluster, "delete", "-f", manifest)

    (kept,) = api.items("configmaps", AGENT_NAMESPACE, **SHAPES)
    shape = json.loads(kept["data"]["shape.json"])
    exported = json.loads(printed("shape", "export", "--cluster", "--kubeconfig", kubeconfig, "--of", NODE_NAME))
    assert shape["identity"]["hash"] == exported["identity"]["hash"]
    assert shape["pools"] == exported["pools"]


def test_an_agent_without_the_right_says_so_once_and_serves_claims(
    keeping: Agent, cluster: Layout, api: Api, namespace: Namespace
) -> None:
    log, audit = keeping.log.stat().st_size, cluster.audit_log.stat().st_size

    keeping.start(f"--shape-namespace={AGENT_NAMESPACE}")

    told = keeping.wait_message("the node's shape cannot be written to ConfigMap", log)
    assert "deploy/shape-publishing.yaml gives the right" in told["message"]
    namespace.claim("gpu")
    namespace.pod("web", claim="gpu")
    namespace.running("web")
    namespace.delete_pod("web")
    assert asked_for(cluster, audit) == [403]
    again = [entry for entry in keeping.log_entries(log) if "shape" in entry["message"]]
    assert again == [told]
    assert api.items("configmaps", AGENT_NAMESPACE, **SHAPES) == []
