"""Random scenes of ``hack.oracle`` made ready to stand side by side in one cluster. Pure.

A scene is a small cluster of its own. Here its drivers, pools, nodes, classes and slices get names that no other scene
has, in the same order among themselves as before, and its slices are for its own nodes alone: what a pod of one scene
gets does not depend on the others.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from hack.oracle.build import Release
from hack.oracle.scenes import DEFAULTS, DRIVERS, Maker

Document = dict[str, Any]

SCENE_LABEL = "gpudra.test/scene"
NODE_LABEL = "gpudra.test/node"
ADMIN_LABEL = "resource.kubernetes.io/admin-access"
CLAIM_OF_RESULTS = "r"
"""The request that the generator names in the results of allocated claims."""


class UngatedMaker(Maker):
    """Makes scenes of what a release has on where nobody set a feature gate."""

    def _features(self) -> list[str]:
        return sorted(DEFAULTS[self.release])


def scene(version: str, seed: int) -> Document:
    """The scene of a seed, by the version of k8s.io/dynamic-resource-allocation."""
    return UngatedMaker(version, seed).scene()


def isolated(whole: Document, tag: str) -> Document:
    """A scene with names of its own. ``tag`` is a DNS label."""
    text = json.dumps(whole)
    for driver in DRIVERS:
        kind, domain = driver.split(".", 1)
        text = text.replace(driver, f"{kind}.{tag}.{domain}")
    made: Document = json.loads(text)
    for resource in ("Slices", "Classes", "Nodes", "TaintRules"):
        for position, each in enumerate(made.get(resource) or ()):
            unique = f"-{position}" if resource == "TaintRules" else ""
            each["metadata"]["name"] += f"-{tag}{unique}"
    for node in made["Nodes"]:
        node["metadata"]["labels"] |= {SCENE_LABEL: tag, NODE_LABEL: node["metadata"]["name"]}
    _rename(made, tag)
    for each in made["Slices"]:
        _keep_at_home(each["spec"], tag)
        for device in each["spec"].get("devices", ()):
            _keep_at_home(device, tag)
    for rule in made.get("TaintRules") or ():
        # A rule without a selector is for no device; one that names no driver must not reach into other scenes.
        if (selector := rule["spec"].get("deviceSelector")) is not None:
            selector.setdefault("driver", f"gpu.{tag}.example.com")
    return made


def _rename(value: Any, tag: str) -> None:
    """Nodes, pools and classes, wherever they are named."""
    if isinstance(value, list):
        for each in value:
            _rename(each, tag)
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key in ("nodeName", "deviceClassName", "pool") and isinstance(inner, str):
                value[key] = f"{inner}-{tag}"
            elif key == "pool":
                inner["name"] += f"-{tag}"
            elif key == "matchFields":
                for field in inner:
                    field["values"] = [f"{name}-{tag}" for name in field["values"]]
            else:
                _rename(inner, tag)


def _keep_at_home(where: Document, tag: str) -> None:
    """What is for all nodes, or for those with certain labels, is for those of the scene."""
    home = {"key": SCENE_LABEL, "operator": "In", "values": [tag]}
    if where.pop("allNodes", None):
        where["nodeSelector"] = {"nodeSelectorTerms": [{"matchExpressions": [home]}]}
    elif "nodeSelector" in where:
        for term in where["nodeSelector"]["nodeSelectorTerms"]:
            term.setdefault("matchExpressions", []).append(home)


def storable(scene_: Document, release: int) -> Iterator[tuple[str, Document]]:
    """(resource, document) of everything but the claims, as the API takes them."""
    for node in scene_["Nodes"]:
        yield "nodes", node
    for each in scene_["Classes"]:
        yield "deviceclasses", each
    for each in scene_["Slices"]:
        yield "resourceslices", each
    if release >= 37:  # off by default before
        for rule in scene_.get("TaintRules") or ():
            yield "devicetaintrules", rule


def claims_of(scene_: Document, tag: str) -> list[Document]:
    """The claims that the scene's pod has, by the names that they have beside others."""
    return [_renamed(claim, f"{claim['metadata']['name']}-{tag}") for claim in scene_["Claims"]]


def held_by(scene_: Document, tag: str) -> list[Document]:
    """The claims that hold devices before the pod comes, with a request that their results can name."""
    found = []
    for number, claim in enumerate(scene_.get("Allocated") or ()):
        made = _renamed(claim, f"before-{number}-{tag}")
        results = made["status"]["allocation"]["devices"]["results"]
        wish: Document = {"deviceClassName": "whatever", "count": len(results)}
        if any(result.get("adminAccess") for result in results):
            wish["adminAccess"] = True
        made["spec"] = {"devices": {"requests": [{"name": CLAIM_OF_RESULTS, "exactly": wish}]}}
        found.append(made)
    return found


def _renamed(claim: Document, name: str) -> Document:
    made = copy.deepcopy(claim)
    made["metadata"] = {"name": name}
    return made


def pod(name: str, claims: list[str], labels: dict[str, str]) -> Document:
    """A pod with these claims, for nodes with these labels."""
    container = {"name": "main", "image": "none", "resources": {"claims": [{"name": claim} for claim in claims]}}
    return {
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": labels,
            "containers": [container],
            "resourceClaims": [{"name": claim, "resourceClaimName": claim} for claim in claims],
        },
    }


def release_of(version: str) -> int:
    """37 for 0.37.2."""
    return Release(version).minor
