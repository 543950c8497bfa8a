"""Nodes that are only objects: a heart that beats for them, and slices as an agent on them would publish.

The autoscalers' kwok providers make Node objects and nothing else. What a kubelet and an agent would do for such a node
is done here, so that the real scheduler places pods on it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from hack.cluster.api import Api, ApiError
from hack.cluster.layout import Layout

JSON: TypeAlias = dict[str, Any]

FAKE: Final = "kwok.x-k8s.io/node"
"""Annotation with the value ``fake`` by which both providers mark their nodes."""
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
HEARTBEAT_SECONDS: Final = 2.0
LEASE_SECONDS: Final = 40
AMOUNTS: Final = {"cpu": "64", "memory": "512Gi", "pods": "110"}
READY_FOR: Final = timedelta(minutes=10)
"""Cluster Autoscaler takes no template from a node that became ready within the last minute."""
_UNREADY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_NOT_FOUND, _CONFLICT = 404, 409


def gpudra(*arguments: str, stdin: str | None = None) -> str:
    """What a ``gpudra`` command prints; its exit status must be 0."""
    command = [sys.executable, "-c", "import sys; from driver.cli.main import main; sys.exit(main())", *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gpudra {' '.join(arguments)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def node_document(name: str, labels: dict[str, str]) -> JSON:
    """A fake node that has been Ready for ten minutes."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, **labels},
            "annotations": {FAKE: "fake"},
        },
        "spec": {"providerID": f"kwok:{name}"},
        "status": {"allocatable": AMOUNTS, "capacity": AMOUNTS, "conditions": [ready(READY_FOR)]},
    }


def ready(since: timedelta = timedelta()) -> JSON:
    """The condition Ready, true for this long."""
    moment = (datetime.now(UTC) - since).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": "Ready", "status": "True", "reason": "Fake", "lastTransitionTime": moment}


class FakeNodes:
    """The fake nodes of a cluster."""

    def __init__(self, api: Api) -> None:
        self.api = api

    def add(self, name: str, labels: dict[str, str]) -> None:
        """One more, Ready; the API server may have let the condition go when the node was created."""
        document = node_document(name, labels)
        self.api.create("nodes", None, document)
        self.api.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": document["status"]})
        self._make_ready(self.api.get("nodes", None, name))

    def all(self) -> list[JSON]:
        """Every fake node."""
        found = self.api.items("nodes")
        return [node for node in found if (node["metadata"].get("annotations") or {}).get(FAKE) == "fake"]

    def names(self, **labels: str) -> list[str]:
        """Those with these labels (``_`` in a key stands for ``-``), the oldest first."""
        wanted = {key.replace("_", "-"): value for key, value in labels.items()}
        found = [node for node in self.all() if wanted.items() <= node["metadata"].get("labels", {}).items()]
        found.sort(key=lambda node: (node["metadata"]["creationTimestamp"], node["metadata"]["name"]))
        return [node["metadata"]["name"] for node in found]

    def publish(self, node: str, shape: str) -> list[JSON]:
        """Slices of a shape (JSON) for a node, as its agent would publish them; what was there before goes."""
        self.withdraw(node)
        uid = self.api.get("nodes", None, node)["metadata"]["uid"]
        made = gpudra("shape", "instantiate", "-", "--as", node, "--node-uid", uid, stdin=shape)
        return [self.api.create("resourceslices", None, body) for body in json.loads(made)["items"]]

    def withdraw(self, node: str) -> None:
        """No slices of this node."""
        for body in self.slices(node):
            self.api.delete("resourceslices", None, body["metadata"]["name"])

    def slices(self, node: str) -> list[JSON]:
        """What a node publishes, as complete documents."""
        found = self.api.items("resourceslices", fieldSelector=f"spec.nodeName={node}")
        return [{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **body} for body in found]

    def replace(self, body: JSON) -> None:
        """Write a slice anew."""
        self.api.call("PUT", f"/apis/resource.k8s.io/v1/resourceslices/{body['metadata']['name']}", body)

    def remove_all(self) -> None:
        """No fake nodes, and none of their slices."""
        for node in self.all():
            name = node["metadata"]["name"]
            self.withdraw(name)
            if node["metadata"].get("finalizers"):  # Karpenter's: nobody drains the node any more
                self.api.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"finalizers": None}})
            self.api.delete("nodes", None, name)

    def beat(self) -> None:
        """Renew the leases of all, make those Ready that say nothing of it, and take the taints of the unready away.

        The API server gives these to every new node; where the node lifecycle controller runs, it takes them too.
        """
        for node in self.all():
            self._renew(node["metadata"]["name"])
            self._make_ready(node)

    def _make_ready(self, node: JSON) -> None:
        where = f"/api/v1/nodes/{node['metadata']['name']}"
        conditions = {entry["type"]: entry["status"] for entry in node["status"].get("conditions") or ()}
        if conditions.get("Ready") != "True":
            status = {"conditions": [ready()], "allocatable": node["status"].get("allocatable") or AMOUNTS}
            self._asked("PATCH", f"{where}/status", {"status": status})
        taints = node["spec"].get("taints") or []
        kept = [taint for taint in taints if taint["key"] not in _UNREADY]
        if kept != taints:
            self._asked("PATCH", where, {"spec": {"taints": kept or None}})

    def _renew(self, name: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": now}
        lease = {"metadata": {"name": name}, "spec": spec}
        if self._asked("PATCH", f"{LEASES}/{name}", lease) == _NOT_FOUND:
            self._asked("POST", LEASES, lease)

    def _asked(self, method: str, where: str, body: JSON) -> int:
        """The status; a node that has gone and a write by somebody else in between are no errors."""
        status, document = self.api.request(method, where, body)
        if status >= 400 and status not in (_NOT_FOUND, _CONFLICT):
            raise ApiError(status, document)
        return status


@contextlib.contextmanager
def beating(layout: Layout) -> Iterator[None]:
    """A heart that beats for all fake nodes meanwhile.

    Raises:
        ApiError: the API server refused a heartbeat.
    """
    api = Api(layout)
    nodes = FakeNodes(api)
    stop = threading.Event()
    failed: list[Exception] = []

    def keep_alive() -> None:
        try:
            while not stop.wait(HEARTBEAT_SECONDS):
                nodes.beat()
        except Exception as error:  # noqa: BLE001 -- raised below, in the thread that asked for the heart
            failed.append(error)

    thread = threading.Thread(target=keep_alive, name="heart of the fake nodes", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        api.close()
    if failed:
        raise failed[0]
