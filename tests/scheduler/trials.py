"""A scene of ``hack.oracle`` with one pod: what the real scheduler makes of it beside what the port says.

What the API server kept of each object is what both are asked about. A scene is tried once for each of its nodes, by a
pod that may go nowhere else, and once more by a pod that may choose.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from driver.analysis.allocator import Allocator, Outcome, Rules
from driver.analysis.allocator.verify import problems
from hack.cluster.api import ApiError
from hack.oracle.compare import normal
from hack.oracle.compare import port as port_alone
from tests.scheduler.isolation import (
    NODE_LABEL,
    SCENE_LABEL,
    Document,
    claims_of,
    held_by,
    isolated,
    pod,
    scene,
    storable,
)
from tests.scheduler.plane import Plane, Verdict, node_of

NOT_COMPARED = ("timeout", "unknown", "panic")
HOPELESS = 5
"""One in so many scenes of those in which nothing fits is tried too."""


@dataclass
class Trial:
    """A scene with one pod."""

    tag: str
    whole: Document
    node: str | None
    """The node that the pod is for; None: it may choose."""
    stored: dict[str, list[Document]] = field(default_factory=dict)
    around: list[Document] = field(default_factory=list)
    """Slices of other scenes, where the release looks at them too."""
    refusal: str = ""

    @property
    def claims(self) -> list[str]:
        return [claim["metadata"]["name"] for claim in claims_of(self.whole, self.tag)]

    @property
    def pod(self) -> Document:
        labels = {NODE_LABEL: self.node} if self.node else {SCENE_LABEL: self.tag}
        return pod(self.tag, self.claims, labels)


def trials(version: str, seed: int) -> Iterator[Trial]:
    """One for each node of the scene and, where there are several, one for all."""
    nodes = [node["metadata"]["name"] for node in scene(version, seed)["Nodes"]]
    for choice in [*nodes, *([None] if len(nodes) > 1 else [])]:
        tag = f"s{seed}{choice or 'any'}".replace("-", "")
        yield Trial(tag, isolated(scene(version, seed), tag), choice and f"{choice}-{tag}")


def worth_trying(version: str, seed: int) -> bool:
    """Whether something fits; and a part of the others."""
    return seed % HOPELESS == 0 or any(found.fits for found in port_alone(version, scene(version, seed)))


def set_up(plane: Plane, trial: Trial, batch: str) -> None:
    """Make everything of a scene but its pod; ``refusal`` says what the API server did not want."""
    objects = [
        *storable(trial.whole, plane.release),
        *(("resourceclaims", claim) for claim in held_by(trial.whole, trial.tag)),
        *(("resourceclaims", claim) for claim in claims_of(trial.whole, trial.tag)),
    ]
    try:
        for resource, document in objects:
            trial.stored.setdefault(resource, []).append(plane.make(resource, document, batch))
    except ApiError as error:
        trial.refusal = str(error)


def port(chosen: Rules, trial: Trial) -> dict[str, Outcome]:
    """What the port says of each node of the scene."""
    stored = trial.stored
    waiting = [claim for claim in stored["resourceclaims"] if claim["metadata"]["name"] in trial.claims]
    held = [claim for claim in stored["resourceclaims"] if claim not in waiting]
    slices, rules_ = [*stored.get("resourceslices", []), *trial.around], stored.get("devicetaintrules", [])
    allocator = Allocator(chosen, stored["deviceclasses"], slices, held, rules_)
    return {found.node: found for found in allocator.allocate_each(stored["nodes"], waiting)}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One trial's end: ``answer`` is the scheduler's in a word, ``difference`` how the port's differs, in words; None:
    the two cannot be compared."""

    answer: str
    difference: str | None


def difference(chosen: Rules, trial: Trial, verdict: Verdict) -> str | None:
    """How the scheduler's verdict differs from the port's; empty: not at all, None: it cannot be compared."""
    outcomes = port(chosen, trial)
    asked = [outcomes[trial.node]] if trial.node else list(outcomes.values())
    if any(each.kind in NOT_COMPARED for each in asked):
        return None
    fatal = [each for each in asked if each.kind == "fatal"]
    if not chosen.sorts and bool(fatal) != (verdict.reason == "SchedulerError"):
        return None  # pools come in an order of chance there, so whether a selector that fails is met at all is chance
    if fatal:
        return _refused_for_good(fatal, verdict)
    if verdict.reason:
        if verdict.reason != "Unschedulable" or any(each.fits for each in asked):
            return f"the scheduler says {verdict.reason}: {verdict.message}"
        return ""
    node = verdict.node or trial.node or node_of(verdict.claims[0])
    if node is None:
        return None  # it waits for its devices, and they are not of one node
    mine = outcomes[node]
    if mine.allocations is None:
        return f"the scheduler found devices on {node}: {_results(_real(verdict))}"
    if not chosen.sorts:  # the order of pools is chance there
        return "; ".join(_wrong(chosen, trial, node, verdict))
    if _plain(mine.allocations) != _plain(_real(verdict)):
        return f"on {node} the scheduler gave {_results(_real(verdict))}, the port {_results(mine.allocations)}"
    return ""


def _refused_for_good(fatal: Sequence[Outcome], verdict: Verdict) -> str:
    """An error ends the attempt for all nodes. A class that is not there is found out before."""
    if verdict.reason == "SchedulerError" or (verdict.reason and "does not exist" in verdict.message):
        return ""
    return f"the port fails with {fatal[0].error!r}, the scheduler says {verdict.reason or _results(_real(verdict))}"


def _real(verdict: Verdict) -> list[Document]:
    return [claim["status"]["allocation"] for claim in verdict.claims]


def _plain(allocations: Sequence[Document]) -> Document:
    """Allocations without what is the scheduler's alone."""
    return normal({"results": [{k: v for k, v in each.items() if k != "allocationTimestamp"} for each in allocations]})


def _results(allocations: Sequence[Document]) -> str:
    return json.dumps([each["devices"].get("results") for each in allocations])


def _wrong(chosen: Rules, trial: Trial, node: str, verdict: Verdict) -> list[str]:
    (where,) = [each for each in trial.stored["nodes"] if each["metadata"]["name"] == node]
    waiting = [claim for claim in trial.stored["resourceclaims"] if claim["metadata"]["name"] in trial.claims]
    held = [claim for claim in trial.stored["resourceclaims"] if claim not in waiting]
    slices, classes = trial.stored.get("resourceslices", []), trial.stored["deviceclasses"]
    return problems(chosen, where, slices, classes, held, waiting, _real(verdict))


def compare(plane: Plane, chosen: Rules, batch: Sequence[Trial], name: str) -> dict[str, Comparison]:
    """Comparison by tag, of the scenes that the API server takes."""
    plane.map(lambda trial: set_up(plane, trial, name), batch)
    taken = [trial for trial in batch if not trial.refusal]
    if chosen.counter_slices_everywhere:  # whatever node they are for: they cannot be kept to their scene
        stored = [each for trial in batch for each in trial.stored.get("resourceslices", ())]
        counters = [each for each in stored if "sharedCounters" in each["spec"]]
        for trial in taken:
            trial.around = [each for each in counters if each not in trial.stored.get("resourceslices", ())]
    plane.settle(name)
    plane.map(lambda trial: plane.make("pods", trial.pod, name), taken)
    verdicts = plane.verdicts({trial.tag: trial.claims for trial in taken}, name)
    plane.clear(name)
    return {
        trial.tag: Comparison(verdict.reason or "Allocated", difference(chosen, trial, verdict))
        for trial, verdict in ((trial, verdicts[trial.tag]) for trial in taken)
    }
