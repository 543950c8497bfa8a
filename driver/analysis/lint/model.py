"""What a rule is, what it finds, and what it may look at."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

from driver.analysis.autoscaler import PoolKey, PoolView, pools
from driver.analysis.documents import Collection, Document, Progress, quiet
from driver.analysis.shape.kinds import AttributeKinds, qualified

JSON: TypeAlias = dict[str, Any]
Validator: TypeAlias = Callable[[JSON], Iterable[tuple[str, str]]]
"""Takes a document of one kind, gives (path, message) of what the API server would refuse."""

GROUP_LABELS: Final = (
    "karpenter.sh/nodepool",
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "kubernetes.azure.com/agentpool",
    "kwok-nodegroup",
    "node.kubernetes.io/instance-type",
)
"""Labels by which nodes are grouped where none was named: the first that a node has."""


class Severity(enum.StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Pods stay pending or an autoscaler stops, now or as soon as somebody asks for it."""
    WARNING = "warning"
    """An autoscaler decides wrongly."""
    NOTE = "note"
    """Something to know: nothing is wrong with the document."""

    @property
    def rank(self) -> int:
        """Larger is worse."""
        return (Severity.NOTE, Severity.WARNING, Severity.ERROR).index(self)


SCHEDULER, CLUSTER_AUTOSCALER, KARPENTER = "scheduler", "cluster-autoscaler", "karpenter"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a rule has found."""

    message: str
    document: Document | None = None
    path: str = ""
    evidence: tuple[str, ...] = ()
    severity: Severity | None = None
    """Where it differs from the rule's."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    id: str
    name: str
    """For machines: ``one-pool-per-node``."""
    severity: Severity
    title: str
    """What must hold, one sentence."""
    why: str
    remedy: str
    link: str
    affects: tuple[str, ...]
    check: Callable[[Context], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Options:
    """What the rules are told beside the documents."""

    kinds: AttributeKinds = field(default_factory=AttributeKinds)
    release: int = 37
    """Minor version of Kubernetes whose CEL environment is meant."""
    group_label: str | None = None
    """Node label that tells node groups apart; None takes the usual ones."""
    validators: Mapping[str, Validator] = field(default_factory=dict)
    """Kind -> the API server's rules."""
    progress: Progress = quiet


@dataclass(frozen=True)
class Context:
    """The documents, sorted as the rules want them. Everything is computed once, when it is first asked for."""

    collection: Collection
    options: Options

    @cached_property
    def _by_body(self) -> dict[int, Document]:
        return {id(document.body): document for document in self.collection.documents}

    def document(self, body: JSON) -> Document:
        """The document that this body belongs to."""
        return self._by_body[id(body)]

    @cached_property
    def pools(self) -> dict[PoolKey, PoolView]:
        """All pools, wherever they are; those with damaged slices too."""
        return pools(document.body for document in self.collection.slices)

    @cached_property
    def sound_pools(self) -> dict[PoolKey, PoolView]:
        """Pools of which every slice could be read."""
        return {key: view for key, view in self.pools.items() if key not in self.collection.damaged_pools}

    @cached_property
    def node_slices(self) -> dict[str, list[JSON]]:
        """Node -> slices with its name in ``spec.nodeName``."""
        found: dict[str, list[JSON]] = {}
        for document in self.collection.slices:
            node = document.body["spec"].get("nodeName")
            if node:
                found.setdefault(node, []).append(document.body)
        return found

    @cached_property
    def shared(self) -> dict[str, bool]:
        """Qualified attribute -> whether two devices of some node have one value; only what slices of nodes have."""
        found: dict[str, bool] = {}
        for slices in self.node_slices.values():
            seen: set[tuple[str, str]] = set()
            for body in slices:
                for device in body["spec"].get("devices") or ():
                    for name, value in (device.get("attributes") or {}).items():
                        full = qualified(name, body["spec"]["driver"])
                        key = full, repr(value)
                        found[full] = found.get(full, False) or key in seen
                        seen.add(key)
        return found

    @cached_property
    def nodes(self) -> dict[str, JSON]:
        """Nodes by name."""
        return {document.body["metadata"].get("name", ""): document.body for document in self.collection.of("Node")}

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Group -> names of its nodes that publish something; empty without Node documents."""
        found: dict[str, list[str]] = {}
        labels = (self.options.group_label,) if self.options.group_label else GROUP_LABELS
        for name, node in self.nodes.items():
            carried = node["metadata"].get("labels") or {}
            label = next((label for label in labels if label in carried), None)
            if label is not None and name in self.node_slices:
                found.setdefault(f"{label}={carried[label]}", []).append(name)
        return found

    @cached_property
    def claim_specs(self) -> tuple[tuple[Document, str, JSON], ...]:
        """(document, path of the spec, spec) of every claim and claim template."""
        claims = [(document, "spec", document.body["spec"]) for document in self.collection.claims]
        templates = [
            (document, "spec.spec", document.body["spec"]["spec"]) for document in self.collection.claim_templates
        ]
        return (*claims, *templates)

    @cached_property
    def classes(self) -> dict[str, Document]:
        """DeviceClasses by name."""
        return {document.name: document for document in self.collection.classes}

    @cached_property
    def claims_by_name(self) -> dict[str, Document]:
        """Claims by ``namespace/name``."""
        return {document.name: document for document in self.collection.claims}

    @cached_property
    def allocated(self) -> dict[PoolKey, dict[str, list[Document]]]:
        """Pool -> device -> the claims that hold it; admin access holds nothing."""
        found: dict[PoolKey, dict[str, list[Document]]] = {}
        for document in self.collection.claims:
            for result in results(document.body):
                if not result.get("adminAccess"):
                    devices = found.setdefault((result["driver"], result["pool"]), {})
                    devices.setdefault(result["device"], []).append(document)
        return found


def results(claim: JSON) -> list[JSON]:
    """What a claim has been given."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return list((allocation.get("devices") or {}).get("results") or ())


def requests(spec: JSON) -> Iterator[tuple[str, JSON]]:
    """(path below the spec, request) of every request and alternative."""
    for index, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        if request.get("exactly") is not None:
            yield f"devices.requests[{index}].exactly", request["exactly"]
        for number, alternative in enumerate(request.get("firstAvailable") or ()):
            yield f"devices.requests[{index}].firstAvailable[{number}]", alternative


def device_paths(view: PoolView) -> Iterator[tuple[JSON, str, JSON]]:
    """(slice, path of the device in it, device)."""
    for body in view.slices:
        for index, device in enumerate(body["spec"].get("devices") or ()):
            yield body, f"spec.devices[{index}]", device


def counted(number: int, noun: str) -> str:
    """``1 device``, ``3 devices``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def shown(names: Iterable[str], limit: int = 3) -> str:
    """The first few names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
