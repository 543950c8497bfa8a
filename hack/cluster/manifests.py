"""Manifests that were written for other images: applied to a test cluster as they are but for the image.

(And for how long a container is waited for that does not hear SIGTERM.)
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from .api import JSON, Api, path
from .images import TEST_IMAGE
from .scene import Namespace

_RESOURCES = {
    "Deployment": "deployments",
    "Pod": "pods",
    "ResourceClaim": "resourceclaims",
    "ResourceClaimTemplate": "resourceclaimtemplates",
}


def documents(*files: Path) -> list[JSON]:
    """What the files hold, in their order."""
    return [document for file in files for document in yaml.safe_load_all(file.read_text()) if document]


def on_test_image(document: JSON) -> JSON:
    """A Pod, or what makes Pods, with the cluster's image; anything else as it is."""
    changed = copy.deepcopy(document)
    spec = changed.get("spec", {})
    pod = spec["template"]["spec"] if document["kind"] == "Deployment" else spec
    for container in pod.get("containers", ()):
        container |= {"image": TEST_IMAGE, "imagePullPolicy": "Never"}
        pod["terminationGracePeriodSeconds"] = 1
    return changed


class Demo(Namespace):
    """What a manifest made."""

    def create_all(self, made: list[JSON]) -> None:
        """Create documents; the namespace exists."""
        for document in made:
            document["metadata"].pop("namespace", None)
            self.api.create(_RESOURCES[document["kind"]], self.name, on_test_image(document))

    def running_pods(self, count: int, timeout: float = 60) -> list[str]:
        """Wait until exactly so many pods run; their names."""

        def run(pods: dict[str, JSON]) -> bool:
            phases = [pod["status"].get("phase") for pod in pods.values()]
            return phases == ["Running"] * count

        found = self.api.wait_all("pods", self.name, run, f"{count} running pods in {self.name}", timeout)
        for name in found:
            self.running(name)
        return sorted(found)

    def requests(self, claim: str) -> dict[str, list[str]]:
        """Request -> names of the devices that the scheduler gave to it."""
        found: dict[str, list[str]] = {}
        for result in self.api.get("resourceclaims", self.name, claim)["status"]["allocation"]["devices"]["results"]:
            found.setdefault(result["request"], []).append(result["device"])
        return found

    def remove(self) -> None:
        """Delete Deployments first: they would make their pods again."""
        for item in self.api.items("deployments", self.name):
            name = item["metadata"]["name"]
            self.api.request("DELETE", path("deployments", self.name, name), {"propagationPolicy": "Foreground"})
        self.api.wait_all("deployments", self.name, lambda left: not left, f"Deployments of {self.name} gone", 90)
        super().remove()


@contextmanager
def applied(api: Api, *files: Path) -> Iterator[Demo]:
    """What the files hold, in the namespace that they name; gone afterwards, and its devices free."""
    found = documents(*files)
    (name,) = [document["metadata"]["name"] for document in found if document["kind"] == "Namespace"]
    api.wait("namespaces", None, name, lambda left: left is None, f"the namespace {name} of an earlier run gone")
    demo = Demo(api, name)
    demo.create()
    try:
        demo.create_all([document for document in found if document["kind"] != "Namespace"])
        yield demo
    finally:
        demo.remove()
