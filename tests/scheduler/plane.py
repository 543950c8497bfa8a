"""A control plane for tests of decisions: objects are made in numbers, and the scheduler's verdict on pods is read.

The scheduler learns of each kind of object by a watch of its own. ``Plane.settle`` waits until all of them have come as
far as the API server is: a pod of its own can run only with one object of each kind that was made last.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from hack.cluster.api import Api, path
from hack.cluster.layout import Layout
from tests.scheduler.isolation import ADMIN_LABEL, NODE_LABEL, Document, pod
from tests.support.agents import until

One = TypeVar("One")
Other = TypeVar("Other")
BATCH_LABEL = "gpudra.test/batch"
CLUSTER_WIDE = ("resourceslices", "deviceclasses", "devicetaintrules", "nodes")
WRITERS = 6
ALLOCATABLE = {"cpu": "1000", "memory": "1000Gi", "pods": "10000"}
REFUSED = ("Unschedulable", "SchedulerError")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the scheduler made of a pod: ``claims`` as they are then, or ``reason`` and ``message`` of its refusal."""

    claims: tuple[Document, ...] = ()
    reason: str = ""
    message: str = ""
    node: str = ""


class Plane:
    """One API server with its scheduler, and one namespace for all pods."""

    def __init__(self, layout: Layout, namespace: str) -> None:
        self.layout = layout
        self.release = layout.load().minor_version[1]
        self.namespace = namespace
        self._local = threading.local()
        self._apis: list[Api] = []
        self._writers = ThreadPoolExecutor(WRITERS)
        self._canaries = itertools.count()
        labels = {ADMIN_LABEL: "true"}
        self.api.create("namespaces", None, {"metadata": {"name": namespace, "labels": labels}})
        self.api.wait("serviceaccounts", namespace, "default", lambda found: found is not None, "service account")

    @property
    def api(self) -> Api:
        """This thread's connection."""
        if not hasattr(self._local, "api"):
            self._local.api = Api(self.layout)
            self._apis.append(self._local.api)
        return self._local.api  # type: ignore[no-any-return] # thread locals have no types

    def close(self) -> None:
        """Close the connections; the cluster ends with everything that is in it."""
        self._writers.shutdown()
        for api in self._apis:
            api.close()

    def map(self, work: Callable[[One], Other], over: Iterable[One]) -> list[Other]:
        """Do it for each, several at a time."""
        return list(self._writers.map(work, over))

    def make(self, resource: str, document: Document, batch: str) -> Document:
        """Create one object; a status that it has is written too, a node is made ready.

        Raises:
            ApiError: it was refused.
        """
        namespace = None if resource in CLUSTER_WIDE else self.namespace
        labels = {**document["metadata"].get("labels", {}), BATCH_LABEL: batch}
        wanted = {**document, "metadata": {**document["metadata"], "labels": labels}}
        if resource == "nodes":
            wanted["status"] = {}
        made = self.api.create(resource, namespace, wanted)
        if resource == "nodes":
            return self._ready(made, document.get("status", {}))
        if "status" not in document:
            return made
        where = path(resource, namespace, made["metadata"]["name"], "status")
        return self.api.call("PUT", where, {**made, "status": document["status"]})

    def _ready(self, node: Document, status: Document) -> Document:
        """Admission gives every new node the taint of one that is not ready, and no controller here takes it away."""
        where = path("nodes", None, node["metadata"]["name"])
        spec = {key: value for key, value in node["spec"].items() if key != "taints"}
        node = self.api.call("PUT", where, {**node, "spec": spec})
        condition = {"type": "Ready", "status": "True", "reason": "Made"}
        node["status"] = {**status, "conditions": [condition], "allocatable": ALLOCATABLE}
        return self.api.call("PUT", f"{where}/status", node)

    def settle(self, batch: str) -> None:
        """Return when the scheduler has seen everything that was made before."""
        until(
            lambda: self._canary(f"{self.namespace}-{next(self._canaries)}", batch), "the scheduler to see all objects"
        )

    def _canary(self, name: str, batch: str) -> bool:
        """Whether the scheduler knew the newest object of each kind when it gave this pod its device."""
        driver = f"{name}.example.com"
        pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
        devices = [{"name": "a"}, {"name": "b"}]
        where = {"driver": driver, "nodeName": name, "pool": pool, "devices": devices}
        rule = {"deviceSelector": {"driver": driver, "device": "a"}, "taint": {"key": "x", "effect": "NoSchedule"}}
        selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
        request = {"name": "r", "exactly": {"deviceClassName": name}}
        objects: list[tuple[str, Document]] = [
            ("nodes", {"metadata": {"name": name, "labels": {NODE_LABEL: name}}}),
            ("deviceclasses", {"metadata": {"name": name}, "spec": {"selectors": [selector]}}),
            ("resourceslices", {"metadata": {"name": name}, "spec": where}),
            ("resourceclaims", {"metadata": {"name": name}, "spec": {"devices": {"requests": [request]}}}),
        ]
        if self.release >= 37:
            objects.insert(0, ("devicetaintrules", {"metadata": {"name": name}, "spec": rule}))
        for resource, document in objects:
            self.make(resource, document, batch)
        self.make("pods", pod(name, [name], {NODE_LABEL: name}), batch)
        verdict = self.verdicts({name: [name]}, batch)[name]
        given = [each["device"] for claim in verdict.claims for each in results_of(claim)]
        return given == (["b"] if self.release >= 37 else ["a"])

    def verdicts(self, pods: dict[str, Sequence[str]], batch: str) -> dict[str, Verdict]:
        """What the scheduler made of each of these pods, by name; the values are the names of their claims.

        A pod is decided when it is refused or when its claims are allocated: it may still wait for its devices.
        """
        found: dict[str, Verdict] = {}

        def all_of(resource: str) -> dict[str, Document]:
            items = self.api.items(resource, self.namespace, labelSelector=f"{BATCH_LABEL}={batch}")
            return {each["metadata"]["name"]: each for each in items}

        def all_decided() -> bool:
            seen, claims = all_of("pods"), all_of("resourceclaims")
            for name in pods.keys() - found.keys():
                if (verdict := _verdict(seen[name], [claims[claim] for claim in pods[name]])) is not None:
                    found[name] = verdict
            return len(found) == len(pods)

        until(all_decided, f"verdicts on {len(pods)} pods", every=0.1)
        return found

    def remove(self, name: str) -> None:
        """Delete a pod and its claim of the same name; the claim controller frees its devices when the pod is gone."""
        self.api.call("DELETE", path("pods", self.namespace, name), gracePeriodSeconds="0")
        self.api.delete("resourceclaims", self.namespace, name)

    def clear(self, batch: str) -> None:
        """Delete everything of a batch, pods first, and wait until its claims hold nothing."""
        chosen = {"labelSelector": f"{BATCH_LABEL}={batch}"}
        self.api.call("DELETE", path("pods", self.namespace), gracePeriodSeconds="0", **chosen)
        self.api.call("DELETE", path("resourceclaims", self.namespace), **chosen)
        for resource in CLUSTER_WIDE:
            if resource != "devicetaintrules" or self.release >= 37:
                self.api.call("DELETE", path(resource), **chosen)
        until(lambda: not self.api.items("resourceclaims", self.namespace, **chosen), "claims to be gone", every=0.1)


def results_of(claim: Document) -> list[Document]:
    """The devices that a claim has."""
    found: list[Document] = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
    return found


def _verdict(found: Document, claims: list[Document]) -> Verdict | None:
    if all("allocation" in claim.get("status", {}) for claim in claims):
        return Verdict(tuple(claims), node=found["spec"].get("nodeName", ""))
    for condition in found["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition.get("reason") in REFUSED:
            return Verdict((), condition["reason"], condition.get("message", ""))
    return None


def node_of(claim: Document) -> Any:
    """The one node that a claim's devices are on; None where it is for more than one."""
    terms = claim["status"]["allocation"].get("nodeSelector", {}).get("nodeSelectorTerms", [])
    for term in terms:
        for field in term.get("matchFields", ()):
            if field["key"] == "metadata.name" and field["operator"] == "In":
                return field["values"][0]
    return None
